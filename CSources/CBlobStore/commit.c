/* One batch, one transaction.
 *
 * Order, and why:
 *   1. the write lock; 2. the transaction; 3. lines that a dead writer left odd are mended;
 *   4. the intent names what will be published: debris of a kill can be found;
 *   5. each write is applied (apply.c), which publishes its file;
 *   6. lines go odd: a memory tier of any process asks the index from now on; 7. commit; 8. lines go even;
 *   9. the intent is cleared.
 * An error of LMDB ends the whole transaction, and every write with it. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Stores, and renewals: those write as many pages as a store does, give nothing back, and there is no end of them. They
 * wait for a reader that stands still, and on a full disk for room. */
static bool takes_room(const bcs_write *write) {
  return write->kind == BCSI_PUT_INLINE || write->kind == BCSI_PUT_STAGED || write->kind == BCSI_PUT_SHARED ||
         write->kind == BCSI_RENEW;
}

static bool some_take_room(bcs_write *const *writes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (takes_room(writes[i])) return true;
  return false;
}

static bool some_take_none(bcs_write *const *writes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!takes_room(writes[i])) return true;
  return false;
}

/* ---- lines before and after */

/* All lines that a removal of everything frees, and that no write names, keep their generation: they are above the used
 * count, and whoever is given one counts on from it. What coherence needs of them the epoch tells. */
static void lines_before(bcsi_batch *b, bcs_write *const *writes, size_t count) {
  bcs_store *store = b->store;
  if (b->cleared || b->strays) bcsi_slots_epoch(store, true);
  bcsi_slots_mark(store, b->lines, b->line_count);
  (void)bcsi_fault("lines");
  for (size_t i = 0; i < count; i++) {
    bcs_write *write = writes[i];
    if (!write->touched) continue;
    bcsi_slots_save(store, write->slot, write->line_before);
    bcsi_slots_set_generation(store, write->slot, write->new_generation - 1);
    /* The hash leads a mender from the line to the record, so it stands there before the commit. */
    if (!write->freed) {
      bcs_record record;
      bcs_write_record(write, &record);
      bcsi_slots_fill(store, &record, write->access_ms, write->hits);
    }
  }
  for (size_t i = 0; i < b->evicted_count; i++) {
    bcsi_evicted *gone = &b->evicted[i];
    bcsi_slots_save(store, gone->line, gone->line_before);
    bcsi_slots_set_generation(store, gone->line, gone->new_generation - 1);
  }
}

static void lines_after(bcsi_batch *b, bcs_write *const *writes, size_t count) {
  bcs_store *store = b->store;
  for (size_t i = 0; i < count; i++) {
    bcs_write *write = writes[i];
    if (write->stage && write->stage->published) bcsi_stage_published(write->stage);
    if (!write->touched) continue;
    if (write->freed) bcsi_slots_empty(store, write->slot, write->new_generation);
    else bcsi_slots_set_generation(store, write->slot, write->new_generation);
  }
  for (size_t i = 0; i < b->evicted_count; i++)
    bcsi_slots_empty(store, b->evicted[i].line, b->evicted[i].new_generation);
  if (b->cleared) bcsi_ghosts_clear(store);
  bcsi_evict_done(b);
  bcsi_slots_publish_totals(store, &b->totals);
  (void)bcsi_fault("announced");
  if (b->cleared || b->strays) bcsi_slots_epoch(store, false);
  bcsi_slots_unmark(store);
}

