/* Checkpoints: what of a directory that is not durable survives a power cut.
 *
 * LMDB runs with MDB_NOSYNC: its pages reach the disk when and in the order that the kernel likes, so after a cut its
 * file may hold any mixture of them. A checkpoint is a state whose pages are all on the disk, and stay as they are there:
 *
 *   index/checkpoint   a header, and both meta pages as they were; the state is that of the newer one
 *
 *   1. under the write lock: a read transaction is begun, the pin, and the meta pages are copied;
 *   2. writers go on; blob files that were published since the last one are synced, and the index's file;
 *   3. the copy is written aside and synced, renamed under the write lock, and the folder synced;
 *   4. under the write lock: it is settled, that is, told to the other processes, and the older pin is released.
 *
 * LMDB does not use a page again that a reader may still see, so the pin keeps each page of the checkpoint as it is until a
 * newer one is settled. After a cut, which another boot id tells, who opens the directory alone writes the meta pages
 * back before LMDB sees them, and has all of that state.
 *
 * Who holds the pin: the process that made the checkpoint, shown by a lock on a byte of LOCK that the kernel gives up with
 * it. A writer looks for it before it changes anything. When nobody holds it (its process was killed, or closed the
 * directory) the writer takes one itself: if nothing was committed since, that is all; otherwise it makes a checkpoint
 * first. LMDB drops the pins of the dead by itself, but only where it begins a transaction or is asked to, so in front of
 * that look. The holder may also stand still: any process makes the next checkpoint, and then takes the old pin out of
 * LMDB's table of readers, which is safe because nobody reads through a pin.
 *
 * Everything that one commit frees stays on the disk until the next checkpoint; see freelist.c for the bound. A
 * checkpoint that cannot be made (a full disk) while no pin protects the old one is given up: then a cut costs the
 * entries, instead of the fault costing every store. */
#include "slots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_MOST = 65536 };
static const char checkpoint_magic[8] = {'B','C','C','H','K','P','T','1'};
static const char published_name[] = "index/checkpoint";

typedef struct header {
  char magic[8];
  uint32_t page_size, reserved;
  uint64_t transaction;
  char boot_id[BCSI_BOOT_ID_SIZE]; /* when it was made; for whoever looks at the file */
  uint8_t checksum[BCS_DIGEST_SIZE]; /* SHA-256 of the header up to here, and of the pages */
} header;

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool has_checkpoints(const bcs_store *store) {
  return !store->durable && !store->options.read_only && store->slots.map != NULL;
}

static uint64_t settled(bcs_store *store) { return load(&head_of(store)->checkpoint); }

uint64_t bcsi_last_transaction(bcs_store *store) {
  MDB_envinfo info;
  return store->index.env && mdb_env_info(store->index.env, &info) == 0 ? info.me_last_txnid : 0;
}

static uint64_t page_count(bcs_store *store) {
  MDB_envinfo info;
  return store->index.env && mdb_env_info(store->index.env, &info) == 0 ? info.me_last_pgno + 1 : 0;
}

static bcs_status fail(bcs_store *store, int code, const char *operation, const char *name) {
  char path[4300];
  bcsi_join(store->info.path, name, path, sizeof path);
  return bcsi_fail_errno(code, operation, path);
}

/* ---- the file */

static bcs_status digest_of(const header *h, const uint8_t *pages, uint8_t out[BCS_DIGEST_SIZE]) {
  return bcsi_digest_parts(h, offsetof(header, checksum), pages, 2 * (size_t)h->page_size, out);
}

