/* Blob files: blobs/ab/abcd…, named by the full digest in lower-case hex, 256 folders by the first byte. A published
 * file is never written again and never truncated: it is renamed into place whole, and unlinked whole. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void bcsi_blob_name(const uint8_t digest[BCS_DIGEST_SIZE], char *out) {
  bcsi_hex(digest, 1, out);
  out[2] = '/';
  bcsi_hex(digest, BCS_DIGEST_SIZE, out + 3);
}

void bcsi_blob_shown(const bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], char *out, size_t capacity) {
  char name[BCSI_NAME_MAX];
  bcsi_blob_name(digest, name);
  snprintf(out, capacity, "%s/blobs/%s", store->info.path, name);
}

static bcs_status fail(const bcs_store *store, int code, const char *operation, const uint8_t *digest) {
  char shown[4300];
  bcsi_blob_shown(store, digest, shown, sizeof shown);
  return bcsi_fail_errno(code, operation, shown);
}

void bcsi_identify(const struct stat *st, bcsi_identity *out) {
  out->device = (uint64_t)st->st_dev;
  out->inode = (uint64_t)st->st_ino;
  out->size = (uint64_t)st->st_size;
  out->change_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec;
}

bcs_status bcsi_blob_stat(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], struct stat *st) {
  char name[BCSI_NAME_MAX];
  bcsi_blob_name(digest, name);
  if (fstatat(store->blobs_fd, name, st, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return BCS_MISS;
    return fail(store, errno, "stat", digest);
  }
  return S_ISREG(st->st_mode) ? BCS_OK : BCS_DAMAGED;
}

bcs_status bcsi_blob_open(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], int *fd, struct stat *st) {
  char name[BCSI_NAME_MAX];
  bcsi_blob_name(digest, name);
  int code = bcsi_fault("blob-open");
  /* O_NONBLOCK: a FIFO that somebody put here must not hang a lookup. */
  *fd = code != 0 ? -1 : openat(store->blobs_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) {
    if (code == 0) code = errno;
    if (code == ENOENT || code == ENOTDIR) return BCS_MISS;
    if (code == ELOOP || code == ENXIO) return BCS_DAMAGED;
    return fail(store, code, "open", digest);
  }
  if (fstat(*fd, st) != 0) {
    code = errno;
    close(*fd);
    return fail(store, code, "stat", digest);
  }
  if (!S_ISREG(st->st_mode)) {
    close(*fd);
    return BCS_DAMAGED;
  }
  return BCS_OK;
}

/* Mappings of bodies that this process holds. The kernel allows it some number of mappings (vm.max_map_count, 65,530 as a
 * rule), of which threads' stacks, memory and libraries need theirs: at the limit an allocation fails that nobody can do
 * without. So bodies take half of it at most; beyond that they are copies. */
static _Atomic long mappings;

static long most_mappings(void) {
  static _Atomic long most;
  long known = atomic_load_explicit(&most, memory_order_relaxed);
  if (known > 0) return known;
  char text[32];
  int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0) close(fd);
  if (n > 0) {
    text[n] = 0;
    known = strtol(text, NULL, 10) / 2;
  }
  if (known <= 0) known = 65530 / 2;
  atomic_store_explicit(&most, known, memory_order_relaxed);
  return known;
}

static bool take_mapping(void) {
  if (atomic_fetch_add(&mappings, 1) < most_mappings()) return true;
  atomic_fetch_sub(&mappings, 1);
  return false;
}

/* Reading is quicker than mapping below about 1.5 MiB, and scales; from 2 MiB mapping wins two to one. */
bcs_status bcsi_blob_read(int fd, uint64_t size, bool may_map, const char *shown, bcs_body *out) {
  memset(out, 0, sizeof *out);
  out->count = (size_t)size;
  out->owned = true;
  if (may_map && size >= BCSI_MAP_FROM && take_mapping()) {
    void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      out->bytes = map;
      out->mapped = true;
      return BCS_OK;
    }
    atomic_fetch_sub(&mappings, 1); /* others have taken them, or there is no address space: it is read instead */
  }
  uint8_t *bytes = malloc(size > 0 ? (size_t)size : 1);
  if (!bytes) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "read", shown, NULL);
  size_t got = 0;
  while (got < size) {
    ssize_t n = pread(fd, bytes + got, (size_t)size - got, (off_t)got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      int code = errno;
      free(bytes);
      return n == 0 ? BCS_DAMAGED : bcsi_fail_errno(code, "read", shown);
    }
    got += (size_t)n;
  }
  out->bytes = bytes;
  return BCS_OK;
}

