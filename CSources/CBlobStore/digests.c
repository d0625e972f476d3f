/* From content to entries: which key hashes have a body with this digest.
 *
 * Rows of a tree in the order of digests lie anywhere: each store would dirty a leaf and a branch of its own, a third
 * of all pages that a batch of small stores writes. So a change is appended to `recent`, where a whole batch lies in a
 * page or two, and some thousands of changes at a time are sorted and merged into `digests`: several of them meet in
 * one leaf then. `recent` is short enough to be searched from end to end.
 *
 *   recent   8 bytes, sequence number, big-endian → digest (first 16 bytes), key hash (16), 1 added or 0 removed
 *   digests  digest (first 16 bytes), key hash (16) → nothing
 *
 * A row only leads to an entry; the entry's record tells whether it has that digest. So a row too many costs a look,
 * and the two trees need no order between them. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MERGE_AT = 2048, RECENT_SIZE = BCSI_LINK_SIZE + 1 };

/* The totals are damaged: no store would succeed any more. */
static int behind_the_last(bcs_store *store, MDB_txn *txn, uint64_t *next) {
  MDB_cursor *cursor;
  MDB_val key, value;
  uint64_t last = 0;
  int rc = mdb_cursor_open(txn, store->index.recent, &cursor);
  if (rc != 0) return rc;
  rc = mdb_cursor_get(cursor, &key, &value, MDB_LAST);
  if (rc == 0 && key.mv_size == sizeof last) memcpy(&last, key.mv_data, sizeof last);
  mdb_cursor_close(cursor);
  *next = __builtin_bswap64(last) + 1;
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int bcsi_digest_note(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, const uint8_t *digest,
                     const uint8_t *key_hash, bool add) {
  uint64_t sequence = __builtin_bswap64(totals->recent_next);
  uint8_t row[RECENT_SIZE];
  bcsi_link_make(digest, key_hash, row);
  row[BCSI_LINK_SIZE] = add ? 1 : 0;
  MDB_val key = {sizeof sequence, &sequence}, value = {sizeof row, row};
  int rc = mdb_put(txn, store->index.recent, &key, &value, MDB_APPEND);
  if (rc == MDB_KEYEXIST && (rc = behind_the_last(store, txn, &totals->recent_next)) == 0) {
    sequence = __builtin_bswap64(totals->recent_next);
    rc = mdb_put(txn, store->index.recent, &key, &value, MDB_APPEND);
  }
  if (rc == 0) {
    totals->recent_next++;
    totals->recent_count++;
  }
  return rc;
}

static int by_pair(const void *a, const void *b) {
  const bcsi_pair *x = a, *y = b;
  int order = memcmp(x->link, y->link, sizeof x->link);
  if (order == 0) order = x->order < y->order ? -1 : 1;
  return order;
}

/* The pairs of `recent` in order, each with its last change. The caller frees them. */
int bcsi_digest_recent(bcs_store *store, MDB_txn *txn, bcsi_pair **out, size_t *count) {
  MDB_stat stat_of;
  MDB_cursor *cursor;
  *out = NULL;
  *count = 0;
  int rc = mdb_stat(txn, store->index.recent, &stat_of);
  if (rc != 0 || stat_of.ms_entries == 0) return rc;
  bcsi_pair *pairs = malloc(stat_of.ms_entries * sizeof *pairs);
  if (!pairs) return ENOMEM;
  rc = mdb_cursor_open(txn, store->index.recent, &cursor);
  if (rc != 0) {
    free(pairs);
    return rc;
  }
  size_t read = 0;
  MDB_val key, value;
  while (read < stat_of.ms_entries && (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    if (value.mv_size != RECENT_SIZE) continue;
    const uint8_t *row = value.mv_data;
    bcsi_pair *pair = &pairs[read];
    memcpy(pair->link, row, BCSI_LINK_SIZE);
    pair->add = row[BCSI_LINK_SIZE] != 0;
    pair->order = read++;
  }
  mdb_cursor_close(cursor);
  if (rc != 0 && rc != MDB_NOTFOUND) {
    free(pairs);
    return rc;
  }
  qsort(pairs, read, sizeof *pairs, by_pair);
  size_t kept = 0;
  for (size_t i = 0; i < read; i++) {
    bool last = i + 1 == read || memcmp(pairs[i].link, pairs[i + 1].link, BCSI_LINK_SIZE) != 0;
    if (last) pairs[kept++] = pairs[i];
  }
  *out = pairs;
  *count = kept;
  return 0;
}

int bcsi_digest_merge(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, bool force) {
  if (!force && totals->recent_count < MERGE_AT) return 0;
  bcsi_pair *pairs;
  size_t count;
  int rc = bcsi_digest_recent(store, txn, &pairs, &count);
  for (size_t i = 0; rc == 0 && i < count; i++)
    rc = pairs[i].add ? bcsi_link_put(txn, store->index.digests, pairs[i].link)
                      : bcsi_link_remove(txn, store->index.digests, pairs[i].link);
  free(pairs);
  if (rc == 0) rc = mdb_drop(txn, store->index.recent, 0);
  if (rc == 0) totals->recent_count = 0;
  return rc;
}

int bcsi_digest_each(bcs_store *store, MDB_txn *txn, const uint8_t *digest, bcsi_digest_found found, void *context) {
  MDB_cursor *cursor;
  MDB_val key, value;
  const uint8_t *key_hash;
  bool enough = false;
  int rc = mdb_cursor_open(txn, store->index.digests, &cursor);
  if (rc != 0) return rc;
  for (rc = bcsi_link_find(cursor, digest, bcsi_first_hash, &key_hash); rc == 0 && !enough;
       rc = bcsi_link_next(cursor, digest, &key_hash))
    enough = found(context, key_hash);
  mdb_cursor_close(cursor);
  if (rc != 0 && rc != MDB_NOTFOUND) return rc;
  if (enough) return 0;
  rc = mdb_cursor_open(txn, store->index.recent, &cursor);
  if (rc != 0) return rc;
  while (!enough && (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0)
    if (value.mv_size == RECENT_SIZE && memcmp(value.mv_data, digest, BCS_HASH_SIZE) == 0)
      enough = found(context, (const uint8_t *)value.mv_data + BCS_HASH_SIZE);
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}
