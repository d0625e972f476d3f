/*
 * The store's layout, reduced to what the choice of the inline threshold depends on: 16 bytes of SHA-256(key) ->
 * 96 fixed bytes, the key, and the body when it is inline; else a file named by the body's SHA-256, staged outside
 * the write transaction and renamed inside it. No slots, no intents, no verification: the same for both sides.
 */
#include "CBaseline.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FIXED = 96, KEY_MAX = 64, BODY_MAX = 1 << 20, BATCH_MAX = 256 };
#define MAP_SIZE ((size_t)16 << 30)

struct cb_layout {
  cb_layout_options options;
  char folder[1024];
  MDB_env *env;
  MDB_dbi entries;
  MDB_txn *reader;
  uint8_t *buffer; /* a record being built, or a file being read */
};

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t key_of(uint64_t number, char key[KEY_MAX], uint8_t hash[32]) {
  size_t count = (size_t)snprintf(key, KEY_MAX, "https://cdn.example/obj/%llu", (unsigned long long)number);
  cb_sha256(key, count, count, hash);
  return count;
}

static void blob_path(const cb_layout *layout, const uint8_t digest[32], char *path, size_t capacity) {
  static const char digits[] = "0123456789abcdef";
  char hex[65] = {0};
  for (int i = 0; i < 32; i++) {
    hex[2 * i] = digits[digest[i] >> 4];
    hex[2 * i + 1] = digits[digest[i] & 15];
  }
  snprintf(path, capacity, "%s/blobs/%.2s/%s", layout->folder, hex, hex);
}

static void stage_path(const cb_layout *layout, size_t i, char *path, size_t capacity) {
  snprintf(path, capacity, "%s/staging/%zu", layout->folder, i);
}

