/*
 * CBlobStore: a directory of content-addressed blobs, shared by processes.
 *
 * This header is the whole C surface and reads from top to bottom: status, digest, opening, lookups, writes
 * (prepare, commit), staging, listing, checking, counters. It knows bytes, files and slots and no policy of time:
 * callers pass `now_ms` (milliseconds since 1970) and read lifetimes out of records; C only stores them.
 *
 * Names: bcs_ is public; bcsi_ is shared between the .c files and private to them.
 * Threads: a bcs_store may be used by any number of threads. A bcs_write or a bcs_stage belongs to one at a time.
 * Memory: every maker names its releaser. Nothing that points into the index outlives the call that gave it.
 */
#ifndef CBLOBSTORE_H
#define CBLOBSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Status ----------------------------------------------------------------------------------------------- */

/* One list gives code, name and text. BCS_MISS is not an error. */
#define BCS_STATUS_LIST(X)                                                                                       \
  X(BCS_OK, "ok")                                                                                                \
  X(BCS_MISS, "not in the cache")                                                                                \
  X(BCS_DAMAGED, "stored bytes do not match their digest")                                                       \
  X(BCS_WOULD_BLOCK, "needs a disk read or a hash longer than the caller allowed")                               \
  X(BCS_STALE_WRITE, "the entry changed in the meantime; the conditional write was not made")                    \
  X(BCS_NEED_BODY, "the blob file that was to be shared is gone; stage the bytes and write again")               \
  X(BCS_BUSY, "the lock is held by somebody else")                                                               \
  X(BCS_CLOSED, "the store is closed")                                                                           \
  X(BCS_FORKED, "the store was opened before fork(); a child must open its own")                                 \
  X(BCS_INVALID, "an argument is out of range")                                                                  \
  X(BCS_KEY_TOO_LONG, "a key is longer than 65,536 bytes")                                                       \
  X(BCS_ATTRIBUTES_TOO_LARGE, "attributes are larger than 65,536 bytes")                                         \
  X(BCS_TAGS_TOO_LARGE, "tags are larger than 65,536 bytes")                                                     \
  X(BCS_TOO_LARGE, "it does not fit into the limit")                                                             \
  X(BCS_UNANNOUNCED, "it grew beyond half of the limit, and its size was not announced")                         \
  X(BCS_PINS_TOO_LARGE, "what is pinned leaves no room for it below the limit")                                  \
  X(BCS_NOT_A_CACHE, "the directory is no cache")                                                                \
  X(BCS_VERSION, "the directory has another format version")                                                     \
  X(BCS_DURABILITY, "the directory was created with another durability")                                         \
  X(BCS_NETWORK_FS, "the directory is on a network file system")                                                 \
  X(BCS_SYMLINK, "a link stands in the way; none is followed")                                                   \
  X(BCS_SOURCE_LINK, "the file to store is a symbolic link")                                                     \
  X(BCS_SOURCE_KIND, "what is to be stored is not a regular file")                                               \
  X(BCS_NOT_OURS, "the directory belongs to somebody else or others may write in it")                            \
  X(BCS_NOT_DIRECTORY, "a file stands where a folder should be")                                                 \
  X(BCS_IS_DIRECTORY, "a folder stands where a file should be")                                                  \
  X(BCS_PATH_TOO_LONG, "a path or a name in it is too long")                                                     \
  X(BCS_GONE, "the directory was removed or renamed since it was opened")                                        \
  X(BCS_OTHER_NAMESPACE, "a process of another pid namespace uses the directory")                                \
  X(BCS_IN_USE, "a live process uses the directory, and this read-only open cannot register beside it")          \
  X(BCS_READ_ONLY, "the store was opened for reading only")                                                      \
  X(BCS_READ_ONLY_FS, "the file system is read-only")                                                            \
  X(BCS_HELD, "a process that stands still in a lookup keeps free pages of the index from being used")              \
  X(BCS_NO_SPACE, "no space is left")                                                                            \
  X(BCS_NO_DESCRIPTORS, "no file descriptor is left")                                                            \
  X(BCS_NO_MEMORY, "no memory is left")                                                                          \
  X(BCS_PERMISSION, "permission was denied")                                                                     \
  X(BCS_NOT_FOUND, "the file or directory does not exist")                                                       \
  X(BCS_IO, "an input or output operation failed")                                                               \
  X(BCS_CORRUPT, "the index is damaged")                                                                         \
  X(BCS_OTHER_BOOT, "the machine was started anew since the index was used")                                     \
  X(BCS_INCOMPLETE, "a part of the directory is missing or empty")                                               \
  X(BCS_INDEX, "the index refused an operation")                                                                 \
  X(BCS_CRYPTO, "the digest library refused an operation")

