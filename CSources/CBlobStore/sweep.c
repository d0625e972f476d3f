/* Sweeping: what time alone makes useless. Expired entries whose stale window is over, blob files that no row knows,
 * what the dead left in staging, quarantine above its bound. One process does it at a time; each call is one short
 * step, so that whoever calls decides how fast it goes and when it stops. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bcs_status bcs_sweep_begin(bcs_store *store) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = store->options.read_only ? bcsi_fail(BCS_READ_ONLY, 0, "sweep", store->info.path, NULL)
                                    : bcsi_lock(store->lock_fd, BCSI_LOCK_SWEEP, true, false, store->info.path);
  bcsi_call_leave(store);
  return status;
}

bcs_status bcs_sweep_want(bcs_store *store) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = bcsi_lock(store->lock_fd, BCSI_LOCK_SWEEP_WANTED, false, false, store->info.path);
  bcsi_call_leave(store);
  return status;
}

void bcs_sweep_want_no_more(bcs_store *store) {
  if (bcsi_call_enter(store) != BCS_OK) return; /* shut: the lock was given up with the rest */
  bcsi_unlock(store->lock_fd, BCSI_LOCK_SWEEP_WANTED);
  bcsi_call_leave(store);
}

bool bcs_sweep_is_wanted(bcs_store *store) {
  if (bcsi_call_enter(store) != BCS_OK) return false;
  bool wanted = bcsi_locked_by_other(store->lock_fd, BCSI_LOCK_SWEEP_WANTED);
  bcsi_call_leave(store);
  return wanted;
}

void bcs_sweep_end(bcs_store *store) {
  if (bcsi_call_enter(store) != BCS_OK) return; /* shut: the lock was given up with the rest */
  bcsi_unlock(store->lock_fd, BCSI_LOCK_SWEEP);
  bcsi_call_leave(store);
}

/* ---- expired entries */

static bool is_gone(const bcs_record *record, int64_t now_ms) {
  return !record->pinned && now_ms >= bcs_gone_ms(record);
}

/* The lines propose, by a scan that costs some nanoseconds each; the records decide, and the removal asks for the
 * generation that was seen. */
bcs_status bcs_sweep_expired(bcs_store *store, uint32_t *line, int64_t now_ms, uint64_t *removed, bool *done) {
  enum { LINES = 65536, REMOVALS = 256 };
  bcs_write *writes[REMOVALS];
  size_t count = 0;
  *done = false;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  bcsi_totals totals;
  bcsi_slots_totals(store, &totals);
  uint32_t end = (uint32_t)(totals.slots_used < BCSI_MAX_LINES ? totals.slots_used : BCSI_MAX_LINES);
  for (int looked = 0; status == BCS_OK && *line < end && looked < LINES && count < REMOVALS; ++*line, looked++) {
    bcs_record record;
    if (!bcsi_slots_has(store, *line)) {
      *line = end; /* a head that says more than there is */
      break;
    }
    if (!bcsi_slots_record(store, *line, &record) || !is_gone(&record, now_ms)) continue;
    status = bcs_write_remove_if(store, record.key_hash, record.generation, &writes[count]);
    if (status == BCS_OK) {
      writes[count]->kind = BCSI_REMOVE_GONE;
      writes[count++]->now_ms = now_ms;
    }
  }
  *done = *line >= end;
  bcsi_call_leave(store);
  if (count > 0 && status == BCS_OK) status = bcs_commit(store, writes, count, false);
  for (size_t i = 0; i < count; i++) {
    if (status == BCS_OK && bcs_write_result(writes[i], NULL) == BCS_OK) ++*removed;
    bcs_write_free(writes[i]);
  }
  return status;
}

/* ---- blob files that no row knows */

