/* Reads the pages of the index's file without trusting them.
 *
 * LMDB maps its file and follows what stands in it: a garbage page number, node offset or length leads it behind the
 * mapping's end (SIGBUS, SIGSEGV) or into an assertion. So whoever opens a directory looks first along the outermost
 * paths of every tree, and verify looks at every page, here: by pread(2), with every number compared before its use.
 *
 * LMDB 0.9, data format 1 (host byte order; `p` is the page size):
 *
 *   page    0 number (8), 8 pad (2), 10 kind (2), 12 lower (2), 14 upper (2); an overflow run has its count of pages in
 *           place of lower and upper (4)
 *   kinds   1 branch, 2 leaf, 4 overflow, 8 meta
 *   body    offsets of the nodes (2 each) from 16 to lower, nodes from upper to p, each node once, no two overlapping
 *   node    0 length of the data, or the child's number (bits 0 to 31; 32 to 47 in the flags), 4 flags (2),
 *           6 length of the key (2), 8 key, then data: flags 1 the first page of an overflow run (8), 2 a tree (48)
 *   tree    0 pad (4), 4 flags (2), 6 depth (2), 8 branch, leaf and overflow pages (8 each), 32 entries (8), 40 root
 *   meta    pages 0 and 1, from 16: magic (4), version (4), address (8), map size (8), the tree of free pages (its pad
 *           is the page size), the main tree, last page (8), transaction (8). Transaction n is in page n & 1.
 *
 * The tree of free pages has the transaction that freed them as key and a list as data: count, then numbers, descending.
 * No other tree has flags: LMDB's other orders and its duplicates, with pages of their own kinds, are in no index of ours.
 *
 * A snapshot is read beside writers of any process: while a read transaction of it lasts, its pages are not written
 * again. Only its meta page is, by the second commit after it, which begins only when readers are told of the first. So
 * the meta page is taken as whole when the other one, read after it, is not yet newer, or when a reader that begins after
 * both were read is still given the same snapshot: the writer may stand between writing the other one and telling of it.
 * Pages that were given out and back in one transaction are never written: the file may
 * end before its last page, if all that is missing is free. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BRANCH = 1, LEAF = 2, OVERFLOW = 4, META = 8 };
enum { NODE_BIG = 1, NODE_TREE = 2 };
enum {
  PAGE_HEAD = 16, NODE_HEAD = 8, KEY_MAX = 511, DEPTH_MAX = 32, PAGE_MIN = 256, PAGE_MAX = 32768, METAS = 2,
  TREE_FLAGS = MDB_REVERSEKEY | MDB_DUPSORT | MDB_INTEGERKEY | MDB_DUPFIXED | MDB_INTEGERDUP | MDB_REVERSEDUP,
  SNAPSHOT_TRIES = 10000, SHORT_MAX = 1 << 28,
};
static const uint64_t no_page = UINT64_MAX;
static const uint64_t map_max = UINT64_C(1) << 47;

typedef struct head {
  uint64_t number;
  uint16_t pad, kind, lower, upper;
} head;
typedef struct node {
  uint16_t low, high, flags, key_count;
} node;
typedef struct tree {
  uint32_t pad;
  uint16_t flags, depth;
  uint64_t branches, leaves, overflows, entries, root;
} tree;
typedef struct meta {
  uint32_t magic, version;
  uint64_t address, map_size;
  tree free, main;
  uint64_t last, transaction;
} meta;
_Static_assert(sizeof(head) == PAGE_HEAD && sizeof(node) == NODE_HEAD, "as LMDB has them");
_Static_assert(sizeof(tree) == 48 && sizeof(meta) == 136, "as LMDB has them");

typedef enum kind { FREE, MAIN, NAMED } kind;
typedef enum side { LEFT = 1, RIGHT = 2, BOTH = 3, ALL = 4 } side;

typedef struct span {
  const uint8_t *bytes; /* NULL: no bound */
  size_t count;
} span;

