/* Applying a write: what one store, removal or renewal changes, inside the batch's transaction.
 *
 * A file is renamed into place before the row that refers to it is written, so a row never stands without its file;
 * only here are files published, and (bcs_sweep_trash) unlinked, so that a removal cannot delete a newer copy of the
 * same content. A write whose own steps fail (no space for its file, a file that is gone) gets its status and changes
 * nothing; an error of LMDB is returned, and ends the whole batch. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool same_identity(const bcsi_identity *a, const bcsi_identity *b) {
  return a->device == b->device && a->inode == b->inode && a->size == b->size && a->change_ns == b->change_ns;
}

/* ---- rows */

static bool decode_row(const uint8_t key_hash[BCS_HASH_SIZE], const MDB_val *value, bcsi_record *out) {
  if (!bcsi_record_decode(value->mv_data, value->mv_size, out)) return false;
  memcpy(out->view.key_hash, key_hash, BCS_HASH_SIZE);
  return true;
}

static int find(bcsi_batch *b, const uint8_t key_hash[BCS_HASH_SIZE], bcsi_record *out, bool *found) {
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash}, value;
  int rc = mdb_get(b->txn, b->store->index.entries, &key, &value);
  *found = false;
  if (rc == MDB_NOTFOUND) return 0;
  if (rc != 0) return rc;
  *found = decode_row(key_hash, &value, out);
  return 0;
}

static int digest_row(bcsi_batch *b, const uint8_t *digest, const uint8_t *key_hash, bool add) {
  return bcsi_digest_note(b->store, b->txn, &b->totals, digest, key_hash, add);
}

/* A row of the trash keeps how much its file takes on the disk until it is unlinked. */
static int trash_add(bcsi_batch *b, const uint8_t *digest, uint64_t allocated) {
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest}, value = {sizeof allocated, &allocated};
  int rc = mdb_put(b->txn, b->store->index.trash, &key, &value, MDB_NOOVERWRITE);
  if (rc == 0) b->totals.trash_allocated += allocated;
  return rc == MDB_KEYEXIST ? 0 : rc;
}

int bcsi_trash_remove(bcs_store *store, MDB_txn *txn, bcsi_totals *totals, const uint8_t *digest) {
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest}, value;
  uint64_t allocated = 0;
  int rc = mdb_get(txn, store->index.trash, &key, &value);
  if (rc == MDB_NOTFOUND) return 0;
  if (rc == 0 && value.mv_size == sizeof allocated) memcpy(&allocated, value.mv_data, sizeof allocated);
  if (rc == 0) rc = mdb_del(txn, store->index.trash, &key, NULL);
  if (rc == 0) totals->trash_allocated -= allocated < totals->trash_allocated ? allocated : totals->trash_allocated;
  return rc;
}

static int tag_rows(bcsi_batch *b, const uint8_t *tags, size_t count, const uint8_t *key_hash, bool add) {
  return bcsi_tags_note(b->store, b->txn, tags, count, key_hash, add);
}

/* One use less of a blob file; the last one sends it to the trash. */
static int drop_use(bcsi_batch *b, const uint8_t *digest) {
  bcsi_blob_row row;
  int rc;
  if (!bcsi_blob_row_get(b->store, b->txn, digest, &row, &rc)) return rc;
  if (row.uses > 1) {
    row.uses--;
    return bcsi_blob_row_put(b->store, b->txn, digest, &row);
  }
  MDB_val key = {BCS_DIGEST_SIZE, (void *)(uintptr_t)digest};
  rc = mdb_del(b->txn, b->store->index.blobs, &key, NULL);
  if (rc == 0) rc = trash_add(b, digest, row.allocated);
  b->totals.blob_files -= b->totals.blob_files > 0;
  b->totals.blob_bytes -= row.size < b->totals.blob_bytes ? row.size : b->totals.blob_bytes;
  b->totals.blob_allocated -= row.allocated < b->totals.blob_allocated ? row.allocated : b->totals.blob_allocated;
  return rc;
}

