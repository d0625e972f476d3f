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
  BCSI_READERS_READY = 16,     /* of these, as many as are registered by the open: see index.c */
  BCSI_BOOT_ID_SIZE = 40,
  BCSI_MAP_FROM = 1536 * 1024, /* files from this size up are mapped, below they are read: see the threshold table */
  BCSI_QUICK_MAX = 64 * 1024,
  BCSI_STRIPES = 512,
  BCSI_GHOSTS_SIZE = (32 << 20) + 65536,
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

/* ---- sha256.c: cannot fail */
void bcsi_sha256_parts(const void *a, size_t a_count, const void *b, size_t b_count, uint8_t out[BCS_DIGEST_SIZE]);

/* ---- path.c: folders and files below the store's directory, never through a symbolic link */
bcs_status bcsi_open_folder(int parent, const char *name, const char *shown, mode_t mode, bool create, int *out);
bcs_status bcsi_check_folder(int fd, mode_t mode, const char *shown);
bcs_status bcsi_check_file_system(int fd, int64_t type, bool allow_network, const char *shown);
bcs_status bcsi_write_all(int fd, const void *bytes, size_t count, const char *shown);
/* Of a file that is written in place: none that is something else, or that has a second name, outside perhaps. */
bcs_status bcsi_check_own(const struct stat *st, bool read_only, const char *shown);
ssize_t bcsi_read_at(int fd, void *out, size_t count, off_t at); /* less only at the end of the file; -1 with errno */
int bcsi_write_at(int fd, const void *bytes, size_t count, off_t at); /* an errno, or 0 */
bcs_status bcsi_read_text(int parent, const char *name, const char *shown, char *out, size_t capacity, size_t *got);
void bcsi_join(const char *directory, const char *name, char *out, size_t capacity);

/* ---- lock.c: open-file-description locks on bytes of LOCK, fcntl(2) "Open file description locks" */
typedef enum bcsi_lock_byte {
  BCSI_LOCK_OPEN = 0,      /* exclusive during the whole of open */
  BCSI_LOCK_USE = 1,       /* shared while in use; tried exclusively under byte 0: alone */
  BCSI_LOCK_WRITER = 2,    /* the writer */
  BCSI_LOCK_CHECKPOINT = 3, /* who makes a checkpoint */
  BCSI_LOCK_TURNSTILE = 4, /* the next writer waits here, so that nobody overtakes it */
  BCSI_LOCK_SWEEP = 5,     /* who sweeps */
  BCSI_LOCK_SWEEP_WANTED = 6, /* shared by those who wait for byte 5: a sweep in the background ends for them */
} bcsi_lock_byte;
bcs_status bcsi_lock(int fd, bcsi_lock_byte byte, bool exclusive, bool wait, const char *shown);
void bcsi_unlock(int fd, bcsi_lock_byte byte);
bool bcsi_locked_by_other(int fd, bcsi_lock_byte byte);
int bcsi_lock_range(int fd, off_t start, off_t count, short type, int command); /* 0 or errno; never of bytes 0 to 6 */
off_t bcsi_lock_of_other(int fd, off_t at); /* how long the lock is that somebody else holds from there on; 0: none */
bcs_status bcsi_writer_lock(bcs_store *store, bool try_only);
void bcsi_writer_unlock(bcs_store *store);

/* ---- lease.c: locks far behind those bytes */
void bcsi_leases_give_up(bcs_store *store);

/* ---- owner.c: who left a staging file */
bcs_status bcsi_boot_id(char out[BCSI_BOOT_ID_SIZE]);
uint64_t bcsi_pid_namespace(void); /* 0, with errno: it cannot be told */
bcs_status bcsi_owner_name(const char *boot_id, char *out, size_t capacity);
/* False only when the owner that stands at the front of `name` is certainly gone. */
bool bcsi_owner_alive(const char *name, const char *boot_id);

