/* The slot table: one line of 64 bytes an entry, in a file that every process maps.
 *
 * It is the shared summary of the index: what changes on a read (last access, hits) lives here and nowhere else, and
 * what a reader must know of a change that another process makes (the generation) is told here first. LMDB stays the
 * truth: every line can be made anew from `entries`.
 *
 * Invariants
 *  1. Words are changed by plain atomic stores and compare-and-swap; there are no lists and no pointers, so a process
 *     that dies between two stores leaves every line readable.
 *  2. Generations only grow. The writer makes a line odd, (g | 1) + 2, before the commit that changes its entry, and
 *     even, one more, after it. An even generation equal to the record's means: this record is the newest.
 *  3. Before lines go odd their numbers stand in the mark. A writer that dies leaves the mark and odd lines; the next
 *     writer reads the records that the mark names and makes their lines even. Until then: slower, never wrong.
 *  4. A touch carries 16 bits of the generation it was made for, so that a late one cannot extend a reused line.
 *  5. A line is used only after its blocks are allocated (fallocate): a store into a hole of a full disk is SIGBUS.
 *     Line numbers from a record are checked against the allocated count before use.
 *
 * File (little-endian):
 *       0  head, 4,096 bytes: see struct head in slots.h, and head.c
 *   4,096  the mark: 7,168 line numbers of 4 bytes
 *  32,768  512 stripes of 64 bytes: hits in the index, misses, hits in memory; a reader of a process adds to one
 *  65,536  1,024 digests of 32 bytes, a ring: blob files that were published last, see checkpoint.c
 * 131,072  ghosts of evicted entries: see ghosts.c; blocks are allocated as they grow
 *  33,751,040  lines of 64 bytes: see struct line */
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_DONTDUMP
#define MADV_DONTDUMP 16
#endif

struct line {
  _Atomic uint64_t generation;
  _Atomic uint64_t access; /* bits 63..48 generation / 2, 47..42 hits, 41..0 milliseconds since 1970 */
  _Atomic uint64_t deadline;
  _Atomic uint64_t window;
  _Atomic uint64_t size_kind; /* size × 16 + pinned × 8 + lifetime kind × 2 + is a file */
  _Atomic uint64_t written;   /* bits 63..42 stale window in seconds, rounded up, 41..0 milliseconds since 1970 */
  _Atomic uint64_t hash[2];
};
_Static_assert(sizeof(struct line) == 64, "a line is a cache line");

enum {
  SLOTS_VERSION = 3, GROW_FROM = 4096, TAG_SHIFT = 48, HITS_SHIFT = 42, HITS_MAX = 63, STALE_MAX = (1 << 22) - 1,
};
static const int64_t MS_MAX = (INT64_C(1) << HITS_SHIFT) - 1;
static const char slots_magic[8] = {'B','C','S','L','O','T','S','1'};

static struct line *line_at(bcs_store *store, uint32_t line) {
  return (struct line *)(void *)(store->slots.map + LINES_AT + (size_t)line * sizeof(struct line));
}
static _Atomic uint32_t *mark_of(bcs_store *store) { return (_Atomic uint32_t *)(void *)(store->slots.map + MARK_AT); }

static uint64_t tag_of(uint64_t generation) { return (generation >> 1) & 0xffff; }
static uint64_t access_word(uint64_t generation, uint32_t hits, int64_t ms) {
  return tag_of(generation) << TAG_SHIFT | (uint64_t)hits << HITS_SHIFT |
         ((uint64_t)ms & ((UINT64_C(1) << HITS_SHIFT) - 1));
}
static int64_t access_ms(uint64_t word) { return (int64_t)(word & ((UINT64_C(1) << HITS_SHIFT) - 1)); }
static uint32_t access_hits(uint64_t word) { return (uint32_t)(word >> HITS_SHIFT) & HITS_MAX; }

static uint64_t written_word(int64_t ms, int64_t stale_ms) {
  uint64_t seconds = stale_ms <= 0 ? 0 : ((uint64_t)stale_ms + 999) / 1000;
  if (seconds > STALE_MAX) seconds = STALE_MAX;
  if (ms < 0) ms = 0;
  if (ms > MS_MAX) ms = MS_MAX;
  return seconds << HITS_SHIFT | (uint64_t)ms;
}

