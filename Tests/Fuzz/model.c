/* The model: bytes become a sequence of public calls, made of the core and of a table in memory that says what each must
 * answer, with a clock that goes forth and back, faults at named steps, reopening and other boots. Any difference aborts.
 *
 * What the model does not know it takes from the store, where the store is free to choose: which entries make room at a
 * limit, and after another boot what was changed since the last checkpoint. Even then bytes must be those of a content
 * that the key has had. */
#include "fuzz.h"

#include <ftw.h>

enum { KEYS = 8, CONTENTS = 6, TAGS = 2, THRESHOLD = 512, PENDING = 5, FIRST_FILE = 4, LARGEST = 13000 };
static const int64_t start_ms = 1000000000000;
static const size_t sizes[CONTENTS] = {0, 1, 200, 500, 5000, LARGEST};

typedef struct entry {
  bool there, pinned;
  int content, attributes;
  unsigned tags;
  bcs_lifetime lifetime;
  int64_t stale, written, access;
  uint32_t hits;
  uint64_t generation; /* as the store said last */
} entry;

typedef enum kind { PUT, REMOVE, REMOVE_IF, RENEW, PIN, CLEAR, HEAL } kind;

typedef struct pending {
  kind kind;
  int key;
  entry wish;
  bool has_attributes, has_tags, keeps_stale, is_shared;
  uint64_t generation;
  bcs_write *write;
  bcs_stage *stage;
} pending;

typedef struct model {
  bcs_store *store;
  char path[600];
  entry entries[KEYS];
  entry flushed[KEYS];
  bool settled[KEYS];       /* nothing was done to it since the last flush that returned */
  unsigned history[KEYS];   /* contents that it has had, a bit each */
  bool has_checkpoint, is_durable;
  int64_t now;
  int64_t age_limit;
  uint64_t entry_limit;
  pending pending[PENDING];
  int count;
  bool evicted;             /* hits of what comes back are not known any more */
  bool restored;            /* files may be missing, or be there without a row */
  bool ever_faulted, faulted_since_flush, faulted_since_open;
} model;

static uint8_t bodies[CONTENTS][LARGEST], digests[CONTENTS][BCS_DIGEST_SIZE];
static char long_key[600];
static uint8_t attribute_bytes[300];

/* ---- faults: one step fails, once or from then on */

static const char *const steps[] = {"stage", "stage-write", "intent", "rename", "before-commit", "unlink", "trash",
                                    "slots-allocate", "checkpoint-write", "checkpoint-sync", "checkpoint-rename",
                                    "checkpoint-folder", "flush", "list", "blob-open", "digest", "index-open", "replace-sync",
                                    "stage-sync"};
static const int codes[] = {ENOSPC, EIO, EMFILE, EDQUOT, ENOMEM, EACCES};

static struct {
  const char *step;
  int code, after, times, fired;
} fault;

static int on_step(const char *step, void *context) {
  (void)context;
  if (!fault.step || strcmp(step, fault.step) != 0 || fault.times == 0) return 0;
  if (fault.after > 0) return fault.after--, 0;
  fault.times--;
  fault.fired++;
  return fault.code;
}

/* ---- what is what */

static const void *key_bytes(int key, size_t *count) {
  static const char *const names[] = {"", "a", "ab", "ac", "b", "c"};
  if (key == KEYS - 1) return *count = sizeof long_key, long_key;
  if (key == KEYS - 2) return *count = 3, "b\0c";
  return *count = strlen(names[key]), names[key];
}

static size_t attributes_of(int n) { return n == 0 ? 0 : n == 1 ? 1 : sizeof attribute_bytes; }

static size_t encode_tags(unsigned tags, uint8_t out[16]) {
  size_t at = 0;
  for (unsigned i = 0; i < TAGS; i++)
    if (tags & 1u << i) memcpy(out + at, (uint8_t[]){2, 0, 't', (uint8_t)('0' + i)}, 4), at += 4;
  return at;
}

static bcs_lifetime lifetime_of(uint8_t n, int64_t now) {
  int64_t span = (int64_t[]){1000, 30000, 90000, 600000}[n / 4 % 4];
  switch (n % 4) {
    case 0: case 1: return (bcs_lifetime){BCS_FOREVER, 0, INT64_MAX, 0};
    case 2: return (bcs_lifetime){BCS_EXPIRES, 0, now + span, n & 64 ? span : 0};
    default: return (bcs_lifetime){BCS_SLIDING, 0, n & 64 ? now + 3 * span : INT64_MAX, span};
  }
}

/* The rule as OnDiskFormat and ExpiredIsGoneTests tell it, written anew. */
static bool went_back(int64_t then, int64_t now, int64_t span) { return then - now > (span < 60000 ? span : 60000); }

static bool is_expired(const model *m, const entry *e) {
  const bcs_lifetime *l = &e->lifetime;
  if (m->age_limit > 0 && (m->now - e->written >= m->age_limit || went_back(e->written, m->now, m->age_limit))) return true;
  if (l->kind == BCS_FOREVER) return false;
  if (m->now >= l->deadline_ms) return true;
  if (l->kind == BCS_EXPIRES) return went_back(e->written, m->now, l->window_ms > 0 ? l->window_ms : 60000);
  return m->now - e->access >= l->window_ms || went_back(e->written, m->now, l->window_ms) ||
         went_back(e->access, m->now, l->window_ms);
}

