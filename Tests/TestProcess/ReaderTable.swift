import BlobCache
import Foundation
import Glibc

extension Commands {
  /// `stand-in-table DIRECTORY`: takes the lock of LMDB's table of readers, as whoever registers a reader does for a
  /// moment, and stands still with it (SIGSTOP). Gives it up when it is continued.
  func standInTable(_ words: [String]) throws {
    let file = Glibc.open("\(try word(words, 0))/index/lock.mdb", O_RDWR | O_CLOEXEC)
    guard file >= 0 else { throw UsageError(description: "lock.mdb: errno \(errno)") }
    let pages = mmap(nil, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
    close(file)
    guard let pages, pages != MAP_FAILED else { throw UsageError(description: "errno \(errno)") }
    defer { munmap(pages, 4096) }
    // mdb.c of LMDB 0.9, MDB_txbody: the magic and the format, four bytes each, then the mutex.
    let mutex = (pages + 8).assumingMemoryBound(to: pthread_mutex_t.self)
    let code = pthread_mutex_lock(mutex)
    guard code == 0 else { throw UsageError(description: "pthread_mutex_lock: \(code)") }
    raise(SIGSTOP)
    pthread_mutex_unlock(mutex)
  }
}
