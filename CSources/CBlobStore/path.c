/* Folders and files below the store's directory: every step by a descriptor, never through a symbolic link. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

void bcsi_join(const char *directory, const char *name, char *out, size_t capacity) {
  snprintf(out, capacity, "%s/%s", directory, name);
}

bcs_status bcsi_open_folder(int parent, const char *name, const char *shown, mode_t mode, bool create, int *out) {
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int fd = openat(parent, name, flags);
  if (fd < 0 && errno == ENOENT && create) {
    if (mkdirat(parent, name, mode) != 0 && errno != EEXIST) return bcsi_fail_errno(errno, "mkdir", shown);
    fd = openat(parent, name, flags);
    if (fd >= 0 && fchmod(fd, mode) != 0) { /* the mode is as configured, whatever the umask */
      int code = errno;
      close(fd);
      return bcsi_fail_errno(code, "chmod", shown);
    }
  }
  if (fd < 0) {
    struct stat st;
    int code = errno;
    /* O_DIRECTORY with O_NOFOLLOW says ENOTDIR for a link on some systems, ELOOP on others. */
    if ((code == ENOTDIR || code == ELOOP) && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISLNK(st.st_mode))
      code = ELOOP;
    return bcsi_fail_errno(code, "open", shown);
  }
  bcs_status status = bcsi_check_folder(fd, mode, shown);
  if (status != BCS_OK) {
    close(fd);
    return status;
  }
  *out = fd;
  return BCS_OK;
}

/* A folder may be no more open than configured, and must be ours unless the configuration shares it: in a folder that
 * others can write, names can be planted. */
bcs_status bcsi_check_folder(int fd, mode_t mode, const char *shown) {
  struct stat st;
  if (fstat(fd, &st) != 0) return bcsi_fail_errno(errno, "stat", shown);
  bool shared = (mode & 022) != 0;
  char cause[160];
  if (st.st_uid != geteuid() && !shared) {
    snprintf(cause, sizeof cause, "it belongs to user %u, this process runs as user %u", (unsigned)st.st_uid,
             (unsigned)geteuid());
    return bcsi_fail(BCS_NOT_OURS, 0, "open", shown, cause);
  }
  mode_t extra = (mode_t)(st.st_mode & 022 & ~mode);
  if (extra != 0) {
    snprintf(cause, sizeof cause, "its mode is %04o: others may write in it (chmod go-w, or configure that mode)",
             (unsigned)(st.st_mode & 07777));
    return bcsi_fail(BCS_NOT_OURS, 0, "open", shown, cause);
  }
  return BCS_OK;
}

/* Magic numbers from statfs(2) and linux/magic.h. FUSE counts as a network: there is no telling what is behind it. */
bcs_status bcsi_check_file_system(int fd, int64_t type, bool allow_network, const char *shown) {
  static const int64_t network[] = {
    0x6969 /* NFS */, 0x517B /* SMB */, 0xFF534D42 /* CIFS */, 0xFE534D42 /* SMB2 */, 0x01021997 /* 9P */,
    0x65735546 /* FUSE */, 0x0BD00BD0 /* Lustre */, 0x5346414F /* AFS */, 0x00C36400 /* Ceph */,
    0x73757245 /* Coda */, 0x7461636F /* OCFS2 */, 0x01161970 /* GFS2 */, 0x47504653 /* GPFS */,
  };
  if (type == 0) {
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0) return bcsi_fail_errno(errno, "statfs", shown);
    type = (int64_t)fs.f_type & 0xFFFFFFFF;
  }
  if (allow_network) return BCS_OK;
  for (size_t i = 0; i < sizeof network / sizeof *network; i++)
    if (type == network[i])
      return bcsi_fail(BCS_NETWORK_FS, 0, "open", shown,
                       "locks and mappings are not coherent there; use a local disk, or allow it in the configuration");
  return BCS_OK;
}

bcs_status bcsi_write_all(int fd, const void *bytes, size_t count, const char *shown) {
  const uint8_t *at = bytes;
  while (count > 0) {
    ssize_t n = write(fd, at, count);
    if (n < 0) {
      if (errno == EINTR) continue;
      return bcsi_fail_errno(errno, "write", shown);
    }
    at += n;
    count -= (size_t)n;
  }
  return BCS_OK;
}

bcs_status bcsi_check_own(const struct stat *st, bool read_only, const char *shown) {
  if (S_ISLNK(st->st_mode)) return bcsi_fail(BCS_SYMLINK, 0, "open", shown, NULL);
  if (!S_ISREG(st->st_mode)) return bcsi_fail(BCS_NOT_A_CACHE, 0, "open", shown, "it is not a regular file");
  if (!read_only && st->st_nlink > 1)
    return bcsi_fail(BCS_SYMLINK, 0, "open", shown,
                     "the file has a second name (a hard link), and what is written here would change it there, too; "
                     "put a copy of the file in its place");
  return BCS_OK;
}

/* The kernel may give less than was asked for, and be interrupted; that is no end and no error (read(2), write(2)). */
ssize_t bcsi_read_at(int fd, void *out, size_t count, off_t at) {
  size_t got = 0;
  while (got < count) {
    ssize_t n = pread(fd, (uint8_t *)out + got, count - got, at + (off_t)got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    got += (size_t)n;
  }
  return (ssize_t)got;
}

int bcsi_write_at(int fd, const void *bytes, size_t count, off_t at) {
  size_t done = 0;
  while (done < count) {
    ssize_t n = pwrite(fd, (const uint8_t *)bytes + done, count - done, at + (off_t)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    done += (size_t)n;
  }
  return 0;
}

bcs_status bcsi_read_text(int parent, const char *name, const char *shown, char *out, size_t capacity, size_t *got) {
  int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return bcsi_fail_errno(errno, "open", shown);
  size_t total = 0;
  while (total < capacity - 1) {
    ssize_t n = read(fd, out + total, capacity - 1 - total);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      int code = errno;
      close(fd);
      return bcsi_fail_errno(code, "read", shown);
    }
    if (n == 0) break;
    total += (size_t)n;
  }
  close(fd);
  out[total] = 0;
  *got = total;
  return BCS_OK;
}
