/* An entry's record: the value of the tree `entries`, whose key is the first 16 bytes of SHA-256(key). Little-endian.
 *
 *   offset  bytes  field
 *        0      1  version, 1
 *        1      1  flags; bit 0: the body is a file; bit 1: pinned
 *        2      1  lifetime kind: 0 forever, 1 expires, 2 sliding
 *        3      1  0
 *        4      4  length of the key
 *        8      4  length of the attributes
 *       12      4  slot: line number in the table
 *       16      8  generation, even: the line's when this record was committed
 *       24      8  size of the body
 *       32      8  written, milliseconds since 1970 (signed, as all times)
 *       40      8  deadline: when it expires, or for sliding the latest moment (2^63 - 1: none)
 *       48      8  window: the span the deadline was made from (0: none), or the sliding window
 *       56      4  length of the tags
 *       60      4  for sliding: by how many milliseconds the deadline is earlier than was asked for
 *       64     32  digest: SHA-256 of the body
 *       96      8  stale window: how long after its expiry it is kept
 *      104      8  seal: first 8 bytes of SHA-256 over bytes 0..103 with slot and generation as zero, key, attributes,
 *                  tags
 *      112      k  key
 *    112+k      a  attributes
 *  112+k+a      t  tags: each its length (2 bytes) and its bytes, in ascending order
 * 112+k+a+t  size  body, unless it is a file
 *
 * The key "k" with the attributes "" and the body "hi", stored at 1,000 ms for ever in line 7 at generation 4:
 *
 *   01 00 00 00 | 01 00 00 00 | 00 00 00 00 | 07 00 00 00 | 04 00 00 00 00 00 00 00 | 02 00 00 00 00 00 00 00
 *   e8 03 00 00 00 00 00 00 | ff ff ff ff ff ff ff 7f | 00 × 16 | 8f434346 … (SHA-256 of "hi") | 00 × 8 | seal |
 *   6b | 68 69
 *
 * Values in LMDB's leaf pages are aligned to two bytes only, hence the copies. */
#include "internal.h"

#include <string.h>

enum {
  AT_VERSION = 0, AT_FLAGS = 1, AT_KIND = 2, AT_KEY_COUNT = 4, AT_ATTRIBUTES_COUNT = 8, AT_SLOT = 12,
  AT_GENERATION = 16, AT_SIZE = 24, AT_WRITTEN = 32, AT_DEADLINE = 40, AT_WINDOW = 48, AT_TAGS_COUNT = 56, AT_SHORTENED = 60, AT_DIGEST = 64,
  AT_STALE = 96, AT_SEAL = 104, RECORD_VERSION = 1, FLAG_FILE = 1, FLAG_PINNED = 2, SEAL_SIZE = 8,
};
_Static_assert(AT_SEAL + SEAL_SIZE == BCSI_RECORD_HEAD, "the field table says 112 bytes");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are little-endian and are read by plain copies"
#endif

static uint32_t get32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static uint64_t get64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }
static void put32(uint8_t *at, uint32_t v) { memcpy(at, &v, 4); }
static void put64(uint8_t *at, uint64_t v) { memcpy(at, &v, 8); }

void bcsi_record_encode_head(uint8_t *out, const bcs_record *record) {
  memset(out, 0, BCSI_RECORD_HEAD);
  out[AT_VERSION] = RECORD_VERSION;
  out[AT_FLAGS] = (uint8_t)((record->is_file ? FLAG_FILE : 0) | (record->pinned ? FLAG_PINNED : 0));
  out[AT_KIND] = (uint8_t)record->lifetime.kind;
  put32(out + AT_KEY_COUNT, (uint32_t)record->key_count);
  put32(out + AT_ATTRIBUTES_COUNT, (uint32_t)record->attributes_count);
  put64(out + AT_SIZE, record->size);
  put64(out + AT_WRITTEN, (uint64_t)record->written_ms);
  put64(out + AT_DEADLINE, (uint64_t)record->lifetime.deadline_ms);
  put64(out + AT_WINDOW, (uint64_t)record->lifetime.window_ms);
  put32(out + AT_TAGS_COUNT, (uint32_t)record->tags_count);
  put32(out + AT_SHORTENED, record->lifetime.shortened_ms);
  memcpy(out + AT_DIGEST, record->digest, BCS_DIGEST_SIZE);
  put64(out + AT_STALE, (uint64_t)record->stale_ms);
}

