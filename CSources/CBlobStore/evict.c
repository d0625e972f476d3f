/* Eviction: which entries make room when the directory is at a limit.
 *
 * A sample of random lines of the slot table is looked at, and the least valuable goes; there is no ordered list, and a
 * hit does no work for it. Gone (expired, and its stale window over) goes before expired, expired before fresh. The value
 * of an entry is how often it was read, over how long it has not been, over the room it takes:
 *
 *     (min(hits, 16) + c) / ((age + A) × bytes)
 *
 * where A, a tenth of the age at which entries have been evicted of late, keeps what was just stored from being the next
 * to go, and c (see ghosts.c) says how much age counts against reads. Where the limit is in entries, each takes the same
 * room. Pinned entries, and those that the batch itself wrote, are never taken. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Neighbouring lines cost a quarter of the cache misses, and are as random: lines are handed out in no order of use. */
enum { SAMPLE = 32, RUN = 8, LOOKS = 16 * SAMPLE, FEW = 4, HITS_COUNTED = 16 };

typedef enum rank { RANK_GONE, RANK_EXPIRED, RANK_FRESH } rank;

typedef struct candidate {
  bcs_record record;
  rank rank;
  double value;
} candidate;

static uint64_t next_random(bcs_store *store) { /* xorshift64*, Vigna 2016 */
  if (store->random == 0 && getrandom(&store->random, sizeof store->random, GRND_NONBLOCK) < 0) store->random = 1;
  if (store->random == 0) store->random = 1;
  uint64_t x = store->random;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  store->random = x;
  return x * UINT64_C(0x2545F4914F6CDD1D);
}

/* ---- the lines that the batch itself wrote: a set, made when the first eviction asks */

typedef struct line_set {
  uint32_t *cells; /* line + 1; 0: empty */
  size_t mask, next;
} line_set;

static void add_lines(line_set *set, const bcsi_batch *b) {
  for (; set->next < b->line_count; set->next++) {
    uint32_t line = b->lines[set->next];
    size_t at = (line * UINT32_C(2654435761)) & set->mask;
    while (set->cells[at] != 0) at = (at + 1) & set->mask;
    set->cells[at] = line + 1;
  }
}

static bool make_set(line_set *set, const bcsi_batch *b) {
  size_t size = 64;
  while (size < 2 * (b->line_count + b->evicted_capacity)) size *= 2;
  set->mask = size - 1;
  set->next = 0;
  set->cells = calloc(size, sizeof *set->cells);
  if (set->cells) add_lines(set, b);
  return set->cells != NULL;
}

static bool has_line(const line_set *set, uint32_t line) {
  for (size_t at = (line * UINT32_C(2654435761)) & set->mask; set->cells[at] != 0; at = (at + 1) & set->mask)
    if (set->cells[at] == line + 1) return true;
  return false;
}

/* ---- choosing */

typedef enum excess { WITHIN, TOO_MANY, TOO_LARGE, DISK_FULL } excess;

typedef struct rule {
  excess over;
  double floor_ms, weight;
} rule;

static void judge(const bcsi_batch *b, const rule *r, candidate *c) {
  const bcs_record *record = &c->record;
  c->rank = b->now_ms >= bcs_gone_ms(record)   ? RANK_GONE
            : bcs_is_expired(record, b->now_ms) ? RANK_EXPIRED
                                                : RANK_FRESH;
  double age = record->access_ms < b->now_ms ? (double)(b->now_ms - record->access_ms) : 0;
  double hits = record->hits < HITS_COUNTED ? record->hits : HITS_COUNTED;
  double bytes = r->over == TOO_MANY ? 1 : (double)bcsi_entry_bytes(record);
  c->value = (hits + r->weight) / ((age + r->floor_ms) * bytes);
}

typedef struct sample {
  bcsi_batch *batch;
  const line_set *own;
  const rule *rule;
  candidate worst;
  int seen;
} sample;

/* On a full disk only bodies in files count: they give space back to the file system. */
static void look_at(sample *s, uint32_t line) {
  bcs_store *store = s->batch->store;
  candidate c;
  if (!bcsi_slots_has(store, line) || has_line(s->own, line) || !bcsi_slots_record(store, line, &c.record)) return;
  if (c.record.pinned || (s->rule->over == DISK_FULL && !c.record.is_file)) return;
  judge(s->batch, s->rule, &c);
  candidate *worst = &s->worst;
  if (s->seen++ == 0 || c.rank < worst->rank || (c.rank == worst->rank && c.value < worst->value)) *worst = c;
}

/* The worst of a sample. Where random lines are hardly ever taken (most are free, or pinned), a hand goes on from where it
 * stood and takes the next few: it costs as many lines as lie between two that may go, and misses none. *round: how far
 * the hand has come since something was evicted; once around means that there is nothing. */
static bool choose(sample *s, uint64_t *round) {
  bcs_store *store = s->batch->store;
  uint64_t used = s->batch->totals.slots_used;
  s->seen = 0;
  if (used == 0) return false;
  for (int looks = 0; looks < LOOKS && s->seen < SAMPLE;) {
    uint64_t from = next_random(store) % used;
    for (int i = 0; i < RUN; i++, looks++) look_at(s, (uint32_t)((from + (uint64_t)i) % used));
  }
  /* A store goes some way only, and leaves the rest of the round to the next one. */
  uint64_t way = s->batch->is_lenient ? 32768 : used;
  for (; s->seen < FEW && *round < used && way > 0; ++*round, way--) look_at(s, (uint32_t)(store->hand++ % used));
  return s->seen > 0;
}

