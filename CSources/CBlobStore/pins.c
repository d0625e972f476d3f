/* Pins: read transactions through which nobody reads, which keep the pages of checkpoints from being used again; see
 * checkpoint.c. All of this is under the write lock.
 *
 * A pin is told to the other processes by a number: its holder keeps a lock on that byte of LOCK, and the table's head
 * names the number of the settled checkpoint's. */
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PIN_NUMBERS = 4096 };
static const off_t PINS = (off_t)1 << 24; /* bytes of LOCK, behind those of lock.c and before those of lease.c */

/* ---- LMDB's table of readers */

/* The table of readers as LMDB 0.9 has it in lock.mdb, which it maps. mdb.c: MDB_txninfo, MDB_reader. */
typedef struct reader_row {
  _Atomic uint64_t transaction; /* all ones: it rests */
  _Atomic int32_t pid;
  uint8_t rest[64 - 12];
} reader_row;
enum { READERS_AT = 128, COUNT_AT = 56 };

static bool note_table(void *from, size_t size, uint64_t offset, void *context) {
  bcs_store *store = context;
  if (offset != 0 || size < READERS_AT + sizeof(reader_row)) return false;
  store->reader_table = from;
  store->reader_table_size = size;
  return true;
}

static reader_row *reader_table(bcs_store *store, uint32_t *count) {
  if (!store->reader_table) {
    char path[4300];
    bcsi_join(store->index.path, "lock.mdb", path, sizeof path);
    bcsi_each_mapping(path, note_table, store);
    if (!store->reader_table) return NULL;
  }
  uint8_t *table = store->reader_table;
  uint32_t magic;
  memcpy(&magic, table, sizeof magic);
  memcpy(count, table + COUNT_AT, sizeof *count);
  if (magic != 0xBEEFC0DE || READERS_AT + (uint64_t)*count * sizeof(reader_row) > store->reader_table_size) return NULL;
  return (reader_row *)(void *)(table + READERS_AT);
}

/* While every other reader of this process rests, the one that sees this transaction is the pin. 0: not found, and then
 * a pin of a process that stands still stays where it is. */
static uint32_t find_row(bcs_store *store, uint64_t transaction) {
  uint32_t count, found = 0;
  reader_row *rows = reader_table(store, &count);
  for (uint32_t i = 0; rows && i < count; i++) {
    if (atomic_load(&rows[i].pid) != getpid() || atomic_load(&rows[i].transaction) != transaction) continue;
    if (found != 0) return 0;
    found = i + 1;
  }
  return found;
}

/* Of another process, and only the pin that the table's head named. */
void bcsi_pin_take_out(bcs_store *store, uint32_t row, uint64_t transaction) {
  uint32_t count;
  reader_row *rows = reader_table(store, &count);
  if (rows && row > 0 && row <= count)
    atomic_compare_exchange_strong(&rows[row - 1].transaction, &transaction, UINT64_MAX);
}

static bool lock_number(bcs_store *store, uint32_t number) {
  return bcsi_lock_range(store->lock_fd, PINS + number, 1, F_WRLCK, F_OFD_SETLK) == 0;
}

/* ---- taking and releasing */

/* Both at once, and once in the life of an environment, while nobody reads, so that their rows can be told from those of
 * lookups. They rest until they are taken. */
static int make_both(bcs_store *store) {
  int rc = 0;
  for (int i = 0; rc == 0 && i < 2; i++) {
    bcsi_pin *pin = &store->pins[i];
    if (pin->txn) continue;
    if ((rc = bcsi_begin_at_open(store, MDB_RDONLY, &pin->txn)) != 0) pin->txn = NULL;
    if (rc != 0) break;
    MDB_stat tree;
    rc = mdb_stat(pin->txn, store->index.meta, &tree);
    if (rc == 0) pin->page_size = tree.ms_psize;
    pin->row = find_row(store, mdb_txn_id(pin->txn));
    mdb_txn_reset(pin->txn);
  }
  return rc;
}

/* By the open, as readers are registered, and for the same reason. Where it cannot be done, a checkpoint tries again. */
void bcsi_pins_prepare(bcs_store *store) {
  if (!store->durable) (void)make_both(store);
}

/* The gate is closed for a moment. */
static bcs_status make_pins(bcs_store *store) {
  pthread_mutex_lock(&store->index.transaction);
  if (!bcsi_gate_close(&store->index)) {
    pthread_mutex_unlock(&store->index.transaction);
    return bcsi_fail(BCS_CLOSED, 0, "checkpoint", store->index.path, NULL);
  }
  int rc = make_both(store);
  bcsi_gate_open(&store->index);
  pthread_mutex_unlock(&store->index.transaction);
  return rc == 0 ? BCS_OK : bcsi_fail_lmdb(rc, "checkpoint", store->index.path);
}

