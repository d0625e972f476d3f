/* One batch, one transaction.
 *
 * Order, and why:
 *   1. the write lock; 2. the transaction; 3. lines that a dead writer left odd are mended;
 *   4. the intent names what will be published: debris of a kill can be found;
 *   5. each write is applied: files are renamed into place before the row that refers to them is written, so a row
 *      never stands without its file; only here are files published, and (bcs_sweep_trash) unlinked, so that a removal
 *      cannot delete a newer copy of the same content;
 *   6. lines go odd: a memory tier of any process asks the index from now on; 7. commit; 8. lines go even;
 *   9. the intent is cleared.
 * A write whose own steps fail (no space for its file, a file that is gone) gets its status and changes nothing; an
 * error of LMDB ends the whole transaction, and every write with it. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct batch {
  bcs_store *store;
  MDB_txn *txn;
  bcsi_totals totals;
  bool cleared;                 /* a removal of everything is in it */
  bool folders[256];            /* durable: published into, to be synced before the commit */
  uint8_t (*published)[BCS_DIGEST_SIZE];
  size_t published_count;
  uint32_t *lines;              /* touched, for the mark */
  size_t line_count;
  uint32_t *freed;              /* given back at the end: a line is not used twice in one batch */
  size_t freed_count;
  bcs_write *const *writes;     /* those before the one that is applied */
  size_t applied;
} batch;

static bool same_identity(const bcsi_identity *a, const bcsi_identity *b) {
  return a->device == b->device && a->inode == b->inode && a->size == b->size && a->change_ns == b->change_ns;
}

static bool is_put(const bcs_write *write) {
  return write->kind == BCSI_PUT_INLINE || write->kind == BCSI_PUT_STAGED || write->kind == BCSI_PUT_SHARED;
}

/* ---- rows */

static int find(batch *b, const uint8_t key_hash[BCS_HASH_SIZE], bcsi_record *out, bool *found, bool *unreadable) {
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash}, value;
  int rc = mdb_get(b->txn, b->store->index.entries, &key, &value);
  *found = *unreadable = false;
  if (rc == MDB_NOTFOUND) return 0;
  if (rc != 0) return rc;
  /* A record that cannot be read is damage: it is replaced like none. Its line is lost until the table is rebuilt. */
  *found = bcsi_record_decode(value.mv_data, value.mv_size, out);
  *unreadable = !*found;
  memcpy(out->view.key_hash, key_hash, BCS_HASH_SIZE);
  return 0;
}

static int digest_row(batch *b, const uint8_t *digest, const uint8_t *key_hash, bool add) {
  return bcsi_digest_note(b->store, b->txn, &b->totals, digest, key_hash, add);
}

static int trash_row(batch *b, const uint8_t *digest, bool add) {
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest}, value = {0, NULL};
  int rc = add ? mdb_put(b->txn, b->store->index.trash, &key, &value, 0)
               : mdb_del(b->txn, b->store->index.trash, &key, NULL);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* One use less of a blob file; the last one sends it to the trash. */
static int drop_use(batch *b, const uint8_t *digest) {
  bcsi_blob_row row;
  int rc;
  if (!bcsi_blob_row_get(b->store, b->txn, digest, &row, &rc)) return rc;
  if (row.uses > 1) {
    row.uses--;
    return bcsi_blob_row_put(b->store, b->txn, digest, &row);
  }
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest};
  rc = mdb_del(b->txn, b->store->index.blobs, &key, NULL);
  if (rc == 0) rc = trash_row(b, digest, true);
  b->totals.blob_files -= b->totals.blob_files > 0;
  b->totals.blob_bytes -= row.size < b->totals.blob_bytes ? row.size : b->totals.blob_bytes;
  b->totals.blob_allocated -= row.allocated < b->totals.blob_allocated ? row.allocated : b->totals.blob_allocated;
  return rc;
}

