/* Intents. The file "owner+n" in staging names the digests that a batch is about to publish; it is written before the first
 * rename, so that whoever opens the directory after a kill finds the debris of the batch without looking through all blobs.
 * Names that a failed batch could not take back stay at its front, and the next batch tries again. All under the write
 * lock. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Numbers are of the process, not of the store: a store that is opened again meets no name of its former life. */
static _Atomic uint64_t sequence;

static bcs_status fail(const bcs_store *store, int code, const char *operation, const char *name) {
  char shown[4400];
  snprintf(shown, sizeof shown, "%s/staging/%s", store->info.path, name);
  return bcsi_fail_errno(code, operation, shown);
}

static void intent_name(const bcs_store *store, char *out, size_t capacity) {
  snprintf(out, capacity, "%.100s+%" PRIu64, store->owner, store->intent_sequence);
}

bcs_status bcsi_intent_write(bcs_store *store, const uint8_t (*digests)[BCS_DIGEST_SIZE], size_t count) {
  char name[BCSI_NAME_MAX];
  if (store->intent_fd < 0) store->intent_sequence = atomic_fetch_add(&sequence, 1);
  intent_name(store, name, sizeof name);
  int code = bcsi_fault("intent");
  if (code != 0) return fail(store, code, "write intent", name);
  if (store->intent_fd < 0) {
    store->intent_fd = openat(store->staging_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                              store->file_mode);
    if (store->intent_fd < 0 || fchmod(store->intent_fd, store->file_mode) != 0)
      return fail(store, errno, "create intent", name);
  }
  code = bcsi_write_at(store->intent_fd, digests, count * BCS_DIGEST_SIZE,
                       (off_t)(store->intent_kept * BCS_DIGEST_SIZE));
  if (code != 0) return fail(store, code, "write intent", name);
  if (store->durable && fsync(store->intent_fd) != 0) return fail(store, errno, "fsync intent", name);
  store->intent_count = store->intent_kept + count;
  (void)bcsi_fault("intent-written");
  return BCS_OK;
}

void bcsi_intent_clear(bcs_store *store) {
  (void)bcsi_fault("intent-clear");
  store->intent_count = store->intent_kept;
  if (store->intent_fd >= 0) /* stale names are looked up and found in use */
    (void)!ftruncate(store->intent_fd, (off_t)(store->intent_kept * BCS_DIGEST_SIZE));
}

void bcsi_intent_keep(bcs_store *store) {
  enum { MOST = 4096 }; /* beyond it the sweep of unreferenced files finds them */
  if (store->intent_count <= MOST) store->intent_kept = store->intent_count;
}

void bcsi_intent_remove(bcs_store *store) {
  if (store->intent_fd < 0) return;
  char name[BCSI_NAME_MAX];
  intent_name(store, name, sizeof name);
  if (store->intent_kept == 0) (void)unlinkat(store->staging_fd, name, 0); /* else it is for the next open */
  close(store->intent_fd);
  store->intent_fd = -1;
}

/* ---- debris */

/* Unlinks those of the first `most` names of an intent that no row knows. Who calls holds the write lock. */
static bcs_status undo_names(bcs_store *store, MDB_txn *txn, int fd, size_t most, const char *name) {
  uint8_t digest[BCS_DIGEST_SIZE];
  bcs_status status = BCS_OK;
  for (size_t i = 0; status == BCS_OK && i < most; i++) {
    ssize_t n = bcsi_read_at(fd, digest, sizeof digest, (off_t)(i * sizeof digest));
    if (n < 0) status = fail(store, errno, "read", name); /* the intent stays, for the next open */
    if (n != (ssize_t)sizeof digest) break;
    bcsi_blob_row row;
    int rc;
    bool known = bcsi_blob_row_get(store, txn, digest, &row, &rc);
    if (rc != 0) status = bcsi_fail_lmdb(rc, "read", store->index.path);
    else if (!known) status = bcsi_blob_unlink(store, digest);
  }
  return status;
}

bcs_status bcsi_intent_undo(bcs_store *store, MDB_txn *txn, const char *name) {
  int fd = openat(store->staging_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? BCS_OK : fail(store, errno, "open", name);
  bcs_status status = undo_names(store, txn, fd, SIZE_MAX, name);
  close(fd);
  return status;
}

/* On a disk that fails for a while, each failing batch may leave such names. */
void bcsi_intent_retry(bcs_store *store, MDB_txn *txn) {
  if (store->intent_kept == 0) return;
  bcs_error error;
  bcs_last_error(&error);
  if (undo_names(store, txn, store->intent_fd, store->intent_kept, "intent") == BCS_OK) {
    store->intent_kept = 0;
    bcsi_intent_clear(store);
  }
  (void)bcsi_repeat(&error);
}