static bcs_status seal_of(const uint8_t *record, size_t variable_count, uint8_t out[SEAL_SIZE]) {
  uint8_t head[AT_SEAL];
  memcpy(head, record, AT_SEAL);
  memset(head + AT_SLOT, 0, AT_SIZE - AT_SLOT);
  uint8_t digest[BCS_DIGEST_SIZE];
  bcs_status status = bcsi_digest_parts(head, AT_SEAL, record + BCSI_RECORD_HEAD, variable_count, digest);
  if (status == BCS_OK) memcpy(out, digest, SEAL_SIZE);
  return status;
}

bcs_status bcsi_record_seal(uint8_t *record, size_t variable_count) {
  return seal_of(record, variable_count, record + AT_SEAL);
}

bcs_status bcsi_record_set_pinned(uint8_t *record, size_t count, bool pinned) {
  bcsi_record view;
  if (!bcsi_record_decode(record, count, &view)) return bcsi_fail(BCS_INVALID, 0, "pin", NULL, NULL);
  record[AT_FLAGS] = (uint8_t)((record[AT_FLAGS] & ~FLAG_PINNED) | (pinned ? FLAG_PINNED : 0));
  return bcsi_record_seal(record, view.view.key_count + view.view.attributes_count + view.view.tags_count);
}

bool bcsi_record_sealed(const bcsi_record *record) {
  uint8_t seal[SEAL_SIZE];
  const bcs_record *view = &record->view;
  return seal_of(record->head, view->key_count + view->attributes_count + view->tags_count, seal) == BCS_OK &&
         memcmp(seal, record->head + AT_SEAL, SEAL_SIZE) == 0;
}

void bcsi_record_place(uint8_t *record, uint32_t slot, uint64_t generation) {
  put32(record + AT_SLOT, slot);
  put64(record + AT_GENERATION, generation);
}

bool bcsi_record_decode(const uint8_t *bytes, size_t count, bcsi_record *out) {
  if (count < BCSI_RECORD_HEAD || bytes[AT_VERSION] != RECORD_VERSION || bytes[AT_KIND] > BCS_SLIDING) return false;
  bcs_record *view = &out->view;
  size_t key_count = get32(bytes + AT_KEY_COUNT);
  size_t attributes_count = get32(bytes + AT_ATTRIBUTES_COUNT);
  size_t tags_count = get32(bytes + AT_TAGS_COUNT);
  if (key_count > BCS_KEY_MAX || attributes_count > BCS_ATTRIBUTES_MAX || tags_count > BCS_TAGS_MAX) return false;
  size_t head_count = BCSI_RECORD_HEAD + key_count + attributes_count + tags_count;
  if (head_count > count) return false;
  view->is_file = (bytes[AT_FLAGS] & FLAG_FILE) != 0;
  view->pinned = (bytes[AT_FLAGS] & FLAG_PINNED) != 0;
  view->size = get64(bytes + AT_SIZE);
  if (view->is_file ? count != head_count : view->size != count - head_count) return false;
  view->generation = get64(bytes + AT_GENERATION);
  view->slot = get32(bytes + AT_SLOT);
  view->lifetime.kind = (bcs_lifetime_kind)bytes[AT_KIND];
  view->written_ms = (int64_t)get64(bytes + AT_WRITTEN);
  view->lifetime.deadline_ms = (int64_t)get64(bytes + AT_DEADLINE);
  view->lifetime.window_ms = (int64_t)get64(bytes + AT_WINDOW);
  view->lifetime.shortened_ms = get32(bytes + AT_SHORTENED);
  view->stale_ms = (int64_t)get64(bytes + AT_STALE);
  memcpy(view->digest, bytes + AT_DIGEST, BCS_DIGEST_SIZE);
  view->access_ms = view->written_ms;
  view->oldest_ms = 0;
  view->hits = 0;
  view->key = bytes + BCSI_RECORD_HEAD;
  view->key_count = key_count;
  view->attributes = view->key + key_count;
  view->attributes_count = attributes_count;
  view->tags = view->attributes + attributes_count;
  view->tags_count = tags_count;
  out->head = bytes;
  out->body = view->is_file ? NULL : view->tags + tags_count;
  return true;
}

