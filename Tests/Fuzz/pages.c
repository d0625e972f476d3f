/* The index's pages: patches to a real index. The walk of pages.c never crashes, whatever the bytes; and where it finds
 * nothing, LMDB reads all of it and writes into each tree without a crash either, and leaves it sound. */
#include "fuzz.h"

static uint8_t *original;
static size_t original_size;

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  char path[1100];
  snprintf(path, sizeof path, "%s/index/data.mdb", fuzz_index());
  original = fuzz_read(path, &original_size);
  CHECK(mkdir(fuzz_path("index"), 0700) == 0);
  return 0;
}

/* First byte: bit 0, nothing but patches; else its upper bits say where the file ends, in 16ths of it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count) {
  if (count == 0) return 0;
  enum { PAGE = 4096 };
  fuzz_input in = {data + 1, data + count};
  const char *path = fuzz_path("index/data.mdb");
  uint8_t *bytes = malloc(original_size);
  memcpy(bytes, original, original_size);
  size_t size = fuzz_patch(&in, bytes, original_size, PAGE);
  if (!(data[0] & 1)) size = size / 16 * (data[0] >> 4) + data[0] % 16 * 256;
  if (size > original_size) size = original_size;
  fuzz_write(path, bytes, size);
  free(bytes);
  bcs_page_damage all, some;
  CHECK(bcs_check_file(path, true, &all) == BCS_OK);
  CHECK(bcs_check_file(path, false, &some) == BCS_OK);
  CHECK(all.found || !some.found); /* what a few pages show, all of them do */
  if (all.found || size == 0) return 0;
  CHECK(fuzz_lmdb(fuzz_path("index"), false) == 0);
  int rc = fuzz_lmdb(fuzz_path("index"), true);
  CHECK(rc == 0 || rc == MDB_MAP_FULL);
  CHECK(bcs_check_file(path, true, &all) == BCS_OK);
  if (all.found) fprintf(stderr, "page %llu: %s\n", (unsigned long long)all.page, all.cause);
  CHECK(!all.found);
  return 0;
}
