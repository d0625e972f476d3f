/* Links: the rows of `digests` and `tags`, which lead from a hash to the entries that have it.
 *
 *   hash (16 bytes), key hash of the entry (16) → nothing
 *
 * They are keys of their own and not duplicates of one key, which would be smaller: LMDB does not tell how many pages the
 * duplicates take, and the limit in bytes is kept by what it tells. */
#include "internal.h"

#include <string.h>

const uint8_t bcsi_first_hash[BCS_HASH_SIZE];

void bcsi_link_make(const uint8_t hash[BCS_HASH_SIZE], const uint8_t key_hash[BCS_HASH_SIZE],
                    uint8_t out[BCSI_LINK_SIZE]) {
  memcpy(out, hash, BCS_HASH_SIZE);
  memcpy(out + BCS_HASH_SIZE, key_hash, BCS_HASH_SIZE);
}

int bcsi_link_put(MDB_txn *txn, MDB_dbi tree, const uint8_t link[BCSI_LINK_SIZE]) {
  MDB_val key = {BCSI_LINK_SIZE, (void *)(uintptr_t)link}, nothing = {0, ""};
  int rc = mdb_put(txn, tree, &key, &nothing, MDB_NOOVERWRITE); /* dirties no page when it is there */
  return rc == MDB_KEYEXIST ? 0 : rc;
}

int bcsi_link_remove(MDB_txn *txn, MDB_dbi tree, const uint8_t link[BCSI_LINK_SIZE]) {
  MDB_val key = {BCSI_LINK_SIZE, (void *)(uintptr_t)link};
  int rc = mdb_del(txn, tree, &key, NULL);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

bool bcsi_link_exists(MDB_txn *txn, MDB_dbi tree, const uint8_t link[BCSI_LINK_SIZE], int *rc) {
  MDB_val key = {BCSI_LINK_SIZE, (void *)(uintptr_t)link}, nothing;
  *rc = mdb_get(txn, tree, &key, &nothing);
  bool exists = *rc == 0;
  if (*rc == MDB_NOTFOUND) *rc = 0;
  return exists;
}

/* From the row that the cursor found to the next that is a link of the hash. */
static int follow(MDB_cursor *cursor, int rc, MDB_val key, const uint8_t *hash, const uint8_t **key_hash) {
  MDB_val nothing;
  for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &nothing, MDB_NEXT)) {
    if (key.mv_size < BCS_HASH_SIZE || memcmp(key.mv_data, hash, BCS_HASH_SIZE) != 0) return MDB_NOTFOUND;
    if (key.mv_size == BCSI_LINK_SIZE) break;
  }
  if (rc == 0) *key_hash = (const uint8_t *)key.mv_data + BCS_HASH_SIZE;
  return rc;
}

int bcsi_link_find(MDB_cursor *cursor, const uint8_t hash[BCS_HASH_SIZE], const uint8_t from[BCS_HASH_SIZE],
                   const uint8_t **key_hash) {
  uint8_t link[BCSI_LINK_SIZE];
  bcsi_link_make(hash, from, link);
  MDB_val key = {sizeof link, link}, nothing;
  int rc = mdb_cursor_get(cursor, &key, &nothing, MDB_SET_RANGE);
  return follow(cursor, rc, key, hash, key_hash);
}

int bcsi_link_next(MDB_cursor *cursor, const uint8_t hash[BCS_HASH_SIZE], const uint8_t **key_hash) {
  MDB_val key, nothing;
  int rc = mdb_cursor_get(cursor, &key, &nothing, MDB_NEXT);
  return follow(cursor, rc, key, hash, key_hash);
}
