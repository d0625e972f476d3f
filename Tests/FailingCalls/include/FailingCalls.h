/* Lets calls of the C core and of LMDB fail: to the kernel, of LMDB's and OpenSSL's interfaces, for memory.
 *
 * Linked into a program, it stands in front of the C library, LMDB and OpenSSL. It does nothing unless a fault is armed.
 * Which calls are meant is told by who makes them: the addresses of the core's functions are read from the program's
 * own symbol table, those of LMDB from where it is loaded. Calls that Swift or the C library make for themselves are let
 * through, as a Swift allocation that fails ends the process by the language's design.
 *
 * The calls that Recorder.c stands in front of ask here before they are made; the two could not define one symbol both. */
#ifndef BLOBCACHE_FAILING_CALLS_H
#define BLOBCACHE_FAILING_CALLS_H

#include <stdbool.h>
#include <stddef.h>

/* Kind of call, and the faults that it can have: errno(3) names, see the man page of each. SHORT: less is read or written
 * than was asked for. EINTR where the kernel may give it. EBADCALL: an interface of LMDB or OpenSSL refuses. */
#define FAILING_CALLS(CALL)                                                                                               \
  CALL(OPEN, "open", F_MFILE | F_NFILE | F_IO | F_INTR | F_ACCES | F_NOMEM)                                               \
  CALL(CREATE, "create", F_NOSPC | F_DQUOT | F_MFILE | F_NFILE | F_IO | F_INTR | F_ACCES | F_ROFS | F_NOMEM)              \
  CALL(FOPEN, "fopen", F_MFILE | F_NFILE | F_ACCES | F_NOMEM)                                                             \
  CALL(CLOSE, "close", F_IO | F_INTR)                                                                                     \
  CALL(READ, "read", F_IO | F_INTR | F_SHORT)                                                                             \
  CALL(PREAD, "pread", F_IO | F_INTR | F_SHORT)                                                                           \
  CALL(WRITE, "write", F_NOSPC | F_DQUOT | F_IO | F_INTR | F_SHORT)                                                       \
  CALL(PWRITE, "pwrite", F_NOSPC | F_DQUOT | F_IO | F_INTR | F_SHORT)                                                     \
  CALL(WRITEV, "writev", F_NOSPC | F_DQUOT | F_IO | F_INTR | F_SHORT)                                                     \
  CALL(TRUNCATE, "ftruncate", F_NOSPC | F_DQUOT | F_IO | F_INTR | F_ROFS)                                                 \
  CALL(ALLOCATE, "fallocate", F_NOSPC | F_DQUOT | F_IO | F_INTR)                                                          \
  CALL(CLONE, "ioctl", F_NOSPC | F_DQUOT | F_IO | F_INTR)                                                                 \
  CALL(SYNC, "fsync", F_NOSPC | F_DQUOT | F_IO)                                                                           \
  CALL(STAT, "stat", F_IO | F_ACCES | F_NOMEM)                                                                            \
  CALL(FSTAT, "fstat", F_IO | F_NOMEM)                                                                                    \
  CALL(STATFS, "statfs", F_IO | F_INTR | F_NOMEM)                                                                         \
  CALL(CHMOD, "chmod", F_IO | F_ACCES | F_ROFS | F_NOMEM)                                                                 \
  CALL(MKDIR, "mkdir", F_NOSPC | F_DQUOT | F_IO | F_ACCES | F_ROFS | F_NOMEM)                                             \
  CALL(UNLINK, "unlink", F_IO | F_ACCES | F_ROFS | F_NOMEM)                                                               \
  CALL(RENAME, "rename", F_NOSPC | F_DQUOT | F_IO | F_ACCES | F_ROFS | F_NOMEM)                                           \
  CALL(OPENDIR, "opendir", F_NOMEM)                                                                                       \
  CALL(READDIR, "readdir", F_IO)                                                                                          \
  CALL(FCNTL, "fcntl", F_IO | F_INTR | F_NOMEM)                                                                           \
  CALL(SEEK, "lseek", F_IO)                                                                                               \
  CALL(MMAP, "mmap", F_NFILE | F_NOMEM)                                                                                   \
  CALL(MUNMAP, "munmap", F_NOMEM)                                                                                         \
  CALL(MADVISE, "madvise", F_IO | F_NOMEM)                                                                                \
  CALL(RANDOM, "getrandom", F_INTR)                                                                                       \
  CALL(MEMORY, "malloc", F_NOMEM)                                                                                         \
  CALL(LMDB, "lmdb", F_CALL)                                                                                              \
  CALL(DIGEST, "digest", F_CALL)

#define FAILING_FAULTS(FAULT)                                                                                             \
  FAULT(NOSPC, ENOSPC) FAULT(DQUOT, EDQUOT) FAULT(MFILE, EMFILE) FAULT(NFILE, ENFILE) FAULT(IO, EIO) FAULT(INTR, EINTR)   \
  FAULT(ACCES, EACCES) FAULT(ROFS, EROFS) FAULT(NOMEM, ENOMEM) FAULT(SHORT, EAGAIN) FAULT(CALL, ENOTSUP)

typedef enum failing_call {
#define FAILING_NAME(name, text, faults) FAILING_##name,
  FAILING_CALLS(FAILING_NAME)
#undef FAILING_NAME
  FAILING_CALL_COUNT
} failing_call;

/* Whether faults can be had in this build: not under a sanitizer, which has its own functions in front, and not in a
 * program without symbols. */
bool failing_calls_work(void);

/* NULL beyond the last. */
const char *failing_call_name(int call);
const char *failing_fault_name(int fault);

/* From now on, of the calls that can have it, the `nth` has the fault, and with `goes_on` all after it (of EINTR, every
 * second one: nobody is interrupted for ever). */
void failing_arm(int fault, long nth, bool goes_on);

/* How many calls had it. `of` is a count by kind of call to which they are added. */
long failing_disarm(long of[FAILING_CALL_COUNT]);

/* What the core and LMDB have allocated and not freed, since the first call of this. */
long failing_live_allocations(void);
/* The callers of those made since `mark`, one a word, as offsets for addr2line(1). */
long failing_allocation_mark(void);
void failing_describe_allocations(long mark, char *out, size_t capacity);

/* For those that stand in front of a call: true when it is to fail, with errno set. `caller` is the return address of the
 * function that stands in front. */
bool failing_strikes(failing_call call, const void *caller);
/* How much of so many bytes is to be written. */
size_t failing_shortens(failing_call call, const void *caller, size_t count);

/* An open that writes or makes something has more ways to fail. */
#define FAILING_OPEN_KIND(flags) (((flags) & (O_CREAT | O_ACCMODE)) != 0 ? FAILING_CREATE : FAILING_OPEN)

#define FAILING_CALLER __builtin_extract_return_addr(__builtin_return_address(0))

#endif