/* What an entry holds besides its row and its line. */
static int drop_content(bcsi_batch *b, const bcsi_record *old) {
  int rc = 0;
  if (old->view.tags_count > 0) rc = tag_rows(b, old->view.tags, old->view.tags_count, old->view.key_hash, false);
  if (rc == 0) rc = bcsi_pin_count(b, &old->view, false);
  if (rc != 0) return rc;
  if (old->view.is_file) return drop_use(b, old->view.digest);
  b->totals.inline_bytes -= old->view.size < b->totals.inline_bytes ? old->view.size : b->totals.inline_bytes;
  return 0;
}

/* ---- lines */

/* A line for an entry that has none: one that was freed, or the first that was never used. It stays free until
 * use_line. The trouble of its allocation goes into *status. */
static int next_line(bcsi_batch *b, uint32_t *line, bool *reused, bcs_status *status) {
  MDB_stat free_lines;
  MDB_cursor *cursor;
  MDB_val key, value;
  *line = (uint32_t)b->totals.slots_used;
  *reused = false;
  int rc = mdb_stat(b->txn, b->store->index.free_slots, &free_lines);
  if (rc == 0 && free_lines.ms_entries > 0) {
    rc = mdb_cursor_open(b->txn, b->store->index.free_slots, &cursor);
    if (rc != 0) return rc;
    rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    *reused = rc == 0 && key.mv_size == sizeof *line;
    if (*reused) memcpy(line, key.mv_data, sizeof *line);
    mdb_cursor_close(cursor);
    if (rc == MDB_NOTFOUND) rc = 0;
  }
  if (rc == 0) *status = bcsi_slots_reserve(b->store, *line);
  return rc;
}

static int use_line(bcsi_batch *b, uint32_t line, bool reused) {
  if (!reused) {
    b->totals.slots_used = (uint64_t)line + 1;
    return 0;
  }
  MDB_val key = {sizeof line, &line};
  return mdb_del(b->txn, b->store->index.free_slots, &key, NULL);
}

/* Lines of this batch's removals, once all of it is applied. */
int bcsi_give_back_lines(bcsi_batch *b) {
  int rc = 0;
  for (size_t i = 0; rc == 0 && i < b->freed_count; i++) {
    MDB_val key = {sizeof b->freed[i], &b->freed[i]}, value = {0, NULL};
    rc = mdb_put(b->txn, b->store->index.free_slots, &key, &value, 0);
  }
  return rc;
}

/* The line's generation once this batch is committed. Two writes of one key in a batch count on from each other. */
static void plan_line(bcsi_batch *b, bcs_write *write, uint32_t line, uint64_t base) {
  write->slot = line;
  write->touched = true;
  write->old_generation = base;
  write->new_generation = (base | 1) + 3;
  b->lines[b->line_count++] = line;
}

/* ---- publishing */

static bool was_published(const bcsi_batch *b, const uint8_t *digest) {
  for (size_t i = 0; i < b->published_count; i++)
    if (memcmp(b->published[i], digest, BCS_DIGEST_SIZE) == 0) return true;
  return false;
}

/* Makes sure that a good file stands under the digest: one that this batch published, one whose bytes were hashed when
 * the write was prepared and that is the same since, or else the staged one, which replaces whatever is there. */