static int64_t gone_at(const model *m, const entry *e) {
  int64_t expiry = INT64_MAX, oldest = m->age_limit > 0 ? e->written + m->age_limit : INT64_MAX;
  if (e->lifetime.kind != BCS_FOREVER) expiry = e->lifetime.deadline_ms;
  if (e->lifetime.kind == BCS_SLIDING && e->access + e->lifetime.window_ms < expiry) expiry = e->access + e->lifetime.window_ms;
  if (oldest < expiry) expiry = oldest;
  int64_t gone = expiry == INT64_MAX ? expiry : expiry + e->stale;
  return gone < oldest ? gone : oldest;
}

static void touch(const model *m, entry *e) {
  if (is_expired(m, e) || e->access >= m->now) return;
  e->access = m->now;
  if (e->hits < 63) e->hits++;
}

static int content_of(const uint8_t digest[BCS_DIGEST_SIZE]) {
  for (int i = 0; i < CONTENTS; i++)
    if (memcmp(digest, digests[i], BCS_DIGEST_SIZE) == 0) return i;
  return -1;
}

/* ---- comparing */

static entry entry_of(const bcs_record *r) {
  entry e = {.there = true, .pinned = r->pinned, .content = content_of(r->digest), .lifetime = r->lifetime, .stale = r->stale_ms,
             .written = r->written_ms, .access = r->access_ms, .hits = r->hits, .generation = r->generation};
  CHECK(e.content >= 0 && r->size == sizes[e.content] && r->is_file == (r->size > THRESHOLD));
  for (e.attributes = 0; e.attributes < 3 && attributes_of(e.attributes) != r->attributes_count;) e.attributes++;
  CHECK(e.attributes < 3 && memcmp(r->attributes, attribute_bytes, r->attributes_count) == 0);
  uint8_t tags[16];
  for (e.tags = 0; e.tags < 1u << TAGS; e.tags++)
    if (encode_tags(e.tags, tags) == r->tags_count && memcmp(tags, r->tags, r->tags_count) == 0) break;
  CHECK(e.tags < 1u << TAGS);
  CHECK((e.generation & 1) == 0 && e.generation > 0);
  return e;
}

static void expect_same(const model *m, const entry *want, const entry *is) {
  CHECK(is->content == want->content && is->attributes == want->attributes && is->tags == want->tags);
  CHECK(is->pinned == want->pinned && is->stale == want->stale);
  CHECK(is->lifetime.kind == want->lifetime.kind && is->lifetime.deadline_ms == want->lifetime.deadline_ms);
  CHECK(is->lifetime.window_ms == want->lifetime.window_ms);
  CHECK(is->written == want->written && is->access == want->access);
  if (getenv("FUZZ_TRACE") && is->hits != want->hits) fprintf(stderr, "hits %u, wanted %u; written %lld access %lld\n", is->hits, want->hits, (long long)is->written, (long long)is->access);
  if (!m->evicted) CHECK(is->hits == want->hits);
}

typedef struct answer {
  model *m;
  int key; /* -1: any */
  int times;
  entry is;
  bool wants_body, keeps;
  int found; /* which key */
} answer;

static int key_of(const bcs_record *record) {
  for (int i = 0; i < KEYS; i++) {
    size_t count;
    const void *key = key_bytes(i, &count);
    if (record->key_count == count && memcmp(record->key, key, count) == 0) return i;
  }
  CHECK(!"a key that nobody stored");
  return -1;
}

/* ---- the memory tier */

typedef struct object {
  bcs_memory_item item;
  int key, content;
  uint8_t bytes[]; /* the key, then the body */
} object;

static void release(void *owner) { free(owner); }

static void keep(answer *a, const bcs_record *record, const bcs_body *body) {
  if (!bcs_memory_wants(a->m->store, record, body)) return;
  object *o = malloc(sizeof *o + record->key_count + body->count);
  CHECK(o);
  memcpy(o->bytes, record->key, record->key_count);
  if (body->count) memcpy(o->bytes + record->key_count, body->bytes, body->count);
  o->key = a->found;
  o->content = content_of(record->digest);
  o->item = (bcs_memory_item){.key = o->bytes, .key_count = (uint32_t)record->key_count, .slot = record->slot,
                              .generation = record->generation, .epoch = record->epoch, .written_ms = record->written_ms,
                              .lifetime = record->lifetime, .bytes = o->bytes + record->key_count, .count = body->count,
                              .owner = o, .cost = record->key_count + body->count};
  if (!bcs_memory_put(a->m->store, &o->item)) free(o);
}

static void on_found(void *context, const bcs_record *record, bcs_body *body) {
  answer *a = context;
  a->times++;
  a->found = key_of(record);
  CHECK(a->key < 0 || a->found == a->key);
  a->is = entry_of(record);
  CHECK((body != NULL) == a->wants_body);
  if (!body) return;
  CHECK(body->count == sizes[a->is.content]);
  CHECK(body->count == 0 || memcmp(body->bytes, bodies[a->is.content], body->count) == 0);
  if (a->keeps) keep(a, record, body);
}

