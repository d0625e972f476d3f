import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 6, of the index's file: it gives back what it does not need, whoever reads meanwhile, and on
/// a disk that others have filled there is room to remove.
@Suite("6. Free pages of the index", .serialized)
struct FreePagesTests {
  private let directory = TemporaryDirectory()
  private var folder: CacheFolder { CacheFolder(directory.path("cache")) }

  private func open(_ limits: BlobCache.Limits?, at path: String? = nil) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.limits = limits
    configuration.sweepInterval = nil
    // What a checkpoint keeps is CheckpointTests' and SmallDiskTests' matter: none is made by the way.
    configuration.durability = .checkpointed(every: nil)
    return try BlobCache(directory: path ?? folder.path, configuration: configuration)
  }

  private func fill(_ cache: BlobCache, _ range: Range<Int>, size: Int) async throws {
    for start in stride(from: range.lowerBound, to: range.upperBound, by: 200) {
      try await cache.storeAll(
        (start..<min(start + 200, range.upperBound)).map {
          BlobCache.Item(key: "\($0)", bytes: seededBytes(count: size, seed: UInt64($0)))
        })
    }
  }

  private var indexBytes: Int {
    Int(fileStatus(folder.path + "/index/data.mdb")?.st_blocks ?? 0) * 512
  }

  @Test(arguments: [nil, 64 << 20])
  func whatWasRemovedGivesItsBlocksBack(limit: Int?) async throws {
    let cache = try open(limit.map { .bytes($0) } ?? BlobCache.Limits())
    try await fill(cache, 0..<4000, size: 10_000)
    #expect(indexBytes > 40 << 20)
    try await cache.removeAll()
    try await cache.sweep()
    #expect(indexBytes <= (limit == nil ? 16 : 4) << 20)
    // Holes are pages like others: what is stored in them is there, and every page is in its place.
    try await fill(cache, 0..<4000, size: 10_000)
    for i in stride(from: 0, to: 4000, by: 131) {
      let blob = try #require(try cache.blob(for: "\(i)"))
      #expect(blob.holds(seededBytes(count: 10_000, seed: UInt64(i))))
    }
    #expect(try await cache.verify(.everything).isSound)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func churnAtALimitKeepsTheFileWithinItsAllowance() async throws {
    let limit = 16 << 20
    let cache = try open(.bytes(limit))
    for round in 0..<20 {
      try await fill(cache, round * 400..<(round + 1) * 400, size: 4000)
      #expect(indexBytes <= limit + (4 << 20) + (4 << 20), "round \(round)")
    }
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func aReaderThatStandsStillDoesNotMakeTheFileGrowWithoutBound() async throws {
    let limit = 8 << 20
    let allowance = 4 << 20
    let cache = try open(.bytes(limit))
    try await cache.store([1, 2, 3], for: "pinned")
    try await cache.pin("pinned")
    let reader = try await SecondProcess.over(folder.path)
    _ = try await reader.call("fault list 1 stop")
    try reader.send("list")
    try await reader.untilStopped()

    let error = try await errorOf {
      for i in 0..<20_000 {
        try await cache.store(seededBytes(count: 4000, seed: UInt64(i)), for: "\(i % 2000)")
      }
    }
    #expect(error.code == .busy)
    #expect(error.cause?.contains("process \(reader.pid) ") == true, "\(error)")
    #expect(indexBytes <= limit + 4 * allowance + (2 << 20))
    // Everything else goes on.
    #expect(try cache.contains("pinned"))
    let kept = try #require(try await cache.entries(withPrefix: nil).first { $0.key != "pinned" })
    #expect(try cache.blob(for: kept.key) != nil)
    #expect(try await cache.remove(kept.key))
    let loaded = try await cache.fetch("new") { load in
      try await load.write(seededBytes(count: 4000, seed: 7))
      return .complete
    }
    guard case .loadedNotStored(let cause) = loaded.source else {
      Issue.record("\(loaded.source)")
      return
    }
    #expect(cause.code == .busy)

    // It goes on, and so does everybody.
    kill(reader.pid, SIGCONT)
    #expect(try await reader.nextLine().hasPrefix("ok"))
    try await reader.end()
    try await fill(cache, 0..<400, size: 4000)
    try await cache.sweep()
    #expect(indexBytes <= limit + allowance + (1 << 20))
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func aReaderThatWasKilledKeepsNothing() async throws {
    let limit = 8 << 20
    let cache = try open(.bytes(limit))
    let reader = try await SecondProcess.over(folder.path)
    _ = try await reader.call("fault list 1 kill")
    try reader.send("list")
    _ = await reader.status()
    for i in 0..<5_000 {
      try await cache.store(seededBytes(count: 4000, seed: UInt64(i)), for: "\(i % 2000)")
    }
    #expect(indexBytes <= limit + (4 << 20) + (2 << 20))
    try await cache.close()
  }

  enum Room: String, CaseIterable { case remove, removeMany, trim, removeAll, store }

  @Test(
    .enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"),
    arguments: Room.allCases)
  func onADiskThatOthersHaveFilledEntriesGo(how: Room) async throws {
    let disk = try SmallFileSystem(mebibytes: 96)
    let path = "\(disk.path)/cache"
    // By default some of the disk is to stay free, and whoever commits evicts for it.
    let cache = try open(how == .store ? nil : .unlimited, at: path)
    try await fill(cache, 0..<1000, size: 20_000)
    disk.fill()
    switch how {
    case .remove:
      for i in 0..<200 { #expect(try await cache.remove("\(i)")) }
    case .removeMany:
      #expect(try await cache.removeAll(matching: .init(prefix: "1")) == 111)
    case .trim:
      try await cache.trim(to: .entries(100))
      #expect(cache.statistics.entries == 100)
    case .removeAll:
      try await cache.removeAll()
      #expect(cache.statistics.entries == 0)
    case .store:
      for i in 0..<50 {
        let body = seededBytes(count: 20_000, seed: UInt64(i) + 5000)
        try await cache.store(body, for: "new-\(i)")
        #expect(try #require(try cache.blob(for: "new-\(i)")).holds(body))
      }
    }
    try await cache.sweep()
    try FileManager.default.removeItem(atPath: "\(disk.path)/filler")
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }
}