static bcs_status place_file(bcsi_batch *b, bcs_write *write, const uint8_t *digest, uint64_t size, bcsi_blob_row *row,
                             int *rc) {
  bcs_store *store = b->store;
  struct stat st;
  bool known = bcsi_blob_row_get(store, b->txn, digest, row, rc);
  if (*rc != 0) return BCS_OK;
  bcs_status status = bcsi_blob_stat(store, digest, &st);
  if (status != BCS_OK && status != BCS_MISS && status != BCS_DAMAGED) return status;
  bool stands = status == BCS_OK, there = stands && (uint64_t)st.st_size == size, is_new = !known;
  if (there && !was_published(b, digest)) {
    bcsi_identity identity;
    bcsi_identify(&st, &identity);
    there = write->is_trusted && same_identity(&identity, &write->trusted);
  }
  if (!there) {
    if (!write->stage || write->stage->published) return BCS_NEED_BODY;
    /* A checkpoint may know the file that is there: what takes its name is on the disk before. In a durable directory all
     * are. */
    if (stands && !store->durable && (status = bcsi_blob_sync_staged(store, write->stage->name)) != BCS_OK) return status;
    status = bcsi_blob_publish(store, write->stage->name, digest);
    if (status != BCS_OK) return status;
    write->stage->published = true;
    b->published_staged += write->stage->counted;
    memcpy(b->published[b->published_count++], digest, BCS_DIGEST_SIZE);
    b->folders[digest[0]] = true;
    is_new = true;
    status = bcsi_blob_stat(store, digest, &st);
    if (status != BCS_OK) return status == BCS_MISS || status == BCS_DAMAGED ? BCS_NEED_BODY : status;
  }
  if (is_new) memcpy(b->new_files[b->new_file_count++], digest, BCS_DIGEST_SIZE);
  if (!known) {
    b->folders[digest[0]] = true; /* also of a file that was there: who published it may have died before its folder's sync */
    row->uses = row->pins = 0;
    row->size = size;
    row->allocated = (uint64_t)st.st_blocks * 512;
    b->totals.blob_files++;
    b->totals.blob_bytes += size;
    b->totals.blob_allocated += row->allocated;
  }
  row->uses++;
  *rc = bcsi_blob_row_put(store, b->txn, digest, row);
  if (*rc == 0 && !known) *rc = bcsi_trash_remove(store, b->txn, &b->totals, digest);
  return BCS_OK;
}

/* ---- applying. Returns an LMDB code, which ends the batch; the write's own trouble goes into its result. */

static int fail_write(bcs_write *write, bcs_status status) {
  write->result = status;
  if (status == BCS_NEED_BODY) (void)bcsi_fail(status, 0, "store", NULL, NULL);
  bcs_last_error(&write->error);
  return 0;
}

/* What is replaced gives up its content; *base: the generation that the new one counts on from. */
static int replace(bcsi_batch *b, const bcs_write *write, const bcsi_record *old, bool same_digest, uint64_t *base) {
  bcsi_record kept = *old; /* its bytes may move with the next put */
  uint8_t digest[BCS_DIGEST_SIZE];
  memcpy(digest, old->view.digest, sizeof digest);
  if (old->view.generation > *base) *base = old->view.generation;
  int rc = drop_content(b, &kept);
  if (rc == 0 && !same_digest) rc = digest_row(b, digest, write->key_hash, false);
  return rc;
}

/* When it was last read, and how often. Of an entry that this batch has changed already the line does not tell: it goes
 * with the commit. */
static void read_access(const bcsi_batch *b, bcs_record *old) {
  bcsi_slots_read_access(b->store, old);
  if (!bcsi_slots_has(b->store, old->slot) || bcsi_slots_generation(b->store, old->slot) == old->generation) return;
  for (size_t i = b->applied; i-- > 0;) {
    const bcs_write *earlier = b->writes[i];
    if (!earlier->touched || earlier->slot != old->slot || earlier->new_generation != old->generation) continue;
    old->access_ms = earlier->access_ms;
    old->hits = earlier->hits;
    return;
  }
}

