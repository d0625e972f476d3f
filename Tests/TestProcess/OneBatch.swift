import CBlobStore
import Foundation

extension Commands {
  /// `batch DIRECTORY COUNT`: through the C core, a removal of everything and COUNT stores of keys new-0 … in one batch,
  /// which from above happens only by chance. A fault that was set before strikes in it.
  func clearAndStore(_ words: [String]) throws -> String {
    guard words.count == 2, let count = Int(words[1]) else {
      throw UsageError(description: "batch DIRECTORY COUNT")
    }
    var options = bcs_options()
    options.durability = BCS_AS_RECORDED
    var store: OpaquePointer?
    guard bcs_open(words[0], &options, &store) == BCS_OK, let store else { return cError("open") }
    defer { bcs_close(store) }
    var writes: [OpaquePointer?] = [nil]
    guard bcs_write_clear(store, &writes[0]) == BCS_OK else { return cError("clear") }
    defer { for write in writes { bcs_write_free(write) } }
    for number in 0..<count {
      var write: OpaquePointer?
      let status = Array("new-\(number)".utf8).withUnsafeBytes { key in
        var spec = bcs_entry_spec(
          key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
          tags: nil, tags_count: 0,
          lifetime: bcs_lifetime(
            kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0), stale_ms: 0,
          now_ms: 1_900_000_000_000)
        return bcs_write_inline(store, &spec, "x", 1, nil, &write)
      }
      guard status == BCS_OK else { return cError("store") }
      writes.append(write)
    }
    return bcs_commit(store, writes, writes.count, false) == BCS_OK ? "ok" : cError("commit")
  }
}