/* Reads what the newest committed record of each line says, and makes the line even accordingly. */
static bcs_status mend_line(bcs_store *store, MDB_txn *txn, uint32_t line, const bcsi_totals *totals) {
  if (!bcsi_slots_has(store, line)) return BCS_OK;
  uint64_t generation = bcsi_slots_generation(store, line);
  uint8_t hash[BCS_HASH_SIZE];
  bcsi_slots_hash(store, line, hash);
  MDB_val key = {sizeof hash, hash}, value;
  bcsi_record record;
  int rc = mdb_get(txn, store->index.entries, &key, &value);
  if (rc != 0 && rc != MDB_NOTFOUND) return bcsi_fail_lmdb(rc, "mend", store->index.path);
  if (rc == 0 && line < totals->slots_used && bcsi_record_decode(value.mv_data, value.mv_size, &record) &&
      record.view.slot == line) {
    memcpy(record.view.key_hash, hash, sizeof hash);
    /* What the dead writer left as the access time is no earlier than the last access was. */
    int64_t access = bcsi_slots_access_ms(store, line);
    if (access < record.view.written_ms) access = record.view.written_ms;
    bcsi_slots_fill(store, &record.view, access, 0);
    bcsi_slots_set_generation(store, line, record.view.generation);
  } else {
    bcsi_slots_empty(store, line, (generation | 1) + 1);
  }
  return BCS_OK;
}

/* A writer died in a batch that removed everything: lines that other entries still have may have been given out again in
 * it, and name those. Only the records tell whose they are. */
static bcs_status mend_from_records(bcs_store *store, MDB_txn *txn) {
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(txn, store->index.entries, &cursor);
  if (rc != 0) return bcsi_fail_lmdb(rc, "mend", store->index.path);
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_record record;
    if (key.mv_size != BCS_HASH_SIZE || !bcsi_record_decode(value.mv_data, value.mv_size, &record)) continue;
    memcpy(record.view.key_hash, key.mv_data, BCS_HASH_SIZE);
    if (!bcsi_slots_has(store, record.view.slot)) continue;
    uint64_t generation = bcsi_slots_generation(store, record.view.slot);
    if ((generation & 1) == 0 && bcsi_slots_agree(store, &record.view)) continue;
    int64_t access = bcsi_slots_access_ms(store, record.view.slot);
    if (access < record.view.written_ms) access = record.view.written_ms;
    bcsi_slots_fill(store, &record.view, access, 0);
    bcsi_slots_set_generation(store, record.view.slot, record.view.generation);
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? BCS_OK : bcsi_fail_lmdb(rc, "mend", store->index.path);
}

bcs_status bcsi_repair_marked(bcs_store *store, MDB_txn *txn) {
  enum { CAPACITY = 8192 };
  bool all;
  uint32_t *lines = malloc(CAPACITY * sizeof *lines);
  if (!lines) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "mend", store->info.path, NULL);
  size_t count = bcsi_slots_marked(store, lines, CAPACITY, &all);
  bcs_status status = BCS_OK;
  /* A removal of everything marks no line, and a writer may die before it has marked any: the epoch tells. */
  if (count > 0 || all || bcsi_slots_epoch_is_odd(store)) {
    bcsi_totals totals;
    status = bcsi_totals_get(store, txn, &totals);
    for (size_t i = 0; status == BCS_OK && i < count; i++) status = mend_line(store, txn, lines[i], &totals);
    if (all)
      for (uint32_t line = 0; status == BCS_OK && bcsi_slots_has(store, line); line++)
        if (bcsi_slots_generation(store, line) & 1) status = mend_line(store, txn, line, &totals);
    if (status == BCS_OK && bcsi_slots_epoch_is_odd(store)) status = mend_from_records(store, txn);
    if (status == BCS_OK) {
      bcsi_slots_publish_totals(store, &totals);
      bcsi_slots_epoch(store, false);
      bcsi_slots_unmark(store);
    }
  }
  free(lines);
  return status;
}

/* ---- the batch */

/* The transaction failed: what it published goes back to staging where no row refers to it, so that the batch can be
 * tried again, or its stages be given up. In a write transaction, so that nobody publishes the same content meanwhile;
 * nothing is written by it. */