typedef enum bcs_status {
#define BCS_STATUS_ENUM(code, text) code,
  BCS_STATUS_LIST(BCS_STATUS_ENUM)
#undef BCS_STATUS_ENUM
} bcs_status;

const char *bcs_status_name(bcs_status status);
const char *bcs_status_text(bcs_status status);
/* What errno says in terms of this list: one table for the calls made here and those that the caller makes itself. */
bcs_status bcs_status_of_errno(int code);

/* Where and why the last failing call of this thread failed. Filled for every status but BCS_OK and BCS_MISS. Fixed
 * size, so that reporting "no memory" needs none. `code` is errno (> 0), an LMDB code (< 0) or 0. `operation` is the
 * step that failed, and empty where the call failed before its first step: the caller knows what it had asked for. */
typedef struct bcs_error {
  bcs_status status;
  int code;
  char operation[32]; /* "open", "rename", "commit" … */
  char path[512];     /* absolute where known; cut at the front when longer */
  char cause[240];    /* strerror or the index's own text */
} bcs_error;

void bcs_last_error(bcs_error *out);

/* ---- Digest ----------------------------------------------------------------------------------------------- */

enum { BCS_DIGEST_SIZE = 32, BCS_HASH_SIZE = 16 };
enum { BCS_KEY_MAX = 65536, BCS_ATTRIBUTES_MAX = 65536, BCS_TAGS_MAX = 65536 };

/* SHA-256 (FIPS 180-4), with a context kept per thread. Always BCS_OK: where OpenSSL has no context to give, a slower
 * implementation of our own stands in. */
bcs_status bcs_digest(const void *bytes, size_t count, uint8_t out[BCS_DIGEST_SIZE]);

/* ---- Opening ---------------------------------------------------------------------------------------------- */

typedef struct bcs_store bcs_store;

typedef enum bcs_durability { BCS_CHECKPOINTED, BCS_DURABLE, BCS_AS_RECORDED } bcs_durability;
typedef enum bcs_verification { BCS_VERIFY_FIRST_READ, BCS_VERIFY_ALWAYS, BCS_VERIFY_NEVER } bcs_verification;

typedef struct bcs_options {
  bcs_durability durability;     /* BCS_AS_RECORDED for a new directory means BCS_CHECKPOINTED */
  bcs_verification verification;
  bool copies_bodies;            /* no body is a mapping of its file, however large */
  bool read_only;                /* nothing is written, not even an access time; the directory must exist */
  bool create;                   /* make the directory when absent or empty */
  bool allow_network_fs;
  uint32_t directory_mode;       /* 0 means 0700 */
  uint32_t file_mode;            /* 0 means 0600 */
  bool recorded_modes;           /* of a cache that is there: its own modes in place of the two above */
  uint32_t inline_threshold;     /* bodies up to this many bytes stand in the index; 0 means the measured default */
  uint64_t initial_map_size;     /* address space for the index; grows by doubling when full. 0 means the default */
  const char *boot_id;           /* tests only; NULL: the kernel's */
  int64_t file_system_type;      /* tests only; 0: what statfs says */
} bcs_options;

typedef struct bcs_info {
  char path[4096];
  uint64_t device, inode;
  bcs_durability durability;
  uint32_t inline_threshold;
  uint64_t map_size;
  bool unlocked;                 /* read-only without registering as a reader */
  bool index_set_aside;          /* this open found an index of another boot, or a damaged one, and began a new one */
  bool index_restored;   /* to its last checkpoint, after another boot: what was stored since is not in it */
  bool slots_rebuilt;
} bcs_info;

/* Opens or creates. One bcs_store per directory and process: the caller sees to it (by device and inode); LMDB must
 * not be opened twice. Released by bcs_close. */
