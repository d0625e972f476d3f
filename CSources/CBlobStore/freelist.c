/* The index's free pages.
 *
 * LMDB's file does not shrink. Pages that nothing refers to any more are used again before it grows, so it is larger than
 * what is in it after a removal of much, and while somebody reads an old state. Up to an allowance that is welcome: a
 * page that is used again needs no new block. What is above it goes back to the file system by holes, fallocate(2)'s
 * FALLOC_FL_PUNCH_HOLE: LMDB writes a free page before it reads it, and writing fills the hole. Sweeps go down to the
 * allowance, and so does a store that nobody writes to; commits only look whether a larger share is exceeded. (A hole
 * costs as much as a store. Where every store evicts, and holes were made between them, a store took three times as long.)
 *
 * Which pages: exactly those that LMDB itself might overwrite next, freed by a transaction before the oldest one that a
 * reader sees. A reader that stands still (a process that was stopped, or has no share of the processor) keeps
 * everything that was freed since, and the file grows with each commit. Beyond some allowances, stores wait for it, and are
 * refused in the end: the bound is a promise, and what is in the cache can still be read. The pin of a checkpoint keeps
 * pages in the same way; there stores wait for the next one (checkpoint.c). */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { AGAIN_AFTER = 4 /* commits, where one look did not help */ };
static const uint64_t mebibyte = 1 << 20;

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

static bool data_file(bcs_store *store, int *fd, struct stat *st) {
  return store->index.env && mdb_env_get_fd(store->index.env, fd) == 0 && fstat(*fd, st) == 0;
}

/* Blocks of the file that hold no page in use. */
static uint64_t spare_bytes(bcs_store *store) {
  int fd;
  struct stat st;
  if (!data_file(store, &fd, &st)) return 0;
  uint64_t blocks = (uint64_t)st.st_blocks * 512, live = bcsi_slots_live(store);
  return blocks > live ? blocks - live : 0;
}

/* Of the file system, in bytes; it hardly changes. */
static uint64_t disk_size(bcs_store *store) {
  uint64_t size = atomic_load_explicit(&store->disk_size, memory_order_relaxed);
  if (size == 0) {
    struct statvfs fs;
    size = fstatvfs(store->root_fd, &fs) == 0 ? (uint64_t)fs.f_blocks * fs.f_frsize : UINT64_MAX;
    atomic_store_explicit(&store->disk_size, size, memory_order_relaxed);
  }
  return size;
}

/* On a small disk, a share of it, whatever the limit: what free pages take, bodies lack. */
static uint64_t allowance_of(bcs_store *store) {
  uint64_t limit = bcsi_limits(store).bytes;
  uint64_t wanted = limit > 0 ? larger(limit / 16, 4 * mebibyte) : larger(bcsi_slots_live(store) / 8, 16 * mebibyte);
  return smaller(wanted, disk_size(store) / 6);
}

/* Under load, where checkpoints keep what is freed: what the next one sets free is used again, and to give it back instead
 * cost a quarter of the stores. From here on the file is not to grow before there was a next one. */
static uint64_t ceiling_of(bcs_store *store) {
  uint64_t limit = bcsi_limits(store).bytes;
  if (store->durable) return allowance_of(store);
  uint64_t wanted = limit > 0 ? larger(limit / 4, allowance_of(store)) : larger(bcsi_slots_live(store) / 2, 1024 * mebibyte);
  return smaller(wanted, disk_size(store) / 6);
}

/* From there on commits give back what they can, and stores wait for who keeps the rest. */
static uint64_t bound_of(bcs_store *store) {
  return smaller(larger(4 * allowance_of(store), 2 * ceiling_of(store)), disk_size(store) / 3);
}

/* ---- readers: what LMDB tells of them is a text, "pid thread transaction" a line */

typedef struct oldest {
  uint64_t transaction;
  long pid;
} oldest;

static int look_at_reader(const char *line, void *context) {
  oldest *found = context;
  long pid;
  unsigned long thread, transaction;
  int fields = sscanf(line, "%ld %lx %lu", &pid, &thread, &transaction);
  if (fields == 3 && transaction < found->transaction) *found = (oldest){transaction, pid};
  return 0; /* the heading, and readers that rest */
}

/* No newer than the state that `txn` sees: it is a reader, too. */
static oldest oldest_reader(bcs_store *store, MDB_txn *txn) {
  oldest found = {mdb_txn_id(txn), 0};
  int dead = 0;
  if (mdb_reader_list(store->index.env, look_at_reader, &found) < 0) return (oldest){0};
  if (found.pid == 0 || mdb_reader_check(store->index.env, &dead) != 0 || dead == 0) return found;
  found = (oldest){mdb_txn_id(txn), 0}; /* again, without the dead */
  return mdb_reader_list(store->index.env, look_at_reader, &found) < 0 ? (oldest){0} : found;
}

