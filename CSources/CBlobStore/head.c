/* The words of the slot table's head: what all processes know of the directory without reading its index. Totals and
 * limits repeat what the index says, and are told anew with every commit; bytes being staged, evictions and the newest
 * time are nowhere else. Behind the mark, the stripes: counts of hits and misses.
 *
 * Each is one atomic word. Two that belong together may be read a commit apart: they are for counts and for bounds that
 * the next commit looks at again. */
#include "slots.h"

#include <string.h>

void bcsi_slots_publish_totals(bcs_store *store, const bcsi_totals *totals) {
  struct head *head = head_of(store);
  put(&head->entries, totals->entries);
  put(&head->inline_bytes, totals->inline_bytes);
  put(&head->blob_files, totals->blob_files);
  put(&head->blob_bytes, totals->blob_bytes);
  put(&head->blob_allocated, totals->blob_allocated);
  put(&head->used, totals->slots_used);
  put(&head->trash_allocated, totals->trash_allocated);
  put(&head->quarantine_allocated, totals->quarantine_allocated);
  put(&head->pinned_entries, totals->pinned_entries);
  put(&head->pinned_bytes, totals->pinned_bytes);
}

void bcsi_slots_totals(bcs_store *store, bcsi_totals *totals) {
  memset(totals, 0, sizeof *totals);
  if (!store->slots.map) return;
  struct head *head = head_of(store);
  totals->entries = load(&head->entries);
  totals->inline_bytes = load(&head->inline_bytes);
  totals->blob_files = load(&head->blob_files);
  totals->blob_bytes = load(&head->blob_bytes);
  totals->blob_allocated = load(&head->blob_allocated);
  totals->slots_used = load(&head->used);
  totals->trash_allocated = load(&head->trash_allocated);
  totals->quarantine_allocated = load(&head->quarantine_allocated);
  totals->pinned_entries = load(&head->pinned_entries);
  totals->pinned_bytes = load(&head->pinned_bytes);
}

int64_t bcsi_limit_age_ms(bcs_store *store) { return store->slots.map ? (int64_t)load(&head_of(store)->limit_age) : 0; }

bcs_limits bcsi_limits(bcs_store *store) {
  bcs_limits limits = {0};
  if (!store->slots.map) return limits;
  struct head *head = head_of(store);
  limits.bytes = load(&head->limit_bytes);
  limits.entries = load(&head->limit_entries);
  limits.age_ms = (int64_t)load(&head->limit_age);
  limits.minimum_free = load(&head->limit_free);
  return limits;
}

void bcsi_slots_set_limits(bcs_store *store, const bcs_limits *limits) {
  if (!store->slots.map || store->slots.read_only) return;
  struct head *head = head_of(store);
  put(&head->limit_bytes, limits->bytes);
  put(&head->limit_entries, limits->entries);
  put(&head->limit_age, (uint64_t)limits->age_ms);
  put(&head->limit_free, limits->minimum_free);
}

/* Bytes that a stage takes or gives back. What a dead process left too much must not make it wrap. */
uint64_t bcsi_slots_staged(bcs_store *store, int64_t change) {
  if (!store->slots.map || store->slots.read_only) return 0;
  _Atomic uint64_t *word = &head_of(store)->staging;
  uint64_t now = load(word), next;
  do next = change < 0 && (uint64_t)-change > now ? 0 : now + (uint64_t)change;
  while (!atomic_compare_exchange_weak(word, &now, next));
  return next;
}

uint64_t bcsi_slots_staging(bcs_store *store) { return store->slots.map ? load(&head_of(store)->staging) : 0; }
void bcsi_slots_set_staging(bcs_store *store, uint64_t bytes) {
  if (store->slots.map && !store->slots.read_only) put(&head_of(store)->staging, bytes);
}

void bcsi_slots_publish_live(bcs_store *store, uint64_t index_live) { put(&head_of(store)->index_live, index_live); }
uint64_t bcsi_slots_live(bcs_store *store) { return store->slots.map ? load(&head_of(store)->index_live) : 0; }

/* Writers are told the time by their callers; an eviction that no store asked for takes the newest. */
int64_t bcsi_slots_now(bcs_store *store, int64_t now_ms) {
  _Atomic uint64_t *word = &head_of(store)->now;
  if (now_ms > 0) put(word, (uint64_t)now_ms);
  return (int64_t)load(word);
}

void bcsi_slots_count_evicted(bcs_store *store, uint64_t count) {
  put(&head_of(store)->evictions, load(&head_of(store)->evictions) + count); /* under the write lock */
}
uint64_t bcsi_slots_evictions(bcs_store *store) { return store->slots.map ? load(&head_of(store)->evictions) : 0; }

enum { NOT_RESTORED, RESTORED, RESTORED_AND_SWEPT };
void bcsi_slots_set_restored(bcs_store *store, bool restored) {
  if (store->slots.map) put(&head_of(store)->restored, restored ? RESTORED : NOT_RESTORED);
}
bool bcsi_slots_restored(bcs_store *store) { return store->slots.map && load(&head_of(store)->restored) != NOT_RESTORED; }
bool bcsi_slots_misses_files(bcs_store *store) {
  return store->slots.map && load(&head_of(store)->restored) == RESTORED;
}
void bcsi_slots_found_missing(bcs_store *store) { put(&head_of(store)->restored, RESTORED_AND_SWEPT); }

/* ---- stripes */

_Atomic uint64_t *bcsi_slots_stripe(bcs_store *store, unsigned index) {
  if (!store->slots.map || store->slots.read_only) return NULL;
  return (_Atomic uint64_t *)(void *)(store->slots.map + STRIPES_AT + (size_t)(index % BCSI_STRIPES) * STRIPE_SIZE);
}

void bcsi_slots_stripe_sum(bcs_store *store, uint64_t *hits, uint64_t *misses, uint64_t *memory_hits) {
  *hits = *misses = *memory_hits = 0;
  if (!store->slots.map) return;
  for (unsigned i = 0; i < BCSI_STRIPES; i++) {
    _Atomic uint64_t *stripe = (_Atomic uint64_t *)(void *)(store->slots.map + STRIPES_AT + (size_t)i * STRIPE_SIZE);
    *hits += load(stripe);
    *misses += load(stripe + 1);
    *memory_hits += load(stripe + 2);
  }
  *hits += *memory_hits;
}