static int apply_put(bcsi_batch *b, bcs_write *write) {
  bcs_store *store = b->store;
  bcsi_record old, made;
  if (!bcsi_record_decode(write->record, write->record_count, &made))
    return fail_write(
        write, bcsi_fail(BCS_INVALID, 0, "store", b->store->info.path, "the prepared record cannot be read"));
  MDB_val key = {BCS_HASH_SIZE, write->key_hash}, value;
  int rc = mdb_get(b->txn, store->index.entries, &key, &value);
  if (rc != 0 && rc != MDB_NOTFOUND) return rc;
  bool is_there = rc == 0;
  /* A record that cannot be read is damage: it is replaced like none. Its line is lost until the table is rebuilt. */
  bool replaces = is_there && decode_row(write->key_hash, &value, &old);
  if (is_there && !replaces) b->strays = true;
  bcs_status fits = bcsi_put_fits(b, replaces ? &old.view : NULL, &made.view);
  if (fits != BCS_OK) return fail_write(write, fits);
  uint32_t line = replaces ? old.view.slot : 0;
  bool fresh = !replaces || !bcsi_slots_has(store, line), reused = false;
  bcs_status status = BCS_OK;
  if (fresh) rc = next_line(b, &line, &reused, &status);
  else rc = 0;
  if (rc == 0 && status == BCS_OK && made.view.is_file) {
    bcsi_blob_row row;
    status = place_file(b, write, made.view.digest, made.view.size, &row, &rc);
  }
  if (rc != 0) return rc;
  if (status != BCS_OK) return fail_write(write, status);
  bool same_digest = replaces && memcmp(old.view.digest, made.view.digest, BCS_DIGEST_SIZE) == 0;
  uint64_t base = bcsi_slots_generation(store, line);
  /* The pin is the key's, whatever its content; an earlier try may have found another one. */
  bool pinned = replaces && old.view.pinned;
  if (pinned != made.view.pinned) {
    status = bcsi_record_set_pinned(write->record, write->record_count, pinned);
    if (status != BCS_OK) return fail_write(write, status);
    made.view.pinned = pinned;
  }
  if (replaces) rc = replace(b, write, &old, same_digest, &base);
  if (rc == 0 && fresh) rc = use_line(b, line, reused);
  if (rc != 0) return rc;
  plan_line(b, write, line, base);
  bcsi_record_place(write->record, line, write->new_generation);
  value = (MDB_val){write->record_count, write->record};
  rc = mdb_put(b->txn, store->index.entries, &key, &value, 0);
  if (rc == 0 && !same_digest) rc = digest_row(b, made.view.digest, write->key_hash, true);
  if (rc == 0 && made.view.tags_count > 0)
    rc = tag_rows(b, made.view.tags, made.view.tags_count, write->key_hash, true);
  if (rc == 0) rc = bcsi_pin_count(b, &made.view, true);
  if (rc != 0) return rc;
  if (!is_there) b->totals.entries++;
  if (!made.view.is_file) b->totals.inline_bytes += made.view.size;
  write->access_ms = made.view.written_ms;
  /* A use of the key, whatever its content: what is replaced keeps its reads, what was evicted remembers them. */
  if (replaces) read_access(b, &old.view);
  write->hits = replaces ? old.view.hits : bcsi_ghost_return(store, write->key_hash);
  write->result = BCS_OK;
  return 0;
}

/* Its rows; the line is the caller's part. */
int bcsi_delete_entry(bcsi_batch *b, const uint8_t key_hash[BCS_HASH_SIZE], const bcsi_record *old) {
  uint8_t digest[BCS_DIGEST_SIZE];
  memcpy(digest, old->view.digest, sizeof digest);
  int rc = drop_content(b, old);
  if (rc == 0) rc = digest_row(b, digest, key_hash, false);
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash};
  if (rc == 0) rc = mdb_del(b->txn, b->store->index.entries, &key, NULL);
  if (rc == 0) b->totals.entries -= b->totals.entries > 0;
  return rc;
}

static int delete_found(bcsi_batch *b, bcs_write *write, bcsi_record *old) {
  uint32_t line = old->view.slot;
  uint64_t base = old->view.generation;
  int rc = bcsi_delete_entry(b, write->key_hash, old);
  if (rc != 0) return rc;
  if (bcsi_slots_has(b->store, line)) {
    uint64_t now = bcsi_slots_generation(b->store, line);
    plan_line(b, write, line, now > base ? now : base);
    write->freed = true;
    b->freed[b->freed_count++] = line;
  }
  write->result = BCS_OK;
  return rc;
}