bcs_status bcs_open(const char *directory, const bcs_options *options, bcs_store **out);
/* Waits for the calls that run and ends the store: locks, mappings and descriptors are given up. Later calls say
 * BCS_CLOSED; the handle stays valid until bcs_close, which shuts first where that was not done. */
void bcs_shut(bcs_store *store);
void bcs_close(bcs_store *store);
void bcs_get_info(const bcs_store *store, bcs_info *out);

/* Device and inode of a directory, for the caller's registry; BCS_NOT_FOUND when absent. */
bcs_status bcs_identify(const char *directory, uint64_t *device, uint64_t *inode);

/* BCS_GONE when the directory was removed or renamed since it was opened. Everything that writes or walks begins with
 * it; lookups do not, since it costs as much as they do: they go on finding what they still can. */
bcs_status bcs_check_place(bcs_store *store);

/* Makes everything that has been committed reach the disk. Blocks. */
bcs_status bcs_flush(bcs_store *store);

/* ---- Limits ----------------------------------------------------------------------------------------------- */

/* What the directory may hold, for all processes; 0: no limit of that kind. Kept by every commit, to within one batch:
 * entries that are worth least make room (see evict.c). Bytes are those allocated on the disk: blob files by blocks, the
 * index by the pages in use, staging and quarantine. */
typedef struct bcs_limits {
  uint64_t bytes;
  uint64_t entries;
  int64_t age_ms;         /* older entries are gone, whatever their lifetime */
  uint64_t minimum_free;  /* bytes of the file system that stay free */
} bcs_limits;
enum { BCS_LIMIT_BYTES_MIN = 1 << 20 };
/* As minimum_free: 5 % of the file system, 1 GiB at most. */
#define BCS_FREE_BY_SIZE UINT64_MAX

/* Limits are recorded in the directory and hold from the next commit of any process on; nothing is evicted here. */
bcs_status bcs_set_limits(bcs_store *store, const bcs_limits *limits);
bcs_status bcs_get_limits(bcs_store *store, bcs_limits *out);
/* Evicts some hundreds of entries at most, as if `limits` were the directory's too (NULL: its own alone), and unlinks
 * files; *more: it is not within them yet. *evicted is added to. Blocks. */
bcs_status bcs_trim(bcs_store *store, const bcs_limits *limits, int64_t now_ms, uint64_t *evicted, bool *more);

/* ---- Records ---------------------------------------------------------------------------------------------- */

/* How long an entry is fresh. Times are milliseconds since 1970, spans milliseconds. */
typedef enum bcs_lifetime_kind { BCS_FOREVER, BCS_EXPIRES, BCS_SLIDING } bcs_lifetime_kind;

typedef struct bcs_lifetime {
  bcs_lifetime_kind kind;
  uint32_t shortened_ms; /* BCS_SLIDING: by how much the latest moment is earlier than was asked for; nobody reckons with it */
  int64_t deadline_ms; /* BCS_EXPIRES: when; BCS_SLIDING: the latest moment, INT64_MAX for none */
  int64_t window_ms;   /* BCS_EXPIRES: the span it was made from, 0 if given as a moment; BCS_SLIDING: the window */
} bcs_lifetime;

/* What a lookup, a listing or a commit tells of an entry. Pointers are valid only inside the call or callback. */
typedef struct bcs_record {
  uint8_t key_hash[BCS_HASH_SIZE];
  uint8_t digest[BCS_DIGEST_SIZE];
  uint64_t size;
  uint64_t generation;       /* even; changes with every write of the entry */
  uint64_t epoch;            /* from bcs_lookup: of removals, before the snapshot; for a bcs_memory_item */
  uint32_t slot;
  bool is_file;
  bcs_lifetime lifetime;
  int64_t written_ms;
  int64_t access_ms;         /* from the slot; written_ms when never read */
  uint32_t hits;             /* from the slot; saturates at 63 */
  const uint8_t *key;
  size_t key_count;
  const uint8_t *attributes; /* opaque here */
  size_t attributes_count;
  int64_t oldest_ms;         /* written_ms and the limit in age: expired from then on; 0: no such limit */
  const uint8_t *tags;       /* each its length (2 bytes, little-endian) and its bytes, ascending */
  size_t tags_count;
  int64_t stale_ms;          /* how long after its expiry it is kept */
  bool pinned;
} bcs_record;

