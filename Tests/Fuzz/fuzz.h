/* What the fuzz targets share: a folder of their own, whole files in it, patches, and how a wrong answer ends the run.
 * Each target is one file with LLVMFuzzerTestOneInput, built and run by scripts/fuzz. */
#ifndef BLOBCACHE_FUZZ_H
#define BLOBCACHE_FUZZ_H

#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of statics are short here, since a target may include a source file of the core to reach its statics. */
#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      bcs_error fuzz_error;                                                                  \
      bcs_last_error(&fuzz_error);                                                           \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s, %d, %s, %s)\n", __FILE__, __LINE__, \
              #condition, bcs_status_name(fuzz_error.status), fuzz_error.code, fuzz_error.operation, fuzz_error.cause); \
      abort();                                                                               \
    }                                                                                        \
  } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count);

/* A new folder below TMPDIR, which whoever runs the target removes. */
static inline const char *fuzz_folder(void) {
  static char path[512];
  if (path[0]) return path;
  const char *base = getenv("TMPDIR");
  snprintf(path, sizeof path, "%s/fuzz.XXXXXX", base && *base ? base : "/tmp");
  CHECK(mkdtemp(path) != NULL);
  return path;
}

static inline const char *fuzz_path(const char *name) {
  static char paths[8][1024];
  static unsigned next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
  return path;
}

static inline void fuzz_write(const char *path, const void *bytes, size_t count) {
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  CHECK(fd >= 0);
  CHECK(pwrite(fd, bytes, count, 0) == (ssize_t)count);
  CHECK(ftruncate(fd, (off_t)count) == 0);
  close(fd);
}

static inline uint8_t *fuzz_read(const char *path, size_t *count) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  CHECK(fd >= 0 && fstat(fd, &st) == 0);
  uint8_t *bytes = malloc((size_t)st.st_size + 1);
  CHECK(bytes && pread(fd, bytes, (size_t)st.st_size, 0) == st.st_size);
  close(fd);
  *count = (size_t)st.st_size;
  return bytes;
}

/* ---- an input as a stream of small numbers; zeros behind its end */

typedef struct fuzz_input {
  const uint8_t *at, *end;
} fuzz_input;

static inline bool fuzz_more(const fuzz_input *in) { return in->at < in->end; }
static inline uint8_t fuzz_byte(fuzz_input *in) { return in->at < in->end ? *in->at++ : 0; }
static inline uint16_t fuzz_short(fuzz_input *in) {
  uint16_t low = fuzz_byte(in);
  return (uint16_t)(low | fuzz_byte(in) << 8);
}
static inline size_t fuzz_take(fuzz_input *in, size_t most, const uint8_t **out) {
  size_t left = (size_t)(in->end - in->at), count = most < left ? most : left;
  *out = in->at;
  in->at += count;
  return count;
}

/* ---- patches: what damages a file that was whole. One is an operation, a place and its bytes. */

/* Applies the rest of the input to `size` bytes in `units` (pages, say); gives the new size, at most the old one. */
static inline size_t fuzz_patch(fuzz_input *in, uint8_t *bytes, size_t size, size_t unit) {
  size_t units = size / unit;
  while (fuzz_more(in)) {
    uint8_t op = fuzz_byte(in);
    size_t start = fuzz_byte(in) % units * unit, at = start + fuzz_short(in) % unit, left = size - at;
    const uint8_t *new_bytes;
    switch (op % 6) {
      case 0: case 1: { /* some bytes */
        size_t count = fuzz_take(in, op / 6 % 8 + 1, &new_bytes);
        memcpy(bytes + at, new_bytes, count < left ? count : left);
        break;
      }
      case 2: /* a bit */
        bytes[at] ^= (uint8_t)(1 << op / 6 % 8);
        break;
      case 3: { /* torn: from here on the unit is that of another one */
        size_t from = fuzz_byte(in) % units * unit + (at - start);
        memmove(bytes + at, bytes + from, unit - (at - start));
        break;
      }
      case 4: /* zeroes up to the end of the unit */
        memset(bytes + at, 0, unit - (at - start));
        break;
      case 5: /* an unsigned number moved a little, as a length that is wrong by some */
        bytes[at] = (uint8_t)(bytes[at] + fuzz_byte(in));
        break;
    }
  }
  return size;
}

/* ---- an index to damage */

