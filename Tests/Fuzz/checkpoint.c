/* The checkpoint's file: any bytes are refused or, where their checksum is right, written back over the index's meta
 * pages; the index is then walked before LMDB sees it. First byte: bit 0, make the checksum right; bit 1, begin with
 * the input itself instead of patches to a real checkpoint. */
#include "../../CSources/CBlobStore/checkpoint.c"

#include "fuzz.h"

static uint8_t *index_bytes, *checkpoint_bytes;
static size_t index_size, checkpoint_size;

static bcs_store *store_of_nobody(void) {
  static bcs_store *store;
  if (store) return store;
  char path[1100];
  const char *made = fuzz_index();
  snprintf(path, sizeof path, "%s/index/data.mdb", made);
  index_bytes = fuzz_read(path, &index_size);
  snprintf(path, sizeof path, "%s/index/checkpoint", made);
  checkpoint_bytes = fuzz_read(path, &checkpoint_size);
  CHECK(checkpoint_size == sizeof(header) + 2 * 4096);
  CHECK(mkdir(fuzz_path("index"), 0700) == 0);
  CHECK(posix_memalign((void **)&store, 128, (sizeof *store + 127) / 128 * 128) == 0);
  memset(store, 0, sizeof *store);
  snprintf(store->info.path, sizeof store->info.path, "%s", fuzz_folder());
  store->root_fd = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  store->file_mode = 0600;
  CHECK(store->root_fd >= 0);
  return store;
}

static void seal(uint8_t *bytes, size_t count) {
  header h;
  if (count < sizeof h) return;
  memcpy(&h, bytes, sizeof h);
  if (h.page_size > PAGE_MOST || count - sizeof h < 2 * (size_t)h.page_size) return;
  if (digest_of(&h, bytes + sizeof h, h.checksum) == BCS_OK) memcpy(bytes, &h, sizeof h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count) {
  if (count == 0) return 0;
  bcs_store *store = store_of_nobody();
  uint8_t *bytes = malloc(checkpoint_size + count);
  size_t size = count - 1;
  if (data[0] & 2) {
    memcpy(bytes, data + 1, size);
  } else {
    fuzz_input in = {data + 1, data + count};
    memcpy(bytes, checkpoint_bytes, checkpoint_size);
    size = fuzz_patch(&in, bytes, checkpoint_size, checkpoint_size);
  }
  if (data[0] & 1) seal(bytes, size);
  fuzz_write(fuzz_path("index/checkpoint"), bytes, size);
  fuzz_write(fuzz_path("index/data.mdb"), index_bytes, index_size);
  (void)unlink(fuzz_path("index/lock.mdb"));
  header h;
  uint8_t *pages;
  bcs_status status = read_file(store, &h, &pages);
  CHECK(status == BCS_OK || status == BCS_MISS);
  CHECK((status == BCS_OK) == (pages != NULL));
  free(pages);
  bool restored = true;
  CHECK(bcsi_checkpoint_restore(store, &restored) == BCS_OK);
  CHECK(status == BCS_OK || !restored);
  if (restored) {
    bcs_page_damage damage;
    CHECK(bcs_check_file(fuzz_path("index/data.mdb"), true, &damage) == BCS_OK);
    if (!damage.found) CHECK(fuzz_lmdb(fuzz_path("index"), false) == 0);
  }
  free(bytes);
  return 0;
}