/* ---- record.c */
enum { BCSI_RECORD_HEAD = 112 };
typedef struct bcsi_record {
  bcs_record view;
  const uint8_t *head;
  const uint8_t *body; /* inline bodies */
} bcsi_record;
void bcsi_record_encode_head(uint8_t *out, const bcs_record *record);
bcs_status bcsi_record_seal(uint8_t *record, size_t variable_count); /* key, attributes, tags */
bool bcsi_record_decode(const uint8_t *bytes, size_t count, bcsi_record *out); /* bounds and values, not the seal */
bool bcsi_record_sealed(const bcsi_record *record);
void bcsi_record_limit_age(bcs_record *record, int64_t age_ms);
bcs_status bcsi_record_set_pinned(uint8_t *record, size_t count, bool pinned);
/* bcs_is_expired, of the four values that it looks at. */
bool bcsi_is_older(int64_t written_ms, int64_t age_ms, int64_t now_ms);
bool bcsi_is_expired(const bcs_lifetime *lifetime, int64_t written_ms, int64_t access_ms, int64_t now_ms);
void bcsi_record_place(uint8_t *record, uint32_t slot, uint64_t generation);

/* ---- slots.c, head.c */
typedef struct bcsi_slots bcsi_slots;
typedef struct bcsi_totals {
  uint64_t entries, inline_bytes, blob_files, blob_bytes, blob_allocated;
  uint64_t slots_used; /* lines below this number have been handed out */
  uint64_t recent_next, recent_count; /* of the tree `recent` */
  uint64_t trash_allocated, quarantine_allocated;
  uint64_t pinned_entries, pinned_bytes;
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
bool bcsi_slots_read_id(bcs_store *store, uint8_t out[16]); /* of the file, which need not be open */
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
uint64_t bcsi_slots_epoch_now(bcs_store *store); /* odd without a table */
bool bcsi_slots_epoch_is_odd(bcs_store *store);
/* Whether an entry that was read with this generation and epoch is still the newest: see memory.c. */
bool bcsi_slots_stands(bcs_store *store, uint32_t line, uint64_t generation, uint64_t epoch);
/* A hit of the memory tier: false unless the item stands and is fresh; touches. */
bool bcsi_slots_recall(bcs_store *store, const bcs_memory_item *item, int64_t now_ms, int64_t *access_ms,
                       uint32_t *hits);
/* [0] hits in the index, [1] misses, [2] hits in memory; NULL without a table. The sum of hits has both. */
_Atomic uint64_t *bcsi_slots_stripe(bcs_store *store, unsigned index);
void bcsi_slots_stripe_sum(bcs_store *store, uint64_t *hits, uint64_t *misses, uint64_t *memory_hits);
void bcsi_slots_set_limits(bcs_store *store, const bcs_limits *limits);
uint64_t bcsi_slots_staged(bcs_store *store, int64_t change); /* and how many are staged now */
uint64_t bcsi_slots_staging(bcs_store *store);
void bcsi_slots_set_staging(bcs_store *store, uint64_t bytes);
void bcsi_slots_publish_live(bcs_store *store, uint64_t index_live);
uint64_t bcsi_slots_live(bcs_store *store);
int64_t bcsi_slots_now(bcs_store *store, int64_t now_ms); /* 0: only asks */
void bcsi_slots_set_restored(bcs_store *store, bool restored); /* for the rest of this boot */
bool bcsi_slots_restored(bcs_store *store);
bool bcsi_slots_misses_files(bcs_store *store); /* entries may lack their files: no sweep has looked since */
void bcsi_slots_found_missing(bcs_store *store);
void bcsi_slots_count_evicted(bcs_store *store, uint64_t count);
uint64_t bcsi_slots_evictions(bcs_store *store);
void *bcsi_slots_ghosts(bcs_store *store);
size_t bcsi_slots_ghosts_size(bcs_store *store); /* of it has blocks */
bcs_status bcsi_slots_reserve_ghosts(bcs_store *store, size_t size);
bool bcsi_slots_keep_files(bcs_store *store); /* no sweep of files that no row knows */
bool bcsi_slots_repair_keeps_files(bcs_store *store);
void bcsi_slots_repaired(bcs_store *store);
bool bcsi_slots_record(bcs_store *store, uint32_t line, bcs_record *out);
uint64_t bcsi_slots_count_expired(bcs_store *store, int64_t now_ms);
bool bcsi_slots_agree(bcs_store *store, const bcs_record *record);

/* ---- lines.c */
int bcsi_lines_check(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, bool repair, bool has_table, uint64_t *wrong);
bcs_status bcsi_lines_mend(bcs_store *store); /* alone, before a table is made */

/* ---- maps.c */
typedef bool (*bcsi_mapping_found)(void *from, size_t size, uint64_t offset, void *context); /* true: that is enough */
void bcsi_each_mapping(const char *path, bcsi_mapping_found found, void *context);

/* ---- index.c: the LMDB environment, replaceable, and its readers */
typedef struct bcsi_reader {
  _Alignas(128) _Atomic uint32_t busy;
  MDB_txn *txn;
  uint64_t epoch; /* of removals, read before the snapshot was taken */
  _Atomic uint64_t hits, misses;
} bcsi_reader;
typedef enum bcsi_gate { BCSI_GATE_OPEN, BCSI_GATE_PAUSED, BCSI_GATE_SHUT } bcsi_gate;
typedef struct bcsi_index {
  MDB_env *env;
  MDB_dbi entries, digests, recent, tags, blobs, trash, free_slots, meta;
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
void bcsi_index_close(bcs_store *store);
bcs_status bcsi_reader_enter(bcs_store *store, bcsi_reader **out);
void bcsi_reader_leave(bcsi_reader *reader);
bcs_status bcsi_readers_sweep(bcs_store *store);
bcs_status bcsi_reader_try_enter(bcs_store *store, bcsi_reader **out); /* BCS_BUSY where enter would wait */
bcs_status bcsi_write_begin(bcs_store *store, MDB_txn **out);
int bcsi_write_commit(bcs_store *store, MDB_txn *txn);
void bcsi_write_abort(bcs_store *store, MDB_txn *txn);
int bcsi_begin_at_open(bcs_store *store, unsigned flags, MDB_txn **out);
bcs_status bcsi_index_grow(bcs_store *store);
bool bcsi_gate_close(bcsi_index *index); /* no lookup begins; waits for those that run; with `transaction`. False: shut */
void bcsi_gate_open(bcsi_index *index);
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

/* ---- limits.c */
bcs_limits bcsi_limits(bcs_store *store); /* from the table's head */
int64_t bcsi_limit_age_ms(bcs_store *store);
uint64_t bcsi_limit_room(uint64_t bytes); /* of a limit, for entries */
bcs_limits bcsi_limits_default(void);
uint64_t bcsi_disk_free(bcs_store *store);
bcs_status bcsi_check_free(bcs_store *store, uint64_t minimum, const char *operation);
bool bcsi_disk_lacks(bcs_store *store, uint64_t minimum, uint64_t expected);
bool bcsi_disk(bcs_store *store, uint64_t minimum, uint64_t *free, uint64_t *reserve);
int bcsi_limits_get(bcs_store *store, MDB_txn *txn, bcs_limits *out);
int bcsi_limits_put(bcs_store *store, MDB_txn *txn, const bcs_limits *limits);
uint64_t bcsi_index_live(bcs_store *store, MDB_txn *txn);
uint64_t bcsi_used_bytes(bcs_store *store, const bcsi_totals *totals, uint64_t index_live);

/* ---- links.c: from a hash to entries. LMDB codes; that a link is there already, or is not there, is no trouble. */
enum { BCSI_LINK_SIZE = 2 * BCS_HASH_SIZE };
extern const uint8_t bcsi_first_hash[BCS_HASH_SIZE];
void bcsi_link_make(const uint8_t hash[BCS_HASH_SIZE], const uint8_t key_hash[BCS_HASH_SIZE],
                    uint8_t out[BCSI_LINK_SIZE]);
int bcsi_link_put(MDB_txn *txn, MDB_dbi tree, const uint8_t link[BCSI_LINK_SIZE]);
int bcsi_link_remove(MDB_txn *txn, MDB_dbi tree, const uint8_t link[BCSI_LINK_SIZE]);
bool bcsi_link_exists(MDB_txn *txn, MDB_dbi tree, const uint8_t link[BCSI_LINK_SIZE], int *rc);
/* The links of a hash in order, from the key hash `from` on. MDB_NOTFOUND at their end. *key_hash stands in a page. */
int bcsi_link_find(MDB_cursor *cursor, const uint8_t hash[BCS_HASH_SIZE], const uint8_t from[BCS_HASH_SIZE],
                   const uint8_t **key_hash);
int bcsi_link_next(MDB_cursor *cursor, const uint8_t hash[BCS_HASH_SIZE], const uint8_t **key_hash);

/* ---- digests.c: from content to entries */
typedef struct bcsi_pair {
  uint8_t link[BCSI_LINK_SIZE]; /* digest, key hash */
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
  uint32_t uses, pins; /* entries, and pinned ones among them */
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
bcs_status bcsi_blob_sync_staged(bcs_store *store, const char *staged);
bcs_status bcsi_blob_unlink(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE]);
bcs_status bcsi_blob_sync_folder(bcs_store *store, uint8_t first);
bcs_status bcsi_blob_quarantine(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE]);
uint64_t bcsi_quarantine_allocated(bcs_store *store); /* by a walk */
bcs_status bcsi_quarantine_recount(bcs_store *store);
bool bcsi_blob_is_known(bcs_store *store, MDB_txn *txn, const uint8_t digest[BCS_DIGEST_SIZE]);
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
  uint64_t counted; /* of the size, in the table's head */
  uint64_t announced; /* how large it may become, whatever that takes; 0: nobody told */
  uint8_t key_hash[BCS_HASH_SIZE]; /* of the entry that it is to be, where `has_key` */
  uint64_t own_bytes; /* of that entry, besides the body */
  bool has_key;
  bool finished, published;
};
void bcsi_stage_published(bcs_stage *stage);
/* For a write that found no space: evicts until so many bytes more are free, if the disk is bounded. False: no use. */
bool bcsi_make_space(bcs_store *store, int code, uint64_t bytes);
bcs_status bcsi_staging_sweep(bcs_store *store);
bcs_status bcsi_staging_recount(bcs_store *store);
bcs_status bcsi_staging_dead(bcs_store *store, uint64_t *count);

