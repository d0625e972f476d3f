/* The structure: rows against rows, rows against files, files against rows. Bodies are bcs_check's part.
 *
 * Without repair it is one read transaction, and what a writer may be doing at the moment is looked at twice; with
 * repair it is one write transaction, so nobody does anything meanwhile. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SETTLED_NS = 2000000000 }; /* a file changed this recently may belong to a batch that is being committed */

typedef struct walk {
  bcs_store *store;
  MDB_txn *txn;
  bool repair;
  bcs_check_report *report;
  bcsi_totals counted;
  void (*progress)(void *context, uint64_t done, uint64_t total);
  void *context;
  uint64_t done, total;
  uint64_t tags; /* of all records */
  bcsi_pair *recent; /* changes that are not in `digests` yet, in order */
  size_t recent_count;
  bool keeps_files; /* those without a row: the index was begun anew, and this is the first repair since */
} walk;

/* The walk holds a reader, and a growth of the map waits for all readers: it gives way and begins again. */
static bool must_give_way(walk *w) { return !w->repair && atomic_load(&w->store->index.gate) == BCSI_GATE_PAUSED; }

static void step(walk *w) {
  w->done++;
  if (w->progress && w->done % 1024 == 0) w->progress(w->context, w->done, w->total);
}

static int order_of_pair(const void *a, const void *b) {
  const bcsi_pair *x = a, *y = b;
  return memcmp(x->link, y->link, sizeof x->link);
}

static bool has_pair(walk *w, const uint8_t link[BCSI_LINK_SIZE], int *rc) {
  bcsi_pair wanted;
  memcpy(wanted.link, link, sizeof wanted.link);
  const bcsi_pair *recent =
      w->recent_count ? bsearch(&wanted, w->recent, w->recent_count, sizeof wanted, order_of_pair) : NULL;
  *rc = 0;
  return recent ? recent->add : bcsi_link_exists(w->txn, w->store->index.digests, link, rc);
}

/* A writer may have changed entry and line since the snapshot: look at the newest. */
static bool newest_agrees(walk *w, const uint8_t *key_hash) {
  bcsi_reader *reader;
  bool agrees = true;
  if (w->repair || bcsi_reader_try_enter(w->store, &reader) != BCS_OK) return !w->repair;
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash}, value;
  bcsi_record record;
  if (mdb_get(reader->txn, w->store->index.entries, &key, &value) == 0 &&
      bcsi_record_decode(value.mv_data, value.mv_size, &record)) {
    memcpy(record.view.key_hash, key_hash, BCS_HASH_SIZE);
    agrees = bcsi_slots_agree(w->store, &record.view);
  }
  bcsi_reader_leave(reader);
  return agrees;
}

/* Under the hash of its key, where alone it is looked for. */
static bool is_in_place(const bcs_record *record, const uint8_t *key_hash) {
  uint8_t hash[BCS_HASH_SIZE];
  return bcsi_key_hash(record->key, record->key_count, hash) != BCS_OK || memcmp(hash, key_hash, sizeof hash) == 0;
}

/* Nobody can find it, or read it. Its line is not known, so no memory tier is to rely on any. */
static int drop_damaged(walk *w, MDB_cursor *cursor) {
  bcsi_slots_epoch(w->store, true);
  int rc = mdb_cursor_del(cursor, 0);
  bcsi_slots_epoch(w->store, false);
  return rc;
}

/* The row of the file of an entry, which without one is taken for a file of nobody. Its uses are counted later. */
static int check_row(walk *w, const bcs_record *record) {
  bcsi_blob_row row;
  uint8_t digest[BCS_DIGEST_SIZE];
  struct stat st;
  int rc;
  if (!record->is_file || bcsi_blob_row_get(w->store, w->txn, record->digest, &row, &rc) || rc != 0)
    return record->is_file ? rc : 0;
  w->report->wrong_uses++;
  if (!w->repair) return 0;
  memcpy(digest, record->digest, sizeof digest);
  bool stands = bcsi_blob_stat(w->store, digest, &st) == BCS_OK;
  row = (bcsi_blob_row){.size = record->size, .allocated = stands ? (uint64_t)st.st_blocks * 512 : 0};
  MDB_val key = {sizeof digest, digest};
  rc = mdb_del(w->txn, w->store->index.trash, &key, NULL);
  return rc == 0 || rc == MDB_NOTFOUND ? bcsi_blob_row_put(w->store, w->txn, digest, &row) : rc;
}

