#include "Recorder.h"

#include "FailingCalls.h"

#ifdef __linux__
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* A fault that is armed comes before all else: the call is not made, so it is not recorded. */
#define STRIKES(call) failing_strikes(FAILING_##call, FAILING_CALLER)

static char root[PATH_MAX];
static size_t root_count;
static int log_file = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *skipped;
static bool is_idle; /* syncs do nothing */
enum { FILES = 4096 };
static _Atomic bool is_synced[FILES]; /* by descriptor: it was opened with O_DSYNC, which was left out */
static recorder_op last_op; /* under the lock, like its count */
static unsigned last_count;

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("BLOBCACHE_RECORD_LOG"), *directory = getenv("BLOBCACHE_RECORD_ROOT");
  is_idle = log != NULL || getenv("BLOBCACHE_NO_SYNC") != NULL;
  if (!log || !directory || strlen(directory) >= sizeof root) return;
  strcpy(root, directory);
  root_count = strlen(root);
  skipped = getenv("BLOBCACHE_RECORD_SKIP");
  log_file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

bool recorder_is_on(void) { return log_file >= 0; }

/* A lock of the description for the other processes, a mutex for the other threads. */
static void kernel_lock(short type) {
  struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
  while (syscall(SYS_fcntl, log_file, F_OFD_SETLKW, &whole) != 0 && errno == EINTR) {}
}

static void enter(void) {
  int code = errno;
  pthread_mutex_lock(&lock);
  kernel_lock(F_WRLCK);
  errno = code;
}

static void leave(void) {
  int code = errno;
  kernel_lock(F_UNLCK);
  pthread_mutex_unlock(&lock);
  errno = code;
}

void recorder_hold(void) {
  if (recorder_is_on()) enter();
}

/* The part of a path below the directory, "" for itself; NULL when it is elsewhere. */
static const char *below(const char *path) {
  if (strncmp(path, root, root_count) != 0) return NULL;
  if (path[root_count] == 0) return path + root_count;
  return path[root_count] == '/' ? path + root_count + 1 : NULL;
}

/* The folder that holds the directory: its sync is the sync of the directory's own name. */
static bool is_above(const char *path) {
  const char *last = strrchr(root, '/');
  size_t count = last && last > root ? (size_t)(last - root) : 1;
  return root_count > 0 && strlen(path) == count && memcmp(path, root, count) == 0;
}

static const char *path_of(int file, char out[PATH_MAX]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t count = syscall(SYS_readlink, link, out, PATH_MAX - 1);
  if (count < 0) return NULL;
  out[count] = 0;
  return below(out);
}

static const char *path_at(int folder, const char *name, char out[PATH_MAX]) {
  if (name[0] == '/') {
    snprintf(out, PATH_MAX, "%s", name);
    return below(out);
  }
  if (folder == AT_FDCWD || !path_of(folder, out)) return NULL;
  size_t count = strlen(out);
  snprintf(out + count, PATH_MAX - count, "/%s", name);
  return below(out);
}

