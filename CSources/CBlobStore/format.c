/* The directory: its folders, FORMAT, LOCK, and what may stand where.
 *
 * FORMAT is text:  "blobcache 1\n" "durability checkpointed\n" (or durable). A directory is made between two moments:
 * FORMAT.new is the first name in it, and becomes FORMAT as the last step, by rename. So one with FORMAT is whole, one
 * with FORMAT.new alone was being made, and one with neither is a cache only if it is empty: what has lost its FORMAT
 * is refused, since nobody knows any more what it promised.
 * LOCK's bytes 0..6 are only ever locked (lock.c); from byte 64 on stands who uses it: 8 bytes "BCUSERS1", the boot id
 * (40 bytes, zero-padded text), the pid namespace (8 bytes). Whoever is alone writes it, everybody else compares.
 * From byte 128 on stands which cache it is: 8 bytes "BCSTORE1", the id that its index was given (16 bytes). The slot
 * table has it, too. An index that both contradict came from another directory: its entries are not ours. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const our_names[] = {"FORMAT", "FORMAT.new", "LOCK", "index", "slots", "blobs", "staging",
                                        "quarantine"};

struct users {
  char magic[8];
  char boot_id[BCSI_BOOT_ID_SIZE];
  uint64_t pid_namespace;
};
struct identity {
  char magic[8];
  uint8_t store_id[16];
};
enum { USERS_AT = 64, IDENTITY_AT = 128 };
static const char identity_magic[8] = {'B','C','S','T','O','R','E','1'};
static const char users_magic[8] = {'B','C','U','S','E','R','S','1'};

static bcs_status fail(const bcs_store *store, int code, const char *operation, const char *name) {
  char shown[4300];
  bcsi_join(store->info.path, name, shown, sizeof shown);
  return bcsi_fail_errno(code, operation, shown);
}

/* ---- the directory itself */

/* A name is on the disk once the folder that holds it is synced, whatever was synced of the file (fsync(2)). A folder
 * above ours that may not be read cannot be synced either; that of a mount point holds no name of ours. */
