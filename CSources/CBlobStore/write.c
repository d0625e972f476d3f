/* Preparing writes, on any thread: hashing and encoding happen here, so that the one writer only moves bytes. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bcs_status make(bcs_store *store, bcsi_write_kind kind, bcs_write **out) {
  if (store->options.read_only) return bcsi_fail(BCS_READ_ONLY, 0, NULL, store->info.path, NULL);
  bcs_write *write = calloc(1, sizeof *write);
  if (!write) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, NULL, store->info.path, NULL);
  write->kind = kind;
  write->result = BCS_MISS;
  *out = write;
  return BCS_OK;
}

static bcs_status check_spec(const bcs_entry_spec *spec) {
  if (spec->key_count > BCS_KEY_MAX) return bcsi_fail(BCS_KEY_TOO_LONG, 0, NULL, NULL, NULL);
  if (spec->attributes_count > BCS_ATTRIBUTES_MAX) return bcsi_fail(BCS_ATTRIBUTES_TOO_LARGE, 0, NULL, NULL, NULL);
  if (spec->tags_count > BCS_TAGS_MAX) return bcsi_fail(BCS_TAGS_TOO_LARGE, 0, NULL, NULL, NULL);
  return BCS_OK;
}

static bcs_status encode(bcs_write *write, const bcs_entry_spec *spec, const uint8_t digest[BCS_DIGEST_SIZE],
                         uint64_t size, bool is_file, const void *body) {
  size_t body_count = is_file ? 0 : (size_t)size;
  size_t variable_count = spec->key_count + spec->attributes_count + spec->tags_count;
  size_t count = BCSI_RECORD_HEAD + variable_count + body_count;
  write->record = malloc(count);
  if (!write->record) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, NULL, NULL, NULL);
  write->now_ms = spec->now_ms;
  write->record_count = count;
  write->key_count = spec->key_count;
  write->attributes_count = spec->attributes_count;
  write->tags_count = spec->tags_count;
  bcs_record record = {.size = size, .is_file = is_file, .lifetime = spec->lifetime, .written_ms = spec->now_ms,
                       .key_count = spec->key_count, .attributes_count = spec->attributes_count,
                       .tags_count = spec->tags_count, .stale_ms = spec->stale_ms};
  memcpy(record.digest, digest, BCS_DIGEST_SIZE);
  bcsi_record_encode_head(write->record, &record);
  uint8_t *at = write->record + BCSI_RECORD_HEAD;
  if (spec->key_count) memcpy(at, spec->key, spec->key_count);
  at += spec->key_count;
  if (spec->attributes_count) memcpy(at, spec->attributes, spec->attributes_count);
  at += spec->attributes_count;
  if (spec->tags_count) memcpy(at, spec->tags, spec->tags_count);
  at += spec->tags_count;
  if (body_count) memcpy(at, body, body_count);
  bcs_status status = bcsi_record_seal(write->record, variable_count);
  if (status == BCS_OK) status = bcsi_key_hash(spec->key, spec->key_count, write->key_hash);
  return status;
}

static bcs_status finish(bcs_status status, bcs_write *write, bcs_write **out) {
  if (status == BCS_OK) *out = write;
  else bcs_write_free(write);
  return status;
}

bcs_status bcs_write_inline(bcs_store *store, const bcs_entry_spec *spec, const void *bytes, size_t count,
                            const uint8_t *digest, bcs_write **out) {
  bcs_write *write = NULL;
  uint8_t computed[BCS_DIGEST_SIZE];
  if (count > store->inline_threshold)
    return bcsi_fail(BCS_INVALID, 0, "store", NULL, "the body is above the inline threshold: stage it");
  bcs_status status = check_spec(spec);
  if (status == BCS_OK && !digest) {
    status = bcs_digest(bytes, count, computed);
    digest = computed;
  }
  if (status == BCS_OK) status = make(store, BCSI_PUT_INLINE, &write);
  if (status == BCS_OK) status = encode(write, spec, digest, count, false, bytes);
  return finish(status, write, out);
}

/* A file under this digest is there: in use, or kept when an index was set aside. Its bytes are hashed before a store
 * relies on them, since what the store acknowledges must be readable. *trusted: `out` is the file that was hashed. */
static bcs_status look_for_file(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], uint64_t size,
                                bcsi_identity *out, bool *trusted) {
  struct stat st;
  int fd;
  bcs_status status = bcsi_blob_open(store, digest, &fd, &st);
  if (status != BCS_OK) return status == BCS_DAMAGED ? BCS_MISS : status;
  if ((uint64_t)st.st_size == size) {
    uint8_t found[BCS_DIGEST_SIZE];
    uint64_t hashed;
    char shown[4300];
    bcsi_blob_shown(store, digest, shown, sizeof shown);
    status = bcsi_blob_hash_file(fd, found, &hashed, shown);
    *trusted = status == BCS_OK && hashed == size && memcmp(found, digest, BCS_DIGEST_SIZE) == 0;
    if (*trusted && store->durable && fsync(fd) != 0) *trusted = false; /* then it is written anew */
    bcsi_identify(&st, out);
  } else {
    status = BCS_MISS;
  }
  close(fd);
  return status;
}

static bcs_status trust_file(bcs_store *store, const uint8_t digest[BCS_DIGEST_SIZE], uint64_t size,
                             bcsi_identity *out, bool *trusted) {
  *trusted = false;
  bcs_status status = bcsi_call_enter(store);
  if (status != BCS_OK) return status;
  status = look_for_file(store, digest, size, out, trusted);
  bcsi_call_leave(store);
  return status;
}

