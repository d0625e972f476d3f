/* SHA-256 by OpenSSL's EVP. The algorithm is fetched once and every thread keeps a context: a one-shot call spends
 * three times the work of a short key on fetching (crypto(7ossl), "Performance"). */
#include "internal.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t fetch_once = PTHREAD_ONCE_INIT;
static EVP_MD *sha256;
static pthread_key_t context_key;
static bool context_key_made;

static void free_context(void *context) { EVP_MD_CTX_free(context); }

static void fetch(void) {
  sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
  context_key_made = pthread_key_create(&context_key, free_context) == 0;
}

static EVP_MD_CTX *thread_context(void) {
  static _Thread_local EVP_MD_CTX *mine;
  if (mine) return mine;
  pthread_once(&fetch_once, fetch);
  if (!sha256 || !context_key_made || bcsi_fault("digest") != 0) return NULL;
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  if (!context) return NULL;
  if (pthread_setspecific(context_key, context) != 0) {
    EVP_MD_CTX_free(context);
    return NULL;
  }
  /* From here on the same algorithm is meant by a NULL type, which skips a look-up in every init. */
  if (EVP_DigestInit_ex(context, sha256, NULL) != 1) return NULL;
  mine = context;
  return mine;
}

static bcs_status refused(void) { return bcsi_fail(BCS_CRYPTO, 0, "digest", NULL, "OpenSSL's SHA-256 is not at hand"); }

bcs_status bcsi_digest_parts(const void *a, size_t a_count, const void *b, size_t b_count,
                             uint8_t out[BCS_DIGEST_SIZE]) {
  EVP_MD_CTX *context = thread_context();
  if (!context || EVP_DigestInit_ex(context, NULL, NULL) != 1 || EVP_DigestUpdate(context, a, a_count) != 1 ||
      (b_count > 0 && EVP_DigestUpdate(context, b, b_count) != 1) || EVP_DigestFinal_ex(context, out, NULL) != 1)
    bcsi_sha256_parts(a, a_count, b, b_count, out);
  return BCS_OK;
}

bcs_status bcs_digest(const void *bytes, size_t count, uint8_t out[BCS_DIGEST_SIZE]) {
  return bcsi_digest_parts(bytes, count, NULL, 0, out);
}

struct bcsi_hasher {
  EVP_MD_CTX *context;
};

bcs_status bcsi_hasher_make(bcsi_hasher **out) {
  pthread_once(&fetch_once, fetch);
  bcsi_hasher *hasher = calloc(1, sizeof *hasher);
  if (!hasher) return bcsi_fail(BCS_NO_MEMORY, 0, "digest", NULL, NULL);
  hasher->context = EVP_MD_CTX_new();
  if (!sha256 || !hasher->context || EVP_DigestInit_ex(hasher->context, sha256, NULL) != 1) {
    bcsi_hasher_free(hasher);
    return refused();
  }
  *out = hasher;
  return BCS_OK;
}

bcs_status bcsi_hasher_update(bcsi_hasher *hasher, const void *bytes, size_t count) {
  return EVP_DigestUpdate(hasher->context, bytes, count) == 1 ? BCS_OK : refused();
}

bcs_status bcsi_hasher_finish(bcsi_hasher *hasher, uint8_t out[BCS_DIGEST_SIZE]) {
  return EVP_DigestFinal_ex(hasher->context, out, NULL) == 1 ? BCS_OK : refused();
}

void bcsi_hasher_free(bcsi_hasher *hasher) {
  if (!hasher) return;
  EVP_MD_CTX_free(hasher->context);
  free(hasher);
}

void bcsi_hex(const uint8_t *bytes, size_t count, char *out) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < count; i++) {
    out[2 * i] = digits[bytes[i] >> 4];
    out[2 * i + 1] = digits[bytes[i] & 15];
  }
  out[2 * count] = 0;
}

static int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool bcsi_unhex(const char *text, size_t count, uint8_t *out) {
  for (size_t i = 0; i < count; i++) {
    int high = nibble(text[2 * i]);
    int low = high < 0 ? -1 : nibble(text[2 * i + 1]);
    if (low < 0) return false;
    out[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}
