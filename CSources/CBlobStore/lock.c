/* Locks of the processes: open-file-description locks on single bytes of LOCK. The kernel gives them up when the last
 * descriptor of the description is closed, so also when its owner is killed.
 *
 * The writer's lock is fair: who wants it first takes the turnstile, waits there for the lock, and leaves the
 * turnstile only as its owner. A process that commits without pause has to pass the turnstile too, behind the one that
 * waits; LMDB's own mutex has no such order, and kept a second writer waiting for tens of seconds. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static struct flock range(off_t start, off_t count, short type) {
  struct flock lock;
  memset(&lock, 0, sizeof lock); /* l_pid must be 0 for these locks */
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = count;
  return lock;
}

int bcsi_lock_range(int fd, off_t start, off_t count, short type, int command) {
  struct flock lock = range(start, count, type);
  int rc;
  do rc = fcntl(fd, command, &lock);
  while (rc != 0 && errno == EINTR);
  return rc == 0 ? 0 : errno;
}

static int set(int fd, bcsi_lock_byte byte, short type, int command) {
  return bcsi_lock_range(fd, (off_t)byte, 1, type, command);
}

off_t bcsi_lock_of_other(int fd, off_t at) {
  struct flock lock = range(at, 1, F_WRLCK);
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_len;
}

bcs_status bcsi_lock(int fd, bcsi_lock_byte byte, bool exclusive, bool wait, const char *shown) {
  int code = set(fd, byte, exclusive ? F_WRLCK : F_RDLCK, wait ? F_OFD_SETLKW : F_OFD_SETLK);
  if (code == 0) return BCS_OK;
  if (!wait && (code == EAGAIN || code == EACCES)) return bcsi_fail(BCS_BUSY, code, "lock", shown, NULL);
  return bcsi_fail_errno(code, "lock", shown);
}

void bcsi_unlock(int fd, bcsi_lock_byte byte) { (void)set(fd, byte, F_UNLCK, F_OFD_SETLK); }

bool bcsi_locked_by_other(int fd, bcsi_lock_byte byte) {
  struct flock lock = range((off_t)byte, 1, F_WRLCK);
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bcs_status bcsi_writer_lock(bcs_store *store, bool try_only) {
  if (try_only) {
    if (pthread_mutex_trylock(&store->writer) != 0) return bcsi_fail(BCS_BUSY, 0, "lock", store->info.path, NULL);
  } else {
    pthread_mutex_lock(&store->writer);
  }
  bcs_status status = bcsi_lock(store->lock_fd, BCSI_LOCK_TURNSTILE, true, !try_only, store->info.path);
  if (status == BCS_OK) {
    status = bcsi_lock(store->lock_fd, BCSI_LOCK_WRITER, true, !try_only, store->info.path);
    bcsi_unlock(store->lock_fd, BCSI_LOCK_TURNSTILE);
  }
  if (status != BCS_OK) pthread_mutex_unlock(&store->writer);
  return status;
}

void bcsi_writer_unlock(bcs_store *store) {
  bcsi_unlock(store->lock_fd, BCSI_LOCK_WRITER);
  pthread_mutex_unlock(&store->writer);
}
