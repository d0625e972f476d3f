/* Whose line is whose. Each line of the slot table below the number of those that were ever handed out stands in one record
 * or in the tree `free`; some are lost, where a record was damaged. What a record says of its line is outside of its
 * seal, since it changes with every commit: a damaged one may name the line of another entry, or one that nobody has, and
 * so may a row of `free` and the number itself. The entry is as good as before, and gets another line. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct lines {
  bcs_store *store;
  MDB_txn *txn;
  bool has_table;  /* or one is to be made */
  bool is_reader;  /* beside others */
  uint8_t *taken;  /* a bit each */
  uint64_t count;  /* a number from here on is no line, whatever the table can have */
  uint64_t end;    /* one more than the largest that is taken */
} lines;

/* Lines are handed out again before there are more, so there are about as many as there ever were entries and free ones. */
static uint64_t most_lines(uint64_t entries, uint64_t free) {
  enum { SOME = 4096 };
  uint64_t most = 2 * (entries + free) + SOME;
  return most < BCSI_MAX_LINES ? most : BCSI_MAX_LINES;
}

static int count_rows(bcs_store *store, MDB_txn *txn, uint64_t *entries, uint64_t *free) {
  MDB_stat of_entries, of_free;
  int rc = mdb_stat(txn, store->index.entries, &of_entries);
  if (rc == 0) rc = mdb_stat(txn, store->index.free_slots, &of_free);
  if (rc != 0) return rc;
  *entries = of_entries.ms_entries;
  *free = of_free.ms_entries;
  return 0;
}

/* As the walk that this is a part of: a growth of the map waits for all readers. */
static bool must_give_way(const lines *l) { return l->is_reader && atomic_load(&l->store->index.gate) == BCSI_GATE_PAUSED; }

static bool is_taken(const lines *l, uint64_t line) { return l->taken[line / 8] >> (line % 8) & 1; }

/* False: it is no line, or somebody else's. */
static bool take(lines *l, uint64_t line) {
  if (line >= l->count || is_taken(l, line)) return false;
  if (l->has_table && !bcsi_slots_has(l->store, (uint32_t)line)) return false;
  l->taken[line / 8] |= (uint8_t)(1 << line % 8);
  if (line >= l->end) l->end = line + 1;
  return true;
}

static bool is_named_by_table(const lines *l, const bcs_record *record) {
  uint8_t hash[BCS_HASH_SIZE];
  if (record->slot >= l->count || !bcsi_slots_has(l->store, record->slot)) return false;
  bcsi_slots_hash(l->store, record->slot, hash);
  return memcmp(hash, record->key_hash, sizeof hash) == 0;
}

static int begin(lines *l, bcs_store *store, MDB_txn *txn, bool has_table) {
  uint64_t entries, free;
  *l = (lines){.store = store, .txn = txn, .has_table = has_table};
  int rc = count_rows(store, txn, &entries, &free);
  if (rc != 0) return rc;
  l->count = most_lines(entries, free);
  l->taken = calloc(l->count / 8 + 1, 1);
  return l->taken ? 0 : ENOMEM;
}

typedef struct homeless {
  uint8_t (*hashes)[BCS_HASH_SIZE]; /* NULL: they are only counted */
  size_t count, capacity;
} homeless;

static int note(homeless *h, bool keep, const uint8_t key_hash[BCS_HASH_SIZE]) {
  if (keep && h->count == h->capacity) {
    size_t capacity = h->capacity ? 2 * h->capacity : 64;
    void *more = realloc(h->hashes, capacity * sizeof *h->hashes);
    if (!more) return ENOMEM;
    h->hashes = more;
    h->capacity = capacity;
  }
  if (keep) memcpy(h->hashes[h->count], key_hash, BCS_HASH_SIZE);
  h->count++;
  return 0;
}