static inline void fuzz_put(bcs_store *store, const char *key, const void *body, size_t count, const char *tag, int64_t now,
                            const bcs_lifetime *lifetime) {
  uint8_t tags[64];
  size_t tag_count = tag ? strlen(tag) : 0;
  tags[0] = (uint8_t)tag_count;
  tags[1] = 0;
  if (tag) memcpy(tags + 2, tag, tag_count);
  bcs_entry_spec spec = {.key = key, .key_count = strlen(key), .tags = tag ? tags : NULL, .tags_count = tag ? tag_count + 2 : 0,
                         .lifetime = lifetime ? *lifetime : (bcs_lifetime){BCS_FOREVER, 0, INT64_MAX, 0}, .now_ms = now};
  bcs_write *write = NULL;
  bcs_info info;
  bcs_get_info(store, &info);
  bcs_stage *stage = NULL;
  if (count <= info.inline_threshold) {
    CHECK(bcs_write_inline(store, &spec, body, count, NULL, &write) == BCS_OK);
  } else {
    uint8_t digest[BCS_DIGEST_SIZE];
    uint64_t size;
    CHECK(bcs_stage_begin(store, &stage) == BCS_OK && bcs_stage_write(stage, body, count) == BCS_OK);
    CHECK(bcs_stage_finish(stage, digest, &size) == BCS_OK);
    CHECK(bcs_write_staged(store, &spec, stage, &write) == BCS_OK);
  }
  CHECK(bcs_commit(store, &write, 1, false) == BCS_OK && bcs_write_result(write, NULL) == BCS_OK);
  bcs_write_free(write);
  bcs_stage_free(stage);
}

static inline void fuzz_remove(bcs_store *store, const char *key) {
  bcs_write *write = NULL;
  CHECK(bcs_write_remove(store, key, strlen(key), &write) == BCS_OK);
  CHECK(bcs_commit(store, &write, 1, false) == BCS_OK && bcs_write_result(write, NULL) == BCS_OK);
  bcs_write_free(write);
}

static const char fuzz_boot[] = "11111111-1111-1111-1111-111111111111";

/* A directory with pages of every kind: branches, leaves, runs of pages, free ones. Its path. */
static inline const char *fuzz_index(void) {
  static char path[1024];
  bcs_options options = {.create = true, .boot_id = fuzz_boot, .initial_map_size = 1 << 20};
  bcs_store *store;
  uint8_t body[9000];
  char key[32];
  snprintf(path, sizeof path, "%s/index-made", fuzz_folder());
  CHECK(bcs_open(path, &options, &store) == BCS_OK);
  for (unsigned i = 0; i < 40; i++) {
    size_t count = i % 10 == 9 ? sizeof body : 300 + i;
    memset(body, (int)i, count);
    snprintf(key, sizeof key, "key-%u", i);
    fuzz_put(store, key, body, count, i % 3 ? NULL : "tag", 1000, NULL);
  }
  for (unsigned i = 0; i < 40; i += 5) {
    snprintf(key, sizeof key, "key-%u", i);
    fuzz_remove(store, key);
  }
  bool more;
  CHECK(bcs_sweep_trash(store, 100, &more) == BCS_OK);
  bcs_check_report report;
  CHECK(bcs_check_structure(store, true, &report, NULL, NULL) == BCS_OK); /* writes the rows by content */
  CHECK(bcs_flush(store) == BCS_OK);
  bcs_close(store);
  return path;
}

/* What LMDB does with an index: reads all of it, and with `write` changes something of each tree. It must not crash over
 * one in which the walk of pages.c found nothing. */
static inline int fuzz_lmdb(const char *folder, bool write) {
  static const char *const names[] = {"entries", "digests", "recent", "tags", "blobs", "trash", "free", "meta"};
  MDB_env *env;
  MDB_txn *txn;
  uint64_t sum = 0;
  CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 16) == 0 && mdb_env_set_mapsize(env, 1 << 20) == 0);
  unsigned flags = MDB_NOLOCK | MDB_NOTLS | MDB_NOSYNC | (write ? 0 : MDB_RDONLY);
  int rc = mdb_env_open(env, folder, flags, 0600);
  if (rc == 0) rc = mdb_txn_begin(env, NULL, write ? 0 : MDB_RDONLY, &txn);
  if (rc != 0) {
    mdb_env_close(env);
    return rc;
  }
  for (size_t i = 0; rc == 0 && i < sizeof names / sizeof *names; i++) {
    MDB_dbi tree;
    MDB_cursor *cursor;
    MDB_val key, value;
    if (mdb_dbi_open(txn, names[i], 0, &tree) != 0) continue;
    CHECK(mdb_cursor_open(txn, tree, &cursor) == 0);
    uint8_t first[512];
    size_t first_count = 0;
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
      if (first_count == 0) memcpy(first, key.mv_data, first_count = key.mv_size);
      for (size_t k = 0; k < key.mv_size; k++) sum += ((const uint8_t *)key.mv_data)[k];
      for (size_t k = 0; k < value.mv_size; k++) sum += ((const uint8_t *)value.mv_data)[k];
    }
    mdb_cursor_close(cursor);
    if (!write) continue;
    static uint8_t body[5000];
    MDB_val made = {16, "a key like others"}, large = {sizeof body, body}, gone = {first_count, first};
    if (first_count > 0) rc = mdb_del(txn, tree, &gone, NULL);
    if (rc == 0) rc = mdb_put(txn, tree, &made, &large, 0);
    if (rc == 0) rc = mdb_put(txn, tree, &gone, &made, 0);
    if (rc == MDB_BAD_VALSIZE) rc = 0; /* an empty tree has no first key */
  }
  if (rc == 0 && write) rc = mdb_txn_commit(txn);
  else mdb_txn_abort(txn);
  mdb_env_close(env);
  return sum == 1 ? rc + 0 : rc; /* the sum is only there to have read everything */
}

#endif
