/* Ballast: blocks that are held only to be let go, as ships and CockroachDB do. On a disk that others have filled, an
 * eviction or a removal needs some new pages of the index before it can give anything back; these blocks are theirs.
 * Taken where the disk has plenty, by every open and after it was let go by what comes later. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { BALLAST = 1 << 20, PLENTY = 16 * BALLAST, AGAIN_AFTER = 64 /* commits */ };
static const char ballast_name[] = "index/ballast";

/* Best effort: without it, a full disk keeps what it has until somebody makes room. */
static void take(bcs_store *store, uint64_t free) {
  struct stat st;
  store->ballast_wait = 0;
  if (fstatat(store->root_fd, ballast_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
      (!S_ISREG(st.st_mode) || (st.st_blocks * 512 >= BALLAST && st.st_nlink == 1)))
    return;
  store->ballast_wait = AGAIN_AFTER;
  if (bcsi_disk_free(store) < free) return;
  bcsi_ballast_forget(store); /* part of it, or a link to what is not ours */
  int fd = openat(store->root_fd, ballast_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, store->file_mode);
  if (fd < 0) return;
  (void)bcsi_fault("ballast");
  if (fchmod(fd, store->file_mode) == 0 && posix_fallocate(fd, 0, BALLAST) == 0) store->ballast_wait = 0;
  else bcsi_ballast_forget(store);
  close(fd);
}

void bcsi_ballast_take(bcs_store *store) { take(store, PLENTY); }

void bcsi_ballast_put_back(bcs_store *store) {
  if (store->ballast_wait > 0) take(store, 0);
}

/* Every some commits, where it is missing. */
void bcsi_ballast_after_commit(bcs_store *store) {
  if (store->ballast_wait > 0 && --store->ballast_wait == 0) bcsi_ballast_take(store);
}

/* Under the write lock. False: there was none. */
bool bcsi_ballast_drop(bcs_store *store) {
  struct stat st;
  bool dropped = fstatat(store->root_fd, ballast_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
                 st.st_blocks > 0 && unlinkat(store->root_fd, ballast_name, 0) == 0;
  store->ballast_wait = AGAIN_AFTER;
  return dropped;
}

void bcsi_ballast_forget(bcs_store *store) { (void)unlinkat(store->root_fd, ballast_name, 0); }