/* What an entry holds besides its row and its line. */
static int drop_content(batch *b, const bcsi_record *old) {
  if (old->view.is_file) return drop_use(b, old->view.digest);
  b->totals.inline_bytes -= old->view.size < b->totals.inline_bytes ? old->view.size : b->totals.inline_bytes;
  return 0;
}

/* ---- lines */

static int take_free_line(batch *b, uint32_t *line, bool *found) {
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(b->txn, b->store->index.free_slots, &cursor);
  if (rc != 0) return rc;
  rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
  *found = rc == 0 && key.mv_size == sizeof *line;
  if (*found) {
    memcpy(line, key.mv_data, sizeof *line);
    rc = mdb_cursor_del(cursor, 0);
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Lines of this batch's removals, once all of it is applied. */
static int give_back_line(batch *b, uint32_t line);
static int give_back_freed(batch *b) {
  int rc = 0;
  for (size_t i = 0; rc == 0 && i < b->freed_count; i++) rc = give_back_line(b, b->freed[i]);
  return rc;
}

static int give_back_line(batch *b, uint32_t line) {
  MDB_val key = {sizeof line, &line}, value = {0, NULL};
  return mdb_put(b->txn, b->store->index.free_slots, &key, &value, 0);
}

/* The line's generation once this batch is committed. Two writes of one key in a batch count on from each other. */
static void plan_line(batch *b, bcs_write *write, uint32_t line, uint64_t base) {
  write->slot = line;
  write->touched = true;
  write->old_generation = base;
  write->new_generation = (base | 1) + 3;
  b->lines[b->line_count++] = line;
}

/* ---- publishing */

static bool was_published(const batch *b, const uint8_t *digest) {
  for (size_t i = 0; i < b->published_count; i++)
    if (memcmp(b->published[i], digest, BCS_DIGEST_SIZE) == 0) return true;
  return false;
}

/* Makes sure that a good file stands under the digest: one that this batch published, one whose bytes were hashed when
 * the write was prepared and that is the same since, or else the staged one, which replaces whatever is there. */
static bcs_status place_file(batch *b, bcs_write *write, const uint8_t *digest, uint64_t size, bcsi_blob_row *row,
                             int *rc) {
  bcs_store *store = b->store;
  struct stat st;
  bool known = bcsi_blob_row_get(store, b->txn, digest, row, rc);
  if (*rc != 0) return BCS_OK;
  bcs_status status = bcsi_blob_stat(store, digest, &st);
  if (status != BCS_OK && status != BCS_MISS && status != BCS_DAMAGED) return status;
  bool there = status == BCS_OK && (uint64_t)st.st_size == size;
  if (there && !was_published(b, digest)) {
    bcsi_identity identity;
    bcsi_identify(&st, &identity);
    there = write->is_trusted && same_identity(&identity, &write->trusted);
  }
  if (!there) {
    if (!write->stage || write->stage->published) return BCS_NEED_BODY;
    status = bcsi_blob_publish(store, write->stage->name, digest);
    if (status != BCS_OK) return status;
    write->stage->published = true;
    memcpy(b->published[b->published_count++], digest, BCS_DIGEST_SIZE);
    b->folders[digest[0]] = true;
    status = bcsi_blob_stat(store, digest, &st);
    if (status != BCS_OK) return status == BCS_MISS || status == BCS_DAMAGED ? BCS_NEED_BODY : status;
  }
  if (!known) {
    row->uses = 0;
    row->size = size;
    row->allocated = (uint64_t)st.st_blocks * 512;
    b->totals.blob_files++;
    b->totals.blob_bytes += size;
    b->totals.blob_allocated += row->allocated;
  }
  row->uses++;
  *rc = bcsi_blob_row_put(store, b->txn, digest, row);
  if (*rc == 0 && !known) *rc = trash_row(b, digest, false);
  return BCS_OK;
}

/* ---- applying. Returns an LMDB code, which ends the batch; the write's own trouble goes into its result. */

static int fail_write(bcs_write *write, bcs_status status) {
  write->result = status;
  if (status == BCS_NEED_BODY) (void)bcsi_fail(status, 0, "store", NULL, NULL);
  bcs_last_error(&write->error);
  return 0;
}

static int apply_put(batch *b, bcs_write *write) {
  bcs_store *store = b->store;
  bcsi_record old, made;
  bool replaces, unreadable, has_line = false;
  int rc = find(b, write->key_hash, &old, &replaces, &unreadable);
  if (rc != 0) return rc;
  if (!bcsi_record_decode(write->record, write->record_count, &made))
    return fail_write(write, bcsi_fail(BCS_INVALID, 0, "store", NULL, NULL));
  uint32_t line = 0;
  if (replaces) {
    line = old.view.slot;
    has_line = bcsi_slots_has(store, line);
  }
  bool fresh = !has_line, reused = false;
  if (fresh) {
    rc = take_free_line(b, &line, &reused);
    if (rc != 0) return rc;
    if (!reused) line = (uint32_t)b->totals.slots_used;
    bcs_status status = bcsi_slots_reserve(store, line);
    if (status != BCS_OK) {
      if (reused && (rc = give_back_line(b, line)) != 0) return rc;
      return fail_write(write, status);
    }
  }
  if (made.view.is_file) {
    bcsi_blob_row row;
    bcs_status status = place_file(b, write, made.view.digest, made.view.size, &row, &rc);
    if (rc != 0) return rc;
    if (status != BCS_OK) {
      if (reused && (rc = give_back_line(b, line)) != 0) return rc;
      return fail_write(write, status);
    }
  }
  if (fresh && !reused) b->totals.slots_used = (uint64_t)line + 1;
  bool same_digest = replaces && memcmp(old.view.digest, made.view.digest, BCS_DIGEST_SIZE) == 0;
  uint64_t base = bcsi_slots_generation(store, line);
  if (replaces) {
    if (old.view.generation > base) base = old.view.generation;
    bcsi_record kept = old; /* its bytes may move with the next put */
    uint8_t old_digest[BCS_DIGEST_SIZE];
    memcpy(old_digest, old.view.digest, sizeof old_digest);
    rc = drop_content(b, &kept);
    if (rc == 0 && !same_digest) rc = digest_row(b, old_digest, write->key_hash, false);
    if (rc != 0) return rc;
  }
  plan_line(b, write, line, base);
  bcsi_record_place(write->record, line, write->new_generation);
  MDB_val key = {BCS_HASH_SIZE, write->key_hash}, value = {write->record_count, write->record};
  rc = mdb_put(b->txn, store->index.entries, &key, &value, 0);
  if (rc == 0 && !same_digest) rc = digest_row(b, made.view.digest, write->key_hash, true);
  if (rc != 0) return rc;
  if (!replaces && !unreadable) b->totals.entries++; /* an unreadable one is counted already */
  if (!made.view.is_file) b->totals.inline_bytes += made.view.size;
  write->access_ms = made.view.written_ms;
  write->hits = 0;
  write->result = BCS_OK;
  return 0;
}

static int delete_found(batch *b, bcs_write *write, bcsi_record *old) {
  uint8_t digest[BCS_DIGEST_SIZE];
  uint32_t line = old->view.slot;
  uint64_t base = old->view.generation;
  memcpy(digest, old->view.digest, sizeof digest);
  int rc = drop_content(b, old);
  if (rc == 0) rc = digest_row(b, digest, write->key_hash, false);
  MDB_val key = {BCS_HASH_SIZE, write->key_hash};
  if (rc == 0) rc = mdb_del(b->txn, b->store->index.entries, &key, NULL);
  if (rc != 0) return rc;
  b->totals.entries -= b->totals.entries > 0;
  if (bcsi_slots_has(b->store, line)) {
    uint64_t now = bcsi_slots_generation(b->store, line);
    plan_line(b, write, line, now > base ? now : base);
    write->freed = true;
    b->freed[b->freed_count++] = line;
  }
  write->result = BCS_OK;
  return rc;
}

static int apply_remove(batch *b, bcs_write *write) {
  bcsi_record old;
  bool found, unreadable;
  int rc = find(b, write->key_hash, &old, &found, &unreadable);
  if (rc != 0) return rc;
  if (!found) { /* gone, or a row that cannot be read: that goes too */
    MDB_val key = {BCS_HASH_SIZE, write->key_hash};
    rc = mdb_del(b->txn, b->store->index.entries, &key, NULL);
    write->result = rc == 0 ? BCS_OK : BCS_MISS;
    if (rc == 0) b->totals.entries -= b->totals.entries > 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
  }
  if (write->kind != BCSI_REMOVE && old.view.generation != write->generation) {
    write->result = BCS_STALE_WRITE;
    return 0;
  }
  return delete_found(b, write, &old);
}

/* The damaged entry goes. Its file goes to quarantine, unless it is not the file that was found bad: then somebody has
 * put a good one there since. */
static int apply_heal(batch *b, bcs_write *write) {
  const bcs_damage *damage = &write->damage;
  if (damage->is_file) {
    struct stat st;
    bcs_status status = bcsi_blob_stat(b->store, damage->digest, &st);
    bcsi_identity now = {0};
    if (status == BCS_OK) bcsi_identify(&st, &now);
    bool same = now.device == damage->device && now.inode == damage->inode &&
                (status == BCS_MISS || now.change_ns == damage->change_ns);
    if (status == BCS_DAMAGED) same = true; /* not a regular file: it stays where it is, the entry goes */
    if (!same) {
      write->result = BCS_STALE_WRITE;
      return 0;
    }
    if (status == BCS_OK) {
      status = bcsi_blob_quarantine(b->store, damage->digest);
      if (status != BCS_OK) return fail_write(write, status);
    }
  }
  return apply_remove(b, write);
}

static int apply_renew(batch *b, bcs_write *write) {
  bcsi_record old, wish;
  bool found, unreadable;
  int rc = find(b, write->key_hash, &old, &found, &unreadable);
  if (rc != 0) return rc;
  if (!found || (write->generation != 0 && old.view.generation != write->generation)) {
    write->result = found ? BCS_STALE_WRITE : BCS_MISS;
    return 0;
  }
  if (!bcsi_record_decode(write->record, write->record_count, &wish))
    return fail_write(write, bcsi_fail(BCS_INVALID, 0, "renew", NULL, NULL));
  const uint8_t *attributes = write->has_attributes ? wish.view.attributes : old.view.attributes;
  size_t attributes_count = write->has_attributes ? wish.view.attributes_count : old.view.attributes_count;
  size_t body_count = old.view.is_file ? 0 : (size_t)old.view.size;
  size_t count = BCSI_RECORD_HEAD + old.view.key_count + attributes_count + body_count;
  uint8_t *made = malloc(count);
  if (!made) return fail_write(write, bcsi_fail(BCS_NO_MEMORY, ENOMEM, "renew", NULL, NULL));
  bcs_record head = old.view;
  head.lifetime = wish.view.lifetime;
  head.written_ms = wish.view.written_ms;
  head.attributes_count = attributes_count;
  bcsi_record_encode_head(made, &head);
  uint8_t *at = made + BCSI_RECORD_HEAD;
  memcpy(at, old.view.key, old.view.key_count);
  at += old.view.key_count;
  if (attributes_count) memcpy(at, attributes, attributes_count);
  at += attributes_count;
  if (body_count) memcpy(at, old.body, body_count);
  bcs_status sealed = bcsi_record_seal(made, old.view.key_count, attributes_count);
  if (sealed != BCS_OK) {
    free(made);
    return fail_write(write, sealed);
  }
  uint32_t line = old.view.slot;
  uint64_t generation = old.view.generation;
  if (bcsi_slots_has(b->store, line)) {
    uint64_t now = bcsi_slots_generation(b->store, line);
    bcsi_slots_read_access(b->store, &old.view);
    write->hits = old.view.hits;
    plan_line(b, write, line, now > generation ? now : generation);
    generation = write->new_generation;
  }
  bcsi_record_place(made, line, generation);
  free(write->record);
  write->record = made;
  write->record_count = count;
  write->key_count = old.view.key_count;
  write->attributes_count = attributes_count;
  write->access_ms = wish.view.written_ms;
  MDB_val key = {BCS_HASH_SIZE, write->key_hash}, value = {count, made};
  rc = mdb_put(b->txn, b->store->index.entries, &key, &value, 0);
  write->result = BCS_OK;
  return rc;
}

/* Every file goes to the trash at once, in the order of digests, so that pages fill one after another. */
static int apply_clear(batch *b, bcs_write *write) {
  bcsi_index *index = &b->store->index;
  MDB_cursor *from;
  MDB_val key, value;
  int rc = mdb_cursor_open(b->txn, index->blobs, &from);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(from, &key, &value, MDB_NEXT)) == 0) {
    rc = trash_row(b, key.mv_data, true);
    if (rc != 0) break;
  }
  mdb_cursor_close(from);
  if (rc != MDB_NOTFOUND) return rc;
  rc = mdb_drop(b->txn, index->entries, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->digests, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->recent, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->blobs, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->free_slots, 0);
  if (rc != 0) return rc;
  bcsi_totals empty = {0};
  memcpy(empty.store_id, b->totals.store_id, sizeof empty.store_id);
  empty.recent_next = b->totals.recent_next;
  b->totals = empty;
  /* What came before it in the batch is gone with the rest, and its lines may be handed out again. */
  for (size_t i = 0; i < b->applied; i++) b->writes[i]->touched = false;
  b->freed_count = b->line_count = 0;
  b->cleared = true;
  write->result = BCS_OK;
  return 0;
}