static int make_folder(const char *folder, const char *name) {
  char path[1200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
}

static int make_folders(const char *folder, bool inline_bodies) {
  int rc = make_folder(folder, "index");
  if (rc || inline_bodies) return rc;
  rc = make_folder(folder, "staging");
  if (!rc) rc = make_folder(folder, "blobs");
  for (int i = 0; i < 256 && !rc; i++) {
    char name[16];
    snprintf(name, sizeof name, "blobs/%02x", i);
    rc = make_folder(folder, name);
  }
  return rc;
}

int cb_layout_open(const char *folder, cb_layout_options options, cb_layout **out) {
  cb_layout *layout = calloc(1, sizeof *layout);
  if (!layout) return ENOMEM;
  layout->options = options;
  snprintf(layout->folder, sizeof layout->folder, "%s", folder);
  layout->buffer = malloc(FIXED + KEY_MAX + BODY_MAX);
  char index[1200];
  snprintf(index, sizeof index, "%s/index", folder);
  unsigned flags = MDB_NOTLS | MDB_NOSYNC | (options.read_ahead ? 0 : MDB_NORDAHEAD);
  MDB_txn *txn = NULL;
  int rc = layout->buffer ? make_folders(folder, options.inline_bodies) : ENOMEM;
  if (!rc) rc = mdb_env_create(&layout->env);
  if (!rc) rc = mdb_env_set_mapsize(layout->env, MAP_SIZE);
  if (!rc) rc = mdb_env_set_maxdbs(layout->env, 4);
  if (!rc) rc = mdb_env_open(layout->env, index, flags, 0600);
  if (!rc) rc = mdb_txn_begin(layout->env, NULL, 0, &txn);
  if (!rc) rc = mdb_dbi_open(txn, "entries", MDB_CREATE, &layout->entries);
  if (!rc) rc = mdb_txn_commit(txn);
  if (!rc) rc = mdb_txn_begin(layout->env, NULL, MDB_RDONLY, &layout->reader);
  if (rc) {
    cb_layout_close(layout);
    return rc;
  }
  mdb_txn_reset(layout->reader);
  *out = layout;
  return 0;
}

void cb_layout_close(cb_layout *layout) {
  if (layout->reader) mdb_txn_abort(layout->reader);
  if (layout->env) mdb_env_close(layout->env);
  free(layout->buffer);
  free(layout);
}

static int remove_entry(cb_layout *layout, MDB_txn *txn, uint64_t number) {
  char key[KEY_MAX];
  uint8_t hash[32];
  key_of(number, key, hash);
  MDB_val name = {16, hash}, record;
  int rc = mdb_get(txn, layout->entries, &name, &record);
  if (rc) return rc;
  if (!layout->options.inline_bodies) {
    char path[1200];
    blob_path(layout, record.mv_data, path, sizeof path);
    if (unlink(path) != 0) return errno;
  }
  return mdb_del(txn, layout->entries, &name, NULL);
}

static int insert_entry(cb_layout *layout, MDB_txn *txn, uint64_t number, size_t i, const uint8_t digest[32],
                        const uint8_t *body, size_t size) {
  char key[KEY_MAX];
  uint8_t hash[32];
  size_t key_count = key_of(number, key, hash);
  if (!layout->options.inline_bodies) {
    char from[1200], to[1200];
    stage_path(layout, i, from, sizeof from);
    blob_path(layout, digest, to, sizeof to);
    if (rename(from, to) != 0) return errno;
  }
  size_t body_count = layout->options.inline_bodies ? size : 0;
  MDB_val name = {16, hash}, record = {FIXED + key_count + body_count, NULL};
  int rc = mdb_put(txn, layout->entries, &name, &record, MDB_RESERVE);
  if (rc) return rc;
  uint8_t *at = record.mv_data;
  memset(at, 0, FIXED);
  memcpy(at, digest, 32);
  memcpy(at + 32, &size, sizeof size);
  memcpy(at + 40, &key_count, sizeof key_count);
  memcpy(at + FIXED, key, key_count);
  memcpy(at + FIXED + key_count, body, body_count);
  return 0;
}

int cb_layout_put(cb_layout *layout, const uint64_t *numbers, const uint64_t *removals, const uint8_t *bodies,
                  size_t stride, const size_t *sizes, size_t count, uint64_t *locked_ns) {
  uint8_t digests[BATCH_MAX][32];
  if (count > BATCH_MAX) return EINVAL;
  for (size_t i = 0; i < count; i++) {
    int rc = cb_sha256(bodies + i * stride, sizes[i], sizes[i], digests[i]);
    char path[1200];
    stage_path(layout, i, path, sizeof path);
    if (!rc && !layout->options.inline_bodies) rc = cb_file_write(path, bodies + i * stride, sizes[i]);
    if (rc) return rc;
  }
  uint64_t start = now_ns();
  MDB_txn *txn;
  int rc = mdb_txn_begin(layout->env, NULL, 0, &txn);
  if (rc) return rc;
  for (size_t i = 0; i < count && !rc; i++) {
    if (removals) rc = remove_entry(layout, txn, removals[i]);
    if (!rc) rc = insert_entry(layout, txn, numbers[i], i, digests[i], bodies + i * stride, sizes[i]);
  }
  if (rc) {
    mdb_txn_abort(txn);
    return rc;
  }
  rc = mdb_txn_commit(txn);
  *locked_ns += now_ns() - start;
  return rc;
}

static int get_inline(MDB_val record, bool will_need, uint64_t *sum) {
  size_t size, key_count;
  const uint8_t *at = record.mv_data;
  uintptr_t page = 4096, first = (uintptr_t)at & ~(page - 1), end = (uintptr_t)at + record.mv_size;
  if (will_need && end - first > page) madvise((void *)first, end - first, MADV_WILLNEED);
  memcpy(&size, at + 32, sizeof size);
  memcpy(&key_count, at + 40, sizeof key_count);
  *sum = cb_sum(at + FIXED + key_count, size);
  return 0;
}

int cb_layout_get(cb_layout *layout, uint64_t number, bool will_need, uint64_t *sum) {
  char key[KEY_MAX], path[1200];
  uint8_t hash[32];
  key_of(number, key, hash);
  MDB_val name = {16, hash}, record;
  int rc = mdb_txn_renew(layout->reader);
  if (rc) return rc;
  rc = mdb_get(layout->reader, layout->entries, &name, &record);
  if (!rc && layout->options.inline_bodies) rc = get_inline(record, will_need, sum);
  if (!rc && !layout->options.inline_bodies) blob_path(layout, record.mv_data, path, sizeof path);
  mdb_txn_reset(layout->reader);
  if (!rc && !layout->options.inline_bodies) rc = cb_file_read_sum(path, layout->buffer, BODY_MAX, sum);
  return rc;
}

/* LMDB keeps its free pages as lists of page numbers, the count first, in database 0. */
static int free_pages(cb_layout *layout, uint64_t *pages) {
  MDB_cursor *cursor;
  MDB_val key, list;
  *pages = 0;
  int rc = mdb_txn_renew(layout->reader);
  if (rc) return rc;
  rc = mdb_cursor_open(layout->reader, 0, &cursor);
  if (!rc) {
    while ((rc = mdb_cursor_get(cursor, &key, &list, MDB_NEXT)) == 0) {
      size_t count;
      memcpy(&count, list.mv_data, sizeof count);
      *pages += count;
    }
    mdb_cursor_close(cursor);
  }
  mdb_txn_reset(layout->reader);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int cb_layout_space(cb_layout *layout, uint64_t *allocated, uint64_t *reusable) {
  uint64_t pages;
  int rc = mdb_env_sync(layout->env, 1); /* delayed allocation would hide blocks */
  if (!rc) sync();
  if (!rc) rc = free_pages(layout, &pages);
  if (!rc) rc = cb_tree_allocated(layout->folder, allocated);
  if (!rc) *reusable = pages * 4096;
  return rc;
}