typedef struct walk {
  int fd;
  const char *path;
  uint64_t page_size, file_pages;
  meta meta;
  bool all;
  uint64_t *seen; /* a bit each: in use or free; NULL where only the paths are walked */
  uint8_t *buffers[2 * DEPTH_MAX], *taken; /* a page each: of a named tree behind those of the main one */
  bool (*stop)(void *context);
  void *context;
  bcs_page_damage *damage;
} walk;

/* The tree that is walked. */
typedef struct place {
  const tree *tree;
  kind kind;
} place;

static bcs_status bad(walk *w, uint64_t page, const char *cause) {
  if (w->damage->found) return BCS_CORRUPT;
  w->damage->found = true;
  w->damage->page = page;
  snprintf(w->damage->cause, sizeof w->damage->cause, "%s", cause);
  char text[160];
  snprintf(text, sizeof text, "page %llu: %s", (unsigned long long)page, cause);
  return bcsi_fail(BCS_CORRUPT, 0, "check index", w->path, text);
}

/* ---- reading */

static bcs_status read_at(walk *w, void *out, size_t count, uint64_t offset, uint64_t page) {
  uint8_t *at = out;
  while (count > 0) {
    ssize_t n = pread(w->fd, at, count, (off_t)offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return bcsi_fail_errno(errno, "read", w->path);
    if (n == 0) return bad(w, page, "it is behind the end of the file");
    at += n;
    count -= (size_t)n;
    offset += (uint64_t)n;
  }
  return BCS_OK;
}

/* A run of pages that `from` refers to. */
static bcs_status check_run(walk *w, uint64_t from, uint64_t first, uint64_t count) {
  if (first < METAS || first > w->meta.last || count > w->meta.last + 1 - first)
    return bad(w, from, "it refers to pages that the file does not have");
  if (first + count > w->file_pages) return bad(w, first, "it is behind the end of the file");
  return BCS_OK;
}

static bool see(walk *w, uint64_t page) {
  if (!w->seen) return true;
  uint64_t bit = UINT64_C(1) << (page % 64);
  if (w->seen[page / 64] & bit) return false;
  w->seen[page / 64] |= bit;
  return true;
}

static bcs_status read_page(walk *w, uint64_t from, uint64_t number, unsigned buffer, uint8_t **out) {
  bcs_status status = check_run(w, from, number, 1);
  if (status != BCS_OK) return status;
  if (!see(w, number)) return bad(w, number, "it is used twice, or used and free");
  if (w->stop && w->stop(w->context)) return BCS_BUSY;
  if (!w->buffers[buffer] && !(w->buffers[buffer] = malloc(w->page_size)))
    return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "check index", w->path, NULL);
  *out = w->buffers[buffer];
  return read_at(w, *out, w->page_size, number * w->page_size, number);
}

/* ---- what stands in a page */

static head head_at(const uint8_t *page) {
  head h;
  memcpy(&h, page, sizeof h);
  return h;
}

static const uint8_t *node_at(const uint8_t *page, size_t index) {
  uint16_t offset;
  memcpy(&offset, page + PAGE_HEAD + 2 * index, sizeof offset);
  return page + offset;
}
static node node_head(const uint8_t *at) {
  node n;
  memcpy(&n, at, sizeof n);
  return n;
}
static uint64_t data_count(node n) { return (uint64_t)n.low | (uint64_t)n.high << 16; }
static uint64_t child_of(node n) { return data_count(n) | (uint64_t)n.flags << 32; }
static span key_of(const uint8_t *at) { return (span){at + NODE_HEAD, node_head(at).key_count}; }
static const uint8_t *data_of(const uint8_t *at) { return at + NODE_HEAD + node_head(at).key_count; }