/* The one rule of time, used for lookups and for the tool: expired at `now_ms`? A write or access time in the future
 * by more than min(lifetime, 60 s) means that the clock went back: expired. */
bool bcs_is_expired(const bcs_record *record, int64_t now_ms);
/* When it expires if nobody reads it again, and when its stale window ends as well: from then on nothing has a use for
 * it. INT64_MAX: never. */
int64_t bcs_expiry_ms(const bcs_record *record);
int64_t bcs_gone_ms(const bcs_record *record);

/* ---- Lookups ---------------------------------------------------------------------------------------------- */

/* Lookups take no lock of a writer and begin no write transaction. They call back while the entry is at hand:
 * `bytes` is inside the index (an inline body), in a buffer of the call, or NULL for BCS_LOOKUP_METADATA.
 * For a file, `mapping` may be taken over: see bcs_take_body. The callback must be short: it keeps pages alive. */
typedef enum bcs_lookup_flags {
  BCS_LOOKUP_TOUCH = 1,        /* counts as an access: slot's access time and hits, hit and miss counters */
  BCS_LOOKUP_METADATA = 2,     /* no body: no file is opened, nothing is verified */
  BCS_LOOKUP_FRESH_ONLY = 4,   /* an expired entry is a miss */
  BCS_LOOKUP_QUICK = 8,        /* BCS_WOULD_BLOCK instead of hashing or reading more than 64 KiB */
} bcs_lookup_flags;

typedef struct bcs_body {
  const uint8_t *bytes;
  size_t count;
  bool mapped;      /* munmap, else free, when taken; false and owned == false: borrowed from the index */
  bool owned;       /* bcs_take_body may be called */
  uint64_t device, inode; /* of the file, 0 for inline */
} bcs_body;

typedef void (*bcs_found)(void *context, const bcs_record *record, bcs_body *body);

/* BCS_OK: found was called once. BCS_MISS: it was not. BCS_DAMAGED: it was not; the entry wants bcs_write_heal with
 * *damage. BCS_CLOSED, BCS_FORKED, BCS_KEY_TOO_LONG, BCS_WOULD_BLOCK. Any other trouble (no descriptors, I/O error)
 * is given as its status for the caller to count, and treated as a miss by it. */
typedef struct bcs_damage {
  uint8_t key_hash[BCS_HASH_SIZE];
  uint8_t digest[BCS_DIGEST_SIZE];
  uint64_t generation;
  bool is_file;
  uint64_t device, inode; /* of the bad file; 0: the file is missing */
  int64_t change_ns;      /* its ctime, so that a newer good file is left alone */
} bcs_damage;

bcs_status bcs_lookup(bcs_store *store, const void *key, size_t key_count, int64_t now_ms, uint32_t flags,
                      bcs_found found, void *context, bcs_damage *damage);
/* By content. Any entry with this digest will do; expired ones too unless BCS_LOOKUP_FRESH_ONLY. */
bcs_status bcs_lookup_digest(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], int64_t now_ms, uint32_t flags,
                             bcs_found found, void *context, bcs_damage *damage);
/* By key hash and generation (from a listing): reads and verifies always, touches never. For verify and cat. */
bcs_status bcs_check(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], bcs_damage *damage);

/* Inside the callback: the body becomes the caller's, to be given back by bcs_release_body. */
void bcs_take_body(bcs_body *body, bcs_body *taken);
void bcs_release_body(bcs_body *taken);

/* ---- The memory tier ----------------------------------------------------------------------------------------- */

/* Keeps what lookups found in the memory of this process, and finds it again without the index. It does not own the
 * bytes: an item stands inside an object of the caller's, which the tier holds by one reference. How it stays coherent
 * with other processes, and when an item is let go, is told in memory.c. */
typedef struct bcs_memory_item {
  uint64_t hash;          /* the tier's */
  const uint8_t *key;     /* in the owner, as are the bytes */
  uint32_t key_count;
  uint32_t slot;
  uint64_t generation, epoch; /* as bcs_lookup gave them */
  int64_t written_ms;
  bcs_lifetime lifetime;
  const uint8_t *bytes;
  size_t count;
  void *owner;            /* whom `release` gets */
  size_t cost;            /* bytes that it takes, all in all */
  uint64_t era;           /* the tier's */
  struct bcs_memory_item *next; /* the tier's */
} bcs_memory_item;