/* BCS_MISS: there is none, or none that can be used. *pages is to be freed. */
static bcs_status read_file(bcs_store *store, header *h, uint8_t **pages) {
  uint8_t digest[BCS_DIGEST_SIZE];
  *pages = NULL;
  int fd = openat(store->root_fd, published_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT || errno == ELOOP ? BCS_MISS : fail(store, errno, "open", published_name);
  bcs_status status = BCS_MISS;
  /* Without a checkpoint a cut costs all entries, so what cannot be read at this moment is not taken for none. */
  ssize_t n = bcsi_read_at(fd, h, sizeof *h, 0);
  if (n < 0) status = fail(store, errno, "read", published_name);
  bool sane = n == (ssize_t)sizeof *h &&
              memcmp(h->magic, checkpoint_magic, sizeof checkpoint_magic) == 0 && h->page_size >= 512 &&
              h->page_size <= PAGE_MOST && (h->page_size & (h->page_size - 1)) == 0 && h->transaction > 0;
  if (sane && !(*pages = malloc(2 * (size_t)h->page_size)))
    status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "read checkpoint", store->info.path, NULL);
  else if (sane) {
    n = bcsi_read_at(fd, *pages, 2 * (size_t)h->page_size, sizeof *h);
    if (n < 0) status = fail(store, errno, "read", published_name);
    else if (n == 2 * (ssize_t)h->page_size) status = digest_of(h, *pages, digest);
  }
  close(fd);
  if (status == BCS_OK && memcmp(digest, h->checksum, sizeof digest) != 0) status = BCS_MISS;
  if (status != BCS_OK) {
    free(*pages);
    *pages = NULL;
  }
  return status;
}

static void name_aside(uint32_t number, char out[64]) { snprintf(out, 64, "%s.%u", published_name, number); }

static bcs_status write_aside(bcs_store *store, const header *h, const uint8_t *pages, const char *name) {
  char shown[4300];
  bcsi_join(store->info.path, name, shown, sizeof shown);
  int code = bcsi_fault("checkpoint-write"), fd = -1;
  (void)unlinkat(store->root_fd, name, 0); /* of a process that was killed */
  if (code == 0) {
    fd = openat(store->root_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, store->file_mode);
    code = fd < 0 ? errno : 0;
  }
  if (code != 0) return bcsi_fail_errno(code, "create", shown);
  bcs_status status = BCS_OK;
  if (fchmod(fd, store->file_mode) != 0) status = bcsi_fail_errno(errno, "chmod", shown);
  if (status == BCS_OK) status = bcsi_write_all(fd, h, sizeof *h, shown);
  if (status == BCS_OK) status = bcsi_write_all(fd, pages, 2 * (size_t)h->page_size, shown);
  if (status == BCS_OK && fsync(fd) != 0) status = bcsi_fail_errno(errno, "fsync", shown);
  if (close(fd) != 0 && status == BCS_OK) status = bcsi_fail_errno(errno, "close", shown);
  if (status != BCS_OK) (void)unlinkat(store->root_fd, name, 0);
  return status;
}

static bcs_status sync_folder(bcs_store *store) {
  int fd = openat(store->root_fd, "index", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return fail(store, errno, "open", "index");
  int code = bcsi_fault("checkpoint-folder");
  if (code == 0 && fsync(fd) != 0) code = errno;
  close(fd);
  return code == 0 ? BCS_OK : fail(store, code, "fsync", "index");
}

/* Both pages as they are, with the write lock: LMDB changes them only in a commit. */
static bcs_status copy_metas(bcs_store *store, const bcsi_pin *pin, int fd, header *h, uint8_t **pages) {
  memset(h, 0, sizeof *h);
  memcpy(h->magic, checkpoint_magic, sizeof checkpoint_magic);
  memcpy(h->boot_id, store->boot_id, BCSI_BOOT_ID_SIZE);
  h->page_size = pin->page_size;
  h->transaction = pin->transaction;
  size_t size = 2 * (size_t)h->page_size;
  if (!(*pages = malloc(size))) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "checkpoint", store->index.path, NULL);
  ssize_t n = bcsi_read_at(fd, *pages, size, 0);
  if (n != (ssize_t)size) return bcsi_fail_errno(n < 0 ? errno : EIO, "read", store->index.path);
  return digest_of(h, *pages, h->checksum);
}

/* ---- settling, under the write lock */

static void settle(bcs_store *store, const bcsi_pin *pin, uint64_t published) {
  struct head *head = head_of(store);
  uint64_t before = settled(store);
  uint32_t row = (uint32_t)load(&head->checkpoint_row);
  bool own = false;
  for (int i = 0; i < 2; i++) own |= store->pins[i].number != 0 && store->pins[i].row == row;
  put(&head->checkpoint, pin->transaction);
  (void)bcsi_fault("checkpoint-settle");
  put(&head->checkpoint_pin, pin->number);
  put(&head->checkpoint_row, pin->row);
  put(&head->checkpoint_ms, (uint64_t)now_ms());
  put(&head->checkpoint_pages, page_count(store));
  if (published > load(&head->files_synced)) put(&head->files_synced, published);
  (void)bcsi_fault("checkpoint-settled");
  if (before != 0 && before <= pin->transaction && !own) bcsi_pin_take_out(store, row, before);
  store->checkpoint_wanted = false;
  bcsi_pins_release_older(store);
}

