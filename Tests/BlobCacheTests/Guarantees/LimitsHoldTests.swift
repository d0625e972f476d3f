import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 6: bytes on the disk, entries, age and free disk space are bounded at all times.
@Suite("6. The limits hold")
struct LimitsHoldTests {
  private let directory = TemporaryDirectory()
  private let clock = BlobCache.ManualClock()
  private var folder: CacheFolder { CacheFolder(directory.path("cache")) }

  private func open(_ limits: BlobCache.Limits?) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.limits = limits
    configuration.clock = clock.clock
    return try BlobCache(directory: directory.path("cache"), configuration: configuration)
  }

  @Test func entriesNeverExceedTheirLimit() async throws {
    let cache = try open(.entries(100))
    for i in 0..<500 {
      clock.advance(by: .seconds(1))
      try await cache.store(seededBytes(count: 100, seed: UInt64(i)), for: "key \(i)")
      #expect(cache.statistics.entries <= 100)
    }
    #expect(cache.statistics.entries == 100)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test(arguments: [1_000, 100_000])
  func bytesNeverExceedTheirLimit(size: Int) async throws {
    let limit = 8 << 20
    let cache = try open(.bytes(limit))
    for i in 0..<(3 * limit / size / (size == 1_000 ? 4 : 1)) {
      clock.advance(by: .seconds(1))
      try await cache.store(seededBytes(count: size, seed: UInt64(i)), for: "key \(i)")
    }
    #expect(try allocatedBytes(of: folder.path) <= limit + (2 << 20))
    // Small bodies share the index's pages, three or fewer to a page.
    #expect(cache.statistics.entries * size > limit / 3)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func usedBytesAreWhatALimitInBytesCounts() async throws {
    let cache = try open(BlobCache.Limits.none)
    for i in 0..<32 {
      try await cache.store(seededBytes(count: 100_000, seed: UInt64(i)), for: "key \(i)")
    }
    let full = cache.statistics.usedBytes
    #expect(full >= 32 * 100_000)
    #expect(try await cache.trim(to: .bytes(full)) == 0)
    let evicted = try await cache.trim(to: .bytes(full - 500_000))
    #expect((1...6).contains(evicted))
    #expect(cache.statistics.usedBytes <= full - 500_000)
    try await cache.removeAll()
    #expect(cache.statistics.usedBytes < full - 32 * 100_000)
    try await cache.close()
  }
}

/// What `du` counts.
func allocatedBytes(of path: String) throws -> Int {
  let names = FileManager.default.enumerator(atPath: path)?.allObjects as? [String] ?? []
  return ([""] + names).reduce(0) { sum, name in
    sum + Int(fileStatus(name.isEmpty ? path : "\(path)/\(name)")?.st_blocks ?? 0) * 512
  }
}
