/* Where this process has mapped a file. LMDB does not tell, the kernel does (proc_pid_maps(5)). By the file's whole path: that of
 * another cache may end like it. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In a path, a new line is \\012. */
static bool names_path(const char *text, const char *path) {
  for (; *path; path++) {
    if (*path == '\n') {
      if (strncmp(text, "\\012", 4) != 0) return false;
      text += 4;
    } else if (*text++ != *path) {
      return false;
    }
  }
  return *text == '\n' || *text == 0;
}

void bcsi_each_mapping(const char *path, bcsi_mapping_found found, void *context) {
  char *line = NULL;
  size_t capacity = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return;
  bool is_enough = false;
  while (!is_enough && getline(&line, &capacity, maps) > 0) {
    unsigned long from, to, offset;
    int at = 0;
    if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &from, &to, &offset, &at) == 3 && at > 0 && names_path(line + at, path))
      is_enough = found((void *)from, to - from, offset, context);
  }
  free(line);
  fclose(maps);
}
