/* Lookups: a reader, one search, the slot, the body. No lock of a writer, no write transaction, nothing written but a
 * slot's access word and counters. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RETRIES = 4, PAGE = 4096, BCSI_LOOKUP_VERIFY = 1 << 16 /* whatever the setting, whatever was before */ };

/* ---- what was verified: a mark for each line, of this process and since it opened the store. A mark is the record's
 * generation and, for a file, what stat says of it: a file that was touched from outside is verified again. */

static uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + UINT64_C(0x9E3779B97F4A7C15) + (h << 6) + (h >> 2);
  return h * UINT64_C(0xBF58476D1CE4E5B9);
}

uint32_t bcsi_mark_of(const bcs_record *record, const bcsi_identity *file) {
  uint64_t h = mix(0, record->generation);
  if (file) h = mix(mix(mix(h, file->inode), (uint64_t)file->change_ns), file->device);
  return (uint32_t)(h >> 32) | 1;
}

static bool is_marked(bcs_store *store, const bcs_record *record, uint32_t mark) {
  if (store->options.verification == BCS_VERIFY_NEVER) return true;
  if (store->options.verification == BCS_VERIFY_ALWAYS || record->slot >= BCSI_MAX_LINES) return false;
  return atomic_load_explicit(&store->marks[record->slot], memory_order_relaxed) == mark;
}

/* A change in the same tick of the file system's clock as the last one leaves ctime as it is (Linux before 6.13), so
 * what was verified within some ticks of that change may be changed once more without a trace: no mark is set then, and
 * the next lookup verifies again (git's index calls such a file "racily clean"). ctime is taken from the coarse clock. */
static bool is_settled(const bcsi_identity *file) {
  enum { SETTLED_NS = 50 * 1000 * 1000 }; /* five ticks of the slowest clock, HZ=100 */
  struct timespec now;
#ifdef CLOCK_REALTIME_COARSE
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
#else
  clock_gettime(CLOCK_REALTIME, &now);
#endif
  int64_t age = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - file->change_ns;
  return age > SETTLED_NS || age < -SETTLED_NS; /* far ahead: the clock was set back, which no write repeats */
}

/* Whether the file behind `fd` changed while it was read. */
static bool is_unchanged(int fd, const bcsi_identity *before) {
  struct stat st;
  bcsi_identity now;
  if (fstat(fd, &st) != 0) return false;
  bcsi_identify(&st, &now);
  return now.change_ns == before->change_ns && now.size == before->size;
}

static void set_mark(bcs_store *store, const bcs_record *record, uint32_t mark) {
  if (record->slot < BCSI_MAX_LINES)
    atomic_store_explicit(&store->marks[record->slot], mark, memory_order_relaxed);
}

static void tell_damage(bcs_damage *damage, const bcs_record *record, const struct stat *st) {
  memset(damage, 0, sizeof *damage);
  memcpy(damage->key_hash, record->key_hash, BCS_HASH_SIZE);
  memcpy(damage->digest, record->digest, BCS_DIGEST_SIZE);
  damage->generation = record->generation;
  damage->is_file = record->is_file;
  if (st) {
    bcsi_identity identity;
    bcsi_identify(st, &identity);
    damage->device = identity.device;
    damage->inode = identity.inode;
    damage->change_ns = identity.change_ns;
  }
}

static bool has_digest(const void *bytes, size_t count, const uint8_t digest[BCS_DIGEST_SIZE]) {
  uint8_t found[BCS_DIGEST_SIZE];
  return bcs_digest(bytes, count, found) == BCS_OK && memcmp(found, digest, BCS_DIGEST_SIZE) == 0;
}

/* ---- counting: the reader's own words, and the stripe that other processes see */

static void count_access(bcs_store *store, bcsi_reader *reader, bool hit) {
  _Atomic uint64_t *own = hit ? &reader->hits : &reader->misses;
  atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) + 1, memory_order_relaxed);
  _Atomic uint64_t *stripe = bcsi_slots_stripe(store, store->stripe_base + (unsigned)(reader - store->index.readers));
  if (stripe) atomic_fetch_add_explicit(stripe + (hit ? 0 : 1), 1, memory_order_relaxed);
}

