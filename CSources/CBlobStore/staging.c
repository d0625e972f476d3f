/* Staging: bodies while they are written, and what the dead left of theirs.
 *
 * A staged body is an O_EXCL file "owner-n", so two writers never share one, whatever locks do on the file system. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Numbers are of the process, not of the store: a store that is opened again meets no name of its former life. */
static _Atomic uint64_t sequence;

static bcs_status fail(const bcs_store *store, int code, const char *operation, const char *name) {
  char shown[4400];
  snprintf(shown, sizeof shown, "%s/staging/%s", store->info.path, name);
  return bcsi_fail_errno(code, operation, shown);
}

/* A call out of order. */
static bcs_status misuse(const bcs_stage *stage, const char *operation, const char *cause) {
  char shown[4400];
  snprintf(shown, sizeof shown, "%s/staging/%s", stage->store->info.path, stage->name);
  return bcsi_fail(BCS_INVALID, 0, operation, shown, cause);
}

bcs_status bcs_stage_begin(bcs_store *store, bcs_stage **out) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  bcs_stage *stage = NULL;
  if (store->options.read_only) {
    status = bcsi_fail(BCS_READ_ONLY, 0, "stage", store->info.path, NULL);
    goto done;
  }
  status = bcsi_check_place(store);
  if (status != BCS_OK) goto done;
  stage = calloc(1, sizeof *stage);
  if (!stage) {
    status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "stage", store->info.path, NULL);
    goto done;
  }
  stage->store = store;
  stage->fd = -1;
  status = bcsi_hasher_make(&stage->hasher);
  if (status != BCS_OK) goto done;
  uint64_t number = atomic_fetch_add(&sequence, 1);
  char name[sizeof stage->name];
  int length = snprintf(name, sizeof name, "%.100s-%" PRIu64, store->owner, number);
  if (length < 0 || (size_t)length >= sizeof name) {
    status = bcsi_fail(BCS_INVALID, 0, "stage", store->info.path, "the name of a staging file is too long");
    goto done;
  }
  int code = bcsi_fault("stage");
  if (code == 0) {
    do { /* where no inode is left, one entry that has a file makes room */
      stage->fd = openat(store->staging_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         store->file_mode);
      code = stage->fd < 0 ? errno : 0;
    } while (code != 0 && bcsi_make_space(store, code, 1));
    if (code == 0) memcpy(stage->name, name, sizeof name);
  }
  if (code == 0 && fchmod(stage->fd, store->file_mode) != 0) code = errno; /* as configured, whatever the umask */
  if (code != 0) status = fail(store, code, "create", name);
done:
  bcsi_call_leave(store);
  if (status == BCS_OK) *out = stage;
  else bcs_stage_free(stage);
  return status;
}

bcs_status bcs_stage_for(bcs_stage *stage, const void *key, size_t key_count, size_t rest_count) {
  bcs_status status = bcsi_key_hash(key, key_count, stage->key_hash);
  if (status != BCS_OK) return status;
  stage->has_key = true;
  stage->own_bytes = BCSI_RECORD_HEAD + key_count + rest_count;
  return BCS_OK;
}

bcs_status bcs_stage_expect(bcs_stage *stage, uint64_t size) {
  bcs_status status = bcsi_call_enter(stage->store);
  if (status != BCS_OK) return status;
  stage->announced = size;
  status = bcsi_stage_fits(stage, size);
  if (status == BCS_OK && size > stage->size) status = bcsi_disk_fits(stage->store, size - stage->size);
  bcsi_call_leave(stage->store);
  return status;
}

/* Evicts to the limits and unlinks, in steps that let other writers in between. For the disk, what the index does not
 * need goes, too; the limit does not count it. */
static bcs_status make_room(bcs_store *store, const bcs_limits *limits, bool for_disk, uint64_t *evicted) {
  enum { STEPS = 64 };
  bool more = true;
  bcs_status status = BCS_OK;
  for (int i = 0; i < STEPS && more && status == BCS_OK; i++) status = bcs_trim(store, limits, 0, evicted, &more);
  for (more = true; more && status == BCS_OK;) status = bcs_sweep_trash(store, 256, &more);
  for (more = for_disk; more && status == BCS_OK;) status = bcs_give_back(store, NULL, &more);
  return status;
}

/* Whether entries are what is in the way: of a step that failed with `code` for want of so many bytes. Where it is inodes
 * that are short, of however few: some may have come free since. */
