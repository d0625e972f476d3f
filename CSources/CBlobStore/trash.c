/* The trash: blob files that no entry uses any more. Their removal is committed first; a later write transaction unlinks
 * what nobody has stored again meanwhile. In one, and only there, so that a removal cannot delete a newer copy of the
 * same content. */
#include "internal.h"

#include <string.h>

/* Takes a row away, and its file unless somebody stored the same content again. *unlinked: what became of the file; where
 * that is trouble, the row stays. */
static int empty_row(bcs_store *store, MDB_txn *txn, MDB_cursor *cursor, const MDB_val *key, const MDB_val *value,
                     bcsi_totals *totals, bcs_status *unlinked) {
  int rc = 0;
  bcsi_blob_row row;
  uint8_t digest[BCS_DIGEST_SIZE];
  uint64_t allocated = 0;
  *unlinked = BCS_OK;
  if (key->mv_size == sizeof digest) {
    memcpy(digest, key->mv_data, sizeof digest);
    if (!bcsi_blob_row_get(store, txn, digest, &row, &rc) && rc == 0) *unlinked = bcsi_blob_unlink(store, digest);
    if (rc != 0 || *unlinked != BCS_OK) return rc;
  }
  if (value->mv_size == sizeof allocated) memcpy(&allocated, value->mv_data, sizeof allocated);
  totals->trash_allocated -= allocated < totals->trash_allocated ? allocated : totals->trash_allocated;
  return mdb_cursor_del(cursor, 0);
}

/* The next row, or that at `*key`, as `op` says; behind the last one comes the first, and the round ends before `from`. */
static int next_row(MDB_cursor *cursor, MDB_cursor_op op, const uint8_t from[BCS_DIGEST_SIZE], bool *is_around,
                    MDB_val *key, MDB_val *value) {
  int rc = mdb_cursor_get(cursor, key, value, op); /* after a deletion, the next one is the one behind it */
  if (rc == MDB_NOTFOUND && !*is_around) {
    *is_around = true;
    rc = mdb_cursor_get(cursor, key, value, MDB_FIRST);
  }
  size_t size = rc == 0 && key->mv_size < BCS_DIGEST_SIZE ? key->mv_size : BCS_DIGEST_SIZE;
  if (rc == 0 && *is_around && memcmp(key->mv_data, from, size) >= 0) return MDB_NOTFOUND;
  return rc;
}

/* Unlinks at most `limit` files. One that cannot be unlinked stays and is passed over; its trouble is *status. Beyond 4 *
 * limit of those the rest is left to the next call, which begins behind them: however many there are, all others go. */
int bcsi_trash_unlink(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, size_t limit, size_t *done, bool *more,
                      bcs_status *status) {
  uint8_t from[BCS_DIGEST_SIZE];
  MDB_cursor *cursor;
  MDB_val key = {sizeof from, from}, value;
  *done = 0;
  *more = false;
  *status = BCS_OK;
  int rc = bcsi_fault("trash");
  if (rc == 0) rc = mdb_cursor_open(txn, store->index.trash, &cursor);
  if (rc != 0) return rc;
  memcpy(from, store->trash_from, sizeof from);
  memset(store->trash_from, 0, sizeof store->trash_from); /* after a whole round: from the first one */
  size_t passed = 0;
  bool is_around = false;
  rc = next_row(cursor, MDB_SET_RANGE, from, &is_around, &key, &value);
  while (rc == 0) {
    if (*done == limit || passed > 4 * limit) {
      *more = *done == limit;
      if (key.mv_size == sizeof from) memcpy(store->trash_from, key.mv_data, sizeof from);
      break;
    }
    bcs_status unlinked;
    rc = empty_row(store, txn, cursor, &key, &value, totals, &unlinked);
    if (rc != 0) break;
    if (unlinked == BCS_OK) {
      ++*done;
    } else {
      *status = unlinked;
      passed++;
    }
    rc = next_row(cursor, MDB_NEXT, from, &is_around, &key, &value);
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static bcs_status sweep_locked(bcs_store *store, size_t limit, bool *more, bool *full) {
  *full = false;
  MDB_txn *txn;
  bcsi_totals totals;
  bcs_status trouble = BCS_OK, status = bcsi_write_begin(store, &txn);
  if (status != BCS_OK) return status;
  bcsi_intent_retry(store, txn);
  status = bcsi_totals_get(store, txn, &totals);
  size_t done = 0;
  int rc = 0;
  if (status == BCS_OK && rc == 0) rc = bcsi_trash_unlink(store, txn, &totals, limit, &done, more, &trouble);
  if (status == BCS_OK && rc == 0 && done > 0) rc = bcsi_totals_put(store, txn, &totals);
  if (status == BCS_OK && rc == 0 && done > 0) {
    (void)bcsi_fault("trash-commit");
    rc = bcsi_write_commit(store, txn);
    if (rc == 0) bcsi_slots_publish_totals(store, &totals);
  } else {
    bcsi_write_abort(store, txn);
  }
  *full = rc == MDB_MAP_FULL;
  if (status == BCS_OK && rc != 0) status = bcsi_fail_lmdb(rc, "sweep", store->index.path);
  return status == BCS_OK && !*more ? trouble : status; /* what is left is tried again with the next sweep */
}

bcs_status bcs_sweep_trash(bcs_store *store, size_t limit, bool *more) {
  *more = false;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = bcsi_writer_lock(store, false);
  if (status == BCS_OK) {
    for (bool again = true; again;) { /* deletions need pages, too */
      bool full;
      status = sweep_locked(store, limit, more, &full);
      if (full) status = bcsi_index_grow(store);
      again = full ? status == BCS_OK : status == BCS_NO_SPACE && bcsi_ballast_drop(store);
    }
    bcsi_ballast_after_commit(store);
    bcsi_writer_unlock(store);
  }
  bcsi_call_leave(store);
  return status;
}
