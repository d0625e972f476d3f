import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Removal by what entries have in common, and what time makes useless.
@Suite("Tags, selections and sweeps")
struct TagsAndSweepsTests {
  private let still = StillCache()
  private var clock: BlobCache.ManualClock { still.clock }
  private var folder: CacheFolder { still.folder }

  private func open() throws -> BlobCache {
    try still.open { $0.defaultStaleWindow = .zero }
  }

  @Test func whatHasATagGoesAndNothingElse() async throws {
    let cache = try open()
    for i in 0..<600 {
      try await cache.store(
        [UInt8(i & 0xff)], for: "key-\(i)", tags: i.isMultiple(of: 2) ? ["even", "all"] : ["all"])
    }
    #expect(try cache.entry(for: "key-2")?.tags == ["all", "even"])
    #expect(try cache.blob(for: "key-2")?.entry.tags == ["all", "even"])
    #expect(try await cache.removeAll(tagged: "odd") == 0)
    #expect(try await cache.removeAll(tagged: "even") == 300)
    #expect(cache.statistics.entries == 300)
    #expect(try cache.contains("key-1") && !cache.contains("key-2"))
    // A store without the tag is no longer meant by it.
    try await cache.store([1], for: "key-1")
    #expect(try await cache.removeAll(tagged: "all") == 299)
    #expect(try cache.contains("key-1"))
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func fetchesGiveTagsAsTheyGiveAttributes() async throws {
    let cache = try open()
    func tags(_ key: BlobCache.Key) throws -> [String]? { try cache.entry(for: key)?.tags }
    let fetched = try await cache.fetch("f", tags: ["b", "a"]) { _ in .complete }
    #expect(fetched.entry.tags == ["a", "b"])
    _ = try await cache.fetch("o", tags: ["a"]) { _ in .complete(tags: ["o"]) }
    #expect(try tags("o") == ["o"], "an outcome's word comes first")
    _ = try await cache.fetch("n", tags: ["a"]) { _ in .complete(tags: []) }
    #expect(try tags("n") == [])
    for await (_, result) in cache.fetchAll(["x", "y"], tags: ["all"], loader: { _ in .complete }) {
      #expect(try result.get().entry.tags == ["all"])
    }
    for try await blob in cache.blobs(for: "z", tags: ["all"], loader: { _ in .complete }) {
      #expect(blob.entry.tags == ["all"])
    }
    // What stays, stays with its tags; what is brought anew has those of the call.
    _ = try await cache.fetch("f", policy: .reload, tags: ["new"]) { _ in .unchanged }
    #expect(try tags("f") == ["a", "b"])
    _ = try await cache.fetch("f", policy: .reload, tags: ["new"]) { _ in .unchanged(tags: ["c"]) }
    #expect(try tags("f") == ["c"])
    _ = try await cache.fetch("f", policy: .reload, tags: ["new"]) { _ in .complete }
    #expect(try tags("f") == ["new"])
    _ = try await cache.fetch("f", policy: .reload) { _ in .complete }
    #expect(try tags("f") == [])
    let unstored = try await cache.fetch("u", tags: ["a"]) { _ in .doNotStore }
    #expect(unstored.entry.tags == ["a"])
    #expect(try await cache.removeAll(tagged: "all") == 3)
    let error = try await errorOf {
      _ = try await cache.fetch("u", tags: [String(repeating: "t", count: 70_000)]) { _ in
        Issue.record("the loader ran")
        return .complete
      }
    }
    #expect(error.code == .tagsTooLarge)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func evictionTakesTagsAlong() async throws {
    let cache = try open()
    try await cache.trim(to: .entries(50), recording: true)
    for i in 0..<300 { try await cache.store([1], for: "key-\(i)", tags: ["all", "\(i % 3)"]) }
    #expect(cache.statistics.evictions == 250)
    #expect(try await cache.verify(.structure).isSound)
    #expect(try await cache.removeAll(tagged: "all") == 50)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// A killed process had counted what it staged; no file tells how much.
  @Test func aSweepForgetsWhatTheDeadWereStaging() async throws {
    let cache = try open()
    for _ in 0..<3 {
      let dead = try await SecondProcess.over(folder.path)
      _ = try await dead.call("fault after-commit 1 kill")
      await #expect(throws: SecondProcess.Failure.self) {
        try await dead.call("stream big 3000000 1 100000")
      }
    }
    try await cache.removeAll()
    try await cache.sweep()
    try await cache.store([1], for: "key")
    #expect(cache.statistics.usedBytes < 1 << 20)
    try await cache.close()
  }

  @Test func tagsOfAnyLengthWorkOrAreRefusedUpFront() async throws {
    let cache = try open()
    let long = String(repeating: "t", count: 2_048)
    let tags = ["", "é", "e\u{301}", long, long + "2", "a\0b"]
    try await cache.store([1], for: "key", tags: tags + tags)
    #expect(
      try cache.entry(for: "key").map { Set($0.tags.map { Array($0.utf8) }) }
        == Set(tags.map { Array($0.utf8) }))
    for tag in tags {
      try await cache.store([1], for: "key", tags: tags)
      #expect(try await cache.removeAll(tagged: tag) == 1)
    }
    let tooLong = String(repeating: "x", count: 65_535)
    let error = try await errorOf { try await cache.store([1], for: "key", tags: [tooLong]) }
    #expect(error.code == .tagsTooLarge)
    #expect(try cache.contains("key") == false)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func aRenewalAndAPinKeepTags() async throws {
    let cache = try open()
    try await cache.store([1], for: "key", tags: ["a"])
    #expect(try await cache.renew("key", lifetime: .expires(after: .seconds(9))))
    try await cache.pin("key")
    #expect(try cache.entry(for: "key")?.tags == ["a"])
    #expect(try cache.entry(for: "key")?.isPinned == true)
    #expect(try await cache.removeAll(tagged: "a") == 1)
    #expect(cache.statistics.pinnedEntries == 0)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func aLoaderTellsTags() async throws {
    let cache = try open()
    for attempt in 0..<3 {
      let blob = try await cache.fetch("key", policy: .reload) { load in
        if attempt == 1 { return .unchanged }
        if attempt == 2 { return .unchanged(tags: ["b"]) }
        try await load.write([1])
        return .complete(tags: ["a"])
      }
      #expect(blob.holds([1]))
      #expect(try cache.entry(for: "key")?.tags == (attempt < 2 ? ["a"] : ["b"]))
    }
    #expect(try await cache.removeAll(tagged: "a") == 0)
    #expect(try await cache.removeAll(tagged: "b") == 1)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func anEntryThatIsStoredAfterTheCallReturnedStays() async throws {
    let cache = try open()
    for round in 0..<20 {
      for i in 0..<50 { try await cache.store([UInt8(round)], for: "key-\(i)", tags: ["all"]) }
      async let removed = cache.removeAll(tagged: "all")
      _ = try await removed
      try await cache.store([UInt8(round)], for: "after", tags: ["all"])
      #expect(try cache.contains("after"))
    }
    try await cache.close()
  }