/* Once, before the store is used by a second thread. `release` gives an owner's reference back; called on any thread.
 * Without memory or for a read-only store there is no tier, which is no error. */
void bcs_memory_start(bcs_store *store, uint64_t bytes, uint64_t entries, void (*release)(void *owner));

typedef struct bcs_memory_hit {
  const bcs_memory_item *item; /* valid until bcs_memory_leave */
  int64_t access_ms;           /* before this hit, as in a record */
  uint32_t hits;
  void *pin;
} bcs_memory_hit;

/* A fresh entry, as of now for all processes. Counts as an access. True: bcs_memory_leave is to follow, shortly. False:
 * ask bcs_lookup. Takes no lock. */
bool bcs_memory_find(bcs_store *store, const void *key, size_t key_count, int64_t now_ms, bcs_memory_hit *out);
void bcs_memory_leave(const bcs_memory_hit *hit);

/* Whether what bcs_lookup found is worth keeping: not too large, not mapped, and in a full tier read before. */
bool bcs_memory_wants(bcs_store *store, const bcs_record *record, const bcs_body *body);
/* Takes an item over, all of whose fields but the tier's are set, with one reference to its owner. False: not taken.
 * Never waits. An item is put once. */
bool bcs_memory_put(bcs_store *store, bcs_memory_item *item);

/* ---- Staging: bodies that become files --------------------------------------------------------------------- */

typedef struct bcs_stage bcs_stage;

/* An O_EXCL file in staging/, hashed as it is written. Finish gives digest and size and (durable) fsyncs. Released by
 * bcs_stage_free, which unlinks what was not published. */
bcs_status bcs_stage_begin(bcs_store *store, bcs_stage **out);
/* Which entry it is to be: the body may take the room of the pinned one that it replaces. `rest_count`: of its attributes
 * and tags. */
bcs_status bcs_stage_for(bcs_stage *stage, const void *key, size_t key_count, size_t rest_count);
/* How large the body will be, where that is known. BCS_TOO_LARGE and BCS_PINS_TOO_LARGE come now, before entries make room
 * for any of it. A body that was not announced gets BCS_UNANNOUNCED beyond half of the room. */
bcs_status bcs_stage_expect(bcs_stage *stage, uint64_t size);
bcs_status bcs_stage_write(bcs_stage *stage, const void *bytes, size_t count);
/* The two halves of it, which two threads may do at one time, each in the order of the bytes: hashing takes three times
 * as long as writing into the page cache. */
bcs_status bcs_stage_append(bcs_stage *stage, const void *bytes, size_t count);
bcs_status bcs_stage_hash(bcs_stage *stage, const void *bytes, size_t count);
/* Copies a regular file (reflink when whole and the file system can) and hashes it; O_NOFOLLOW. */
bcs_status bcs_stage_file(bcs_stage *stage, const char *path);
bcs_status bcs_stage_finish(bcs_stage *stage, uint8_t digest[BCS_DIGEST_SIZE], uint64_t *size);
/* Reads back what was staged, finished or not (fallback when the disk is full, and for small bodies). */
bcs_status bcs_stage_read(bcs_stage *stage, uint64_t offset, void *out, size_t count, size_t *got);
/* The finished body as bytes (mapped or read), valid after the stage is freed and the file unlinked. */
bcs_status bcs_stage_body(bcs_stage *stage, bcs_body *taken);
uint64_t bcs_stage_size(const bcs_stage *stage);
void bcs_stage_free(bcs_stage *stage);

/* ---- Writes ------------------------------------------------------------------------------------------------ */

/* A write is prepared on any thread (hashing, encoding) and committed in a batch: one batch, one transaction. */
typedef struct bcs_write bcs_write;

typedef struct bcs_entry_spec {
  const void *key;
  size_t key_count;
  const void *attributes;
  size_t attributes_count;
  const void *tags;          /* as in a record; NULL: none, or for a renewal the old ones */
  size_t tags_count;
  bcs_lifetime lifetime;
  int64_t stale_ms;          /* negative, for a renewal: the old one */
  int64_t now_ms;
} bcs_entry_spec;

