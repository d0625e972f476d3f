/* A recorder of everything that changes a directory: what the power-cut proof is made from.
 *
 * Linked into a program, it stands in front of the C library's calls for the program itself and for every library in it
 * (LMDB among them). It does nothing unless the environment names a log and a directory:
 *
 *   BLOBCACHE_RECORD_LOG   a file outside of the directory; several processes append to one
 *   BLOBCACHE_RECORD_ROOT  the directory, as realpath(3) gives it; it need not be there yet
 *   BLOBCACHE_RECORD_SKIP  syncs of files and folders whose path begins so are not recorded: a store that forgets them
 *   BLOBCACHE_NO_SYNC      without a log: syncs do nothing, for programs whose files nobody needs after a power cut
 *
 * Each call that changes something below the directory is made and recorded under one lock of all processes, so the
 * order of the log is the order in which they happened. What is stored into a mapping is not seen: the index's lock file
 * and the slot table are the two files that are written so. */
#ifndef BLOBCACHE_RECORDER_H
#define BLOBCACHE_RECORDER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum recorder_op {
  RECORDER_ANY,        /* only for recorder_kill_after */
  RECORDER_CREATE, /* path, inode */
  RECORDER_MKDIR,      /* path, inode */
  RECORDER_RENAME,     /* path, second, inode */
  RECORDER_LINK,       /* path, second, inode */
  RECORDER_UNLINK,     /* path, inode */
  RECORDER_RMDIR,      /* path, inode */
  RECORDER_WRITE,      /* inode, offset, data; flags: RECORDER_DSYNC */
  RECORDER_TRUNCATE,   /* inode, length */
  RECORDER_ALLOCATE,   /* inode, offset, length; flags: RECORDER_KEEP_SIZE */
  RECORDER_PUNCH,      /* inode, offset, length */
  RECORDER_FSYNC,      /* inode */
  RECORDER_FDATASYNC,  /* inode */
  RECORDER_SYNCFS,
  RECORDER_MARK,       /* path: the text */
} recorder_op;

enum {
  RECORDER_DSYNC = 1, /* of a write: it is as if followed by an fdatasync of what it wrote (open(2), O_DSYNC) */
  RECORDER_KEEP_SIZE = 2,
  RECORDER_UNKNOWN = 4, /* a call that the recorder does not know how to tell */
};

/* In front of each record, in the machine's byte order; `size` counts all of it, padded to 8. Behind it the path, the
 * second path, the data. */
typedef struct recorder_head {
  uint64_t size;
  uint32_t op, flags;
  int32_t pid;
  uint32_t path_count, second_count, padding;
  uint64_t inode, offset, length, data_count;
} recorder_head;

bool recorder_is_on(void);

/* Ends the process, as `kill -9` does, right after its `count`th call of a kind that is recorded from now on. */
void recorder_kill_after(recorder_op op, unsigned count);

/* What only the program knows: that a store begins, that it has returned. */
void recorder_mark(const char *text);

/* Before a process ends itself: keeps its other threads from making a call that is not recorded any more. */
void recorder_hold(void);

#endif