static void take_back_published(bcsi_batch *b, bcs_write *const *writes, size_t count) {
  bcs_store *store = b->store;
  MDB_txn *txn;
  if (b->published_count == 0) return;
  if (bcsi_write_begin(store, &txn) != BCS_OK) {
    bcsi_intent_keep(store);
    return;
  }
  bool all_back = true;
  for (size_t i = 0; i < count; i++) {
    bcs_stage *stage = writes[i]->stage;
    if (!stage || !stage->published) continue;
    bcsi_blob_row row;
    int rc;
    char name[BCSI_NAME_MAX];
    bcsi_blob_name(stage->digest, name);
    if (bcsi_blob_row_get(store, txn, stage->digest, &row, &rc)) { /* in use by others, and good */
      struct stat st;
      if (bcsi_blob_stat(store, stage->digest, &st) == BCS_OK) {
        bcsi_identify(&st, &writes[i]->trusted);
        writes[i]->is_trusted = true;
      }
      continue;
    }
    if (rc == 0 && renameat(store->blobs_fd, name, store->staging_fd, stage->name) == 0) stage->published = false;
    else all_back = false;
  }
  bcsi_write_abort(store, txn);
  if (!all_back) bcsi_intent_keep(store);
}

/* Nothing changed, so each line says again what it said; the last write of a line first. */
static void lines_taken_back(bcsi_batch *b, bcs_write *const *writes, size_t count) {
  bcsi_slots_epoch(b->store, true); /* should readers see something of it nevertheless: no memory tier relies on lines */
  for (size_t i = b->evicted_count; i-- > 0;)
    bcsi_slots_restore(b->store, b->evicted[i].line, b->evicted[i].line_before);
  for (size_t i = count; i-- > 0;)
    if (writes[i]->touched) bcsi_slots_restore(b->store, writes[i]->slot, writes[i]->line_before);
  bcsi_slots_epoch(b->store, false);
  bcsi_slots_unmark(b->store);
}

static bcs_status write_intent(bcsi_batch *b, bcs_write *const *writes, size_t count) {
  size_t staged = 0;
  for (size_t i = 0; i < count; i++)
    if (writes[i]->stage) memcpy(b->published[staged++], writes[i]->stage->digest, BCS_DIGEST_SIZE);
  if (staged == 0) return BCS_OK;
  return bcsi_intent_write(b->store, (const uint8_t(*)[BCS_DIGEST_SIZE])b->published, staged);
}

/* A commit of nothing takes pages, too: while a reader stands still, new ones each time. */
static bool changes_nothing(const bcsi_batch *b, bcs_write *const *writes, size_t count) {
  if (b->cleared || b->strays || b->published_count > 0 || b->evicted_count > 0) return false;
  for (size_t i = 0; i < count; i++)
    if (writes[i]->result == BCS_OK) return false;
  return true;
}

