/* What the .c files of CBlobStore share. Nothing here is seen from outside; names begin with bcsi_. */
#ifndef CBLOBSTORE_INTERNAL_H
#define CBLOBSTORE_INTERNAL_H

#include "CBlobStore.h"

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>

_Static_assert(sizeof(void *) == 8, "the index is a large mapping: 64-bit address space is needed");

enum {
  BCSI_HEX_SIZE = 2 * BCS_DIGEST_SIZE,
  BCSI_NAME_MAX = 128,
  BCSI_READERS = 128,          /* lookups at one moment in one process; more wait a moment */
  BCSI_BOOT_ID_SIZE = 40,
  BCSI_MAP_FROM = 1536 * 1024, /* files from this size up are mapped, below they are read: see the threshold table */
  BCSI_QUICK_MAX = 64 * 1024,
  BCSI_STRIPES = 512,
};

/* ---- status.c */
bcs_status bcsi_fail(bcs_status status, int code, const char *operation, const char *path, const char *cause);
bcs_status bcsi_fail_errno(int code, const char *operation, const char *path);
bcs_status bcsi_fail_lmdb(int code, const char *operation, const char *path);
bcs_status bcsi_repeat(const bcs_error *error); /* makes it this thread's last error again */

/* ---- fault.c: the seam for injected faults */
int bcsi_fault(const char *step); /* 0, or the errno that the step is to fail with */

/* ---- digest.c */
typedef struct bcsi_hasher bcsi_hasher;
bcs_status bcsi_hasher_make(bcsi_hasher **out);
bcs_status bcsi_hasher_update(bcsi_hasher *hasher, const void *bytes, size_t count);
bcs_status bcsi_hasher_finish(bcsi_hasher *hasher, uint8_t out[BCS_DIGEST_SIZE]);
void bcsi_hasher_free(bcsi_hasher *hasher);
bcs_status bcsi_digest_parts(const void *a, size_t a_count, const void *b, size_t b_count,
                             uint8_t out[BCS_DIGEST_SIZE]);
void bcsi_hex(const uint8_t *bytes, size_t count, char *out); /* writes 2 * count + 1 characters */
bool bcsi_unhex(const char *text, size_t count, uint8_t *out);

/* ---- path.c: folders and files below the store's directory, never through a symbolic link */
bcs_status bcsi_open_folder(int parent, const char *name, const char *shown, mode_t mode, bool create, int *out);
bcs_status bcsi_check_folder(int fd, mode_t mode, const char *shown);
bcs_status bcsi_check_file_system(int fd, int64_t type, bool allow_network, const char *shown);
bcs_status bcsi_write_all(int fd, const void *bytes, size_t count, const char *shown);
bcs_status bcsi_read_text(int parent, const char *name, char *out, size_t capacity, size_t *got);
bcs_status bcsi_replace_file(int parent, const char *name, const char *temporary, const void *bytes, size_t count,
                             mode_t mode, bool sync, const char *shown);
void bcsi_join(const char *directory, const char *name, char *out, size_t capacity);

/* ---- lock.c: open-file-description locks on bytes of LOCK, fcntl(2) "Open file description locks" */
typedef enum bcsi_lock_byte {
  BCSI_LOCK_OPEN = 0,      /* exclusive during the whole of open */
  BCSI_LOCK_USE = 1,       /* shared while in use; tried exclusively under byte 0: alone */
  BCSI_LOCK_WRITER = 2,    /* the writer */
  BCSI_LOCK_PIN = 3,       /* the holder of the checkpoint's pin */
  BCSI_LOCK_TURNSTILE = 4, /* the next writer waits here, so that nobody overtakes it */
} bcsi_lock_byte;
bcs_status bcsi_lock(int fd, bcsi_lock_byte byte, bool exclusive, bool wait, const char *shown);
void bcsi_unlock(int fd, bcsi_lock_byte byte);
bool bcsi_locked_by_other(int fd, bcsi_lock_byte byte);
bcs_status bcsi_writer_lock(bcs_store *store, bool try_only);
void bcsi_writer_unlock(bcs_store *store);

/* ---- owner.c: who left a staging file */
bcs_status bcsi_boot_id(char out[BCSI_BOOT_ID_SIZE]);
uint64_t bcsi_pid_namespace(void);
bcs_status bcsi_owner_name(const char *boot_id, char *out, size_t capacity);
/* False only when the owner that stands at the front of `name` is certainly gone. */
bool bcsi_owner_alive(const char *name, const char *boot_id);

