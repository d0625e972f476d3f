#include "CBaseline.h"

#include <errno.h>
#include <openssl/evp.h>

/* A context and a fetched digest per thread: fetching costs more than hashing a short body. */
int cb_sha256(const void *bytes, size_t count, size_t piece, uint8_t digest[32]) {
  static _Thread_local EVP_MD_CTX *context;
  static _Thread_local EVP_MD *sha256;
  if (!context) context = EVP_MD_CTX_new();
  if (!sha256) sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
  if (!context || !sha256 || EVP_DigestInit_ex2(context, sha256, NULL) != 1) return ENOMEM;
  const uint8_t *at = bytes;
  for (size_t left = count; left > 0;) {
    size_t part = left < piece ? left : piece;
    if (EVP_DigestUpdate(context, at, part) != 1) return EIO;
    at += part;
    left -= part;
  }
  return EVP_DigestFinal_ex(context, digest, NULL) == 1 ? 0 : EIO;
}
