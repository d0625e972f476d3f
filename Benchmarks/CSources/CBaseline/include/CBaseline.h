/*
 * CBaseline: what BlobCache is measured against, each written as its own user would write it.
 *
 * bodies.c     seeded incompressible bytes, and the one summing loop that both sides of every row use
 * digest.c     SHA-256 alone
 * lmdb_peer.c  LMDB alone, the URL as its key
 * files.c      plain files, read or mapped
 * layout.c     the store's record layout with the body inline or in a file: the threshold experiment
 *
 * Every call that can fail gives 0 or a code for cb_error_text: errno (> 0) or LMDB's own (< 0).
 */
#ifndef CBASELINE_H
#define CBASELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char *cb_error_text(int code);

/* ---- Bodies ---- */

void cb_fill(uint64_t seed, void *out, size_t count);
uint64_t cb_sum(const void *bytes, size_t count);

/* ---- SHA-256 alone ---- */

/* In pieces of `piece` bytes, as a stream would come. */
int cb_sha256(const void *bytes, size_t count, size_t piece, uint8_t digest[32]);

/* ---- LMDB alone ---- */

typedef struct cb_lmdb cb_lmdb;

/* MDB_NOTLS | MDB_NOSYNC | MDB_NORDAHEAD; the folder must exist. Released by cb_lmdb_close. */
int cb_lmdb_open(const char *folder, size_t map_size, cb_lmdb **out);
void cb_lmdb_close(cb_lmdb *peer);

/* Keys stand one after another, each `key_stride` bytes apart and ended by a zero byte. */
typedef struct cb_keys {
  const char *first;
  size_t key_stride;
  size_t count;
} cb_keys;

/* One body per key, `body_size` bytes apart; `batch` keys a transaction. */
int cb_lmdb_put(cb_lmdb *peer, cb_keys keys, const uint8_t *bodies, size_t body_size, size_t batch);
/* Reset/renew, mdb_get, every byte summed. Says how many keys were there. */
int cb_lmdb_get(cb_lmdb *peer, cb_keys keys, uint64_t *sum, size_t *found);

/* ---- Plain files ---- */

int cb_file_write(const char *path, const void *bytes, size_t count);
/* open, fstat, read into the caller's buffer, sum, close. */
int cb_file_read_sum(const char *path, void *buffer, size_t capacity, uint64_t *sum);
/* open, fstat, mmap, sum, munmap, close. */
int cb_file_map_sum(const char *path, uint64_t *sum);
/* Allocated bytes of a folder and all below, by st_blocks. */
int cb_tree_allocated(const char *folder, uint64_t *bytes);
int cb_tree_remove(const char *folder);

/* ---- Record layout: inline or file ---- */

typedef struct cb_layout cb_layout;

typedef struct cb_layout_options {
  bool inline_bodies; /* the body in the record, else in blobs/ab/<digest> */
  bool read_ahead;    /* false: MDB_NORDAHEAD */
} cb_layout_options;

int cb_layout_open(const char *folder, cb_layout_options options, cb_layout **out);
void cb_layout_close(cb_layout *layout);

/* One group commit: hash every body, stage files, then one transaction that removes and inserts. `removals` may be
 * NULL. Body i stands at bodies + i * stride. `locked_ns`: the part spent between mdb_txn_begin and the end of
 * mdb_txn_commit, when no other writer can work. */
int cb_layout_put(cb_layout *layout, const uint64_t *numbers, const uint64_t *removals, const uint8_t *bodies,
                  size_t stride, const size_t *sizes, size_t count, uint64_t *locked_ns);
/* Renew, mdb_get, the bytes (read into a buffer when a file) summed. `will_need`: madvise the value's pages first. */
int cb_layout_get(cb_layout *layout, uint64_t number, bool will_need, uint64_t *sum);
/* Blocks of the index and the files; of the index, the pages that are free for reuse. */
int cb_layout_space(cb_layout *layout, uint64_t *allocated, uint64_t *reusable);

/* Makes a folder's files cold; it must not be mapped. As root also drops the kernel's caches, directories and inodes
 * included; *complete says so. */
int cb_make_cold(const char *folder, bool *complete);

#endif