/* Bytes of any size up to the threshold stand in the index. Larger: BCS_INVALID (stage them). `digest` may be NULL:
 * it is computed; non-NULL: taken as already computed from these bytes. */
bcs_status bcs_write_inline(bcs_store *store, const bcs_entry_spec *spec, const void *bytes, size_t count,
                            const uint8_t *digest, bcs_write **out);
/* A finished stage; the write borrows it until freed. A body up to the threshold is read back and goes inline. */
bcs_status bcs_write_staged(bcs_store *store, const bcs_entry_spec *spec, bcs_stage *stage, bcs_write **out);
/* A blob file that is there already: no second write of the bytes. BCS_MISS when it is not, or is not sound: it is hashed
 * here before it is relied on. The commit may say BCS_NEED_BODY, when it went away or was touched in between. */
bcs_status bcs_write_shared(bcs_store *store, const bcs_entry_spec *spec, const uint8_t digest[BCS_DIGEST_SIZE],
                            uint64_t size, bcs_write **out);
bcs_status bcs_write_remove(bcs_store *store, const void *key, size_t key_count, bcs_write **out);
/* Removes only if the entry still has this generation. */
bcs_status bcs_write_remove_if(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], uint64_t generation,
                               bcs_write **out);
/* New lifetime and, when attributes is non-NULL, new attributes; the bytes stay. generation 0: whatever is there. */
bcs_status bcs_write_renew(bcs_store *store, const bcs_entry_spec *spec, uint64_t generation, bcs_write **out);
/* Removes a damaged entry and moves its bad file to quarantine/, if both are still what the lookup saw. */
bcs_status bcs_write_heal(bcs_store *store, const bcs_damage *damage, bcs_write **out);
/* Keeps an entry from eviction and sweeps, or no longer does. BCS_PINS_TOO_LARGE: pins would fill the limit. */
bcs_status bcs_write_pin(bcs_store *store, const void *key, size_t key_count, bool pin, bcs_write **out);
bcs_status bcs_write_clear(bcs_store *store, bcs_write **out);
void bcs_write_free(bcs_write *write);

/* Bytes that a queued write keeps in memory. */
size_t bcs_write_cost(const bcs_write *write);
/* After a commit: BCS_OK, BCS_MISS (remove, renew: nothing there), BCS_STALE_WRITE, BCS_NEED_BODY, or why it failed. */
bcs_status bcs_write_result(const bcs_write *write, bcs_error *error);
/* After BCS_OK of a store or renewal: the entry as committed. Pointers valid until bcs_write_free. */
void bcs_write_record(const bcs_write *write, bcs_record *out);

/* Takes the write lock (fair between processes; kernel releases it when its owner dies), commits all in one
 * transaction, in order. A write that cannot be made does not stop the others; when the transaction itself fails,
 * every write has its status and nothing is visible. Blocks. `try_only`: BCS_BUSY when the lock is not free at once, or
 * room would have to be made first; nothing is committed then, and the same writes may be committed again. */
bcs_status bcs_commit(bcs_store *store, bcs_write *const *writes, size_t count, bool try_only);
/* ---- Checkpoints ------------------------------------------------------------------------------------------- */

/* Makes one of everything that is committed, when the last one is `interval_ms` old (0: in any case) or keeps more pages
 * than it should; not where nothing was committed since, nor in a durable directory. Blocks for as long as the disk takes;
 * others read and write meanwhile. The checkpoint before stands until this one is on the disk. */
bcs_status bcs_checkpoint(bcs_store *store, int64_t interval_ms);
/* Commits have made one due before its time. */
bool bcs_wants_checkpoint(bcs_store *store);

/* Unlinks files whose removal was committed, at most `limit`; *more when some are left. Blocks. */
bcs_status bcs_sweep_trash(bcs_store *store, size_t limit, bool *more);

/* Gives blocks that the index does not need back to the file system, some hundreds at a time, down to an allowance; *more
 * when another call would go on. With `since`, only if nothing was committed since that transaction, whoever by, else
 * BCS_BUSY: a store that is written to uses its free pages again. The newest transaction is left there. Blocks. */
bcs_status bcs_give_back(bcs_store *store, uint64_t *since, bool *more);

