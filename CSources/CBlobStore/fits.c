/* What fits: whether limits have room for a body, an entry or a pin, told before anything makes room for it.
 *
 * Of a limit in bytes the index's first pages take a part whatever is stored; the rest is the room. Pins are measured by
 * what they keep from eviction: a blob file once, however many pinned entries share it, and each entry's own bytes. They
 * may take seven eighths of the room, and leave one entry of a limit in entries. What gets smaller always fits. */
#include "internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { BLOCK = 4096 };

/* What a body of so many bytes takes as a file. */
uint64_t bcsi_file_bytes(uint64_t size) { return (size + BLOCK - 1) / BLOCK * BLOCK; }

/* What an entry takes of the limit besides a file. */
static uint64_t own_bytes(const bcs_record *record) {
  return (record->is_file ? 0 : record->size) + BCSI_RECORD_HEAD + record->key_count + record->attributes_count +
         record->tags_count;
}

/* What it takes by itself. */
uint64_t bcsi_entry_bytes(const bcs_record *record) {
  return own_bytes(record) + (record->is_file ? bcsi_file_bytes(record->size) : 0);
}

/* ---- pins */

int bcsi_pin_count(bcsi_batch *b, const bcs_record *record, bool add) {
  bcsi_totals *totals = &b->totals;
  uint64_t bytes = own_bytes(record);
  int rc = 0;
  if (!record->pinned) return 0;
  bcsi_blob_row row;
  if (record->is_file && bcsi_blob_row_get(b->store, b->txn, record->digest, &row, &rc)) {
    bool alone = add ? row.pins == 0 : row.pins == 1;
    if (alone) bytes += bcsi_file_bytes(row.size);
    if (add) row.pins++;
    else row.pins -= row.pins > 0;
    rc = bcsi_blob_row_put(b->store, b->txn, record->digest, &row);
  }
  if (rc != 0) return rc;
  if (add) {
    totals->pinned_entries++;
    totals->pinned_bytes += bytes;
  } else {
    totals->pinned_entries -= totals->pinned_entries > 0;
    totals->pinned_bytes -= bytes < totals->pinned_bytes ? bytes : totals->pinned_bytes;
  }
  return 0;
}

/* What a pin of the entry adds to those of all others than `except` (NULL: none), which is pinned, or goes. */
static uint64_t pin_bytes(bcs_store *store, MDB_txn *txn, const bcs_record *record, const bcs_record *except) {
  bcsi_blob_row row;
  int rc; /* trouble comes back with the next step */
  if (!record->is_file) return own_bytes(record);
  uint32_t pins = bcsi_blob_row_get(store, txn, record->digest, &row, &rc) ? row.pins : 0;
  if (except && except->pinned && except->is_file && memcmp(except->digest, record->digest, BCS_DIGEST_SIZE) == 0)
    pins -= pins > 0;
  return own_bytes(record) + (pins == 0 ? bcsi_file_bytes(record->size) : 0);
}

static uint64_t pins_most(uint64_t room) { return room / 8 * 7; }

/* ---- refusals. `operation`: what was being done. */

static bcs_status too_large(bcs_store *store, const char *operation, const bcs_limits *limits, uint64_t bytes,
                            bool grows) {
  char cause[240];
  snprintf(cause, sizeof cause,
           "it takes %" PRIu64 " bytes%s, and the limit of %" PRIu64 " has room for %" PRIu64
           ": the rest is for the index",
           bytes, grows ? " or more" : "", limits->bytes, bcsi_limit_room(limits->bytes));
  return bcsi_fail(BCS_TOO_LARGE, 0, operation, store->info.path, cause);
}

static bcs_status pins_too_large(bcs_store *store, const char *operation, const bcs_limits *limits,
                                 const bcsi_totals *totals, uint64_t bytes) {
  char cause[240];
  snprintf(cause, sizeof cause,
           "it takes %" PRIu64 " bytes, %" PRIu64 " pinned entries take %" PRIu64 ", and the limit of %" PRIu64
           " has room for %" PRIu64 ", seven eighths of it for pins",
           bytes, totals->pinned_entries, totals->pinned_bytes, limits->bytes, bcsi_limit_room(limits->bytes));
  return bcsi_fail(BCS_PINS_TOO_LARGE, 0, operation, store->info.path, cause);
}

static bcs_status too_many_pins(bcs_store *store, const char *operation, const bcs_limits *limits,
                                const bcsi_totals *totals) {
  char cause[160];
  snprintf(cause, sizeof cause, "%" PRIu64 " entries are pinned, the limit is %" PRIu64 " entries, one of them unpinned",
           totals->pinned_entries, limits->entries);
  return bcsi_fail(BCS_PINS_TOO_LARGE, 0, operation, store->info.path, cause);
}

/* ---- entries */

/* What takes `bytes`, in place of a pinned entry that gives back `freed` (0: of none). What does not fit would only push
 * everything else out and go itself. */
static bcs_status check_bytes(bcs_store *store, const char *operation, const bcs_limits *limits,
                              const bcsi_totals *totals, uint64_t bytes, uint64_t freed, bool grows) {
  uint64_t room = bcsi_limit_room(limits->bytes);
  if (limits->bytes == 0 || bytes <= freed) return BCS_OK;
  if (bytes > room) return too_large(store, operation, limits, bytes, grows);
  if (bytes + totals->pinned_bytes > (freed > 0 ? pins_most(room) : room) + freed)
    return pins_too_large(store, operation, limits, totals, bytes);
  return BCS_OK;
}