/* ---- looking up */

static bcs_status ask(model *m, int key, uint32_t flags, answer *a, bcs_damage *damage) {
  size_t count;
  const void *bytes = key_bytes(key, &count);
  *a = (answer){.m = m, .key = key, .wants_body = !(flags & BCS_LOOKUP_METADATA), .keeps = flags & BCS_LOOKUP_TOUCH};
  bcs_status status = bcs_lookup(m->store, bytes, count, m->now, flags, on_found, a, damage);
  CHECK(a->times == (status == BCS_OK));
  return status;
}

static void forget(model *m, int key) { m->entries[key] = (entry){0}; }

static void commit_one(model *m, const pending *p);

/* An entry whose file another boot took back: it goes. */
static void heal(model *m, int key, const bcs_damage *damage) {
  CHECK(m->restored && m->entries[key].content >= FIRST_FILE);
  pending p = {.kind = HEAL, .key = key};
  CHECK(bcs_write_heal(m->store, damage, &p.write) == BCS_OK);
  commit_one(m, &p);
}

static void look_up(model *m, int key, uint32_t flags) {
  entry *e = &m->entries[key];
  int fired = fault.fired;
  bcs_damage damage;
  answer a;
  bcs_status status = ask(m, key, flags, &a, &damage);
  if (status == BCS_DAMAGED) return heal(m, key, &damage);
  if (status != BCS_OK && status != BCS_MISS) {
    CHECK(fault.fired > fired);
    return;
  }
  bool hit = e->there && !((flags & BCS_LOOKUP_FRESH_ONLY) && is_expired(m, e));
  CHECK((status == BCS_OK) == hit);
  if (!hit) return;
  expect_same(m, e, &a.is);
  e->generation = a.is.generation;
  if ((flags & BCS_LOOKUP_TOUCH) && !(flags & BCS_LOOKUP_METADATA)) touch(m, e);
}

static void look_in_memory(model *m, int key) {
  bcs_memory_hit hit;
  size_t count;
  const void *bytes = key_bytes(key, &count);
  entry *e = &m->entries[key];
  if (!bcs_memory_find(m->store, bytes, count, m->now, &hit)) return;
  const object *o = hit.item->owner;
  CHECK(e->there && !is_expired(m, e));
  CHECK(o->key == key && o->content == e->content && hit.item->count == sizes[e->content]);
  CHECK(hit.item->count == 0 || memcmp(hit.item->bytes, bodies[e->content], hit.item->count) == 0);
  CHECK(hit.access_ms == e->access);
  bcs_memory_leave(&hit);
  touch(m, e);
}

static void look_up_content(model *m, int content, uint32_t flags) {
  bool hit = false;
  int fired = fault.fired;
  bcs_damage damage;
  flags &= ~(uint32_t)BCS_LOOKUP_TOUCH;
  answer a = {.m = m, .key = -1, .wants_body = !(flags & BCS_LOOKUP_METADATA)};
  bcs_status status = bcs_lookup_digest(m->store, digests[content], m->now, flags, on_found, &a, &damage);
  CHECK(a.times == (status == BCS_OK));
  if (status == BCS_DAMAGED) {
    CHECK(m->restored && content >= FIRST_FILE);
    return;
  }
  for (int i = 0; i < KEYS; i++) {
    const entry *e = &m->entries[i];
    if (e->there && e->content == content && !((flags & BCS_LOOKUP_FRESH_ONLY) && is_expired(m, e))) hit = true;
  }
  if (fault.fired > fired && status != BCS_OK) return;
  CHECK((status == BCS_OK) == hit);
  if (hit) expect_same(m, &m->entries[a.found], &a.is);
}

/* Everything, as it is told without an access. What may have made room is taken as gone. */
static void compare_all(model *m, bool may_vanish) {
  uint64_t there = 0, pinned = 0, inline_bytes = 0;
  unsigned files = 0;
  for (int i = 0; i < KEYS; i++) {
    entry *e = &m->entries[i];
    bcs_damage damage;
    answer a;
    bcs_status status = ask(m, i, BCS_LOOKUP_METADATA, &a, &damage);
    CHECK(status == BCS_OK || status == BCS_MISS);
    if (e->there && status == BCS_MISS && may_vanish && !e->pinned) {
      m->evicted = true;
      m->settled[i] = false;
      forget(m, i);
    }
    CHECK((status == BCS_OK) == e->there);
    if (!e->there) continue;
    expect_same(m, e, &a.is);
    e->generation = a.is.generation;
    e->hits = a.is.hits;
    there++;
    pinned += e->pinned;
    if (e->content >= FIRST_FILE) files |= 1u << e->content;
    else inline_bytes += sizes[e->content];
  }
  bcs_counters counters;
  CHECK(bcs_count(m->store, &counters) == BCS_OK);
  CHECK(counters.entries == there && counters.pinned_entries == pinned && counters.inline_bytes == inline_bytes);
  CHECK(counters.blob_files == (uint64_t)__builtin_popcount(files));
}

/* ---- writing */

