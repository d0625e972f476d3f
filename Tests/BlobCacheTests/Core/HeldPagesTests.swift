import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// While a reader stands still the index's file keeps to its bound, whatever is tried, and however often.
@Suite("Pages that a reader holds", .serialized) struct HeldPagesTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }
  /// Of the free pages of a cache with a small limit.
  private let allowance = 4 << 20

  private func readerThatStandsStill() async throws -> SecondProcess {
    let reader = try await SecondProcess.over(path)
    _ = try await reader.call("fault list 1 stop")
    try reader.send("list")
    try await reader.untilStopped()
    return reader
  }

  private func puts(
    _ store: CoreStore, _ count: Int, of keys: Int, _ random: inout SeededGenerator
  ) throws -> [OpaquePointer] {
    try (0..<count).map { _ in
      let number = Int.random(in: 0..<keys, using: &random)
      return try store.put(
        "key-\(number)", Array(repeating: UInt8(truncatingIfNeeded: random.next()), count: 900))
    }
  }

  @Test func whatIsRefusedAndTriedAgainTakesNoPages() async throws {
    let limit = 8 << 20
    let store = try CoreStore(path, bytes: limit)
    let keys = 3000  // fewer than fit: evictions take pages, too
    var random = SeededGenerator(seed: 1)
    for _ in 0..<20 { store.commit(try puts(store, 250, of: keys, &random)) }
    let reader = try await readerThatStandsStill()
    var results = [BCS_OK]
    for _ in 0..<400 where results[0] == BCS_OK {
      results = store.commit(try puts(store, 50, of: keys, &random))
    }
    try #require(results.allSatisfy { $0 == BCS_HELD })
    #expect(store.indexBytes <= limit + 4 * allowance + (1 << 20))

    /// Of a batch that is tried 300 times, and of which nothing is done: by how much the file grows.
    var done = 0
    func growth(_ batch: () throws -> [OpaquePointer]) throws -> Int {
      let before = store.indexBytes
      for _ in 0..<300 { done += store.commit(try batch()).count { $0 == BCS_OK } }
      return store.indexBytes - before
    }
    func removals() throws -> [OpaquePointer] {
      try (0..<8).map { try store.remove("absent-\($0)") }
    }
    let allowed = 256 << 10
    let stores = try growth { try puts(store, 8, of: keys, &random) }
    #expect(stores <= allowed)
    let both = try growth { try puts(store, 4, of: keys, &random) + removals() }
    #expect(both <= allowed)
    let renewals = try growth {
      try (0..<8).map { _ in try store.renew("key-\(Int.random(in: 0..<keys, using: &random))") }
    }
    #expect(renewals <= allowed)
    let absent = try growth(removals)
    #expect(absent <= allowed)
    #expect(done == 0)
    reader.kill()
    #expect(store.commit(try puts(store, 8, of: 5000, &random)).allSatisfy { $0 == BCS_OK })
  }

  /// Each of them frees more pages than an allowance is.
  @Test func largeBatchesKeepToTheBoundToo() async throws {
    let limit = 16 << 20
    let batch = 8 << 20  // of a thousand stores: a leaf for each, twice
    let store = try CoreStore(path, bytes: limit)
    var random = SeededGenerator(seed: 2)
    store.commit(try puts(store, 1, of: 1, &random))
    let reader = try await readerThatStandsStill()
    var results = [BCS_OK]
    var most = 0
    for _ in 0..<40 where results[0] == BCS_OK {
      results = store.commit(try puts(store, 1000, of: 20_000, &random))
      most = max(most, store.indexBytes)
    }
    #expect(results.allSatisfy { $0 == BCS_HELD })
    #expect(most <= limit + 4 * allowance + batch)
    reader.kill()
    #expect(store.commit(try puts(store, 8, of: 5000, &random)).allSatisfy { $0 == BCS_OK })
  }
}