/* Looked up again in a write transaction, where nobody publishes, before anything is unlinked. */
static bcs_status unlink_unknown(bcs_store *store, const uint8_t (*digests)[BCS_DIGEST_SIZE], size_t count,
                                 uint64_t *removed) {
  MDB_txn *txn;
  bcs_status status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  status = bcsi_write_begin(store, &txn);
  if (status == BCS_OK) {
    for (size_t i = 0; status == BCS_OK && i < count; i++) {
      if (bcsi_blob_is_known(store, txn, digests[i])) continue;
      status = bcsi_blob_unlink(store, digests[i]);
      if (status == BCS_OK) ++*removed;
    }
    bcsi_write_abort(store, txn); /* begun only so that nobody publishes meanwhile */
  }
  bcsi_writer_unlock(store);
  return status;
}

bcs_status bcs_sweep_folder(bcs_store *store, uint8_t number, uint64_t *removed) {
  enum { CANDIDATES = 256, SETTLED_S = 60 };
  static _Thread_local uint8_t digests[CANDIDATES][BCS_DIGEST_SIZE];
  size_t count = 0;
  char name[3], shown[4300];
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  if (bcsi_slots_keep_files(store)) {
    bcsi_call_leave(store);
    return BCS_OK;
  }
  bcsi_hex(&number, 1, name);
  snprintf(shown, sizeof shown, "%s/blobs/%s", store->info.path, name);
  int fd = openat(store->blobs_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
  if (!folder) {
    int code = errno;
    if (fd >= 0) close(fd);
    status = code == ENOENT ? BCS_OK : bcsi_fail_errno(code, "list", shown);
    bcsi_call_leave(store);
    return status;
  }
  struct dirent *item;
  time_t now = time(NULL);
  while (status == BCS_OK && count < CANDIDATES && (item = readdir(folder)) != NULL) {
    uint8_t *digest = digests[count];
    struct stat st;
    if (strlen(item->d_name) != BCSI_HEX_SIZE || !bcsi_unhex(item->d_name, BCS_DIGEST_SIZE, digest) ||
        digest[0] != number || fstatat(fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        now - st.st_ctim.tv_sec < SETTLED_S)
      continue;
    bcsi_reader *reader;
    status = bcsi_reader_enter(store, &reader);
    if (status != BCS_OK) break;
    if (!bcsi_blob_is_known(store, reader->txn, digest)) count++;
    bcsi_reader_leave(reader);
  }
  closedir(folder);
  if (status == BCS_OK && count > 0)
    status = unlink_unknown(store, (const uint8_t(*)[BCS_DIGEST_SIZE])digests, count, removed);
  bcsi_call_leave(store);
  return status;
}

/* ---- entries whose file a power cut has taken back: it was removed after the checkpoint that the index is of */

enum { LISTED = 1024 };
typedef struct listed {
  bcs_damage files[LISTED];
  size_t count;
} listed;

static void note_file(void *context, const bcs_record *record, bcs_body *body) {
  listed *l = context;
  (void)body;
  if (!record->is_file) return;
  bcs_damage *damage = &l->files[l->count++];
  *damage = (bcs_damage){.generation = record->generation, .is_file = true};
  memcpy(damage->key_hash, record->key_hash, BCS_HASH_SIZE);
  memcpy(damage->digest, record->digest, BCS_DIGEST_SIZE);
}

/* Looked up again inside the write transaction, as for a lookup that found no file. */
static bcs_status remove_missing(bcs_store *store, const listed *l, uint64_t *removed) {
  bcs_write *writes[LISTED];
  size_t count = 0;
  bcs_status status = BCS_OK;
  for (size_t i = 0; status == BCS_OK && i < l->count; i++) {
    struct stat st;
    status = bcsi_blob_stat(store, l->files[i].digest, &st);
    if (status == BCS_MISS) {
      status = bcs_write_heal(store, &l->files[i], &writes[count]);
      if (status == BCS_OK) count++;
    } else if (status == BCS_DAMAGED) {
      status = BCS_OK; /* not a regular file: nobody can read it, and verify tells of it */
    }
  }
  if (status == BCS_OK && count > 0) status = bcs_commit(store, writes, count, false);
  for (size_t i = 0; i < count; i++) {
    if (status == BCS_OK && bcs_write_result(writes[i], NULL) == BCS_OK) ++*removed;
    bcs_write_free(writes[i]);
  }
  return status;
}

bcs_status bcs_sweep_missing(bcs_store *store, uint8_t cursor[BCS_HASH_SIZE], uint64_t *removed, bool *done) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  *done = !bcsi_slots_misses_files(store);
  bcsi_call_leave(store);
  if (*done) return BCS_OK;
  listed *l = calloc(1, sizeof *l);
  if (!l) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "sweep", store->info.path, NULL);
  status = bcs_list(store, cursor, NULL, 0, LISTED, note_file, l, done);
  if (status == BCS_OK) status = bcsi_call_enter(store);
  if (status == BCS_OK) {
    status = remove_missing(store, l, removed);
    if (status == BCS_OK && *done) bcsi_slots_found_missing(store);
    bcsi_call_leave(store);
  }
  free(l);
  return status;
}

