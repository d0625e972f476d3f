/* The slot table: patches to its head, its mark, its ghosts and its lines, while nobody has the directory open. It always
 * opens; no lookup gives wrong bytes; what never expires is found; what the index says again (counts, limits) is not
 * believed from the table; and after a repair nothing is wrong with it. */
#include "../../CSources/CBlobStore/slots.h"

#include "fuzz.h"

enum { BODIES = 8, LARGE = 20000, SMALL = 200, NOW = 1000000, LINE = 64, LINES = 16 };

static const char *directory;
static uint8_t *index_bytes, *table_bytes;
static size_t index_size, table_size;
static char large_file[1200];
static uint8_t large_body[LARGE];

typedef struct want {
  const char *key;
  size_t count;
  uint8_t fill;
  bool must; /* never expires, and nothing makes room */
} want;

static const want wanted[] = {
  {"forever-1", SMALL, 1, true}, {"forever-2", SMALL, 2, true}, {"file", LARGE, 3, true},   {"pinned", SMALL, 4, true},
  {"sliding", SMALL, 5, false},  {"expiring", SMALL, 6, false}, {"tagged", SMALL, 7, true},
};

static bcs_store *open_it(void) {
  bcs_options options = {.create = true, .boot_id = fuzz_boot, .initial_map_size = 1 << 20};
  bcs_store *store = NULL;
  CHECK(bcs_open(directory, &options, &store) == BCS_OK);
  bcs_info info;
  bcs_get_info(store, &info);
  CHECK(!info.index_set_aside);
  return store;
}

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  static char path[1024];
  snprintf(path, sizeof path, "%s/cache", fuzz_folder());
  directory = path;
  bcs_store *store = open_it();
  bcs_limits limits = {.entries = 1000, .bytes = 64 << 20};
  CHECK(bcs_set_limits(store, &limits) == BCS_OK);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    const want *w = &wanted[i];
    bcs_lifetime lifetime = {BCS_FOREVER, 0, INT64_MAX, 0};
    if (strcmp(w->key, "sliding") == 0) lifetime = (bcs_lifetime){BCS_SLIDING, 0, NOW + 100000, 50000};
    if (strcmp(w->key, "expiring") == 0) lifetime = (bcs_lifetime){BCS_EXPIRES, 0, NOW + 50000, 50000};
    memset(large_body, w->fill, LARGE);
    fuzz_put(store, w->key, large_body, w->count, strcmp(w->key, "tagged") == 0 ? "tag" : NULL, NOW, &lifetime);
  }
  bcs_write *pin;
  CHECK(bcs_write_pin(store, "pinned", 6, true, &pin) == BCS_OK && bcs_commit(store, &pin, 1, false) == BCS_OK);
  bcs_write_free(pin);
  /* Some are evicted, so that there are ghosts. */
  char key[16];
  for (int i = 0; i < 10; i++) {
    snprintf(key, sizeof key, "gone-%d", i);
    fuzz_put(store, key, large_body, SMALL, NULL, NOW, &(bcs_lifetime){BCS_EXPIRES, 0, 1, 0});
  }
  uint64_t evicted = 0;
  bool more;
  CHECK(bcs_trim(store, &(bcs_limits){.entries = sizeof wanted / sizeof *wanted}, NOW, &evicted, &more) == BCS_OK);
  CHECK(evicted == 10);
  CHECK(bcs_sweep_trash(store, 100, &more) == BCS_OK);
  CHECK(bcs_flush(store) == BCS_OK);
  bcs_close(store);

  snprintf(large_file, sizeof large_file, "%s/index/data.mdb", path);
  index_bytes = fuzz_read(large_file, &index_size);
  snprintf(large_file, sizeof large_file, "%s/slots", path);
  table_bytes = fuzz_read(large_file, &table_size);
  uint8_t digest[BCS_DIGEST_SIZE];
  char name[BCSI_NAME_MAX];
  memset(large_body, 3, LARGE);
  bcs_digest(large_body, LARGE, digest);
  bcsi_blob_name(digest, name);
  snprintf(large_file, sizeof large_file, "%s/blobs/%s", path, name);
  return 0;
}

/* The parts of the table that are patched: 64 KiB of it, one after another. */
enum { HEAD_SIZE = 4096, GHOSTS_SIZE = 4096, MARK_SIZE = 1024, PATCHED = HEAD_SIZE + GHOSTS_SIZE + MARK_SIZE + LINES * LINE };

