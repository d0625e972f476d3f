/* The LMDB environment: opening, its readers, growth and replacement.
 *
 * Trees: `entries` key hash → record; `digests` and `recent` from a digest to key hashes (digests.c); `tags` from the hash
 * of a tag to key hashes; `blobs` digest → uses, size, allocated; `trash` digests whose files wait for their unlinking →
 * allocated; `free` slot lines that are free; `meta` the totals and the limits.
 *
 * Readers are reset, not ended, between lookups: renewing one costs some nanoseconds and takes no lock. To register one
 * takes LMDB's lock of its table of readers, and a process that stands still (SIGSTOP) may hold that; so the first ones
 * are registered by the open, and only a lookup beside sixteen others of its process registers one more. A lookup owns a
 * reader while it runs. Whoever must change the mapping (growth, another process's growth, an environment that says
 * MDB_PANIC after a failed meta page write, a repair that sets a damaged index aside) closes the gate, waits until no reader is owned, does it, and opens the
 * gate: LMDB itself does not check for readers in mdb_env_set_mapsize (lmdb.h). */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_DONTDUMP
#define MADV_DONTDUMP 16
#endif

enum { MAX_READERS = 8192 /* of all processes; 64 bytes each in lock.mdb */ };
static const uint64_t default_map_size = UINT64_C(1) << 38; /* 256 GiB of address space */
static const uint64_t largest_map_size = UINT64_C(1) << 45;
static const char totals_key[] = "totals";

_Static_assert(MDB_VERSION_FULL < MDB_VERINT(1, 0, 0), "LMDB 0.9 is what this code was tested with");

static bcs_status fail(bcs_store *store, int rc, const char *operation) {
  return bcsi_fail_lmdb(rc, operation, store->index.path);
}

/* ---- totals */

bcs_status bcsi_totals_get(bcs_store *store, MDB_txn *txn, bcsi_totals *out) {
  MDB_val key = {sizeof totals_key - 1, (void *)(uintptr_t)totals_key}, value;
  int rc = mdb_get(txn, store->index.meta, &key, &value);
  if (rc != 0) return fail(store, rc, "read totals");
  if (value.mv_size != sizeof *out) return bcsi_fail(BCS_CORRUPT, 0, "read totals", store->index.path, NULL);
  memcpy(out, value.mv_data, sizeof *out);
  return BCS_OK;
}

int bcsi_totals_put(bcs_store *store, MDB_txn *txn, const bcsi_totals *totals) {
  MDB_val key = {sizeof totals_key - 1, (void *)(uintptr_t)totals_key};
  MDB_val value = {sizeof *totals, (void *)(uintptr_t)totals};
  return mdb_put(txn, store->index.meta, &key, &value, 0);
}

/* ---- opening */

static const struct { const char *name; size_t handle; } trees[] = {
  {"entries", offsetof(bcsi_index, entries)}, {"digests", offsetof(bcsi_index, digests)},
  {"recent", offsetof(bcsi_index, recent)},   {"tags", offsetof(bcsi_index, tags)},
  {"blobs", offsetof(bcsi_index, blobs)},     {"trash", offsetof(bcsi_index, trash)},
  {"free", offsetof(bcsi_index, free_slots)}, {"meta", offsetof(bcsi_index, meta)},
};

/* LMDB takes a tree as it is, whatever flags it was made with: pages.c has looked that none of them has any. */
static int open_trees(bcs_store *store, MDB_txn *txn, unsigned create) {
  int rc = 0;
  for (size_t i = 0; rc == 0 && i < sizeof trees / sizeof *trees; i++)
    rc = mdb_dbi_open(txn, trees[i].name, create, (MDB_dbi *)(void *)((char *)&store->index + trees[i].handle));
  return rc;
}

/* While a store is being opened nobody reads in it yet, so another process's growth is simply taken over. */
int bcsi_begin_at_open(bcs_store *store, unsigned flags, MDB_txn **out) {
  int rc;
  if (!store->index.env) return MDB_PANIC; /* it could not be opened again: a lookup or a writer tries */
  while ((rc = mdb_txn_begin(store->index.env, NULL, flags, out)) == MDB_MAP_RESIZED)
    if ((rc = mdb_env_set_mapsize(store->index.env, 0)) != 0) break;
  return rc;
}