/* Offsets and lengths: what comes after this may follow them. */
static bcs_status check_nodes(walk *w, uint64_t number, const uint8_t *page, bool leaf) {
  head h = head_at(page);
  size_t size = w->page_size;
  if (h.lower < PAGE_HEAD || h.lower % 2 != 0 || h.upper < h.lower || h.upper > size)
    return bad(w, number, "its bounds are not in order");
  size_t largest = ((size - PAGE_HEAD) / 2 & ~(size_t)1) - 2, sum = 0;
  memset(w->taken, 0, size);
  for (size_t i = 0; i < (size_t)(h.lower - PAGE_HEAD) / 2; i++) {
    const uint8_t *at = node_at(page, i);
    size_t offset = (size_t)(at - page);
    if (offset < h.upper || offset + NODE_HEAD > size) return bad(w, number, "a node begins outside of its page");
    node n = node_head(at);
    uint64_t count = NODE_HEAD + n.key_count;
    if (leaf) count += n.flags & NODE_BIG ? sizeof(uint64_t) : data_count(n);
    if (count > size - offset) return bad(w, number, "a node ends outside of its page");
    if (leaf && count > largest) return bad(w, number, "a node is larger than nodes can be");
    if (n.key_count > KEY_MAX || (n.key_count == 0 && (leaf || i > 0)))
      return bad(w, number, "a key has a length that keys cannot have");
    if (memchr(w->taken + offset, 1, count)) return bad(w, number, "two nodes overlap");
    memset(w->taken + offset, 1, count);
    sum += (count + 1) & ~UINT64_C(1);
  }
  if (sum > size - h.upper) return bad(w, number, "its nodes take more than their room");
  return BCS_OK;
}

/* The keys of the tree of free pages are numbers. */
static int order(span a, span b, kind kind) {
  uint64_t x, y;
  if (kind == FREE && a.count == sizeof x && b.count == sizeof y) {
    memcpy(&x, a.bytes, a.count); /* in host order, which is little-endian: see OnDiskFormat */
    memcpy(&y, b.bytes, b.count);
    return x < y ? -1 : x > y;
  }
  int c = memcmp(a.bytes, b.bytes, a.count < b.count ? a.count : b.count);
  if (c != 0) return c;
  return a.count < b.count ? -1 : a.count > b.count;
}

static bcs_status check_key(walk *w, uint64_t number, span key, span before, kind kind, bool may_equal) {
  if (!before.bytes) return BCS_OK;
  int c = order(before, key, kind);
  return c < 0 || (may_equal && c == 0) ? BCS_OK : bad(w, number, "its keys are not in order");
}

/* ---- data of leaves */

static bcs_status check_tree(walk *w, const place *at, uint64_t from);

static bcs_status check_overflow(walk *w, uint64_t from, uint64_t first, uint64_t count) {
  uint8_t bytes[PAGE_HEAD];
  uint32_t pages;
  bcs_status status = check_run(w, from, first, (PAGE_HEAD - 1 + count) / w->page_size + 1);
  if (status == BCS_OK) status = read_at(w, bytes, sizeof bytes, first * w->page_size, first);
  if (status != BCS_OK) return status;
  memcpy(&pages, bytes + 12, sizeof pages);
  if (head_at(bytes).number != first) return bad(w, first, "it has the number of another page");
  if (head_at(bytes).kind != OVERFLOW) return bad(w, first, "its kind is not the one that its place wants");
  if (pages < (PAGE_HEAD - 1 + count) / w->page_size + 1) return bad(w, first, "its run is shorter than the data");
  status = check_run(w, first, first, pages);
  for (uint64_t i = 0; status == BCS_OK && w->seen && i < pages; i++)
    if (!see(w, first + i)) status = bad(w, first + i, "it is used twice, or used and free");
  return status;
}