static int apply(batch *b, bcs_write *write) {
  write->touched = write->freed = false;
  memset(&write->error, 0, sizeof write->error);
  switch (write->kind) {
    case BCSI_PUT_INLINE: case BCSI_PUT_STAGED: case BCSI_PUT_SHARED: return apply_put(b, write);
    case BCSI_REMOVE: case BCSI_REMOVE_IF: return apply_remove(b, write);
    case BCSI_RENEW: return apply_renew(b, write);
    case BCSI_HEAL: return apply_heal(b, write);
    case BCSI_CLEAR: return apply_clear(b, write);
  }
  return EINVAL;
}

/* ---- lines before and after */

/* All lines that a removal of everything frees, and that no write names, keep their generation: they are above the used
 * count, and whoever is given one counts on from it. What coherence needs of them the epoch tells. */
static void lines_before(batch *b, bcs_write *const *writes, size_t count) {
  bcs_store *store = b->store;
  if (b->cleared) bcsi_slots_epoch(store, true);
  bcsi_slots_mark(store, b->lines, b->line_count);
  for (size_t i = 0; i < count; i++) {
    bcs_write *write = writes[i];
    if (!write->touched) continue;
    bcsi_slots_save(store, write->slot, write->line_before);
    bcsi_slots_set_generation(store, write->slot, write->new_generation - 1);
    /* The hash leads a mender from the line to the record, so it stands there before the commit. */
    if (!write->freed) {
      bcs_record record;
      bcs_write_record(write, &record);
      bcsi_slots_fill(store, &record, write->access_ms, write->hits);
    }
  }
}