static uint64_t inode_at(int folder, const char *name) {
  struct stat st;
  return syscall(SYS_newfstatat, folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_ino : 0;
}

static uint64_t inode_of(int file) {
  struct stat st;
  return syscall(SYS_fstat, file, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static void append(recorder_head head, const char *path, const char *second, const struct iovec *data, int parts) {
  static const char zeroes[8];
  int code = errno;
  head.pid = (int32_t)getpid();
  head.path_count = (uint32_t)strlen(path);
  head.second_count = second ? (uint32_t)strlen(second) : 0;
  uint64_t count = sizeof head + head.path_count + head.second_count + head.data_count;
  head.size = (count + 7) / 8 * 8;
  struct iovec pieces[64] = {{&head, sizeof head},
                             {(void *)(uintptr_t)path, head.path_count},
                             {(void *)(uintptr_t)second, head.second_count}};
  int used = 3;
  uint64_t left = head.data_count;
  for (int i = 0; i < parts && left > 0; i++) {
    if (used == 62) { /* more pieces than one call should take: so this record is one that cannot be told */
      _exit(97);
    }
    size_t n = data[i].iov_len < left ? data[i].iov_len : left;
    pieces[used++] = (struct iovec){data[i].iov_base, n};
    left -= n;
  }
  pieces[used++] = (struct iovec){(void *)(uintptr_t)zeroes, head.size - count};
  if (syscall(SYS_writev, log_file, pieces, used) != (long)head.size) _exit(98); /* a proof with gaps proves nothing */
  bool counts = head.op != RECORDER_MARK && (last_op == RECORDER_ANY || head.op == (uint32_t)last_op);
  if (last_count > 0 && counts && --last_count == 0) raise(SIGKILL);
  errno = code;
}

void recorder_kill_after(recorder_op op, unsigned count) {
  if (!recorder_is_on()) return;
  enter();
  last_op = op;
  last_count = count;
  leave();
}

void recorder_mark(const char *text) {
  if (!recorder_is_on()) return;
  enter();
  append((recorder_head){.op = RECORDER_MARK}, text, NULL, NULL, 0);
  leave();
}

/* ---- data */

static ssize_t note_write(int file, const struct iovec *data, int parts, int64_t at) {
  char path[PATH_MAX];
  const char *name = path_of(file, path);
  if (!name) return at < 0 ? syscall(SYS_writev, file, data, parts) : syscall(SYS_pwritev, file, data, parts, at, 0L);
  enter();
  long flags = syscall(SYS_fcntl, file, F_GETFL, 0);
  int64_t offset = at;
  struct stat st;
  if (at < 0) offset = syscall(SYS_lseek, file, 0, SEEK_CUR);
  if ((flags & O_APPEND) && syscall(SYS_fstat, file, &st) == 0) offset = st.st_size;
  ssize_t count = at < 0 ? syscall(SYS_writev, file, data, parts) : syscall(SYS_pwritev, file, data, parts, at, 0L);
  if (count > 0)
    append((recorder_head){.op = RECORDER_WRITE,
                           .flags = file < FILES && is_synced[file] ? RECORDER_DSYNC : 0, .inode = inode_of(file),
                           .offset = (uint64_t)offset, .length = (uint64_t)count, .data_count = (uint64_t)count},
           name, NULL, data, parts);
  leave();
  return count;
}

ssize_t write(int file, const void *bytes, size_t count) {
  if (STRIKES(WRITE)) return -1;
  count = failing_shortens(FAILING_WRITE, FAILING_CALLER, count);
  if (!recorder_is_on()) return syscall(SYS_write, file, bytes, count);
  return note_write(file, &(struct iovec){(void *)(uintptr_t)bytes, count}, 1, -1);
}
ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) {
  if (STRIKES(PWRITE)) return -1;
  count = failing_shortens(FAILING_PWRITE, FAILING_CALLER, count);
  if (!recorder_is_on()) return syscall(SYS_pwrite64, file, bytes, count, offset);
  return note_write(file, &(struct iovec){(void *)(uintptr_t)bytes, count}, 1, offset);
}
ssize_t writev(int file, const struct iovec *data, int parts) {
  if (STRIKES(WRITEV)) return -1;
  parts = (int)failing_shortens(FAILING_WRITEV, FAILING_CALLER, (size_t)parts);
  /* More at once than a record takes: a short write is what the kernel may answer, too. */
  if (recorder_is_on() && parts > 48) parts = 48;
  return recorder_is_on() ? note_write(file, data, parts, -1) : syscall(SYS_writev, file, data, parts);
}
ssize_t pwritev(int file, const struct iovec *data, int parts, off_t offset) {
  if (STRIKES(WRITEV)) return -1;
  parts = (int)failing_shortens(FAILING_WRITEV, FAILING_CALLER, (size_t)parts);
  if (recorder_is_on() && parts > 48) parts = 48;
  return recorder_is_on() ? note_write(file, data, parts, offset)
                          : syscall(SYS_pwritev, file, data, parts, offset, 0L);
}
ssize_t pwrite64(int file, const void *bytes, size_t count, off_t offset) { return pwrite(file, bytes, count, offset); }
ssize_t pwritev64(int file, const struct iovec *data, int parts, off_t offset) {
  return pwritev(file, data, parts, offset);
}

/* Calls of one descriptor that are told by numbers alone. */
static int note_file(int file, long result, recorder_head head) {
  char path[PATH_MAX];
  const char *name = result == 0 ? path_of(file, path) : NULL;
  head.inode = name ? inode_of(file) : 0;
  if (name) append(head, name, NULL, NULL, 0);
  return (int)result;
}

int ftruncate(int file, off_t size) {
  if (STRIKES(TRUNCATE)) return -1;
  if (!recorder_is_on()) return (int)syscall(SYS_ftruncate, file, size);
  enter();
  int result = note_file(file, syscall(SYS_ftruncate, file, size),
                         (recorder_head){.op = RECORDER_TRUNCATE, .length = (uint64_t)size});
  leave();
  return result;
}
int ftruncate64(int file, off_t size) { return ftruncate(file, size); }

int fallocate(int file, int mode, off_t offset, off_t count) {
  if (STRIKES(ALLOCATE)) return -1;
  if (!recorder_is_on()) return (int)syscall(SYS_fallocate, file, mode, offset, count);
  recorder_head head = {.op = RECORDER_ALLOCATE, .offset = (uint64_t)offset, .length = (uint64_t)count};
  if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) head.op = RECORDER_PUNCH;
  else if (mode == FALLOC_FL_KEEP_SIZE) head.flags = RECORDER_KEEP_SIZE;
  else if (mode != 0) head.flags = RECORDER_UNKNOWN;
  enter();
  int result = note_file(file, syscall(SYS_fallocate, file, mode, offset, count), head);
  leave();
  return result;
}
int fallocate64(int file, int mode, off_t offset, off_t count) { return fallocate(file, mode, offset, count); }

int posix_fallocate(int file, off_t offset, off_t count) {
  int saved = errno;
  if (STRIKES(ALLOCATE)) {
    int code = errno;
    errno = saved;
    return code;
  }
  if (!recorder_is_on()) {
    /* The C library writes where the file system cannot allocate. */
    int (*next)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    return next ? next(file, offset, count) : ENOSYS;
  }
  int before = errno, code = fallocate(file, 0, offset, count) == 0 ? 0 : errno;
  errno = before;
  return code;
}
int posix_fallocate64(int file, off_t offset, off_t count) { return posix_fallocate(file, offset, count); }

static ssize_t note_copied(int to, int64_t offset, ssize_t count) {
  char path[PATH_MAX];
  const char *name = count > 0 ? path_of(to, path) : NULL;
  static uint8_t piece[1 << 16]; /* under the lock */
  for (ssize_t done = 0; name && done < count;) {
    size_t wanted = (size_t)(count - done) < sizeof piece ? (size_t)(count - done) : sizeof piece;
    ssize_t got = syscall(SYS_pread64, to, piece, wanted, offset + done);
    if (got <= 0) _exit(99);
    append((recorder_head){.op = RECORDER_WRITE, .inode = inode_of(to), .offset = (uint64_t)(offset + done),
                           .length = (uint64_t)got, .data_count = (uint64_t)got},
           name, NULL, &(struct iovec){piece, (size_t)got}, 1);
    done += got;
  }
  return count;
}

ssize_t copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset, size_t count, unsigned flags) {
  if (!recorder_is_on()) return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, count, flags);
  enter();
  int64_t offset = to_offset ? *to_offset : syscall(SYS_lseek, to, 0, SEEK_CUR);
  ssize_t result = note_copied(
      to, offset, syscall(SYS_copy_file_range, from, from_offset, to, to_offset, count, flags));
  leave();
  return result;
}