static int find_trees(bcs_store *store) {
  MDB_txn *txn;
  int rc = bcsi_begin_at_open(store, MDB_RDONLY, &txn);
  if (rc != 0) return rc;
  rc = open_trees(store, txn, 0);
  if (rc == 0) return mdb_txn_commit(txn); /* keeps the handles */
  mdb_txn_abort(txn);
  return rc;
}

static bool has_totals(bcs_store *store) {
  MDB_txn *txn;
  bcsi_totals totals;
  if (bcsi_begin_at_open(store, MDB_RDONLY, &txn) != 0) return true; /* the next begin says why */
  bcs_status status = bcsi_totals_get(store, txn, &totals);
  mdb_txn_abort(txn);
  return status == BCS_OK;
}

static int make_trees(bcs_store *store) {
  MDB_txn *txn;
  int rc = bcsi_begin_at_open(store, 0, &txn);
  if (rc != 0) return rc;
  rc = open_trees(store, txn, MDB_CREATE);
  if (rc == 0) {
    MDB_val key = {sizeof totals_key - 1, (void *)(uintptr_t)totals_key}, value;
    rc = mdb_get(txn, store->index.meta, &key, &value);
    if (rc == MDB_NOTFOUND) {
      bcsi_totals totals = {0};
      if (getrandom(totals.store_id, sizeof totals.store_id, 0) != (ssize_t)sizeof totals.store_id) rc = errno;
      else rc = bcsi_totals_put(store, txn, &totals);
      bcs_limits limits = bcsi_limits_default();
      atomic_store(&store->new_index, true);
      if (rc == 0) rc = bcsi_limits_put(store, txn, &limits);
    }
  }
  if (rc != 0) {
    mdb_txn_abort(txn);
    return rc;
  }
  return mdb_txn_commit(txn);
}

static bool leave_out(void *from, size_t size, uint64_t offset, void *context) {
  (void)offset, (void)context;
  (void)madvise(from, size, MADV_DONTDUMP);
  return false;
}

/* The index is address space, not memory: it has no place in core files (core(5)). */
static void leave_out_of_core_files(bcs_store *store) {
  char path[4300];
  bcsi_join(store->index.path, "data.mdb", path, sizeof path);
  bcsi_each_mapping(path, leave_out, NULL);
}

/* Beside others that may write: along the paths of a snapshot. */
static bcs_status check_snapshot(bcs_store *store, const char *data_file, bcs_page_damage *damage) {
  bcs_status status = BCS_BUSY;
  for (int i = 0; status == BCS_BUSY && i < 100; i++) { /* busy: others change the mapping's size, or commit all the time */
    MDB_txn *txn;
    int rc = bcsi_begin_at_open(store, MDB_RDONLY, &txn);
    if (rc != 0) return fail(store, rc, "begin");
    status = bcsi_pages_check(data_file, BCSI_PAGES_PATHS, txn, NULL, NULL, damage);
    mdb_txn_abort(txn);
  }
  if (status != BCS_BUSY) return status;
  return bcsi_fail(BCS_BUSY, 0, "check index", data_file, "others write to it without a pause");
}

static int open_environment(bcs_store *store) {
  bcsi_index *index = &store->index;
  index->env = NULL; /* an older one is closed, whatever comes of this */
  int rc = mdb_env_create(&index->env);
  if (rc != 0) return rc;
  if (rc == 0) rc = mdb_env_set_maxdbs(index->env, 16);
  if (rc == 0) rc = mdb_env_set_maxreaders(index->env, MAX_READERS);
  if (rc == 0) rc = mdb_env_set_mapsize(index->env, index->map_size);
  if (rc == 0) rc = mdb_env_open(index->env, index->path, index->flags, store->file_mode);
  if (rc == 0) {
    MDB_envinfo info;
    rc = mdb_env_info(index->env, &info); /* LMDB raises a map that is smaller than the data */
    if (rc == 0) index->map_size = info.me_mapsize;
  }
  if (rc != 0) {
    mdb_env_close(index->env);
    index->env = NULL;
  }
  return rc;
}

static bool has_sound_metas(bcs_store *store) {
  char data_file[4300];
  bcs_page_damage damage;
  struct stat st;
  bcsi_join(store->index.path, "data.mdb", data_file, sizeof data_file);
  return bcsi_pages_check(data_file, BCSI_PAGES_METAS, NULL, NULL, NULL, &damage) == BCS_OK &&
         stat(data_file, &st) == 0 && st.st_size > 0;
}

