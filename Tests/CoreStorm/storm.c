/* A storm on the C core for the sanitizers: threads store, share, remove, clear, look up, list, check and sweep the same
 * few keys and contents for some seconds. Every body must match its digest; at the end the structure must be sound.
 * Run by scripts/core-storm, under ThreadSanitizer: Swift's own Mutex is not known to it, so the Swift tests cannot be. */
#include "CBlobStore.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4, KEYS = 8, CONTENTS = 4, LARGE = 40000, SMALL = 300 };

static bcs_store *store;
static atomic_bool over;
static _Atomic long hits, stores, wrong;

static size_t content(unsigned n, uint8_t *out) {
  size_t count = n % 2 ? LARGE : SMALL;
  for (size_t i = 0; i < count; i++) out[i] = (uint8_t)(i * 31 + n);
  return count;
}

static void found(void *context, const bcs_record *record, bcs_body *body) {
  uint8_t digest[BCS_DIGEST_SIZE];
  (void)context;
  if (!body) return;
  if (bcs_digest(body->bytes, body->count, digest) != BCS_OK || memcmp(digest, record->digest, sizeof digest) != 0) wrong++;
  hits++;
}

static void commit(bcs_write *write) {
  bcs_commit(store, (bcs_write *const[]){write}, 1, false);
  bcs_status status = bcs_write_result(write, NULL);
  if (status == BCS_OK) stores++;
  else if (status != BCS_MISS && status != BCS_STALE_WRITE && status != BCS_NEED_BODY) wrong++;
  bcs_write_free(write);
}

static void put(unsigned key, unsigned n, unsigned way) {
  static _Thread_local uint8_t bytes[LARGE];
  size_t count = content(n, bytes);
  bcs_entry_spec spec = {.key = &key, .key_count = sizeof key, .lifetime = {.kind = BCS_FOREVER, .deadline_ms = INT64_MAX}, .now_ms = 1};
  bcs_write *write = NULL;
  uint8_t digest[BCS_DIGEST_SIZE];
  uint64_t size;
  if (count <= SMALL) {
    if (bcs_write_inline(store, &spec, bytes, count, NULL, &write) == BCS_OK) commit(write);
  } else if (way % 2 == 0) {
    bcs_digest(bytes, count, digest);
    if (bcs_write_shared(store, &spec, digest, count, &write) == BCS_OK) commit(write);
  } else {
    bcs_stage *stage;
    if (bcs_stage_begin(store, &stage) != BCS_OK) return;
    bcs_stage_write(stage, bytes, count);
    bcs_stage_finish(stage, digest, &size);
    if (bcs_write_staged(store, &spec, stage, &write) == BCS_OK) commit(write);
    bcs_stage_free(stage);
  }
}

static void *run(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  static _Thread_local uint8_t bytes[LARGE];
  while (!over) {
    unsigned r = (unsigned)rand_r(&seed), key = r % KEYS, n = r / 8 % CONTENTS;
    bcs_damage damage;
    bcs_write *write = NULL;
    bool flag;
    switch (r / 64 % 16) {
      case 0: case 1: case 2: case 3: put(key, n, r / 4096); break;
      case 4: if (bcs_write_remove(store, &key, sizeof key, &write) == BCS_OK) commit(write); break;
      case 5: if (r % 64 == 0 && bcs_write_clear(store, &write) == BCS_OK) commit(write); break;
      case 6: bcs_sweep_trash(store, 8, &flag), bcs_give_back(store, NULL, &flag); break;
      case 7: {
        uint8_t cursor[BCS_HASH_SIZE] = {0};
        bcs_list(store, cursor, NULL, 0, 4, found, NULL, &flag);
        break;
      }
      case 8: {
        uint8_t digest[BCS_DIGEST_SIZE];
        bcs_digest(bytes, content(n, bytes), digest);
        bcs_lookup_digest(store, digest, 2, BCS_LOOKUP_TOUCH, found, NULL, &damage);
        break;
      }
      default: bcs_lookup(store, &key, sizeof key, 2, BCS_LOOKUP_TOUCH, found, NULL, &damage);
    }
  }
  return NULL;
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  bcs_options options = {.create = true, .initial_map_size = 1 << 18};
  bcs_check_report report;
  pthread_t threads[THREADS];
  if (bcs_open(arguments[1], &options, &store) != BCS_OK) return 2;
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run, (void *)(i + 1));
  nanosleep(&(struct timespec){atoi(arguments[2]), 0}, NULL);
  over = true;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  bool more = true;
  while (more) if (bcs_sweep_trash(store, 256, &more) != BCS_OK) return 1;
  bcs_status status = bcs_check_structure(store, true, &report, NULL, NULL);
  unsigned long long bad = report.unreferenced_files + report.missing_files + report.dead_staging + report.wrong_totals +
                           report.wrong_uses + report.wrong_slots + report.wrong_digests + report.damage.found;
  bcs_close(store);
  printf("core storm: %ld hits, %ld stores, %ld wrong, %llu structural\n", hits, stores, wrong, bad);
  return status != BCS_OK || wrong != 0 || bad != 0;
}