bcs_status bcsi_blob_hash_file(int fd, uint8_t out[BCS_DIGEST_SIZE], uint64_t *size, const char *shown) {
  enum { PIECE = 256 * 1024 };
  bcsi_hasher *hasher;
  bcs_status status = bcsi_hasher_make(&hasher);
  if (status != BCS_OK) return status;
  uint8_t *buffer = malloc(PIECE);
  *size = 0;
  if (!buffer) status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "read", shown, NULL);
  while (status == BCS_OK) {
    ssize_t n = pread(fd, buffer, PIECE, (off_t)*size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = bcsi_fail_errno(errno, "read", shown);
    if (n <= 0) break;
    *size += (uint64_t)n;
    status = bcsi_hasher_update(hasher, buffer, (size_t)n);
  }
  if (status == BCS_OK) status = bcsi_hasher_finish(hasher, out);
  bcsi_hasher_free(hasher);
  free(buffer);
  return status;
}

bcs_status bcsi_blob_publish(bcs_store *store, const char *staged, const uint8_t digest[BCS_DIGEST_SIZE]) {
  char name[BCSI_NAME_MAX], folder[3];
  bcsi_blob_name(digest, name);
  int code = bcsi_fault("rename");
  if (code != 0) return fail(store, code, "rename", digest);
  bool renamed = renameat(store->staging_fd, staged, store->blobs_fd, name) == 0;
  if (!renamed && errno == ENOENT) {
    memcpy(folder, name, 2);
    folder[2] = 0;
    char shown[4300];
    snprintf(shown, sizeof shown, "%s/blobs/%s", store->info.path, folder);
    int fd;
    bcs_status status = bcsi_open_folder(store->blobs_fd, folder, shown, store->directory_mode, true, &fd);
    if (status != BCS_OK) return status;
    close(fd);
    store->folder_synced[digest[0]] = false;
    renamed = renameat(store->staging_fd, staged, store->blobs_fd, name) == 0;
  }
  if (!renamed) return fail(store, errno, "rename", digest);
  (void)bcsi_fault("renamed");
  return BCS_OK;
}

bcs_status bcsi_blob_sync_staged(bcs_store *store, const char *staged) {
  char shown[4300];
  snprintf(shown, sizeof shown, "%s/staging/%s", store->info.path, staged);
  int fd = openat(store->staging_fd, staged, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return bcsi_fail_errno(errno, "open", shown);
  int code = bcsi_fault("replace-sync");
  if (code == 0 && fsync(fd) != 0) code = errno;
  close(fd);
  return code == 0 ? BCS_OK : bcsi_fail_errno(code, "fsync", shown);
}

bcs_status bcsi_blob_unlink(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE]) {
  char name[BCSI_NAME_MAX];
  bcsi_blob_name(digest, name);
  int code = bcsi_fault("unlink");
  if (code != 0) return fail(store, code, "unlink", digest);
  if (unlinkat(store->blobs_fd, name, 0) == 0 || errno == ENOENT || errno == ENOTDIR) {
    (void)bcsi_fault("unlinked");
    return BCS_OK;
  }
  if (errno == EISDIR) return BCS_OK; /* not ours: nothing unknown is deleted */
  return fail(store, errno, "unlink", digest);
}