static void damage_table(fuzz_input *in) {
  uint8_t window[PATCHED + 64];
  char path[1200];
  uint8_t cut = fuzz_byte(in);
  memcpy(window, table_bytes + LINES_AT, LINES * LINE);
  memcpy(window + LINES * LINE, table_bytes, HEAD_SIZE);
  memcpy(window + LINES * LINE + HEAD_SIZE, table_bytes + MARK_AT, MARK_SIZE);
  memcpy(window + LINES * LINE + HEAD_SIZE + MARK_SIZE, table_bytes + GHOSTS_AT, GHOSTS_SIZE);
  (void)fuzz_patch(in, window, PATCHED, LINE);
  snprintf(path, sizeof path, "%s/slots", directory);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  CHECK(fd >= 0);
  off_t size = cut < 250 ? (off_t)table_size : cut == 250 ? 0 : (off_t)(table_size / 256 * cut);
  CHECK(ftruncate(fd, 0) == 0 && ftruncate(fd, size) == 0);
  struct { size_t at, count, from; } parts[] = {{LINES_AT, LINES * LINE, 0},
                                                {0, HEAD_SIZE, LINES * LINE},
                                                {MARK_AT, MARK_SIZE, LINES * LINE + HEAD_SIZE},
                                                {GHOSTS_AT, GHOSTS_SIZE, LINES * LINE + HEAD_SIZE + MARK_SIZE}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if ((off_t)(parts[i].at + parts[i].count) <= size)
      CHECK(pwrite(fd, window + parts[i].from, parts[i].count, (off_t)parts[i].at) == (ssize_t)parts[i].count);
  close(fd);
}

typedef struct got {
  const want *w;
  int times;
} got;

static void look(void *context, const bcs_record *record, bcs_body *body) {
  got *g = context;
  g->times++;
  CHECK(record->key_count == strlen(g->w->key) && record->size == g->w->count);
  if (!body) return;
  CHECK(body->count == g->w->count);
  for (size_t i = 0; i < body->count; i++) CHECK(body->bytes[i] == g->w->fill);
}

static void look_all_up(bcs_store *store, int64_t now, bool must) {
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    got g = {.w = &wanted[i]};
    bcs_damage damage;
    bcs_status status = bcs_lookup(store, g.w->key, strlen(g.w->key), now, BCS_LOOKUP_TOUCH | BCS_LOOKUP_FRESH_ONLY, look, &g, &damage);
    CHECK(status == BCS_OK || status == BCS_MISS);
    CHECK(g.times == (status == BCS_OK));
    if (must && g.w->must) CHECK(status == BCS_OK);
    if (now >= NOW + 100000 && !g.w->must) CHECK(status == BCS_MISS);
  }
}

static void sweep(bcs_store *store, int64_t now) {
  uint32_t line = 0;
  uint64_t removed = 0;
  bool done = false;
  CHECK(bcs_sweep_begin(store) == BCS_OK);
  for (int i = 0; i < 100000 && !done; i++) CHECK(bcs_sweep_expired(store, &line, now, &removed, &done) == BCS_OK);
  CHECK(done);
  bcs_sweep_end(store);
}

static void ignore(void *context, const bcs_record *record, bcs_body *body) { (void)context, (void)record, (void)body; }

static void check_sound(bcs_store *store) {
  bcs_check_report report;
  CHECK(bcs_check_structure(store, true, &report, NULL, NULL) == BCS_OK);
  CHECK(bcs_check_structure(store, false, &report, NULL, NULL) == BCS_OK);
  CHECK(!report.damage.found && report.missing_files == 0 && report.wrong_totals == 0 && report.wrong_uses == 0);
  CHECK(report.wrong_slots == 0 && report.wrong_digests == 0 && report.wrong_tags == 0 && report.foreign_names == 0);
}

static void count(bcs_store *store, uint64_t entries) {
  bcs_counters counters;
  CHECK(bcs_count_all(store, NOW, &counters) == BCS_OK && counters.entries == entries);
  CHECK(bcs_count(store, &counters) == BCS_OK && counters.entries == entries);
  bcs_limits limits;
  CHECK(bcs_get_limits(store, &limits) == BCS_OK && limits.entries == 1000 && limits.bytes == 64 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, data + size};
  char path[1200];
  snprintf(path, sizeof path, "%s/index/data.mdb", directory);
  fuzz_write(path, index_bytes, index_size);
  snprintf(path, sizeof path, "%s/index/checkpoint", directory);
  (void)unlink(path);
  memset(large_body, 3, LARGE);
  if (access(large_file, F_OK) != 0) fuzz_write(large_file, large_body, LARGE);
  damage_table(&in);

  bcs_store *store = open_it();
  const uint64_t entries = sizeof wanted / sizeof *wanted;
  count(store, entries);
  look_all_up(store, NOW + 1, true);
  uint8_t cursor[BCS_HASH_SIZE] = {0};
  bool done;
  CHECK(bcs_list(store, cursor, NULL, 0, 100, ignore, NULL, &done) == BCS_OK && done);
  /* Stores into damaged lines; one evicts nothing, since limits are those of the index. */
  memset(large_body, 9, SMALL);
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "new-%d", i);
    fuzz_put(store, path, large_body, SMALL, NULL, NOW + 2, NULL);
  }
  count(store, entries + 4);
  look_all_up(store, NOW + 3, true);
  check_sound(store);
  look_all_up(store, NOW + 4, true);
  sweep(store, NOW + 200000);
  look_all_up(store, NOW + 200000, true);
  uint64_t evicted = 0;
  bool more = true;
  for (int i = 0; i < 100 && more; i++)
    CHECK(bcs_trim(store, &(bcs_limits){.entries = 3}, NOW + 200001, &evicted, &more) == BCS_OK);
  CHECK(evicted > 0);
  look_all_up(store, NOW + 200002, false);
  check_sound(store);
  CHECK(bcs_flush(store) == BCS_OK);
  bcs_close(store);
  return 0;
}