/* ---- record.c */
enum { BCSI_RECORD_HEAD = 104 };
typedef struct bcsi_record {
  bcs_record view;
  const uint8_t *head;
  const uint8_t *body; /* inline bodies */
} bcsi_record;
void bcsi_record_encode_head(uint8_t *out, const bcs_record *record);
bcs_status bcsi_record_seal(uint8_t *record, size_t key_count, size_t attributes_count);
bool bcsi_record_decode(const uint8_t *bytes, size_t count, bcsi_record *out); /* bounds and values, not the seal */
bool bcsi_record_sealed(const bcsi_record *record);
void bcsi_record_place(uint8_t *record, uint32_t slot, uint64_t generation);

/* ---- slots.c */
typedef struct bcsi_slots bcsi_slots;
typedef struct bcsi_totals {
  uint64_t entries, inline_bytes, blob_files, blob_bytes, blob_allocated;
  uint64_t slots_used; /* lines below this number have been handed out */
  uint64_t recent_next, recent_count; /* of the tree `recent` */
  uint8_t store_id[16];
} bcsi_totals;
struct bcsi_slots {
  int fd;
  bool read_only;
  uint8_t *map; /* NULL: a read-only open without a table */
  size_t map_size;
  _Atomic uint32_t allocated; /* lines of the file that this process has seen to be there */
};
bcs_status bcsi_slots_open(bcs_store *store, bool alone, bool rebuild, bool *rebuilt);
void bcsi_slots_close(bcs_store *store);
void bcsi_slots_renew(bcs_store *store, const bcsi_totals *totals); /* for a new, empty index */
bcs_status bcsi_slots_reserve(bcs_store *store, uint32_t line); /* blocks on disk before use */
bool bcsi_slots_has(bcs_store *store, uint32_t line);
uint64_t bcsi_slots_generation(bcs_store *store, uint32_t line);
void bcsi_slots_hash(bcs_store *store, uint32_t line, uint8_t out[BCS_HASH_SIZE]);
void bcsi_slots_mark(bcs_store *store, const uint32_t *lines, size_t count);
void bcsi_slots_unmark(bcs_store *store);
size_t bcsi_slots_marked(bcs_store *store, uint32_t *lines, size_t capacity, bool *all);
void bcsi_slots_set_generation(bcs_store *store, uint32_t line, uint64_t generation);
void bcsi_slots_fill(bcs_store *store, const bcs_record *record, int64_t access_ms, uint32_t hits);
void bcsi_slots_empty(bcs_store *store, uint32_t line, uint64_t generation);
void bcsi_slots_touch(bcs_store *store, bcs_record *record, int64_t now_ms);
void bcsi_slots_save(bcs_store *store, uint32_t line, uint64_t out[8]);
void bcsi_slots_restore(bcs_store *store, uint32_t line, const uint64_t saved[8]);
int64_t bcsi_slots_access_ms(bcs_store *store, uint32_t line);
void bcsi_slots_expect(bcs_store *store, uint32_t line); /* will be read soon */
void bcsi_slots_read_access(bcs_store *store, bcs_record *record);
void bcsi_slots_publish_totals(bcs_store *store, const bcsi_totals *totals);
void bcsi_slots_totals(bcs_store *store, bcsi_totals *totals);
void bcsi_slots_epoch(bcs_store *store, bool odd);
_Atomic uint64_t *bcsi_slots_stripe(bcs_store *store, unsigned index); /* [0] hits, [1] misses; NULL without a table */
void bcsi_slots_stripe_sum(bcs_store *store, uint64_t *hits, uint64_t *misses);
uint64_t bcsi_slots_count_expired(bcs_store *store, int64_t now_ms);
bool bcsi_slots_agree(bcs_store *store, const bcs_record *record);

