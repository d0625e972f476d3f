/* Tags: names that group entries for their removal. The record has them, the tree `tags` leads from one to its entries:
 *
 *   tags  first 16 bytes of SHA-256(tag), key hash (16) → nothing
 *
 * As with digests, a row only leads to an entry; the entry's record tells whether it has the tag. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The tag at *at, which moves behind it. False at the end, and where what follows names nothing. */
static bool next_tag(const uint8_t *tags, size_t count, size_t *at, const uint8_t **tag, size_t *length) {
  if (*at > count || count - *at < 2) return false;
  *length = (size_t)tags[*at] | (size_t)tags[*at + 1] << 8;
  *tag = tags + *at + 2;
  if (*length > count - *at - 2) return false;
  *at += 2 + *length;
  return true;
}

bool bcsi_has_tag(const bcs_record *record, const void *tag, size_t tag_count) {
  const uint8_t *found;
  size_t at = 0, length;
  while (next_tag(record->tags, record->tags_count, &at, &found, &length))
    if (length == tag_count && memcmp(found, tag, length) == 0) return true;
  return false;
}

bool bcsi_has_tag_hash(const bcs_record *record, const uint8_t hash[BCS_HASH_SIZE]) {
  const uint8_t *tag;
  size_t at = 0, length;
  while (next_tag(record->tags, record->tags_count, &at, &tag, &length)) {
    uint8_t found[BCS_HASH_SIZE];
    if (bcsi_key_hash(tag, length, found) == BCS_OK && memcmp(found, hash, sizeof found) == 0) return true;
  }
  return false;
}

static bool link_of(const uint8_t *tag, size_t length, const uint8_t *key_hash, uint8_t out[BCSI_LINK_SIZE]) {
  uint8_t hash[BCS_HASH_SIZE];
  if (bcsi_key_hash(tag, length, hash) != BCS_OK) return false;
  bcsi_link_make(hash, key_hash, out);
  return true;
}

int bcsi_tags_note(bcs_store *store, MDB_txn *txn, const uint8_t *tags, size_t count,
                   const uint8_t key_hash[BCS_HASH_SIZE], bool add) {
  if (count == 0) return 0;
  uint8_t *copy = malloc(count); /* they may stand in a page of the transaction that writes */
  if (!copy) return ENOMEM;
  memcpy(copy, tags, count);
  const uint8_t *tag;
  size_t at = 0, length;
  int rc = 0;
  while (rc == 0 && next_tag(copy, count, &at, &tag, &length)) {
    uint8_t link[BCSI_LINK_SIZE];
    if (!link_of(tag, length, key_hash, link)) rc = ENOMEM;
    else rc = add ? bcsi_link_put(txn, store->index.tags, link) : bcsi_link_remove(txn, store->index.tags, link);
  }
  free(copy);
  return rc;
}

uint64_t bcsi_tags_count(const bcs_record *record) {
  const uint8_t *tag;
  size_t at = 0, length;
  uint64_t count = 0;
  while (next_tag(record->tags, record->tags_count, &at, &tag, &length)) count++;
  return count;
}

/* How many of a record's tags have no row; with `repair` they get one. */
int bcsi_tags_check(bcs_store *store, MDB_txn *txn, const bcs_record *record, bool repair, uint64_t *wrong) {
  const uint8_t *tag;
  size_t at = 0, length;
  uint64_t missing = 0;
  int rc = 0;
  while (rc == 0 && next_tag(record->tags, record->tags_count, &at, &tag, &length)) {
    uint8_t link[BCSI_LINK_SIZE];
    if (!link_of(tag, length, record->key_hash, link)) rc = ENOMEM;
    else if (!bcsi_link_exists(txn, store->index.tags, link, &rc)) missing++;
  }
  *wrong += missing;
  if (rc == 0 && missing > 0 && repair)
    rc = bcsi_tags_note(store, txn, record->tags, record->tags_count, record->key_hash, true);
  return rc;
}

bcs_status bcs_list_tagged(bcs_store *store, const void *tag, size_t tag_count, uint8_t cursor[BCS_HASH_SIZE],
                           size_t limit, bcs_found found, void *context, bool *done) {
  enum { ROWS_AT_ONCE = 4096 };
  uint8_t hash[BCS_HASH_SIZE];
  *done = false;
  bcs_status status = bcs_check_place(store);
  if (status == BCS_OK) status = bcsi_key_hash(tag, tag_count, hash);
  bcsi_reader *reader;
  if (status == BCS_OK) status = bcsi_reader_enter(store, &reader);
  if (status != BCS_OK) return status;
  MDB_cursor *rows;
  int rc = mdb_cursor_open(reader->txn, store->index.tags, &rows);
  if (rc != 0) {
    bcsi_reader_leave(reader);
    return bcsi_fail_lmdb(rc, "list", store->index.path);
  }
  const uint8_t *key_hash;
  rc = bcsi_link_find(rows, hash, cursor, &key_hash);
  if (rc == 0 && memcmp(key_hash, cursor, BCS_HASH_SIZE) == 0) rc = bcsi_link_next(rows, hash, &key_hash);
  size_t given = 0;
  for (int looked = 0; rc == 0 && given < limit && looked < ROWS_AT_ONCE; looked++) {
    MDB_val name = {BCS_HASH_SIZE, cursor}, row;
    bcsi_record record;
    memcpy(cursor, key_hash, BCS_HASH_SIZE);
    rc = mdb_get(reader->txn, store->index.entries, &name, &row);
    if (rc != 0 && rc != MDB_NOTFOUND) break; /* a removal must not pass over it */
    if (rc == 0 && bcsi_record_decode(row.mv_data, row.mv_size, &record) &&
        bcsi_has_tag(&record.view, tag, tag_count)) {
      memcpy(record.view.key_hash, cursor, BCS_HASH_SIZE);
      bcsi_slots_read_access(store, &record.view);
      found(context, &record.view, NULL);
      given++;
    }
    rc = bcsi_link_next(rows, hash, &key_hash);
  }
  *done = rc == MDB_NOTFOUND;
  mdb_cursor_close(rows);
  bcsi_reader_leave(reader);
  return rc == 0 || rc == MDB_NOTFOUND ? BCS_OK : bcsi_fail_lmdb(rc, "list", store->index.path);
}