static void apply(model *m, const pending *p) {
  entry *e = &m->entries[p->key];
  m->settled[p->key] = false;
  switch (p->kind) {
    case PUT: {
      entry made = p->wish;
      made.there = true;
      made.pinned = e->there && e->pinned;
      made.hits = e->there ? e->hits : 0;
      *e = made;
      m->history[p->key] |= 1u << made.content;
      break;
    }
    case REMOVE: case REMOVE_IF: case HEAL: forget(m, p->key); break;
    case RENEW:
      e->lifetime = p->wish.lifetime;
      e->written = e->access = p->wish.written;
      if (!p->keeps_stale) e->stale = p->wish.stale;
      if (p->has_attributes) e->attributes = p->wish.attributes;
      if (p->has_tags) e->tags = p->wish.tags;
      break;
    case PIN: e->pinned = p->wish.pinned; break;
    case CLEAR:
      for (int i = 0; i < KEYS; i++) {
        forget(m, i);
        m->settled[i] = false;
      }
      break;
  }
}

/* What the store must say to a write, where nothing fails and no limit is in the way. */
static bool is_answer(const model *m, const pending *p, bcs_status result, bool changed) {
  const entry *e = &m->entries[p->key];
  switch (p->kind) {
    case PUT: return result == BCS_OK || (p->is_shared && result == BCS_NEED_BODY) || (m->entry_limit > 0 && result == BCS_PINS_TOO_LARGE);
    case REMOVE: return result == (e->there ? BCS_OK : BCS_MISS);
    case REMOVE_IF:
      if (!e->there) return result == BCS_MISS;
      return changed ? result != BCS_MISS : result == (e->generation == p->generation ? BCS_OK : BCS_STALE_WRITE);
    case RENEW:
      if (!e->there) return result == BCS_MISS;
      if (p->generation == 0) return result == BCS_OK;
      return changed ? result != BCS_MISS : result == (e->generation == p->generation ? BCS_OK : BCS_STALE_WRITE);
    case PIN:
      if (!e->there) return result == BCS_MISS;
      return result == BCS_OK || (m->entry_limit > 0 && p->wish.pinned && result == BCS_PINS_TOO_LARGE);
    case HEAL: return result == BCS_OK || result == BCS_STALE_WRITE || result == BCS_MISS;
    case CLEAR: return result == BCS_OK;
  }
  return false;
}

static void compare_written(const model *m, const pending *p) {
  bcs_record record;
  bcs_write_record(p->write, &record);
  entry is = entry_of(&record), want = m->entries[p->key];
  if (p->kind == PUT) is.hits = want.hits; /* a ghost may have told more */
  CHECK(p->kind != PIN || is.pinned == p->wish.pinned);
  if (p->kind == PUT) expect_same(m, &want, &is);
}

static void commit_all(model *m, pending *all, int count, bool try_only) {
  bcs_write *writes[PENDING];
  int fired = fault.fired;
  bool changed[KEYS] = {false}, all_fired;
  for (int i = 0; i < count; i++) writes[i] = all[i].write;
  bcs_status status = BCS_BUSY;
  if (try_only) status = bcs_commit(m->store, writes, (size_t)count, true);
  if (status == BCS_BUSY) status = bcs_commit(m->store, writes, (size_t)count, false);
  all_fired = fault.fired > fired;
  CHECK(status == BCS_OK || all_fired);
  for (int i = 0; i < count; i++) {
    bcs_error error;
    bcs_status result = bcs_write_result(writes[i], &error);
    CHECK(all_fired || is_answer(m, &all[i], result, changed[all[i].key]));
    if (result != BCS_OK) {
      m->settled[all[i].key] = false; /* a stale checkpoint may have been made meanwhile */
      continue;
    }
    apply(m, &all[i]);
    if (all[i].kind == PUT) compare_written(m, &all[i]);
    for (int k = 0; k < KEYS; k++) changed[k] |= k == all[i].key || all[i].kind == CLEAR;
  }
  for (int i = 0; i < count; i++) {
    bcs_write_free(all[i].write);
    bcs_stage_free(all[i].stage);
  }
  compare_all(m, m->entry_limit > 0);
  uint64_t there = 0, pinned = 0;
  for (int i = 0; i < KEYS; i++) there += m->entries[i].there, pinned += m->entries[i].there && m->entries[i].pinned;
  /* To within one batch, whose own entries do not go. */
  if (m->entry_limit > 0 && !all_fired && status == BCS_OK) CHECK(there <= m->entry_limit + (uint64_t)count || there == pinned);
}

static void commit_one(model *m, const pending *p) {
  pending copy = *p;
  commit_all(m, &copy, 1, false);
}

static void commit(model *m, bool try_only) {
  if (m->count == 0) return;
  int count = m->count;
  m->count = 0;
  commit_all(m, m->pending, count, try_only);
}

static pending *begin(model *m, kind kind, int key) {
  if (m->count == PENDING) commit(m, false);
  m->pending[m->count] = (pending){.kind = kind, .key = key};
  return &m->pending[m->count];
}