/* ---- bodies */

/* An inline body, inside the read transaction. */
static bcs_status give_inline(bcs_store *store, bcsi_record *record, uint32_t flags, bcs_damage *damage,
                              bcs_body *body) {
  uint32_t mark = bcsi_mark_of(&record->view, NULL);
  if (!is_marked(store, &record->view, mark)) {
    if ((flags & BCS_LOOKUP_QUICK) && record->view.size > BCSI_QUICK_MAX) return BCS_WOULD_BLOCK;
    if (record->view.size > PAGE) { /* not read before: the pages come in one request, not one by one */
      uintptr_t from = (uintptr_t)record->body & ~(uintptr_t)(PAGE - 1);
      (void)madvise((void *)from, (size_t)((uintptr_t)record->body + record->view.size - from), MADV_WILLNEED);
    }
    if (!bcsi_record_sealed(record) || !has_digest(record->body, (size_t)record->view.size, record->view.digest)) {
      tell_damage(damage, &record->view, NULL);
      return BCS_DAMAGED;
    }
    set_mark(store, &record->view, mark);
  }
  memset(body, 0, sizeof *body);
  body->bytes = record->body;
  body->count = (size_t)record->view.size;
  return BCS_OK;
}

/* A file's body, outside of any transaction: `record` is a copy. BCS_MISS: there is no file. */
static bcs_status give_file(bcs_store *store, bcsi_record *record, uint32_t flags, bcs_damage *damage,
                            bcs_body *body) {
  int fd;
  struct stat st;
  bcs_status status = bcsi_blob_open(store, record->view.digest, &fd, &st);
  if (status == BCS_DAMAGED || status == BCS_MISS) tell_damage(damage, &record->view, NULL);
  if (status != BCS_OK) return status;
  bcsi_identity identity;
  bcsi_identify(&st, &identity);
  uint32_t mark = bcsi_mark_of(&record->view, &identity);
  bool marked = !(flags & BCSI_LOOKUP_VERIFY) && is_marked(store, &record->view, mark);
  if ((uint64_t)st.st_size != record->view.size) {
    tell_damage(damage, &record->view, &st);
    status = BCS_DAMAGED;
  } else if (!marked && (flags & BCS_LOOKUP_QUICK) && record->view.size > BCSI_QUICK_MAX) {
    status = BCS_WOULD_BLOCK;
  } else {
    char shown[4300];
    bcsi_blob_shown(store, record->view.digest, shown, sizeof shown);
    status = bcsi_blob_read(fd, record->view.size, !store->options.copies_bodies, shown, body);
    if (status == BCS_DAMAGED) tell_damage(damage, &record->view, &st);
    if (status == BCS_OK) {
      body->device = identity.device;
      body->inode = identity.inode;
      /* The time of a write stands in the inode before its bytes stand in the page cache: a read that met bytes of a
       * write finds another time after it. A mapping can only be taken as it is. */
      if (marked && !body->mapped && !is_unchanged(fd, &identity)) marked = false;
      if (!marked) {
        if (!bcsi_record_sealed(record) || !has_digest(body->bytes, body->count, record->view.digest)) {
          bcs_release_body(body);
          tell_damage(damage, &record->view, &st);
          status = BCS_DAMAGED;
        } else if (is_settled(&identity)) {
          set_mark(store, &record->view, mark);
        }
      }
    }
  }
  close(fd);
  return status;
}

/* ---- the search */

typedef struct search {
  bcs_store *store;
  const uint8_t *key_hash;
  const void *key; /* NULL: whatever key has this hash, if it has this digest */
  size_t key_count;
  const uint8_t *digest; /* NULL: any */
  int64_t now_ms;
  uint32_t flags;
  bcs_found found;
  void *context;
  bcs_damage *damage;
} search;