/* ---- holes */

static int punch(int fd, off_t from, off_t count) {
  int code = bcsi_fault("punch");
  if (code != 0) return code;
#ifdef __APPLE__
  fpunchhole_t hole = {.fp_offset = from, .fp_length = count};
  return fcntl(fd, F_PUNCHHOLE, &hole) == 0 ? 0 : errno;
#else
  return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, count) == 0 ? 0 : errno;
#endif
}

/* A run of free pages, unless it is a hole already. */
static int punch_run(int fd, uint64_t first, uint64_t count, size_t page_size, bool *punched) {
  off_t from = (off_t)(first * page_size), end = from + (off_t)(count * page_size);
  off_t data = lseek(fd, from, SEEK_DATA); /* moves its position, on which LMDB relies only inside a commit */
  *punched = false;
  if (data < 0 && errno == ENXIO) return 0; /* nothing behind it but holes */
  if (data >= end) return 0;
  *punched = true;
  return punch(fd, from, end - from);
}

typedef struct work {
  int fd;
  size_t page_size;
  uint64_t wanted, given; /* bytes */
  int punches;            /* left */
} work;

/* A record of the free list: how many, and the numbers, in falling order. */
static int punch_record(work *w, const uint64_t *list, size_t words) {
  uint64_t count = words > 0 && list[0] < words ? list[0] : 0;
  for (uint64_t i = 1; i <= count && w->given < w->wanted && w->punches > 0;) {
    uint64_t last = list[i], length = 1;
    while (i + length <= count && list[i + length] == last - length) length++;
    bool punched;
    int code = punch_run(w->fd, last - length + 1, length, w->page_size, &punched);
    if (code != 0) return code;
    if (punched) {
      w->given += length * w->page_size;
      w->punches--;
    }
    i += length;
  }
  return 0;
}

/* From the record where the last call stopped, and once around. */
static int punch_records(bcs_store *store, MDB_txn *txn, uint64_t before, work *w) {
  enum { FREE_LIST = 0 };
  MDB_cursor *cursor;
  MDB_val key = {sizeof store->free_hand, &store->free_hand}, value;
  uint64_t start = store->free_hand;
  bool wrapped = false;
  int code = 0, rc = mdb_cursor_open(txn, FREE_LIST, &cursor);
  if (rc != 0) return rc;
  rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
  while (code == 0 && w->given < w->wanted && w->punches > 0) {
    uint64_t freed_by = 0;
    if (rc == 0 && key.mv_size == sizeof freed_by) memcpy(&freed_by, key.mv_data, sizeof freed_by);
    if (rc == MDB_NOTFOUND || (rc == 0 && freed_by >= before)) {
      if (wrapped || start == 0) break;
      wrapped = true;
      rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
      continue;
    }
    if (rc != 0 || (wrapped && freed_by >= start)) break;
    store->free_hand = freed_by;
    code = punch_record(w, value.mv_data, value.mv_size / sizeof(uint64_t));
    rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
  }
  if (w->given < w->wanted && w->punches > 0) store->free_hand = 0; /* all of them were looked at */
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? code : rc != 0 ? rc : code;
}

/* Who keeps what, once as much as could be was given back. */
static void look_at_holders(bcs_store *store, const oldest *old, bool held, bool by_checkpoint) {
  uint64_t spare = spare_bytes(store);
  bool beyond = held && spare > bound_of(store);
  store->free_held_by = 0;
  if (beyond && by_checkpoint) store->free_held_by = BCSI_HELD_BY_CHECKPOINT;
  else if (beyond && bcsi_limits(store).bytes > 0) store->free_held_by = old->pid;
}

/* Down to `target`. Whoever calls holds the write lock and no transaction. *more: another call would go on. *kept: by a
 * checkpoint. */