/* ---- making one */

typedef struct draft {
  bcsi_pin *pin;
  header h;
  uint8_t *pages;
  int data_fd;                           /* of our own: LMDB's is closed with a broken environment */
  uint64_t published;                    /* files, so far */
  uint8_t (*files)[BCS_DIGEST_SIZE];     /* those since the last checkpoint; NULL: too many to be synced one by one */
  size_t file_count;
  char name[64];
} draft;

/* A file costs some 200 µs, syncfs(2) 30 and all that others have written to the file system. */
enum { FILES_ONE_BY_ONE = 256 };

static uint8_t *published_at(bcs_store *store, uint64_t number) {
  return store->slots.map + PUBLISHED_AT + (size_t)(number % PUBLISHED_CAPACITY) * BCS_DIGEST_SIZE;
}

static bcs_status list_files(bcs_store *store, draft *d) {
  uint64_t synced = load(&head_of(store)->files_synced), count = d->published - synced;
  if (count > FILES_ONE_BY_ONE) return BCS_OK;
  if (!(d->files = malloc((size_t)(count + 1) * sizeof *d->files)))
    return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "checkpoint", store->index.path, NULL);
  for (; d->file_count < count; d->file_count++)
    memcpy(d->files[d->file_count], published_at(store, synced + d->file_count), BCS_DIGEST_SIZE);
  return BCS_OK;
}

/* *there: its folder is to be synced, too. *lost: the disk has said so, see sync_all. What cannot be opened at this moment
 * can be synced later. */