/* A list of free pages: in its node, or, at `offset` of the file, in an overflow run. */
static bcs_status check_list(walk *w, uint64_t from, const uint8_t *data, uint64_t offset, uint64_t count) {
  uint64_t words[512], length, before = no_page;
  if (count < sizeof length || count % sizeof length != 0) return bad(w, from, "a list of free pages has no length");
  for (uint64_t at = 0, total = 1; at < total;) {
    size_t n = total - at > 512 ? 512 : (size_t)(total - at);
    if (at == 0) n = count / 8 < 512 ? (size_t)(count / 8) : 512;
    bcs_status status = BCS_OK;
    if (data) memcpy(words, data + at * 8, n * 8);
    else status = read_at(w, words, n * 8, offset + at * 8, from);
    if (status != BCS_OK) return status;
    if (at == 0) {
      if (words[0] >= count / 8) return bad(w, from, "a list of free pages is longer than its room");
      total = words[0] + 1;
    }
    for (size_t i = at == 0 ? 1 : 0; i < n && at + i < total; i++) {
      if (words[i] < METAS || words[i] > w->meta.last || words[i] >= before)
        return bad(w, from, "a list of free pages is not in order");
      before = words[i];
      if (!see(w, words[i])) return bad(w, words[i], "it is free twice, or used and free");
    }
    if (!w->all) break; /* the first page of it */
    at += n;
  }
  return BCS_OK;
}

static bcs_status check_free(walk *w, uint64_t number, const uint8_t *at, bool big, uint64_t count) {
  uint64_t transaction = 0, first;
  if (node_head(at).key_count != sizeof transaction) return bad(w, number, "a key has a length that keys cannot have");
  memcpy(&transaction, at + NODE_HEAD, sizeof transaction);
  if (transaction == 0 || transaction > w->meta.transaction)
    return bad(w, number, "free pages of a transaction that was not made yet");
  if (!big) return check_list(w, number, data_of(at), 0, count);
  memcpy(&first, data_of(at), sizeof first);
  bcs_status status = check_overflow(w, number, first, count);
  return status == BCS_OK ? check_list(w, first, NULL, first * w->page_size + PAGE_HEAD, count) : status;
}

static bcs_status check_data(walk *w, const place *at, uint64_t number, const uint8_t *in, uint64_t *entries) {
  node n = node_head(in);
  uint64_t count = data_count(n), first;
  if (at->kind == MAIN && n.flags == NODE_TREE) {
    tree inner;
    if (count != sizeof inner) return bad(w, number, "a tree's description has another size");
    memcpy(&inner, data_of(in), sizeof inner);
    if (inner.flags != 0) return bad(w, number, "a tree of ours has flags of another");
    *entries += 1;
    return check_tree(w, &(place){&inner, NAMED}, number);
  }
  if ((n.flags & ~NODE_BIG) != 0) return bad(w, number, "a node's flags do not fit its place");
  *entries += 1;
  if (at->kind == FREE) return check_free(w, number, in, n.flags & NODE_BIG, count);
  if (!(n.flags & NODE_BIG)) return BCS_OK;
  memcpy(&first, data_of(in), sizeof first);
  if (w->all) return check_overflow(w, number, first, count);
  return check_run(w, number, first, (PAGE_HEAD - 1 + count) / w->page_size + 1);
}

/* ---- trees */

static bcs_status visit(walk *w, const place *at, uint64_t from, uint64_t number, unsigned level, side side, span low,
                        span high, uint64_t *entries) {
  uint8_t *page;
  bcs_status status = read_page(w, from, number, (at->kind == NAMED ? DEPTH_MAX : 0) + level, &page);
  if (status != BCS_OK) return status;
  head h = head_at(page);
  bool leaf = level + 1 == at->tree->depth;
  if (h.number != number) return bad(w, number, "it has the number of another page");
  if (h.kind != (leaf ? LEAF : BRANCH)) return bad(w, number, "its kind is not the one that its place wants");
  if ((status = check_nodes(w, number, page, leaf)) != BCS_OK) return status;
  size_t count = (size_t)(h.lower - PAGE_HEAD) / 2;
  if (count < (leaf || at->kind == FREE ? 1 : 2)) return bad(w, number, "it has too few nodes");

  /* The first key of a branch is never compared: it stands for everything before the second. */
  span before = low;
  for (size_t i = leaf ? 0 : 1; i < count; i++) {
    span key = key_of(node_at(page, i));
    status = check_key(w, number, key, before, at->kind, before.bytes == low.bytes);
    if (status != BCS_OK) return status;
    before = key;
  }
  if (high.bytes && before.bytes) status = check_key(w, number, high, before, at->kind, false);
  for (size_t i = 0; status == BCS_OK && i < count; i++) {
    const uint8_t *in = node_at(page, i);
    if (leaf) {
      status = check_data(w, at, number, in, entries);
      continue;
    }
    uint64_t child = child_of(node_head(in));
    status = check_run(w, number, child, 1);
    bool go = side == ALL || (side & LEFT && i == 0) || (side & RIGHT && i + 1 == count);
    if (status != BCS_OK || !go) continue;
    enum side next = side != BOTH ? side : i == 0 ? LEFT : RIGHT;
    status = visit(w, at, number, child, level + 1, next, i == 0 ? low : key_of(in),
                   i + 1 < count ? key_of(node_at(page, i + 1)) : high, entries);
  }
  return status;
}

