import Foundation
import Glibc

@testable import BlobCache
@testable import blobcache_test_process

/// What processes leave in a directory besides what is stored: nothing, when they are gone and it was swept.
struct Leftovers {
  let folder: CacheFolder

  init(_ path: String) { folder = CacheFolder(path) }

  /// The owners' pids of what lies in staging. Names begin with "boot.namespace.pid.start".
  var stagingOwners: [pid_t] {
    folder.files(in: "staging").map {
      pid_t($0.split(separator: ".").dropFirst(2).first ?? "") ?? -1
    }
  }

  /// The pids in the index's table of readers, as LMDB 0.9 has it: rows of 64 bytes, from byte 128. Only where this
  /// process has not opened the directory: to close the file here would give up LMDB's lock on it (fcntl(2)).
  var readers: [pid_t] {
    guard let data = FileManager.default.contents(atPath: folder.path + "/index/lock.mdb") else {
      return []
    }
    func number(_ at: Int) -> UInt32 {
      data[at..<at + 4].reversed().reduce(0) { $0 << 8 | UInt32($1) }
    }
    return (0..<Int(number(56))).map { pid_t(number(128 + $0 * 64 + 8)) }.filter { $0 != 0 }
  }

  /// Whether anybody holds a lock of any kind: use, writer, pins, leases.
  var isLocked: Bool {
    let file = open(folder.path + "/LOCK", O_RDWR | O_CLOEXEC)
    guard file >= 0 else { return false }
    defer { close(file) }
    var range = flock()
    range.l_type = CShort(F_WRLCK)
    let get: CInt = 36  // F_OFD_GETLK
    return fcntl(file, get, &range) != 0 || range.l_type != CShort(F_UNLCK)
  }

  /// Names of drafts of checkpoints.
  var drafts: [String] {
    folder.files(in: "index").filter { $0.hasPrefix("checkpoint.") }
  }

  /// Of a directory that all have closed; empty when nothing is left.
  var afterAll: [String] {
    var found: [String] = []
    if !folder.files(in: "staging").isEmpty {
      found.append("staging \(folder.files(in: "staging"))")
    }
    if !readers.isEmpty { found.append("readers \(readers)") }
    if isLocked { found.append("a lock") }
    if !drafts.isEmpty { found.append("drafts \(drafts)") }
    return found
  }

  /// Of one that only `survivor` has open, and has swept.
  func beside(_ survivor: pid_t) -> [String] {
    var found: [String] = []
    if stagingOwners.contains(where: { $0 != survivor }) {
      found.append("staging \(stagingOwners)")
    }
    if readers.contains(where: { $0 != survivor }) {
      found.append("readers \(readers), not \(survivor)")
    }
    return found
  }
}

/// Blob files that no entry has, and entries' files that are not there: exact while nobody else writes.
func strayFiles(of cache: BlobCache) async throws -> [String] {
  var wanted: Set<String> = []
  for try await entry in cache.entries() where entry.size > 16 * 1024 {
    wanted.insert("\(entry.digest.hex.prefix(2))/\(entry.digest.hex)")
  }
  return wanted.symmetricDifference(CacheFolder(cache.directory).blobFiles).sorted()
}