static int apply_remove(bcsi_batch *b, bcs_write *write) {
  bcsi_record old;
  bool found;
  int rc = find(b, write->key_hash, &old, &found);
  if (rc != 0) return rc;
  if (!found) { /* gone, or a row that cannot be read: that goes too */
    MDB_val key = {BCS_HASH_SIZE, write->key_hash};
    rc = mdb_del(b->txn, b->store->index.entries, &key, NULL);
    write->result = rc == 0 ? BCS_OK : BCS_MISS;
    if (rc == 0) b->strays = true;
    if (rc == 0) b->totals.entries -= b->totals.entries > 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
  }
  bool stays = write->kind != BCSI_REMOVE && old.view.generation != write->generation;
  if (write->kind == BCSI_REMOVE_GONE && !stays) { /* the line rounds, and may be late */
    read_access(b, &old.view);
    stays = old.view.pinned || write->now_ms < bcs_gone_ms(&old.view);
  }
  if (stays) {
    write->result = BCS_STALE_WRITE;
    return 0;
  }
  return delete_found(b, write, &old);
}

static int forget_blocks(bcsi_batch *b, const uint8_t *digest) {
  bcsi_blob_row row;
  int rc;
  if (!bcsi_blob_row_get(b->store, b->txn, digest, &row, &rc)) return rc;
  b->totals.blob_allocated -= row.allocated < b->totals.blob_allocated ? row.allocated : b->totals.blob_allocated;
  row.allocated = 0;
  return bcsi_blob_row_put(b->store, b->txn, digest, &row);
}

/* The damaged entry goes. Its file goes to quarantine, unless it is not the file that was found bad: then somebody has
 * put a good one there since. */
static int apply_heal(bcsi_batch *b, bcs_write *write) {
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
      b->totals.quarantine_allocated += (uint64_t)st.st_blocks * 512;
      int rc = forget_blocks(b, damage->digest); /* they are counted there now */
      if (rc != 0) return rc;
    }
  }
  return apply_remove(b, write);
}

static int apply_renew(bcsi_batch *b, bcs_write *write) {
  bcsi_record old, wish;
  bool found;
  int rc = find(b, write->key_hash, &old, &found);
  if (rc != 0) return rc;
  if (!found || (write->generation != 0 && old.view.generation != write->generation)) {
    write->result = found ? BCS_STALE_WRITE : BCS_MISS;
    return 0;
  }
  if (!bcsi_record_sealed(&old)) { /* it would get a good seal: it is a miss, and goes when it is read */
    write->result = BCS_MISS;
    return 0;
  }
  if (!bcsi_record_decode(write->record, write->record_count, &wish))
    return fail_write(
        write, bcsi_fail(BCS_INVALID, 0, "renew", b->store->info.path, "the prepared record cannot be read"));
  const uint8_t *attributes = write->has_attributes ? wish.view.attributes : old.view.attributes;
  size_t attributes_count = write->has_attributes ? wish.view.attributes_count : old.view.attributes_count;
  const uint8_t *tags = write->has_tags ? wish.view.tags : old.view.tags;
  size_t tags_count = write->has_tags ? wish.view.tags_count : old.view.tags_count;
  size_t body_count = old.view.is_file ? 0 : (size_t)old.view.size;
  size_t variable_count = old.view.key_count + attributes_count + tags_count;
  size_t count = BCSI_RECORD_HEAD + variable_count + body_count;
  uint8_t *made = malloc(count);
  if (!made) return fail_write(write, bcsi_fail(BCS_NO_MEMORY, ENOMEM, "renew", b->store->info.path, NULL));
  bcs_record head = old.view;
  head.lifetime = wish.view.lifetime;
  head.written_ms = wish.view.written_ms;
  if (!write->keeps_stale) head.stale_ms = wish.view.stale_ms;
  head.attributes_count = attributes_count;
  head.tags_count = tags_count;
  if (write->kind == BCSI_PIN) {
    head.lifetime = old.view.lifetime;
    head.written_ms = old.view.written_ms;
    head.stale_ms = old.view.stale_ms;
    head.pinned = write->pin;
  }
  head.key_count = old.view.key_count;
  bcs_status fits = bcsi_pin_fits(b, &old.view, &head);
  if (fits != BCS_OK) {
    free(made);
    return fail_write(write, fits);
  }
  bcsi_record_encode_head(made, &head);
  uint8_t *at = made + BCSI_RECORD_HEAD;
  memcpy(at, old.view.key, old.view.key_count);
  at += old.view.key_count;
  if (attributes_count) memcpy(at, attributes, attributes_count);
  at += attributes_count;
  if (tags_count) memcpy(at, tags, tags_count);
  at += tags_count;
  if (body_count) memcpy(at, old.body, body_count);
  bcs_status sealed = bcsi_record_seal(made, variable_count);
  if (sealed != BCS_OK) {
    free(made);
    return fail_write(write, sealed);
  }
  uint32_t line = old.view.slot;
  uint64_t generation = old.view.generation;
  if (bcsi_slots_has(b->store, line)) {
    uint64_t now = bcsi_slots_generation(b->store, line);
    read_access(b, &old.view);
    write->hits = old.view.hits;
    plan_line(b, write, line, now > generation ? now : generation);
    generation = write->new_generation;
  }
  bcsi_record_place(made, line, generation);
  if (write->has_tags) {
    rc = tag_rows(b, old.view.tags, old.view.tags_count, write->key_hash, false);
    if (rc == 0) rc = tag_rows(b, made + count - body_count - tags_count, tags_count, write->key_hash, true);
  }
  if (rc == 0) rc = bcsi_pin_count(b, &old.view, false);
  if (rc == 0) rc = bcsi_pin_count(b, &head, true);
  free(write->record);
  write->record = made;
  write->record_count = count;
  write->key_count = old.view.key_count;
  write->attributes_count = attributes_count;
  write->tags_count = tags_count;
  write->access_ms = write->kind == BCSI_PIN ? old.view.access_ms : wish.view.written_ms;
  MDB_val key = {BCS_HASH_SIZE, write->key_hash}, value = {count, made};
  if (rc == 0) rc = mdb_put(b->txn, b->store->index.entries, &key, &value, 0);
  write->result = BCS_OK;
  return rc;
}

