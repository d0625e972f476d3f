import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// The tier in one process: what it keeps, what it lets go, what it counts.
@Suite("Memory tier", .timeLimit(.minutes(3)))
struct MemoryTierTests {
  private let directory = TemporaryDirectory()

  private func open(
    _ memory: BlobCache.MemoryTier = .init(),
    _ change: (inout BlobCache.Configuration) -> Void = { _ in }
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.memory = memory
    change(&configuration)
    return try BlobCache(directory: directory.path("cache"), configuration: configuration)
  }

  private func key(_ n: Int) -> BlobCache.Key { BlobCache.Key("key-\(n)") }

  private func fill(_ cache: BlobCache, _ count: Int, size: Int) async throws {
    try await cache.storeAll(
      (0..<count).map {
        BlobCache.Item(key: key($0), bytes: seededBytes(count: size, seed: UInt64($0)))
      })
  }

  // MARK: Hits

  @Test(arguments: [0, 1, 1000, 16_384, 16_385, 200_000])
  func theSecondReadIsFromMemoryAndTheSameBytes(size: Int) async throws {
    let cache = try open()
    let bytes = seededBytes(count: size, seed: 7)
    let attributes: BlobCache.Attributes = ["etag": "x"]
    try await cache.store(bytes, for: "key", attributes: attributes)
    let first = try #require(try cache.blob(for: "key"))
    #expect(first.source == (size > cache.info.inlineThreshold ? .file : .index))
    let second = try #require(try cache.blob(for: "key"))
    #expect(second.source == .memory && second.holds(bytes))
    #expect(second.digest == first.digest && second.entry.key == first.entry.key)
    #expect(second.attributes == attributes && second.entry.location == first.entry.location)
    #expect(second.storage === first.storage, "not copied")
    #expect(try cache.withBytes(for: "key") { $0.byteCount } == size)
    let fetched = try await cache.fetch("key") { _ in .complete }
    #expect(fetched.source == .memory && fetched.holds(bytes))
    let counts = cache.statistics
    #expect(counts.hits == 4 && counts.memoryHits == 3 && counts.misses == 0)
    #expect(counts.memoryEntries == 1 && counts.memoryBytes >= size)
    try await cache.close()
    #expect(second.holds(bytes))
  }

  @Test func withBytesFillsItToo() async throws {
    let cache = try open()
    for size in [10, 100_000] {
      let bytes = seededBytes(count: size, seed: 1)
      try await cache.store(bytes, for: "key")
      for _ in 0..<2 {
        let seen = try cache.withBytes(for: "key") { span in
          span.withUnsafeBytes { Array($0) }
        }
        #expect(seen == bytes)
      }
      #expect(try cache.blob(for: "key")?.source == .memory)
    }
    #expect(cache.statistics.memoryHits == 4)
    try await cache.close()
  }