/* Of two records that name one line it is that one's which the table names. `first`: those alone take theirs. */
static int take_of_records(lines *l, bool first, bool keep, homeless *without) {
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(l->txn, l->store->index.entries, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_record record;
    if (must_give_way(l) && (rc = MDB_MAP_RESIZED)) break;
    if (key.mv_size != BCS_HASH_SIZE || !bcsi_record_decode(value.mv_data, value.mv_size, &record)) continue;
    memcpy(record.view.key_hash, key.mv_data, BCS_HASH_SIZE);
    bool is_named = l->has_table && is_named_by_table(l, &record.view);
    if (first) {
      if (is_named) (void)take(l, record.view.slot);
    } else if (!is_named && !take(l, record.view.slot) && (rc = note(without, keep, key.mv_data)) != 0) {
      break;
    }
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int take_of_free(lines *l, bool repair, uint64_t *wrong) {
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(l->txn, l->store->index.free_slots, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    uint32_t line = UINT32_MAX;
    if (key.mv_size == sizeof line) memcpy(&line, key.mv_data, sizeof line);
    if (key.mv_size == sizeof line && take(l, line)) continue;
    ++*wrong;
    if (repair && (rc = mdb_cursor_del(cursor, 0)) != 0) break;
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int give_line(lines *l, const uint8_t key_hash[BCS_HASH_SIZE], uint64_t *from) {
  bcs_store *store = l->store;
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash}, value;
  bcsi_record record;
  while (*from < l->count && is_taken(l, *from)) ++*from;
  if (*from == l->count) return ENOSPC;
  uint32_t line = (uint32_t)*from;
  int rc = mdb_get(l->txn, store->index.entries, &key, &value);
  if (rc != 0) return rc;
  if (l->has_table && bcsi_slots_reserve(store, line) != BCS_OK) return ENOSPC;
  uint8_t *copy = malloc(value.mv_size);
  if (!copy) return ENOMEM;
  memcpy(copy, value.mv_data, value.mv_size);
  value.mv_data = copy;
  uint64_t generation = 0;
  if (bcsi_record_decode(copy, value.mv_size, &record)) generation = record.view.generation;
  if (l->has_table && bcsi_slots_generation(store, line) > generation) generation = bcsi_slots_generation(store, line);
  generation = (generation | 1) + 3;
  bcsi_record_place(copy, line, generation);
  rc = mdb_put(l->txn, store->index.entries, &key, &value, 0);
  if (rc == 0 && l->has_table && bcsi_record_decode(copy, value.mv_size, &record)) {
    memcpy(record.view.key_hash, key_hash, BCS_HASH_SIZE);
    bcsi_slots_fill(store, &record.view, record.view.written_ms, 0);
    bcsi_slots_set_generation(store, line, generation);
  }
  free(copy);
  (void)take(l, line);
  return rc;
}

/* Lines that nobody has become free ones. */
static int find_lost(lines *l) {
  int rc = 0;
  for (uint32_t line = 0; rc == 0 && line < l->end; line++) {
    if (is_taken(l, line)) continue;
    MDB_val key = {sizeof line, &line}, value = {0, NULL};
    if (l->has_table) bcsi_slots_empty(l->store, line, (bcsi_slots_generation(l->store, line) | 1) + 1);
    rc = mdb_put(l->txn, l->store->index.free_slots, &key, &value, 0);
  }
  return rc;
}

/* In a snapshot, or with `repair` in a write transaction, where totals->slots_used is put right, too. */
int bcsi_lines_check(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, bool repair, bool has_table, uint64_t *wrong) {
  lines l;
  homeless without = {0};
  uint64_t found = 0, from = 0;
  int rc = begin(&l, store, txn, has_table);
  l.is_reader = has_table && !repair;
  if (rc == 0 && has_table) rc = take_of_records(&l, true, false, &without);
  if (rc == 0) rc = take_of_records(&l, false, repair, &without);
  if (rc == 0) rc = take_of_free(&l, repair, &found);
  found += without.count;
  if (totals->slots_used < l.end || totals->slots_used > l.count) found++;
  for (size_t i = 0; rc == 0 && repair && i < without.count; i++) rc = give_line(&l, without.hashes[i], &from);
  if (rc == 0 && repair && found > 0) {
    rc = find_lost(&l);
    totals->slots_used = l.end;
  }
  *wrong += found;
  free(without.hashes);
  free(l.taken);
  return rc;
}

/* Before a table is made, by whoever is alone. */
bcs_status bcsi_lines_mend(bcs_store *store) {
  MDB_txn *txn;
  bcsi_totals totals;
  uint64_t wrong = 0;
  int rc = bcsi_begin_at_open(store, MDB_RDONLY, &txn);
  if (rc != 0) return bcsi_fail_lmdb(rc, "begin", store->index.path);
  bcs_status status = bcsi_totals_get(store, txn, &totals);
  if (status == BCS_OK) rc = bcsi_lines_check(store, txn, &totals, false, false, &wrong);
  mdb_txn_abort(txn);
  if (status != BCS_OK || rc != 0 || wrong == 0) return rc == 0 ? status : bcsi_fail_lmdb(rc, "mend", store->index.path);
  rc = bcsi_begin_at_open(store, 0, &txn);
  if (rc != 0) return bcsi_fail_lmdb(rc, "begin", store->index.path);
  rc = bcsi_lines_check(store, txn, &totals, true, false, &wrong);
  if (rc == 0) rc = bcsi_totals_put(store, txn, &totals);
  if (rc == 0) rc = mdb_txn_commit(txn);
  else mdb_txn_abort(txn);
  return rc == 0 ? BCS_OK : bcsi_fail_lmdb(rc, "mend", store->index.path);
}