int ioctl(int file, unsigned long request, ...) {
  if (STRIKES(CLONE)) return -1;
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  if (!recorder_is_on() || request != FICLONE) return (int)syscall(SYS_ioctl, file, request, argument);
  enter();
  int result = (int)syscall(SYS_ioctl, file, request, argument);
  struct stat st;
  if (result == 0 && syscall(SYS_fstat, file, &st) == 0) (void)note_copied(file, 0, st.st_size);
  leave();
  return result;
}

/* ---- syncs: under the lock, so that nothing is begun while one is under way. What was begun before it, and not after,
 * is covered; a cut in the middle of it is one before it. The disk has nothing to do with it: they are recorded, not made. */

static int note_sync(int file, recorder_op op, long call) {
  char path[PATH_MAX];
  struct stat st;
  if (!is_idle) return (int)syscall(call, file);
  if (syscall(SYS_fstat, file, &st) != 0) return -1;
  path[0] = 0;
  const char *name = recorder_is_on() ? path_of(file, path) : NULL;
  if (is_above(path)) name = "/";
  if (!name || (op != RECORDER_SYNCFS && skipped && strncmp(name, skipped, strlen(skipped)) == 0)) return 0;
  enter();
  append((recorder_head){.op = op, .inode = (uint64_t)st.st_ino}, name, NULL, NULL, 0);
  leave();
  return 0;
}

int fsync(int file) { return STRIKES(SYNC) ? -1 : note_sync(file, RECORDER_FSYNC, SYS_fsync); }
int fdatasync(int file) { return STRIKES(SYNC) ? -1 : note_sync(file, RECORDER_FDATASYNC, SYS_fdatasync); }
int syncfs(int file) { return STRIKES(SYNC) ? -1 : note_sync(file, RECORDER_SYNCFS, SYS_syncfs); }
/* sync_file_range promises nothing of sizes and blocks (sync_file_range(2)), so it is not recorded. msync is of mappings
 * only. */

/* ---- names */

static bool is_there(int folder, const char *name) { return inode_at(folder, name) != 0; }