static void lines_after(batch *b, bcs_write *const *writes, size_t count) {
  bcs_store *store = b->store;
  for (size_t i = 0; i < count; i++) {
    bcs_write *write = writes[i];
    if (!write->touched) continue;
    if (write->freed) bcsi_slots_empty(store, write->slot, write->new_generation);
    else bcsi_slots_set_generation(store, write->slot, write->new_generation);
  }
  bcsi_slots_publish_totals(store, &b->totals);
  if (b->cleared) bcsi_slots_epoch(store, false);
  bcsi_slots_unmark(store);
}

/* Reads what the newest committed record of each line says, and makes the line even accordingly. */
static bcs_status mend_line(bcs_store *store, MDB_txn *txn, uint32_t line, const bcsi_totals *totals) {
  if (!bcsi_slots_has(store, line)) return BCS_OK;
  uint64_t generation = bcsi_slots_generation(store, line);
  uint8_t hash[BCS_HASH_SIZE];
  bcsi_slots_hash(store, line, hash);
  MDB_val key = {sizeof hash, hash}, value;
  bcsi_record record;
  int rc = mdb_get(txn, store->index.entries, &key, &value);
  if (rc != 0 && rc != MDB_NOTFOUND) return bcsi_fail_lmdb(rc, "mend", store->index.path);
  if (rc == 0 && line < totals->slots_used && bcsi_record_decode(value.mv_data, value.mv_size, &record) &&
      record.view.slot == line) {
    memcpy(record.view.key_hash, hash, sizeof hash);
    /* What the dead writer left as the access time is no earlier than the last access was. */
    int64_t access = bcsi_slots_access_ms(store, line);
    if (access < record.view.written_ms) access = record.view.written_ms;
    bcsi_slots_fill(store, &record.view, access, 0);
    bcsi_slots_set_generation(store, line, record.view.generation);
  } else {
    bcsi_slots_empty(store, line, (generation | 1) + 1);
  }
  return BCS_OK;
}