/* One try. BCS_INDEX with MDB_MAP_FULL in *rc: grow and try again. */
static bcs_status try_batch(bcsi_batch *b, bcs_write *const *writes, size_t count, bool all, int *lmdb) {
  bcs_store *store = b->store;
  *lmdb = 0;
  b->cleared = b->strays = false;
  b->published_count = b->new_file_count = b->line_count = b->freed_count = b->evicted_count = 0;
  b->is_over = false;
  b->published_staged = 0;
  b->writes = writes;
  memset(b->folders, 0, sizeof b->folders);
  bcs_status status = bcsi_write_begin(store, &b->txn);
  if (status != BCS_OK) return status;
  if (!b->is_tried_again) bcsi_intent_retry(store, b->txn); /* else they are this batch's own */
  b->is_tried_again = true;
  status = bcsi_repair_marked(store, b->txn);
  if (status == BCS_OK) status = bcsi_totals_get(store, b->txn, &b->totals);
  if (status == BCS_OK && all) status = write_intent(b, writes, count);
  int rc = 0;
  size_t done = 0;
  /* At a limit, files whose removal an earlier batch committed go as fast as others come; else the sweep takes them. */
  if (status == BCS_OK && b->totals.trash_allocated > 0 && bcsi_wants_trash_gone(b)) {
    bool more;
    bcs_status trouble; /* of files that stay in the trash; the sweep reports it */
    rc = bcsi_trash_unlink(store, b->txn, &b->totals, 2 * count + 64, &done, &more, &trouble);
  }
  for (b->applied = 0; status == BCS_OK && rc == 0 && b->applied < count; b->applied++)
    if (all || !takes_room(writes[b->applied])) rc = bcsi_apply(b, writes[b->applied]);
  if (status == BCS_OK && rc == 0 && !b->cleared) rc = bcsi_evict(b);
  if (status == BCS_OK && rc == 0 && done == 0 && changes_nothing(b, writes, count)) {
    bcsi_write_abort(store, b->txn);
    return BCS_OK;
  }
  if (status == BCS_OK && rc == 0) rc = bcsi_give_back_lines(b);
  if (status == BCS_OK && rc == 0) rc = bcsi_digest_merge(store, b->txn, &b->totals, false);
  if (status == BCS_OK && rc == 0) rc = bcsi_totals_put(store, b->txn, &b->totals);
  if (status == BCS_OK && rc == 0 && store->durable)
    for (int i = 0; status == BCS_OK && i < 256; i++)
      if (b->folders[i]) status = bcsi_blob_sync_folder(store, (uint8_t)i);
  if (status == BCS_OK && rc == 0) {
    uint64_t index_live = bcsi_index_live(store, b->txn);
    lines_before(b, writes, count);
    rc = bcsi_fault("before-commit");
    if (rc != 0) bcsi_write_abort(store, b->txn);
    else rc = bcsi_write_commit(store, b->txn);
    if (rc == 0) {
      (void)bcsi_fault("after-commit");
      lines_after(b, writes, count);
      bcsi_checkpoint_published(store, (const uint8_t(*)[BCS_DIGEST_SIZE])b->new_files, b->new_file_count);
      bcsi_slots_publish_live(store, index_live);
      (void)bcsi_fault("slots");
      return BCS_OK;
    }
    status = bcsi_fail_lmdb(rc, "commit", store->index.path);
    bcs_error error;
    bcs_last_error(&error);
    lines_taken_back(b, writes, count);
    bcsi_repeat(&error);
  } else {
    bcsi_write_abort(store, b->txn);
    if (rc != 0) status = bcsi_fail_lmdb(rc, "write", store->index.path);
  }
  bcs_error error;
  bcs_last_error(&error);
  take_back_published(b, writes, count);
  *lmdb = rc;
  return bcsi_repeat(&error);
}

/* The newest time that a caller told. */
static int64_t time_of(bcs_store *store, bcs_write *const *writes, size_t count) {
  int64_t now = 0;
  for (size_t i = 0; i < count; i++)
    if (writes[i]->now_ms > now) now = writes[i]->now_ms;
  return bcsi_slots_now(store, now);
}

/* `all`: or only the writes that take no room. *over: it does not keep to its limits yet, and more can be evicted. */
static bcs_status commit_locked(bcs_store *store, bcs_write *const *writes, size_t count, bool all,
                                const bcs_limits *limits, uint64_t *evicted, bool *over) {
  /* Beside the batch's own number, a bound on how long others wait; and on how many pages are wanted of a full disk. */
  enum { EVICTED_MOST = 256, EVICTED_TIGHT = 16 };
  size_t most = 2 * count + (count > 0 && !limits ? 16 : EVICTED_MOST);
  bcsi_batch b = {.store = store, .evicted_capacity = most};
  b.limits = limits ? *limits : bcsi_limits(store);
  b.is_lenient = count > 0;
  b.now_ms = time_of(store, writes, count);
  b.published = malloc((count + 1) * sizeof *b.published);
  b.new_files = malloc((count + 1) * sizeof *b.new_files);
  b.lines = malloc((count + most + 1) * sizeof *b.lines);
  b.freed = malloc((count + most + 1) * sizeof *b.freed);
  b.evicted = malloc((most + 1) * sizeof *b.evicted);
  bcs_status status = BCS_OK;
  if (!b.published || !b.new_files || !b.lines || !b.freed || !b.evicted)
    status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "commit", store->info.path, NULL);
  while (status == BCS_OK) {
    int lmdb;
    status = try_batch(&b, writes, count, all, &lmdb);
    if (status == BCS_OK) break;
    bcs_error error;
    bcs_last_error(&error);
    if (lmdb == MDB_MAP_FULL) {
      status = bcsi_index_grow(store);
      if (status == BCS_OK) continue;
      bcs_last_error(&error);
    }
    for (size_t i = 0; i < count; i++) {
      if (!all && takes_room(writes[i])) continue;
      writes[i]->result = status;
      writes[i]->error = error;
      writes[i]->touched = false;
    }
    /* On a full disk removals are what helps: they are not to fail with the stores beside them, and the ballast is theirs. */
    bool stores = all && some_take_room(writes, count);
    bool again = status == BCS_NO_SPACE && (stores ? some_take_none(writes, count) : bcsi_ballast_drop(store));
    if (again) {
      for (size_t i = 0; i < count; i++) writes[i]->touched = false;
      all = false;
      if (b.evicted_capacity > EVICTED_TIGHT) b.evicted_capacity = EVICTED_TIGHT;
      status = BCS_OK;
      continue;
    }
    break;
  }
  bcsi_intent_clear(store);
  free(b.published);
  free(b.new_files);
  free(b.lines);
  free(b.freed);
  free(b.evicted);
  if (evicted && status == BCS_OK) *evicted += b.evicted_count;
  *over = status == BCS_OK && b.is_over && (b.evicted_count > 0 || count > 16); /* all of a large batch may be its own */
  return status;
}