static int get(bcs_store *store, MDB_txn *txn, const uint8_t *key_hash, MDB_val *value) {
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash};
  return mdb_get(txn, store->index.entries, &key, value);
}

/* Ends the transaction before the file is opened, so the record is copied; small ones into `small`. */
static bcs_status give_copy(search *s, bcsi_reader *reader, const MDB_val *value, bcsi_record *record, bool *miss) {
  uint8_t small[2048], *copy = small;
  if (value->mv_size > sizeof small && !(copy = malloc(value->mv_size))) {
    bcsi_reader_leave(reader);
    return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "read", s->store->info.path, NULL);
  }
  int64_t access = record->view.access_ms;
  uint32_t hits = record->view.hits;
  uint64_t epoch = record->view.epoch;
  memcpy(copy, value->mv_data, value->mv_size);
  bcsi_record_decode(copy, value->mv_size, record);
  record->view.access_ms = access;
  record->view.hits = hits;
  record->view.epoch = epoch;
  bcsi_reader_leave(reader);
  bcs_body body = {0};
  bcs_status status = give_file(s->store, record, s->flags, s->damage, &body);
  *miss = status == BCS_MISS;
  if (status == BCS_OK) {
    s->found(s->context, &record->view, &body);
    bcs_release_body(&body);
  }
  if (copy != small) free(copy);
  return status;
}

/* What a hit is about to read lies in memory that nobody has touched lately: the record, the line, the mark. Asked for
 * together, they arrive in about the time of one. */
static void expect(search *s, const MDB_val *value, const bcsi_record *record) {
  enum { LINE = 64, LINES = 16 };
  const uint8_t *at = value->mv_data, *end = at + value->mv_size;
  bcsi_slots_expect(s->store, record->view.slot);
  if (record->view.slot < BCSI_MAX_LINES) __builtin_prefetch((const void *)&s->store->marks[record->view.slot]);
  if (s->flags & BCS_LOOKUP_METADATA) return;
  at += 2 * LINE;
  for (int i = 0; i < LINES && at < end; i++, at += LINE) __builtin_prefetch(at);
}

/* One look. *again: the file was gone, which an eviction in between explains; look again. */
static bcs_status look(search *s, bool *again) {
  bcs_store *store = s->store;
  bcsi_reader *reader;
  *again = false;
  bcs_status status = bcsi_reader_enter(store, &reader);
  if (status != BCS_OK) return status;
  MDB_val value;
  bcsi_record record;
  int rc = get(store, reader->txn, s->key_hash, &value);
  bool touch = (s->flags & BCS_LOOKUP_TOUCH) != 0;
  status = BCS_MISS;
  if (rc == 0) {
    __builtin_prefetch((const uint8_t *)value.mv_data + 64);
    if (!bcsi_record_decode(value.mv_data, value.mv_size, &record)) {
      memset(s->damage, 0, sizeof *s->damage);
      memcpy(s->damage->key_hash, s->key_hash, BCS_HASH_SIZE);
      status = BCS_DAMAGED;
    } else if (s->digest && memcmp(record.view.digest, s->digest, BCS_DIGEST_SIZE) != 0) {
      status = BCS_MISS; /* replaced since it was found under this digest */
    } else if (!s->key || (record.view.key_count == s->key_count &&
                           (s->key_count == 0 || memcmp(record.view.key, s->key, s->key_count) == 0))) {
      status = BCS_OK;
    }
  } else if (rc != MDB_NOTFOUND) {
    status = bcsi_fail_lmdb(rc, "read", store->index.path);
  }
  if (status == BCS_OK) {
    expect(s, &value, &record);
    memcpy(record.view.key_hash, s->key_hash, BCS_HASH_SIZE);
    record.view.epoch = reader->epoch;
    bcsi_slots_read_access(store, &record.view);
    if ((s->flags & BCS_LOOKUP_FRESH_ONLY) && bcs_is_expired(&record.view, s->now_ms)) status = BCS_MISS;
  }
  if (status != BCS_OK) {
    if (touch) count_access(store, reader, false);
    bcsi_reader_leave(reader);
    return status;
  }
  if (s->flags & BCS_LOOKUP_METADATA) {
    s->found(s->context, &record.view, NULL);
    bcsi_reader_leave(reader);
    return BCS_OK;
  }
  bool expired = touch && bcs_is_expired(&record.view, s->now_ms);
  if (record.view.is_file) {
    bool miss;
    /* The reader is given up before the file is read; the call keeps the store from being shut under it. */
    status = bcsi_call_enter(store);
    if (status != BCS_OK) {
      bcsi_reader_leave(reader);
      return status;
    }
    status = give_copy(s, reader, &value, &record, &miss);
    *again = miss;
    /* The reader is somebody else's by now: its counters are only ever added to, and a lost count does no harm. */
    if (touch && (status == BCS_OK || status == BCS_DAMAGED)) count_access(store, reader, status == BCS_OK);
    if (touch && status == BCS_OK && !expired) bcsi_slots_touch(store, &record.view, s->now_ms);
    bcsi_call_leave(store);
    return status;
  }
  bcs_body body;
  status = give_inline(store, &record, s->flags, s->damage, &body);
  if (status == BCS_OK) {
    if (touch) {
      count_access(store, reader, true);
      if (!expired) bcsi_slots_touch(store, &record.view, s->now_ms);
    }
    s->found(s->context, &record.view, &body);
  } else if (touch && status == BCS_DAMAGED) {
    count_access(store, reader, false);
  }
  bcsi_reader_leave(reader);
  return status;
}

