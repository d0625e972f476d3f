/* Names of owners. A staging file or an intent begins with "boot.namespace.pid.start-", so that whoever opens the
 * directory later can tell the debris of the dead from the work of the living: a pid alone is reused, a pid with its
 * start time (proc_pid_stat(5), field 22) is not within one boot. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t read_small(const char *path, char *out, size_t capacity) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  size_t got = 0;
  ssize_t n = 1;
  while (n != 0 && got < capacity - 1) {
    n = read(fd, out + got, capacity - 1 - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    got += (size_t)n;
  }
  int code = errno;
  close(fd);
  errno = code;
  out[got] = 0;
  return n < 0 ? -1 : (ssize_t)got;
}

bcs_status bcsi_boot_id(char out[BCSI_BOOT_ID_SIZE]) {
  static const char path[] = "/proc/sys/kernel/random/boot_id";
  char text[64];
  ssize_t count = read_small(path, text, sizeof text);
  if (count < 36) return bcsi_fail_errno(count < 0 ? errno : EIO, "read", path);
  memcpy(out, text, 36);
  out[36] = 0;
  return BCS_OK;
}

uint64_t bcsi_pid_namespace(void) {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Field 22; the command in field 2 may hold spaces and parentheses, so count from the last one. 0: no such process, or
 * with *code an errno, it cannot be told. */
static uint64_t start_time(long pid, int *code) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  *code = 0;
  ssize_t count = read_small(path, text, sizeof text);
  if (count < 0 && errno != ENOENT && errno != ESRCH) *code = errno;
  if (count <= 0) return 0;
  char *at = strrchr(text, ')');
  if (!at) return 0;
  if (at[1] == ' ' && (at[2] == 'Z' || at[2] == 'X')) return 0; /* dead, not yet waited for */
  for (int field = 2; field < 22 && at; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, NULL, 10) : 0;
}

bcs_status bcsi_owner_name(const char *boot_id, char *out, size_t capacity) {
  int code;
  uint64_t start = start_time((long)getpid(), &code);
  if (code != 0) return bcsi_fail_errno(code, "read", "/proc/self/stat");
  if (start == 0) return bcsi_fail(BCS_IO, 0, "read", "/proc/self/stat", "is /proc mounted?");
  int count = snprintf(out, capacity, "%.8s.%" PRIx64 ".%ld.%" PRIu64, boot_id, bcsi_pid_namespace(),
                       (long)getpid(), start);
  return count > 0 && (size_t)count < capacity ? BCS_OK : bcsi_fail(BCS_INVALID, 0, "name", NULL, NULL);
}

bool bcsi_owner_alive(const char *name, const char *boot_id) {
  char boot[9];
  uint64_t pid_namespace, start;
  long pid;
  if (sscanf(name, "%8[0-9a-zA-Z_-].%" SCNx64 ".%ld.%" SCNu64, boot, &pid_namespace, &pid, &start) != 4) return true;
  if (strncmp(boot, boot_id, 8) != 0) return false;
  /* Two namespaces never use a directory at one moment: bcs_open refuses the second. */
  uint64_t own = bcsi_pid_namespace();
  if (own == 0) return true; /* in doubt: what a live one stages must stay */
  if (pid_namespace != own) return false;
  int code;
  uint64_t found = start_time(pid, &code);
  return code != 0 || found == start;
}