/* ---- intents.c: what a batch is about to publish; under the write lock */
bcs_status bcsi_intent_write(bcs_store *store, const uint8_t (*digests)[BCS_DIGEST_SIZE], size_t count);
void bcsi_intent_clear(bcs_store *store);
void bcsi_intent_keep(bcs_store *store); /* what it names could not be taken back: tried again, see bcsi_intent_retry */
void bcsi_intent_retry(bcs_store *store, MDB_txn *txn); /* with the write lock, before anything is published */
void bcsi_intent_remove(bcs_store *store);  /* a clean end */
bcs_status bcsi_intent_undo(bcs_store *store, MDB_txn *txn, const char *name); /* of a dead owner */

/* ---- write.c */
typedef enum bcsi_write_kind {
  BCSI_PUT_INLINE, BCSI_PUT_STAGED, BCSI_PUT_SHARED, BCSI_REMOVE, BCSI_REMOVE_IF, BCSI_REMOVE_GONE, BCSI_RENEW, BCSI_PIN, BCSI_HEAL,
  BCSI_CLEAR
} bcsi_write_kind;
struct bcs_write {
  bcsi_write_kind kind;
  uint8_t key_hash[BCS_HASH_SIZE];
  uint64_t generation;      /* REMOVE_IF, RENEW: expected, 0 for any */
  int64_t now_ms;           /* the caller's time; 0: it told none */
  uint8_t *record;          /* head, key, attributes, inline body */
  size_t record_count;
  size_t key_count, attributes_count;
  size_t tags_count;
  bool has_attributes, has_tags, pin;
  bool keeps_stale; /* a renewal that leaves the stale window; its record tells it no more after the first try */
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
  int64_t limit_age_ms;
  uint32_t hits;
  uint64_t line_before[8];  /* the line as it was, for a commit that fails */
};

