/* The calls that nothing else in the test process stands in front of: see FailingCalls.h. */
#include "FailingCalls.h"

#if defined(__linux__) && !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STRIKES(call) failing_strikes(FAILING_##call, FAILING_CALLER)

/* The function of that name behind this one. */
#define BEHIND(name)                                                                                                      \
  static _Atomic(void *) found;                                                                                           \
  void *at = atomic_load_explicit(&found, memory_order_acquire);                                                          \
  if (!at) {                                                                                                              \
    at = dlsym(RTLD_NEXT, #name);                                                                                         \
    if (!at) abort();                                                                                                     \
    atomic_store_explicit(&found, at, memory_order_release);                                                              \
  }                                                                                                                       \
  __typeof__(&name) next = (__typeof__(&name))at

/* ---- files */

/* The test process answers Dispatch from a reserve of its own when there is no descriptor left: Descriptors.swift. */
extern __attribute__((weak)) int blobcache_open_in_front(const char *path, int flags, mode_t mode);

int open(const char *path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  if (failing_strikes(FAILING_OPEN_KIND(flags), FAILING_CALLER)) return -1;
  return blobcache_open_in_front ? blobcache_open_in_front(path, flags, mode) : openat(AT_FDCWD, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
  if (STRIKES(FOPEN)) return NULL;
  BEHIND(fopen);
  return next(path, mode);
}

/* It is closed all the same, as Linux does it (close(2)). */
int close(int file) {
  int result = (int)syscall(SYS_close, file);
  return STRIKES(CLOSE) ? -1 : result;
}

ssize_t read(int file, void *bytes, size_t count) {
  if (STRIKES(READ)) return -1;
  return syscall(SYS_read, file, bytes, failing_shortens(FAILING_READ, FAILING_CALLER, count));
}
ssize_t pread(int file, void *bytes, size_t count, off_t offset) {
  if (STRIKES(PREAD)) return -1;
  return syscall(SYS_pread64, file, bytes, failing_shortens(FAILING_PREAD, FAILING_CALLER, count), offset);
}
ssize_t pread64(int file, void *bytes, size_t count, off_t offset) {
  if (STRIKES(PREAD)) return -1;
  return syscall(SYS_pread64, file, bytes, failing_shortens(FAILING_PREAD, FAILING_CALLER, count), offset);
}
off_t lseek(int file, off_t offset, int whence) {
  return STRIKES(SEEK) ? -1 : (off_t)syscall(SYS_lseek, file, offset, whence);
}

int fstat(int file, struct stat *out) { return STRIKES(FSTAT) ? -1 : (int)syscall(SYS_fstat, file, out); }
/* The C library's of programs that were linked against an old one. */
int __fxstat(int version, int file, struct stat *out);
int __fxstat(int version, int file, struct stat *out) {
  (void)version;
  return STRIKES(FSTAT) ? -1 : (int)syscall(SYS_fstat, file, out);
}
int stat(const char *path, struct stat *out) {
  return STRIKES(STAT) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}
int lstat(const char *path, struct stat *out) {
  return STRIKES(STAT) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int fstatat(int folder, const char *path, struct stat *out, int flags) {
  return STRIKES(STAT) ? -1 : (int)syscall(SYS_newfstatat, folder, path, out, flags);
}
int fstatfs(int file, struct statfs *out) {
  if (STRIKES(STATFS)) return -1;
  return (int)syscall(SYS_fstatfs, file, out);
}
int statvfs(const char *path, struct statvfs *out) {
  if (STRIKES(STATFS)) return -1;
  BEHIND(statvfs);
  return next(path, out);
}
int fstatvfs(int file, struct statvfs *out) {
  if (STRIKES(STATFS)) return -1;
  BEHIND(fstatvfs);
  return next(file, out);
}
int chmod(const char *path, mode_t mode) { return STRIKES(CHMOD) ? -1 : (int)syscall(SYS_chmod, path, mode); }
int fchmod(int file, mode_t mode) { return STRIKES(CHMOD) ? -1 : (int)syscall(SYS_fchmod, file, mode); }

DIR *fdopendir(int file) {
  if (STRIKES(OPENDIR)) return NULL;
  BEHIND(fdopendir);
  return next(file);
}
struct dirent *readdir(DIR *folder) {
  if (STRIKES(READDIR)) return NULL;
  BEHIND(readdir);
  return next(folder);
}

static long fcntl_argument(va_list list) { return va_arg(list, long); }
/* The test process can grant locks that are not there: Locks.swift. */
extern __attribute__((weak)) int blobcache_fcntl_in_front(int file, int command, void *argument);

static int make_fcntl(int file, int command, long argument) {
  if (blobcache_fcntl_in_front) return blobcache_fcntl_in_front(file, command, (void *)argument);
  BEHIND(fcntl); /* the kernel's answer to F_GETOWN is ambiguous, the C library's is not */
  return next(file, command, argument);
}
int fcntl(int file, int command, ...) {
  va_list list;
  va_start(list, command);
  long argument = fcntl_argument(list);
  va_end(list);
  return STRIKES(FCNTL) ? -1 : make_fcntl(file, command, argument);
}
int fcntl64(int file, int command, ...);
int fcntl64(int file, int command, ...) {
  va_list list;
  va_start(list, command);
  long argument = fcntl_argument(list);
  va_end(list);
  return STRIKES(FCNTL) ? -1 : make_fcntl(file, command, argument);
}

/* ---- mappings, and what else the kernel is asked for */

void *mmap(void *at, size_t count, int protection, int flags, int file, off_t offset) {
  if (STRIKES(MMAP)) return MAP_FAILED;
  return (void *)syscall(SYS_mmap, at, count, protection, flags, file, offset);
}
/* The mapping goes all the same, since what was let fail here could never be had again. */
int munmap(void *at, size_t count) {
  int result = (int)syscall(SYS_munmap, at, count);
  return STRIKES(MUNMAP) ? -1 : result;
}
int madvise(void *at, size_t count, int advice) {
  return STRIKES(MADVISE) ? -1 : (int)syscall(SYS_madvise, at, count, advice);
}
ssize_t getrandom(void *out, size_t count, unsigned flags) {
  return STRIKES(RANDOM) ? -1 : (ssize_t)syscall(SYS_getrandom, out, count, flags);
}

/* ---- LMDB: with the codes that lmdb.h tells for each. Of several, one after another. */

static int one_of(const int *codes, unsigned count) {
  static _Atomic unsigned turn;
  return codes[atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % count];
}
#define ONE_OF(...) one_of((const int[]){__VA_ARGS__}, sizeof(int[]){__VA_ARGS__} / sizeof(int))

int mdb_env_create(MDB_env **out) {
  if (STRIKES(LMDB)) return ENOMEM;
  BEHIND(mdb_env_create);
  return next(out);
}
int mdb_env_open(MDB_env *env, const char *path, unsigned flags, mdb_mode_t mode) {
  if (STRIKES(LMDB)) return ONE_OF(ENOMEM, EACCES, EAGAIN, EIO, ENOSPC);
  BEHIND(mdb_env_open);
  return next(env, path, flags, mode);
}
int mdb_env_set_mapsize(MDB_env *env, size_t size) {
  if (STRIKES(LMDB)) return ENOMEM;
  BEHIND(mdb_env_set_mapsize);
  return next(env, size);
}
int mdb_reader_check(MDB_env *env, int *dead) {
  if (STRIKES(LMDB)) return ENOMEM;
  BEHIND(mdb_reader_check);
  return next(env, dead);
}
int mdb_txn_begin(MDB_env *env, MDB_txn *parent, unsigned flags, MDB_txn **out) {
  if (STRIKES(LMDB))
    return flags & MDB_RDONLY ? ONE_OF(ENOMEM, MDB_READERS_FULL, MDB_PANIC, MDB_MAP_RESIZED)
                              : ONE_OF(ENOMEM, MDB_PANIC, MDB_MAP_RESIZED);
  BEHIND(mdb_txn_begin);
  return next(env, parent, flags, out);
}
int mdb_txn_renew(MDB_txn *txn) {
  if (STRIKES(LMDB)) return ONE_OF(MDB_READERS_FULL, MDB_PANIC, MDB_MAP_RESIZED);
  BEHIND(mdb_txn_renew);
  return next(txn);
}
/* The transaction is over in any case. */
int mdb_txn_commit(MDB_txn *txn) {
  if (STRIKES(LMDB)) {
    mdb_txn_abort(txn);
    return ONE_OF(EIO, ENOSPC, ENOMEM);
  }
  BEHIND(mdb_txn_commit);
  return next(txn);
}
int mdb_dbi_open(MDB_txn *txn, const char *name, unsigned flags, MDB_dbi *out) {
  if (STRIKES(LMDB)) return ONE_OF(MDB_DBS_FULL, ENOMEM);
  BEHIND(mdb_dbi_open);
  return next(txn, name, flags, out);
}
int mdb_put(MDB_txn *txn, MDB_dbi tree, MDB_val *key, MDB_val *value, unsigned flags) {
  if (STRIKES(LMDB)) return ONE_OF(MDB_TXN_FULL, ENOMEM);
  BEHIND(mdb_put);
  return next(txn, tree, key, value, flags);
}
int mdb_del(MDB_txn *txn, MDB_dbi tree, MDB_val *key, MDB_val *value) {
  if (STRIKES(LMDB)) return ONE_OF(MDB_TXN_FULL, ENOMEM);
  BEHIND(mdb_del);
  return next(txn, tree, key, value);
}
int mdb_drop(MDB_txn *txn, MDB_dbi tree, int gone) {
  if (STRIKES(LMDB)) return ONE_OF(MDB_TXN_FULL, ENOMEM);
  BEHIND(mdb_drop);
  return next(txn, tree, gone);
}
int mdb_get(MDB_txn *txn, MDB_dbi tree, MDB_val *key, MDB_val *value) {
  if (STRIKES(LMDB)) return MDB_PAGE_NOTFOUND;
  BEHIND(mdb_get);
  return next(txn, tree, key, value);
}
int mdb_cursor_open(MDB_txn *txn, MDB_dbi tree, MDB_cursor **out) {
  if (STRIKES(LMDB)) return ENOMEM;
  BEHIND(mdb_cursor_open);
  return next(txn, tree, out);
}
int mdb_cursor_get(MDB_cursor *cursor, MDB_val *key, MDB_val *value, MDB_cursor_op op) {
  if (STRIKES(LMDB)) return MDB_PAGE_NOTFOUND;
  BEHIND(mdb_cursor_get);
  return next(cursor, key, value, op);
}
int mdb_cursor_del(MDB_cursor *cursor, unsigned flags) {
  if (STRIKES(LMDB)) return ONE_OF(MDB_TXN_FULL, ENOMEM);
  BEHIND(mdb_cursor_del);
  return next(cursor, flags);
}

/* ---- OpenSSL */

EVP_MD_CTX *EVP_MD_CTX_new(void) {
  if (STRIKES(DIGEST)) return NULL;
  BEHIND(EVP_MD_CTX_new);
  return next();
}
EVP_MD *EVP_MD_fetch(OSSL_LIB_CTX *context, const char *algorithm, const char *properties) {
  if (STRIKES(DIGEST)) return NULL;
  BEHIND(EVP_MD_fetch);
  return next(context, algorithm, properties);
}
int EVP_DigestInit_ex(EVP_MD_CTX *context, const EVP_MD *type, ENGINE *engine) {
  if (STRIKES(DIGEST)) return 0;
  BEHIND(EVP_DigestInit_ex);
  return next(context, type, engine);
}
int EVP_DigestUpdate(EVP_MD_CTX *context, const void *bytes, size_t count) {
  if (STRIKES(DIGEST)) return 0;
  BEHIND(EVP_DigestUpdate);
  return next(context, bytes, count);
}
int EVP_DigestFinal_ex(EVP_MD_CTX *context, unsigned char *out, unsigned *count) {
  if (STRIKES(DIGEST)) return 0;
  BEHIND(EVP_DigestFinal_ex);
  return next(context, out, count);
}

#endif