bcs_status bcsi_repair_marked(bcs_store *store, MDB_txn *txn) {
  enum { CAPACITY = 8192 };
  bool all;
  uint32_t *lines = malloc(CAPACITY * sizeof *lines);
  if (!lines) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "mend", store->info.path, NULL);
  size_t count = bcsi_slots_marked(store, lines, CAPACITY, &all);
  bcs_status status = BCS_OK;
  if (count > 0 || all) {
    bcsi_totals totals;
    status = bcsi_totals_get(store, txn, &totals);
    for (size_t i = 0; status == BCS_OK && i < count; i++) status = mend_line(store, txn, lines[i], &totals);
    if (all)
      for (uint32_t line = 0; status == BCS_OK && bcsi_slots_has(store, line); line++)
        if (bcsi_slots_generation(store, line) & 1) status = mend_line(store, txn, line, &totals);
    if (status == BCS_OK) {
      bcsi_slots_publish_totals(store, &totals);
      bcsi_slots_epoch(store, false);
      bcsi_slots_unmark(store);
    }
  }
  free(lines);
  return status;
}

/* ---- the batch */

/* The transaction failed: what it published goes back to staging where no row refers to it, so that the batch can be
 * tried again, or its stages be given up. In a write transaction, so that nobody publishes the same content meanwhile;
 * nothing is written by it. */