/* ---- apply.c: one write, inside the batch's transaction */
typedef struct bcsi_batch {
  bcs_store *store;
  MDB_txn *txn;
  bcsi_totals totals;
  bool cleared;                 /* a removal of everything is in it */
  bool is_tried_again;
  bool folders[256];            /* durable: published into, to be synced before the commit */
  uint8_t (*published)[BCS_DIGEST_SIZE];
  size_t published_count;
  uint8_t (*new_files)[BCS_DIGEST_SIZE]; /* published, or with their first row: the next checkpoint syncs them */
  size_t new_file_count;
  uint64_t published_staged;    /* their bytes, which are still counted as staged */
  uint32_t *lines;              /* touched, for the mark */
  size_t line_count;
  uint32_t *freed;              /* given back at the end: a line is not used twice in one batch */
  size_t freed_count;
  bool strays;                  /* an entry changes whose line is not known: a damaged record */
  bcs_write *const *writes;     /* those before the one that is applied */
  size_t applied;
  bcs_limits limits;            /* what the batch is to keep to */
  int64_t now_ms;
  struct bcsi_evicted *evicted;
  size_t evicted_count, evicted_capacity;
  bool is_over;                 /* it does not keep to them, all the same */
  uint64_t live_before;         /* pages of the index before the first eviction */
  uint64_t evicted_inline;      /* bytes of the records that were evicted */
  bool is_lenient;              /* some pages above the limit are left to the next batch */
} bcsi_batch;