/* ---- index.c: the LMDB environment, replaceable, and its readers */
typedef struct bcsi_reader {
  _Alignas(128) _Atomic uint32_t busy;
  MDB_txn *txn;
  _Atomic uint64_t hits, misses;
} bcsi_reader;
typedef enum bcsi_gate { BCSI_GATE_OPEN, BCSI_GATE_PAUSED, BCSI_GATE_SHUT } bcsi_gate;
typedef struct bcsi_index {
  MDB_env *env;
  MDB_dbi entries, digests, recent, blobs, trash, free_slots, meta;
  uint64_t map_size;
  unsigned flags;
  char path[4200];
  _Atomic int gate;
  pthread_mutex_t transaction; /* held while this process has a write transaction, or changes the mapping */
  bcsi_reader readers[BCSI_READERS];
} bcsi_index;
/* `quiet`: nobody else writes during the call. *damaged: it may be set aside for a new one. */
bcs_status bcsi_index_open(bcs_store *store, bool quiet, bool *damaged);
bcs_status bcsi_index_replace(bcs_store *store); /* sets a damaged one aside, in use; BCS_IN_USE when by others too */
int bcsi_tree_flags(const char *name, size_t count); /* of our tree of this name; -1: no tree of ours */
void bcsi_index_close(bcs_store *store);
bcs_status bcsi_reader_enter(bcs_store *store, bcsi_reader **out);
void bcsi_reader_leave(bcsi_reader *reader);
bcs_status bcsi_reader_try_enter(bcs_store *store, bcsi_reader **out); /* BCS_BUSY where enter would wait */
bcs_status bcsi_write_begin(bcs_store *store, MDB_txn **out);
int bcsi_write_commit(bcs_store *store, MDB_txn *txn);
void bcsi_write_abort(bcs_store *store, MDB_txn *txn);
int bcsi_begin_at_open(bcs_store *store, unsigned flags, MDB_txn **out);
bcs_status bcsi_index_grow(bcs_store *store);
bcs_status bcsi_totals_get(bcs_store *store, MDB_txn *txn, bcsi_totals *out);
int bcsi_totals_put(bcs_store *store, MDB_txn *txn, const bcsi_totals *totals);

/* ---- pages.c: the index's file, read without trusting it */
typedef enum bcsi_pages {
  BCSI_PAGES_METAS, /* what never changes in the two meta pages: safe beside writers */
  BCSI_PAGES_PATHS, /* the first and the last path of every tree: as many pages as the trees are deep */
  BCSI_PAGES_ALL,
} bcsi_pages;
/* `txn`: the read transaction whose snapshot is walked; it may be renewed. NULL: nobody writes meanwhile. BCS_CORRUPT with
 * *out, or trouble; BCS_BUSY when `stop` (may be NULL) said so or the mapping must be changed first. */
bcs_status bcsi_pages_check(const char *data_file, bcsi_pages depth, MDB_txn *txn, bool (*stop)(void *context),
                            void *context, bcs_page_damage *out);

/* ---- digests.c: from content to entries */
typedef struct bcsi_pair {
  uint8_t digest[BCS_HASH_SIZE], key_hash[BCS_HASH_SIZE];
  uint64_t order;
  bool add;
} bcsi_pair;
typedef bool (*bcsi_digest_found)(void *context, const uint8_t *key_hash); /* true: enough */
int bcsi_digest_note(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, const uint8_t *digest,
                     const uint8_t *key_hash, bool add);
int bcsi_digest_merge(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, bool force);
int bcsi_digest_recent(bcs_store *store, MDB_txn *txn, bcsi_pair **out, size_t *count);
int bcsi_digest_each(bcs_store *store, MDB_txn *txn, const uint8_t *digest, bcsi_digest_found found, void *context);

/* ---- blob.c: blob files and quarantine */
typedef struct bcsi_identity {
  uint64_t device, inode, size;
  int64_t change_ns;
} bcsi_identity;
typedef struct bcsi_blob_row {
  uint32_t uses;
  uint64_t size, allocated;
} bcsi_blob_row;
void bcsi_blob_name(const uint8_t digest[BCS_DIGEST_SIZE], char *out); /* "ab/abcd…" */
void bcsi_blob_shown(const bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], char *out, size_t capacity);
void bcsi_identify(const struct stat *st, bcsi_identity *out);
/* BCS_OK, BCS_MISS (none), BCS_DAMAGED (not a regular file) or trouble. */
bcs_status bcsi_blob_stat(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], struct stat *st);
bcs_status bcsi_blob_open(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], int *fd, struct stat *st);
bcs_status bcsi_blob_read(int fd, uint64_t size, bool may_map, const char *shown, bcs_body *out);
bcs_status bcsi_blob_hash_file(int fd, uint8_t out[BCS_DIGEST_SIZE], uint64_t *size, const char *shown);
bcs_status bcsi_blob_publish(bcs_store *store, const char *staged, const uint8_t digest[BCS_DIGEST_SIZE]);
bcs_status bcsi_blob_unlink(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE]);
bcs_status bcsi_blob_sync_folder(bcs_store *store, uint8_t first);
bcs_status bcsi_blob_quarantine(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE]);
bool bcsi_blob_row_get(bcs_store *store, MDB_txn *txn, const uint8_t digest[BCS_DIGEST_SIZE], bcsi_blob_row *out,
                       int *rc);
