/* A store's life: open, identify, flush, shut, close; calls that run; fork. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/* From the threshold table in the documentation. */
static const uint32_t default_inline_threshold = 16 * 1024;

/* ---- fork: a child has neither the threads nor the locks of its parent. Its calls say BCS_FORKED; its copies of the
 * descriptors that hold locks are closed, since a lock lasts until the last copy is. */

_Atomic uint64_t bcsi_fork_epoch = 1;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static bcs_store *all_stores;

static void before_fork(void) { pthread_mutex_lock(&list_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&list_lock); }
static void after_fork_in_child(void) {
  atomic_fetch_add(&bcsi_fork_epoch, 1);
  for (bcs_store *store = all_stores; store; store = store->next)
    if (store->lock_fd >= 0) close(store->lock_fd);
  all_stores = NULL;
  pthread_mutex_unlock(&list_lock);
}
static void watch_forks(void) { (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

void bcsi_forks_wait(void) { pthread_mutex_lock(&list_lock); }
void bcsi_forks_go_on(void) { pthread_mutex_unlock(&list_lock); }

static void list_add(bcs_store *store) {
  pthread_mutex_lock(&list_lock);
  store->next = all_stores;
  all_stores = store;
  pthread_mutex_unlock(&list_lock);
}

static void list_remove(bcs_store *store) {
  pthread_mutex_lock(&list_lock);
  for (bcs_store **at = &all_stores; *at; at = &(*at)->next)
    if (*at == store) {
      *at = store->next;
      break;
    }
  pthread_mutex_unlock(&list_lock);
}

static bool is_forked(const bcs_store *store) {
  return store->fork_epoch != atomic_load_explicit(&bcsi_fork_epoch, memory_order_relaxed);
}

/* ---- calls */

bcs_status bcsi_call_enter(bcs_store *store) {
  if (is_forked(store)) return bcsi_fail(BCS_FORKED, 0, NULL, store->info.path, NULL);
  atomic_fetch_add(&store->calls, 1);
  if (!atomic_load(&store->shut)) return BCS_OK;
  atomic_fetch_sub(&store->calls, 1);
  return bcsi_fail(BCS_CLOSED, 0, NULL, store->info.path, NULL);
}

void bcsi_call_leave(bcs_store *store) { atomic_fetch_sub(&store->calls, 1); }

bcs_status bcsi_key_hash(const void *key, size_t count, uint8_t out[BCS_HASH_SIZE]) {
  if (count > BCS_KEY_MAX) return bcsi_fail(BCS_KEY_TOO_LONG, 0, NULL, NULL, NULL);
  uint8_t digest[BCS_DIGEST_SIZE];
  bcs_status status = bcs_digest(key, count, digest);
  if (status == BCS_OK) memcpy(out, digest, BCS_HASH_SIZE);
  return status;
}

bcs_status bcsi_check_place(const bcs_store *store) {
  struct stat st;
  if (stat(store->info.path, &st) == 0) {
    if ((uint64_t)st.st_dev == store->info.device && (uint64_t)st.st_ino == store->info.inode) return BCS_OK;
  } else if (errno != ENOENT && errno != ENOTDIR) {
    return BCS_OK; /* a folder on the way cannot be searched any more: that tells nothing about this one */
  }
  return bcsi_fail(BCS_GONE, 0, NULL, store->info.path, NULL);
}

bcs_status bcs_check_place(bcs_store *store) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = bcsi_check_place(store);
  bcsi_call_leave(store);
  return status;
}

/* ---- open and close */

static void release(bcs_store *store) {
  bool locked = store->lock_fd >= 0 && !is_forked(store) && bcsi_writer_lock(store, true) == BCS_OK;
  bcsi_index_close(store);
  if (locked) bcsi_writer_unlock(store);
  bcsi_slots_close(store);
  if (store->marks) munmap(store->marks, sizeof *store->marks * (size_t)BCSI_MAX_LINES);
  store->marks = NULL;
  if (!is_forked(store)) bcsi_intent_remove(store);
  int *fds[] = {&store->blobs_fd, &store->staging_fd, &store->quarantine_fd, &store->root_fd};
  for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
    if (*fds[i] >= 0) close(*fds[i]);
    *fds[i] = -1;
  }
  if (store->lock_fd >= 0) {
    /* By name first: a lock lasts as long as any copy of the descriptor, and a fork may just have made one. */
    for (int byte = BCSI_LOCK_OPEN; byte <= BCSI_LOCK_SWEEP_WANTED && !is_forked(store); byte++)
      bcsi_unlock(store->lock_fd, (bcsi_lock_byte)byte);
    if (!is_forked(store)) bcsi_leases_give_up(store);
  }
  bcsi_forks_wait(); /* the child closes what stands in lock_fd: never a number that is somebody else's by now */
  if (store->lock_fd >= 0) close(store->lock_fd);
  store->lock_fd = -1;
  bcsi_forks_go_on();
  list_remove(store);
}