bcs_status bcs_write_staged(bcs_store *store, const bcs_entry_spec *spec, bcs_stage *stage, bcs_write **out) {
  bcs_write *write = NULL;
  bcs_status status = check_spec(spec);
  if (status == BCS_OK && !stage->finished)
    status = bcsi_fail(BCS_INVALID, 0, "store", store->info.path, "the staged body is not finished");
  if (status != BCS_OK) return status;
  if (stage->size <= store->inline_threshold) {
    size_t got = 0, size = (size_t)stage->size;
    uint8_t *body = malloc(size + 1);
    if (!body) return bcsi_fail(BCS_NO_MEMORY, ENOMEM, NULL, NULL, NULL);
    status = bcs_stage_read(stage, 0, body, size, &got);
    if (status == BCS_OK && got != size)
      status = bcsi_fail(BCS_IO, 0, "read", store->info.path, "a file in staging is too short");
    if (status == BCS_OK) status = bcs_write_inline(store, spec, body, size, stage->digest, out);
    free(body);
    return status;
  }
  status = make(store, BCSI_PUT_STAGED, &write);
  if (status == BCS_OK) status = encode(write, spec, stage->digest, stage->size, true, NULL);
  if (status == BCS_OK) {
    write->stage = stage;
    bcs_status found = trust_file(store, stage->digest, stage->size, &write->trusted, &write->is_trusted);
    if (found == BCS_CLOSED || found == BCS_FORKED) status = found; /* other trouble: it is simply published */
  }
  return finish(status, write, out);
}

bcs_status bcs_write_shared(bcs_store *store, const bcs_entry_spec *spec, const uint8_t digest[BCS_DIGEST_SIZE],
                            uint64_t size, bcs_write **out) {
  bcs_write *write = NULL;
  bcs_status status = check_spec(spec);
  if (status == BCS_OK && size <= store->inline_threshold)
    status = bcsi_fail(BCS_INVALID, 0, "store", NULL, "a body of this size stands in the index");
  if (status != BCS_OK) return status;
  bcsi_identity identity = {0};
  bool trusted;
  status = trust_file(store, digest, size, &identity, &trusted);
  if (status != BCS_OK) return status;
  if (!trusted) return BCS_MISS;
  status = make(store, BCSI_PUT_SHARED, &write);
  if (status == BCS_OK) status = encode(write, spec, digest, size, true, NULL);
  if (status == BCS_OK) {
    write->trusted = identity;
    write->is_trusted = trusted;
  }
  return finish(status, write, out);
}

bcs_status bcs_write_remove(bcs_store *store, const void *key, size_t key_count, bcs_write **out) {
  bcs_write *write = NULL;
  bcs_status status = make(store, BCSI_REMOVE, &write);
  if (status == BCS_OK) status = bcsi_key_hash(key, key_count, write->key_hash);
  return finish(status, write, out);
}

bcs_status bcs_write_remove_if(bcs_store *store, const uint8_t key_hash[BCS_HASH_SIZE], uint64_t generation,
                               bcs_write **out) {
  bcs_write *write = NULL;
  bcs_status status = make(store, BCSI_REMOVE_IF, &write);
  if (status == BCS_OK) {
    memcpy(write->key_hash, key_hash, BCS_HASH_SIZE);
    write->generation = generation;
  }
  return finish(status, write, out);
}

/* The record is made when the batch is applied, from the one that is there: here only what changes is kept. */
bcs_status bcs_write_renew(bcs_store *store, const bcs_entry_spec *spec, uint64_t generation, bcs_write **out) {
  bcs_write *write = NULL;
  static const uint8_t none[BCS_DIGEST_SIZE];
  bcs_status status = check_spec(spec);
  if (status == BCS_OK) status = make(store, BCSI_RENEW, &write);
  if (status == BCS_OK) status = encode(write, spec, none, 0, true, NULL);
  if (status == BCS_OK) {
    write->generation = generation;
    write->has_attributes = spec->attributes != NULL;
    write->keeps_stale = spec->stale_ms < 0;
    write->has_tags = spec->tags != NULL;
  }
  return finish(status, write, out);
}

bcs_status bcs_write_pin(bcs_store *store, const void *key, size_t key_count, bool pin, bcs_write **out) {
  bcs_entry_spec spec = {.key = key, .key_count = key_count};
  bcs_status status = bcs_write_renew(store, &spec, 0, out);
  if (status != BCS_OK) return status;
  (*out)->kind = BCSI_PIN;
  (*out)->pin = pin;
  return BCS_OK;
}

bcs_status bcs_write_heal(bcs_store *store, const bcs_damage *damage, bcs_write **out) {
  bcs_write *write = NULL;
  bcs_status status = make(store, BCSI_HEAL, &write);
  if (status == BCS_OK) {
    write->damage = *damage;
    write->generation = damage->generation;
    memcpy(write->key_hash, damage->key_hash, BCS_HASH_SIZE);
  }
  return finish(status, write, out);
}

bcs_status bcs_write_clear(bcs_store *store, bcs_write **out) { return make(store, BCSI_CLEAR, out); }

void bcs_write_free(bcs_write *write) {
  if (!write) return;
  free(write->record);
  free(write);
}

size_t bcs_write_cost(const bcs_write *write) { return sizeof *write + write->record_count; }

bcs_status bcs_write_result(const bcs_write *write, bcs_error *error) {
  if (error) *error = write->error;
  return write->result;
}

void bcs_write_record(const bcs_write *write, bcs_record *out) {
  bcsi_record record;
  memset(out, 0, sizeof *out);
  if (!write->record || !bcsi_record_decode(write->record, write->record_count, &record)) return;
  *out = record.view;
  memcpy(out->key_hash, write->key_hash, BCS_HASH_SIZE);
  out->access_ms = write->access_ms;
  out->hits = write->hits;
}