/* ---- Sweeping ---------------------------------------------------------------------------------------------- */

/* One process sweeps at a time: BCS_BUSY when another does. Each call below is one short step; all block. */
bcs_status bcs_sweep_begin(bcs_store *store);
void bcs_sweep_end(bcs_store *store);
/* Says to the other processes that somebody here waits to sweep, so that a sweep in the background ends for it; whether
 * another process says so. None of these waits. */
bcs_status bcs_sweep_want(bcs_store *store);
void bcs_sweep_want_no_more(bcs_store *store);
bool bcs_sweep_is_wanted(bcs_store *store);
/* Removes entries that are gone at now_ms (see bcs_gone_ms, and the limit in age), 256 at most, going on from *line
 * (0: the start); *done at the end of the table. Pinned entries stay. */
bcs_status bcs_sweep_expired(bcs_store *store, uint32_t *line, int64_t now_ms, uint64_t *removed, bool *done);
/* After a restore to a checkpoint: removes entries whose file was removed since, going on from *cursor (zeroes: the
 * start), some hundreds a call. *done at once where there was no restore, or a sweep has been through. */
bcs_status bcs_sweep_missing(bcs_store *store, uint8_t cursor[BCS_HASH_SIZE], uint64_t *removed, bool *done);
/* Unlinks blob files of one of the 256 folders that no entry uses and that are older than a minute. */
bcs_status bcs_sweep_folder(bcs_store *store, uint8_t number, uint64_t *removed);
/* Removes what owners that are gone left in staging. */
bcs_status bcs_sweep_staging(bcs_store *store, uint64_t *removed);
/* Unlinks the oldest files of quarantine until the rest takes no more than `bytes` on the disk. */
bcs_status bcs_sweep_quarantine(bcs_store *store, uint64_t bytes, uint64_t *removed);

/* ---- Leases -------------------------------------------------------------------------------------------------- */

/* A lease says to the other processes of the directory that somebody here loads a key. It is a lock that ends with its
 * holder, so nothing is ever left of one; see lease.c. It is advice: no call of the store asks for it. None of these
 * calls waits. */
enum { BCS_LEASE_LEVELS = 4 };

/* The lease of a key: 40 bits of its hash. Two keys that agree in them share it. */
bcs_status bcs_lease_of(const void *key, size_t count, uint64_t *lease);
/* Finds a number above 0 for this process, in whose name it holds leases; its beats are 0. Given up by bcs_lease_leave. */
bcs_status bcs_lease_join(bcs_store *store, uint32_t *number);
void bcs_lease_leave(bcs_store *store, uint32_t number);
/* Tells the others that this process is alive: they see that `beats` is another one than before. */
bcs_status bcs_lease_beat(bcs_store *store, uint32_t number, uint32_t beats);
/* Takes a lease, at level 0, or at the level above that of a holder that gives no sign. BCS_BUSY: another process has
 * it; *holder is its number and *beats its beats, both 0 when it has just gone. Taking what one has does nothing. */
bcs_status bcs_lease_take(bcs_store *store, uint64_t lease, uint32_t level, uint32_t number, uint32_t *holder,
                          uint32_t *beats);
void bcs_lease_release(bcs_store *store, uint64_t lease, uint32_t level);

/* ---- Listing and checking ----------------------------------------------------------------------------------- */

/* One page in the order of key hashes, one short read transaction: entries after `*cursor` (all zero: from the
 * start) whose key begins with `prefix`; at most `limit` calls of `found` and some thousands of rows looked at. Sets
 * *cursor; *done at the end. `found` gets body == NULL. An entry that is there throughout comes exactly once. */
bcs_status bcs_list(bcs_store *store, uint8_t cursor[BCS_HASH_SIZE], const void *prefix, size_t prefix_count,
                    size_t limit, bcs_found found, void *context, bool *done);

/* The first page of the index's file that is not as the format wants it. */
typedef struct bcs_page_damage {
  bool found;
  uint64_t page;
  char cause[96];
} bcs_page_damage;

/* Looks at the pages of an index file that nobody writes, without trusting them and without LMDB: all of them, or those
 * that are looked at when a directory is opened, which are as many as the trees are deep. Never crashes, whatever the
 * bytes. BCS_OK with *out, or why the file could not be read. */
