import CBlobStore
import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// A write that could not be made is tried again, by the core or by its caller: as if it had not been tried before.
@Suite("What is tried again") struct TriedAgainTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  /// One try that finds no space, after which the same write may be committed again.
  private func tryInVain(_ store: CoreStore, _ write: OpaquePointer) {
    let noSpace: @Sendable (String) -> Int32 = { $0 == "before-commit" ? ENOSPC : 0 }
    let status = FaultHook.here(noSpace) { bcs_commit(store.raw, [write], 1, true) }
    #expect(status == BCS_BUSY)
  }

  @Test func aStoreThatWasTriedWhileItsKeyWasPinnedDoesNotPinItAnew() throws {
    let store = try CoreStore(path)
    #expect(store.commit([try store.put("key", [1]), try store.pin("key")]) == [BCS_OK, BCS_OK])
    let write = try store.put("key", [2, 2])
    tryInVain(store, write)
    #expect(store.record("key")?.size == 1)
    #expect(store.commit([try store.remove("key")]) == [BCS_OK])
    #expect(store.commit([write]) == [BCS_OK])
    #expect(store.record("key")?.size == 2)
    #expect(store.record("key")?.pinned == false)
    var counters = bcs_counters()
    bcs_count(store.raw, &counters)
    #expect(counters.pinned_entries == 0 && counters.pinned_bytes == 0)
  }

  /// And the other way: a pin that came between is kept.
  @Test func aStoreThatWasTriedBeforeItsKeyWasPinnedKeepsThePin() throws {
    let store = try CoreStore(path)
    #expect(store.commit([try store.put("key", [1])]) == [BCS_OK])
    let write = try store.put("key", [2, 2])
    tryInVain(store, write)
    #expect(store.commit([try store.pin("key")]) == [BCS_OK])
    #expect(store.commit([write]) == [BCS_OK])
    #expect(store.record("key")?.pinned == true)
  }

  @Test func aRenewalThatIsTriedAgainKeepsTheStaleWindowThatIsThereThen() throws {
    let store = try CoreStore(path)
    let lifetime = bcs_lifetime(
      kind: BCS_EXPIRES, shortened_ms: 0, deadline_ms: CoreStore.now + 5000, window_ms: 5000)
    #expect(store.commit([try store.put("key", [1], stale: 1000, lifetime: lifetime)]) == [BCS_OK])
    let write = try store.renew("key", lifetime: lifetime)
    tryInVain(store, write)
    let other = try store.put("key", [1], stale: 50_000, lifetime: lifetime)
    #expect(store.commit([other]) == [BCS_OK])
    #expect(store.commit([write]) == [BCS_OK])
    #expect(store.record("key")?.stale_ms == 50_000)
  }

  // MARK: No space in the end

  /// Bodies of more than 16 bytes are staged; the write borrows its stage.
  private func staged(_ store: CoreStore, _ key: String) throws -> (OpaquePointer, OpaquePointer) {
    var stage: OpaquePointer?
    var write: OpaquePointer?
    var size: UInt64 = 0
    var digest = [UInt8](repeating: 0, count: Int(BCS_DIGEST_SIZE))
    let body = Array("a body that is staged: \(key)".utf8)
    try #require(bcs_stage_begin(store.raw, &stage) == BCS_OK)
    try #require(bcs_stage_write(stage, body, body.count) == BCS_OK)
    try #require(bcs_stage_finish(stage, &digest, &size) == BCS_OK)
    let status = CoreStore.withSpec(key) { bcs_write_staged(store.raw, $0, stage, &write) }
    try #require(status == BCS_OK)
    return (try #require(write), try #require(stage))
  }

  /// Twenty find no space, which evictions make; then sixteen do, and the last four never.
  @Test func whatFindsNoSpaceInTheEndFailsNoneOfThoseThatWereCommitted() throws {
    let store = try CoreStore(path, inline: 16)
    let old = try (0..<40).map { try staged(store, "old-\($0)") }
    #expect(store.commit(old.map(\.0)).allSatisfy { $0 == BCS_OK })
    let new = try (0..<20).map { try staged(store, "new-\($0)") }
    defer { for (_, stage) in old + new { bcs_stage_free(stage) } }
    let writes = new.map { Optional($0.0) }
    let once = NoSpaceButOnce()
    let status = FaultHook.here(once.fault) { bcs_commit(store.raw, writes, writes.count, false) }
    #expect(status == BCS_OK)
    let results = writes.map { bcs_write_result($0, nil) }
    #expect(
      results == Array(repeating: BCS_OK, count: 16) + Array(repeating: BCS_NO_SPACE, count: 4))
    for write in writes { bcs_write_free(write) }
  }

  /// The same of the queue, where each of them has a caller of its own.
  @Test func theQueueThrowsAtThoseOnlyThatFoundNoSpace() throws {
    var configuration = BlobCache.Configuration()
    configuration.inlineThreshold = 16
    let handle = try StoreHandle(directory: path, configuration: configuration)
    let thread = DispatchQueue(label: "writer of a test")
    let isThread = DispatchSpecificKey<Bool>()
    thread.setSpecific(key: isThread, value: true)
    let queue = WriteQueue(handle: handle, thread: thread) { _ in }

    func prepared(_ key: String) throws -> PreparedWrite {
      let stage = try Stage.begin(handle)
      try Array("a body that is staged: \(key)".utf8).withUnsafeBytes { try stage.write($0) }
      _ = try stage.finish()
      return try #require(
        try stage.prepare { store, stage, out in
          CoreStore.withSpec(key) { bcs_write_staged(store, $0, stage, &out) }
        })
    }
    /// As one batch: the thread begins when all of them are queued.
    func commit(_ writes: [PreparedWrite]) {
      thread.suspend()
      for write in writes { queue.commitInBackground(write) { _ in } }
      thread.resume()
      thread.sync {}
    }

    let old = try (0..<40).map { try prepared("old-\($0)") }
    commit(old)
    for write in old { #expect(try write.outcome("store") == BCS_OK) }
    let new = try (0..<20).map { try prepared("new-\($0)") }
    let once = NoSpaceButOnce()
    let there: @Sendable (String) -> Int32 = {
      DispatchQueue.getSpecific(key: isThread) == true ? once.fault($0) : 0
    }
    FaultHook.with(there) { commit(new) }
    for write in new.prefix(16) { #expect(try write.outcome("store") == BCS_OK) }
    for write in new.suffix(4) {
      let error = #expect(throws: BlobCache.Error.self) { try write.outcome("store") }
      #expect(error?.code == .noSpace)
    }
  }
}