static bcs_entry_spec spec_of(const pending *p, uint8_t tags[16]) {
  bcs_entry_spec spec = {.lifetime = p->wish.lifetime, .stale_ms = p->keeps_stale ? -1 : p->wish.stale, .now_ms = p->wish.written};
  spec.key = key_bytes(p->key, &spec.key_count);
  if (p->kind == PUT || p->has_attributes) {
    spec.attributes = attribute_bytes;
    spec.attributes_count = attributes_of(p->wish.attributes);
  }
  if (p->kind == PUT || p->has_tags) {
    spec.tags = tags;
    spec.tags_count = encode_tags(p->wish.tags, tags);
  }
  return spec;
}

static entry wish_of(model *m, fuzz_input *in) {
  uint8_t n = fuzz_byte(in), more = fuzz_byte(in);
  entry e = {.lifetime = lifetime_of(n, m->now), .written = m->now, .access = m->now, .tags = more % 4, .attributes = more / 4 % 3};
  e.stale = (int64_t[]){0, 0, 1500, 60000}[more / 12 % 4];
  return e;
}

static bcs_status stage(model *m, pending *p, uint8_t way) {
  size_t count = sizes[p->wish.content], half = count * (way % 5) / 5, key_count;
  const void *key = key_bytes(p->key, &key_count);
  uint8_t digest[BCS_DIGEST_SIZE];
  uint64_t size;
  bcs_status status = bcs_stage_begin(m->store, &p->stage);
  if (status == BCS_OK && way & 64) status = bcs_stage_for(p->stage, key, key_count, 0);
  if (status == BCS_OK && way & 128) status = bcs_stage_expect(p->stage, count);
  if (status == BCS_OK) status = bcs_stage_write(p->stage, bodies[p->wish.content], half);
  if (status == BCS_OK) status = bcs_stage_write(p->stage, bodies[p->wish.content] + half, count - half);
  if (status == BCS_OK) status = bcs_stage_finish(p->stage, digest, &size);
  if (status == BCS_OK) CHECK(size == count && content_of(digest) == p->wish.content);
  return status;
}

static void put(model *m, fuzz_input *in) {
  uint8_t n = fuzz_byte(in), way = fuzz_byte(in);
  int fired = fault.fired;
  pending *p = begin(m, PUT, n % KEYS);
  p->wish = wish_of(m, in);
  p->wish.content = n / KEYS % CONTENTS;
  uint8_t tags[16];
  bcs_entry_spec spec = spec_of(p, tags);
  size_t count = sizes[p->wish.content];
  bcs_status status;
  if (count > THRESHOLD && way % 3 == 0) {
    p->is_shared = true;
    status = bcs_write_shared(m->store, &spec, digests[p->wish.content], count, &p->write);
    CHECK(status == BCS_OK || status == BCS_MISS || fault.fired > fired);
  } else if (count > THRESHOLD || way % 3 == 1) {
    status = stage(m, p, way);
    if (status == BCS_OK) status = bcs_write_staged(m->store, &spec, p->stage, &p->write);
    CHECK(status == BCS_OK || fault.fired > fired || m->entry_limit > 0);
  } else {
    status = bcs_write_inline(m->store, &spec, bodies[p->wish.content], count, way & 64 ? digests[p->wish.content] : NULL, &p->write);
    CHECK(status == BCS_OK || fault.fired > fired);
  }
  if (status == BCS_OK) m->count++;
  else bcs_stage_free(p->stage);
}

static void change(model *m, fuzz_input *in, kind kind) {
  uint8_t n = fuzz_byte(in), way = fuzz_byte(in), tags[16];
  int fired = fault.fired;
  pending *p = begin(m, kind, n % KEYS);
  const entry *e = &m->entries[p->key];
  size_t count;
  const void *key = key_bytes(p->key, &count);
  bcs_status status = BCS_OK;
  uint8_t digest[BCS_DIGEST_SIZE];
  CHECK(bcs_digest(key, count, digest) == BCS_OK);
  switch (kind) {
    case REMOVE: status = bcs_write_remove(m->store, key, count, &p->write); break;
    case REMOVE_IF:
      p->generation = way % 2 ? e->generation : e->generation + 2;
      status = bcs_write_remove_if(m->store, digest, p->generation, &p->write);
      break;
    case PIN:
      p->wish.pinned = way % 2;
      status = bcs_write_pin(m->store, key, count, p->wish.pinned, &p->write);
      break;
    case CLEAR: status = bcs_write_clear(m->store, &p->write); break;
    case RENEW: {
      p->wish = wish_of(m, in);
      p->has_attributes = way & 1;
      p->has_tags = way & 2;
      p->keeps_stale = way & 4;
      p->generation = way & 8 ? e->generation : way & 16 ? e->generation + 2 : 0;
      bcs_entry_spec spec = spec_of(p, tags);
      status = bcs_write_renew(m->store, &spec, p->generation, &p->write);
      break;
    }
    case PUT: case HEAL: abort();
  }
  CHECK(status == BCS_OK || fault.fired > fired);
  if (status == BCS_OK) m->count++;
}

/* ---- listing */

typedef struct listing {
  unsigned seen;
  model *m;
} listing;

static void on_listed(void *context, const bcs_record *record, bcs_body *body) {
  listing *l = context;
  int key = key_of(record);
  CHECK(!body && !(l->seen & 1u << key));
  l->seen |= 1u << key;
  entry is = entry_of(record);
  CHECK(l->m->entries[key].there);
  expect_same(l->m, &l->m->entries[key], &is);
}