static void take_back_published(batch *b, bcs_write *const *writes, size_t count) {
  bcs_store *store = b->store;
  MDB_txn *txn;
  if (b->published_count == 0) return;
  if (bcsi_write_begin(store, &txn) != BCS_OK) {
    bcsi_intent_abandon(store); /* the next open finds it there */
    return;
  }
  bool all_back = true;
  for (size_t i = 0; i < count; i++) {
    bcs_stage *stage = writes[i]->stage;
    if (!stage || !stage->published) continue;
    bcsi_blob_row row;
    int rc;
    char name[BCSI_NAME_MAX];
    bcsi_blob_name(stage->digest, name);
    if (bcsi_blob_row_get(store, txn, stage->digest, &row, &rc)) continue; /* in use by others, and good */
    if (rc == 0 && renameat(store->blobs_fd, name, store->staging_fd, stage->name) == 0) stage->published = false;
    else all_back = false;
  }
  bcsi_write_abort(store, txn);
  if (!all_back) bcsi_intent_abandon(store);
}

/* Nothing changed, so each line says again what it said; the last write of a line first. */
static void lines_taken_back(batch *b, bcs_write *const *writes, size_t count) {
  for (size_t i = count; i-- > 0;)
    if (writes[i]->touched) bcsi_slots_restore(b->store, writes[i]->slot, writes[i]->line_before);
  if (b->cleared) bcsi_slots_epoch(b->store, false);
  bcsi_slots_unmark(b->store);
}

