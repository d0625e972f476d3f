/* The memory tier: what lookups found, found again without the index, without a lock and without a copy.
 *
 * Coherence. An item is a record as one snapshot of the index showed it: its line, its generation G and the epoch of
 * removals E, which was read before that snapshot was taken. A hit is given only if the line says G and the head says E
 * at the time of the hit. Why promise 8 holds then, whatever any process does:
 *  1. A store, renewal or removal of the entry makes its line odd and larger than G before its commit, and even and
 *     larger still after it; the line never says G again. It comes back to G only where the change was not made: its
 *     writer died before the commit (the next writer reads the record, and that one says G), or the commit failed; then
 *     the epoch changes, in case that something of a failed commit is seen all the same.
 *  2. A removal of everything leaves lines as they are, and makes the epoch larger before its commit (odd) and after it
 *     (even). E was read before the snapshot: a removal that the snapshot does not show has ended after that, so the head
 *     no longer says E. Had E been read after the snapshot, a removal in between would be taken for one that it shows.
 *     The same is done when a record goes whose line cannot be known, since it is damaged.
 *  3. A line that is given to another entry goes on from its number, so it does not say G either.
 *  4. Order. Whoever learns that a store has returned synchronizes with it, its last writes to line and head come
 *     before that, and a word never shows an older value to a load that happens after a newer store (C11, 5.1.2.4,
 *     coherence; the file is one page cache for all processes). E is an acquire load, so the snapshot's loads stay
 *     behind it, and G is compared at the hit, not only when the item is taken in.
 *  5. A reader that saw a change in the index while its line was odd does not see the old item later: the line was odd
 *     before the commit. What is odd is never equal to G or E, which are even.
 * The table is made anew only by a process that is alone, so not while a tier stands on it.
 *
 * Lookups. A table of sets, each one cache line of five words: 16 bits of the hash, the item's address, one bit "hit
 * since the hand came by", which is set only where it is not. Beside each word stands the number of the entry's line:
 * what a hit needs next (the item with its key and bytes, and the line) is asked for together. A hit writes nothing that
 * two threads share, but that bit and, once a millisecond of the clock, the access time in the entry's line. It claims a
 * pin (a cache line that the thread returns to), which holds the era when it began.
 *
 * Changes take a mutex of a shard, by trying: who does not get it leaves things as they are. An item that is taken out
 * waits in its shard's limbo until no pin is as old as the era of its removal, and counts as memory of the tier until
 * then: the bounds hold at every moment. Words of sets, the era and pins are sequentially consistent: either the
 * scan of the pins sees a reader's claim, or that reader sees that the item is out.
 *
 * What goes: a hand walks over a shard's words and takes the first that was not hit since it came by (CLOCK). There is
 * no list that hits would have to put in order. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum {
  PINS = 128, WAYS = 5, SHARDS_MOST = 16, LOAD = 2, /* items in a set on average, at most */
  LARGEST_SHARE = 64,   /* an item takes at most this part of the bytes, else one lookup would empty the tier … */
  SMALL = 64 << 10,     /* … or this much, in a small tier, but never more than a quarter of it */
  OVERHEAD = 360,       /* bytes beside key, attributes and body: the object's head, the allocator's, the table's */
  LINE = 64, AHEAD = 1536, /* bytes of an object that a hit asks for at once: the head and some 1.2 KiB */
  VISITED = 1, TAG_SHIFT = 48,
};
#define ADDRESS_MASK (((UINT64_C(1) << TAG_SHIFT) - 1) & ~UINT64_C(7))
#define TAG_MASK (~UINT64_C(0) << TAG_SHIFT)

typedef struct set {
  _Alignas(64) _Atomic uint64_t ways[WAYS];
  _Atomic uint32_t lines[WAYS]; /* the items' lines, so that they can be asked for before the item is there; a hint */
} set;
_Static_assert(sizeof(set) == LINE, "a set is a cache line");

typedef struct pin {
  _Alignas(128) _Atomic uint64_t era; /* 0: free */
  _Atomic uint64_t *stripe;           /* where other processes see the hits: its third word */
  _Atomic uint64_t hits;
} pin;

typedef struct shard {
  _Alignas(128) pthread_mutex_t lock;
  bool closed;
  size_t hand;             /* the next word to look at, from the shard's first set */
  uint64_t count, bytes;   /* without the limbo */
  bcs_memory_item *limbo;  /* newest first */
} shard;