static uint64_t size_kind_word(const bcs_record *record) {
  return record->size << 4 | (record->pinned ? 8u : 0u) | (uint64_t)record->lifetime.kind << 1 |
         (record->is_file ? 1u : 0u);
}

static size_t file_size(uint64_t lines) { return LINES_AT + (size_t)lines * sizeof(struct line); }

static bcs_status fail(bcs_store *store, int code, const char *operation) {
  char path[4200];
  bcsi_join(store->info.path, "slots", path, sizeof path);
  return bcsi_fail_errno(code, operation, path);
}

static bcs_status refuse(bcs_store *store, bcs_status status, const char *operation, const char *cause) {
  char path[4200];
  bcsi_join(store->info.path, "slots", path, sizeof path);
  return bcsi_fail(status, 0, operation, path, cause);
}

/* ---- opening */

static bcs_status map_file(bcs_store *store) {
  size_t size = file_size(BCSI_MAX_LINES);
  int protection = store->slots.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void *map = mmap(NULL, size, protection, MAP_SHARED | MAP_NORESERVE, store->slots.fd, 0);
  if (map == MAP_FAILED) return fail(store, errno, "mmap");
  (void)madvise(map, size, MADV_DONTDUMP); /* only keeps core files small */
  store->slots.map = map;
  store->slots.map_size = size;
  return BCS_OK;
}

/* Negative: it cannot be read at this moment, which tells nothing of it. */
static int is_sound(bcs_store *store, const bcsi_totals *totals, off_t size) {
  struct head head;
  if (size < (off_t)file_size(0)) return false;
  ssize_t n = bcsi_read_at(store->slots.fd, &head, sizeof head, 0);
  if (n < 0) return -1;
  if (n != (ssize_t)sizeof head) return false;
  return memcmp(head.magic, slots_magic, sizeof slots_magic) == 0 && head.version == SLOTS_VERSION &&
         head.line_size == sizeof(struct line) && memcmp(head.store_id, totals->store_id, 16) == 0 &&
         strncmp(head.boot_id, store->boot_id, BCSI_BOOT_ID_SIZE) == 0 &&
         head.allocated <= BCSI_MAX_LINES && (off_t)file_size(head.allocated) <= size &&
         totals->slots_used <= head.allocated;
}