static bcs_status check_tree(walk *w, const place *at, uint64_t from) {
  const tree *t = at->tree;
  if (t->root == no_page)
    return t->depth == 0 && t->entries == 0 ? BCS_OK : bad(w, from, "a tree has entries and no root");
  if (t->depth == 0 || t->depth > DEPTH_MAX) return bad(w, from, "a tree has a depth that trees cannot have");
  bcs_status status = check_run(w, from, t->root, 1);
  if (status != BCS_OK) return status;
  uint64_t entries = 0;
  status = visit(w, at, from, t->root, 0, w->all ? ALL : BOTH, (span){0}, (span){0}, &entries);
  if (status == BCS_OK && w->all && entries != t->entries)
    return bad(w, from, "a tree's number of entries disagrees with a recount");
  return status;
}

/* The tree of free pages goes first: what is free must not be in use, and what the file lacks must be free. */
static bcs_status check_trees(walk *w, uint64_t from) {
  bool all = w->all, is_short = w->meta.last >= w->file_pages;
  if (is_short && w->meta.last - w->file_pages > SHORT_MAX) return bad(w, w->meta.last, "it is behind the end of the file");
  w->all = all || is_short;
  if (w->all) {
    if (!(w->seen = calloc(w->meta.last / 64 + 1, sizeof *w->seen)))
      return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "check index", w->path, NULL);
    w->seen[0] = 3;
  }
  bcs_status status = check_tree(w, &(place){&w->meta.free, FREE}, from);
  for (uint64_t page = w->file_pages; status == BCS_OK && page <= w->meta.last; page++)
    if (!(w->seen[page / 64] >> (page % 64) & 1)) status = bad(w, page, "it is behind the end of the file");
  if (!all) {
    free(w->seen);
    w->seen = NULL;
  }
  w->all = all;
  return status == BCS_OK ? check_tree(w, &(place){&w->meta.main, MAIN}, from) : status;
}

/* ---- meta pages */

static bcs_status read_meta(walk *w, uint64_t number, meta *out) {
  uint8_t bytes[PAGE_HEAD + sizeof(meta)];
  bcs_status status = read_at(w, bytes, sizeof bytes, number * w->page_size, number);
  if (status != BCS_OK) return status;
  memcpy(out, bytes + PAGE_HEAD, sizeof *out);
  if (head_at(bytes).number != number || !(head_at(bytes).kind & META)) return bad(w, number, "it is not a meta page");
  if (out->magic != 0xBEEFC0DE || out->version != 1) return bad(w, number, "it is not a meta page of this format");
  uint32_t size = out->free.pad;
  if (size < PAGE_MIN || size > PAGE_MAX || (size & (size - 1)) != 0 || (w->page_size != 0 && size != w->page_size))
    return bad(w, number, "its page size is not one");
  w->page_size = size;
  return BCS_OK;
}

