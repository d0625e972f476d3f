#include "CBaseline.h"

#include <lmdb.h>
#include <string.h>

const char *cb_error_text(int code) { return mdb_strerror(code); }

/* splitmix64: full-period, incompressible, one multiply chain a word. */
void cb_fill(uint64_t seed, void *out, size_t count) {
  uint8_t *at = out;
  for (uint64_t state = seed * 0xD1342543DE82EF95u + 1; count > 0;) {
    uint64_t word = state += 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    word ^= word >> 31;
    size_t part = count < sizeof word ? count : sizeof word;
    memcpy(at, &word, part);
    at += part;
    count -= part;
  }
}

uint64_t cb_sum(const void *bytes, size_t count) {
  const uint8_t *at = bytes;
  uint64_t sum = 0;
  for (size_t i = 0; i < count; i++) sum += at[i];
  return sum;
}