static bcs_status write_intent(batch *b, bcs_write *const *writes, size_t count) {
  size_t staged = 0;
  for (size_t i = 0; i < count; i++)
    if (writes[i]->stage) memcpy(b->published[staged++], writes[i]->stage->digest, BCS_DIGEST_SIZE);
  if (staged == 0) return BCS_OK;
  return bcsi_intent_write(b->store, (const uint8_t(*)[BCS_DIGEST_SIZE])b->published, staged);
}

/* One try. BCS_INDEX with MDB_MAP_FULL in *rc: grow and try again. */
static bcs_status try_batch(batch *b, bcs_write *const *writes, size_t count, bool puts, int *lmdb) {
  bcs_store *store = b->store;
  *lmdb = 0;
  b->cleared = false;
  b->published_count = b->line_count = b->freed_count = 0;
  b->writes = writes;
  memset(b->folders, 0, sizeof b->folders);
  bcs_status status = bcsi_write_begin(store, &b->txn);
  if (status != BCS_OK) return status;
  status = bcsi_repair_marked(store, b->txn);
  if (status == BCS_OK) status = bcsi_totals_get(store, b->txn, &b->totals);
  if (status == BCS_OK && puts) status = write_intent(b, writes, count);
  int rc = 0;
  for (b->applied = 0; status == BCS_OK && rc == 0 && b->applied < count; b->applied++)
    if (puts || !is_put(writes[b->applied])) rc = apply(b, writes[b->applied]);
  if (status == BCS_OK && rc == 0) rc = give_back_freed(b);
  if (status == BCS_OK && rc == 0) rc = bcsi_digest_merge(store, b->txn, &b->totals, false);
  if (status == BCS_OK && rc == 0) rc = bcsi_totals_put(store, b->txn, &b->totals);
  if (status == BCS_OK && rc == 0 && store->durable)
    for (int i = 0; status == BCS_OK && i < 256; i++)
      if (b->folders[i]) status = bcsi_blob_sync_folder(store, (uint8_t)i);
  if (status == BCS_OK && rc == 0) {
    lines_before(b, writes, count);
    rc = bcsi_fault("before-commit");
    if (rc != 0) bcsi_write_abort(store, b->txn);
    else rc = bcsi_write_commit(store, b->txn);
    if (rc == 0) {
      (void)bcsi_fault("after-commit");
      lines_after(b, writes, count);
      (void)bcsi_fault("slots");
      return BCS_OK;
    }
    status = bcsi_fail_lmdb(rc, "commit", store->index.path);
    bcs_error error;
    bcs_last_error(&error);
    lines_taken_back(b, writes, count);
    bcsi_repeat(&error);
  } else {
    bcsi_write_abort(store, b->txn);
    if (rc != 0) status = bcsi_fail_lmdb(rc, "write", store->index.path);
  }
  bcs_error error;
  bcs_last_error(&error);
  take_back_published(b, writes, count);
  *lmdb = rc;
  return bcsi_repeat(&error);
}