static bool would_help(bcs_store *store, int code, uint64_t *bytes) {
  enum { NEARLY_FULL = 16 << 20, FEW_INODES = 64, SOME_FILES = 64 << 10 };
  struct statvfs fs;
  if (bcsi_limits(store).minimum_free == 0) return false; /* the disk may be filled: then what does not fit is not stored */
  if (code == EDQUOT) return true;
  if (code != ENOSPC || fstatvfs(store->root_fd, &fs) != 0) return false; /* EFBIG: a limit of the process */
  if ((uint64_t)fs.f_bavail * fs.f_frsize < *bytes + NEARLY_FULL) return true;
  if (fs.f_files == 0 || fs.f_favail >= FEW_INODES) return false;
  if (*bytes > SOME_FILES) *bytes = SOME_FILES;
  return true;
}

/* What goes counts as free as soon as it waits in the trash, so no more goes than is asked for, also where no space
 * comes of it. Ballast that it took is put back before others have the room. */
bool bcsi_make_space(bcs_store *store, int code, uint64_t bytes) {
  if (!would_help(store, code, &bytes)) return false;
  uint64_t before = bcsi_disk_free(store), evicted = 0;
  bcs_limits limits = bcsi_limits(store);
  limits.minimum_free = before + bytes;
  bcs_status status = make_room(store, &limits, true, &evicted);
  bcsi_ballast_put_back(store);
  return status == BCS_OK && (evicted > 0 || bcsi_disk_free(store) > before);
}

/* What is staged counts towards the limit as it grows; entries make room for it, once it is known to fit. */
static bcs_status count_staged(bcs_stage *stage, size_t count) {
  enum { BLOCK = 4096 };
  bcs_store *store = stage->store;
  uint64_t limit = bcsi_limits(store).bytes, size = (stage->size + count + BLOCK - 1) / BLOCK * BLOCK;
  bcs_status status = bcsi_stage_fits(stage, stage->size + count);
  if (status != BCS_OK || size <= stage->counted) return status;
  (void)bcsi_slots_staged(store, (int64_t)(size - stage->counted));
  stage->counted = size;
  bcsi_totals totals;
  bcsi_slots_totals(store, &totals);
  bool over = limit > 0 && bcsi_used_bytes(store, &totals, bcsi_slots_live(store)) + totals.trash_allocated > limit;
  bool lacks = bcsi_disk_lacks(store, bcsi_limits(store).minimum_free, 0);
  if (!over && !lacks) return BCS_OK;
  uint64_t evicted = 0;
  return make_room(store, NULL, lacks, &evicted);
}

/* Its bytes are counted as a blob file from now on, or are gone. */
void bcsi_stage_published(bcs_stage *stage) {
  if (stage->counted > 0) (void)bcsi_slots_staged(stage->store, -(int64_t)stage->counted);
  stage->counted = 0;
}

bcs_status bcs_stage_append(bcs_stage *stage, const void *bytes, size_t count) {
  if (stage->finished) return misuse(stage, "write", "the body is finished");
  bcs_status status = bcsi_call_enter(stage->store);
  if (status != BCS_OK) return status;
  status = count_staged(stage, count);
  int code = status == BCS_OK ? bcsi_fault("stage-write") : 0;
  if (code != 0) status = fail(stage->store, code, "write", stage->name);
  const uint8_t *at = bytes;
  size_t left = count;
  while (status == BCS_OK && left > 0) {
    ssize_t n = write(stage->fd, at, left);
    if (n < 0) {
      int failed = errno;
      if (failed == EINTR || bcsi_make_space(stage->store, failed, left)) continue;
      status = fail(stage->store, failed, "write", stage->name);
      break;
    }
    at += n;
    left -= (size_t)n;
    stage->size += (uint64_t)n;
  }
  bcsi_call_leave(stage->store);
  return status;
}

bcs_status bcs_stage_hash(bcs_stage *stage, const void *bytes, size_t count) {
  if (stage->finished) return misuse(stage, "hash", "the body is finished");
  bcs_status status = bcsi_hasher_update(stage->hasher, bytes, count);
  if (status == BCS_OK) stage->hashed += count;
  return status;
}

bcs_status bcs_stage_write(bcs_stage *stage, const void *bytes, size_t count) {
  bcs_status status = bcs_stage_append(stage, bytes, count);
  return status == BCS_OK ? bcs_stage_hash(stage, bytes, count) : status;
}