bool bcsi_slots_read_id(bcs_store *store, uint8_t out[16]) {
  struct head head;
  int fd = openat(store->root_fd, "slots", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  bool is_table = pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
                  memcmp(head.magic, slots_magic, sizeof slots_magic) == 0;
  close(fd);
  memcpy(out, head.store_id, 16);
  return is_table;
}

static bcs_status allocate_range(bcs_store *store, size_t from, size_t to) {
  int code = bcsi_fault("slots-allocate");
  if (code == 0) {
    do code = posix_fallocate(store->slots.fd, (off_t)from, (off_t)(to - from));
    while (code == EINTR);
  }
  return code == 0 ? BCS_OK : fail(store, code, "fallocate");
}

static bcs_status allocate(bcs_store *store, uint64_t lines) {
  bcs_status status = allocate_range(store, 0, GHOSTS_AT);
  return status == BCS_OK ? allocate_range(store, LINES_AT, file_size(lines)) : status;
}

void *bcsi_slots_ghosts(bcs_store *store) { return store->slots.map ? store->slots.map + GHOSTS_AT : NULL; }
bcs_status bcsi_slots_reserve_ghosts(bcs_store *store, size_t size) {
  bcs_status status = allocate_range(store, GHOSTS_AT, GHOSTS_AT + size);
  if (status == BCS_OK) put(&head_of(store)->ghosts, size);
  return status;
}
size_t bcsi_slots_ghosts_size(bcs_store *store) { return store->slots.map ? load(&head_of(store)->ghosts) : 0; }

/* Makes the table from the records. Who calls is alone: two tables would break what the processes tell each other. */
static bcs_status rebuild(bcs_store *store, MDB_txn *txn, const bcsi_totals *totals) {
  uint64_t lines = totals->slots_used < GROW_FROM ? GROW_FROM : totals->slots_used;
  if (lines > BCSI_MAX_LINES) return refuse(store, BCS_CORRUPT, "rebuild", "more lines than a table can have");
  if (ftruncate(store->slots.fd, 0) != 0) return fail(store, errno, "truncate");
  bcs_status status = allocate(store, lines);
  if (status == BCS_OK) status = map_file(store);
  if (status != BCS_OK) return status;
  struct head *head = head_of(store);
  head->version = SLOTS_VERSION;
  head->line_size = sizeof(struct line);
  memcpy(head->store_id, totals->store_id, 16);
  memcpy(head->boot_id, store->boot_id, BCSI_BOOT_ID_SIZE);
  put(&head->allocated, lines);
  put(&head->files_published, PUBLISHED_CAPACITY + 1); /* nobody knows which */
  atomic_store(&store->slots.allocated, (uint32_t)lines);

  MDB_cursor *cursor;
  int rc = mdb_cursor_open(txn, store->index.entries, &cursor);
  if (rc != 0) return bcsi_fail_lmdb(rc, "cursor", store->index.path);
  MDB_val key, value;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_record record;
    if (key.mv_size != BCS_HASH_SIZE || !bcsi_record_decode(value.mv_data, value.mv_size, &record)) continue;
    if (record.view.slot >= lines) continue;
    memcpy(record.view.key_hash, key.mv_data, BCS_HASH_SIZE);
    bcsi_slots_fill(store, &record.view, record.view.written_ms, 0);
    bcsi_slots_set_generation(store, record.view.slot, record.view.generation);
  }
  mdb_cursor_close(cursor);
  if (rc != MDB_NOTFOUND) return bcsi_fail_lmdb(rc, "read", store->index.path);
  bcsi_slots_publish_totals(store, totals);
  bcs_limits limits;
  rc = bcsi_limits_get(store, txn, &limits);
  if (rc != 0) return bcsi_fail_lmdb(rc, "read limits", store->index.path);
  bcsi_slots_set_limits(store, &limits);
  bcsi_slots_publish_live(store, bcsi_index_live(store, txn));
  memcpy(head->magic, slots_magic, sizeof slots_magic); /* last: only now it is a table */
  return BCS_OK;
}

/* Words of the head that repeat what the index says, or what is nobody's now: a kill in between two of them, or a word
 * that somebody wrote, must not make a cache of another size. */
static bcs_status refresh(bcs_store *store, MDB_txn *txn, const bcsi_totals *totals) {
  struct head *head = head_of(store);
  bcs_limits limits;
  int rc = bcsi_limits_get(store, txn, &limits);
  if (rc != 0) return bcsi_fail_lmdb(rc, "read limits", store->index.path);
  bcsi_slots_set_limits(store, &limits);
  bcsi_slots_publish_totals(store, totals);
  bcsi_slots_publish_live(store, bcsi_index_live(store, txn));
  put(&head->staging, 0);
  if (load(&head->files_synced) > load(&head->files_published)) { /* or a checkpoint would always be due */
    put(&head->files_synced, 0);
    put(&head->files_published, PUBLISHED_CAPACITY + 1); /* nobody knows which */
  }
  uint64_t ghosts = load(&head->ghosts);
  if (ghosts > BCSI_GHOSTS_SIZE || (ghosts > 0 && allocate_range(store, GHOSTS_AT, GHOSTS_AT + ghosts) != BCS_OK))
    put(&head->ghosts, 0); /* they are made anew when something is evicted */
  return BCS_OK;
}

/* For an hour after an index was begun anew, blob files that no row knows may be stored again, and are kept. */
enum { KEPT_S = 3600 };
static void keep_files(bcs_store *store) {
  if (!atomic_load(&store->fresh_index) && !atomic_load(&store->new_index)) return;
  put(&head_of(store)->keep_until, (uint64_t)time(NULL) + KEPT_S);
  put(&head_of(store)->unrepaired, 1);
}