/* ---- evicting */

/* A line that proposed in vain would do so again and again, and a few of them keep everything else from making room. The
 * batch's own lines are never proposed, so the index says what this one should have said: the rest of an entry that it
 * has, or nothing. */
static void put_right(bcs_store *store, const candidate *c, const bcsi_record *record) {
  uint32_t line = c->record.slot;
  if (record) bcsi_slots_fill(store, &record->view, c->record.access_ms, c->record.hits);
  else bcsi_slots_empty(store, line, (bcsi_slots_generation(store, line) | 1) + 1);
}

static int evict_one(bcsi_batch *b, const candidate *c, bool *evicted) {
  bcs_store *store = b->store;
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)c->record.key_hash}, value;
  bcsi_record record;
  *evicted = false;
  int rc = mdb_get(b->txn, store->index.entries, &key, &value);
  if (rc != 0 && rc != MDB_NOTFOUND) return rc;
  /* The line only proposes: the record says whether it is this entry's, and whether it is pinned. */
  bool is_its = rc == 0 && bcsi_record_decode(value.mv_data, value.mv_size, &record) && record.view.slot == c->record.slot;
  if (is_its) memcpy(record.view.key_hash, c->record.key_hash, BCS_HASH_SIZE);
  if (!is_its || record.view.pinned) {
    put_right(store, c, is_its ? &record : NULL);
    return 0;
  }
  uint64_t base = record.view.generation, now = bcsi_slots_generation(store, record.view.slot);
  if (now > base) base = now;
  rc = bcsi_delete_entry(b, c->record.key_hash, &record);
  if (rc != 0) return rc;
  (void)bcsi_fault("evict");
  if (!c->record.is_file) b->evicted_inline += bcsi_entry_bytes(&c->record);
  bcsi_evicted *gone = &b->evicted[b->evicted_count++];
  gone->line = c->record.slot;
  gone->new_generation = (base | 1) + 3;
  gone->hits = c->record.hits;
  memcpy(gone->key_hash, c->record.key_hash, BCS_HASH_SIZE);
  gone->age_ms = b->now_ms > c->record.access_ms ? b->now_ms - c->record.access_ms : 0;
  b->lines[b->line_count++] = gone->line;
  b->freed[b->freed_count++] = gone->line;
  *evicted = true;
  return 0;
}

bool bcsi_wants_trash_gone(const bcsi_batch *b) {
  uint64_t used = bcsi_used_bytes(b->store, &b->totals, bcsi_slots_live(b->store)) + b->totals.trash_allocated;
  return (b->limits.bytes > 0 && used > b->limits.bytes) || bcsi_disk_lacks(b->store, b->limits.minimum_free, 0);
}

/* What is in the trash is as good as gone: the next batch unlinks it. */
static excess look_at_limits(bcsi_batch *b) {
  const bcs_limits *limits = &b->limits;
  if (limits->entries > 0 && b->totals.entries > limits->entries) return TOO_MANY;
  if (limits->bytes > 0) {
    /* A page is given back only when its last record goes. What was evicted and has not emptied one yet will make room
     * for the next records; taking more until pages fall takes thirty times what is needed, now and then. So a store
     * leaves the last pages to the next one. */
    enum { LENIENCE = 64 * 1024 };
    uint64_t live = bcsi_index_live(b->store, b->txn);
    uint64_t fallen = live < b->live_before ? b->live_before - live : 0;
    uint64_t credit = b->is_lenient && b->evicted_inline > fallen ? b->evicted_inline - fallen : 0;
    if (credit > LENIENCE) credit = LENIENCE;
    if (bcsi_used_bytes(b->store, &b->totals, live) > limits->bytes + b->published_staged + credit) return TOO_LARGE;
  }
  bool lacks = b->totals.blob_files > 0 && bcsi_disk_lacks(b->store, limits->minimum_free, b->totals.trash_allocated);
  return lacks ? DISK_FULL : WITHIN;
}

int bcsi_evict(bcsi_batch *b) {
  enum { IN_VAIN = 64 };
  line_set own = {0};
  uint64_t round = 0;
  int rc = 0;
  b->evicted_inline = 0;
  b->live_before = bcsi_index_live(b->store, b->txn);
  rule r = {WITHIN, bcsi_eviction_age_ms(b->store) / 10 + 1, bcsi_eviction_weight(b->store)};
  for (int vain = 0; rc == 0 && vain < IN_VAIN && b->evicted_count < b->evicted_capacity;) {
    r.over = look_at_limits(b);
    if (r.over == WITHIN) break;
    if (!own.cells && !make_set(&own, b)) return ENOMEM;
    sample s = {.batch = b, .own = &own, .rule = &r};
    if (!choose(&s, &round)) break;
    bool evicted;
    rc = evict_one(b, &s.worst, &evicted);
    if (evicted) round = 0;
    else vain++;
    add_lines(&own, b);
  }
  free(own.cells);
  b->is_over = rc == 0 && look_at_limits(b) != WITHIN;
  return rc;
}

/* After the commit: what was only planned must not be remembered. */
void bcsi_evict_done(bcsi_batch *b) {
  if (b->evicted_count == 0) return;
  bcsi_ghosts_fit(b->store, b->totals.entries);
  for (size_t i = 0; i < b->evicted_count; i++)
    bcsi_ghost_add(b->store, b->evicted[i].key_hash, b->evicted[i].hits, b->evicted[i].age_ms);
  bcsi_slots_count_evicted(b->store, b->evicted_count);
}