static bcs_status count_file(bcs_stage *stage, const struct stat *st) {
  bcs_status status = bcsi_call_enter(stage->store);
  if (status != BCS_OK) return status;
  status = count_staged(stage, (size_t)st->st_size);
  bcsi_call_leave(stage->store);
  return status;
}

bcs_status bcs_stage_file(bcs_stage *stage, const char *path) {
  enum { PIECE = 1024 * 1024 };
  bcs_status status = BCS_OK;
  struct stat st;
  uint8_t *buffer = NULL;
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    int code = errno;
    /* The last name of the path is meant: the link itself, not what lies on the way to it. */
    if (code == ELOOP && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
      return bcsi_fail(BCS_SOURCE_LINK, code, "open", path, NULL);
    return bcsi_fail_errno(code, "open", path);
  }
  if (fstat(fd, &st) != 0) status = bcsi_fail_errno(errno, "stat", path);
  else if (!S_ISREG(st.st_mode))
    status = bcsi_fail(BCS_SOURCE_KIND, 0, "open", path,
                       S_ISDIR(st.st_mode) ? "it is a folder" : "it is a device or a pipe");
  if (status == BCS_OK) status = bcs_stage_expect(stage, stage->size + (uint64_t)st.st_size);
  if (status != BCS_OK) goto done;
  if (stage->size == 0 && ioctl(stage->fd, FICLONE, fd) == 0) {
    /* Shares the blocks (ioctl_ficlonerange(2)); what is hashed is our copy, which nobody changes any more. It counts as
     * if it were copied: its blocks are ours alone once the other file is changed or gone. */
    uint64_t size = 0;
    status = fstat(stage->fd, &st) != 0 ? fail(stage->store, errno, "stat", stage->name) : count_file(stage, &st);
    if (status == BCS_OK && !(buffer = malloc(PIECE))) status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "read", path, NULL);
    while (status == BCS_OK) {
      ssize_t n = pread(stage->fd, buffer, PIECE, (off_t)size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) status = bcsi_fail_errno(errno, "read", path);
      if (n <= 0) break;
      status = bcsi_hasher_update(stage->hasher, buffer, (size_t)n);
      size += (uint64_t)n;
    }
    stage->size = stage->hashed = size;
    if (lseek(stage->fd, 0, SEEK_END) < 0 && status == BCS_OK) status = bcsi_fail_errno(errno, "seek", path);
    goto done;
  }
  buffer = malloc(PIECE);
  if (!buffer) status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "read", path, NULL);
  while (status == BCS_OK) {
    ssize_t n = read(fd, buffer, PIECE);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = bcsi_fail_errno(errno, "read", path);
    if (n <= 0) break;
    status = bcs_stage_write(stage, buffer, (size_t)n);
  }
done:
  free(buffer);
  close(fd);
  return status;
}

bcs_status bcs_stage_finish(bcs_stage *stage, uint8_t digest[BCS_DIGEST_SIZE], uint64_t *size) {
  if (!stage->finished) {
    if (stage->hashed != stage->size)
      return misuse(stage, "finish", "not all that was appended was hashed");
    bcs_status status = bcsi_call_enter(stage->store);
    if (status != BCS_OK) return status;
    status = bcsi_hasher_finish(stage->hasher, stage->digest);
    if (status == BCS_OK && stage->store->durable && stage->size > stage->store->inline_threshold) {
      int code = bcsi_fault("stage-sync");
      if (code == 0 && fsync(stage->fd) != 0) code = errno;
      if (code != 0) status = fail(stage->store, code, "fsync", stage->name);
    }
    bcsi_call_leave(stage->store);
    if (status != BCS_OK) return status;
    stage->finished = true;
  }
  memcpy(digest, stage->digest, BCS_DIGEST_SIZE);
  *size = stage->size;
  return BCS_OK;
}