static uint64_t stricter(uint64_t a, uint64_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

static bcs_limits stricter_of(const bcs_limits *a, const bcs_limits *b) {
  return (bcs_limits){
      .bytes = stricter(a->bytes, b->bytes),
      .entries = stricter(a->entries, b->entries),
      .age_ms = (int64_t)stricter((uint64_t)a->age_ms, (uint64_t)b->age_ms),
      /* The automatic reserve is the least; who asks for another asks for more. */
      .minimum_free = b->minimum_free != 0 && b->minimum_free != BCS_FREE_BY_SIZE ? b->minimum_free : a->minimum_free,
  };
}

bcs_status bcs_trim(bcs_store *store, const bcs_limits *limits, int64_t now_ms, uint64_t *evicted, bool *more) {
  *more = false;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  if (store->options.read_only) status = bcsi_fail(BCS_READ_ONLY, 0, "trim", store->info.path, NULL);
  if (status == BCS_OK && limits) status = bcsi_check_free(store, limits->minimum_free, "trim");
  if (status == BCS_OK) status = bcsi_writer_lock(store, false);
  if (status == BCS_OK) {
    bcs_limits own = bcsi_limits(store);
    if (limits) own = stricter_of(&own, limits);
    (void)bcsi_slots_now(store, now_ms);
    status = commit_locked(store, NULL, 0, true, &own, evicted, more);
    bcsi_free_after_commit(store, false);
    bcsi_writer_unlock(store);
  }
  bcsi_call_leave(store);
  return status;
}

static int64_t monotonic_ms(void) {
  struct timespec now = {0};
  (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail: the clock is there, and so is the place */
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* With the write lock. Those that take room wait for a reader that stands still, the first ones two seconds, however long
 * a look takes; what is BCS_HELD then fails, and the rest is committed. */
static bcs_status commit_when_admitted(bcs_store *store, bcs_write *const *writes, size_t count, bool try_only,
                                       bool *over) {
  enum { PATIENCE_MS = 2000, MOMENT_US = 2000 };
  bcs_status admitted = BCS_OK;
  if (try_only && (bcsi_free_would_wait(store) || !bcsi_checkpoint_is_held(store)))
    return bcsi_fail(BCS_BUSY, 0, "commit", store->info.path, NULL);
  if (some_take_room(writes, count)) admitted = bcsi_free_admits(store);
  for (int64_t end = 0; admitted == BCS_HELD;) {
    bool by_checkpoint = store->free_held_by == BCSI_HELD_BY_CHECKPOINT;
    if (!by_checkpoint && end == 0) end = monotonic_ms() + PATIENCE_MS;
    if (!by_checkpoint && (store->free_refuses || monotonic_ms() >= end)) break;
    bcsi_writer_unlock(store);
    if (!by_checkpoint) usleep(MOMENT_US);
    bcs_status made = by_checkpoint ? bcsi_checkpoint(store, true) : BCS_OK; /* takes as long as the disk does */
    admitted = bcsi_writer_lock(store, false);
    if (admitted != BCS_OK) return admitted;
    /* A disk that takes no checkpoint is no reason to take no stores. */
    if (made != BCS_OK && made != BCS_BUSY) bcsi_checkpoint_give_up(store);
    admitted = bcsi_free_admits(store);
  }
  if (some_take_room(writes, count)) store->free_refuses = admitted == BCS_HELD;
  if (admitted != BCS_HELD) return commit_locked(store, writes, count, true, NULL, NULL, over);
  for (size_t i = 0; i < count; i++) {
    if (!takes_room(writes[i])) continue;
    writes[i]->result = BCS_HELD;
    bcs_last_error(&writes[i]->error);
  }
  if (!some_take_none(writes, count)) return BCS_OK; /* an empty commit takes pages that are held, too, each time */
  return commit_locked(store, writes, count, false, NULL, NULL, over);
}

/* What found no space, again and in small batches, as long as others make room for it. */
static bcs_status commit_in_made_space(bcs_store *store, bcs_write *const *writes, size_t count, bcs_status status,
                                       bool *over) {
  enum { TRIES = 4, AT_ONCE = 16, ROOM = 8 << 20 /* for the index's file, which grows by pages */ };
  bcs_write *left[AT_ONCE];
  for (size_t from = 0; from < count;) {
    size_t n = 0;
    for (; from < count && n < AT_ONCE; from++)
      if (writes[from]->result == BCS_NO_SPACE) left[n++] = writes[from];
    for (int i = 0; i < TRIES && n > 0; i++) {
      if (!bcsi_make_space(store, left[0]->error.code, ROOM)) return status;
      bcs_status locked = bcsi_writer_lock(store, false);
      if (locked != BCS_OK) return status;
      status = commit_locked(store, left, n, true, NULL, NULL, over);
      bcsi_writer_unlock(store);
      size_t still = 0;
      for (size_t k = 0; k < n; k++)
        if (left[k]->result == BCS_NO_SPACE) left[still++] = left[k];
      n = still;
    }
  }
  return status;
}

bcs_status bcs_commit(bcs_store *store, bcs_write *const *writes, size_t count, bool try_only) {
  bcs_status status = bcsi_call_enter(store);
  if (status == BCS_OK) {
    status = bcsi_check_place(store);
    if (status == BCS_OK) status = bcsi_writer_lock(store, try_only);
    if (status == BCS_OK) {
      bool over = false;
      status = commit_when_admitted(store, writes, count, try_only, &over);
      bcsi_ballast_after_commit(store);
      bcsi_free_after_commit(store, try_only);
      bcsi_writer_unlock(store);
      size_t full = 0;
      for (size_t i = 0; i < count; i++) full += writes[i]->result == BCS_NO_SPACE;
      /* Who only tries must not wait: not for room, and not for other writers in between. The one whose turn it is will. */
      if (full == count && count > 0 && try_only) status = bcsi_fail(BCS_BUSY, 0, "commit", store->info.path, NULL);
      else if (full > 0 && !try_only) status = commit_in_made_space(store, writes, count, status, &over);
      /* Not one transaction any more: what could not be made has its own result, and says nothing of the others. */
      for (size_t i = 0; full > 0 && !try_only && i < count; i++)
        if (writes[i]->result != BCS_NO_SPACE) status = BCS_OK;
      /* A batch that leaves more above the limits than it could evict itself is followed by others that only evict; what
       * keeps them from it is told to the next one. */
      for (bool more = status == BCS_OK && over && !try_only; more;) {
        uint64_t evicted = 0;
        if (bcs_trim(store, NULL, 0, &evicted, &more) != BCS_OK) break;
      }
      bcsi_call_leave(store);
      return status;
    }
    bcsi_call_leave(store);
  }
  if (status == BCS_BUSY) return status;
  for (size_t i = 0; i < count; i++) {
    writes[i]->result = status;
    bcs_last_error(&writes[i]->error);
  }
  return status;
}