int bcsi_blob_row_put(bcs_store *store, MDB_txn *txn, const uint8_t digest[BCS_DIGEST_SIZE], const bcsi_blob_row *row);

/* ---- staging.c */
struct bcs_stage {
  bcs_store *store;
  int fd;
  char name[BCSI_NAME_MAX];
  bcsi_hasher *hasher;
  uint8_t digest[BCS_DIGEST_SIZE];
  uint64_t size, hashed;
  bool finished, published;
};
bcs_status bcsi_intent_write(bcs_store *store, const uint8_t (*digests)[BCS_DIGEST_SIZE], size_t count);
void bcsi_intent_clear(bcs_store *store);
void bcsi_intent_abandon(bcs_store *store); /* keeps it for the next open: a new file is used from now on */
void bcsi_intent_remove(bcs_store *store);  /* a clean end */
bcs_status bcsi_staging_sweep(bcs_store *store);
bcs_status bcsi_staging_dead(bcs_store *store, uint64_t *count);

/* ---- write.c */
typedef enum bcsi_write_kind {
  BCSI_PUT_INLINE, BCSI_PUT_STAGED, BCSI_PUT_SHARED, BCSI_REMOVE, BCSI_REMOVE_IF, BCSI_RENEW, BCSI_HEAL, BCSI_CLEAR
} bcsi_write_kind;
struct bcs_write {
  bcsi_write_kind kind;
  uint8_t key_hash[BCS_HASH_SIZE];
  uint64_t generation;      /* REMOVE_IF, RENEW: expected, 0 for any */
  uint8_t *record;          /* head, key, attributes, inline body */
  size_t record_count;
  size_t key_count, attributes_count;
  bool has_attributes;
  bcs_stage *stage;
  bcsi_identity trusted;    /* PUT_SHARED, PUT_STAGED: a file without a row whose bytes were hashed */
  bool is_trusted;
  bcs_damage damage;
  bcs_status result;
  bcs_error error;
  /* set while a batch is applied */
  bool touched;             /* its line goes odd and even with the commit */
  bool freed;               /* the line becomes free */
  uint32_t slot;
  uint64_t old_generation, new_generation;
  int64_t access_ms;
  uint32_t hits;
  uint64_t line_before[8];  /* the line as it was, for a commit that fails */
};

/* ---- commit.c */
bcs_status bcsi_repair_marked(bcs_store *store, MDB_txn *txn);

/* ---- store.c */
struct bcs_store {
  bcs_info info;
  bcs_options options;
  char boot_id[BCSI_BOOT_ID_SIZE];
  char owner[BCSI_NAME_MAX];
  int root_fd, lock_fd, blobs_fd, staging_fd, quarantine_fd;
  bool durable;
  mode_t directory_mode, file_mode;
  uint32_t inline_threshold;
  bcsi_index index;
  bcsi_slots slots;
  _Atomic uint32_t *marks;  /* a line each: what was verified there since this process opened the store */
  pthread_mutex_t writer;   /* in front of the lock of the processes */
  int intent_fd;
  uint64_t intent_sequence;
  _Atomic uint64_t calls;   /* calls other than lookups that run */
  _Atomic bool shut;
  _Atomic bool fresh_index; /* the index was set aside, and no repair has looked at the files since */
  unsigned stripe_base;
  uint64_t fork_epoch;
  bcs_store *next;          /* all stores of the process, for fork */
};
enum { BCSI_MAX_LINES = 1 << 27 };
extern _Atomic uint64_t bcsi_fork_epoch;
bcs_status bcsi_call_enter(bcs_store *store);
void bcsi_call_leave(bcs_store *store);
bcs_status bcsi_key_hash(const void *key, size_t count, uint8_t out[BCS_HASH_SIZE]);
uint32_t bcsi_mark_of(const bcs_record *record, const bcsi_identity *file);

/* ---- format.c: FORMAT, LOCK's owner line and the folders */
bcs_status bcsi_layout_open(bcs_store *store, const char *directory);
bcs_status bcsi_layout_create(bcs_store *store);
bcs_status bcsi_index_set_aside(bcs_store *store);

#endif