/* LMDB takes a read that gave less than was asked for, or that a signal interrupted, for a damaged file. */
static int open_sound_environment(bcs_store *store) {
  int rc = open_environment(store);
  for (int i = 0; i < 3 && rc == MDB_INVALID && has_sound_metas(store); i++) rc = open_environment(store);
  return rc == MDB_INVALID && has_sound_metas(store) ? EIO : rc;
}

/* LMDB makes its files with the umask applied, and opens one of them twice; so they are made here, empty, which to it
 * is new, with the mode as configured. Later by name: closing a descriptor of lock.mdb would give up the fcntl lock
 * that LMDB holds on it. */
static const char *const file_names[] = {"data.mdb", "lock.mdb"};

/* LMDB maps lock.mdb and makes it long without blocks. A reader that is registered in a page of it which has none on a
 * full disk is SIGBUS, so all of it has blocks before it is mapped. An older one that finds none is used as it is. */
static bcs_status allocate_lock_file(bcs_store *store) {
  enum { SIZE = 64 * MAX_READERS + 4096 };
  char path[4300];
  struct stat st;
  bcsi_join(store->index.path, file_names[1], path, sizeof path);
  int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return BCS_OK; /* LMDB tells why */
  int code = fstat(fd, &st) != 0 ? errno : 0;
  if (code == 0 && S_ISREG(st.st_mode) && st.st_blocks * 512 < SIZE) {
    if (st.st_size == 0) code = posix_fallocate(fd, 0, SIZE);
    else (void)!fallocate(fd, 0, 0, SIZE);
    if (code != 0) (void)!ftruncate(fd, 0);
  }
  close(fd);
  return code == 0 ? BCS_OK : bcsi_fail_errno(code, "fallocate", path);
}

static bcs_status make_files(bcs_store *store) {
  for (int i = 0; i < 2; i++) {
    char path[4300];
    bcsi_join(store->index.path, file_names[i], path, sizeof path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, store->file_mode);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return bcsi_fail_errno(errno, "create", path);
    int code = fchmod(fd, store->file_mode) != 0 ? errno : 0;
    close(fd);
    if (code != 0) return bcsi_fail_errno(code, "chmod", path);
  }
  return allocate_lock_file(store);
}

static bcs_status set_modes(bcs_store *store) {
  for (int i = 0; i < 2; i++) {
    char path[4300];
    struct stat st;
    bcsi_join(store->index.path, file_names[i], path, sizeof path);
    if (lstat(path, &st) != 0) return bcsi_fail_errno(errno, "stat", path);
    if ((st.st_mode & 0777) != store->file_mode && st.st_uid == geteuid() && chmod(path, store->file_mode) != 0)
      return bcsi_fail_errno(errno, "chmod", path);
  }
  return BCS_OK;
}

static bool links_in_the_way(bcs_store *store, bcs_status *status) {
  for (int i = 0; i < 2; i++) {
    char path[4300];
    struct stat st;
    bcsi_join(store->index.path, file_names[i], path, sizeof path);
    if (lstat(path, &st) != 0) continue;
    *status = bcsi_check_own(&st, store->options.read_only, path);
    if (*status != BCS_OK) return true;
  }
  return false;
}

/* The names of the files and of their folder, which no sync of the files promises (fsync(2)). At every open of one that
 * is alone: who made them may have died before this. */
