import Foundation
import Synchronization
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promises 5 and 6 where the disk is small: what a checkpoint keeps of the index is bounded by what the disk has, and a
/// body that no eviction makes room for evicts nothing.
@Suite("5, 6. A small disk", .serialized)
struct SmallDiskTests {
  enum Use: CaseIterable { case oneTask, batches, limited, unlimited }

  @Test(
    .enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"),
    arguments: Use.allCases)
  func overwritesDoNotFillItWithOldPages(use: Use) async throws {
    let disk = try SmallFileSystem(mebibytes: 24)
    var configuration = BlobCache.Configuration()
    configuration.limits =
      switch use {
      case .limited: .bytes(1 << 30)
      case .unlimited: .unlimited
      default: nil
      }
    let cache = try BlobCache(directory: "\(disk.path)/cache", configuration: configuration)
    let body = seededBytes(count: 1000, seed: 1)
    for index in 0..<400 { try await cache.store(body, for: "\(index)") }
    try await cache.flush()  // from here on a checkpoint keeps its pages
    if use == .batches {
      for _ in 0..<100 {
        try await cache.storeAll(
          (0..<400).map { BlobCache.Item(key: "\($0)", bytes: body) })
      }
    } else {
      for index in 0..<4000 { try await cache.store(body, for: "\(index % 400)") }
    }
    #expect(cache.statistics.entries == 400)
    try await cache.flush()
    try await cache.sweep()
    for index in 0..<400 { #expect(try #require(try cache.blob(for: "\(index)")).holds(body)) }
    let large = seededBytes(count: 6 << 20, seed: 2)
    try await cache.store(large, for: "large")
    #expect(try #require(try cache.blob(for: "large")).holds(large))
    try await cache.close()
    #expect(try await structureOf("\(disk.path)/cache") == "ok")
  }

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func whatTheDiskHasNoRoomForEvictsNothing() async throws {
    let disk = try SmallFileSystem(mebibytes: 24)
    let cache = try BlobCache(directory: "\(disk.path)/cache")
    for index in 0..<6 {
      try await cache.store(seededBytes(count: 500_000, seed: UInt64(index)), for: "\(index)")
    }
    let announced = try await errorOf {
      try await cache.store(for: "large", expectingSize: 50 << 20) { body in
        try await body.write([UInt8](repeating: 1, count: 50 << 20))
      }
    }
    let whole = try await errorOf {
      try await cache.store([UInt8](repeating: 1, count: 30 << 20), for: "large")
    }
    for error in [announced, whole] {
      #expect(error.code == .noSpace, "\(error)")
      #expect(error.cause?.contains("what the cache could give up") == true, "\(error)")
    }
    for index in 0..<6 { #expect(try cache.blob(for: "\(index)") != nil) }
    // What fits when others go is stored.
    let fits = seededBytes(count: 17 << 20, seed: 9)
    try await cache.store(fits, for: "fits")
    #expect(try #require(try cache.blob(for: "fits")).holds(fits))
    try await cache.close()
  }

  @Test func anIndexThatIsSetAsideIsTold() async throws {
    let directory = TemporaryDirectory()
    let path = directory.path("cache")
    let first = try BlobCache(directory: path)
    try await first.store([1], for: "key")
    try await first.close()
    let index = path + "/index/data.mdb"
    try overwrite(index, at: 0, with: [UInt8](repeating: 0, count: 8192))
    let told = Mutex<[BlobCache.Event]>([])
    var configuration = BlobCache.Configuration()
    configuration.onEvent = { event in told.withLock { $0.append(event) } }
    let second = try BlobCache(directory: path, configuration: configuration)
    let event = try #require(told.withLock { $0.first { $0.kind == .indexSetAside } })
    let error = try #require(event.error as? BlobCache.Error)
    #expect(error.code == .corrupt)
    #expect(error.path?.hasPrefix(second.directory) == true)
    #expect(try second.blob(for: "key") == nil)
    try await second.close()
    told.withLock { $0 = [] }
    let third = try BlobCache(directory: path, configuration: configuration)
    #expect(told.withLock { $0.isEmpty })
    try await third.close()
  }
}
