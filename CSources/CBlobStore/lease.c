/* Leases: who loads a key, told to the other processes of the directory.
 *
 * A lease is an open-file-description lock far behind the bytes of LOCK that mean something. So the kernel ends it with
 * its holder, killed or not, and nothing is left of it on the disk: no file, no row, nothing to sweep.
 *
 * A holder can also stand still (SIGSTOP, a debugger), and then keeps its locks. F_OFD_GETLK tells where a lock begins
 * and how long it is, but not who has it (l_pid is -1), so the lengths say the rest:
 *
 *   BEATS + number × SPAN   length 1 + beats   a process that holds leases; it lets this lock grow while it is alive
 *   LEASES + (lease × 4 + level) × SPAN        length = number of the holder
 *
 * Whoever finds a lease held reads the holder's beats, again and again. When they stand still for too long it takes the
 * lease at the next level, beside the one that sleeps; so one of those who wait goes on and the others wait for that one.
 *
 * SPAN is larger than any length, so that no two locks touch: the kernel would make one of them. The largest offset is
 * below 2^60. A process of many leases makes the list of the inode's locks longer, which the kernel walks for each lock,
 * the writer's included: some nanoseconds for each lease that is held. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static const off_t SPAN = (off_t)1 << 17;
static const off_t BEATS = (off_t)1 << 32;
static const off_t LEASES = (off_t)1 << 40;
enum { NUMBERS = 0xFFFF, BEATS_MOST = 0xFFFF, TRIES = 64 };

static off_t beats_at(uint32_t number) { return BEATS + (off_t)number * SPAN; }
static off_t lease_at(uint64_t lease, uint32_t level) {
  return LEASES + (off_t)(lease * BCS_LEASE_LEVELS + level) * SPAN;
}

bcs_status bcs_lease_of(const void *key, size_t count, uint64_t *lease) {
  uint8_t hash[BCS_HASH_SIZE];
  bcs_status status = bcsi_key_hash(key, count, hash);
  *lease = 0;
  for (int i = 0; status == BCS_OK && i < 5; i++) *lease = *lease << 8 | hash[i];
  return status;
}

static bcs_status enter(bcs_store *store) {
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK || !store->options.read_only) return status;
  bcsi_call_leave(store);
  return bcsi_fail(BCS_READ_ONLY, 0, "lease", store->info.path, NULL);
}

static bcs_status take(bcs_store *store, off_t start, off_t count) {
  int code = bcsi_lock_range(store->lock_fd, start, count, F_WRLCK, F_OFD_SETLK);
  if (code == 0) return BCS_OK;
  if (code == EAGAIN || code == EACCES) return bcsi_fail(BCS_BUSY, code, "lease", store->info.path, NULL);
  return bcsi_fail_errno(code, "lease", store->info.path);
}

bcs_status bcs_lease_join(bcs_store *store, uint32_t *number) {
  bcs_status status = enter(store);
  if (status != BCS_OK) return status;
  /* Somewhere, so that processes hardly ever try the same. */
  uint32_t first = store->stripe_base ^ (uint32_t)getpid() * 2654435761u;
  status = BCS_BUSY;
  for (uint32_t i = 0; status == BCS_BUSY && i < TRIES; i++) {
    *number = (first + i * 40503u) % NUMBERS + 1;
    status = take(store, beats_at(*number), 1);
  }
  bcsi_call_leave(store);
  return status;
}

void bcs_lease_leave(bcs_store *store, uint32_t number) {
  if (enter(store) != BCS_OK) return; /* shut: given up with the rest */
  (void)bcsi_lock_range(store->lock_fd, beats_at(number), SPAN, F_UNLCK, F_OFD_SETLK);
  bcsi_call_leave(store);
}

bcs_status bcs_lease_beat(bcs_store *store, uint32_t number, uint32_t beats) {
  bcs_status status = enter(store);
  if (status != BCS_OK) return status;
  off_t more = beats % BEATS_MOST;
  status = take(store, beats_at(number), 1 + more);
  /* After the last number comes 0, which is shorter. */
  if (status == BCS_OK && more == 0) {
    int code = bcsi_lock_range(store->lock_fd, beats_at(number) + 1, SPAN - 1, F_UNLCK, F_OFD_SETLK);
    if (code != 0) status = bcsi_fail_errno(code, "lease", store->info.path);
  }
  bcsi_call_leave(store);
  return status;
}

bcs_status bcs_lease_take(bcs_store *store, uint64_t lease, uint32_t level, uint32_t number, uint32_t *holder,
                          uint32_t *beats) {
  *holder = *beats = 0;
  bcs_status status = enter(store);
  if (status != BCS_OK) return status;
  if (lease >> 40 != 0 || level >= BCS_LEASE_LEVELS || number == 0 || number > NUMBERS)
    status = bcsi_fail(BCS_INVALID, 0, "lease", store->info.path, NULL);
  else
    status = take(store, lease_at(lease, level), (off_t)number);
  if (status == BCS_BUSY) {
    off_t other = bcsi_lock_of_other(store->lock_fd, lease_at(lease, level));
    if (other > 0 && other <= NUMBERS) {
      *holder = (uint32_t)other;
      *beats = (uint32_t)bcsi_lock_of_other(store->lock_fd, beats_at(*holder));
    }
  }
  bcsi_call_leave(store);
  return status;
}

void bcs_lease_release(bcs_store *store, uint64_t lease, uint32_t level) {
  if (enter(store) != BCS_OK) return;
  (void)bcsi_lock_range(store->lock_fd, lease_at(lease, level), SPAN, F_UNLCK, F_OFD_SETLK);
  bcsi_call_leave(store);
}

/* All at once, by name: see `release` in store.c. A length of 0 reaches to the end of all offsets. */
void bcsi_leases_give_up(bcs_store *store) {
  (void)bcsi_lock_range(store->lock_fd, BEATS, 0, F_UNLCK, F_OFD_SETLK);
}