/* Every file goes to the trash at once, in the order of digests, so that pages fill one after another. */
static int apply_clear(bcsi_batch *b, bcs_write *write) {
  bcsi_index *index = &b->store->index;
  MDB_cursor *from;
  MDB_val key, value;
  int rc = mdb_cursor_open(b->txn, index->blobs, &from);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(from, &key, &value, MDB_NEXT)) == 0) {
    bcsi_blob_row row = {0};
    if (key.mv_size != BCS_DIGEST_SIZE) continue;
    if (value.mv_size == sizeof row) memcpy(&row, value.mv_data, sizeof row);
    rc = trash_add(b, key.mv_data, row.allocated);
    if (rc != 0) break;
  }
  mdb_cursor_close(from);
  if (rc != MDB_NOTFOUND) return rc;
  rc = mdb_drop(b->txn, index->entries, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->digests, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->recent, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->blobs, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->free_slots, 0);
  if (rc == 0) rc = mdb_drop(b->txn, index->tags, 0);
  if (rc != 0) return rc;
  bcsi_totals empty = {.recent_next = b->totals.recent_next, .trash_allocated = b->totals.trash_allocated,
                       .quarantine_allocated = b->totals.quarantine_allocated};
  memcpy(empty.store_id, b->totals.store_id, sizeof empty.store_id);
  b->totals = empty;
  /* What came before it in the batch is gone with the rest, and its lines may be handed out again. */
  for (size_t i = 0; i < b->applied; i++) b->writes[i]->touched = false;
  b->freed_count = b->line_count = 0;
  b->cleared = true;
  write->result = BCS_OK;
  return 0;
}

int bcsi_apply(bcsi_batch *b, bcs_write *write) {
  write->touched = write->freed = false;
  write->limit_age_ms = b->limits.age_ms;
  memset(&write->error, 0, sizeof write->error);
  switch (write->kind) {
    case BCSI_PUT_INLINE: case BCSI_PUT_STAGED: case BCSI_PUT_SHARED: return apply_put(b, write);
    case BCSI_REMOVE: case BCSI_REMOVE_IF: case BCSI_REMOVE_GONE: return apply_remove(b, write);
    case BCSI_RENEW: case BCSI_PIN: return apply_renew(b, write);
    case BCSI_HEAL: return apply_heal(b, write);
    case BCSI_CLEAR: return apply_clear(b, write);
  }
  return EINVAL;
}