static bcs_status look_until_settled(search *s) {
  bool again;
  bcs_status status = BCS_MISS;
  for (int i = 0; i < RETRIES; i++) {
    status = look(s, &again);
    if (!again) return status;
  }
  return BCS_DAMAGED; /* the row stays and its file is not there: *damage names it */
}

static bcs_status check_forked(bcs_store *store) {
  if (store->fork_epoch == atomic_load_explicit(&bcsi_fork_epoch, memory_order_relaxed)) return BCS_OK;
  return bcsi_fail(BCS_FORKED, 0, "read", store->info.path, NULL);
}

bcs_status bcs_lookup(bcs_store *store, const void *key, size_t key_count, int64_t now_ms, uint32_t flags,
                      bcs_found found, void *context, bcs_damage *damage) {
  uint8_t hash[BCS_HASH_SIZE];
  bcs_status status = check_forked(store);
  if (status == BCS_OK) status = bcsi_key_hash(key, key_count, hash);
  if (status != BCS_OK) return status;
  search s = {store, hash, key ? key : "", key_count, NULL, now_ms, flags, found, context, damage};
  return look_until_settled(&s);
}

enum { CANDIDATES = 16 };

typedef struct by_digest {
  bcs_store *store;
  MDB_txn *txn;
  const uint8_t *digest;
  int64_t now_ms;
  uint32_t flags;
  uint8_t hashes[CANDIDATES][BCS_HASH_SIZE];
  int count;
} by_digest;

/* The first 16 bytes of the digest led here; the record tells the whole digest, and whether it is fresh. */
static bool is_candidate(void *context, const uint8_t *key_hash) {
  by_digest *d = context;
  MDB_val row;
  bcsi_record record;
  if (get(d->store, d->txn, key_hash, &row) != 0 || !bcsi_record_decode(row.mv_data, row.mv_size, &record) ||
      memcmp(record.view.digest, d->digest, BCS_DIGEST_SIZE) != 0)
    return false;
  bcsi_slots_read_access(d->store, &record.view);
  if ((d->flags & BCS_LOOKUP_FRESH_ONLY) && bcs_is_expired(&record.view, d->now_ms)) return false;
  memcpy(d->hashes[d->count++], key_hash, BCS_HASH_SIZE);
  return d->count == CANDIDATES;
}

