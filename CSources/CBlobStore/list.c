/* Pages of entries, for iteration, removal by prefix, and the tool. */
#include "internal.h"

#include <string.h>

enum { ROWS_AT_ONCE = 4096 }; /* looked at in one read transaction, so that none lives long */

static bool is_zero(const uint8_t *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i]) return false;
  return true;
}

bcs_status bcs_list(bcs_store *store, uint8_t cursor[BCS_HASH_SIZE], const void *prefix, size_t prefix_count,
                    size_t limit, bcs_found found, void *context, bool *done) {
  *done = false;
  if (store->fork_epoch != atomic_load(&bcsi_fork_epoch))
    return bcsi_fail(BCS_FORKED, 0, "list", store->info.path, NULL);
  bcs_status status = bcs_check_place(store);
  if (status != BCS_OK) return status;
  bcsi_reader *reader;
  status = bcsi_reader_enter(store, &reader);
  if (status != BCS_OK) return status;
  MDB_cursor *rows;
  int rc = bcsi_fault("list");
  if (rc == 0) rc = mdb_cursor_open(reader->txn, store->index.entries, &rows);
  if (rc != 0) {
    bcsi_reader_leave(reader);
    return bcsi_fail_lmdb(rc, "list", store->index.path);
  }
  MDB_val key = {BCS_HASH_SIZE, cursor}, value;
  bool from_start = is_zero(cursor, BCS_HASH_SIZE);
  rc = mdb_cursor_get(rows, &key, &value, from_start ? MDB_FIRST : MDB_SET_RANGE);
  if (rc == 0 && !from_start && key.mv_size == BCS_HASH_SIZE && memcmp(key.mv_data, cursor, BCS_HASH_SIZE) == 0)
    rc = mdb_cursor_get(rows, &key, &value, MDB_NEXT);
  size_t given = 0;
  for (int looked = 0; rc == 0 && given < limit && looked < ROWS_AT_ONCE; looked++) {
    bcsi_record record;
    if (key.mv_size == BCS_HASH_SIZE) {
      memcpy(cursor, key.mv_data, BCS_HASH_SIZE);
      if (bcsi_record_decode(value.mv_data, value.mv_size, &record) && record.view.key_count >= prefix_count &&
          (prefix_count == 0 || memcmp(record.view.key, prefix, prefix_count) == 0)) {
        memcpy(record.view.key_hash, cursor, BCS_HASH_SIZE);
        bcsi_slots_read_access(store, &record.view);
        found(context, &record.view, NULL);
        given++;
      }
    }
    rc = mdb_cursor_get(rows, &key, &value, MDB_NEXT);
  }
  *done = rc == MDB_NOTFOUND;
  mdb_cursor_close(rows);
  bcsi_reader_leave(reader);
  return rc == 0 || rc == MDB_NOTFOUND ? BCS_OK : bcsi_fail_lmdb(rc, "list", store->index.path);
}