enum { CLOCK_SKEW_MS = 60000 };

/* Times of a damaged record are any numbers, and a caller's clock may show any. */
static int64_t add_capped(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? INT64_MIN : INT64_MAX;
}

/* A time in the future by more than min(lifetime, 60 s) means that the clock was set back since. */
static bool clock_went_back(int64_t then_ms, int64_t now_ms, int64_t lifetime_ms) {
  int64_t allowed = lifetime_ms < CLOCK_SKEW_MS ? lifetime_ms : CLOCK_SKEW_MS;
  return then_ms > now_ms && then_ms > add_capped(now_ms, allowed);
}

bool bcsi_is_expired(const bcs_lifetime *lifetime, int64_t written_ms, int64_t access_ms, int64_t now_ms) {
  switch (lifetime->kind) {
    case BCS_FOREVER: return false;
    case BCS_EXPIRES:
      if (now_ms >= lifetime->deadline_ms) return true;
      if (lifetime->window_ms > 0) return clock_went_back(written_ms, now_ms, lifetime->window_ms);
      return clock_went_back(written_ms, now_ms, CLOCK_SKEW_MS);
    case BCS_SLIDING:
      if (now_ms >= lifetime->deadline_ms) return true;
      if (now_ms >= add_capped(access_ms, lifetime->window_ms)) return true;
      return clock_went_back(written_ms, now_ms, lifetime->window_ms) ||
             clock_went_back(access_ms, now_ms, lifetime->window_ms);
  }
  return true;
}

/* Beyond a limit in age; a clock that was set back makes nothing live longer. */
bool bcsi_is_older(int64_t written_ms, int64_t age_ms, int64_t now_ms) {
  return age_ms > 0 && (now_ms >= add_capped(written_ms, age_ms) || clock_went_back(written_ms, now_ms, age_ms));
}

bool bcs_is_expired(const bcs_record *record, int64_t now_ms) {
  if (record->oldest_ms > 0 && bcsi_is_older(record->written_ms, record->oldest_ms - record->written_ms, now_ms))
    return true;
  return bcsi_is_expired(&record->lifetime, record->written_ms, record->access_ms, now_ms);
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t oldest_of(const bcs_record *record) { return record->oldest_ms > 0 ? record->oldest_ms : INT64_MAX; }

int64_t bcs_expiry_ms(const bcs_record *record) {
  const bcs_lifetime *lifetime = &record->lifetime;
  int64_t expiry = oldest_of(record);
  if (lifetime->kind != BCS_FOREVER) expiry = earlier(expiry, lifetime->deadline_ms);
  if (lifetime->kind == BCS_SLIDING) expiry = earlier(expiry, add_capped(record->access_ms, lifetime->window_ms));
  return expiry;
}

/* Nothing is kept beyond the limit in age, not even as stale. */
int64_t bcs_gone_ms(const bcs_record *record) {
  int64_t gone = add_capped(bcs_expiry_ms(record), record->stale_ms > 0 ? record->stale_ms : 0);
  return earlier(gone, oldest_of(record));
}

void bcsi_record_limit_age(bcs_record *record, int64_t age_ms) {
  record->oldest_ms = age_ms > 0 ? add_capped(record->written_ms, age_ms) : 0;
}