static bcs_status look_by_digest(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], int64_t now_ms,
                                 uint32_t flags, bcs_found found, void *context, bcs_damage *damage, bool *changed) {
  bcsi_reader *reader;
  *changed = false;
  bcs_status status = bcsi_reader_enter(store, &reader);
  if (status != BCS_OK) return status;
  by_digest d = {.store = store, .txn = reader->txn, .digest = digest, .now_ms = now_ms, .flags = flags};
  int rc = bcsi_digest_each(store, reader->txn, digest, is_candidate, &d);
  if (d.count == 0 && (flags & BCS_LOOKUP_TOUCH)) count_access(store, reader, false);
  bcsi_reader_leave(reader);
  if (rc != 0) return bcsi_fail_lmdb(rc, "read", store->index.path);
  status = BCS_MISS;
  for (int i = 0; i < d.count; i++) {
    search s = {store, d.hashes[i], NULL, 0, digest, now_ms, flags, found, context, damage};
    status = look_until_settled(&s);
    if (status != BCS_MISS) return status;
  }
  *changed = d.count > 0;
  return status;
}

bcs_status bcs_lookup_digest(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], int64_t now_ms, uint32_t flags,
                             bcs_found found, void *context, bcs_damage *damage) {
  bcs_status status = check_forked(store);
  /* Candidates that were all replaced in between: the content may stand under another key by now. */
  bool changed = true;
  for (int i = 0; status == BCS_OK && changed && i < RETRIES; i++) {
    status = look_by_digest(store, digest, now_ms, flags, found, context, damage, &changed);
    if (status == BCS_MISS && changed && i + 1 < RETRIES) status = BCS_OK;
    else break;
  }
  return status;
}

static void ignore(void *context, const bcs_record *record, bcs_body *body) { (void)context, (void)record, (void)body; }

static bcs_status check_once(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], bcs_damage *damage, bool *again) {
  bcs_status status = check_forked(store);
  *again = false;
  if (status != BCS_OK) return status;
  bcsi_reader *reader;
  status = bcsi_reader_enter(store, &reader);
  if (status != BCS_OK) return status;
  MDB_val value;
  bcsi_record record;
  int rc = get(store, reader->txn, key_hash, &value);
  if (rc != 0) {
    bcsi_reader_leave(reader);
    return rc == MDB_NOTFOUND ? BCS_MISS : bcsi_fail_lmdb(rc, "read", store->index.path);
  }
  bool readable = bcsi_record_decode(value.mv_data, value.mv_size, &record);
  if (readable) {
    memcpy(record.view.key_hash, key_hash, BCS_HASH_SIZE);
    set_mark(store, &record.view, 0); /* so that it is verified now, whatever was before */
    if (record.view.is_file) {
      search s = {store, key_hash, NULL, 0, NULL, 0, BCSI_LOOKUP_VERIFY, ignore, NULL, damage};
      status = bcsi_call_enter(store);
      if (status != BCS_OK) {
        bcsi_reader_leave(reader);
        return status;
      }
      status = give_copy(&s, reader, &value, &record, again);
      bcsi_call_leave(store);
      return *again ? BCS_DAMAGED : status;
    }
  }
  if (!readable || !bcsi_record_sealed(&record) ||
      !has_digest(record.body, (size_t)record.view.size, record.view.digest)) {
    memset(damage, 0, sizeof *damage);
    memcpy(damage->key_hash, key_hash, BCS_HASH_SIZE);
    if (readable) tell_damage(damage, &record.view, NULL);
    status = BCS_DAMAGED;
  }
  bcsi_reader_leave(reader);
  return status;
}

/* As with lookups: a file that is gone may have been removed with its entry since the snapshot. */
bcs_status bcs_check(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], bcs_damage *damage) {
  bool again = true;
  bcs_status status = BCS_OK;
  for (int i = 0; again && i < RETRIES; i++) status = check_once(store, key_hash, damage, &again);
  return status;
}