/* An entry that made room: its line goes odd and empty with the commit. */
typedef struct bcsi_evicted {
  uint32_t line;
  uint64_t new_generation;
  int64_t age_ms;
  uint32_t hits;
  uint8_t key_hash[BCS_HASH_SIZE];
  uint64_t line_before[8];
} bcsi_evicted;
int bcsi_apply(bcsi_batch *b, bcs_write *write); /* an LMDB code; the write's own trouble goes into its result */
int bcsi_give_back_lines(bcsi_batch *b);
int bcsi_delete_entry(bcsi_batch *b, const uint8_t key_hash[BCS_HASH_SIZE], const bcsi_record *old);
int bcsi_trash_remove(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, const uint8_t *digest);

/* ---- fits.c */
uint64_t bcsi_file_bytes(uint64_t size);
uint64_t bcsi_entry_bytes(const bcs_record *record);
int bcsi_pin_count(bcsi_batch *b, const bcs_record *record, bool add); /* an LMDB code */
bcs_status bcsi_put_fits(const bcsi_batch *b, const bcs_record *old, const bcs_record *made);
bcs_status bcsi_pin_fits(const bcsi_batch *b, const bcs_record *old, const bcs_record *made);
bcs_status bcsi_stage_fits(bcs_stage *stage, uint64_t size);
bcs_status bcsi_disk_fits(bcs_store *store, uint64_t bytes); /* before anything makes room for them */

/* ---- ghosts.c: what is remembered of evicted entries; all under the write lock */
uint32_t bcsi_ghost_return(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE]); /* hits it comes back with */
void bcsi_ghost_add(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], uint32_t hits, int64_t age_ms);
void bcsi_ghosts_fit(bcs_store *store, uint64_t entries);
void bcsi_ghosts_clear(bcs_store *store);
double bcsi_eviction_age_ms(bcs_store *store);
double bcsi_eviction_weight(bcs_store *store);

