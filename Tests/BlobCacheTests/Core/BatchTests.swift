import CBlobStore
import Foundation
import Testing

/// What the C core promises of one batch, asked of it directly: which writes share a batch cannot be
/// chosen from above.
@Suite("Batches of the C core") struct BatchTests {
  private func put(
    _ store: OpaquePointer, _ key: String, window: Int64, now: Int64
  ) throws -> OpaquePointer {
    var write: OpaquePointer?
    let bytes = Array("body of \(key)".utf8)
    let status = Array(key.utf8).withUnsafeBytes { key in
      var spec = bcs_entry_spec(
        key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
        tags: nil, tags_count: 0,
        lifetime: bcs_lifetime(
          kind: BCS_SLIDING, shortened_ms: 0, deadline_ms: .max, window_ms: window),
        stale_ms: 0, now_ms: now)
      return bcs_write_inline(store, &spec, bytes, bytes.count, nil, &write)
    }
    #expect(status == BCS_OK)
    return try #require(write)
  }

  private func isFresh(_ store: OpaquePointer, _ key: String, now: Int64) -> Bool {
    var damage = bcs_damage()
    let flags = BCS_LOOKUP_TOUCH.rawValue | BCS_LOOKUP_FRESH_ONLY.rawValue
    return Array(key.utf8).withUnsafeBytes {
      bcs_lookup(store, $0.baseAddress, $0.count, now, flags, { _, _, _ in }, nil, &damage)
    } == BCS_OK
  }

  private func withStore(_ body: (OpaquePointer) throws -> Void) throws {
    let path = NSTemporaryDirectory() + "batch-" + UUID().uuidString
    defer { try? FileManager.default.removeItem(atPath: path) }  // a leftover of a failed test
    var options = bcs_options()
    options.create = true
    var opened: OpaquePointer?
    try #require(bcs_open(path, &options, &opened) == BCS_OK)
    let store = try #require(opened)
    defer { bcs_close(store) }
    try body(store)
    var report = bcs_check_report()
    #expect(bcs_check_structure(store, false, &report, nil, nil) == BCS_OK)
    #expect(report.wrong_slots == 0 && report.wrong_totals == 0 && report.wrong_digests == 0)
  }

  private func commit(_ store: OpaquePointer, _ writes: [OpaquePointer?]) -> [bcs_status] {
    _ = bcs_commit(store, writes, writes.count, false)
    defer { for write in writes { bcs_write_free(write) } }
    return writes.map { bcs_write_result($0, nil) }
  }

  /// What an entry's line tells is only right until the batch's first change of it.
  @Test func twoChangesOfAnEntryInABatchKeepItsLastAccess() throws {
    try withStore { store in
      #expect(commit(store, [try put(store, "a", window: 20_000, now: 1_000_000)]) == [BCS_OK])
      #expect(isFresh(store, "a", now: 1_015_000))
      let pins = try [true, false].map { pinned in
        var write: OpaquePointer?
        #expect(bcs_write_pin(store, "a", 1, pinned, &write) == BCS_OK)
        return try #require(write)
      }
      #expect(commit(store, pins) == [BCS_OK, BCS_OK])
      #expect(isFresh(store, "a", now: 1_030_000))
    }
  }

  @Test func aRemovalDoesNotTakeTheLineOfAStoreInItsBatch() throws {
    try withStore { store in
      #expect(commit(store, [try put(store, "a", window: 20_000, now: 1_000_000)]) == [BCS_OK])
      var removal: OpaquePointer?
      #expect(bcs_write_remove(store, "a", 1, &removal) == BCS_OK)
      let stored = try put(store, "b", window: 20_000, now: 1_000_000)
      #expect(commit(store, [removal, stored]) == [BCS_OK, BCS_OK])
      #expect(isFresh(store, "b", now: 1_000_001))
      #expect(isFresh(store, "b", now: 1_015_000))
      #expect(isFresh(store, "b", now: 1_030_000))
      #expect(!isFresh(store, "a", now: 1_000_001))
    }
  }

  @Test func whatComesBeforeAClearInItsBatchIsGoneAndWhatComesAfterStays() throws {
    try withStore { store in
      var clear: OpaquePointer?
      let before = try put(store, "a", window: 20_000, now: 1_000_000)
      #expect(bcs_write_clear(store, &clear) == BCS_OK)
      let after = try put(store, "b", window: 20_000, now: 1_000_000)
      #expect(commit(store, [before, clear, after]) == [BCS_OK, BCS_OK, BCS_OK])
      #expect(!isFresh(store, "a", now: 1_000_001))
      #expect(isFresh(store, "b", now: 1_015_000))
    }
  }

  @Test func twoStoresOfOneKeyInABatchLeaveTheSecond() throws {
    try withStore { store in
      let first = try put(store, "a", window: 5_000, now: 1_000_000)
      let second = try put(store, "a", window: 20_000, now: 1_000_000)
      #expect(commit(store, [first, second]) == [BCS_OK, BCS_OK])
      #expect(isFresh(store, "a", now: 1_010_000))
    }
  }
}
