#include "CBaseline.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int cb_file_write(const char *path, const void *bytes, size_t count) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  const uint8_t *at = bytes;
  int rc = 0;
  while (count > 0 && !rc) {
    ssize_t n = write(fd, at, count);
    if (n < 0) {
      rc = errno;
    } else {
      at += n;
      count -= (size_t)n;
    }
  }
  close(fd);
  return rc;
}

static int open_sized(const char *path, int *fd, size_t *size) {
  struct stat st;
  if ((*fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) return errno;
  if (fstat(*fd, &st) != 0) {
    close(*fd);
    return errno;
  }
  *size = (size_t)st.st_size;
  return 0;
}

int cb_file_read_sum(const char *path, void *buffer, size_t capacity, uint64_t *sum) {
  int fd;
  size_t size, got = 0;
  int rc = open_sized(path, &fd, &size);
  if (rc) return rc;
  if (size > capacity) rc = EFBIG;
  while (!rc && got < size) {
    ssize_t n = read(fd, (uint8_t *)buffer + got, size - got);
    if (n <= 0) rc = n < 0 ? errno : EIO;
    else got += (size_t)n;
  }
  if (!rc) *sum = cb_sum(buffer, size);
  close(fd);
  return rc;
}

int cb_file_map_sum(const char *path, uint64_t *sum) {
  int fd;
  size_t size;
  int rc = open_sized(path, &fd, &size);
  if (rc) return rc;
  void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) rc = errno;
  close(fd);
  if (rc) return rc;
  *sum = cb_sum(map, size);
  munmap(map, size);
  return 0;
}

/* nftw has no context argument. */
static _Thread_local uint64_t tree_bytes;

static int add_blocks(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)path, (void)at;
  if (kind != FTW_NS) tree_bytes += (uint64_t)st->st_blocks * 512;
  return 0;
}

int cb_tree_allocated(const char *folder, uint64_t *bytes) {
  tree_bytes = 0;
  if (nftw(folder, add_blocks, 16, FTW_PHYS) != 0) return errno;
  *bytes = tree_bytes;
  return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)st, (void)kind, (void)at;
  return remove(path);
}

int cb_tree_remove(const char *folder) {
  return nftw(folder, remove_one, 16, FTW_PHYS | FTW_DEPTH) == 0 || errno == ENOENT ? 0 : errno;
}

static int forget_pages(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)st, (void)at;
  if (kind != FTW_F) return 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  int rc = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  return rc;
}

int cb_make_cold(const char *folder, bool *complete) {
  sync();
  if (nftw(folder, forget_pages, 16, FTW_PHYS) != 0) return errno;
  int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
  *complete = fd >= 0 && write(fd, "3", 1) == 1;
  if (fd >= 0) close(fd);
  return 0;
}
