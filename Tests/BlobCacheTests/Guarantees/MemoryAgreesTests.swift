import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 8 with the memory tier: what one process keeps in memory is never older than what a store
/// or removal that returned in another has made. The long form: BLOBCACHE_COHERENCE=1000000.
@Suite("8. All processes agree, in memory", .timeLimit(.minutes(30)))
struct MemoryAgreesTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }
  private let start = Date(timeIntervalSince1970: 1_900_000_000)

  private static let steps =
    ProcessInfo.processInfo.environment["BLOBCACHE_COHERENCE"].flatMap(Int.init) ?? 20_000

  /// Another process stores, renews, removes and clears; two threads here and a third process read.
  @Test func whileOneWritesNobodyReadsAnOldValue() async throws {
    let cache = try BlobCache(directory: path)
    let (writer, reader) = try await (SecondProcess.over(path), SecondProcess.over(path))
    let page = directory.path("page")
    let chronicle = try Chronicle(page)
    let last = Self.steps
    try reader.send("chronicle read \(page) \(last)")
    try writer.send("chronicle write \(page) \(last)")
    let threads = BlockingPool(workers: 2)
    try await withThrowingTaskGroup(of: Int.self) { group in
      for _ in 0..<2 {
        group.addTask {
          try await threads.run { Result { try chronicle.read(cache, to: last) } }.get()
        }
      }
      for try await lookups in group { #expect(lookups > 0) }
    }
    #expect(try await writer.nextLine(patience: .seconds(1800)) == "ok")
    let words = try await reader.nextLine(patience: .seconds(60)).split(separator: " ")
    try #require(words.first == "ok", "\(words)")
    #expect(Int(words[2]) ?? 0 > 0, "the other process never read from memory")
    #expect(cache.statistics.memoryHits > 0)
    try await cache.close()
  }

  /// The same the other way round: this process writes.
  @Test func whatThisProcessWritesIsNewThere() async throws {
    let cache = try BlobCache(directory: path)
    let reader = try await SecondProcess.over(path)
    let page = directory.path("page")
    let chronicle = try Chronicle(page)
    try reader.send("chronicle read \(page) \(Self.steps / 4)")
    try await chronicle.write(cache, to: Self.steps / 4)
    let words = try await reader.nextLine().split(separator: " ")
    try #require(words.first == "ok", "\(words)")
    try await cache.close()
  }

  // MARK: Expiry

  /// In memory here; read there, which slides it on; and expired when nobody reads it.
  @Test func slidingIsExtendedByReadsOfTheOtherProcess() async throws {
    let clock = BlobCache.ManualClock(now: start)
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache(directory: path, configuration: configuration)
    let other = try await SecondProcess.over(path, "clock")
    func setClocks(_ seconds: Double) async throws {
      clock.set(to: start.addingTimeInterval(seconds))
      _ = try await other.call("clock \(start.timeIntervalSince1970 + seconds)")
    }
    try await setClocks(0)
    try await cache.store(
      [1, 2, 3], for: "key", lifetime: .sliding(.seconds(20), atMost: .seconds(100)))
    #expect(try cache.blob(for: "key")?.source == .index)
    #expect(try cache.blob(for: "key")?.source == .memory)
    for second in [15.0, 30, 45, 60] {
      try await setClocks(second)
      #expect(try await other.call("get key").hasPrefix("hit 3"))
    }
    try await setClocks(79)
    #expect(try cache.blob(for: "key")?.source == .memory)
    // That hit slides it on, and the other process knows.
    try await setClocks(98)
    #expect(try await other.call("expired key") == "ok false")
    #expect(try cache.blob(for: "key")?.entry.lastAccess == start.addingTimeInterval(79))
    try await setClocks(100)
    #expect(try cache.blob(for: "key") == nil, "at most 100 s")
    #expect(try await other.call("get key") == "miss")

    try await setClocks(200)
    try await cache.store([4], for: "key", lifetime: .sliding(.seconds(20)))
    for _ in 0..<2 { #expect(try cache.blob(for: "key") != nil) }
    try await setClocks(220)
    #expect(try cache.blob(for: "key") == nil)
    #expect(try cache.withBytes(for: "key") { $0.byteCount } == nil)
    try await cache.close()
  }

  @Test func expiryAndRenewalHoldInMemory() async throws {
    let clock = BlobCache.ManualClock(now: start)
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache(directory: path, configuration: configuration)
    let other = try await SecondProcess.over(path, "clock")
    _ = try await other.call("clock \(start.timeIntervalSince1970)")
    try await cache.store([1], for: "key", lifetime: .expires(after: .seconds(20)))
    for _ in 0..<2 { #expect(try cache.blob(for: "key") != nil) }
    clock.advance(by: .seconds(19))
    #expect(try cache.blob(for: "key")?.source == .memory)
    #expect(try await other.call("renew key expires:60") == "ok")
    clock.advance(by: .seconds(2))
    #expect(try cache.blob(for: "key")?.source == .index, "renewed: another entry by now")
    #expect(try cache.blob(for: "key")?.source == .memory)
    // The clock set back by an hour: what was written in the future is expired.
    clock.advance(by: .seconds(-3600))
    #expect(try cache.blob(for: "key") == nil)
    clock.advance(by: .seconds(3600 + 60))
    #expect(try cache.blob(for: "key") == nil)
    #expect(try await other.call("renew key expires:1") == "ok")
    try await cache.close()
  }

  // MARK: Writers that die

  /// Killed before or after the commit: the line is odd, and lookups ask the index.
  @Test(arguments: ["before-commit", "after-commit", "slots"])
  func aWriterKilledInMidCommitMakesItSlowerAndNeverWrong(step: String) async throws {
    let cache = try BlobCache(directory: path)
    let old = seededBytes(count: 300, seed: 1)
    try await cache.store(old, for: "key")
    try await cache.store(old, for: "removed")
    for key in ["key", "removed"] as [BlobCache.Key] {
      for _ in 0..<2 { #expect(try cache.blob(for: key) != nil) }
    }
    let new = seededBytes(count: 200, seed: 2)
    let expected = step == "before-commit" ? old : new
    let other = try await SecondProcess.over(path)
    _ = try await other.call("fault \(step) 1 kill")
    try other.send("store key 200 2")
    _ = await other.status()
    for _ in 0..<3 { #expect(try #require(try cache.blob(for: "key")).holds(expected)) }
    if step != "slots" { #expect(try cache.blob(for: "key")?.source == .index) }
    #expect(try cache.blob(for: "removed")?.source == .memory)

    let third = try await SecondProcess.over(path)
    _ = try await third.call("fault \(step) 1 kill")
    try third.send("remove removed")
    _ = await third.status()
    #expect((try cache.blob(for: "removed") != nil) == (step == "before-commit"))

    // The next writer repairs: from the second lookup on, memory again.
    try await cache.store([1], for: "else")
    _ = try cache.blob(for: "key")
    let blob = try #require(try cache.blob(for: "key"))
    #expect(blob.holds(expected) && blob.source == .memory)
    try await cache.close()
  }

  /// A removal of everything marks no line: that its writer died the epoch alone tells.
  @Test(arguments: ["before-commit", "after-commit"])
  func aClearThatIsKilledLeavesTheTierUsable(step: String) async throws {
    let cache = try BlobCache(directory: path)
    try await cache.store([1, 2, 3], for: "key")
    for _ in 0..<2 { #expect(try cache.blob(for: "key") != nil) }
    let other = try await SecondProcess.over(path)
    _ = try await other.call("fault \(step) 1 kill")
    try other.send("clear")
    _ = await other.status()
    for _ in 0..<2 {
      let blob = try cache.blob(for: "key")
      #expect(blob?.source == (step == "before-commit" ? .index : nil))
    }
    try await cache.store([4], for: "key")
    #expect(try cache.blob(for: "key")?.source == .index)
    #expect(try cache.blob(for: "key")?.source == .memory)
    try await cache.close()
  }

  /// Stopped between its commit and its lines: the new value is there, from the index.
  @Test func aWriterThatStandsStillMakesItSlowerOnly() async throws {
    let cache = try BlobCache(directory: path)
    try await cache.store([1], for: "key")
    for _ in 0..<2 { #expect(try cache.blob(for: "key") != nil) }
    let other = try await SecondProcess.over(path)
    _ = try await other.call("fault after-commit 1 stop")
    try other.send("store key 200 2")
    try await other.untilStopped()
    for _ in 0..<3 {
      let blob = try #require(try cache.blob(for: "key"))
      #expect(blob.count == 200 && blob.source == .index)
    }
    other.kill()
    try await cache.close()
  }

  // MARK: Lines and instances

  /// A line of the table goes from one entry to the next: neither is taken for the other.
  @Test func aLineThatIsUsedAgainIsAnotherEntry() async throws {
    let cache = try BlobCache(directory: path)
    let other = try await SecondProcess.over(path)
    for round in 0..<50 {
      let (gone, next) = (BlobCache.Key("key-\(round)"), BlobCache.Key("key-\(round + 1)"))
      try await cache.store([UInt8(round)], for: gone)
      for _ in 0..<2 { #expect(try cache.blob(for: gone)?.holds([UInt8(round)]) == true) }
      #expect(try await other.call("remove key-\(round)").hasPrefix("ok"))
      #expect(try await other.call("store key-\(round + 1) 50 \(round)").hasPrefix("ok"))
      #expect(try cache.blob(for: gone) == nil)
      #expect(try cache.blob(for: next)?.count == 50)
      #expect(try cache.blob(for: next)?.source == .memory)
      #expect(try await other.call("clear") == "ok")
      #expect(try cache.blob(for: next) == nil)
    }
    try await cache.close()
  }

  @Test func closedAndOpenedAgainItBeginsEmpty() async throws {
    var cache = try BlobCache(directory: path)
    try await cache.store([1], for: "key")
    for _ in 0..<2 { #expect(try cache.blob(for: "key") != nil) }
    try await cache.close()
    let other = try await SecondProcess.over(path)
    #expect(try await other.call("store key 50 1").hasPrefix("ok"))
    cache = try BlobCache(directory: path)
    let blob = try #require(try cache.blob(for: "key"))
    #expect(blob.count == 50 && blob.source == .index)
    #expect(cache.statistics.memoryHits == 0)
    try await cache.close()
    #expect(throws: BlobCache.Error.self) { try cache.blob(for: "key") }
  }
}
