/* Limits: recorded in the index, so that they outlive every process, and in the head of the slot table, where each
 * process reads them at every commit. Zero: no limit of that kind. */
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static const char limits_key[] = "limits";

static MDB_val row_key(void) { return (MDB_val){sizeof limits_key - 1, (void *)(uintptr_t)limits_key}; }

/* A directory without the row was made before anybody chose limits. */
int bcsi_limits_get(bcs_store *store, MDB_txn *txn, bcs_limits *out) {
  MDB_val key = row_key(), value;
  memset(out, 0, sizeof *out);
  int rc = mdb_get(txn, store->index.meta, &key, &value);
  if (rc == 0 && value.mv_size == sizeof *out) memcpy(out, value.mv_data, sizeof *out);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int bcsi_limits_put(bcs_store *store, MDB_txn *txn, const bcs_limits *limits) {
  MDB_val key = row_key(), value = {sizeof *limits, (void *)(uintptr_t)limits};
  return mdb_put(txn, store->index.meta, &key, &value, 0);
}

/* So that a cache that nobody bounded does not fill the machine's disk. */
bcs_limits bcsi_limits_default(void) { return (bcs_limits){.minimum_free = BCS_FREE_BY_SIZE}; }

uint64_t bcsi_disk_free(bcs_store *store) {
  struct statvfs fs;
  return fstatvfs(store->root_fd, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

/* Whether less of the file system is free than is to stay free, when `expected` of them are about to be. */
bool bcsi_disk_lacks(bcs_store *store, uint64_t minimum, uint64_t expected) {
  uint64_t free, reserve;
  return minimum != 0 && bcsi_disk(store, minimum, &free, &reserve) && free + expected < reserve;
}

/* What of the file system is free for this user, and what is to stay so. False, and zeros: it does not tell. */
bool bcsi_disk(bcs_store *store, uint64_t minimum, uint64_t *free, uint64_t *reserve) {
  static const uint64_t most = UINT64_C(1) << 30;
  struct statvfs fs;
  *free = *reserve = 0;
  if (fstatvfs(store->root_fd, &fs) != 0) return false;
  *free = (uint64_t)fs.f_bavail * fs.f_frsize;
  *reserve = minimum;
  if (minimum == BCS_FREE_BY_SIZE) {
    *reserve = (uint64_t)fs.f_blocks * fs.f_frsize / 20; /* 5 % */
    if (*reserve > most) *reserve = most;
  }
  return true;
}

bcs_status bcs_get_limits(bcs_store *store, bcs_limits *out) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  bcsi_reader *reader;
  status = bcsi_reader_enter(store, &reader);
  if (status == BCS_OK) {
    int rc = bcsi_limits_get(store, reader->txn, out);
    bcsi_reader_leave(reader);
    if (rc != 0) status = bcsi_fail_lmdb(rc, "read limits", store->index.path);
  }
  bcsi_call_leave(store);
  return status;
}

static bcs_status set_locked(bcs_store *store, const bcs_limits *limits, bool *full) {
  MDB_txn *txn;
  *full = false;
  bcs_status status = bcsi_write_begin(store, &txn);
  if (status != BCS_OK) return status;
  int rc = bcsi_limits_put(store, txn, limits);
  if (rc == 0) {
    rc = bcsi_write_commit(store, txn);
  } else {
    bcsi_write_abort(store, txn);
  }
  *full = rc == MDB_MAP_FULL;
  if (rc != 0) return bcsi_fail_lmdb(rc, "set limits", store->index.path);
  bcsi_slots_set_limits(store, limits);
  return BCS_OK;
}

/* More than all of the file system would leave no file in the cache. */
bcs_status bcsi_check_free(bcs_store *store, uint64_t minimum, const char *operation) {
  struct statvfs fs;
  if (minimum == 0 || minimum == BCS_FREE_BY_SIZE || fstatvfs(store->root_fd, &fs) != 0) return BCS_OK;
  uint64_t size = (uint64_t)fs.f_blocks * fs.f_frsize;
  if (minimum < size) return BCS_OK;
  char cause[160];
  snprintf(cause, sizeof cause, "%" PRIu64 " bytes are to stay free, and the file system has %" PRIu64, minimum, size);
  return bcsi_fail(BCS_INVALID, 0, operation, store->info.path, cause);
}

bcs_status bcs_set_limits(bcs_store *store, const bcs_limits *limits) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  if (store->options.read_only) {
    status = bcsi_fail(BCS_READ_ONLY, 0, "set limits", store->info.path, NULL);
  } else if ((limits->bytes != 0 && limits->bytes < BCS_LIMIT_BYTES_MIN) || limits->age_ms < 0) {
    status = bcsi_fail(BCS_INVALID, 0, "set limits", store->info.path, "a limit in bytes is at least 1 MiB");
  } else if ((status = bcsi_check_free(store, limits->minimum_free, "set limits")) == BCS_OK) {
    status = bcsi_writer_lock(store, false);
    if (status == BCS_OK) {
      bool full;
      do {
        status = set_locked(store, limits, &full);
        if (full) status = bcsi_index_grow(store);
      } while (full && status == BCS_OK);
      bcsi_writer_unlock(store);
    }
  }
  bcsi_call_leave(store);
  return status;
}

/* The pages of all trees: what LMDB's file would be without its free pages. None of the trees has duplicates, whose pages
 * mdb_stat leaves out. */
uint64_t bcsi_index_live(bcs_store *store, MDB_txn *txn) {
  enum { METAS = 2, FREE_LIST = 0, MAIN = 1 };
  const bcsi_index *index = &store->index;
  const MDB_dbi trees[] = {FREE_LIST, MAIN, index->entries, index->digests, index->recent, index->tags,
                           index->blobs, index->trash, index->free_slots, index->meta};
  uint64_t pages = METAS, page_size = 4096;
  for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
    MDB_stat tree;
    if (mdb_stat(txn, trees[i], &tree) != 0) continue;
    pages += tree.ms_branch_pages + tree.ms_leaf_pages + tree.ms_overflow_pages;
    page_size = tree.ms_psize;
  }
  return pages * page_size;
}

/* Not the slot table: it does not shrink, so what it once had to hold would weigh on every limit that comes later. */
uint64_t bcsi_used_bytes(bcs_store *store, const bcsi_totals *totals, uint64_t index_live) {
  return totals->blob_allocated + totals->quarantine_allocated + index_live + bcsi_slots_staging(store);
}

/* The index's first pages are there whatever is stored. */
uint64_t bcsi_limit_room(uint64_t bytes) {
  enum { FIXED = 128 * 1024 };
  return bytes > FIXED ? bytes - FIXED : 0;
}