/* `old`: the entry that is replaced; NULL: none. */
bcs_status bcsi_put_fits(const bcsi_batch *b, const bcs_record *old, const bcs_record *made) {
  if (!old && b->limits.entries > 0 && b->totals.pinned_entries >= b->limits.entries)
    return too_many_pins(b->store, "store", &b->limits, &b->totals);
  uint64_t freed = old && old->pinned ? pin_bytes(b->store, b->txn, old, old) : 0;
  return check_bytes(b->store, "store", &b->limits, &b->totals, pin_bytes(b->store, b->txn, made, old), freed, false);
}

/* The same entry, with another pin or with other attributes. */
bcs_status bcsi_pin_fits(const bcsi_batch *b, const bcs_record *old, const bcs_record *made) {
  if (!made->pinned) return BCS_OK;
  if (b->limits.entries > 0 && !old->pinned && b->totals.pinned_entries + 1 >= b->limits.entries)
    return too_many_pins(b->store, "pin", &b->limits, &b->totals);
  uint64_t before = old->pinned ? pin_bytes(b->store, b->txn, old, old) : 0;
  uint64_t after = pin_bytes(b->store, b->txn, made, old), room = bcsi_limit_room(b->limits.bytes);
  if (b->limits.bytes == 0 || after <= before || b->totals.pinned_bytes + after <= pins_most(room) + before)
    return BCS_OK;
  return pins_too_large(b->store, "pin", &b->limits, &b->totals, after);
}

/* ---- bodies that are being staged */

/* Whether the file system had room for a body of that many bytes if all of the cache made room for it: else all of it would,
 * in vain. Of what the system cannot tell, there is enough. */
bcs_status bcsi_disk_fits(bcs_store *store, uint64_t bytes) {
  enum { LARGE = 1 << 20 }; /* a smaller one is tried */
  uint64_t free, reserve;
  bcsi_totals totals;
  struct stat index;
  if (bytes < LARGE || !bcsi_disk(store, bcsi_limits(store).minimum_free, &free, &reserve)) return BCS_OK;
  bcsi_slots_totals(store, &totals);
  uint64_t cache = totals.blob_allocated + totals.trash_allocated + totals.quarantine_allocated;
  if (fstatat(store->root_fd, "index/data.mdb", &index, AT_SYMLINK_NOFOLLOW) == 0) cache += (uint64_t)index.st_blocks * 512;
  cache -= totals.pinned_bytes < cache ? totals.pinned_bytes : cache;
  if (bytes + reserve <= free + cache) return BCS_OK;
  char cause[240];
  snprintf(cause, sizeof cause,
           "it takes %" PRIu64 " bytes; the file system has %" PRIu64 " free, %" PRIu64
           " of them are to stay so, and what the cache could give up takes %" PRIu64,
           bytes, free, reserve, cache);
  return bcsi_fail(BCS_NO_SPACE, 0, "stage", store->info.path, cause);
}

/* What the pinned entry that the body is to replace gives back; *found: there is an entry, pinned or not. */
static uint64_t freed_by(bcs_stage *stage, bool *found) {
  bcs_store *store = stage->store;
  bcsi_reader *reader;
  uint64_t freed = 0;
  *found = false;
  if (!stage->has_key || bcsi_reader_enter(store, &reader) != BCS_OK) return 0;
  MDB_val key = {BCS_HASH_SIZE, stage->key_hash}, value;
  bcsi_record old;
  if (mdb_get(reader->txn, store->index.entries, &key, &value) == 0 &&
      bcsi_record_decode(value.mv_data, value.mv_size, &old)) {
    *found = true;
    if (old.view.pinned) freed = pin_bytes(store, reader->txn, &old.view, &old.view);
  }
  bcsi_reader_leave(reader);
  return freed;
}

static bcs_status check_stage(bcs_stage *stage, uint64_t size, const bcs_limits *limits, const bcsi_totals *totals,
                              uint64_t freed, bool found) {
  bcs_store *store = stage->store;
  bool announced = size <= stage->announced;
  uint64_t room = bcsi_limit_room(limits->bytes), bytes = bcsi_file_bytes(size) + stage->own_bytes;
  if (!found && limits->entries > 0 && totals->pinned_entries >= limits->entries)
    return too_many_pins(store, "stage", limits, totals);
  bcs_status status = check_bytes(store, "stage", limits, totals, bytes, freed, !announced);
  if (status != BCS_OK || limits->bytes == 0 || announced) return status;
  uint64_t left = room + freed > totals->pinned_bytes ? room + freed - totals->pinned_bytes : 0;
  /* With more pinned than there is room, nothing else is there that it could push out. */
  if (size <= left / 2 || totals->pinned_bytes > room) return BCS_OK;
  char cause[240];
  snprintf(cause, sizeof cause,
           "%" PRIu64 " bytes or more without an announcement; half of what the limit of %" PRIu64
           " and what is pinned leave is %" PRIu64,
           size, limits->bytes, left / 2);
  return bcsi_fail(BCS_UNANNOUNCED, 0, "stage", store->info.path, cause);
}

/* Whether the body may have `size` bytes. One whose size was not announced is refused beyond half of the room, since it
 * may yet prove too large, and what made room for it would have gone for nothing. */
bcs_status bcsi_stage_fits(bcs_stage *stage, uint64_t size) {
  bcs_limits limits = bcsi_limits(stage->store);
  bcsi_totals totals;
  if (limits.bytes == 0 && limits.entries == 0) return BCS_OK;
  bcsi_slots_totals(stage->store, &totals);
  bcs_status status = check_stage(stage, size, &limits, &totals, 0, false);
  if (status == BCS_OK || !stage->has_key) return status;
  bool found;
  uint64_t freed = freed_by(stage, &found); /* looked up only where it matters */
  return found ? check_stage(stage, size, &limits, &totals, freed, found)
               : check_stage(stage, size, &limits, &totals, 0, false);
}
