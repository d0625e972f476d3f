// The libcrypto part of OpenSSL 3, from libssl-dev (Debian) or openssl@3 (Homebrew). Only C sources include it.
#include <openssl/evp.h>