bcs_status bcs_stage_read(bcs_stage *stage, uint64_t offset, void *out, size_t count, size_t *got) {
  *got = 0;
  while (*got < count) {
    ssize_t n = pread(stage->fd, (uint8_t *)out + *got, count - *got, (off_t)(offset + *got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(stage->store, errno, "read", stage->name);
    if (n == 0) break;
    *got += (size_t)n;
  }
  return BCS_OK;
}

bcs_status bcs_stage_body(bcs_stage *stage, bcs_body *taken) {
  char shown[4400];
  snprintf(shown, sizeof shown, "%s/staging/%s", stage->store->info.path, stage->name);
  bool may_map = !stage->store->options.copies_bodies;
  bcs_status status = bcsi_blob_read(stage->fd, stage->size, may_map, shown, taken);
  struct stat st;
  if (status == BCS_OK && fstat(stage->fd, &st) == 0) {
    taken->device = (uint64_t)st.st_dev;
    taken->inode = (uint64_t)st.st_ino;
  }
  return status;
}

uint64_t bcs_stage_size(const bcs_stage *stage) { return stage->size; }

void bcs_stage_free(bcs_stage *stage) {
  if (!stage) return;
  /* A shut store has closed its folder: the next open sweeps what this process left. */
  if (stage->fd >= 0 && bcsi_call_enter(stage->store) == BCS_OK) {
    if (!stage->published)
      (void)unlinkat(stage->store->staging_fd, stage->name, 0); /* a failure leaves it to the next open */
    bcsi_stage_published(stage);
    bcsi_call_leave(stage->store);
  }
  if (stage->fd >= 0) close(stage->fd);
  bcsi_hasher_free(stage->hasher);
  free(stage);
}

/* ---- the dead */

typedef bcs_status (*visit)(bcs_store *store, const char *name, void *context);

static bcs_status each_file(bcs_store *store, bool only_dead, visit found, void *context) {
  int fd = openat(store->staging_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fail(store, errno, "list", "");
  DIR *folder = fdopendir(fd);
  if (!folder) {
    int code = errno;
    close(fd);
    return fail(store, code, "list", "");
  }
  bcs_status status = BCS_OK;
  struct dirent *item;
  while (status == BCS_OK && (errno = 0, item = readdir(folder)) != NULL) {
    if (item->d_name[0] == '.' || (only_dead && bcsi_owner_alive(item->d_name, store->boot_id))) continue;
    status = found(store, item->d_name, context);
  }
  if (status == BCS_OK && errno != 0) status = fail(store, errno, "list", "");
  closedir(folder);
  return status;
}

static bcs_status each_dead(bcs_store *store, visit found, void *context) {
  return each_file(store, true, found, context);
}

typedef struct sweep {
  MDB_txn *txn; /* NULL: intents are only counted */
  uint64_t intents;
} sweep;

static bcs_status remove_dead(bcs_store *store, const char *name, void *context) {
  sweep *s = context;
  (void)bcsi_fault("staging-dead");
  if (strchr(name, '+')) {
    s->intents++;
    if (!s->txn) return BCS_OK;
    bcs_status status = bcsi_intent_undo(store, s->txn, name);
    if (status != BCS_OK) return status;
  }
  struct stat st;
  bool known = fstatat(store->staging_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
  if (unlinkat(store->staging_fd, name, 0) != 0) return errno == ENOENT ? BCS_OK : fail(store, errno, "unlink", name);
  if (known) (void)bcsi_slots_staged(store, -(int64_t)((st.st_size + 4095) / 4096 * 4096));
  return BCS_OK;
}

/* Bodies of the dead go at once. Only what an intent names needs the write lock, and so only after a kill in the middle
 * of a batch does an open wait for another process's writer. */
bcs_status bcsi_staging_sweep(bcs_store *store) {
  sweep s = {0};
  bcs_status status = each_dead(store, remove_dead, &s);
  if (status != BCS_OK || s.intents == 0) return status;
  status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  status = bcsi_write_begin(store, &s.txn);
  if (status == BCS_OK) {
    status = each_dead(store, remove_dead, &s);
    bcsi_write_abort(store, s.txn); /* begun only so that nobody publishes meanwhile, and to see the newest rows */
  }
  bcsi_writer_unlock(store);
  return status;
}

static bcs_status count_dead(bcs_store *store, const char *name, void *context) {
  (void)store, (void)name;
  ++*(uint64_t *)context;
  return BCS_OK;
}

static bcs_status add_up(bcs_store *store, const char *name, void *context) {
  struct stat st;
  if (fstatat(store->staging_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
    *(uint64_t *)context += ((uint64_t)st.st_size + 4095) / 4096 * 4096;
  return BCS_OK;
}

/* What a process had counted when it was killed, and what it had not written or had published by then, is told by no
 * file. So the sum is taken anew from the files that are there; what is written at this moment is a piece or two. */
bcs_status bcsi_staging_recount(bcs_store *store) {
  uint64_t sum = 0;
  bcs_status status = each_file(store, false, add_up, &sum);
  if (status == BCS_OK) bcsi_slots_set_staging(store, sum);
  return status;
}

bcs_status bcsi_staging_dead(bcs_store *store, uint64_t *count) {
  *count = 0;
  return each_dead(store, count_dead, count);
}
