/* FORMAT, what LOCK says of its users, and the names of staging files: read or refused. The first byte says which. */
#include "../../CSources/CBlobStore/format.c"

#include "fuzz.h"

static bcs_store *store_of_nobody(void) {
  static bcs_store *store;
  if (store) return store;
  CHECK(posix_memalign((void **)&store, 128, (sizeof *store + 127) / 128 * 128) == 0);
  memset(store, 0, sizeof *store);
  snprintf(store->info.path, sizeof store->info.path, "%s", fuzz_folder());
  store->root_fd = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  store->lock_fd = open(fuzz_path("LOCK"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  store->file_mode = 0600;
  memcpy(store->boot_id, fuzz_boot, sizeof fuzz_boot);
  CHECK(store->root_fd >= 0 && store->lock_fd >= 0);
  return store;
}

static void look_at_format(bcs_store *store, const uint8_t *data, size_t count) {
  static const char *const known[] = {"blobcache 1\ndurability checkpointed\n", "blobcache 1\ndurability durable\n"};
  char text[256];
  bcs_durability durability = BCS_AS_RECORDED;
  fuzz_write(fuzz_path("FORMAT"), data, count);
  CHECK(read_format(store, text, sizeof text) == BCS_OK);
  bcs_status status = parse_format(store, text, &durability);
  CHECK(status == BCS_OK || status == BCS_NOT_A_CACHE || status == BCS_VERSION);
  for (int i = 0; i < 2; i++) {
    bool same = count == strlen(known[i]) && memcmp(data, known[i], count) == 0;
    if (same) CHECK(status == BCS_OK && durability == (i == 0 ? BCS_CHECKPOINTED : BCS_DURABLE));
  }
  bcs_error error;
  bcs_last_error(&error);
  if (status != BCS_OK) CHECK(memchr(error.cause, 0, sizeof error.cause) && strlen(error.cause) > 0);
}

static void look_at_users(bcs_store *store, const uint8_t *data, size_t count) {
  struct users users;
  CHECK(ftruncate(store->lock_fd, 0) == 0);
  CHECK(pwrite(store->lock_fd, data, count, USERS_AT) == (ssize_t)count);
  bool known = false;
  if (read_users(store, &users, &known) != BCS_OK || !known) return;
  (void)(strncmp(users.boot_id, store->boot_id, BCSI_BOOT_ID_SIZE) == 0);
  CHECK(count >= sizeof users);
  CHECK(write_users(store) == BCS_OK && read_users(store, &users, &known) == BCS_OK && known);
  CHECK(strncmp(users.boot_id, store->boot_id, BCSI_BOOT_ID_SIZE) == 0);
}

static void look_at_name(const uint8_t *data, size_t count) {
  char name[256], own[BCSI_NAME_MAX];
  uint8_t digest[BCS_DIGEST_SIZE];
  if (count >= sizeof name) count = sizeof name - 1;
  memcpy(name, data, count);
  name[count] = 0;
  (void)bcsi_owner_alive(name, fuzz_boot);
  if (strlen(name) >= BCSI_HEX_SIZE) (void)bcsi_unhex(name, BCS_DIGEST_SIZE, digest);
  CHECK(bcsi_owner_name(fuzz_boot, own, sizeof own) == BCS_OK);
  CHECK(bcsi_owner_alive(own, fuzz_boot));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count) {
  if (count == 0) return 0;
  bcs_store *store = store_of_nobody();
  switch (data[0] % 3) {
    case 0: look_at_format(store, data + 1, count - 1); break;
    case 1: look_at_users(store, data + 1, count - 1); break;
    case 2: look_at_name(data + 1, count - 1); break;
  }
  return 0;
}