static int open_file(int folder, const char *name, int flags, mode_t mode) {
  bool leaves_out = is_idle && (flags & O_DSYNC); /* O_SYNC is O_DSYNC and more */
  int file = (int)syscall(SYS_openat, folder, name, leaves_out ? flags & ~O_SYNC : flags, mode);
  if (file >= 0 && file < FILES) is_synced[file] = leaves_out;
  return file;
}

static int note_open(int folder, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  const char *shown = recorder_is_on() && (flags & (O_CREAT | O_TRUNC)) && (flags & O_TMPFILE) != O_TMPFILE
                          ? path_at(folder, name, path) : NULL;
  if (!shown) return open_file(folder, name, flags, mode);
  enter();
  bool was_there = is_there(folder, name);
  int file = open_file(folder, name, flags, mode);
  if (file >= 0 && !was_there)
    append((recorder_head){.op = RECORDER_CREATE, .inode = inode_of(file)}, shown, NULL, NULL, 0);
  else if (file >= 0 && (flags & O_TRUNC))
    append((recorder_head){.op = RECORDER_TRUNCATE, .inode = inode_of(file)}, shown, NULL, NULL, 0);
  leave();
  return file;
}

int openat(int folder, const char *name, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  if (failing_strikes(FAILING_OPEN_KIND(flags), FAILING_CALLER)) return -1;
  return note_open(folder, name, flags, mode);
}

static int note_name(long result, recorder_op op, uint64_t inode, const char *path, const char *second) {
  if (result == 0) append((recorder_head){.op = op, .inode = inode}, path, second, NULL, 0);
  return (int)result;
}

int mkdirat(int folder, const char *name, mode_t mode) {
  if (STRIKES(MKDIR)) return -1;
  char path[PATH_MAX];
  const char *shown = recorder_is_on() ? path_at(folder, name, path) : NULL;
  if (!shown) return (int)syscall(SYS_mkdirat, folder, name, mode);
  enter();
  long result = syscall(SYS_mkdirat, folder, name, mode);
  (void)note_name(result, RECORDER_MKDIR, inode_at(folder, name), shown, NULL);
  leave();
  return (int)result;
}
int mkdir(const char *name, mode_t mode) { return STRIKES(MKDIR) ? -1 : mkdirat(AT_FDCWD, name, mode); }

int unlinkat(int folder, const char *name, int flags) {
  if (STRIKES(UNLINK)) return -1;
  char path[PATH_MAX];
  const char *shown = recorder_is_on() ? path_at(folder, name, path) : NULL;
  if (!shown) return (int)syscall(SYS_unlinkat, folder, name, flags);
  enter();
  uint64_t inode = inode_at(folder, name);
  int result = note_name(syscall(SYS_unlinkat, folder, name, flags),
                         flags & AT_REMOVEDIR ? RECORDER_RMDIR : RECORDER_UNLINK, inode, shown, NULL);
  leave();
  return result;
}
int unlink(const char *name) { return STRIKES(UNLINK) ? -1 : unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return STRIKES(UNLINK) ? -1 : unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

static int note_pair(int from, const char *name, int to, const char *other, recorder_op op, long call) {
  char path[PATH_MAX], second[PATH_MAX];
  const char *shown = recorder_is_on() ? path_at(from, name, path) : NULL;
  const char *target = recorder_is_on() ? path_at(to, other, second) : NULL;
  if (!shown && !target) return (int)syscall(call, from, name, to, other, 0);
  enter();
  uint64_t inode = inode_at(from, name);
  /* From or to elsewhere: nothing here does that; the records say so, and the proof does not go on with them. */
  int result = note_name(syscall(call, from, name, to, other, 0), op, inode, shown ? shown : "/", target ? target : "/");
  leave();
  return result;
}

int renameat(int from, const char *name, int to, const char *other) {
  if (STRIKES(RENAME)) return -1;
  return note_pair(from, name, to, other, RECORDER_RENAME, SYS_renameat2);
}
int rename(const char *name, const char *other) {
  return STRIKES(RENAME) ? -1 : renameat(AT_FDCWD, name, AT_FDCWD, other);
}
int linkat(int from, const char *name, int to, const char *other, int flags) {
  if (flags != 0) return (int)syscall(SYS_linkat, from, name, to, other, flags);
  return note_pair(from, name, to, other, RECORDER_LINK, SYS_linkat);
}
int link(const char *name, const char *other) { return linkat(AT_FDCWD, name, AT_FDCWD, other, 0); }

#else

bool recorder_is_on(void) { return false; }
void recorder_mark(const char *text) { (void)text; }
void recorder_hold(void) {}
void recorder_kill_after(recorder_op op, unsigned count) { (void)op, (void)count; }

#endif
