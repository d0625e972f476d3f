import CBlobStore
import Foundation

extension Commands {
  /// `batch DIRECTORY COUNT`: through the C core, a removal of everything and COUNT stores of keys new-0 … in one batch,
  /// which from above happens only by chance. A fault that was set before strikes in it.
  func clearAndStore(_ words: [String]) throws -> String {
    guard words.count == 2, let count = Int(words[1]) else {
      throw UsageError(description: "batch DIRECTORY COUNT")
    }
    guard let store = coreStore(words[0]) else { return cError("open") }
    defer { bcs_close(store) }
    var writes: [OpaquePointer?] = [nil]
    guard bcs_write_clear(store, &writes[0]) == BCS_OK else { return cError("clear") }
    defer { for write in writes { bcs_write_free(write) } }
    for number in 0..<count {
      guard let write = coreWrite(store, "new-\(number)") else { return cError("store") }
      writes.append(write)
    }
    return bcs_commit(store, writes, writes.count, false) == BCS_OK ? "ok" : cError("commit")
  }
}