static void list(model *m, uint8_t way) {
  const char *prefix = (const char *[]){"", "a", "b", "ab"}[way % 4];
  size_t count = strlen(prefix), most = way / 4 % 4 + 1;
  listing l = {.m = m};
  uint8_t cursor[BCS_HASH_SIZE] = {0};
  int fired = fault.fired;
  bool done = false;
  for (int i = 0; i < 100 && !done; i++) {
    bcs_status status = way & 64 ? bcs_list_tagged(m->store, "t0", 2, cursor, most, on_listed, &l, &done)
                                 : bcs_list(m->store, cursor, prefix, count, most, on_listed, &l, &done);
    if (status == BCS_OK) continue;
    CHECK(fault.fired > fired);
    return;
  }
  CHECK(done);
  for (int i = 0; i < KEYS; i++) {
    size_t key_count;
    const void *key = key_bytes(i, &key_count);
    bool has = way & 64 ? m->entries[i].tags & 1 : key_count >= count && memcmp(key, prefix, count) == 0;
    CHECK((l.seen >> i & 1) == (m->entries[i].there && has));
  }
}

/* ---- upkeep */

static void settle(model *m) {
  m->has_checkpoint = true;
  m->faulted_since_flush = false;
  for (int i = 0; i < KEYS; i++) {
    m->flushed[i] = m->entries[i];
    m->settled[i] = true;
  }
}

static void flush(model *m, uint8_t way) {
  int fired = fault.fired;
  bcs_status status = way % 2 ? bcs_checkpoint(m->store, 0) : bcs_flush(m->store);
  CHECK(status == BCS_OK || fault.fired > fired || m->faulted_since_open);
  if (status == BCS_OK && fault.fired == fired && !m->faulted_since_open) settle(m);
}

static void set_limits(model *m, uint8_t way) {
  bcs_limits limits = {.entries = (uint64_t[]){0, 0, 3, 6}[way % 4], .age_ms = way & 4 ? 100000 : 0, .bytes = way & 8 ? 4 << 20 : 0};
  int fired = fault.fired;
  bcs_status status = bcs_set_limits(m->store, &limits);
  CHECK(status == BCS_OK || fault.fired > fired);
  bcs_limits is;
  CHECK(bcs_get_limits(m->store, &is) == BCS_OK);
  if (status == BCS_OK) CHECK(is.entries == limits.entries && is.age_ms == limits.age_ms && is.bytes == limits.bytes);
  m->entry_limit = is.entries;
  m->age_limit = is.age_ms;
}

static void trim(model *m, uint8_t way) {
  uint64_t evicted = 0, before = 0, after = 0;
  bool more = true;
  int fired = fault.fired;
  bcs_limits limits = {.entries = way % 8 + 1};
  for (int i = 0; i < KEYS; i++) before += m->entries[i].there;
  for (int i = 0; i < 64 && more; i++) {
    bcs_status status = bcs_trim(m->store, way & 8 ? NULL : &limits, m->now, &evicted, &more);
    CHECK(status == BCS_OK || fault.fired > fired);
    if (status != BCS_OK) break;
  }
  compare_all(m, true);
  for (int i = 0; i < KEYS; i++) after += m->entries[i].there;
  CHECK(evicted == before - after);
}

/* A line keeps the stale window in seconds, rounded up: it may propose an entry that late. */
static void sweep(model *m) {
  enum { ROUNDED_MS = 1000 };
  uint32_t line = 0;
  uint64_t removed = 0, gone = 0;
  bool done = false;
  int fired = fault.fired;
  bcs_status status = bcs_sweep_begin(m->store);
  CHECK(status == BCS_OK);
  while (!done && status == BCS_OK) status = bcs_sweep_expired(m->store, &line, m->now, &removed, &done);
  bcs_sweep_end(m->store);
  CHECK(status == BCS_OK || fault.fired > fired);
  for (int i = 0; i < KEYS; i++) {
    entry *e = &m->entries[i];
    if (!e->there) continue;
    bcs_damage damage;
    answer a;
    bool is_there = ask(m, i, BCS_LOOKUP_METADATA, &a, &damage) == BCS_OK;
    bool may = !e->pinned && m->now >= gone_at(m, e);
    CHECK(is_there || may);
    if (is_there) CHECK(fault.fired > fired || !may || m->now < gone_at(m, e) + ROUNDED_MS);
    if (is_there) continue;
    m->settled[i] = false;
    gone++;
    forget(m, i);
  }
  CHECK(fault.fired > fired || gone == removed);
  compare_all(m, m->entry_limit > 0);
}

static void sweep_files(model *m, uint8_t way) {
  uint64_t removed = 0;
  bool more;
  int fired = fault.fired;
  bcs_status status = BCS_OK;
  uint8_t cursor[BCS_HASH_SIZE] = {0};
  switch (way % 5) {
    case 0: status = bcs_sweep_trash(m->store, way / 4 + 1, &more); break;
    case 1: status = bcs_sweep_staging(m->store, &removed); break;
    case 2: status = bcs_sweep_folder(m->store, digests[way / 4 % CONTENTS][0], &removed); break;
    case 3: status = bcs_sweep_quarantine(m->store, 0, &removed); break;
    case 4: /* what a boot took was looked up since, and is gone */
      status = bcs_sweep_missing(m->store, cursor, &removed, &more);
      CHECK(removed == 0);
      break;
  }
  CHECK(status == BCS_OK || fault.fired > fired);
}

