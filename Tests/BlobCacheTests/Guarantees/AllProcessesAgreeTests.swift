import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 8: when a store or removal has returned in one process, every lookup that begins later in
/// any process sees it.
@Suite("8. All processes agree", .timeLimit(.minutes(3)))
struct AllProcessesAgreeTests {
  private let directory = TemporaryDirectory()

  private func answer(_ size: Int, _ seed: Int) -> String {
    let digest = BlobCache.Digest(hashing: seededBytes(count: size, seed: UInt64(seed))).hex
    return "hit \(size) \(digest) \(digest)"
  }

  /// Writes here, reads there, and the other way round: ten thousand times, never an old value.
  @Test func whatOneHasWrittenTheOtherReads() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    let other = try await SecondProcess.over(path)
    for round in 0..<10_000 {
      let size = round % 50 == 0 ? 70_000 : round % 97
      let writesHere = round / 3 % 2 == 0
      let key = "key-\(round % 3)"
      switch round % 11 {
      case 9 where writesHere: try await cache.remove(BlobCache.Key(key))
      case 9: #expect(try await other.call("remove \(key)").hasPrefix("ok"))
      case 10 where round % 4 == 0 && writesHere: try await cache.removeAll()
      case 10 where round % 4 == 0: #expect(try await other.call("clear") == "ok")
      default:
        let bytes = seededBytes(count: size, seed: UInt64(round))
        if writesHere {
          try await cache.store(bytes, for: BlobCache.Key(key))
          try #require(try await other.call("get \(key)") == answer(size, round), "\(round)")
        } else {
          try #require(try await other.call("store \(key) \(size) \(round)").hasPrefix("ok"))
          let blob = try #require(try cache.blob(for: BlobCache.Key(key)), "\(round)")
          try #require(blob.holds(bytes), "\(round)")
        }
        continue
      }
      try #require(try cache.blob(for: BlobCache.Key(key)) == nil, "\(round)")
      try #require(try await other.call("get \(key)") == "miss", "\(round)")
    }
    #expect(try await other.call("statistics") == "ok entries=\(cache.statistics.entries)")
    try await cache.close()
  }

  @Test func manyWritersAndTheirCountsAgree() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    let processes = try await [SecondProcess.over(path), SecondProcess.over(path)]
    for process in processes { try process.send("fill 200 500") }
    for index in 0..<200 {
      try await cache.store(seededBytes(count: 500, seed: UInt64(index)), for: "mine-\(index)")
    }
    for process in processes { #expect(try await process.nextLine() == "ok 200") }
    #expect(cache.statistics.entries == 400)
    for process in processes {
      #expect(try await process.call("statistics") == "ok entries=400")
      #expect(try await process.call("get mine-7") == answer(500, 7))
      #expect(try await process.call("get fill-199") == answer(500, 199))
    }
    try await cache.close()
  }

  @Test func aSecondInstanceInTheProcessAlsoByAnotherPathSharesTheStore() async throws {
    let path = directory.path("cache")
    let first = try BlobCache(directory: path)
    try FileManager.default.createSymbolicLink(
      atPath: directory.path("link"), withDestinationPath: path)
    let second = try BlobCache(directory: directory.path("link"))
    let third = try BlobCache(directory: directory.path("./cache/../cache/"))
    let bytes = seededBytes(count: 2000, seed: 1)
    for index in 0..<300 {
      let writer = [first, second, third][index % 3]
      try await writer.store(bytes.prefix(index), for: "key")
      for reader in [first, second, third] {
        #expect(try reader.blob(for: "key")?.count == index)
      }
    }
    try await first.close()
    #expect(try second.blob(for: "key")?.count == 299)
    #expect(throws: BlobCache.Error.self) { try first.blob(for: "key") }
    try await second.close()
    try await third.store(bytes, for: "key")
    #expect(try third.blob(for: "key")?.count == 2000)
    try await third.close()
  }

  @Test(.enabled(if: Machine.canMount, "needs root and permission to mount"))
  func aBindMountOfTheDirectoryIsTheSameStore() async throws {
    let path = directory.path("cache")
    let first = try BlobCache(directory: path)
    let other = directory.path("bound")
    try #require(mkdir(other, 0o700) == 0 && Machine.run("mount", "--bind", path, other))
    defer { Machine.run("umount", "-l", other) }
    let second = try BlobCache(directory: other)
    for index in 0..<100 {
      try await [first, second][index % 2].store([UInt8(index)], for: "key")
      #expect(try first.blob(for: "key")?.holds([UInt8(index)]) == true)
      #expect(try second.blob(for: "key")?.holds([UInt8(index)]) == true)
    }
    try await first.close()
    try await second.close()
  }

  @Test func clearsAndStoresOfManyTasksLeaveExactCounts() async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<8 {
        group.addTask {
          for index in 0..<60 {
            if index % 20 == 19 && task < 2 {
              try await cache.removeAll()
            } else {
              let size = index % 10 == 0 ? 70_000 : 200
              try await cache.store(
                seededBytes(count: size, seed: UInt64(index)),
                for: BlobCache.Key("key-\(task)-\(index)"))
            }
          }
        }
      }
      try await group.waitForAll()
    }
    var listed = 0
    for try await entry in cache.entries() {
      listed += 1
      #expect(try cache.blob(for: entry.key)?.digest == entry.digest)
    }
    #expect(cache.statistics.entries == listed)
    try await cache.removeAll()
    #expect(cache.statistics.entries == 0)
    for index in 0..<10 { try await cache.store([UInt8(index)], for: "after-\(index)") }
    #expect(cache.statistics.entries == 10)
    try await cache.close()
    #expect(try await structureOf(directory.path("cache")) == "ok")
  }
}