static bcs_status punch_some(bcs_store *store, uint64_t target, bool *more, bool *kept) {
  enum { PUNCHES = 256 };
  uint64_t spare = spare_bytes(store);
  *more = *kept = false;
  bcsi_reader *reader;
  bcs_status status = bcsi_reader_enter(store, &reader);
  if (status != BCS_OK) return status;
  struct stat st;
  MDB_stat tree;
  oldest old = oldest_reader(store, reader->txn);
  uint64_t checkpoint = bcsi_checkpoint_transaction(store); /* whether or not its pin is among them */
  bool by_checkpoint = checkpoint > 0 && checkpoint <= old.transaction;
  if (by_checkpoint) old.transaction = checkpoint;
  work w = {.wanted = spare > target ? spare - target : 0, .punches = PUNCHES};
  int rc = data_file(store, &w.fd, &st) ? mdb_stat(reader->txn, store->index.meta, &tree) : errno;
  if (rc == 0 && w.wanted > 0 && !store->free_no_holes) {
    w.page_size = tree.ms_psize;
    rc = punch_records(store, reader->txn, old.transaction, &w);
  }
  bool held = old.transaction < mdb_txn_id(reader->txn);
  bcsi_reader_leave(reader);
  if (rc == EOPNOTSUPP || rc == ENOSYS || rc == EINVAL) {
    store->free_no_holes = true; /* a file system without holes: free pages are only used again */
    rc = 0;
  }
  *more = rc == 0 && w.punches == 0;
  *kept = held && by_checkpoint;
  look_at_holders(store, &old, held, by_checkpoint);
  store->free_wait = w.given < w.wanted && !*more ? AGAIN_AFTER : 0;
  return rc == 0 ? BCS_OK : bcsi_fail_lmdb(rc, "punch holes", store->index.path);
}

/* Beyond the bound every commit looks: large ones free more in some commits than the limit is. */
static bool is_due(bcs_store *store, uint64_t spare) {
  bool keeps_none = bcsi_checkpoint_transaction(store) == 0;
  return spare > bound_of(store) || (keeps_none && spare > ceiling_of(store) && store->free_wait == 0);
}

bool bcsi_free_would_wait(bcs_store *store) {
  return store->free_held_by != 0 || is_due(store, spare_bytes(store));
}

/* What keeps it from it is tried again after later ones. */
void bcsi_free_after_commit(bcs_store *store, bool quick) {
  bool more, kept;
  uint64_t spare = spare_bytes(store);
  if (store->free_wait > 0) store->free_wait--;
  if (spare > ceiling_of(store) && bcsi_checkpoint_has_grown(store)) store->checkpoint_wanted = true;
  if (!quick && is_due(store, spare)) (void)punch_some(store, ceiling_of(store) / 2, &more, &kept);
}

/* What the last commits freed, LMDB keeps for one that follows. */
static bcs_status commit_nothing(bcs_store *store) {
  MDB_txn *txn;
  bcsi_totals totals;
  bcs_status status = bcsi_write_begin(store, &txn);
  if (status != BCS_OK) return status;
  status = bcsi_totals_get(store, txn, &totals);
  int rc = status == BCS_OK ? bcsi_totals_put(store, txn, &totals) : 0;
  if (status == BCS_OK && rc == 0) rc = bcsi_write_commit(store, txn);
  else bcsi_write_abort(store, txn);
  return rc == 0 ? status : bcsi_fail_lmdb(rc, "commit", store->index.path);
}

/* A step of a sweep, under the write lock. What a checkpoint keeps wants another one first. */
bcs_status bcsi_free_sweep(bcs_store *store, bool *more) {
  bool kept = false;
  *more = false;
  bcs_status status = BCS_OK;
  for (int i = 0; status == BCS_OK && i < 3 && !*more && spare_bytes(store) > allowance_of(store); i++) {
    if (i > 0 && (status = commit_nothing(store)) != BCS_OK) return BCS_OK; /* full: the next commit frees them */
    status = punch_some(store, allowance_of(store) / 2, more, &kept);
    if (kept) store->checkpoint_wanted = true;
    if (kept || store->free_no_holes) break;
  }
  return status;
}

bcs_status bcs_give_back(bcs_store *store, uint64_t *since, bool *more) {
  *more = false;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = bcsi_writer_lock(store, false);
  if (status == BCS_OK) {
    if (!since || bcsi_last_transaction(store) == *since) status = bcsi_free_sweep(store, more);
    else if (spare_bytes(store) > allowance_of(store)) status = bcsi_fail(BCS_BUSY, 0, "sweep", store->index.path, NULL);
    if (since) *since = bcsi_last_transaction(store);
    bcsi_writer_unlock(store);
  }
  bcsi_call_leave(store);
  return status;
}

/* For a store, with the write lock. */
bcs_status bcsi_free_admits(bcs_store *store) {
  bool more, kept;
  if (store->free_held_by == 0) return BCS_OK;
  bcs_status status = punch_some(store, ceiling_of(store) / 2, &more, &kept);
  if (status != BCS_OK || store->free_held_by == 0) return status;
  if (store->free_held_by == BCSI_HELD_BY_CHECKPOINT) return bcsi_fail(BCS_HELD, 0, "store", store->index.path, NULL);
  char cause[120];
  snprintf(cause, sizeof cause, "process %ld reads an old state; continue or end it", store->free_held_by);
  return bcsi_fail(BCS_HELD, 0, "store", store->index.path, cause);
}