/* Not longer, whatever somebody wrote into the word. */
bool bcsi_slots_keep_files(bcs_store *store) {
  if (!store->slots.map) return false;
  uint64_t now = (uint64_t)time(NULL), until = load(&head_of(store)->keep_until);
  return now < until && until - now <= KEPT_S;
}

/* The first repair keeps them, too; it may be another process that makes it. */
bool bcsi_slots_repair_keeps_files(bcs_store *store) {
  return bcsi_slots_keep_files(store) && load(&head_of(store)->unrepaired) != 0;
}
void bcsi_slots_repaired(bcs_store *store) { put(&head_of(store)->unrepaired, 0); }

bcs_status bcsi_slots_open(bcs_store *store, bool alone, bool force, bool *rebuilt) {
  bcsi_slots *slots = &store->slots;
  slots->read_only = store->options.read_only;
  *rebuilt = false;
  int flags = slots->read_only ? O_RDONLY : O_RDWR | (alone ? O_CREAT : 0);
  slots->fd = openat(store->root_fd, "slots", flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, store->file_mode);
  if (slots->fd < 0) {
    if (slots->read_only && errno == ENOENT) return BCS_OK;
    return fail(store, errno, "open");
  }
  struct stat st;
  if (fstat(slots->fd, &st) != 0) return fail(store, errno, "stat");
  char shown[4300];
  bcsi_join(store->info.path, "slots", shown, sizeof shown);
  bcs_status own = bcsi_check_own(&st, slots->read_only, shown);
  if (own != BCS_OK) return own;
  if (!slots->read_only && (st.st_mode & 0777) != store->file_mode && st.st_uid == geteuid() &&
      fchmod(slots->fd, store->file_mode) != 0)
    return fail(store, errno, "chmod");

  MDB_txn *txn;
  int rc = bcsi_begin_at_open(store, MDB_RDONLY, &txn);
  if (rc != 0) return bcsi_fail_lmdb(rc, "begin", store->index.path);
  bcsi_totals totals;
  bcs_status status = bcsi_totals_get(store, txn, &totals);
  int sound = status == BCS_OK && !force ? is_sound(store, &totals, st.st_size) : false;
  if (sound < 0) status = fail(store, errno, "read");
  if (status == BCS_OK && sound) {
    status = map_file(store);
    if (status == BCS_OK) atomic_store(&slots->allocated, (uint32_t)load(&head_of(store)->allocated));
    if (status == BCS_OK && alone && !slots->read_only) status = refresh(store, txn, &totals);
  } else if (status == BCS_OK && slots->read_only) {
    close(slots->fd);
    slots->fd = -1; /* access times are unknown then; nothing else is */
  } else if (status == BCS_OK && !alone) {
    status = refuse(store, BCS_CORRUPT, "open",
                    "the slot table is damaged and other processes use the directory; close them and open again");
  } else if (status == BCS_OK) {
    mdb_txn_abort(txn);
    status = bcsi_lines_mend(store);
    if ((rc = bcsi_begin_at_open(store, MDB_RDONLY, &txn)) != 0) return bcsi_fail_lmdb(rc, "begin", store->index.path);
    if (status == BCS_OK) status = bcsi_totals_get(store, txn, &totals);
    if (status == BCS_OK) status = rebuild(store, txn, &totals);
    if (status == BCS_OK) keep_files(store);
    *rebuilt = true;
  }
  mdb_txn_abort(txn);
  return status;
}

void bcsi_slots_close(bcs_store *store) {
  if (store->slots.map) munmap(store->slots.map, store->slots.map_size);
  if (store->slots.fd >= 0) close(store->slots.fd);
  store->slots.map = NULL;
  store->slots.fd = -1;
}

