import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// What survives which end: `.durable` and `.checkpointed`, another boot, the index outgrowing its
/// map, a second pid namespace.
@Suite("Durability")
struct DurabilityTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  private func open(
    _ durability: BlobCache.Durability = .checkpointed, boot: String? = nil, map: UInt64 = 0
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.durability = durability
    configuration.bootID = boot
    configuration.initialMapSize = map
    return try BlobCache(directory: path, configuration: configuration)
  }

  // MARK: Another boot

  private let bootA = "11111111-1111-1111-1111-111111111111"
  private let bootB = "22222222-2222-2222-2222-222222222222"

  /// Without its checkpoint; with it, see CheckpointTests.
  @Test func afterAnotherBootAnIndexWithoutACheckpointIsSetAsideAndBlobsAreKept() async throws {
    var cache = try open(boot: bootA)
    let large = seededBytes(count: 100_000, seed: 1)
    let digest = try await cache.store(large, for: "large").digest
    try await cache.store([1, 2, 3], for: "small")
    try await cache.close()
    cache = try open(boot: bootA)
    #expect(try cache.contains("small"))
    try await cache.close()
    let file = CacheFolder(path).blobFile(digest)
    let inode = try #require(fileStatus(file)).st_ino
    try FileManager.default.removeItem(atPath: path + "/index/checkpoint")

    cache = try open(boot: bootB)
    #expect(try cache.blob(for: "large") == nil)
    #expect(try cache.blob(for: "small") == nil)
    #expect(cache.statistics.entries == 0)
    try await cache.store(large, for: "again")
    #expect(fileStatus(file)?.st_ino == inode)
    #expect(try #require(try cache.blob(for: "again")).holds(large))
    try await cache.close()
    cache = try open(boot: bootB)
    #expect(try #require(try cache.blob(for: "again")).holds(large))
    try await cache.close()
  }

  @Test func aTornBlobOfAnotherBootIsNotTrusted() async throws {
    var cache = try open(boot: bootA)
    let large = seededBytes(count: 100_000, seed: 1)
    let digest = try await cache.store(large, for: "large").digest
    try await cache.close()
    try flipByte(of: CacheFolder(path).blobFile(digest), at: 70_000)
    cache = try open(boot: bootB)
    try await cache.store(large, for: "again")
    #expect(try #require(try cache.blob(for: "again")).holds(large))
    try await cache.close()
  }

  @Test func afterAnotherBootADurableDirectoryHasEverything() async throws {
    var cache = try open(.durable, boot: bootA)
    let large = seededBytes(count: 100_000, seed: 1)
    try await cache.store(large, for: "large")
    try await cache.store([1, 2, 3], for: "small", lifetime: .sliding(.seconds(1000)))
    try await cache.close()
    cache = try open(.durable, boot: bootB)
    #expect(try #require(try cache.blob(for: "large")).holds(large))
    #expect(try #require(try cache.blob(for: "small")).holds([1, 2, 3]))
    #expect(cache.statistics.entries == 2)
    try await cache.close()
  }

  @Test func theOtherDurabilityIsRefused() async throws {
    for (made, asked) in [
      (BlobCache.Durability.durable, BlobCache.Durability.checkpointed), (.checkpointed, .durable),
    ] {
      try await open(made).close()
      let before = snapshot(path)
      let error = try await errorOf { _ = try open(asked) }
      #expect(error.code == .durabilityMismatch)
      #expect(snapshot(path) == before)
      try FileManager.default.removeItem(atPath: path)
    }
  }

  // MARK: The order of system calls

  /// fsync(staged file), rename, fsync(its folder), fdatasync(index), and only then the answer.
  @Test(.enabled(if: Machine.canTrace, "needs strace and permission to trace"))
  func durableStoreSyncsInOrderBeforeItReturns() async throws {
    let log = directory.path("trace")
    let calls = "trace=fsync,fdatasync,msync,rename,renameat,renameat2,linkat,write"
    let process = try await SecondProcess.over(
      path, "durable", wrapper: ["strace", "-f", "-y", "-s", "32", "-e", calls, "-o", log])
    #expect(try await process.call("store warm 100000 1").hasPrefix("ok"))
    let digest = BlobCache.Digest(hashing: seededBytes(count: 100_000, seed: 2)).hex
    #expect(try await process.call("store key 100000 2") == "ok \(digest)")
    try await process.end()

    let lines = try String(contentsOfFile: log, encoding: .utf8).split(separator: "\n")
    let answers = lines.indices.filter { lines[$0].contains("write(1<") }
    try #require(answers.count >= 3)
    let store = lines[answers[1]..<answers[2]]
    let rename = try #require(
      store.firstIndex { $0.contains("rename") && $0.contains(digest) }, "no rename")
    let before = store[..<rename]
    let after = store[rename...]
    #expect(before.contains { $0.contains("sync(") && $0.contains("/staging/") }, "staged file")
    let folder = try #require(
      after.firstIndex { $0.contains("fsync(") && $0.contains("/blobs/\(digest.prefix(2))>") },
      "folder of the blob")
    let index = try #require(
      store.lastIndex { $0.contains("sync(") && $0.contains("/index/data.mdb>") }, "index")
    #expect(folder < index)
  }

  @Test(.enabled(if: Machine.canTrace, "needs strace and permission to trace"))
  func durableSmallStoreSyncsTheIndexBeforeItReturns() async throws {
    let log = directory.path("trace")
    let process = try await SecondProcess.over(
      path, "durable",
      wrapper: ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,msync,write", "-o", log])
    #expect(try await process.call("store key 100 2").hasPrefix("ok"))
    try await process.end()
    let lines = try String(contentsOfFile: log, encoding: .utf8).split(separator: "\n")
    let answers = lines.indices.filter { lines[$0].contains("write(1<") }
    try #require(answers.count >= 2)
    let store = lines[answers[0]..<answers[1]]
    #expect(store.contains { $0.contains("sync(") && $0.contains("/index/data.mdb>") })
  }

  // MARK: The map grows

  @Test func aFullMapGrowsAndEveryProcessGoesOn() async throws {
    let cache = try open(map: 1 << 18)
    let other = try await SecondProcess.over(path, "map=262144")
    #expect(try await other.call("store theirs 2000 1").hasPrefix("ok"))
    let held = try #require(try cache.blob(for: "theirs"))
    for index in 0..<1500 {
      try await cache.store(
        seededBytes(count: 2000, seed: UInt64(index)), for: BlobCache.Key("mine-\(index)"))
    }
    // The other one adopts the larger map, reading and writing.
    #expect(try await other.call("get mine-1499").hasPrefix("hit 2000 "))
    #expect(try await other.call("fill 3000 2000") == "ok 3000")
    for index in 0..<1500 {
      let blob = try #require(try cache.blob(for: BlobCache.Key("mine-\(index)")), "\(index)")
      #expect(blob.holds(seededBytes(count: 2000, seed: UInt64(index))))
    }
    for index in 0..<3000 {
      let blob = try #require(try cache.blob(for: BlobCache.Key("fill-\(index)")), "\(index)")
      #expect(blob.holds(seededBytes(count: 2000, seed: UInt64(index))))
    }
    #expect(held.holds(seededBytes(count: 2000, seed: 1)))
    #expect(cache.statistics.entries == 4501)
    try await other.end()
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  @Test func theMapGrowsUnderReadersAndManyWriters() async throws {
    let cache = try open(map: 1 << 18)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<4 {
        group.addTask {
          for index in 0..<300 {
            let key = BlobCache.Key("key-\(task)-\(index)")
            try await cache.store(seededBytes(count: 3000, seed: UInt64(index)), for: key)
            #expect(try cache.blob(for: key)?.count == 3000)
          }
        }
        group.addTask {
          for index in 0..<3000 {
            _ = try cache.withBytes(for: BlobCache.Key("key-\(task)-\(index % 300)")) { bytes in
              #expect(bytes.byteCount == 3000)
            }
            if index % 50 == 0 { await Task.yield() }
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(cache.statistics.entries == 1200)
    try await cache.close()
  }

  @Test func oneBodyPerStoreIsLargerThanTheWholeMap() async throws {
    var configuration = BlobCache.Configuration()
    configuration.initialMapSize = 1 << 18
    configuration.inlineThreshold = 65_536
    let cache = try BlobCache(directory: path, configuration: configuration)
    let items = (0..<60).map { index in
      BlobCache.Item(
        key: BlobCache.Key("item-\(index)"), bytes: seededBytes(count: 60_000, seed: UInt64(index)))
    }
    #expect(try await cache.storeAll(items).count == 60)
    for index in 0..<60 {
      let blob = try #require(try cache.blob(for: BlobCache.Key("item-\(index)")))
      #expect(blob.holds(seededBytes(count: 60_000, seed: UInt64(index))))
    }
    try await cache.close()
  }

  @Test func aMapOf8GiBIsOf8GiB() async throws {
    let cache = try open(map: 8 << 30)
    #expect(cache.info.mapSize == 8 << 30)
    try await cache.store([1], for: "key")
    try await cache.close()
  }

  @Test func anotherInlineThresholdReadsWhatWasStoredUnderTheOld() async throws {
    for (round, threshold) in [UInt32(1000), 65_536, 100].enumerated() {
      var configuration = BlobCache.Configuration()
      configuration.inlineThreshold = threshold
      let cache = try BlobCache(directory: path, configuration: configuration)
      for size in [50, 500, 5000, 50_000, 500_000] {
        let bytes = seededBytes(count: size, seed: UInt64(round))
        try await cache.store(bytes, for: BlobCache.Key("\(round)-\(size)"))
        for earlier in 0...round {
          let blob = try #require(try cache.blob(for: BlobCache.Key("\(earlier)-\(size)")))
          #expect(blob.holds(seededBytes(count: size, seed: UInt64(earlier))))
        }
      }
      try await cache.close()
      #expect(try await structureOf(path) == "ok")
    }
  }

  // MARK: Who may share

  @Test(.enabled(if: Machine.canUnsharePids, "needs root and unshare --pid"))
  func anotherPidNamespaceIsRefusedWhileInUse() async throws {
    let cache = try open()
    try await cache.store([1], for: "key")
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child"]
    let inside = try SecondProcess(wrapper: wrapper)
    #expect(try await inside.call("open \(path)").hasPrefix("error otherNamespace "))
    #expect(try cache.contains("key"))
    try await cache.close()
    #expect(try await inside.call("open \(path)") == "ok")
    #expect(try await inside.call("get key").hasPrefix("hit 1 "))
    let error = try await errorOf { _ = try open() }
    #expect(error.code == .otherNamespace)
    try await inside.end()
  }
}
