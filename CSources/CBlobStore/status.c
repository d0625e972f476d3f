/* Statuses, their texts, and the thread's last error. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static _Thread_local bcs_error last_error;

const char *bcs_status_name(bcs_status status) {
  switch (status) {
#define BCSI_NAME(code, text) case code: return #code;
    BCS_STATUS_LIST(BCSI_NAME)
#undef BCSI_NAME
  }
  return "BCS_?";
}

const char *bcs_status_text(bcs_status status) {
  switch (status) {
#define BCSI_TEXT(code, text) case code: return text;
    BCS_STATUS_LIST(BCSI_TEXT)
#undef BCSI_TEXT
  }
  return "unknown status";
}

void bcs_last_error(bcs_error *out) { *out = last_error; }

bcs_status bcsi_repeat(const bcs_error *error) {
  last_error = *error;
  return error->status;
}

/* The end of a path tells more than its front. */
static void copy_tail(char *out, size_t capacity, const char *text) {
  size_t count = strlen(text);
  if (count >= capacity) text += count - (capacity - 1);
  snprintf(out, capacity, "%s", text);
}

bcs_status bcsi_fail(bcs_status status, int code, const char *operation, const char *path, const char *cause) {
  last_error.status = status;
  last_error.code = code;
  snprintf(last_error.operation, sizeof last_error.operation, "%s", operation ? operation : "");
  copy_tail(last_error.path, sizeof last_error.path, path ? path : "");
  snprintf(last_error.cause, sizeof last_error.cause, "%s", cause ? cause : bcs_status_text(status));
  return status;
}

bcs_status bcs_status_of_errno(int code) {
  switch (code) {
    case ENOSPC: case EDQUOT: case EFBIG: return BCS_NO_SPACE;
    case EMFILE: case ENFILE: return BCS_NO_DESCRIPTORS;
    case ENOMEM: return BCS_NO_MEMORY;
    case EACCES: case EPERM: return BCS_PERMISSION;
    case EROFS: return BCS_READ_ONLY_FS;
    case ELOOP: return BCS_SYMLINK;
    case ENOTDIR: return BCS_NOT_DIRECTORY;
    case EISDIR: return BCS_IS_DIRECTORY;
    case ENAMETOOLONG: return BCS_PATH_TOO_LONG;
    case ENOENT: return BCS_NOT_FOUND;
    default: return BCS_IO;
  }
}

bcs_status bcsi_fail_errno(int code, const char *operation, const char *path) {
  char text[160];
  const char *cause = strerror_r(code, text, sizeof text);
  return bcsi_fail(bcs_status_of_errno(code), code, operation, path, cause);
}

bcs_status bcsi_fail_lmdb(int code, const char *operation, const char *path) {
  if (code > 0) return bcsi_fail_errno(code, operation, path);
  bcs_status status = BCS_INDEX;
  if (code == MDB_INVALID || code == MDB_CORRUPTED || code == MDB_PAGE_NOTFOUND || code == MDB_VERSION_MISMATCH)
    status = BCS_CORRUPT;
  return bcsi_fail(status, code, operation, path, mdb_strerror(code));
}