/* In place, since all map it and some look without a lock; generations go on, as ever. */
void bcsi_slots_renew(bcs_store *store, const bcsi_totals *totals) {
  struct head *head = head_of(store);
  bcsi_slots_epoch(store, true);
  for (uint32_t i = 0; bcsi_slots_has(store, i); i++)
    bcsi_slots_empty(store, i, (bcsi_slots_generation(store, i) | 1) + 3);
  memcpy(head->store_id, totals->store_id, sizeof head->store_id);
  bcsi_slots_unmark(store);
  bcsi_slots_publish_totals(store, totals);
  bcsi_slots_epoch(store, false);
  keep_files(store);
}

/* ---- lines */

bcs_status bcsi_slots_reserve(bcs_store *store, uint32_t line) {
  if (line >= BCSI_MAX_LINES) return refuse(store, BCS_NO_SPACE, "allocate", "134,217,728 entries are the most");
  uint64_t allocated = load(&head_of(store)->allocated);
  if (line >= allocated) {
    uint64_t lines = allocated + allocated / 4;
    if (lines < allocated + GROW_FROM) lines = allocated + GROW_FROM;
    if (lines > BCSI_MAX_LINES) lines = BCSI_MAX_LINES;
    bcs_status status = allocate(store, lines);
    if (status != BCS_OK) return status;
    atomic_store(&head_of(store)->allocated, lines);
    allocated = lines;
  }
  atomic_store(&store->slots.allocated, (uint32_t)allocated);
  return BCS_OK;
}

bool bcsi_slots_has(bcs_store *store, uint32_t line) {
  if (line < atomic_load_explicit(&store->slots.allocated, memory_order_relaxed)) return true;
  if (!store->slots.map) return false;
  uint64_t allocated = load(&head_of(store)->allocated);
  struct stat st;
  if (line >= allocated || allocated > BCSI_MAX_LINES) return false;
  if (fstat(store->slots.fd, &st) != 0 || st.st_size < (off_t)file_size(allocated)) return false;
  atomic_store(&store->slots.allocated, (uint32_t)allocated);
  return true;
}

uint64_t bcsi_slots_generation(bcs_store *store, uint32_t line) {
  return atomic_load_explicit(&line_at(store, line)->generation, memory_order_acquire);
}

void bcsi_slots_hash(bcs_store *store, uint32_t line, uint8_t out[BCS_HASH_SIZE]) {
  uint64_t hash[2] = {load(&line_at(store, line)->hash[0]), load(&line_at(store, line)->hash[1])};
  memcpy(out, hash, sizeof hash);
}

void bcsi_slots_set_generation(bcs_store *store, uint32_t line, uint64_t generation) {
  atomic_store_explicit(&line_at(store, line)->generation, generation, memory_order_seq_cst);
}

void bcsi_slots_mark(bcs_store *store, const uint32_t *lines, size_t count) {
  struct head *head = head_of(store);
  size_t kept = count <= MARK_CAPACITY ? count : 0;
  for (size_t i = 0; i < kept; i++) atomic_store_explicit(mark_of(store) + i, lines[i], memory_order_relaxed);
  atomic_store(&head->mark_count, count <= MARK_CAPACITY ? (uint32_t)count : MARK_CAPACITY + 1);
}

void bcsi_slots_unmark(bcs_store *store) { atomic_store(&head_of(store)->mark_count, 0); }

size_t bcsi_slots_marked(bcs_store *store, uint32_t *lines, size_t capacity, bool *all) {
  uint32_t count = atomic_load(&head_of(store)->mark_count);
  *all = count > MARK_CAPACITY || count > capacity;
  if (*all) return 0;
  for (uint32_t i = 0; i < count; i++) lines[i] = atomic_load_explicit(mark_of(store) + i, memory_order_relaxed);
  return count;
}

/* Everything but the generation: the line is odd, or of nobody, meanwhile. */
void bcsi_slots_fill(bcs_store *store, const bcs_record *record, int64_t ms, uint32_t hits) {
  struct line *line = line_at(store, record->slot);
  uint64_t hash[2];
  memcpy(hash, record->key_hash, sizeof hash);
  put(&line->hash[0], hash[0]);
  put(&line->hash[1], hash[1]);
  put(&line->deadline, (uint64_t)record->lifetime.deadline_ms);
  put(&line->window, (uint64_t)record->lifetime.window_ms);
  put(&line->size_kind, size_kind_word(record));
  put(&line->written, written_word(record->written_ms, record->stale_ms));
  atomic_store(&line->access, access_word(record->generation, hits, ms));
}