/* ---- tags.c */
bool bcsi_has_tag_hash(const bcs_record *record, const uint8_t hash[BCS_HASH_SIZE]);
bool bcsi_has_tag(const bcs_record *record, const void *tag, size_t tag_count);
int bcsi_tags_note(bcs_store *store, MDB_txn *txn, const uint8_t *tags, size_t count,
                   const uint8_t key_hash[BCS_HASH_SIZE], bool add);
uint64_t bcsi_tags_count(const bcs_record *record);
int bcsi_tags_check(bcs_store *store, MDB_txn *txn, const bcs_record *record, bool repair, uint64_t *wrong);

/* ---- evict.c */
int bcsi_evict(bcsi_batch *b); /* until the batch keeps to its limits, or as many as it has room for */
void bcsi_evict_done(bcsi_batch *b); /* after the commit */
bool bcsi_wants_trash_gone(const bcsi_batch *b); /* now, and not when the store is let alone for a moment */

/* ---- trash.c */
int bcsi_trash_unlink(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, size_t limit, size_t *done, bool *more,
                      bcs_status *status);

/* ---- freelist.c: the index's free pages; all under the write lock and outside of transactions */
bool bcsi_free_would_wait(bcs_store *store); /* a commit that has time is to be made next */
void bcsi_free_after_commit(bcs_store *store, bool quick);
bcs_status bcsi_free_sweep(bcs_store *store, bool *more);
enum { BCSI_HELD_BY_CHECKPOINT = -1 };
bcs_status bcsi_free_admits(bcs_store *store); /* BCS_HELD: no store, while a reader or a checkpoint keeps so many */

/* ---- pins.c */
typedef struct bcsi_pin {
  MDB_txn *txn; /* rests while number is 0 */
  uint64_t transaction;
  uint32_t number; /* of its byte of LOCK */
  uint32_t page_size;
  _Atomic bool is_draft; /* of a checkpoint that is being made */
  uint32_t row;    /* in LMDB's table of readers, + 1; 0: not known */
} bcsi_pin;
bcsi_pin *bcsi_pin_free(bcs_store *store); /* NULL: both are held */
bcs_status bcsi_pin_take(bcs_store *store, bcsi_pin *pin); /* of the newest state */
void bcsi_pin_release(bcs_store *store, bcsi_pin *pin);
void bcsi_pins_release_older(bcs_store *store);
bool bcsi_pin_is_held(bcs_store *store); /* that of the settled checkpoint, by whomever */
void bcsi_pin_take_out(bcs_store *store, uint32_t row, uint64_t transaction);
void bcsi_pins_prepare(bcs_store *store);
void bcsi_pins_drop(bcs_store *store); /* before the environment goes; with index.transaction */

/* ---- checkpoint.c */
bcs_status bcsi_checkpoint(bcs_store *store, bool wait); /* of everything that is committed; without the write lock */
bool bcsi_checkpoint_is_held(bcs_store *store); /* with it: or the next write has to wait for one */
void bcsi_checkpoint_protect(bcs_store *store); /* with it: before anything is changed */
uint64_t bcsi_last_transaction(bcs_store *store);       /* under the write lock */
uint64_t bcsi_checkpoint_transaction(bcs_store *store); /* what it freed and what came later stays; 0: none */
bool bcsi_checkpoint_has_grown(bcs_store *store); /* the index's file: all that is free is kept by it */
void bcsi_checkpoint_published(bcs_store *store, const uint8_t (*digests)[BCS_DIGEST_SIZE], size_t count);
bcs_status bcsi_checkpoint_restore(bcs_store *store, bool *restored);
bcs_status bcsi_checkpoint_load(bcs_store *store);
void bcsi_checkpoint_forget(bcs_store *store);
void bcsi_checkpoint_give_up(bcs_store *store); /* with the write lock */