bcs_status bcs_open(const char *directory, const bcs_options *options, bcs_store **out) {
  pthread_once(&fork_once, watch_forks);
  bcs_store *store = NULL;
  /* readers are aligned to their cache lines */
  if (posix_memalign((void **)&store, 128, (sizeof *store + 127) / 128 * 128) != 0)
    return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "open", directory, NULL);
  memset(store, 0, sizeof *store);
  store->options = *options;
  store->root_fd = store->lock_fd = store->blobs_fd = store->staging_fd = store->quarantine_fd = -1;
  store->intent_fd = store->slots.fd = -1;
  store->directory_mode = options->directory_mode ? (mode_t)options->directory_mode : 0700;
  store->file_mode = options->file_mode ? (mode_t)options->file_mode : 0600;
  store->inline_threshold = options->inline_threshold ? options->inline_threshold : default_inline_threshold;
  store->fork_epoch = atomic_load(&bcsi_fork_epoch);
  pthread_mutex_init(&store->writer, NULL);
  pthread_mutex_init(&store->index.transaction, NULL);
  pthread_mutex_init(&store->checkpoint, NULL);
  list_add(store); /* before it holds a lock: a fork in the middle of this must not keep one */
  (void)getrandom(&store->stripe_base, sizeof store->stripe_base, GRND_NONBLOCK); /* spreads processes; any value does */

  bcs_status status = BCS_OK;
  if (options->boot_id) {
    strncpy(store->boot_id, options->boot_id, BCSI_BOOT_ID_SIZE - 1);
  } else {
    status = bcsi_boot_id(store->boot_id);
  }
  store->options.boot_id = NULL;
  if (status == BCS_OK && (store->pid_namespace = bcsi_pid_namespace()) == 0)
    status = bcsi_fail_errno(errno, "stat", "/proc/self/ns/pid");
  if (status == BCS_OK) status = bcsi_owner_name(store->boot_id, store->owner, sizeof store->owner);
  if (status == BCS_OK) {
    void *marks = mmap(NULL, sizeof *store->marks * (size_t)BCSI_MAX_LINES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (marks == MAP_FAILED) status = bcsi_fail_errno(errno, "mmap", directory);
    else store->marks = marks;
  }
  if (status == BCS_OK) status = bcsi_layout_open(store, directory);
  if (status == BCS_OK) status = bcsi_layout_create(store);
  if (status != BCS_OK) {
    bcs_error error;
    bcs_last_error(&error);
    atomic_store(&store->index.gate, BCSI_GATE_SHUT);
    release(store);
    pthread_mutex_destroy(&store->writer);
    pthread_mutex_destroy(&store->index.transaction);
    pthread_mutex_destroy(&store->checkpoint);
    free(store);
    return bcsi_repeat(&error);
  }
  store->info.durability = store->durable ? BCS_DURABLE : BCS_CHECKPOINTED;
  store->info.inline_threshold = store->inline_threshold;
  *out = store;
  return BCS_OK;
}

void bcs_get_info(const bcs_store *store, bcs_info *out) {
  *out = store->info;
  out->map_size = store->index.map_size;
}

bcs_status bcs_identify(const char *directory, uint64_t *device, uint64_t *inode) {
  struct stat st;
  if (stat(directory, &st) != 0) return bcsi_fail_errno(errno, "open", directory);
  *device = (uint64_t)st.st_dev;
  *inode = (uint64_t)st.st_ino;
  return BCS_OK;
}

bcs_status bcs_flush(bcs_store *store) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  if (store->options.read_only) {
    status = bcsi_fail(BCS_READ_ONLY, 0, "flush", store->info.path, NULL);
  } else if ((status = bcsi_check_place(store)) != BCS_OK) {
    /* nothing of it is here */
  } else if (!store->durable) {
    int code = bcsi_fault("flush");
    status = code != 0 ? bcsi_fail_errno(code, "checkpoint", store->info.path) : bcsi_checkpoint(store, true);
  } else {
    /* One call for blob files, folders and index together: 30 µs a file against some 200 for a sync each. */
    int code = bcsi_fault("flush");
    if (code == 0 && syncfs(store->root_fd) != 0) code = errno;
    if (code != 0) status = bcsi_fail_errno(code, "syncfs", store->info.path);
  }
  bcsi_call_leave(store);
  return status;
}

void bcs_shut(bcs_store *store) {
  if (atomic_exchange(&store->shut, true)) return;
  if (is_forked(store)) { /* nothing here is the child's to wait for or to give up */
    atomic_store(&store->index.gate, BCSI_GATE_SHUT);
    store->lock_fd = -1;
    return;
  }
  while (atomic_load(&store->calls) != 0) usleep(50);
  for (;;) { /* a remapping in a lookup may hold the gate for a moment */
    int open = BCSI_GATE_OPEN;
    if (atomic_compare_exchange_strong(&store->index.gate, &open, BCSI_GATE_SHUT)) break;
    sched_yield();
  }
  bcsi_memory_shut(store);
  for (int i = 0; i < BCSI_READERS; i++)
    while (atomic_load(&store->index.readers[i].busy) != 0) usleep(50);
  release(store);
}

void bcs_close(bcs_store *store) {
  if (!store) return;
  bcs_shut(store);
  if (!is_forked(store)) {
    bcsi_memory_free(store);
    pthread_mutex_destroy(&store->writer);
    pthread_mutex_destroy(&store->index.transaction);
    pthread_mutex_destroy(&store->checkpoint);
  }
  free(store);
}