void bcsi_slots_empty(bcs_store *store, uint32_t number, uint64_t generation) {
  struct line *line = line_at(store, number);
  put(&line->hash[0], 0);
  put(&line->hash[1], 0);
  put(&line->size_kind, 0);
  atomic_store(&line->access, access_word(generation, 0, 0));
  bcsi_slots_set_generation(store, number, generation);
}

static void touch_line(struct line *line, uint64_t generation, int64_t now_ms) {
  uint64_t word = load(&line->access);
  if (word >> TAG_SHIFT != tag_of(generation)) return;
  if (access_ms(word) >= now_ms) return;
  uint32_t hits = access_hits(word);
  uint64_t next = access_word(generation, hits < HITS_MAX ? hits + 1 : HITS_MAX, now_ms);
  (void)atomic_compare_exchange_strong_explicit(&line->access, &word, next, memory_order_relaxed,
                                                memory_order_relaxed); /* lost to another read: as good */
}

/* A read: tells the record when it was last read before, and notes this one. Within the same millisecond one note is
 * enough, which is also what keeps a hot line from going back and forth between cores. */
void bcsi_slots_touch(bcs_store *store, bcs_record *record, int64_t now_ms) {
  if (!store->slots.map || store->slots.read_only || !bcsi_slots_has(store, record->slot)) return;
  touch_line(line_at(store, record->slot), record->generation, now_ms);
}

bool bcsi_slots_stands(bcs_store *store, uint32_t number, uint64_t generation, uint64_t epoch) {
  if (atomic_load_explicit(&line_at(store, number)->generation, memory_order_acquire) != generation) return false;
  return bcsi_slots_epoch_now(store) == epoch;
}

bool bcsi_slots_recall(bcs_store *store, const bcs_memory_item *item, int64_t now_ms, int64_t *access, uint32_t *hits) {
  struct line *line = line_at(store, item->slot);
  if (!bcsi_slots_stands(store, item->slot, item->generation, item->epoch)) return false;
  uint64_t word = load(&line->access);
  bool ours = word >> TAG_SHIFT == tag_of(item->generation);
  *access = ours ? access_ms(word) : item->written_ms;
  *hits = ours ? access_hits(word) : 0;
  if (bcsi_is_expired(&item->lifetime, item->written_ms, *access, now_ms)) return false;
  int64_t oldest = (int64_t)load(&head_of(store)->limit_age);
  if (bcsi_is_older(item->written_ms, oldest, now_ms)) return false;
  touch_line(line, item->generation, now_ms);
  return true;
}

void bcsi_slots_save(bcs_store *store, uint32_t number, uint64_t out[8]) {
  _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)line_at(store, number);
  for (int i = 0; i < 8; i++) out[i] = load(words + i);
}

void bcsi_slots_restore(bcs_store *store, uint32_t number, const uint64_t saved[8]) {
  _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)line_at(store, number);
  for (int i = 1; i < 8; i++) put(words + i, saved[i]);
  bcsi_slots_set_generation(store, number, saved[0]); /* last: from now on the line says something again */
}

int64_t bcsi_slots_access_ms(bcs_store *store, uint32_t line) { return access_ms(load(&line_at(store, line)->access)); }

void bcsi_slots_expect(bcs_store *store, uint32_t line) {
  if (line < atomic_load_explicit(&store->slots.allocated, memory_order_relaxed))
    __builtin_prefetch(line_at(store, line), 1);
}

/* What the table adds to a record: when it was last read, how often, and how old it may become. */
void bcsi_slots_read_access(bcs_store *store, bcs_record *record) {
  if (!store->slots.map) return;
  bcsi_record_limit_age(record, (int64_t)load(&head_of(store)->limit_age));
  if (!bcsi_slots_has(store, record->slot)) return;
  uint64_t word = load(&line_at(store, record->slot)->access);
  if (word >> TAG_SHIFT != tag_of(record->generation)) return;
  record->access_ms = access_ms(word);
  record->hits = access_hits(word);
}