static int check_entries(walk *w) {
  bcs_store *store = w->store;
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(w->txn, store->index.entries, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_record record;
    if (must_give_way(w) && (rc = MDB_MAP_RESIZED)) break;
    step(w);
    if (key.mv_size != BCS_HASH_SIZE || !bcsi_record_decode(value.mv_data, value.mv_size, &record) ||
        !is_in_place(&record.view, key.mv_data)) {
      w->report->damaged_records++;
      if (!w->repair) w->counted.entries++;
      else if ((rc = drop_damaged(w, cursor)) != 0) break;
      continue;
    }
    w->counted.entries++;
    memcpy(record.view.key_hash, key.mv_data, BCS_HASH_SIZE);
    if (!record.view.is_file) w->counted.inline_bytes += record.view.size;
    if (record.view.pinned) {
      w->counted.pinned_entries++;
      w->counted.pinned_bytes += bcsi_entry_bytes(&record.view);
      if (record.view.is_file) w->counted.pinned_bytes -= bcsi_file_bytes(record.view.size); /* once: with its row */
    }
    uint8_t link[BCSI_LINK_SIZE];
    bcsi_link_make(record.view.digest, record.view.key_hash, link);
    bool paired = has_pair(w, link, &rc);
    if (rc != 0) break;
    if (!paired) {
      w->report->wrong_digests++;
      if (w->repair && (rc = bcsi_link_put(w->txn, store->index.digests, link)) != 0) break;
    }
    if ((rc = check_row(w, &record.view)) != 0) break;
    if ((rc = bcsi_tags_check(store, w->txn, &record.view, w->repair, &w->report->wrong_tags)) != 0) break;
    w->tags += bcsi_tags_count(&record.view);
    if (!bcsi_slots_agree(store, &record.view) && !newest_agrees(w, record.view.key_hash)) {
      w->report->wrong_slots++;
      if (w->repair && bcsi_slots_has(store, record.view.slot)) {
        bcsi_slots_epoch(store, true); /* what a memory tier knows by a wrong line is void */
        bcsi_slots_fill(store, &record.view, record.view.written_ms, 0);
        bcsi_slots_set_generation(store, record.view.slot, record.view.generation);
        bcsi_slots_epoch(store, false);
      }
    }
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* The entry that a row of `digests` or `tags` leads to. */
static bool entry_of(walk *w, MDB_val link, bcsi_record *out) {
  if (link.mv_size != BCSI_LINK_SIZE) return false;
  MDB_val key = {BCS_HASH_SIZE, (uint8_t *)link.mv_data + BCS_HASH_SIZE}, row;
  return mdb_get(w->txn, w->store->index.entries, &key, &row) == 0 &&
         bcsi_record_decode(row.mv_data, row.mv_size, out);
}

/* Rows of tags whose entry is gone or has not the tag (any more). The row has the tag's hash alone, so the entry's tags
 * are hashed and compared. */
static int check_tags(walk *w) {
  MDB_cursor *cursor;
  MDB_val key, value;
  MDB_stat rows;
  int rc = mdb_stat(w->txn, w->store->index.tags, &rows);
  /* Each tag of each entry has its row, and there are no more rows than that: none can be wrong. */
  if (rc == 0 && w->report->wrong_tags == 0 && rows.ms_entries == w->tags) return 0;
  if (rc == 0) rc = mdb_cursor_open(w->txn, w->store->index.tags, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_record record;
    if (must_give_way(w) && (rc = MDB_MAP_RESIZED)) break;
    if (entry_of(w, key, &record) && bcsi_has_tag_hash(&record.view, key.mv_data)) continue;
    w->report->wrong_tags++;
    if (w->repair && (rc = mdb_cursor_del(cursor, 0)) != 0) break;
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int count_trash(walk *w) {
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(w->txn, w->store->index.trash, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    uint64_t allocated = 0;
    if (value.mv_size == sizeof allocated) memcpy(&allocated, value.mv_data, sizeof allocated);
    w->counted.trash_allocated += allocated;
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Pairs whose entry is gone or has another digest. */
static int check_digests(walk *w) {
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(w->txn, w->store->index.digests, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_record record;
    if (must_give_way(w) && (rc = MDB_MAP_RESIZED)) break;
    if (entry_of(w, key, &record) && memcmp(record.view.digest, key.mv_data, BCS_HASH_SIZE) == 0) continue;
    if (key.mv_size == BCSI_LINK_SIZE && !has_pair(w, key.mv_data, &rc) && rc == 0) continue; /* on its way out */
    w->report->wrong_digests++;
    if (w->repair && (rc = mdb_cursor_del(cursor, 0)) != 0) break;
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static size_t first_recent(walk *w, const uint8_t *digest) {
  size_t low = 0, high = w->recent_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (memcmp(w->recent[middle].link, digest, BCS_HASH_SIZE) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void count_use(walk *w, const uint8_t *key_hash, const uint8_t *digest, bcsi_blob_row *counted) {
  MDB_val key = {BCS_HASH_SIZE, (void *)(uintptr_t)key_hash}, row;
  bcsi_record record;
  if (mdb_get(w->txn, w->store->index.entries, &key, &row) != 0 ||
      !bcsi_record_decode(row.mv_data, row.mv_size, &record) || !record.view.is_file ||
      memcmp(record.view.digest, digest, BCS_DIGEST_SIZE) != 0)
    return;
  counted->uses++;
  counted->pins += record.view.pinned;
  counted->size = record.view.size;
}

static int count_uses(walk *w, const uint8_t *digest, bcsi_blob_row *counted) {
  MDB_cursor *cursor;
  const uint8_t *key_hash;
  counted->uses = counted->pins = 0;
  int rc = mdb_cursor_open(w->txn, w->store->index.digests, &cursor);
  if (rc != 0) return rc;
  for (rc = bcsi_link_find(cursor, digest, bcsi_first_hash, &key_hash); rc == 0;
       rc = bcsi_link_next(cursor, digest, &key_hash))
    count_use(w, key_hash, digest, counted);
  mdb_cursor_close(cursor);
  if (rc == MDB_NOTFOUND) rc = 0;
  for (size_t i = first_recent(w, digest); rc == 0 && i < w->recent_count; i++) {
    const bcsi_pair *pair = &w->recent[i];
    if (memcmp(pair->link, digest, BCS_HASH_SIZE) != 0) break;
    bool known = bcsi_link_exists(w->txn, w->store->index.digests, pair->link, &rc);
    if (pair->add && !known) count_use(w, pair->link + BCS_HASH_SIZE, digest, counted);
  }
  return rc;
}

/* File systems count whole blocks, extents' descriptions, and what they have set aside for the file. */
static uint64_t most_allocated(uint64_t size) { return 2 * bcsi_file_bytes(size) + (16 << 20); }

static int check_blob_rows(walk *w) {
  bcs_store *store = w->store;
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_cursor_open(w->txn, store->index.blobs, &cursor);
  if (rc != 0) return rc;
  while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    bcsi_blob_row row;
    uint8_t digest[BCS_DIGEST_SIZE];
    if (must_give_way(w) && (rc = MDB_MAP_RESIZED)) break;
    step(w);
    if (key.mv_size != sizeof digest || value.mv_size != sizeof row) { /* of nobody: entries' rows are whole by now */
      w->report->wrong_uses++;
      if (w->repair && (rc = mdb_cursor_del(cursor, 0)) != 0) break;
      continue;
    }
    memcpy(digest, key.mv_data, sizeof digest);
    memcpy(&row, value.mv_data, sizeof row);
    bcsi_blob_row counted;
    if ((rc = count_uses(w, digest, &counted)) != 0) break;
    struct stat st;
    bcs_status status = bcsi_blob_stat(store, digest, &st);
    /* The entries know the size, under their seals; what a file takes is no more than some blocks above it. */
    bool is_wrong = counted.uses > 0 && (row.size != counted.size || row.allocated > most_allocated(counted.size));
    if (is_wrong) {
      row.size = counted.size;
      row.allocated = status == BCS_OK ? (uint64_t)st.st_blocks * 512 : 0;
    }
    if (status != BCS_OK || (uint64_t)st.st_size != row.size) {
      bool known = true;
      bcsi_reader *reader;
      if (!w->repair && bcsi_reader_try_enter(store, &reader) == BCS_OK) { /* removed since the snapshot? */
        bcsi_blob_row newest;
        int code;
        known = bcsi_blob_row_get(store, reader->txn, digest, &newest, &code);
        bcsi_reader_leave(reader);
      }
      if (known) w->report->missing_files++;
    }
    if (is_wrong || counted.uses != row.uses || counted.pins != row.pins) {
      w->report->wrong_uses++;
      if (w->repair && counted.uses == 0) {
        if ((rc = mdb_cursor_del(cursor, 0)) != 0) break;
        MDB_val d = {sizeof digest, digest}, allocated = {sizeof row.allocated, &row.allocated};
        if ((rc = mdb_put(w->txn, store->index.trash, &d, &allocated, 0)) != 0) break;
        continue;
      }
      if (w->repair) {
        row.uses = counted.uses;
        row.pins = counted.pins;
        if ((rc = bcsi_blob_row_put(store, w->txn, digest, &row)) != 0) break;
      }
    }
    w->counted.blob_files++;
    w->counted.blob_bytes += row.size;
    w->counted.blob_allocated += row.allocated;
    if (counted.pins > 0) w->counted.pinned_bytes += bcsi_file_bytes(row.size);
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static bool is_unreferenced(walk *w, const uint8_t *digest, const struct stat *st) {
  if (bcsi_blob_is_known(w->store, w->txn, digest)) return false;
  if (w->repair) return true;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t age = ((int64_t)now.tv_sec - st->st_ctim.tv_sec) * 1000000000 + now.tv_nsec - st->st_ctim.tv_nsec;
  if (age < SETTLED_NS) return false;
  bcsi_reader *reader;
  if (bcsi_reader_try_enter(w->store, &reader) != BCS_OK) return false;
  bool known = bcsi_blob_is_known(w->store, reader->txn, digest);
  bcsi_reader_leave(reader);
  return !known;
}

static bcs_status check_folder(walk *w, int number) {
  bcs_store *store = w->store;
  uint8_t first = (uint8_t)number;
  char name[3], shown[4300];
  bcsi_hex(&first, 1, name);
  snprintf(shown, sizeof shown, "%s/blobs/%s", store->info.path, name);
  int fd = openat(store->blobs_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? BCS_OK : bcsi_fail_errno(errno, "open", shown);
  DIR *folder = fdopendir(fd);
  if (!folder) {
    int code = errno;
    close(fd);
    return bcsi_fail_errno(code, "list", shown);
  }
  struct dirent *item;
  bcs_status status = BCS_OK;
  while (status == BCS_OK && (item = readdir(folder)) != NULL) {
    if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
    uint8_t digest[BCS_DIGEST_SIZE];
    struct stat st;
    if (strlen(item->d_name) != BCSI_HEX_SIZE || !bcsi_unhex(item->d_name, BCS_DIGEST_SIZE, digest) ||
        digest[0] != first || fstatat(fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
      w->report->foreign_names++;
      continue;
    }
    if (!is_unreferenced(w, digest, &st)) continue;
    w->report->unreferenced_files++;
    w->report->unreferenced_bytes += (uint64_t)st.st_size;
    if (w->repair && !w->keeps_files) status = bcsi_blob_unlink(store, digest);
  }
  closedir(folder);
  return status;
}

static bool same_totals(const bcsi_totals *a, const bcsi_totals *b) {
  return a->entries == b->entries && a->inline_bytes == b->inline_bytes && a->blob_files == b->blob_files &&
         a->blob_bytes == b->blob_bytes && a->blob_allocated == b->blob_allocated &&
         a->trash_allocated == b->trash_allocated && a->pinned_entries == b->pinned_entries &&
         a->pinned_bytes == b->pinned_bytes;
}

static bcs_status walk_all(walk *w) {
  bcsi_totals stored;
  bcs_status status = bcsi_totals_get(w->store, w->txn, &stored);
  if (status != BCS_OK) return status;
  w->total = stored.entries + stored.blob_files + 256;
  int rc = w->repair ? bcsi_digest_merge(w->store, w->txn, &stored, true) : 0;
  if (rc == 0) rc = bcsi_digest_recent(w->store, w->txn, &w->recent, &w->recent_count);
  if (rc == 0) rc = check_entries(w);
  if (rc == 0) rc = check_digests(w);
  if (rc == 0) rc = check_tags(w);
  if (rc == 0) rc = check_blob_rows(w);
  if (rc == 0) rc = count_trash(w);
  if (rc == 0 && w->store->slots.map) rc = bcsi_lines_check(w->store, w->txn, &stored, w->repair, true, &w->report->wrong_slots);
  if (rc == MDB_MAP_RESIZED) return BCS_BUSY;
  if (rc != 0) return bcsi_fail_lmdb(rc, "verify", w->store->index.path);
  for (int i = 0; status == BCS_OK && i < 256; i++, step(w))
    status = must_give_way(w) ? BCS_BUSY : check_folder(w, i);
  if (status != BCS_OK) return status;
  bool wrong = !same_totals(&w->counted, &stored);
  if (wrong) w->report->wrong_totals++;
  if (w->repair) { /* also when nothing is wrong: the merge changed the counts of `recent` */
    memcpy(w->counted.store_id, stored.store_id, sizeof stored.store_id);
    w->counted.recent_next = stored.recent_next;
    w->counted.quarantine_allocated = bcsi_quarantine_allocated(w->store);
    w->counted.slots_used = stored.slots_used;
    rc = bcsi_totals_put(w->store, w->txn, &w->counted);
    if (rc != 0) return bcsi_fail_lmdb(rc, "verify", w->store->index.path);
    bcsi_slots_publish_totals(w->store, &w->counted);
  }
  return bcsi_staging_dead(w->store, &w->report->dead_staging);
}

/* ---- pages */

static bool gate_is_wanted(void *context) { return must_give_way(context); }

static bcs_status check_pages(bcs_store *store, bool repair, bcs_check_report *out) {
  char data_file[4300];
  bcsi_join(store->index.path, "data.mdb", data_file, sizeof data_file);
  walk w = {.store = store};
  bcs_status status = BCS_BUSY;
  while (status == BCS_BUSY) {
    bcsi_reader *reader;
    status = bcsi_reader_enter(store, &reader);
    if (status != BCS_OK) return status;
    status = bcsi_pages_check(data_file, BCSI_PAGES_ALL, reader->txn, gate_is_wanted, &w, &out->damage);
    bcsi_reader_leave(reader);
  }
  if (!out->damage.found) return status;
  if (!repair) return BCS_OK;
  status = bcsi_index_replace(store);
  out->in_use = status == BCS_IN_USE;
  return out->in_use ? BCS_OK : status;
}

/* Whether the pages may be followed now. */
static bool may_walk(const bcs_check_report *report, bool repair) {
  return !report->damage.found || (repair && !report->in_use);
}

bcs_status bcs_check_pages(bcs_store *store, bool repair, bcs_check_report *out) {
  memset(out, 0, sizeof *out);
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  if (repair && store->options.read_only) status = bcsi_fail(BCS_READ_ONLY, 0, "repair", store->info.path, NULL);
  else if ((status = bcsi_check_place(store)) == BCS_OK) status = check_pages(store, repair, out);
  out->index_set_aside = repair && atomic_load(&store->fresh_index);
  bcsi_call_leave(store);
  return status;
}

/* ---- all of it */

static bcs_status repair_structure(walk *w) {
  bcs_store *store = w->store;
  bcs_status status = bcsi_writer_lock(store, false);
  if (status != BCS_OK) return status;
  status = bcsi_write_begin(store, &w->txn);
  if (status == BCS_OK) {
    w->keeps_files = w->report->index_set_aside || atomic_load(&store->new_index) || bcsi_slots_repair_keeps_files(store);
    status = bcsi_repair_marked(store, w->txn);
    if (status == BCS_OK) status = walk_all(w);
    int rc = 0;
    if (status == BCS_OK) rc = bcsi_write_commit(store, w->txn);
    else bcsi_write_abort(store, w->txn);
    if (rc != 0) status = bcsi_fail_lmdb(rc, "repair", store->index.path);
  }
  bcsi_writer_unlock(store);
  return status == BCS_OK ? bcsi_staging_sweep(store) : status;
}

static bcs_status look_at_structure(walk *w) {
  bcs_status status = BCS_BUSY;
  while (status == BCS_BUSY) {
    bcsi_reader *reader;
    free(w->recent);
    memset(w->report, 0, sizeof *w->report);
    *w = (walk){.store = w->store, .report = w->report, .progress = w->progress, .context = w->context};
    status = bcsi_reader_enter(w->store, &reader);
    if (status != BCS_OK) break;
    w->txn = reader->txn;
    status = walk_all(w);
    bcsi_reader_leave(reader);
  }
  return status;
}

bcs_status bcs_check_structure(bcs_store *store, bool repair, bcs_check_report *out,
                               void (*progress)(void *context, uint64_t done, uint64_t total), void *context) {
  bcs_status status = bcs_check_pages(store, repair, out);
  if (status != BCS_OK || !may_walk(out, repair)) return status;
  status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  walk w = {.store = store, .repair = repair, .report = out, .progress = progress, .context = context};
  status = repair ? repair_structure(&w) : look_at_structure(&w);
  if (repair && status == BCS_OK) {
    atomic_store(&store->fresh_index, false);
    atomic_store(&store->new_index, false);
    bcsi_slots_repaired(store);
  }
  free(w.recent);
  if (progress) progress(context, w.total, w.total);
  bcsi_call_leave(store);
  return status;
}

/* ---- at open */

/* What files in the trash take, by their rows, unless there are too many to look at. */
static int trash_rows(bcs_store *store, MDB_txn *txn, uint64_t *allocated) {
  enum { MOST = 65536 };
  walk w = {.store = store, .txn = txn};
  MDB_stat rows;
  int rc = mdb_stat(txn, store->index.trash, &rows);
  *allocated = UINT64_MAX;
  if (rc != 0 || rows.ms_entries > MOST) return rc;
  rc = count_trash(&w);
  *allocated = w.counted.trash_allocated;
  return rc;
}

/* What LMDB knows as well, and what cannot be. Totals that say too much would make room where there is enough. */
static bool are_plausible(bcs_store *store, MDB_txn *txn, const bcsi_totals *totals) {
  enum { SLACK = 1 << 20 /* of a file, and of quarantine */ };
  MDB_stat entries, blobs, recent;
  uint64_t trash;
  if (mdb_stat(txn, store->index.entries, &entries) != 0 || mdb_stat(txn, store->index.blobs, &blobs) != 0 ||
      mdb_stat(txn, store->index.recent, &recent) != 0 || trash_rows(store, txn, &trash) != 0)
    return true;
  uint64_t files = totals->blob_bytes <= UINT64_MAX / 4 ? 2 * totals->blob_bytes + totals->blob_files * SLACK : 0;
  uint64_t index = bcsi_index_live(store, txn);
  return totals->entries == entries.ms_entries && totals->blob_files == blobs.ms_entries &&
         totals->recent_count == recent.ms_entries && totals->inline_bytes <= index && totals->blob_allocated <= files &&
         totals->trash_allocated <= trash && totals->pinned_entries <= totals->entries &&
         totals->pinned_bytes <= 2 * (index + files) &&
         totals->quarantine_allocated <= bcsi_quarantine_allocated(store) + SLACK;
}

/* Who is alone counts anew where the totals cannot be right. Files that no row knows stay. */
void bcsi_check_totals(bcs_store *store) {
  bcsi_reader *reader;
  bcsi_totals totals;
  bcs_check_report report = {.index_set_aside = true};
  if (bcsi_reader_enter(store, &reader) != BCS_OK) return;
  bool counts = bcsi_totals_get(store, reader->txn, &totals) == BCS_OK && !are_plausible(store, reader->txn, &totals);
  bcsi_reader_leave(reader);
  if (!counts) return;
  walk w = {.store = store, .repair = true, .report = &report};
  (void)repair_structure(&w); /* or verify does */
  free(w.recent);
}
