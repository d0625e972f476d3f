/* Counters: what is cheap from the slot table's head, and the rest by a walk. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Of the newest state. What the last commit has told leaves out what LMDB wrote to commit it: some pages of its free
 * list. */
static uint64_t index_live(bcs_store *store) {
  bcsi_reader *reader;
  if (bcsi_reader_try_enter(store, &reader) != BCS_OK) return bcsi_slots_live(store);
  uint64_t live = bcsi_index_live(store, reader->txn);
  bcsi_reader_leave(reader);
  return live;
}

bcs_status bcs_count(bcs_store *store, bcs_counters *out) {
  memset(out, 0, sizeof *out);
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  bcsi_totals totals;
  bcsi_slots_totals(store, &totals);
  out->entries = totals.entries;
  out->inline_bytes = totals.inline_bytes;
  out->blob_files = totals.blob_files;
  out->blob_bytes = totals.blob_bytes;
  out->blob_allocated = totals.blob_allocated;
  for (int i = 0; i < BCSI_READERS; i++) {
    out->hits += atomic_load_explicit(&store->index.readers[i].hits, memory_order_relaxed);
    out->misses += atomic_load_explicit(&store->index.readers[i].misses, memory_order_relaxed);
  }
  out->pinned_entries = totals.pinned_entries;
  out->pinned_bytes = totals.pinned_bytes;
  out->used_bytes = bcsi_used_bytes(store, &totals, index_live(store)) + totals.trash_allocated;
  out->staging_allocated = bcsi_slots_staging(store);
  out->quarantine_allocated = totals.quarantine_allocated;
  out->evictions = bcsi_slots_evictions(store);
  out->eviction_age_ms = (int64_t)bcsi_eviction_age_ms(store);
  bcsi_memory_count(store, out);
  bcsi_slots_stripe_sum(store, &out->total_hits, &out->total_misses, &out->total_memory_hits);
  bcsi_call_leave(store);
  return BCS_OK;
}

static uint64_t allocated_at(int parent, const char *name) {
  struct stat st;
  return fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

static uint64_t allocated_in(int folder_fd, int depth) {
  int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  if (!folder) {
    if (fd >= 0) close(fd);
    return 0;
  }
  uint64_t sum = 0;
  struct dirent *item;
  while ((item = readdir(folder)) != NULL) {
    if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
    sum += allocated_at(fd, item->d_name);
    int inner = depth > 0 ? openat(fd, item->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (inner >= 0) {
      sum += allocated_in(inner, depth - 1);
      close(inner);
    }
  }
  closedir(folder);
  return sum;
}

uint64_t bcsi_quarantine_allocated(bcs_store *store) { return allocated_in(store->quarantine_fd, 1); }

/* Pages that LMDB reuses before its file grows: the lists in its tree of free pages, each headed by its length. */
static uint64_t free_pages(MDB_txn *txn) {
  MDB_cursor *cursor;
  MDB_val key, value;
  uint64_t pages = 0;
  if (mdb_cursor_open(txn, 0, &cursor) != 0) return 0;
  while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
    size_t length;
    if (value.mv_size < sizeof length) continue;
    memcpy(&length, value.mv_data, sizeof length);
    pages += length;
  }
  mdb_cursor_close(cursor);
  return pages;
}

bcs_status bcs_count_all(bcs_store *store, int64_t now_ms, bcs_counters *out) {
  bcs_status status = bcs_count(store, out);
  if (status == BCS_OK) status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  bcsi_reader *reader;
  status = bcsi_check_place(store);
  if (status != BCS_OK) {
    bcsi_call_leave(store);
    return status;
  }
  status = bcsi_reader_enter(store, &reader);
  if (status == BCS_OK) {
    MDB_stat stat_of;
    bcsi_totals totals;
    if (mdb_env_stat(store->index.env, &stat_of) == 0) out->index_free = free_pages(reader->txn) * stat_of.ms_psize;
    status = bcsi_totals_get(store, reader->txn, &totals);
    if (status == BCS_OK) { /* the truth, where there may be no slot table */
      out->entries = totals.entries;
      out->inline_bytes = totals.inline_bytes;
      out->blob_files = totals.blob_files;
      out->blob_bytes = totals.blob_bytes;
      out->blob_allocated = totals.blob_allocated;
      out->pinned_entries = totals.pinned_entries;
      out->pinned_bytes = totals.pinned_bytes;
      out->used_bytes = bcsi_used_bytes(store, &totals, bcsi_index_live(store, reader->txn)) + totals.trash_allocated;
      bcs_limits limits;
      if (bcsi_limits_get(store, reader->txn, &limits) == 0)
        bcsi_disk(store, limits.minimum_free, &out->disk_free, &out->disk_reserve);
    }
    uint64_t allocated = allocated_at(store->root_fd, "index/data.mdb"), live = bcsi_index_live(store, reader->txn);
    out->index_spare = allocated > live ? allocated - live : 0;
    bcsi_reader_leave(reader);
  }
  out->index_allocated = allocated_at(store->root_fd, "index/data.mdb") + allocated_at(store->root_fd, "index/lock.mdb");
  out->slots_allocated = allocated_at(store->root_fd, "slots");
  out->staging_allocated = allocated_in(store->staging_fd, 0);
  out->quarantine_allocated = allocated_in(store->quarantine_fd, 1);
  out->entries_expired = bcsi_slots_count_expired(store, now_ms);
  bcsi_call_leave(store);
  return status;
}
