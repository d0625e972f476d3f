import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 3: a lookup takes no lock that a writer holds. A second process stands still (SIGSTOP)
/// inside its write transaction, holding the write lock, while this one reads.
@Suite("3. Reads wait for nobody", .timeLimit(.minutes(2)))
struct ReadsWaitForNobodyTests {
  private let directory = TemporaryDirectory()

  @Test func everyLookupAnswersWhileAWriterStandsStillInItsTransaction() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    let small = seededBytes(count: 500, seed: 1)
    let large = seededBytes(count: 300_000, seed: 2)
    try await cache.store(small, for: "small")
    let digest = try await cache.store(large, for: "large").digest

    let reader = try await SecondProcess.over(path)
    let writer = try await SecondProcess.over(path)
    #expect(try await writer.call("fault before-commit 1 stop") == "ok")
    try writer.send("store small 9000 3")
    try await writer.untilStopped()

    for _ in 0..<100 {
      #expect(try #require(try cache.blob(for: "small")).holds(small))
    }
    #expect(try #require(try cache.blob(for: "large")).holds(large))
    #expect(try #require(try cache.blob(withDigest: digest)).holds(large))
    let seen = try cache.withBytes(for: "small") { $0.byteCount }
    #expect(seen == 500)
    #expect(try cache.contains("large"))
    #expect(try #require(try cache.entry(for: "small")).size == 500)
    #expect(try cache.blob(for: "missing") == nil)
    let fetched = try await cache.fetch("large") { _ in throw CancellationError() }
    #expect(fetched.holds(large))
    var listed = 0
    for try await _ in cache.entries() { listed += 1 }
    #expect(listed == 2)
    #expect(cache.statistics.entries == 2)

    // Another process's lookups too.
    #expect(try await reader.call("get small").hasPrefix("hit 500 "))
    #expect(try await reader.call("get missing") == "miss")

    kill(writer.pid, SIGCONT)
    #expect(try await writer.nextLine().hasPrefix("ok "))
    #expect(try #require(try cache.blob(for: "small")).count == 9000)
    try await cache.close()
  }

  @Test func aWriterThatIsStoppedForGoodAndKilledHoldsNobodyUp() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    let writer = try await SecondProcess.over(path)
    #expect(try await writer.call("fault before-commit 1 stop") == "ok")
    try writer.send("store key 100 1")
    try await writer.untilStopped()
    async let stored = cache.store(seededBytes(count: 100, seed: 2), for: "mine")
    #expect(try cache.blob(for: "key") == nil)
    writer.kill()
    _ = try await stored
    #expect(try cache.blob(for: "key") == nil)
    #expect(try cache.contains("mine"))
    try await cache.close()
  }

  /// LMDB has a lock around its table of readers, which no lookup may need: whoever registers one may stand still there.
  @Test func firstLookupsAndCheckpointsGoOnWhileAnotherStandsStillAsItRegistersAReader()
    async throws
  {
    let path = directory.path("cache")
    let reader = try await SecondProcess.over(path)
    #expect(try await reader.call("store key 300 1").hasPrefix("ok"))
    #expect(try await reader.call("close") == "ok")
    #expect(try await reader.call("open \(path) memory=0") == "ok")
    let stopped = try SecondProcess()
    try stopped.send("stand-in-table \(path)")
    try await stopped.untilStopped()
    for (command, answer) in [
      ("get key", "hit 300 "), ("store other 300 1", "ok "), ("flush", "ok"),
      ("get other", "hit 300 "), ("list", "ok 2"),
    ] {
      try reader.send(command)
      #expect(try await reader.nextLine(patience: .seconds(20)).hasPrefix(answer), "\(command)")
    }
    kill(stopped.pid, SIGCONT)
    #expect(try await stopped.nextLine() == "ok")
    for process in [stopped, reader] { try await process.end() }
  }

  /// Reads of many tasks that hop between threads, with writes among them: no reader slot is mixed up.
  @Test func aThousandTasksReadAcrossSuspensions() async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    for index in 0..<16 {
      try await cache.store(
        seededBytes(count: 1000 * index, seed: UInt64(index)), for: BlobCache.Key("key-\(index)"))
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<1000 {
        group.addTask {
          for round in 0..<20 {
            let index = (task + round) % 16
            let key = BlobCache.Key("key-\(index)")
            #expect(try cache.blob(for: key)?.count == 1000 * index)
            await Task.yield()
            let count = try cache.withBytes(for: key) { $0.byteCount }
            #expect(count == 1000 * index)
            if task % 100 == 0 {
              try await cache.store(
                seededBytes(count: 1000 * index, seed: UInt64(index)), for: key)
            }
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(cache.statistics.hits >= 40_000)
    #expect(cache.statistics.failedLookups == 0)
    try await cache.close()
  }
}