static void abandon_stage(model *m, uint8_t way) {
  bcs_stage *stage = NULL;
  uint8_t back[64];
  size_t got;
  int fired = fault.fired;
  bcs_status status = bcs_stage_begin(m->store, &stage);
  if (status == BCS_OK) status = bcs_stage_write(stage, bodies[5], way * 50u);
  if (status == BCS_OK) {
    CHECK(bcs_stage_size(stage) == way * 50u && bcs_stage_read(stage, 0, back, sizeof back, &got) == BCS_OK);
    CHECK(got == (way * 50u < sizeof back ? way * 50u : sizeof back) && memcmp(back, bodies[5], got) == 0);
  }
  CHECK(status == BCS_OK || fault.fired > fired);
  bcs_stage_free(stage);
}

static void check_bodies(model *m) {
  for (int i = 0; i < KEYS; i++) {
    uint8_t digest[BCS_DIGEST_SIZE];
    bcs_damage damage;
    size_t count;
    const void *key = key_bytes(i, &count);
    int fired = fault.fired;
    CHECK(bcs_digest(key, count, digest) == BCS_OK);
    bcs_status status = bcs_check(m->store, digest, &damage);
    CHECK((status == BCS_OK) == m->entries[i].there || fault.fired > fired);
  }
}

static void check_structure(model *m, bool repair) {
  bcs_check_report r;
  int fired = fault.fired;
  bcs_status status = bcs_check_structure(m->store, repair, &r, NULL, NULL);
  if (status != BCS_OK) {
    CHECK(fault.fired > fired);
    return;
  }
  CHECK(!r.damage.found && (m->restored || !r.index_set_aside) && r.foreign_names == 0);
  CHECK(r.damaged_records == 0 && r.wrong_totals == 0 && r.wrong_uses == 0 && r.wrong_slots == 0 && r.wrong_digests == 0 && r.wrong_tags == 0);
  if (!m->restored) CHECK(r.missing_files == 0);
  if (!m->restored && !m->ever_faulted) CHECK(r.unreferenced_files == 0 && r.dead_staging == 0);
}

/* ---- opening */

static void give_up_pending(model *m) {
  for (int i = 0; i < m->count; i++) {
    bcs_write_free(m->pending[i].write);
    bcs_stage_free(m->pending[i].stage);
  }
  m->count = 0;
}

static void open_it(model *m, const char *boot, bcs_info *info) {
  bcs_options options = {.create = true, .boot_id = boot, .inline_threshold = THRESHOLD, .initial_map_size = 1 << 18,
                         .durability = m->is_durable ? BCS_DURABLE : BCS_CHECKPOINTED};
  int fired = fault.fired;
  bcs_status status = bcs_open(m->path, &options, &m->store);
  if (status != BCS_OK) {
    CHECK(fault.fired > fired);
    fault.step = NULL;
    m->ever_faulted = m->faulted_since_flush = true;
    CHECK(bcs_open(m->path, &options, &m->store) == BCS_OK);
  }
  m->faulted_since_open = fault.fired > fired;
  bcs_memory_start(m->store, 1 << 20, 100, release);
  bcs_get_info(m->store, info);
}

static void reopen(model *m) {
  bcs_info info;
  give_up_pending(m);
  bcs_close(m->store);
  open_it(m, fuzz_boot, &info);
  CHECK(!info.index_set_aside && !info.index_restored && !info.slots_rebuilt);
  compare_all(m, false);
}

/* Nothing of a durable directory is lost but when its entries were read. */
static void reboot_durable(model *m) {
  static const char *const boots[] = {"22222222-2222-2222-2222-222222222222", fuzz_boot};
  bcs_info info;
  give_up_pending(m);
  for (int i = 0; i < 2; i++) {
    bcs_close(m->store);
    open_it(m, boots[i], &info);
    CHECK(!info.index_set_aside && !info.index_restored && info.slots_rebuilt);
  }
  for (int k = 0; k < KEYS; k++) {
    m->entries[k].access = m->entries[k].written;
    m->entries[k].hits = 0;
  }
  compare_all(m, false);
}