  @Test func keysAreComparedByTheirBytes() async throws {
    let cache = try open()
    let keys: [BlobCache.Key] = [
      "", "\u{e9}", "e\u{301}", "a", "aa", "a\u{0}", BlobCache.Key([0xff] as [UInt8]),
      BlobCache.Key(String(repeating: "k", count: 65_535) + "1"),
      BlobCache.Key(String(repeating: "k", count: 65_535) + "2"),
    ]
    for (n, key) in keys.enumerated() { try await cache.store([UInt8(n)], for: key) }
    for _ in 0..<2 {
      for (n, key) in keys.enumerated() {
        #expect(try cache.blob(for: key)?.holds([UInt8(n)]) == true)
        #expect(try cache.blob(for: BlobCache.Key(key.bytes))?.holds([UInt8(n)]) == true)
      }
    }
    #expect(cache.statistics.memoryHits == 3 * keys.count)
    #expect(throws: BlobCache.Error.self) {
      try cache.blob(for: BlobCache.Key(String(repeating: "k", count: 65_537)))
    }
    try await cache.close()
  }

  /// As an access of the entry it is what a hit of the index is.
  @Test func aHitCountsAsAnAccess() async throws {
    let clock = BlobCache.ManualClock()
    let cache = try open { $0.clock = clock.clock }
    let stored = clock.now
    try await cache.store([1], for: "key")
    for n in 0..<5 {
      clock.advance(by: .seconds(1))
      let blob = try #require(try cache.blob(for: "key"))
      #expect(blob.source == (n == 0 ? .index : .memory))
      #expect(blob.entry.hits == n)
      #expect(blob.entry.lastAccess == (n == 0 ? nil : stored.addingTimeInterval(Double(n))))
    }
    #expect(try cache.entry(for: "key")?.hits == 5)
    #expect(try cache.entry(for: "key")?.lastAccess == clock.now)
    try await cache.close()
  }

  // MARK: What is not kept

  @Test func offIsOff() async throws {
    for memory in [BlobCache.MemoryTier.off, .init(bytes: 0), .init(entries: 0)] {
      let cache = try open(memory)
      try await cache.store([1], for: "key")
      for _ in 0..<3 { #expect(try cache.blob(for: "key")?.source == .index) }
      #expect(cache.statistics.memoryHits == 0 && cache.statistics.memoryEntries == 0)
      try await cache.close()
    }
  }

  @Test func everyReadIsVerifiedWhereThatIsAskedFor() async throws {
    let cache = try open { $0.verification = .always }
    try await cache.store([1], for: "key")
    for _ in 0..<3 { #expect(try cache.blob(for: "key")?.source == .index) }
    try await cache.close()
  }

  @Test func negativeBoundsAreRefused() async throws {
    for memory in [BlobCache.MemoryTier(bytes: -1), .init(entries: -1)] {
      let error = try await errorOf { _ = try open(memory) }
      #expect(error.code == .invalidArgument)
    }
  }

  @Test func whatIsLargeForItIsNotKept() async throws {
    let cache = try open(.init(bytes: 1 << 20))
    try await cache.store(seededBytes(count: 70_000, seed: 1), for: "large")
    try await cache.store(seededBytes(count: 10_000, seed: 1), for: "small")
    for _ in 0..<2 {
      #expect(try cache.blob(for: "large")?.source != .memory)
      _ = try cache.blob(for: "small")
    }
    #expect(try cache.blob(for: "small")?.source == .memory)
    #expect(cache.statistics.memoryEntries == 1)
    try await cache.close()
  }

  // MARK: Bounds

  @Test(arguments: [
    BlobCache.MemoryTier(bytes: 100_000, entries: 1_000_000),
    BlobCache.MemoryTier(bytes: 64 << 20, entries: 50),
    BlobCache.MemoryTier(bytes: 4000, entries: 3),
    BlobCache.MemoryTier(bytes: 2 << 20, entries: 3000),
  ])
  func theBoundsHoldAtEveryMoment(memory: BlobCache.MemoryTier) async throws {
    let cache = try open(memory)
    try await fill(cache, 4000, size: 500)
    var most = 0
    for _ in 0..<3 {
      for n in 0..<4000 {
        let blob = try cache.blob(for: key(n))
        if n.isMultiple(of: 50) {
          #expect(blob?.holds(seededBytes(count: 500, seed: UInt64(n))) == true)
          // Other tests have to do with the same few threads.
          await Task.yield()
        }
        let counts = cache.statistics
        most = max(most, counts.memoryEntries)
        if counts.memoryBytes > memory.bytes || counts.memoryEntries > memory.entries {
          Issue.record("\(counts.memoryEntries) entries, \(counts.memoryBytes) bytes")
        }
      }
    }
    #expect(most > 0)
    // Some of what was read last is there, and it is read from memory.
    let before = cache.statistics.memoryHits
    for n in 0..<4000 { _ = try cache.blob(for: key(n)) }
    for _ in 0..<3 { _ = try cache.blob(for: key(3999)) }
    #expect(cache.statistics.memoryHits > before)
    try await cache.close()
  }

  /// What is read again and again stays while a walk through everything goes by.
  @Test func whatIsInUseStays() async throws {
    let clock = BlobCache.ManualClock()
    let cache = try open(.init(bytes: 400_000, entries: 10_000)) { $0.clock = clock.clock }
    try await fill(cache, 4000, size: 500)
    var hits = 0
    for n in 0..<4000 {
      clock.advance(by: .milliseconds(1))
      _ = try cache.blob(for: key(n))
      if try cache.blob(for: key(n % 20))?.source == .memory { hits += 1 }
    }
    #expect(hits > 3800, "\(hits)")
    try await cache.close()
  }

  /// Blobs that are held keep their bytes, and nothing else: the tier is as small as it says.
  @Test func aHeldBlobPinsOnlyItself() async throws {
    let cache = try open(.init(bytes: 100_000, entries: 100))
    try await fill(cache, 500, size: 500)
    var held: [BlobCache.Blob] = []
    weak var other: BlobStorage?
    for n in 0..<500 {
      _ = try cache.blob(for: key(n))
      if let blob = try cache.blob(for: key(n)), n < 50 { held.append(blob) }
      if n == 60 { other = try cache.blob(for: key(n))?.storage }
      #expect(cache.statistics.memoryBytes <= 100_000)
    }
    try await cache.removeAll()
    for n in 0..<500 { try await cache.store([1], for: key(n)) }
    for _ in 0..<2 { for n in 0..<500 { _ = try cache.blob(for: key(n)) } }
    try await cache.close()
    #expect(other == nil, "let go")
    for (n, blob) in held.enumerated() {
      #expect(blob.holds(seededBytes(count: 500, seed: UInt64(n))))
    }
  }

  // MARK: Many at once

  /// Readers by both ways, stores, removals and clears over a tier that is far too small.
  @Test func manyTasksAtOnceReadWholeBytes() async throws {
    let cache = try open(.init(bytes: 60_000, entries: 60))
    let steps = 1500
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<8 {
        group.addTask {
          var random = SeededGenerator(seed: UInt64(task))
          for step in 0..<steps {
            let n = Int.random(in: 0..<200, using: &random)
            let key = BlobCache.Key("key-\(n)")
            let bytes = seededBytes(count: 100 + n, seed: UInt64(n))
            switch Int.random(in: 0..<100, using: &random) {
            case 0..<4: try await cache.store(bytes, for: key)
            case 4: try await cache.remove(key)
            case 5 where step % 50 == 0: try await cache.removeAll()
            case 6..<50:
              if let blob = try cache.blob(for: key) { #expect(blob.holds(bytes)) }
            default:
              let same = try cache.withBytes(for: key) { span in
                span.withUnsafeBytes { $0.elementsEqual(bytes) }
              }
              #expect(same != false)
            }
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(cache.statistics.memoryHits > 0)
    #expect(cache.statistics.memoryEntries <= 60 && cache.statistics.memoryBytes <= 60_000)
    try await cache.close()
  }

  /// Closed while lookups run: they end with bytes or with an error, and nothing hangs.
  @Test func closingDuringLookups() async throws {
    let threads = BlockingPool(workers: 2)
    for _ in 0..<10 {
      let cache = try open()
      try await cache.store([1, 2, 3], for: "key")
      // On threads that may be kept busy: the tasks' own are needed for `close()`.
      async let first = threads.run { readUntilClosed(cache) }
      async let second = threads.run { readUntilClosed(cache) }
      while cache.statistics.memoryHits == 0 { await Task.yield() }
      try await cache.close()
      #expect(await first == .closed)
      #expect(await second == .closed)
    }
  }
}

/// Looks up until that is an error, with pauses: other tests need the processors too.
private func readUntilClosed(_ cache: BlobCache) -> BlobCache.Error.Code? {
  do throws(BlobCache.Error) {
    while try cache.blob(for: "key") != nil {
      if cache.statistics.memoryHits.isMultiple(of: 64) { usleep(50) }
    }
  } catch {
    return error.code
  }
  return nil
}