/* Its lifetime, its size and what else the line repeats. */
static bool tells_of(struct line *line, const bcs_record *record) {
  return load(&line->deadline) == (uint64_t)record->lifetime.deadline_ms &&
         load(&line->window) == (uint64_t)record->lifetime.window_ms && load(&line->size_kind) == size_kind_word(record) &&
         load(&line->written) == written_word(record->written_ms, record->stale_ms);
}

bool bcsi_slots_agree(bcs_store *store, const bcs_record *record) {
  if (!store->slots.map) return true;
  if (!bcsi_slots_has(store, record->slot)) return false;
  struct line *line = line_at(store, record->slot);
  uint64_t hash[2];
  memcpy(hash, record->key_hash, sizeof hash);
  uint64_t generation = load(&line->generation);
  if (generation != record->generation) return (generation & 1) != 0; /* odd: a writer is at it */
  bool agrees = load(&line->hash[0]) == hash[0] && load(&line->hash[1]) == hash[1] &&
                load(&line->access) >> TAG_SHIFT == tag_of(record->generation) && tells_of(line, record);
  /* A writer may have been at it meanwhile. */
  return agrees || atomic_load_explicit(&line->generation, memory_order_seq_cst) != generation;
}

/* ---- removals of everything */

void bcsi_slots_epoch(bcs_store *store, bool odd) {
  _Atomic uint64_t *epoch = &head_of(store)->epoch;
  uint64_t now = atomic_load(epoch);
  if (odd) atomic_store(epoch, (now | 1) + 2);
  else if (now & 1) atomic_store(epoch, now + 1);
}

bool bcsi_slots_epoch_is_odd(bcs_store *store) { return store->slots.map && (bcsi_slots_epoch_now(store) & 1); }

uint64_t bcsi_slots_epoch_now(bcs_store *store) {
  return store->slots.map ? atomic_load_explicit(&head_of(store)->epoch, memory_order_acquire) : 1;
}

/* ---- entries as lines tell them */

/* What a line says of its entry, without the index: for choosing among entries, not for answering. False: it has none. */
bool bcsi_slots_record(bcs_store *store, uint32_t number, bcs_record *out) {
  struct line *line = line_at(store, number);
  uint64_t hash[2] = {load(&line->hash[0]), load(&line->hash[1])};
  if (hash[0] == 0 && hash[1] == 0) return false;
  uint64_t size_kind = load(&line->size_kind), written = load(&line->written), word = load(&line->access);
  memset(out, 0, sizeof *out);
  memcpy(out->key_hash, hash, sizeof hash);
  out->slot = number;
  out->generation = load(&line->generation);
  out->lifetime = (bcs_lifetime){.kind = (bcs_lifetime_kind)(size_kind >> 1 & 3),
                                 .deadline_ms = (int64_t)load(&line->deadline),
                                 .window_ms = (int64_t)load(&line->window)};
  out->is_file = (size_kind & 1) != 0;
  out->pinned = (size_kind & 8) != 0;
  out->size = size_kind >> 4;
  out->written_ms = (int64_t)(written & MS_MAX);
  uint64_t stale = written >> HITS_SHIFT;
  out->stale_ms = stale == STALE_MAX ? INT64_MAX : (int64_t)stale * 1000;
  out->access_ms = access_ms(word);
  out->hits = access_hits(word);
  bcsi_record_limit_age(out, (int64_t)load(&head_of(store)->limit_age));
  return true;
}

uint64_t bcsi_slots_count_expired(bcs_store *store, int64_t now_ms) {
  if (!store->slots.map) return 0;
  uint64_t count = 0, used = load(&head_of(store)->used);
  for (uint32_t i = 0; i < used && bcsi_slots_has(store, i); i++) {
    bcs_record record;
    if (bcsi_slots_record(store, i, &record) && bcs_is_expired(&record, now_ms)) count++;
  }
  return count;
}