/* Back to the last checkpoint, less what has happened since. */
static void reboot(model *m) {
  static const char *const boots[] = {"22222222-2222-2222-2222-222222222222", fuzz_boot};
  bcs_info info;
  give_up_pending(m);
  bcs_close(m->store);
  for (int i = 0; i < 2; i++) { /* and once more: with what the first one left */
    open_it(m, boots[i], &info);
    bool has_lost = info.index_set_aside;
    CHECK(!has_lost || !m->has_checkpoint || m->faulted_since_flush);
    m->restored = true;
    for (int k = 0; k < KEYS; k++) {
      entry *e = &m->entries[k];
      bcs_damage damage;
      answer a;
      bcs_status status = ask(m, k, BCS_LOOKUP_METADATA, &a, &damage);
      CHECK(status == BCS_OK || status == BCS_MISS);
      if (m->has_checkpoint && m->settled[k] && !m->faulted_since_flush) {
        CHECK((status == BCS_OK) == m->flushed[k].there);
        if (status == BCS_OK) {
          m->flushed[k].access = m->flushed[k].written;
          m->flushed[k].hits = 0;
          expect_same(m, &m->flushed[k], &a.is);
        }
      }
      if (status == BCS_OK) {
        CHECK(m->history[k] & 1u << a.is.content);
        *e = a.is;
      } else {
        forget(m, k);
      }
    }
    bcs_limits limits;
    CHECK(bcs_get_limits(m->store, &limits) == BCS_OK);
    m->entry_limit = limits.entries;
    m->age_limit = limits.age_ms;
    for (int k = 0; k < KEYS; k++)
      if (m->entries[k].there) look_up(m, k, 0);
    if (i == 0) bcs_close(m->store);
  }
  set_limits(m, 0); /* no reserve of the disk either, which a new index would have */
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
  (void)st, (void)kind, (void)where;
  return remove(path);
}

static void act(model *m, fuzz_input *in) {
  uint8_t op = fuzz_byte(in), n;
  if (getenv("FUZZ_TRACE")) fprintf(stderr, "operation %d, %d\n", op % 28, in->at < in->end ? *in->at : -1);
  switch (op % 28) {
    case 0: case 1: case 2: case 3: put(m, in); break;
    case 4: change(m, in, REMOVE); break;
    case 5: change(m, in, REMOVE_IF); break;
    case 6: case 7: change(m, in, RENEW); break;
    case 8: change(m, in, PIN); break;
    case 9: change(m, in, CLEAR); break;
    case 10: case 11: commit(m, op & 128); break;
    case 12: case 13: n = fuzz_byte(in), look_up(m, n % KEYS, n / KEYS % 16); break;
    case 14: n = fuzz_byte(in), look_up(m, n % KEYS, BCS_LOOKUP_TOUCH), look_in_memory(m, n % KEYS); break;
    case 15: n = fuzz_byte(in), look_in_memory(m, n % KEYS); break;
    case 16: n = fuzz_byte(in), look_up_content(m, n % CONTENTS, n / CONTENTS % 16); break;
    case 17: n = fuzz_byte(in), m->now += (int64_t[]){1, 500, 1000, 20000, 60000, 700000, -1000, -100000}[n % 8]; break;
    case 18: list(m, fuzz_byte(in)); break;
    case 19: flush(m, fuzz_byte(in)); break;
    case 20: reopen(m); break;
    case 21: m->is_durable ? reboot_durable(m) : reboot(m); break;
    case 22: set_limits(m, fuzz_byte(in)); break;
    case 23: commit(m, false), trim(m, fuzz_byte(in)); break;
    case 24: commit(m, false), sweep(m); break;
    case 25: sweep_files(m, fuzz_byte(in)); break;
    case 26: op & 128 ? abandon_stage(m, fuzz_byte(in)) : check_structure(m, op & 64); break;
    case 27:
      n = fuzz_byte(in);
      fault.step = steps[n % (sizeof steps / sizeof *steps)];
      n = fuzz_byte(in);
      fault.code = codes[n % (sizeof codes / sizeof *codes)];
      fault.after = n / 8 % 4;
      fault.times = n & 128 ? 3 : 1;
      break;
  }
  if (fault.fired > 0) m->ever_faulted = m->faulted_since_flush = m->faulted_since_open = true;
  fault.fired = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count) {
  static bool is_prepared;
  if (!is_prepared) {
    is_prepared = true;
    memset(long_key, 'k', sizeof long_key);
    for (size_t i = 0; i < sizeof attribute_bytes; i++) attribute_bytes[i] = (uint8_t)i;
    for (int c = 0; c < CONTENTS; c++) {
      for (size_t i = 0; i < sizes[c]; i++) bodies[c][i] = (uint8_t)(i * 31 + (size_t)c);
      CHECK(bcs_digest(bodies[c], sizes[c], digests[c]) == BCS_OK);
    }
  }
  static model m;
  bcs_info info;
  memset(&m, 0, sizeof m);
  memset(&fault, 0, sizeof fault);
  m.now = start_ms;
  m.is_durable = count > 0 && data[count - 1] % 8 == 7;
  snprintf(m.path, sizeof m.path, "%s/cache", fuzz_folder());
  bcs_set_fault_hook(on_step, NULL);
  open_it(&m, fuzz_boot, &info);
  set_limits(&m, 0);
  fuzz_input in = {data, data + count};
  for (int i = 0; i < 200 && fuzz_more(&in); i++) act(&m, &in);

  fault.step = NULL;
  commit(&m, false);
  for (int i = 0; i < KEYS; i++) look_up(&m, i, BCS_LOOKUP_TOUCH);
  compare_all(&m, false);
  check_bodies(&m);
  check_structure(&m, true);
  check_structure(&m, false);
  reopen(&m);
  for (int i = 0; i < KEYS; i++) look_up(&m, i, 0);
  bcs_close(m.store);
  CHECK(nftw(m.path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
  return 0;
}