static bcs_status sync_names(bcs_store *store) {
  int fd = open(store->index.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int code = fd < 0 || fsync(fd) != 0 || fsync(store->root_fd) != 0 ? errno : 0;
  if (fd >= 0) close(fd);
  return code == 0 ? BCS_OK : bcsi_fail_errno(code, "fsync", store->index.path);
}

/* With nobody reading. Where no row is left, lookups try it again. */
static int register_readers(bcs_store *store) {
  for (int i = 0; i < BCSI_READERS_READY; i++) {
    bcsi_reader *reader = &store->index.readers[i];
    if (reader->txn) continue;
    int rc = bcsi_begin_at_open(store, MDB_RDONLY, &reader->txn);
    if (rc != 0) reader->txn = NULL;
    if (rc != 0) return rc == MDB_READERS_FULL ? 0 : rc;
    mdb_txn_reset(reader->txn);
  }
  return 0;
}

bcs_status bcsi_index_open(bcs_store *store, bool quiet, bool *damaged) {
  bcsi_index *index = &store->index;
  bool read_only = store->options.read_only;
  *damaged = false;
  bcsi_join(store->info.path, "index", index->path, sizeof index->path);
  bcs_status status = BCS_OK;
  if (links_in_the_way(store, &status)) return status;
  index->map_size = store->options.initial_map_size ? store->options.initial_map_size : default_map_size;
  index->flags = MDB_NOTLS | MDB_NORDAHEAD;
  if (read_only) index->flags |= MDB_RDONLY;
  else if (!store->durable) index->flags |= MDB_NOSYNC;
  if (store->info.unlocked) index->flags |= MDB_NOLOCK;

  if (!read_only && (status = make_files(store)) != BCS_OK) return status;
  char data_file[4300];
  bcs_page_damage damage;
  bcsi_join(index->path, file_names[0], data_file, sizeof data_file);
  status = bcsi_pages_check(data_file, store->check_all_pages ? BCSI_PAGES_ALL : quiet ? BCSI_PAGES_PATHS : BCSI_PAGES_METAS, NULL, NULL, NULL, &damage);
  *damaged = status == BCS_CORRUPT;
  struct stat st;
  bool is_missing = status == BCS_NOT_FOUND;
  bool is_empty = status == BCS_OK && stat(data_file, &st) == 0 && st.st_size == 0;
  if (read_only && (is_missing || is_empty)) /* LMDB would try to write the meta pages of a new one */
    return bcsi_fail(BCS_INCOMPLETE, 0, "open index", data_file, is_missing ? "it is missing" : "it is empty");
  if (status != BCS_OK) return status;
  int rc = bcsi_fault("index-open");
  if (rc == 0) rc = open_sound_environment(store);
  if (rc != 0) {
    status = fail(store, rc, "open index");
    *damaged = status == BCS_CORRUPT || rc == MDB_BAD_DBI || rc == MDB_INCOMPATIBLE || rc == EINVAL;
    return status;
  }
  /* Slots of killed readers; pins are among them, so no writer may be under way that relies on one. */
  int dead;
  bool locked = !read_only && !quiet && bcsi_writer_lock(store, true) == BCS_OK;
  if (!read_only && (quiet || locked)) (void)mdb_reader_check(index->env, &dead);
  if (locked) bcsi_writer_unlock(store);
  if (!quiet && (status = check_snapshot(store, data_file, &damage)) != BCS_OK) return status;
  /* A write transaction only where it is needed: a writer that stands still must not keep others from opening. */
  rc = find_trees(store);
  if (rc == MDB_NOTFOUND && !read_only) rc = make_trees(store);
  if (rc == 0 && !has_totals(store)) {
    *damaged = true;
    return bcsi_fail(BCS_CORRUPT, 0, "open index", index->path, "its totals cannot be read; an earlier version made it");
  }
  if (rc != 0) {
    status = fail(store, rc, "open index");
    *damaged = status == BCS_CORRUPT || rc == MDB_INCOMPATIBLE || rc == MDB_NOTFOUND || rc == MDB_BAD_TXN;
    return status;
  }
  leave_out_of_core_files(store);
  if ((rc = register_readers(store)) != 0) return fail(store, rc, "open index");
  if (read_only) return BCS_OK;
  bcsi_pins_prepare(store);
  status = set_modes(store);
  bool needs_names = quiet && (store->durable || store->info.index_set_aside);
  return status == BCS_OK && needs_names ? sync_names(store) : status;
}


static void abort_readers(bcsi_index *index) {
  for (int i = 0; i < BCSI_READERS; i++) {
    if (index->readers[i].txn) mdb_txn_abort(index->readers[i].txn);
    index->readers[i].txn = NULL;
  }
}

void bcsi_index_close(bcs_store *store) {
  if (!store->index.env) return;
  bcsi_pins_drop(store);
  abort_readers(&store->index);
  mdb_env_close(store->index.env);
  store->index.env = NULL;
}

/* ---- readers */

static void pause_a_moment(int round) {
  if (round < 64) {
    sched_yield();
  } else {
    struct timespec moment = {0, 50000};
    nanosleep(&moment, NULL);
  }
}

static bcsi_reader *claim_of(bcsi_index *index, unsigned first, unsigned count, unsigned from) {
  for (unsigned i = 0; i < count; i++) {
    bcsi_reader *reader = &index->readers[first + (from + i) % count];
    uint32_t free_value = 0;
    if (atomic_load_explicit(&reader->busy, memory_order_relaxed) == 0 &&
        atomic_compare_exchange_strong(&reader->busy, &free_value, 1))
      return reader;
  }
  return NULL;
}

/* One that is registered, as long as there is one. */
static bcsi_reader *claim(bcsi_index *index) {
  static _Atomic unsigned threads;
  static _Thread_local unsigned mine;
  if (mine == 0) mine = atomic_fetch_add(&threads, 1) + 1;
  bcsi_reader *reader = claim_of(index, 0, BCSI_READERS_READY, mine);
  return reader ? reader : claim_of(index, BCSI_READERS_READY, BCSI_READERS - BCSI_READERS_READY, mine);
}

static int renew(bcs_store *store, bcsi_reader *reader) {
  reader->epoch = bcsi_slots_epoch_now(store); /* before the snapshot: see memory.c */
  if (reader->txn) {
    int rc = mdb_txn_renew(reader->txn);
    if (rc == 0) return 0;
    mdb_txn_abort(reader->txn);
    reader->txn = NULL;
    if (rc != EINVAL && rc != MDB_BAD_RSLOT) return rc;
  }
  int rc = mdb_txn_begin(store->index.env, NULL, MDB_RDONLY, &reader->txn);
  if (rc == MDB_READERS_FULL) {
    int dead;
    rc = mdb_reader_check(store->index.env, &dead);
    if (rc == 0) rc = mdb_txn_begin(store->index.env, NULL, MDB_RDONLY, &reader->txn);
  }
  if (rc != 0) reader->txn = NULL;
  return rc;
}

static void wait_for_readers(bcsi_index *index) {
  for (int i = 0; i < BCSI_READERS; i++)
    for (int round = 0; atomic_load(&index->readers[i].busy) != 0; round++) pause_a_moment(round);
}

/* One at a time may hold the gate closed. */
bool bcsi_gate_close(bcsi_index *index) {
  for (int round = 0;; round++) {
    int open = BCSI_GATE_OPEN;
    if (atomic_compare_exchange_strong(&index->gate, &open, BCSI_GATE_PAUSED)) break;
    if (open == BCSI_GATE_SHUT) return false;
    pause_a_moment(round);
  }
  wait_for_readers(index);
  return true;
}
void bcsi_gate_open(bcsi_index *index) {
  int paused = BCSI_GATE_PAUSED;
  (void)atomic_compare_exchange_strong(&index->gate, &paused, BCSI_GATE_OPEN);
}

static bcs_status reopen(bcs_store *store) {
  bcsi_pins_drop(store);
  abort_readers(&store->index);
  if (store->index.env) mdb_env_close(store->index.env);
  int rc = open_sound_environment(store);
  if (rc == 0 && (rc = find_trees(store)) == 0 && (rc = register_readers(store)) == 0) bcsi_pins_prepare(store);
  if (rc != 0 && store->index.env) { /* half open it is no use */
    abort_readers(&store->index);
    mdb_env_close(store->index.env);
    store->index.env = NULL;
  }
  return rc == 0 ? BCS_OK : fail(store, rc, "reopen index");
}

/* What a begin or a renewal can ask for: take over another process's growth, or replace a broken environment. Who calls
 * holds `transaction`, so no write transaction of this process is under way. */
static bcs_status mend_exclusively(bcs_store *store, int rc) {
  bcsi_index *index = &store->index;
  if (!bcsi_gate_close(index)) return bcsi_fail(BCS_CLOSED, 0, "read", index->path, NULL);
  bcs_status status = BCS_OK;
  MDB_txn *probe;
  if (!index->env) {
    status = reopen(store);
  } else if (rc == MDB_MAP_RESIZED) {
    int set = mdb_env_set_mapsize(index->env, 0);
    MDB_envinfo info;
    if (set == 0 && mdb_env_info(index->env, &info) == 0) index->map_size = info.me_mapsize;
    if (set != 0) status = fail(store, set, "adopt map size");
    leave_out_of_core_files(store);
  } else if (rc == MDB_PANIC || rc == MDB_BAD_TXN) {
    if (mdb_txn_begin(index->env, NULL, MDB_RDONLY, &probe) == 0) mdb_txn_abort(probe); /* somebody mended it */
    else status = reopen(store);
  } else {
    status = fail(store, rc, "begin");
  }
  bcsi_gate_open(index);
  return status;
}

static bcs_status mend(bcs_store *store, int rc) {
  pthread_mutex_lock(&store->index.transaction);
  bcs_status status = mend_exclusively(store, rc);
  pthread_mutex_unlock(&store->index.transaction);
  return status;
}

bcs_status bcsi_reader_try_enter(bcs_store *store, bcsi_reader **out) {
  bcsi_reader *reader = claim(&store->index);
  if (!reader) return BCS_BUSY;
  if (atomic_load(&store->index.gate) == BCSI_GATE_OPEN && store->index.env && renew(store, reader) == 0) {
    *out = reader;
    return BCS_OK;
  }
  atomic_store(&reader->busy, 0);
  return BCS_BUSY;
}

bcs_status bcsi_reader_enter(bcs_store *store, bcsi_reader **out) {
  bcsi_index *index = &store->index;
  int mended = 0;
  for (int round = 0;; round++) {
    bcsi_reader *reader = claim(index);
    if (!reader) {
      pause_a_moment(round);
      continue;
    }
    int gate = atomic_load(&index->gate);
    if (gate == BCSI_GATE_OPEN) {
      int rc = index->env ? renew(store, reader) : MDB_PANIC;
      if (rc == 0) {
        *out = reader;
        return BCS_OK;
      }
      atomic_store(&reader->busy, 0);
      if (mended++ == 4) return fail(store, rc, "begin");
      bcs_status status = mend(store, rc);
      if (status != BCS_OK) return status;
      continue;
    }
    atomic_store(&reader->busy, 0);
    if (gate == BCSI_GATE_SHUT) return bcsi_fail(BCS_CLOSED, 0, "read", store->info.path, NULL);
    pause_a_moment(round);
  }
}

void bcsi_reader_leave(bcsi_reader *reader) {
  mdb_txn_reset(reader->txn);
  atomic_store_explicit(&reader->busy, 0, memory_order_release);
}

/* Rows of processes that were killed. Pins are among them, so under the write lock, as at an open. */
bcs_status bcsi_readers_sweep(bcs_store *store) {
  bcsi_reader *reader; /* keeps the environment from being replaced */
  bcs_status status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  status = bcsi_reader_enter(store, &reader);
  if (status == BCS_OK) {
    int dead, rc = mdb_reader_check(store->index.env, &dead);
    if (rc != 0) status = fail(store, rc, "sweep readers");
    bcsi_reader_leave(reader);
  }
  bcsi_writer_unlock(store);
  return status;
}

/* ---- the writer's side */

bcs_status bcsi_write_begin(bcs_store *store, MDB_txn **out) {
  if (!store->index.env) { /* before the checkpoint is looked at, which would be given up without one */
    bcs_status mended = mend(store, MDB_PANIC);
    if (mended != BCS_OK) return mended;
  }
  bcsi_checkpoint_protect(store);
  pthread_mutex_lock(&store->index.transaction);
  bcs_status status = BCS_OK;
  for (int mended = 0; status == BCS_OK; mended++) {
    int rc = store->index.env ? mdb_txn_begin(store->index.env, NULL, 0, out) : MDB_PANIC;
    if (rc == 0) return BCS_OK; /* `transaction` stays locked until the end of it */
    if (mended == 4 || (rc != MDB_MAP_RESIZED && rc != MDB_PANIC)) status = fail(store, rc, "begin");
    else status = mend_exclusively(store, rc);
  }
  pthread_mutex_unlock(&store->index.transaction);
  return status;
}

/* To LMDB a write that wrote less is an I/O error. Where it was to fill a hole, the blocks that it lacked may be had at
 * the end of the file a moment later; so what is left of the disk comes first. Else, the kernel says why when it is
 * asked for the next blocks: it knows of quotas. */
static int why_short(bcs_store *store) {
  enum { NEARLY_FULL = 1 << 16 };
  int fd;
  struct stat st;
  uint64_t free, reserve;
  if (bcsi_disk(store, 0, &free, &reserve) && free < NEARLY_FULL) return ENOSPC;
  if (mdb_env_get_fd(store->index.env, &fd) != 0 || fstat(fd, &st) != 0) return EIO;
  int code = posix_fallocate(fd, st.st_size, 65536);
  return code == ENOSPC || code == EDQUOT || code == EFBIG ? code : EIO;
}

int bcsi_write_commit(bcs_store *store, MDB_txn *txn) {
  int rc = mdb_txn_commit(txn);
  if (rc == EIO) rc = why_short(store);
  pthread_mutex_unlock(&store->index.transaction);
  return rc;
}

void bcsi_write_abort(bcs_store *store, MDB_txn *txn) {
  mdb_txn_abort(txn);
  pthread_mutex_unlock(&store->index.transaction);
}

/* Doubles the map. Who calls holds the write lock and no transaction. */
bcs_status bcsi_index_grow(bcs_store *store) {
  bcsi_index *index = &store->index;
  if (index->map_size >= largest_map_size) return bcsi_fail(BCS_NO_SPACE, MDB_MAP_FULL, "grow index", index->path, NULL);
  pthread_mutex_lock(&index->transaction);
  if (!bcsi_gate_close(index)) {
    pthread_mutex_unlock(&index->transaction);
    return bcsi_fail(BCS_CLOSED, 0, "grow index", index->path, NULL);
  }
  int rc = mdb_env_set_mapsize(index->env, index->map_size * 2);
  if (rc == 0) index->map_size *= 2;
  leave_out_of_core_files(store);
  bcsi_gate_open(index);
  pthread_mutex_unlock(&index->transaction);
  return rc == 0 ? BCS_OK : fail(store, rc, "grow index");
}

/* ---- replacement of a damaged index */

static bcs_status begin_anew(bcs_store *store) {
  bool damaged;
  bcsi_pins_drop(store);
  bcsi_checkpoint_forget(store);
  abort_readers(&store->index);
  mdb_env_close(store->index.env);
  store->index.env = NULL;
  bcs_status status = bcsi_index_set_aside(store);
  if (status == BCS_OK) status = bcsi_index_open(store, true, &damaged);
  if (status != BCS_OK) return status;
  MDB_txn *txn;
  bcsi_totals totals;
  bcs_limits limits = bcsi_limits(store); /* outlive it: the table has them, too */
  int rc = bcsi_begin_at_open(store, 0, &txn);
  if (rc != 0) return fail(store, rc, "begin");
  status = bcsi_totals_get(store, txn, &totals);
  if (status == BCS_OK && (rc = bcsi_limits_put(store, txn, &limits)) == 0) {
    bcsi_slots_renew(store, &totals);
    (void)bcsi_layout_note_store(store, totals.store_id); /* or the next open: what one alone says contradicts nobody */
    bcsi_slots_publish_live(store, bcsi_index_live(store, txn));
    rc = mdb_txn_commit(txn);
  } else {
    mdb_txn_abort(txn);
  }
  return rc != 0 ? fail(store, rc, "limits") : status;
}

static bcs_status replace_alone(bcs_store *store) {
  bcs_status status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  pthread_mutex_lock(&store->index.transaction);
  if (bcsi_gate_close(&store->index)) {
    status = begin_anew(store);
    bcsi_gate_open(&store->index);
  } else {
    status = bcsi_fail(BCS_CLOSED, 0, "set aside", store->index.path, NULL);
  }
  pthread_mutex_unlock(&store->index.transaction);
  bcsi_writer_unlock(store);
  return status;
}

/* As an open that finds itself alone does it. Byte 0 is tried, not waited for: a reader that cannot register holds it for
 * as long as it likes, while another open takes some milliseconds. Who calls holds no reader. */
bcs_status bcsi_index_replace(bcs_store *store) {
  bcs_status status = BCS_BUSY;
  for (int i = 0; status == BCS_BUSY && i < 100; i++) {
    status = bcsi_lock(store->lock_fd, BCSI_LOCK_OPEN, true, false, store->info.path);
    if (status == BCS_BUSY) usleep(10000);
  }
  if (status == BCS_OK) {
    status = bcsi_lock(store->lock_fd, BCSI_LOCK_USE, true, false, store->info.path);
    if (status == BCS_OK) {
      bcs_error error;
      status = replace_alone(store);
      bcs_last_error(&error);
      bcs_status shared = bcsi_lock(store->lock_fd, BCSI_LOCK_USE, false, true, store->info.path);
      if (status == BCS_OK) status = shared;
      else status = bcsi_repeat(&error);
    }
    bcsi_unlock(store->lock_fd, BCSI_LOCK_OPEN);
  }
  if (status == BCS_BUSY) return bcsi_fail(BCS_IN_USE, 0, "set aside", store->index.path, NULL);
  return status;
}