static bcs_status sync_above(const char *path) {
  char shown[4300];
  struct stat inside, above;
  bcsi_join(path, "..", shown, sizeof shown);
  int fd = stat(path, &inside) == 0 ? open(shown, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (fd < 0) return BCS_OK;
  bool synced = fstat(fd, &above) != 0 || above.st_dev != inside.st_dev || fsync(fd) == 0;
  bcs_status status = synced ? BCS_OK : bcsi_fail_errno(errno, "fsync", shown);
  close(fd);
  return status;
}

/* A link is taken as another path to a cache that is there, when the link is ours; never to make a cache through. */
static bcs_status check_link(const char *directory) {
  struct stat link, format;
  char path[4200];
  if (lstat(directory, &link) != 0 || !S_ISLNK(link.st_mode)) return BCS_OK;
  if (link.st_uid != geteuid() && link.st_uid != 0)
    return bcsi_fail(BCS_SYMLINK, 0, "open", directory, "the link belongs to somebody else; name the directory itself");
  bcsi_join(directory, "FORMAT", path, sizeof path);
  if (lstat(path, &format) != 0 || !S_ISREG(format.st_mode))
    return bcsi_fail(BCS_SYMLINK, 0, "open", directory,
                     "a cache is not made through a symbolic link; name the directory itself");
  return BCS_OK;
}

static bcs_status read_format(bcs_store *store, char *text, size_t capacity) {
  char shown[4300];
  size_t count;
  bcsi_join(store->info.path, "FORMAT", shown, sizeof shown);
  return bcsi_read_text(store->root_fd, "FORMAT", shown, text, capacity, &count);
}

typedef struct contents {
  bool has_format;
  bool begun;      /* FORMAT.new: it is being made, or whoever did so has died */
  bool is_foreign; /* not a cache, and not to become one, for what `name` names */
  char name[104];
} contents;

static bcs_status look_around(bcs_store *store, contents *out) {
  memset(out, 0, sizeof *out);
  int fd = openat(store->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fail(store, errno, "list", "");
  DIR *folder = fdopendir(fd);
  if (!folder) {
    int code = errno;
    close(fd);
    return fail(store, code, "list", "");
  }
  char ours_name[sizeof out->name] = "", other_name[sizeof out->name] = "";
  struct dirent *item;
  while ((errno = 0, item = readdir(folder)) != NULL) {
    const char *found = item->d_name;
    if (strcmp(found, ".") == 0 || strcmp(found, "..") == 0 || strcmp(found, "lost+found") == 0) continue;
    bool ours = false;
    for (size_t i = 0; i < sizeof our_names / sizeof *our_names; i++)
      if (strcmp(found, our_names[i]) == 0) ours = true;
    snprintf(ours ? ours_name : other_name, sizeof ours_name, "%.100s", found);
  }
  int code = errno;
  closedir(folder);
  if (code != 0) return fail(store, code, "list", "");
  /* Not from the list, which may show neither name of a file that is renamed meanwhile; and in this order, since the
   * first becomes the second. */
  struct stat st;
  out->begun = fstatat(store->root_fd, "FORMAT.new", &st, AT_SYMLINK_NOFOLLOW) == 0;
  if (!out->begun && errno != ENOENT) return fail(store, errno, "stat", "FORMAT.new");
  out->has_format = fstatat(store->root_fd, "FORMAT", &st, AT_SYMLINK_NOFOLLOW) == 0;
  if (!out->has_format && errno != ENOENT) return fail(store, errno, "stat", "FORMAT"); /* not to be taken for a stranger's */
  if (out->has_format) return BCS_OK;
  const char *name = other_name[0] ? other_name : out->begun ? "" : ours_name;
  out->is_foreign = name[0] != 0;
  memcpy(out->name, name, strlen(name) + 1);
  return BCS_OK;
}

/* The modes of a cache that is there: the directory's and FORMAT's. What a group may write counts only where both say
 * so and one user made both: then it was configured, and is no accident of chmod. */
static void take_recorded_modes(bcs_store *store, const struct stat *root) {
  struct stat format;
  if (fstatat(store->root_fd, "FORMAT", &format, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(format.st_mode)) return;
  bool shared = (root->st_mode & format.st_mode & S_IWGRP) && root->st_uid == format.st_uid;
  store->directory_mode = (root->st_mode & (mode_t)(S_ISGID | 0755 | (shared ? S_IWGRP : 0))) | 0700;
  store->file_mode = (format.st_mode & (mode_t)(0644 | (shared ? S_IWGRP : 0))) | 0600;
}

bcs_status bcsi_layout_open(bcs_store *store, const char *directory) {
  if (strlen(directory) == 0 || strlen(directory) >= 3800)
    return bcsi_fail(BCS_PATH_TOO_LONG, 0, "open", directory, "the path of a cache has 1 to 3,799 bytes");
  snprintf(store->info.path, sizeof store->info.path, "%s", directory);
  bcs_status status = check_link(directory);
  if (status != BCS_OK) return status;

  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT && store->options.create && !store->options.read_only) {
    /* Folders on the way, as mkdir -p; they are not ours, so with the ordinary mode. */
    char path[4096];
    snprintf(path, sizeof path, "%s", directory);
    for (char *at = path + 1; *at; at++) {
      if (*at != '/') continue;
      *at = 0;
      if (mkdir(path, 0777) == 0) {
        bcs_status synced = sync_above(path);
        if (synced != BCS_OK) return synced;
      } else if (errno != EEXIST && errno != EISDIR) {
        return bcsi_fail_errno(errno, "mkdir", path);
      }
      *at = '/';
    }
    if (mkdir(directory, store->directory_mode) != 0 && errno != EEXIST) return bcsi_fail_errno(errno, "mkdir", directory);
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fchmod(fd, store->directory_mode) != 0) {
      int code = errno;
      close(fd);
      return bcsi_fail_errno(code, "chmod", directory);
    }
  }
  if (fd < 0) return bcsi_fail_errno(errno, "open", directory);
  store->root_fd = fd;
  char resolved[4096];
  if (!realpath(directory, resolved)) return bcsi_fail_errno(errno, "resolve", directory);
  memcpy(store->info.path, resolved, sizeof resolved);
  struct stat st;
  if (fstat(fd, &st) != 0) return fail(store, errno, "stat", "");
  store->info.device = (uint64_t)st.st_dev;
  store->info.inode = (uint64_t)st.st_ino;
  if (store->options.recorded_modes) take_recorded_modes(store, &st);
  /* Reading in another's directory is allowed to whom the modes allow it; working in it is not. */
  if (!store->options.read_only) status = bcsi_check_folder(fd, store->directory_mode, store->info.path);
  if (status == BCS_OK)
    status = bcsi_check_file_system(fd, store->options.file_system_type, store->options.allow_network_fs,
                                    store->info.path);
  return status;
}

/* ---- FORMAT */

static bcs_status parse_format(bcs_store *store, const char *text, bcs_durability *durability) {
  char shown[4300];
  bcsi_join(store->info.path, "FORMAT", shown, sizeof shown);
  if (strncmp(text, "blobcache ", 10) != 0)
    return bcsi_fail(BCS_NOT_A_CACHE, 0, "read", shown, "FORMAT does not begin with \"blobcache\"");
  if (strncmp(text, "blobcache 1\n", 12) != 0) {
    char cause[160];
    int length = (int)strcspn(text + 10, "\n");
    snprintf(cause, sizeof cause, "the directory has format %.*s, this version knows format 1",
             length > 20 ? 20 : length, text + 10);
    return bcsi_fail(BCS_VERSION, 0, "read", shown, cause);
  }
  if (strcmp(text + 12, "durability checkpointed\n") == 0) *durability = BCS_CHECKPOINTED;
  else if (strcmp(text + 12, "durability durable\n") == 0) *durability = BCS_DURABLE;
  else return bcsi_fail(BCS_VERSION, 0, "read", shown, "FORMAT is damaged, or names something that this version lacks");
  return BCS_OK;
}

static bcs_status open_new_format(bcs_store *store, int *out) {
  *out = openat(store->root_fd, "FORMAT.new", O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                store->file_mode);
  return *out >= 0 ? BCS_OK : fail(store, errno, "create", "FORMAT.new");
}

/* The first step of making a directory. */
static bcs_status begin_format(bcs_store *store) {
  int fd;
  bcs_status status = open_new_format(store, &fd);
  if (status == BCS_OK) close(fd);
  return status;
}

/* The last step. Nobody else writes FORMAT.new, under the lock; it stays where this fails, for the next open. */
static bcs_status write_format(bcs_store *store) {
  char text[64], shown[4300];
  int count = snprintf(text, sizeof text, "blobcache 1\ndurability %s\n", store->durable ? "durable" : "checkpointed");
  bcsi_join(store->info.path, "FORMAT", shown, sizeof shown);
  int code = bcsi_fault("format");
  if (code != 0) return bcsi_fail_errno(code, "write", shown);
  int fd;
  bcs_status status = open_new_format(store, &fd);
  if (status != BCS_OK) return status;
  if (ftruncate(fd, 0) != 0) status = bcsi_fail_errno(errno, "truncate", shown);
  if (status == BCS_OK) status = bcsi_write_all(fd, text, (size_t)count, shown);
  if (status == BCS_OK && fchmod(fd, store->file_mode) != 0) status = bcsi_fail_errno(errno, "chmod", shown);
  if (status == BCS_OK && fsync(fd) != 0) status = bcsi_fail_errno(errno, "fsync", shown);
  if (close(fd) != 0 && status == BCS_OK) status = bcsi_fail_errno(errno, "close", shown);
  if (status == BCS_OK && renameat(store->root_fd, "FORMAT.new", store->root_fd, "FORMAT") != 0)
    status = bcsi_fail_errno(errno, "rename", shown);
  if (status == BCS_OK && fsync(store->root_fd) != 0) status = bcsi_fail_errno(errno, "fsync", shown);
  return status == BCS_OK ? sync_above(store->info.path) : status;
}

/* ---- LOCK */

static bcs_status open_lock(bcs_store *store, bool create) {
  int flags = store->options.read_only ? O_RDONLY : O_RDWR;
  bcsi_forks_wait();
  int fd = openat(store->root_fd, "LOCK", flags | (create ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                  store->file_mode);
  int code = errno;
  (void)bcsi_fault("lock-opened");
  store->lock_fd = fd;
  bcsi_forks_go_on();
  if (store->lock_fd < 0) return fail(store, code, "open", "LOCK");
  struct stat st;
  if (fstat(store->lock_fd, &st) != 0) return fail(store, errno, "stat", "LOCK");
  char shown[4300];
  bcsi_join(store->info.path, "LOCK", shown, sizeof shown);
  bcs_status status = bcsi_check_own(&st, store->options.read_only, shown);
  if (status != BCS_OK) return status;
  if (!store->options.read_only && (st.st_mode & 0777) != store->file_mode && st.st_uid == geteuid() &&
      fchmod(store->lock_fd, store->file_mode) != 0)
    return fail(store, errno, "chmod", "LOCK");
  return BCS_OK;
}

/* What could not be read is not what is not there: the boot of an unknown user takes the index back to its checkpoint. */
static bcs_status read_users(bcs_store *store, struct users *out, bool *known) {
  ssize_t n = bcsi_read_at(store->lock_fd, out, sizeof *out, USERS_AT);
  *known = n == (ssize_t)sizeof *out && memcmp(out->magic, users_magic, sizeof users_magic) == 0;
  return n < 0 ? fail(store, errno, "read", "LOCK") : BCS_OK;
}

static bcs_status write_users(bcs_store *store) {
  struct users users = {.pid_namespace = store->pid_namespace};
  memcpy(users.magic, users_magic, sizeof users_magic);
  memcpy(users.boot_id, store->boot_id, BCSI_BOOT_ID_SIZE);
  int code = bcsi_fault("users");
  if (code == 0) code = bcsi_write_at(store->lock_fd, &users, sizeof users, USERS_AT);
  return code == 0 ? BCS_OK : fail(store, code, "write", "LOCK");
}

bcs_status bcsi_layout_note_store(bcs_store *store, const uint8_t store_id[16]) {
  struct identity identity;
  memcpy(identity.magic, identity_magic, sizeof identity_magic);
  memcpy(identity.store_id, store_id, sizeof identity.store_id);
  int code = bcsi_write_at(store->lock_fd, &identity, sizeof identity, IDENTITY_AT);
  return code == 0 ? BCS_OK : fail(store, code, "write", "LOCK");
}

static bool read_index_id(bcs_store *store, bcsi_totals *out) {
  MDB_txn *txn;
  if (bcsi_begin_at_open(store, MDB_RDONLY, &txn) != 0) return false;
  bcs_status status = bcsi_totals_get(store, txn, out);
  mdb_txn_abort(txn);
  return status == BCS_OK;
}

/* Alone. One without entries can give none that is not ours; whoever began it died before all were told its id. */
static bool is_of_another(bcs_store *store) {
  struct identity identity;
  uint8_t table_id[16];
  bcsi_totals totals;
  if (atomic_load(&store->new_index) || !bcsi_slots_read_id(store, table_id)) return false;
  if (bcsi_read_at(store->lock_fd, &identity, sizeof identity, IDENTITY_AT) != (ssize_t)sizeof identity) return false;
  if (memcmp(identity.magic, identity_magic, sizeof identity_magic) != 0) return false;
  if (memcmp(identity.store_id, table_id, sizeof table_id) != 0) return false;
  return read_index_id(store, &totals) && totals.entries > 0 && memcmp(totals.store_id, table_id, sizeof table_id) != 0;
}

static bcs_status other_namespace(bcs_store *store) {
  return bcsi_fail(BCS_OTHER_NAMESPACE, 0, "open", store->info.path,
                   "processes of one pid namespace may share it; end the others, or run in their namespace");
}

/* ---- the folders */

/* The folders of the fan-out that are there: planted links and files are found before anything goes through them. */
static bcs_status check_fan_out(bcs_store *store) {
  int fd = openat(store->blobs_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  if (!folder) {
    int code = errno;
    if (fd >= 0) close(fd);
    return fail(store, code, "list", "blobs");
  }
  bcs_status status = BCS_OK;
  struct dirent *item;
  while (status == BCS_OK && (errno = 0, item = readdir(folder)) != NULL) {
    uint8_t first;
    char name[16], shown[4300];
    if (strlen(item->d_name) != 2 || !bcsi_unhex(item->d_name, 1, &first)) continue;
    snprintf(name, sizeof name, "blobs/%.2s", item->d_name);
    bcsi_join(store->info.path, name, shown, sizeof shown);
    int inner;
    status = bcsi_open_folder(store->blobs_fd, item->d_name, shown,
                              store->options.read_only ? 0777 : store->directory_mode, false, &inner);
    if (status == BCS_OK) close(inner);
  }
  if (status == BCS_OK && errno != 0) status = fail(store, errno, "list", "blobs");
  closedir(folder);
  return status;
}

/* An opening for writing makes it; one for reading tells what it lacks. */
static bcs_status lacks(const bcs_store *store, bcs_status status, const char *name) {
  if (status != BCS_NOT_FOUND) return status;
  char shown[4300];
  bcsi_join(store->info.path, name, shown, sizeof shown);
  return bcsi_fail(BCS_INCOMPLETE, 0, "open", shown, "it is missing");
}

static bcs_status open_folders(bcs_store *store, bool create) {
  struct { const char *name; int *fd; } folders[] = {
    {"blobs", &store->blobs_fd}, {"staging", &store->staging_fd}, {"quarantine", &store->quarantine_fd}};
  char shown[4300];
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    bcsi_join(store->info.path, folders[i].name, shown, sizeof shown);
    bcs_status status = bcsi_open_folder(store->root_fd, folders[i].name, shown,
                                         store->options.read_only ? 0777 : store->directory_mode, create,
                                         folders[i].fd);
    if (status != BCS_OK) return lacks(store, status, folders[i].name);
  }
  int index_fd;
  bcsi_join(store->info.path, "index", shown, sizeof shown);
  bcs_status status = bcsi_open_folder(store->root_fd, "index", shown,
                                       store->options.read_only ? 0777 : store->directory_mode, create, &index_fd);
  if (status == BCS_OK) close(index_fd);
  return status == BCS_OK ? check_fan_out(store) : lacks(store, status, "index");
}

/* Only the newest index that was set aside is kept. */
static void drop_older_indexes(bcs_store *store) {
  int fd = openat(store->quarantine_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  if (!folder) {
    if (fd >= 0) close(fd);
    return;
  }
  struct dirent *item;
  while ((item = readdir(folder)) != NULL) {
    if (strncmp(item->d_name, "index.", 6) != 0) continue;
    int old = openat(store->quarantine_fd, item->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (old < 0) continue;
    (void)unlinkat(old, "data.mdb", 0);
    (void)unlinkat(old, "lock.mdb", 0);
    (void)unlinkat(old, "checkpoint", 0);
    close(old);
    (void)unlinkat(store->quarantine_fd, item->d_name, AT_REMOVEDIR); /* stays when something unknown is in it */
  }
  closedir(folder);
}

bcs_status bcsi_index_set_aside(bcs_store *store) {
  char kept[64], shown[4300];
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(kept, sizeof kept, "index.%lld%09ld", (long long)now.tv_sec, now.tv_nsec);
  drop_older_indexes(store);
  bcsi_ballast_forget(store);
  bcsi_join(store->info.path, "index", shown, sizeof shown);
  if (renameat(store->root_fd, "index", store->quarantine_fd, kept) != 0 && errno != ENOENT)
    return bcsi_fail_errno(errno, "set aside", shown);
  (void)bcsi_fault("aside");
  int fd;
  bcs_status status = bcsi_open_folder(store->root_fd, "index", shown, store->directory_mode, true, &fd);
  if (status == BCS_OK) close(fd);
  store->info.index_set_aside = true;
  atomic_store(&store->fresh_index, true);
  return status;
}

/* ---- the order of opening */

/* Read-only: nothing is made. Where a reader cannot be registered (lock.mdb not writable), the open holds byte 0 so that
 * nobody begins to write while it scans, and is refused when somebody already may. */
static bcs_status open_read_only(bcs_store *store, bool *alone) {
  char text[256], path[4300];
  bcs_status status = read_format(store, text, sizeof text);
  if (status == BCS_NOT_FOUND) return bcsi_fail(BCS_NOT_A_CACHE, 0, "open", store->info.path, "it has no FORMAT");
  bcs_durability durability;
  if (status == BCS_OK) status = parse_format(store, text, &durability);
  if (status == BCS_OK) status = lacks(store, open_lock(store, false), "LOCK");
  if (status == BCS_OK) status = open_folders(store, false);
  if (status != BCS_OK) return status;
  store->durable = durability == BCS_DURABLE;
  bcsi_join(store->info.path, "index/lock.mdb", path, sizeof path);
  bool registers = access(path, W_OK) == 0;
  status = bcsi_lock(store->lock_fd, BCSI_LOCK_OPEN, false, registers, store->info.path);
  if (status == BCS_BUSY) return bcsi_fail(BCS_IN_USE, 0, "open", store->info.path, NULL);
  if (status != BCS_OK) return status;
  bool others = bcsi_locked_by_other(store->lock_fd, BCSI_LOCK_USE);
  *alone = !others;
  struct users users;
  bool known;
  status = read_users(store, &users, &known);
  if (status != BCS_OK) return status;
  if (others && known && users.pid_namespace != store->pid_namespace) return other_namespace(store);
  if (!registers) {
    if (others) return bcsi_fail(BCS_IN_USE, 0, "open", store->info.path, NULL);
    store->info.unlocked = true;
    return BCS_OK; /* byte 0 stays locked, shared, until the store is shut */
  }
  if (!others && !store->durable && known && strncmp(users.boot_id, store->boot_id, BCSI_BOOT_ID_SIZE) != 0)
    return bcsi_fail(BCS_OTHER_BOOT, 0, "open", store->info.path, NULL);
  return bcsi_lock(store->lock_fd, BCSI_LOCK_USE, false, true, store->info.path);
}

static bcs_status open_index_and_slots(bcs_store *store, bool alone, bool other_boot) {
  bool damaged = false;
  bcs_status status = bcsi_index_open(store, alone, &damaged);
  if (status != BCS_OK && damaged && alone && !store->options.read_only) {
    bcsi_index_close(store);
    status = bcsi_index_set_aside(store);
    if (status == BCS_OK) status = bcsi_index_open(store, alone, &damaged);
  }
  if (status == BCS_OK && alone && is_of_another(store)) {
    if (store->options.read_only)
      return bcsi_fail(BCS_CORRUPT, 0, "open index", store->index.path, "it is the index of another directory");
    bcsi_index_close(store);
    status = bcsi_index_set_aside(store);
    if (status == BCS_OK) status = bcsi_index_open(store, alone, &damaged);
  }
  if (status != BCS_OK) return status;
  status = bcsi_slots_open(store, alone, other_boot, &store->info.slots_rebuilt);
  bcsi_totals totals;
  if (status == BCS_OK && alone && !store->options.read_only && read_index_id(store, &totals))
    status = bcsi_layout_note_store(store, totals.store_id);
  return status;
}

bcs_status bcsi_layout_create(bcs_store *store) {
  if (store->options.read_only) {
    bool alone = false;
    bcs_status status = open_read_only(store, &alone);
    if (status == BCS_OK) status = open_index_and_slots(store, alone, false);
    if (status == BCS_OK && !store->info.unlocked) bcsi_unlock(store->lock_fd, BCSI_LOCK_OPEN);
    return status;
  }
  contents there;
  char cause[200];
  bcs_status status = look_around(store, &there);
  if (status != BCS_OK) return status;
  if (there.is_foreign) {
    snprintf(cause, sizeof cause, "it has no FORMAT, and holds \"%s\"", there.name);
    return bcsi_fail(BCS_NOT_A_CACHE, 0, "open", store->info.path, cause);
  }
  char text[256];
  bcs_durability recorded = BCS_CHECKPOINTED;
  if (there.has_format) { /* looked at before anything is locked or made: a directory of another version stays untouched */
    status = read_format(store, text, sizeof text);
    if (status == BCS_OK) status = parse_format(store, text, &recorded);
    if (status != BCS_OK) return status;
  } else if (!store->options.create) {
    return bcsi_fail(BCS_NOT_A_CACHE, 0, "open", store->info.path, "it has no FORMAT");
  } else {
    status = begin_format(store);
    if (status != BCS_OK) return status;
  }
  status = open_lock(store, true);
  if (status == BCS_OK) status = bcsi_lock(store->lock_fd, BCSI_LOCK_OPEN, true, true, store->info.path);
  if (status != BCS_OK) return status;
  status = bcsi_lock(store->lock_fd, BCSI_LOCK_USE, true, false, store->info.path);
  bool alone = status == BCS_OK;
  if (status != BCS_OK && status != BCS_BUSY) return status;

  status = look_around(store, &there); /* again, under the lock */
  const bool has_format = there.has_format;
  /* Somebody else was faster, and what we began is not needed. */
  if (status == BCS_OK && has_format && there.begun) (void)unlinkat(store->root_fd, "FORMAT.new", 0);
  if (status == BCS_OK && has_format) {
    status = read_format(store, text, sizeof text);
    if (status == BCS_OK) status = parse_format(store, text, &recorded);
  }
  if (status != BCS_OK) return status;
  bcs_durability wanted = store->options.durability;
  if (has_format && wanted != BCS_AS_RECORDED && wanted != recorded) {
    snprintf(cause, sizeof cause, "it was created %s; open it so, or make another directory",
             recorded == BCS_DURABLE ? "durable" : "checkpointed");
    return bcsi_fail(BCS_DURABILITY, 0, "open", store->info.path, cause);
  }
  store->durable = has_format ? recorded == BCS_DURABLE : wanted == BCS_DURABLE;

  struct users users;
  bool known;
  status = read_users(store, &users, &known);
  if (status != BCS_OK) return status;
  if (!alone && known && users.pid_namespace != store->pid_namespace) return other_namespace(store);
  status = open_folders(store, true);
  if (status != BCS_OK) return status;
  /* LOCK says who used it last; a directory whose LOCK was lost may be of any boot. */
  bool other_boot = alone && has_format && !(known && strncmp(users.boot_id, store->boot_id, BCSI_BOOT_ID_SIZE) == 0);
  bool restored = false;
  if (other_boot && !store->durable) {
    status = bcsi_checkpoint_restore(store, &restored);
    if (status == BCS_OK && !restored) status = bcsi_index_set_aside(store);
    if (status != BCS_OK) return status;
  }
  store->check_all_pages = other_boot;
  status = open_index_and_slots(store, alone, other_boot);
  if (status == BCS_OK && alone) status = bcsi_checkpoint_load(store);
  store->info.index_restored = restored && !store->info.index_set_aside;
  if (status == BCS_OK && other_boot) bcsi_slots_set_restored(store, store->info.index_restored);
  /* Files that were written after the checkpoint may be torn under names that it knows. */
  if (status == BCS_OK && bcsi_slots_restored(store) && store->options.verification == BCS_VERIFY_NEVER)
    store->options.verification = BCS_VERIFY_FIRST_READ;
  if (status == BCS_OK && alone) status = write_users(store);
  if (status == BCS_OK && !has_format) status = write_format(store);
  if (status == BCS_OK) status = bcsi_staging_sweep(store);
  if (status == BCS_OK && alone) bcsi_slots_set_staging(store, 0);
  if (status == BCS_OK && alone) bcsi_check_totals(store);
  if (status == BCS_OK) bcsi_ballast_take(store);
  if (status == BCS_OK) status = bcsi_lock(store->lock_fd, BCSI_LOCK_USE, false, true, store->info.path);
  bcsi_unlock(store->lock_fd, BCSI_LOCK_OPEN);
  return status;
}