/* What was renamed into it, and once in a process its own name: who made it may have died before it had that synced. */
bcs_status bcsi_blob_sync_folder(bcs_store *store, uint8_t first) {
  char folder[3], shown[4300];
  bcsi_hex(&first, 1, folder);
  snprintf(shown, sizeof shown, "%s/blobs/%s", store->info.path, folder);
  int fd;
  bcs_status status = bcsi_open_folder(store->blobs_fd, folder, shown, store->directory_mode, false, &fd);
  if (status != BCS_OK) return status;
  if (fsync(fd) != 0 || (!store->folder_synced[first] && fsync(store->blobs_fd) != 0))
    status = bcsi_fail_errno(errno, "fsync", shown);
  close(fd);
  if (status == BCS_OK) store->folder_synced[first] = true;
  return status;
}

/* Kept for the operator under the digest that it should have, with the time. */
bcs_status bcsi_blob_quarantine(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE]) {
  char name[BCSI_NAME_MAX], kept[BCSI_NAME_MAX + 32];
  bcsi_blob_name(digest, name);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(kept, sizeof kept, "%s.%lld%09ld", name + 3, (long long)now.tv_sec, now.tv_nsec);
  if (renameat(store->blobs_fd, name, store->quarantine_fd, kept) == 0 || errno == ENOENT) {
    (void)bcsi_fault("quarantined");
    return BCS_OK;
  }
  return fail(store, errno, "quarantine", digest);
}

bool bcsi_blob_row_get(bcs_store *store, MDB_txn *txn, const uint8_t digest[BCS_DIGEST_SIZE], bcsi_blob_row *out,
                       int *rc) {
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest}, value;
  *rc = mdb_get(txn, store->index.blobs, &key, &value);
  if (*rc == MDB_NOTFOUND) *rc = 0;
  else if (*rc == 0 && value.mv_size == sizeof *out) {
    memcpy(out, value.mv_data, sizeof *out);
    return true;
  }
  memset(out, 0, sizeof *out);
  return false;
}

int bcsi_blob_row_put(bcs_store *store, MDB_txn *txn, const uint8_t digest[BCS_DIGEST_SIZE],
                      const bcsi_blob_row *row) {
  bcsi_blob_row copy;
  memset(&copy, 0, sizeof copy); /* padding reaches the disk */
  copy.uses = row->uses;
  copy.pins = row->pins;
  copy.size = row->size;
  copy.allocated = row->allocated;
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest}, value = {sizeof copy, &copy};
  return mdb_put(txn, store->index.blobs, &key, &value, 0);
}

void bcs_take_body(bcs_body *body, bcs_body *taken) {
  *taken = *body;
  body->owned = false;
}

void bcs_release_body(bcs_body *taken) {
  if (!taken->owned || !taken->bytes) return;
  if (taken->mapped) {
    munmap((void *)(uintptr_t)taken->bytes, taken->count);
    atomic_fetch_sub(&mappings, 1);
  } else {
    free((void *)(uintptr_t)taken->bytes);
  }
  memset(taken, 0, sizeof *taken);
}

/* In use, or waiting to be unlinked. In doubt it is known, and stays. */
bool bcsi_blob_is_known(bcs_store *store, MDB_txn *txn, const uint8_t digest[BCS_DIGEST_SIZE]) {
  bcsi_blob_row row;
  int rc;
  if (bcsi_blob_row_get(store, txn, digest, &row, &rc) || rc != 0) return true;
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest}, value;
  return mdb_get(txn, store->index.trash, &key, &value) != MDB_NOTFOUND;
}

/* What quarantine takes is a total, which only a write transaction changes. */
bcs_status bcsi_quarantine_recount(bcs_store *store) {
  MDB_txn *txn;
  bcsi_totals totals;
  bcs_status status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  status = bcsi_write_begin(store, &txn);
  if (status == BCS_OK) {
    int rc = 0;
    status = bcsi_totals_get(store, txn, &totals);
    totals.quarantine_allocated = bcsi_quarantine_allocated(store);
    if (status == BCS_OK) rc = bcsi_totals_put(store, txn, &totals);
    if (status == BCS_OK && rc == 0) rc = bcsi_write_commit(store, txn);
    else bcsi_write_abort(store, txn);
    if (status == BCS_OK && rc == 0) bcsi_slots_publish_totals(store, &totals);
    if (rc != 0) status = bcsi_fail_lmdb(rc, "count quarantine", store->index.path);
  }
  bcsi_writer_unlock(store);
  return status;
}
