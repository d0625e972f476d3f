#include "CBaseline.h"

#include <errno.h>
#include <lmdb.h>
#include <stdlib.h>
#include <string.h>

struct cb_lmdb {
  MDB_env *env;
  MDB_dbi dbi;
  MDB_txn *reader; /* reset between uses */
};

int cb_lmdb_open(const char *folder, size_t map_size, cb_lmdb **out) {
  cb_lmdb *peer = calloc(1, sizeof *peer);
  if (!peer) return ENOMEM;
  MDB_txn *txn = NULL;
  int rc = mdb_env_create(&peer->env);
  if (!rc) rc = mdb_env_set_mapsize(peer->env, map_size);
  if (!rc) rc = mdb_env_open(peer->env, folder, MDB_NOTLS | MDB_NOSYNC | MDB_NORDAHEAD, 0600);
  if (!rc) rc = mdb_txn_begin(peer->env, NULL, 0, &txn);
  if (!rc) rc = mdb_dbi_open(txn, NULL, 0, &peer->dbi);
  if (!rc) rc = mdb_txn_commit(txn);
  if (!rc) rc = mdb_txn_begin(peer->env, NULL, MDB_RDONLY, &peer->reader);
  if (rc) {
    cb_lmdb_close(peer);
    return rc;
  }
  mdb_txn_reset(peer->reader);
  *out = peer;
  return 0;
}

void cb_lmdb_close(cb_lmdb *peer) {
  if (peer->reader) mdb_txn_abort(peer->reader);
  if (peer->env) mdb_env_close(peer->env);
  free(peer);
}

static MDB_val key_at(cb_keys keys, size_t i) {
  const char *key = keys.first + i * keys.key_stride;
  return (MDB_val){strlen(key), (void *)(uintptr_t)key};
}

int cb_lmdb_put(cb_lmdb *peer, cb_keys keys, const uint8_t *bodies, size_t body_size, size_t batch) {
  for (size_t i = 0; i < keys.count;) {
    MDB_txn *txn;
    int rc = mdb_txn_begin(peer->env, NULL, 0, &txn);
    if (rc) return rc;
    for (size_t end = i + batch < keys.count ? i + batch : keys.count; i < end; i++) {
      MDB_val key = key_at(keys, i);
      MDB_val value = {body_size, (void *)(uintptr_t)(bodies + i * body_size)};
      if ((rc = mdb_put(txn, peer->dbi, &key, &value, 0))) {
        mdb_txn_abort(txn);
        return rc;
      }
    }
    if ((rc = mdb_txn_commit(txn))) return rc;
  }
  return 0;
}

int cb_lmdb_get(cb_lmdb *peer, cb_keys keys, uint64_t *sum, size_t *found) {
  uint64_t total = 0;
  size_t hits = 0;
  for (size_t i = 0; i < keys.count; i++) {
    MDB_val key = key_at(keys, i), value;
    int rc = mdb_txn_renew(peer->reader);
    if (rc) return rc;
    rc = mdb_get(peer->reader, peer->dbi, &key, &value);
    if (!rc) {
      total += cb_sum(value.mv_data, value.mv_size);
      hits++;
    }
    mdb_txn_reset(peer->reader);
    if (rc && rc != MDB_NOTFOUND) return rc;
  }
  *sum = total;
  *found = hits;
  return 0;
}