/* A lookup that meets a broken environment replaces it, and the pins with it: not meanwhile. */
static int try_renew(bcs_store *store, bcsi_pin *pin) {
  pthread_mutex_lock(&store->index.transaction);
  int rc = pin->txn ? mdb_txn_renew(pin->txn) : EINVAL;
  if (rc == 0) pin->transaction = mdb_txn_id(pin->txn);
  if (rc == EINVAL || rc == MDB_BAD_RSLOT) { /* its row was taken for that of a dead process */
    if (pin->txn) mdb_txn_abort(pin->txn);
    pin->txn = NULL;
  }
  pthread_mutex_unlock(&store->index.transaction);
  return rc;
}

/* Another process may have made the map larger, or the environment is broken: a lookup mends that. */
static int renew(bcs_store *store, bcsi_pin *pin) {
  int rc = try_renew(store, pin);
  if (rc != MDB_MAP_RESIZED && rc != MDB_PANIC) return rc;
  bcsi_reader *reader;
  if (bcsi_reader_enter(store, &reader) != BCS_OK) return rc;
  bcsi_reader_leave(reader);
  return try_renew(store, pin);
}

static void rest(bcs_store *store, bcsi_pin *pin) {
  pthread_mutex_lock(&store->index.transaction);
  if (pin->txn) mdb_txn_reset(pin->txn);
  pthread_mutex_unlock(&store->index.transaction);
}

/* Not by the number of the settled pin: while its lock is held, that one is taken to be there. */
bcs_status bcsi_pin_take(bcs_store *store, bcsi_pin *pin) {
  int rc = renew(store, pin);
  if (rc == EINVAL || rc == MDB_BAD_RSLOT) {
    bcs_status status = make_pins(store);
    if (status != BCS_OK) return status;
    rc = renew(store, pin);
  }
  if (rc != 0) return bcsi_fail_lmdb(rc, "checkpoint", store->index.path);
  for (uint32_t number = 1; number <= PIN_NUMBERS; number++) {
    if (number == load(&head_of(store)->checkpoint_pin) || store->pins[0].number == number ||
        store->pins[1].number == number || !lock_number(store, number))
      continue;
    (void)bcsi_fault("pin");
    pin->number = number;
    return BCS_OK;
  }
  rest(store, pin);
  return bcsi_fail(BCS_BUSY, 0, "checkpoint", store->index.path, NULL);
}

void bcsi_pin_release(bcs_store *store, bcsi_pin *pin) {
  if (pin->number == 0) return;
  rest(store, pin);
  (void)bcsi_lock_range(store->lock_fd, PINS + pin->number, 1, F_UNLCK, F_OFD_SETLK);
  pin->number = 0;
}

/* Those of checkpoints before the settled one, or of the same state by another pin. */
void bcsi_pins_release_older(bcs_store *store) {
  for (int i = 0; i < 2; i++)
    if (!store->pins[i].is_draft && store->pins[i].number != load(&head_of(store)->checkpoint_pin))
      bcsi_pin_release(store, &store->pins[i]);
}

bcsi_pin *bcsi_pin_free(bcs_store *store) {
  bcsi_pins_release_older(store);
  for (int i = 0; i < 2; i++)
    if (store->pins[i].number == 0) return &store->pins[i];
  return NULL;
}

bool bcsi_pin_is_held(bcs_store *store) {
  uint32_t number = (uint32_t)load(&head_of(store)->checkpoint_pin);
  for (int i = 0; i < 2; i++)
    if (number != 0 && store->pins[i].number == number) return store->pins[i].transaction == load(&head_of(store)->checkpoint);
  return number != 0 && number <= PIN_NUMBERS && bcsi_lock_of_other(store->lock_fd, PINS + number) != 0;
}

/* The environment goes, and its readers with it. Under the write lock where that is free: a writer of another process
 * may just rely on the pin. */
void bcsi_pins_drop(bcs_store *store) {
  for (int i = 0; i < 2; i++) {
    bcsi_pin *pin = &store->pins[i];
    if (pin->number != 0) (void)bcsi_lock_range(store->lock_fd, PINS + pin->number, 1, F_UNLCK, F_OFD_SETLK);
    if (pin->txn) mdb_txn_abort(pin->txn);
    memset(pin, 0, sizeof *pin);
  }
  store->reader_table = NULL;
}