static bcs_status commit_locked(bcs_store *store, bcs_write *const *writes, size_t count) {
  batch b = {.store = store};
  b.published = malloc((count + 1) * sizeof *b.published);
  b.lines = malloc((count + 1) * sizeof *b.lines);
  b.freed = malloc((count + 1) * sizeof *b.freed);
  bcs_status status = BCS_OK;
  if (!b.published || !b.lines || !b.freed) status = bcsi_fail(BCS_NO_MEMORY, ENOMEM, "commit", store->info.path, NULL);
  bool puts = true;
  while (status == BCS_OK) {
    int lmdb;
    status = try_batch(&b, writes, count, puts, &lmdb);
    if (status == BCS_OK) break;
    bcs_error error;
    bcs_last_error(&error);
    if (lmdb == MDB_MAP_FULL) {
      status = bcsi_index_grow(store);
      if (status == BCS_OK) continue;
      bcs_last_error(&error);
    }
    for (size_t i = 0; i < count; i++) {
      if (!puts && is_put(writes[i])) continue;
      writes[i]->result = status;
      writes[i]->error = error;
      writes[i]->touched = false;
    }
    /* On a full disk removals are what helps: they are not to fail with the stores beside them. */
    bool mixed = false;
    for (size_t i = 0; i < count; i++)
      if (!is_put(writes[i])) mixed = true;
    if (status == BCS_NO_SPACE && puts && mixed) {
      for (size_t i = 0; i < count; i++) writes[i]->touched = false;
      puts = false;
      status = BCS_OK;
      continue;
    }
    break;
  }
  bcsi_intent_clear(store);
  free(b.published);
  free(b.lines);
  free(b.freed);
  return status;
}

bcs_status bcs_commit(bcs_store *store, bcs_write *const *writes, size_t count, bool try_only) {
  bcs_status status = bcsi_call_enter(store);
  if (status == BCS_OK) {
    status = bcsi_writer_lock(store, try_only);
    if (status == BCS_OK) {
      status = commit_locked(store, writes, count);
      bcsi_writer_unlock(store);
      bcsi_call_leave(store);
      return status;
    }
    bcsi_call_leave(store);
  }
  if (status == BCS_BUSY) return status;
  for (size_t i = 0; i < count; i++) {
    writes[i]->result = status;
    bcs_last_error(&writes[i]->error);
  }
  return status;
}

bcs_status bcs_sweep_trash(bcs_store *store, size_t limit, bool *more) {
  *more = false;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) {
    bcsi_call_leave(store);
    return status;
  }
  MDB_txn *txn;
  status = bcsi_write_begin(store, &txn);
  if (status == BCS_OK) {
    MDB_cursor *cursor;
    MDB_val key, value;
    size_t gone = 0;
    bcs_error first = {0}; /* of a file that cannot be unlinked: it stays, and the sweep goes on behind it */
    int rc = bcsi_fault("trash");
    if (rc == 0) rc = mdb_cursor_open(txn, store->index.trash, &cursor);
    if (rc == 0) {
      while (status == BCS_OK && (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
        if (gone == limit) {
          *more = true;
          break;
        }
        bcsi_blob_row row;
        uint8_t digest[BCS_DIGEST_SIZE];
        bool sane = key.mv_size == sizeof digest;
        if (sane) memcpy(digest, key.mv_data, sizeof digest);
        if (sane && !bcsi_blob_row_get(store, txn, digest, &row, &rc) && rc == 0)
          status = bcsi_blob_unlink(store, digest);
        if (status != BCS_OK && rc == 0) {
          if (first.status == BCS_OK) bcs_last_error(&first);
          status = BCS_OK;
          continue;
        }
        if (rc == 0) rc = mdb_cursor_del(cursor, 0);
        if (rc != 0) break;
        gone++;
      }
      mdb_cursor_close(cursor);
    }
    if (rc == MDB_NOTFOUND) rc = 0;
    if (status == BCS_OK && rc == 0 && gone > 0) rc = bcsi_write_commit(store, txn);
    else bcsi_write_abort(store, txn);
    if (status == BCS_OK && rc != 0) status = bcsi_fail_lmdb(rc, "sweep", store->index.path);
    else if (status == BCS_OK && first.status != BCS_OK && !*more) status = bcsi_repeat(&first);
  }
  bcsi_writer_unlock(store);
  bcsi_call_leave(store);
  return status;
}
