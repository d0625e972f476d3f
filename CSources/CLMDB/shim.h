// LMDB, from liblmdb-dev (Debian) or lmdb (Homebrew). Only C sources include it.
#include <lmdb.h>