  @Test func selectionsCombine() async throws {
    let cache = try open()
    for i in 0..<20 {
      clock.advance(by: .seconds(1))
      try await cache.store(
        [UInt8](repeating: 1, count: i * 10), for: "\(i < 10 ? "a" : "b")/\(i)",
        lifetime: i == 3 ? .expires(after: .seconds(1)) : nil, tags: ["t"])
    }
    let progress = Counter()
    #expect(
      try await cache.removeAll(
        matching: .init(prefix: "a/", tag: "t", largerThan: 50, olderThan: .seconds(11)),
        progress: { _ in progress.increment() }) == 2)
    #expect(progress.value > 0)
    #expect(try await cache.removeAll(matching: .expired) == 1)
    #expect(try await cache.removeAll(matching: .larger(than: 150)) == 4)
    #expect(try await cache.removeAll(matching: .older(than: .seconds(8))) == 8)
    #expect(cache.statistics.entries == 5)
    let negative = try await errorOf { try await cache.removeAll(matching: .larger(than: -1)) }
    #expect(negative.code == .invalidArgument)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  // MARK: Sweeps

  @Test func aSweepRemovesWhatIsExpiredAndNothingElse() async throws {
    let cache = try open()
    for i in 0..<1_000 {
      try await cache.store(
        [1], for: "key-\(i)",
        lifetime: i.isMultiple(of: 2) ? .expires(after: .seconds(10)) : .sliding(.seconds(60)),
        staleWindow: .zero)
    }
    clock.advance(by: .seconds(30))
    #expect(try cache.blob(for: "key-1") != nil)
    #expect(try await cache.sweep().expired == 500)
    clock.advance(by: .seconds(40))
    // All but the one that was read meanwhile.
    #expect(try await cache.sweep().expired == 499)
    #expect(try cache.blob(for: "key-1") != nil)
    #expect(cache.statistics.entries == 1)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func whatIsStaleIsKeptForItsWindow() async throws {
    let cache = try open()
    try await cache.store(
      [1], for: "key", lifetime: .expires(after: .seconds(10)), staleWindow: .seconds(100))
    clock.advance(by: .seconds(105))
    #expect(try cache.blob(for: "key") == nil)
    #expect(try await cache.sweep().expired == 0)
    clock.advance(by: .seconds(10))
    #expect(try await cache.sweep().expired == 1)
    try await cache.close()
  }

  @Test func aSweepTakesDebrisAndLeavesWhatIsAlive() async throws {
    let cache = try open()
    // Both before the kill: an open sweeps, too.
    let living = try await SecondProcess.over(folder.path)
    let dead = try await SecondProcess.over(folder.path)
    try dead.send("flood big 4096")
    try await eventually("something is staged") {
      folder.files(in: "staging").contains { !$0.contains("+") }
    }
    dead.kill()
    try living.send("flood big 200")
    let report = try await cache.sweep()
    #expect(report.deadStagingFiles > 0)
    #expect(try await living.nextLine(patience: .seconds(120)).hasPrefix("ok"))
    try await living.end()
    #expect(try cache.blob(for: "big")?.count == 200 << 20)
    try await cache.close()
  }

  @Test func quarantineIsBoundedOldestFirst() async throws {
    let cache = try open()
    for i in 0..<70 {
      let digest = try await cache.store(
        seededBytes(count: 1 << 20, seed: UInt64(i)), for: "key-\(i)"
      ).digest
      try flipByte(of: folder.blobFile(digest), at: 1_000)
      #expect(try cache.blob(for: "key-\(i)") == nil)
      try await cache.flush()
    }
    #expect(folder.quarantined.count == 70)
    #expect(try await cache.sweep().quarantinedFiles == 6)
    #expect(folder.quarantined.count == 64)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func oneProcessSweepsAtATimeAndCloseStopsIt() async throws {
    var configuration = BlobCache.Configuration()
    configuration.sweepInterval = .milliseconds(1)
    configuration.defaultStaleWindow = .zero
    let path = still.path
    for _ in 0..<5 {
      let cache = try BlobCache(directory: path, configuration: configuration)
      try await cache.store(
        [1], for: "key", lifetime: .expires(after: .milliseconds(1)),
        staleWindow: .zero)
      try await eventually("it is swept") { cache.statistics.entries == 0 }
      try await cache.close()
    }
  }
}