/* Where nobody writes: the newest, as LMDB chooses it. Two commits are never further apart than one. */
static bcs_status newest_meta(walk *w) {
  meta both[METAS];
  for (uint64_t i = 0; i < METAS; i++) {
    bcs_status status = read_meta(w, i, &both[i]);
    if (status != BCS_OK) return status;
  }
  bool second = both[0].transaction < both[1].transaction;
  uint64_t newer = both[second].transaction, older = both[!second].transaction;
  if (newer - older > 1 || (newer != 0 && (newer & 1) != second))
    return bad(w, second, "its transaction does not follow the one before");
  w->meta = both[second];
  return BCS_OK;
}

static bcs_status meta_of(walk *w, MDB_txn *txn) {
  for (int i = 0; i < SNAPSHOT_TRIES; i++) {
    uint64_t id = mdb_txn_id(txn);
    meta other;
    bcs_status status = read_meta(w, id & 1, &w->meta);
    if (status == BCS_OK) status = read_meta(w, ~id & 1, &other);
    if (status != BCS_OK) return status;
    if (w->meta.transaction == id && other.transaction <= id) return BCS_OK;
    mdb_txn_reset(txn);
    if (mdb_txn_renew(txn) != 0) return BCS_BUSY; /* the mapping is to be changed first */
    if (mdb_txn_id(txn) != id) continue;
    if (w->meta.transaction == id) return BCS_OK;
    return bad(w, id & 1, "it has another transaction than the readers see");
  }
  return BCS_BUSY; /* nothing was shown: each time somebody had committed meanwhile */
}

static bcs_status check_meta(walk *w, uint64_t number) {
  const meta *m = &w->meta;
  if (m->last < METAS - 1 || m->last >= map_max / w->page_size || m->map_size > map_max ||
      m->map_size / w->page_size <= m->last)
    return bad(w, number, "its sizes do not go together");
  if ((m->free.flags & TREE_FLAGS) != MDB_INTEGERKEY || m->main.flags != 0)
    return bad(w, number, "its trees have flags of others");
  return BCS_OK;
}

static bcs_status check_file(walk *w, bool only_metas, MDB_txn *txn) {
  struct stat st;
  meta first;
  if (fstat(w->fd, &st) != 0) return bcsi_fail_errno(errno, "stat", w->path);
  if (st.st_size == 0) return BCS_OK; /* a new one */
  bcs_status status = read_meta(w, 0, &first); /* tells the page size */
  if (status == BCS_OK && only_metas) return read_meta(w, 1, &first);
  if (status == BCS_OK) status = txn ? meta_of(w, txn) : newest_meta(w);
  uint64_t number = w->meta.transaction & 1;
  if (status == BCS_OK) status = check_meta(w, number);
  if (status != BCS_OK) return status;
  if (fstat(w->fd, &st) != 0) return bcsi_fail_errno(errno, "stat", w->path); /* again: the snapshot is known now */
  w->file_pages = (uint64_t)st.st_size / w->page_size;
  if (!(w->taken = malloc(w->page_size))) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, "check index", w->path, NULL);
  return check_trees(w, number);
}

bcs_status bcsi_pages_check(const char *data_file, bcsi_pages depth, MDB_txn *txn, bool (*stop)(void *context),
                            void *context, bcs_page_damage *out) {
  memset(out, 0, sizeof *out);
  walk w = {.path = data_file, .all = depth == BCSI_PAGES_ALL, .stop = stop, .context = context, .damage = out};
  w.fd = open(data_file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (w.fd < 0) return bcsi_fail_errno(errno, "open", data_file);
  bcs_status status = check_file(&w, depth == BCSI_PAGES_METAS, txn);
  close(w.fd);
  for (size_t i = 0; i < sizeof w.buffers / sizeof *w.buffers; i++) free(w.buffers[i]);
  free(w.taken);
  free(w.seen);
  return status;
}

bcs_status bcs_check_file(const char *data_file, bool all, bcs_page_damage *out) {
  bcs_status status = bcsi_pages_check(data_file, all ? BCSI_PAGES_ALL : BCSI_PAGES_PATHS, NULL, NULL, NULL, out);
  return out->found ? BCS_OK : status;
}