bcs_status bcs_check_file(const char *data_file, bool all, bcs_page_damage *out);

/* The same for entries that have a tag. */
bcs_status bcs_list_tagged(bcs_store *store, const void *tag, size_t tag_count, uint8_t cursor[BCS_HASH_SIZE],
                           size_t limit, bcs_found found, void *context, bool *done);

typedef struct bcs_check_report {
  bcs_page_damage damage;                          /* found: nothing else was looked at, unless set aside */
  bool in_use;                                     /* so it was not set aside: others have the directory open */
  bool index_set_aside;                            /* by this repair, or by the opening before it: files are kept */
  uint64_t unreferenced_files, unreferenced_bytes; /* in blobs/, without a row */
  uint64_t missing_files;                          /* rows without a file, or with one of another size */
  uint64_t foreign_names;                          /* names in our folders that are not ours; never touched */
  uint64_t dead_staging;                           /* staging files of owners that are gone */
  uint64_t damaged_records;                        /* rows of entries that cannot be read; a repair removes them */
  uint64_t wrong_totals, wrong_uses, wrong_slots, wrong_digests, wrong_tags; /* rows that disagree with a recount */
} bcs_check_report;

/* The pages of the index, as of one snapshot, beside readers and writers: before anything walks them. With `repair` a
 * damaged index is set aside and a new one begun, if no other process has the directory open. Fills `damage`, `in_use`
 * and `index_set_aside`. Blocks for long. */
bcs_status bcs_check_pages(bcs_store *store, bool repair, bcs_check_report *out);
/* Everything but the bodies (those by bcs_check): first the pages, then a walk of the index and the folders. With
 * `repair` what it finds is put right, in one transaction under the write lock: other writers wait about a second a
 * million entries. The first repair after an index was set aside keeps the files without a row: the same content, stored
 * again, takes them up. Blocks for long; `progress` may be NULL. */
bcs_status bcs_check_structure(bcs_store *store, bool repair, bcs_check_report *out,
                               void (*progress)(void *context, uint64_t done, uint64_t total), void *context);

/* ---- Counters ----------------------------------------------------------------------------------------------- */

typedef struct bcs_counters {
  uint64_t entries;          /* whole directory */
  uint64_t inline_bytes;     /* bodies in the index */
  uint64_t blob_files, blob_bytes, blob_allocated;
  uint64_t pinned_entries, pinned_bytes;
  uint64_t used_bytes;       /* what the limit in bytes is compared with */
  uint64_t evictions;        /* all processes, since the slot table was made */
  int64_t eviction_age_ms;   /* moving average: since their last read */
  uint64_t index_allocated;  /* data.mdb by blocks */
  uint64_t index_free;       /* free pages, which are reused first, holes among them */
  uint64_t index_spare;      /* of the blocks, what no page in use has */
  uint64_t staging_allocated, quarantine_allocated, slots_allocated;
  uint64_t hits, misses;     /* this process, the memory tier's hits included */
  uint64_t memory_hits;      /* of them, those of the memory tier */
  uint64_t memory_entries, memory_bytes; /* what it holds now */
  uint64_t total_hits, total_misses; /* all processes, since the slot table was made */
  uint64_t total_memory_hits; /* of the hits, those of memory tiers */
  uint64_t disk_free, disk_reserve; /* of the file system: free, and what the limits leave free */
  uint64_t entries_expired;  /* by a scan of the slots at now_ms */
} bcs_counters;

/* Cheap: atomics only (entries, inline_bytes, blob_*, hits and misses). Fails only for a shut store, and after fork(). */
bcs_status bcs_count(bcs_store *store, bcs_counters *out);
/* All of it; walks staging, quarantine and the slots. */
bcs_status bcs_count_all(bcs_store *store, int64_t now_ms, bcs_counters *out);

/* ---- Injected faults ----------------------------------------------------------------------------------------- */

/* Tests only: called at each named step of the store path ("stage", "intent", "rename", "before-commit",
 * "after-commit", "slots", "unlink", "trash" …); a non-zero return is used as errno of that step. NULL: none.
 * The hook may block or kill the process. */
typedef int (*bcs_fault_hook)(const char *step, void *context);
void bcs_set_fault_hook(bcs_fault_hook hook, void *context);

#endif
