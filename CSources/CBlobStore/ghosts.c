/* Ghosts: what is remembered of evicted entries, so that one that is asked for again is known to have been read, and so
 * that the weight of reads against age follows the traffic.
 *
 *   word = the first 58 bits of the key's hash, then 6 bits: its hits
 *
 * in a table of N words, a power of two no smaller than the number of entries, indexed by the first bits of the hash; a
 * later ghost takes the place of an earlier one. More words than that remember too much: what was popular long ago
 * pushes out what is popular now.
 *
 * The weight c of eviction's rule is steered as ARC steers its two lists (Megiddo and Modha, FAST 2003): a victim that
 * had never been read and comes back says that age should count for more, one that had been read says that reads should;
 * each return counts the more, the fewer victims of its kind there are. It was simulated on traces of web servers and
 * storage and on synthetic ones; a constant loses up to 20 points of hits where popularity moves.
 *
 * Everything here is a hint. Only the writer touches it, and values that make no sense are taken for those at the
 * start. */
#include "internal.h"

#include <math.h>
#include <string.h>

enum { BITS_FIRST = 8, BITS_MOST = 22, HITS_BITS = 6, HITS_MOST = (1 << HITS_BITS) - 1 };

typedef struct ghosts {
  uint64_t bits; /* the table has 2^bits words; 0: none yet */
  double age_ms; /* of victims, since their last read: moving average */
  double weight; /* c */
  double read;   /* the share of victims that had been read: moving average */
  uint64_t reserved[4];
  uint64_t words[];
} ghosts;
_Static_assert(sizeof(ghosts) + (sizeof(uint64_t) << BITS_MOST) <= BCSI_GHOSTS_SIZE, "the table fits its place");

static const double weight_first = 0.2, weight_least = 0.05, weight_most = 16;

static double within(double value, double least, double most, double otherwise) {
  return value >= least && value <= most ? value : otherwise; /* not for NaN */
}

static size_t size_of(uint64_t bits) { return sizeof(ghosts) + (sizeof(uint64_t) << bits); }

/* NULL: there are none, or no blocks for them. */
static ghosts *ghosts_of(bcs_store *store) {
  ghosts *g = bcsi_slots_ghosts(store);
  if (!g || bcsi_slots_ghosts_size(store) < size_of(BITS_FIRST)) return NULL;
  if (g->bits < BITS_FIRST || g->bits > BITS_MOST || size_of(g->bits) > bcsi_slots_ghosts_size(store)) return NULL;
  return g;
}

static uint64_t number_of(const uint8_t key_hash[BCS_HASH_SIZE]) {
  uint64_t number;
  memcpy(&number, key_hash, sizeof number);
  return __builtin_bswap64(number);
}

double bcsi_eviction_age_ms(bcs_store *store) {
  ghosts *g = ghosts_of(store);
  return g ? within(g->age_ms, 0, 1e15, 0) : 0;
}

double bcsi_eviction_weight(bcs_store *store) {
  ghosts *g = ghosts_of(store);
  return g ? within(g->weight, weight_least, weight_most, weight_first) : weight_first;
}

void bcsi_ghosts_clear(bcs_store *store) {
  ghosts *g = ghosts_of(store);
  if (g) memset(g->words, 0, sizeof(uint64_t) << g->bits);
}

/* Where no blocks can be had, the table stays as it is: it is only a hint. */
void bcsi_ghosts_fit(bcs_store *store, uint64_t entries) {
  ghosts *g = ghosts_of(store);
  if (!g) {
    if (bcsi_slots_reserve_ghosts(store, size_of(BITS_FIRST)) != BCS_OK) return;
    g = bcsi_slots_ghosts(store);
    memset(g, 0, size_of(BITS_FIRST));
    g->weight = weight_first;
    g->read = 0.5;
    g->bits = BITS_FIRST;
  }
  while (entries > UINT64_C(1) << g->bits && g->bits < BITS_MOST) {
    if (bcsi_slots_reserve_ghosts(store, size_of(g->bits + 1)) != BCS_OK) return;
    memset(g->words + (UINT64_C(1) << g->bits), 0, sizeof(uint64_t) << g->bits);
    for (uint64_t i = UINT64_C(1) << g->bits; i-- > 0;) { /* from the end: a word moves to twice its place at most */
      uint64_t word = g->words[i];
      g->words[i] = 0;
      if (word != 0) g->words[word >> (64 - g->bits - 1)] = word;
    }
    g->bits++;
  }
}

uint32_t bcsi_ghost_return(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE]) {
  ghosts *g = ghosts_of(store);
  if (!g) return 0;
  uint64_t hash = number_of(key_hash), *word = &g->words[hash >> (64 - g->bits)];
  if (*word == 0 || (*word ^ hash) >> HITS_BITS != 0) return 0;
  uint32_t hits = (uint32_t)(*word & HITS_MOST);
  *word = 0;
  double read = within(g->read, 0.02, 0.98, g->read < 0.5 ? 0.02 : 0.98);
  double step = 16.0 / (double)(UINT64_C(1) << g->bits); /* in octaves */
  step = hits > 0 ? -step / read : step / (1 - read);
  if (step > 0.5) step = 0.5;
  if (step < -0.5) step = -0.5;
  double weight = bcsi_eviction_weight(store) * exp2(step);
  g->weight = weight < weight_least ? weight_least : weight > weight_most ? weight_most : weight;
  return hits < HITS_MOST ? hits + 1 : hits;
}

void bcsi_ghost_add(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], uint32_t hits, int64_t age_ms) {
  ghosts *g = ghosts_of(store);
  if (!g) return;
  double age = age_ms > 0 ? (double)age_ms : 0, average = bcsi_eviction_age_ms(store);
  g->age_ms = average == 0 ? age : average + (age - average) / 64;
  double read = within(g->read, 0, 1, 0.5);
  g->read = read + ((hits > 0 ? 1 : 0) - read) / 256;
  uint64_t hash = number_of(key_hash);
  g->words[hash >> (64 - g->bits)] = (hash & ~(uint64_t)HITS_MOST) | (hits < HITS_MOST ? hits : HITS_MOST);
}
