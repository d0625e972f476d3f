/* Records: any bytes are decoded or refused, and what was decoded lies inside of them; times of any value are reckoned
 * with; a seal holds exactly what it covers. First byte of an input: 1, seal what can be decoded. */
#include "fuzz.h"

static const int64_t moments[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, 1000, 1900000000000, INT64_MAX - 1, INT64_MAX};

static void reckon(const bcs_record *record, int64_t now) {
  bool expired = bcs_is_expired(record, now);
  int64_t expiry = bcs_expiry_ms(record), gone = bcs_gone_ms(record);
  CHECK(gone >= expiry || record->oldest_ms > 0);
  if (now >= expiry && expiry != INT64_MAX) CHECK(expired);
  if (now >= gone && gone != INT64_MAX) CHECK(expired);
  if (record->lifetime.kind == BCS_FOREVER && record->oldest_ms == 0) CHECK(!expired);
}

static void reckon_all(bcs_record record) {
  const int64_t own[] = {record.written_ms, record.lifetime.deadline_ms, record.lifetime.window_ms, record.access_ms};
  for (size_t age = 0; age < 2; age++) {
    if (age == 1) bcsi_record_limit_age(&record, record.lifetime.window_ms);
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) reckon(&record, moments[i]);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) reckon(&record, own[i]);
  }
}

static void look_at_tags(const bcs_record *view) {
  uint8_t hash[BCS_HASH_SIZE] = {0};
  uint64_t tags = bcsi_tags_count(view);
  CHECK(tags <= view->tags_count / 2);
  (void)bcsi_has_tag(view, "tag", 3);
  (void)bcsi_has_tag_hash(view, hash);
}

static void look_at_seal(uint8_t *bytes, const bcsi_record *record, size_t at) {
  const bcs_record *view = &record->view;
  size_t variable = view->key_count + view->attributes_count + view->tags_count;
  CHECK(bcsi_record_seal(bytes, variable) == BCS_OK);
  CHECK(bcsi_record_sealed(record));
  at %= BCSI_RECORD_HEAD + variable;
  bytes[at] ^= 0x10;
  bool is_line = at >= 12 && at < 24; /* slot and generation change with every commit: the line vouches for them */
  CHECK(bcsi_record_sealed(record) == is_line);
  bytes[at] ^= 0x10;
}

/* What was decoded says again what it was decoded from. */
static void encode_again(const uint8_t *bytes, const bcs_record *view) {
  uint8_t again[BCSI_RECORD_HEAD], before[BCSI_RECORD_HEAD];
  bcsi_record_encode_head(again, view);
  bcsi_record_place(again, view->slot, view->generation);
  memcpy(before, bytes, sizeof before);
  before[1] &= 3;
  before[3] = 0;
  CHECK(memcmp(again, before, 104) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count) {
  if (count == 0) return 0;
  bool seal = data[0] & 1;
  size_t at = (size_t)data[0] >> 1;
  /* At an odd place, as in LMDB's pages, and with nothing behind it that may be read. */
  size_t size = count - 1;
  uint8_t *room = malloc(size + 1), *bytes = room + 1;
  memcpy(bytes, data + 1, size);
  bcsi_record record;
  if (bcsi_record_decode(bytes, size, &record)) {
    const bcs_record *view = &record.view;
    CHECK(view->key == bytes + BCSI_RECORD_HEAD);
    CHECK(view->tags + view->tags_count <= bytes + size);
    CHECK(view->is_file ? record.body == NULL : record.body + view->size == bytes + size);
    reckon_all(*view);
    look_at_tags(view);
    encode_again(bytes, view);
    if (seal) look_at_seal(bytes, &record, at);
    else (void)bcsi_record_sealed(&record);
    bool pin = !view->pinned;
    CHECK(bcsi_record_set_pinned(bytes, size, pin) == BCS_OK);
    CHECK(bcsi_record_decode(bytes, size, &record) && record.view.pinned == pin && bcsi_record_sealed(&record));
  }
  free(room);
  return 0;
}