static int sync_file(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], bool *there, bool *lost) {
  char name[BCSI_NAME_MAX];
  bcsi_blob_name(digest, name);
  int fd = openat(store->blobs_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? 0 : errno; /* removed since, or a word of the table is damaged */
  *there = true;
  int code = fsync(fd) != 0 ? errno : 0;
  *lost = code != 0;
  close(fd);
  return code;
}

static int sync_files(bcs_store *store, const draft *d, bool *lost) {
  bool folders[256] = {false};
  if (!d->files) {
    *lost = syncfs(store->root_fd) != 0;
    return *lost ? errno : 0;
  }
  for (size_t i = 0; i < d->file_count; i++) {
    int code = sync_file(store, d->files[i], &folders[d->files[i][0]], lost);
    if (code != 0) return code;
  }
  for (int i = 0; i < 256; i++)
    if (folders[i] && bcsi_blob_sync_folder(store, (uint8_t)i) != BCS_OK) {
      bcs_error error;
      bcs_last_error(&error);
      *lost = strcmp(error.operation, "fsync") == 0;
      return error.code != 0 ? error.code : EIO;
    }
  *lost = d->file_count > 0 && fsync(store->blobs_fd) != 0;
  return *lost ? errno : 0;
}

static bcs_status sync_all(bcs_store *store, const draft *d) {
  int code = bcsi_fault("checkpoint-sync");
  bool lost = code != 0;
  if (code == 0) code = sync_files(store, d, &lost);
  if (code == 0) {
    code = bcsi_fault("checkpoint-data");
    if (code == 0 && fdatasync(d->data_fd) != 0) code = errno;
    lost = code != 0;
  }
  if (code == 0) return BCS_OK;
  /* Of what the disk says, the kernel tells once: what it dropped then it does not write again (fsync(2)). */
  if (lost) store->checkpoint_lost = true;
  return bcsi_fail_errno(code, "fdatasync", store->index.path);
}

/* With the write lock. */
static bcs_status begin(bcs_store *store, draft *d) {
  memset(d, 0, sizeof *d);
  d->data_fd = -1;
  if (!(d->pin = bcsi_pin_free(store))) return bcsi_fail(BCS_BUSY, 0, "checkpoint", store->index.path, NULL);
  bcs_status status = bcsi_pin_take(store, d->pin);
  if (status != BCS_OK) {
    d->pin = NULL;
    return status;
  }
  d->pin->is_draft = true;
  d->published = load(&head_of(store)->files_published);
  name_aside(d->pin->number, d->name);
  d->data_fd = openat(store->root_fd, "index/data.mdb", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  status = d->data_fd < 0 ? fail(store, errno, "open", "index/data.mdb")
                          : copy_metas(store, d->pin, d->data_fd, &d->h, &d->pages);
  if (status == BCS_OK) status = list_files(store, d);
  (void)bcsi_fault("checkpoint-begin");
  return status;
}

/* Without it, unless no pin protects the older one. */
static bcs_status make_durable(bcs_store *store, draft *d) {
  bcs_status status = sync_all(store, d);
  if (status == BCS_OK) status = write_aside(store, &d->h, d->pages, d->name);
  (void)bcsi_fault("checkpoint-written");
  return status;
}

/* The environment was replaced meanwhile, and nothing keeps the pages of this state. */
static bool has_lost_pin(const draft *d) {
  return d->pin && (d->pin->number == 0 || d->pin->transaction != d->h.transaction);
}

/* With it: a newer one that somebody else published stays. */
static bcs_status publish(bcs_store *store, draft *d) {
  struct head *head = head_of(store);
  if (has_lost_pin(d) || load(&head->checkpoint_published) > d->h.transaction) return bcsi_fail(BCS_BUSY, 0, "checkpoint", store->index.path, NULL);
  int code = bcsi_fault("checkpoint-rename");
  if (code == 0 && renameat(store->root_fd, d->name, store->root_fd, published_name) != 0) code = errno;
  if (code != 0) return fail(store, code, "rename", published_name);
  (void)bcsi_fault("checkpoint-renamed");
  put(&head->checkpoint_published, d->h.transaction);
  return BCS_OK;
}

static void discard(draft *d) {
  if (d->data_fd >= 0) close(d->data_fd);
  free(d->pages);
  free(d->files);
}

/* With it. */
static void end(bcs_store *store, draft *d, bcs_status status) {
  if (d->pin) d->pin->is_draft = false;
  if (status == BCS_OK && has_lost_pin(d)) bcsi_checkpoint_give_up(store);
  else if (status == BCS_OK && d->h.transaction >= settled(store)) settle(store, d->pin, d->published);
  else if (d->pin) bcsi_pin_release(store, d->pin);
  if (status != BCS_OK && d->name[0]) (void)unlinkat(store->root_fd, d->name, 0);
  discard(d);
}

/* The lock cannot be had at this moment: the next one who has it releases the pin. */
static bcs_status abandon(draft *d, bcs_status status) {
  if (d->pin) atomic_store(&d->pin->is_draft, false);
  discard(d);
  return status;
}

static bool is_needed(bcs_store *store) {
  struct head *head = head_of(store);
  return settled(store) != bcsi_last_transaction(store) || load(&head->files_published) != load(&head->files_synced);
}

static bcs_status make_one(bcs_store *store) {
  draft d;
  bcs_status status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  if (!is_needed(store)) { /* and nobody writes: time to give back what the one before has kept */
    bool more = true;
    store->checkpoint_wanted = false;
    for (int i = 0; i < 4 && more; i++) /* others may want the lock */
      if (bcsi_free_sweep(store, &more) != BCS_OK) break;
    bcsi_writer_unlock(store);
    return BCS_OK;
  }
  status = begin(store, &d);
  bcsi_writer_unlock(store);
  if (status == BCS_OK) status = make_durable(store, &d);
  bcs_error error;
  bcs_last_error(&error);
  bcs_status locked = bcsi_writer_lock(store, false);
  if (locked != BCS_OK) return abandon(&d, locked);
  if (status == BCS_OK) {
    status = publish(store, &d);
    if (status == BCS_OK) {
      bcsi_writer_unlock(store);
      status = sync_folder(store);
      bcs_last_error(&error);
      locked = bcsi_writer_lock(store, false);
      if (locked != BCS_OK) return abandon(&d, locked);
    } else {
      bcs_last_error(&error);
    }
  }
  end(store, &d, status);
  bcsi_writer_unlock(store);
  return status == BCS_OK ? BCS_OK : bcsi_repeat(&error);
}

/* One process makes one at a time; two would keep more pages than one. One that stands still in the middle is not waited
 * for any longer: its checkpoint is older than the next, and is dropped. */
static bool take_turn(bcs_store *store, bool wait) {
  enum { MOMENT_US = 2000, MOMENTS = 2500 };
  for (int i = 0;; i++) {
    bcs_status status = bcsi_lock(store->lock_fd, BCSI_LOCK_CHECKPOINT, true, false, store->info.path);
    if (status != BCS_BUSY || i == MOMENTS) return true;
    if (!wait) return false;
    usleep(MOMENT_US);
  }
}

bcs_status bcsi_checkpoint(bcs_store *store, bool wait) {
  enum { TRIES = 8 };
  if (!has_checkpoints(store)) return BCS_OK;
  pthread_mutex_lock(&store->checkpoint);
  bcs_status status = BCS_BUSY;
  if (store->checkpoint_lost)
    status = bcsi_fail(BCS_IO, EIO, "checkpoint", store->index.path, "an earlier sync failed: the disk lost what it was given");
  else if (!take_turn(store, wait))
    status = BCS_OK; /* somebody is at it */
  for (int i = 0; status == BCS_BUSY && i < TRIES; i++) status = make_one(store);
  bcsi_unlock(store->lock_fd, BCSI_LOCK_CHECKPOINT);
  pthread_mutex_unlock(&store->checkpoint);
  return status;
}

/* Of a checkpoint that another process has replaced. */
static void release_needless(bcs_store *store) {
  if (store->pins[0].number == 0 && store->pins[1].number == 0) return; /* at most a moment late */
  if (bcsi_writer_lock(store, true) != BCS_OK) return;
  bcsi_pins_release_older(store);
  bcsi_writer_unlock(store);
}

bcs_status bcs_checkpoint(bcs_store *store, int64_t interval_ms) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  if (has_checkpoints(store)) {
    release_needless(store);
    bool due = interval_ms <= 0 || now_ms() - (int64_t)load(&head_of(store)->checkpoint_ms) >= interval_ms;
    if (due || store->checkpoint_wanted) status = bcsi_check_place(store);
    if (status == BCS_OK && (due || store->checkpoint_wanted)) status = bcsi_checkpoint(store, interval_ms <= 0);
  }
  bcsi_call_leave(store);
  return status;
}

bool bcs_wants_checkpoint(bcs_store *store) { return store->checkpoint_wanted; }

/* ---- the writer's side */

bool bcsi_checkpoint_is_held(bcs_store *store) {
  return !has_checkpoints(store) || settled(store) == 0 || bcsi_pin_is_held(store);
}

bool bcsi_checkpoint_has_grown(bcs_store *store) {
  return bcsi_checkpoint_transaction(store) > 0 && page_count(store) > load(&head_of(store)->checkpoint_pages);
}

uint64_t bcsi_checkpoint_transaction(bcs_store *store) { return has_checkpoints(store) ? settled(store) : 0; }

void bcsi_checkpoint_give_up(bcs_store *store) {
  struct head *head = head_of(store);
  (void)unlinkat(store->root_fd, published_name, 0);
  (void)sync_folder(store);
  put(&head->checkpoint, 0);
  put(&head->checkpoint_pin, 0);
  put(&head->checkpoint_published, 0);
  bcsi_pins_release_older(store); /* one that is being made goes on */
}

/* With the write lock, before a transaction that is to change something. */
void bcsi_checkpoint_protect(bcs_store *store) {
  if (bcsi_checkpoint_is_held(store)) return;
  draft d;
  bcs_status status = begin(store, &d);
  if (status == BCS_OK && d.h.transaction == settled(store)) { /* nothing was committed since it was made */
    d.published = load(&head_of(store)->files_synced);
    d.name[0] = 0;
    end(store, &d, BCS_OK);
    return;
  }
  if (status == BCS_OK && store->checkpoint_lost) status = BCS_IO;
  if (status == BCS_OK) status = make_durable(store, &d);
  if (status == BCS_OK) status = publish(store, &d);
  if (status == BCS_OK) status = sync_folder(store);
  end(store, &d, status);
  if (status != BCS_OK) bcsi_checkpoint_give_up(store);
}

/* ---- opening and closing */

/* Alone, another boot: *restored when the index is that of the checkpoint now. */
bcs_status bcsi_checkpoint_restore(bcs_store *store, bool *restored) {
  header h;
  uint8_t *pages;
  *restored = false;
  bcs_status status = read_file(store, &h, &pages);
  if (status != BCS_OK) return status == BCS_MISS ? BCS_OK : status;
  int fd = openat(store->root_fd, "index/data.mdb", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    int code = errno;
    free(pages);
    return code == ENOENT || code == ELOOP ? BCS_OK : fail(store, code, "open", "index/data.mdb");
  }
  struct stat st;
  size_t size = 2 * (size_t)h.page_size;
  if (fstat(fd, &st) != 0) {
    status = fail(store, errno, "stat", "index/data.mdb");
    st.st_mode = 0;
  }
  bool is_ours = status == BCS_OK && S_ISREG(st.st_mode) && st.st_size >= (off_t)size;
  if (is_ours) {
    for (size_t at = 0; status == BCS_OK && at < size; at += h.page_size) {
      int code = bcsi_fault("restore");
      if (code == 0) code = bcsi_write_at(fd, pages + at, h.page_size, (off_t)at);
      if (code != 0) status = fail(store, code, "restore", "index/data.mdb");
    }
    if (status == BCS_OK && fdatasync(fd) != 0) status = fail(store, errno, "restore", "index/data.mdb");
    (void)bcsi_fault("restored");
    *restored = status == BCS_OK;
  }
  close(fd);
  free(pages);
  return status;
}

/* What processes that were killed left aside. */
static bcs_status remove_asides(bcs_store *store) {
  static const char front[] = "checkpoint.";
  int fd = openat(store->root_fd, "index", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  if (!folder) {
    int code = errno;
    if (fd >= 0) close(fd);
    return fail(store, code, "list", "index");
  }
  struct dirent *item;
  while ((item = readdir(folder)) != NULL)
    if (strncmp(item->d_name, front, sizeof front - 1) == 0) (void)unlinkat(fd, item->d_name, 0);
  closedir(folder);
  return BCS_OK;
}

/* Alone, with index and slots: what the file says is what is settled, and nobody holds a pin of it. */
bcs_status bcsi_checkpoint_load(bcs_store *store) {
  header h;
  uint8_t *pages;
  if (!has_checkpoints(store)) return BCS_OK;
  struct head *head = head_of(store);
  bcs_status status = read_file(store, &h, &pages);
  free(pages);
  if (status != BCS_OK && status != BCS_MISS) return status;
  bool usable = status == BCS_OK && h.transaction <= bcsi_last_transaction(store);
  if (usable && (status = sync_folder(store)) != BCS_OK) return status; /* who renamed it may have died before it could */
  if (!usable && unlinkat(store->root_fd, published_name, 0) != 0 && errno != ENOENT)
    return fail(store, errno, "unlink", published_name);
  put(&head->checkpoint, usable ? h.transaction : 0);
  put(&head->checkpoint_published, usable ? h.transaction : 0);
  put(&head->checkpoint_pin, 0);
  put(&head->checkpoint_row, 0);
  put(&head->checkpoint_ms, 0);
  return remove_asides(store);
}

/* A new index has none. */
void bcsi_checkpoint_forget(bcs_store *store) {
  if (!has_checkpoints(store)) return;
  struct head *head = head_of(store);
  put(&head->checkpoint, 0);
  put(&head->checkpoint_pin, 0);
  put(&head->checkpoint_published, 0);
  store->checkpoint_lost = false;
}

/* With the write lock, after the commit. */
void bcsi_checkpoint_published(bcs_store *store, const uint8_t (*digests)[BCS_DIGEST_SIZE], size_t count) {
  if (!has_checkpoints(store)) return;
  struct head *head = head_of(store);
  uint64_t next = load(&head->files_published);
  for (size_t i = 0; i < count; i++) memcpy(published_at(store, next++), digests[i], BCS_DIGEST_SIZE);
  put(&head->files_published, next);
}