/* ---- staging and quarantine */

bcs_status bcs_sweep_staging(bcs_store *store, uint64_t *removed) {
  uint64_t before = 0;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = bcsi_staging_dead(store, &before);
  if (status == BCS_OK && before > 0) status = bcsi_staging_sweep(store);
  if (status == BCS_OK) *removed += before;
  if (status == BCS_OK) status = bcsi_staging_recount(store);
  if (status == BCS_OK) status = bcsi_readers_sweep(store);
  bcsi_call_leave(store);
  return status;
}

typedef struct kept {
  char name[BCSI_NAME_MAX];
  int64_t changed_ns;
  uint64_t allocated;
} kept;

static int newest_first(const void *a, const void *b) {
  const kept *x = a, *y = b;
  return x->changed_ns > y->changed_ns ? -1 : x->changed_ns < y->changed_ns;
}

/* Only files that quarantine itself named: a digest, a dot, a time. */
static bool is_quarantined(const char *name) {
  uint8_t digest[BCS_DIGEST_SIZE];
  return strlen(name) > BCSI_HEX_SIZE && name[BCSI_HEX_SIZE] == '.' && strlen(name) < BCSI_NAME_MAX &&
         bcsi_unhex(name, BCS_DIGEST_SIZE, digest);
}

bcs_status bcs_sweep_quarantine(bcs_store *store, uint64_t bytes, uint64_t *removed) {
  enum { MOST = 65536 };
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  uint64_t limit = bcsi_limits(store).bytes; /* it is to hold entries, not damage */
  if (limit > 0 && bytes > limit / 16) bytes = limit / 16;
  kept *files = malloc(MOST * sizeof *files);
  int fd = files ? openat(store->quarantine_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
  if (!folder) {
    int code = files ? errno : ENOMEM;
    if (fd >= 0) close(fd);
    free(files);
    bcsi_call_leave(store);
    return bcsi_fail_errno(code, "sweep quarantine", store->info.path);
  }
  size_t count = 0;
  struct dirent *item;
  while (count < MOST && (item = readdir(folder)) != NULL) {
    struct stat st;
    if (!is_quarantined(item->d_name) || fstatat(fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    snprintf(files[count].name, sizeof files[count].name, "%s", item->d_name);
    files[count].changed_ns = (int64_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
    files[count++].allocated = (uint64_t)st.st_blocks * 512;
  }
  qsort(files, count, sizeof *files, newest_first);
  uint64_t sum = 0, freed = 0;
  for (size_t i = 0; status == BCS_OK && i < count; i++) {
    sum += files[i].allocated;
    if (sum <= bytes) continue;
    if (unlinkat(fd, files[i].name, 0) != 0 && errno != ENOENT)
      status = bcsi_fail_errno(errno, "sweep quarantine", store->info.path);
    freed += files[i].allocated;
    ++*removed;
  }
  closedir(folder);
  free(files);
  if (freed > 0) {
    bcs_status counted = bcsi_quarantine_recount(store);
    if (status == BCS_OK) status = counted;
  }
  bcsi_call_leave(store);
  return status;
}