/* ---- ballast.c */
void bcsi_ballast_take(bcs_store *store);
void bcsi_ballast_after_commit(bcs_store *store);
void bcsi_ballast_put_back(bcs_store *store);
bool bcsi_ballast_drop(bcs_store *store); /* some blocks of a full disk, for what gives back more */
void bcsi_ballast_forget(bcs_store *store); /* before its folder is set aside */

/* ---- commit.c */
bcs_status bcsi_repair_marked(bcs_store *store, MDB_txn *txn);

/* ---- check.c */
void bcsi_check_totals(bcs_store *store); /* alone, at open */

/* ---- memory.c: the tier above the index */
typedef struct bcsi_memory bcsi_memory;
void bcsi_memory_shut(bcs_store *store); /* waits for the hits that run; later ones are misses */
void bcsi_memory_free(bcs_store *store);
void bcsi_memory_count(bcs_store *store, bcs_counters *out);

/* ---- store.c */
struct bcs_store {
  bcs_info info;
  bcs_options options;
  char boot_id[BCSI_BOOT_ID_SIZE];
  char owner[BCSI_NAME_MAX];
  uint64_t pid_namespace;
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
  size_t intent_count, intent_kept; /* names in it, and how many of them are of earlier batches */
  /* Under the write lock: */
  uint64_t random, hand;    /* of the sampling */
  uint64_t free_hand;       /* of the free list: the record that was looked at last */
  uint8_t trash_from[BCS_DIGEST_SIZE]; /* where the next look at the trash begins */
  bool folder_synced[256];  /* of blobs/: its name is on the disk, as this process knows */
  long free_held_by;        /* the process that keeps too many free pages from being used; 0: none */
  bool free_refuses;        /* stores have waited for it long enough: the next ones are refused at once */
  _Atomic uint64_t disk_size; /* see freelist.c; 0: not asked yet */
  int free_wait;            /* commits until the free list is looked at again */
  bool free_no_holes;       /* the file system has none */
  bcsi_pin pins[2];         /* of the settled checkpoint and of the next; or of none */
  int ballast_wait;         /* commits until ballast is taken again; 0: there is some */
  pthread_mutex_t checkpoint; /* one at a time in a process; before the write lock */
  void *reader_table;       /* LMDB's, of all processes: see checkpoint.c */
  size_t reader_table_size;
  _Atomic bool checkpoint_wanted; /* its pin keeps more pages than it should */
  _Atomic bool checkpoint_lost;   /* a sync failed */
  bool check_all_pages;     /* at open: another boot */
  _Atomic uint64_t calls;   /* calls other than lookups that run */
  _Atomic bool shut;
  _Atomic bool fresh_index; /* the index was set aside, and no repair has looked at the files since */
  _Atomic bool new_index;   /* the same of one that was not there, or empty */
  unsigned stripe_base;
  uint64_t fork_epoch;
  bcsi_memory *memory;      /* NULL: none */
  bcs_store *next;          /* all stores of the process, for fork */
};
enum { BCSI_MAX_LINES = 1 << 27 };
extern _Atomic uint64_t bcsi_fork_epoch;
bcs_status bcsi_check_place(const bcs_store *store); /* BCS_GONE: the directory was removed or renamed */
void bcsi_forks_wait(void); /* between these two no fork happens: what opens LOCK also says so in lock_fd */
void bcsi_forks_go_on(void);
bcs_status bcsi_call_enter(bcs_store *store);
void bcsi_call_leave(bcs_store *store);
bcs_status bcsi_key_hash(const void *key, size_t count, uint8_t out[BCS_HASH_SIZE]);
uint32_t bcsi_mark_of(const bcs_record *record, const bcsi_identity *file);

/* ---- format.c: FORMAT, LOCK's owner line and the folders */
bcs_status bcsi_layout_open(bcs_store *store, const char *directory);
bcs_status bcsi_layout_create(bcs_store *store);
bcs_status bcsi_index_set_aside(bcs_store *store);
bcs_status bcsi_layout_note_store(bcs_store *store, const uint8_t store_id[16]); /* whoever is alone, in LOCK */

#endif
