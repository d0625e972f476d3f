/* The head of the slot table's file, and where its parts stand: for slots.c, which has the lines, and head.c, which has
 * the words of the head and the stripes. See slots.c for the file. */
#ifndef BCSI_SLOTS_H
#define BCSI_SLOTS_H

#include "internal.h"

enum {
  MARK_AT = 4096, MARK_CAPACITY = 7168, STRIPES_AT = 32768, STRIPE_SIZE = 64,
  PUBLISHED_AT = 65536, PUBLISHED_CAPACITY = 1024, GHOSTS_AT = 131072,
  LINES_AT = GHOSTS_AT + BCSI_GHOSTS_SIZE,
};

struct head {
  char magic[8];
  uint32_t version, line_size;
  uint8_t store_id[16]; /* the same as in the index: a table of another cache is not taken for ours */
  char boot_id[BCSI_BOOT_ID_SIZE];
  /* Read by every hit, and so apart from what every commit writes. */
  _Alignas(64) _Atomic uint64_t allocated;
  _Atomic uint64_t epoch; /* odd while everything is being removed; for memory tiers, see memory.c */
  _Atomic uint64_t limit_bytes, limit_entries, limit_age, limit_free; /* see limits.c; 0: none */
  _Alignas(64) _Atomic uint64_t entries, inline_bytes, blob_files, blob_bytes, blob_allocated, used;
  _Atomic uint64_t trash_allocated, quarantine_allocated, pinned_entries, pinned_bytes, index_live;
  _Atomic uint64_t staging; /* bytes being staged, by all processes; the sweep takes off what the dead left */
  _Atomic uint64_t evictions;
  _Atomic uint64_t ghosts; /* bytes of the ghosts that have blocks */
  _Atomic uint64_t keep_until; /* seconds since 1970: see keep_files */
  /* See checkpoint.c. Of the settled checkpoint: its transaction (0: none), the number of its pin's lock and the place of
   * its pin among LMDB's readers, and when it was made; the newest that stands in the file. */
  _Atomic uint64_t checkpoint, checkpoint_pin, checkpoint_row, checkpoint_ms, checkpoint_published;
  _Atomic uint64_t checkpoint_pages; /* of the index's file, when it was settled */
  _Atomic uint64_t files_published, files_synced; /* blob files; the digests of the last ones stand in a ring */
  _Atomic uint64_t restored; /* this boot began with a checkpoint: no file is trusted unread */
  _Atomic uint64_t now; /* the newest time that a writer was told */
  _Atomic uint32_t mark_count; /* above MARK_CAPACITY: any line may be odd */
  _Atomic uint64_t unrepaired; /* no repair has been through since keep_until was set, by whichever process */
};
_Static_assert(sizeof(struct head) <= MARK_AT, "the head has one page");
_Static_assert(offsetof(struct head, keep_until) == 584 && offsetof(struct head, unrepaired) == 680, "as OnDiskFormat tells");
_Static_assert(MARK_AT + MARK_CAPACITY * 4 <= STRIPES_AT, "the mark ends before the stripes");
_Static_assert(STRIPES_AT + BCSI_STRIPES * STRIPE_SIZE <= PUBLISHED_AT, "the stripes end before what was published");
_Static_assert(PUBLISHED_AT + PUBLISHED_CAPACITY * BCS_DIGEST_SIZE <= GHOSTS_AT, "and that before the ghosts");

static inline struct head *head_of(bcs_store *store) { return (struct head *)(void *)store->slots.map; }
static inline uint64_t load(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static inline void put(_Atomic uint64_t *word, uint64_t v) { atomic_store_explicit(word, v, memory_order_relaxed); }

#endif