struct bcsi_memory {
  pin pins[PINS];
  shard shards[SHARDS_MOST];
  _Alignas(128) _Atomic uint64_t era; /* read by hits, raised when items are taken out */
  _Alignas(128) _Atomic uint64_t bytes, entries; /* the limbo included; changed by puts only */
  _Alignas(128) uint64_t most_bytes, most_entries, largest, seed[2];
  set *sets;
  size_t set_count, sets_a_shard, map_size;
  unsigned shard_count;
  void (*release)(void *owner);
  _Atomic bool closed;
};

/* ---- hashing: keys are chosen by callers' callers, so it is seeded. Folded products, as in wyhash (public domain). */

static uint64_t fold(uint64_t a, uint64_t b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}
static uint64_t word_at(const uint8_t *at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

static uint64_t hash_of(const bcsi_memory *m, const void *key, size_t count) {
  const uint8_t *at = key;
  uint64_t state = m->seed[0] ^ count, a = 0, b = 0;
  size_t left = count;
  for (; left > 16; left -= 16, at += 16)
    state = fold(word_at(at) ^ m->seed[1], word_at(at + 8) ^ state);
  if (left >= 8) {
    a = word_at(at);
    b = word_at(at + left - 8);
  } else if (left >= 4) {
    uint32_t low, high;
    memcpy(&low, at, sizeof low);
    memcpy(&high, at + left - 4, sizeof high);
    a = (uint64_t)high << 32 | low;
  } else if (left > 0) {
    a = (uint64_t)at[0] << 16 | (uint64_t)at[left / 2] << 8 | at[left - 1];
  }
  state = fold(a ^ m->seed[1], b ^ state);
  return fold(state ^ UINT64_C(0x9E3779B97F4A7C15), m->seed[0] ^ UINT64_C(0xD6E8FEB86659FD93));
}

static unsigned shard_of(const bcsi_memory *m, uint64_t hash) { return (unsigned)(hash >> 44) & (m->shard_count - 1); }
/* An item stands in its first set or, when that was full, in its second one. */
static set *set_of(const bcsi_memory *m, uint64_t hash, bool second) {
  size_t at = (size_t)(second ? hash >> 20 ^ hash * 3 : hash) & (m->sets_a_shard - 1);
  return &m->sets[shard_of(m, hash) * m->sets_a_shard + at];
}
static bcs_memory_item *item_of(uint64_t word) {
  return (bcs_memory_item *)(uintptr_t)(word & ADDRESS_MASK);
}
static bool is_of_key(const bcs_memory_item *item, uint64_t hash, const void *key, size_t count) {
  return item->hash == hash && item->key_count == count && (count == 0 || memcmp(item->key, key, count) == 0);
}

/* ---- opening and closing */

void bcs_memory_start(bcs_store *store, uint64_t bytes, uint64_t entries, void (*release)(void *owner)) {
  if (store->memory || bytes < OVERHEAD || entries == 0 || !store->slots.map || store->slots.read_only) return;
  bcsi_memory *m = NULL;
  if (posix_memalign((void **)&m, 128, sizeof *m) != 0) return;
  memset(m, 0, sizeof *m);
  m->most_bytes = bytes;
  m->most_entries = entries;
  m->largest = bytes / 4 < SMALL ? bytes / 4 : SMALL;
  if (m->largest < bytes / LARGEST_SHARE) m->largest = bytes / LARGEST_SHARE;
  m->release = release;
  uint64_t items = entries < bytes / OVERHEAD ? entries : bytes / OVERHEAD;
  for (m->set_count = 2; m->set_count < items / LOAD + 1 && m->set_count < (size_t)1 << 28;) m->set_count *= 2;
  m->shard_count = m->set_count >= 1024 ? SHARDS_MOST : 1;
  m->sets_a_shard = m->set_count / m->shard_count;
  m->map_size = m->set_count * sizeof(set);
  void *sets = mmap(NULL, m->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (sets == MAP_FAILED || getrandom(m->seed, sizeof m->seed, 0) != (ssize_t)sizeof m->seed) {
    if (sets != MAP_FAILED) munmap(sets, m->map_size);
    free(m);
    return;
  }
#ifdef MADV_HUGEPAGE
  (void)madvise(sets, m->map_size, MADV_HUGEPAGE); /* lookups go anywhere in it; without, it is only slower */
#endif
  m->sets = sets;
  m->seed[0] |= 1;
  m->seed[1] |= 1;
  atomic_store(&m->era, 1);
  /* Every other stripe: processors that fetch lines in pairs would have two threads share one. */
  for (unsigned i = 0; i < PINS; i++) m->pins[i].stripe = bcsi_slots_stripe(store, store->stripe_base + 2 * i);
  for (unsigned i = 0; i < m->shard_count; i++) pthread_mutex_init(&m->shards[i].lock, NULL);
  store->memory = m;
}

void bcsi_memory_shut(bcs_store *store) {
  bcsi_memory *m = store->memory;
  if (!m) return;
  atomic_store(&m->closed, true);
  for (int i = 0; i < PINS; i++)
    while (atomic_load(&m->pins[i].era) != 0) usleep(50);
  for (unsigned i = 0; i < m->shard_count; i++) {
    shard *shard = &m->shards[i];
    pthread_mutex_lock(&shard->lock);
    shard->closed = true;
    for (size_t w = 0; w < m->sets_a_shard * WAYS; w++) {
      bcs_memory_item *item = item_of(atomic_exchange(&m->sets[i * m->sets_a_shard + w / WAYS].ways[w % WAYS], 0));
      if (item) m->release(item->owner);
    }
    for (bcs_memory_item *item = shard->limbo, *next; item; item = next) {
      next = item->next; /* gone with its owner */
      m->release(item->owner);
    }
    shard->limbo = NULL;
    shard->count = shard->bytes = 0;
    pthread_mutex_unlock(&shard->lock);
  }
  munmap(m->sets, m->map_size);
  m->sets = NULL;
  atomic_store(&m->bytes, 0);
  atomic_store(&m->entries, 0);
}

void bcsi_memory_free(bcs_store *store) {
  bcsi_memory *m = store->memory;
  if (!m) return;
  for (unsigned i = 0; i < m->shard_count; i++) pthread_mutex_destroy(&m->shards[i].lock);
  free(m);
  store->memory = NULL;
}

void bcsi_memory_count(bcs_store *store, bcs_counters *out) {
  bcsi_memory *m = store->memory;
  if (!m) return;
  for (int i = 0; i < PINS; i++) out->memory_hits += atomic_load_explicit(&m->pins[i].hits, memory_order_relaxed);
  out->hits += out->memory_hits;
  out->memory_entries = atomic_load_explicit(&m->entries, memory_order_relaxed);
  out->memory_bytes = atomic_load_explicit(&m->bytes, memory_order_relaxed);
}

/* ---- hits */

static pin *claim(bcsi_memory *m) {
  static _Atomic unsigned threads;
  static _Thread_local unsigned mine;
  if (mine == 0) mine = atomic_fetch_add(&threads, 1) + 1;
  uint64_t era = atomic_load(&m->era);
  for (unsigned i = 0; i < PINS; i++) {
    pin *pin = &m->pins[(mine + i) % PINS];
    uint64_t free_value = 0;
    if (atomic_load_explicit(&pin->era, memory_order_relaxed) == 0 &&
        atomic_compare_exchange_strong(&pin->era, &free_value, era))
      return pin;
  }
  return NULL;
}

static bcs_memory_item *find_in(bcs_store *store, set *set, uint64_t hash, const void *key, size_t count,
                                _Atomic uint64_t **at) {
  for (int i = 0; i < WAYS; i++) {
    uint64_t word = atomic_load(&set->ways[i]);
    if (((word ^ hash) & TAG_MASK) != 0 || (word & ADDRESS_MASK) == 0) continue;
    bcs_memory_item *item = item_of(word);
    bcsi_slots_expect(store, atomic_load_explicit(&set->lines[i], memory_order_relaxed));
    for (int ahead = 0; ahead < AHEAD; ahead += LINE) __builtin_prefetch((const uint8_t *)item + ahead);
    if (!is_of_key(item, hash, key, count)) continue;
    *at = &set->ways[i];
    return item;
  }
  return NULL;
}

static bcs_memory_item *find_of(bcs_store *store, uint64_t hash, const void *key, size_t count,
                                _Atomic uint64_t **at) {
  bcs_memory_item *item = find_in(store, set_of(store->memory, hash, false), hash, key, count, at);
  return item ? item : find_in(store, set_of(store->memory, hash, true), hash, key, count, at);
}

bool bcs_memory_find(bcs_store *store, const void *key, size_t key_count, int64_t now_ms, bcs_memory_hit *out) {
  bcsi_memory *m = store->memory;
  if (!m || store->fork_epoch != atomic_load_explicit(&bcsi_fork_epoch, memory_order_relaxed)) return false;
  uint64_t hash = hash_of(m, key, key_count);
  pin *pin = claim(m);
  if (!pin) return false;
  _Atomic uint64_t *at;
  bcs_memory_item *item = NULL;
  if (!atomic_load(&m->closed)) item = find_of(store, hash, key, key_count, &at);
  if (item && bcsi_slots_recall(store, item, now_ms, &out->access_ms, &out->hits)) {
    uint64_t word = atomic_load_explicit(at, memory_order_relaxed);
    if (!(word & VISITED) && item_of(word) == item)
      (void)atomic_compare_exchange_strong(at, &word, word | VISITED); /* lost: as good */
    atomic_store_explicit(&pin->hits, atomic_load_explicit(&pin->hits, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (pin->stripe) atomic_fetch_add_explicit(pin->stripe + 2, 1, memory_order_relaxed);
    out->item = item;
    out->pin = pin;
    return true;
  }
  atomic_store_explicit(&pin->era, 0, memory_order_release);
  return false;
}

void bcs_memory_leave(const bcs_memory_hit *hit) {
  atomic_store_explicit(&((pin *)hit->pin)->era, 0, memory_order_release);
}

/* ---- letting go. All below with the shard's lock. */

static void take_out(bcsi_memory *m, shard *shard, _Atomic uint64_t *at) {
  bcs_memory_item *item = item_of(atomic_exchange(at, 0));
  item->era = atomic_fetch_add(&m->era, 1);
  item->next = shard->limbo;
  shard->limbo = item;
  shard->count--;
  shard->bytes -= item->cost;
}

/* The items of the limbo that no hit can be looking at, for the caller to release without the lock. */
static bcs_memory_item *drain(bcsi_memory *m, shard *shard) {
  if (!shard->limbo) return NULL;
  uint64_t oldest = UINT64_MAX;
  for (int i = 0; i < PINS; i++) {
    uint64_t era = atomic_load(&m->pins[i].era);
    if (era != 0 && era < oldest) oldest = era;
  }
  bcs_memory_item **at = &shard->limbo;
  while (*at && (*at)->era >= oldest) at = &(*at)->next;
  bcs_memory_item *freed = *at; /* this one, and all that are older */
  *at = NULL;
  for (bcs_memory_item *item = freed; item; item = item->next) {
    atomic_fetch_sub(&m->bytes, item->cost);
    atomic_fetch_sub(&m->entries, 1);
  }
  return freed;
}

static void release_all(bcsi_memory *m, bcs_memory_item *item) {
  while (item) {
    bcs_memory_item *next = item->next; /* gone with its owner */
    m->release(item->owner);
    item = next;
  }
}

/* Takes out what the hand comes to and was not hit since it came by last. */
static bool evict_one(bcsi_memory *m, unsigned number) {
  shard *shard = &m->shards[number];
  size_t words = m->sets_a_shard * WAYS;
  if (shard->count == 0) return false;
  for (size_t i = 0; i < 2 * words; i++) {
    _Atomic uint64_t *at = &m->sets[number * m->sets_a_shard + shard->hand / WAYS].ways[shard->hand % WAYS];
    shard->hand = shard->hand + 1 == words ? 0 : shard->hand + 1;
    uint64_t word = atomic_load_explicit(at, memory_order_relaxed);
    if (word == 0) continue;
    if (word & VISITED) {
      (void)atomic_compare_exchange_strong(at, &word, word & ~(uint64_t)VISITED);
      continue;
    }
    take_out(m, shard, at);
    return true;
  }
  return false;
}

static bool is_over(const bcsi_memory *m, uint64_t bytes, uint64_t entries) {
  return bytes > m->most_bytes || entries > m->most_entries;
}

/* Makes room in this shard if it has its share, else in another one that can be had at once. */
static bcs_memory_item *make_room(bcsi_memory *m, unsigned number) {
  for (unsigned i = 0; i < m->shard_count; i++) {
    unsigned candidate = (number + i) % m->shard_count;
    shard *shard = &m->shards[candidate];
    if (i > 0 && pthread_mutex_trylock(&shard->lock) != 0) continue;
    bool has_share = 2 * shard->bytes * m->shard_count >= m->most_bytes ||
                     2 * shard->count * m->shard_count >= m->most_entries;
    bcs_memory_item *freed = NULL;
    bool done = has_share && evict_one(m, candidate);
    if (done || shard->limbo) freed = drain(m, shard);
    if (i > 0) pthread_mutex_unlock(&shard->lock);
    if (done || freed) return freed;
  }
  return NULL;
}

static int free_way(set *set) {
  for (int i = 0; i < WAYS; i++)
    if (atomic_load_explicit(&set->ways[i], memory_order_relaxed) == 0) return i;
  return -1;
}

/* Moves an item of a full set to its other set. It stands in both for a moment: a hit finds it in one of them, or (when
 * it looks in the other order) in neither, and asks the index. */
static int make_way(bcsi_memory *m, set *full) {
  for (int i = 0; i < WAYS; i++) {
    uint64_t word = atomic_load_explicit(&full->ways[i], memory_order_relaxed);
    const bcs_memory_item *item = item_of(word);
    set *other = set_of(m, item->hash, set_of(m, item->hash, false) == full);
    int way = other == full ? -1 : free_way(other);
    if (way < 0) continue;
    atomic_store_explicit(&other->lines[way], item->slot, memory_order_relaxed);
    atomic_store(&other->ways[way], word);
    atomic_store(&full->ways[i], 0);
    return i;
  }
  return -1;
}

/* ---- taking in */

bool bcs_memory_wants(bcs_store *store, const bcs_record *record, const bcs_body *body) {
  bcsi_memory *m = store->memory;
  if (!m || body->mapped || ((record->generation | record->epoch) & 1) != 0 || record->key_count > BCS_KEY_MAX) return false;
  uint64_t cost = record->size + record->key_count + record->attributes_count + record->tags_count + OVERHEAD;
  if (cost > m->largest) return false;
  if (record->hits > 0) return true;
  return !is_over(m, atomic_load_explicit(&m->bytes, memory_order_relaxed) + cost,
                  atomic_load_explicit(&m->entries, memory_order_relaxed) + 1);
}

/* With the lock; the item's room is reserved. */
static bool take_in(bcs_store *store, bcs_memory_item *item, unsigned number) {
  bcsi_memory *m = store->memory;
  shard *shard = &m->shards[number];
  uint64_t word = (item->hash & TAG_MASK) | ((uint64_t)(uintptr_t)item & ADDRESS_MASK);
  if (item_of(word) != item || !bcsi_slots_has(store, item->slot)) return false;
  if (!bcsi_slots_stands(store, item->slot, item->generation, item->epoch)) return false;
  _Atomic uint64_t *at;
  const bcs_memory_item *old = find_of(store, item->hash, item->key, item->key_count, &at);
  if (old) {
    if (bcsi_slots_stands(store, old->slot, old->generation, old->epoch)) return false; /* another lookup's */
    take_out(m, shard, at);
  }
  set *set = set_of(m, item->hash, false);
  int way = free_way(set);
  if (way < 0) {
    set = set_of(m, item->hash, true);
    way = free_way(set);
  }
  if (way < 0) way = make_way(m, set);
  if (way < 0) { /* hardly ever: at most two in five words are taken, on average */
    way = (int)(item->hash >> 32) & 3;
    take_out(m, shard, &set->ways[way]);
  }
  shard->count++;
  shard->bytes += item->cost;
  atomic_store_explicit(&set->lines[way], item->slot, memory_order_relaxed);
  atomic_store(&set->ways[way], word);
  return true;
}

bool bcs_memory_put(bcs_store *store, bcs_memory_item *item) {
  bcsi_memory *m = store->memory;
  if (!m || ((item->generation | item->epoch) & 1) != 0 || atomic_load(&m->closed)) return false;
  item->cost += OVERHEAD;
  if (item->cost > m->largest) return false;
  item->hash = hash_of(m, item->key, item->key_count);
  unsigned number = shard_of(m, item->hash);
  shard *shard = &m->shards[number];
  if (pthread_mutex_trylock(&shard->lock) != 0) return false;
  bcs_memory_item *freed = NULL;
  bool taken = false;
  if (!shard->closed) {
    enum { VICTIMS = 64 }; /* an item may be as large as some small ones, but no lookup empties a shard */
    uint64_t bytes = atomic_fetch_add(&m->bytes, item->cost) + item->cost;
    uint64_t entries = atomic_fetch_add(&m->entries, 1) + 1;
    for (int i = 0; i < VICTIMS && is_over(m, bytes, entries); i++) {
      bcs_memory_item *more = make_room(m, number);
      if (!more) break; /* a hit is looking at what was taken out: the next put will find it free */
      bcs_memory_item **end = &more;
      while (*end) end = &(*end)->next;
      *end = freed;
      freed = more;
      bytes = atomic_load(&m->bytes);
      entries = atomic_load(&m->entries);
    }
    taken = !is_over(m, bytes, entries) && take_in(store, item, number);
    if (!taken) {
      atomic_fetch_sub(&m->bytes, item->cost);
      atomic_fetch_sub(&m->entries, 1);
    }
  }
  pthread_mutex_unlock(&shard->lock);
  release_all(m, freed);
  return taken;
}
