import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 4: after `kill -9`, every store that had returned is there, none is half there, no debris
/// remains after the next open, and no other process hangs. The long form: BLOBCACHE_KILLS=5000.
@Suite("4. Killed, nothing lost", .serialized)
struct KilledNothingLostTests {
  private let directory = TemporaryDirectory()

  // MARK: Random moments

  /// Nobody else has the directory open: the next open finds what the dead one left.
  @Test func killedAtRandomMomentsWithNobodyElseThere() async throws {
    let path = directory.path("cache")
    var acknowledged = Acknowledged()
    for round in 0..<(Machine.kills ?? 200) / 2 {
      try await killOnce(path, round: round, &acknowledged)
      let cache = try BlobCache(directory: path)
      try acknowledged.settle(against: cache, "round \(round)")
      try await cache.close()
      if round % 10 == 0 { #expect(try await structureOf(path) == "ok", "round \(round)") }
    }
    #expect(try await structureOf(path) == "ok")
  }

  /// This process has it open all the time, reads what the dead one acknowledged, and keeps writing.
  @Test func killedAtRandomMomentsBesideALiveProcess() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    var acknowledged = Acknowledged()
    for round in 0..<(Machine.kills ?? 200) / 2 {
      try await killOnce(path, round: round, &acknowledged)
      // What was under way may be there or not. A commit that the kernel had, and that the dead one
      // could not announce any more, is announced by the next writer; after that it is settled.
      try acknowledged.check(against: cache, "round \(round), before the next write")
      let size = round % 2 == 0 ? 300 : 80_000
      try await cache.store(seededBytes(count: size, seed: UInt64(round)), for: "mine")
      #expect(try #require(try cache.blob(for: "mine")).count == size)
      try acknowledged.settle(against: cache, "round \(round)")
    }
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  /// Starts a process that works at random, lets it go on for a random while, kills it.
  private func killOnce(
    _ path: String, round: Int, _ acknowledged: inout Acknowledged
  ) async throws {
    var random = SeededGenerator(seed: UInt64(round) &* 7919)
    let process = try await SecondProcess.over(path)
    try process.send("random \(round)")
    for _ in 0..<Int.random(in: 1...40, using: &random) {
      acknowledged.note(try await process.nextLine())
    }
    // Not only between two lines: some microseconds into whatever it does then.
    let end = ContinuousClock.now + .microseconds(Int.random(in: 0...600, using: &random))
    while ContinuousClock.now < end {}
    process.kill()
    for line in try process.remainingLines() { acknowledged.note(line) }
  }

  // MARK: One batch

  /// A removal of everything gives its lines out again to the stores beside it; when the writer dies before the commit,
  /// the entries that are still there must have theirs.
  @Test(arguments: ["before-commit", "after-commit"])
  func killedInABatchThatRemovesEverythingAndStores(step: String) async throws {
    let path = directory.path("cache")
    let first = try await SecondProcess.over(path)
    #expect(try await first.call("fill 10 100") == "ok 10")
    try await first.end()
    let second = try SecondProcess()
    #expect(try await second.call("fault \(step) 1 kill") == "ok")
    await #expect(throws: SecondProcess.Failure.self) { try await second.call("batch \(path) 5") }
    let cache = try BlobCache(directory: path)
    try await cache.store([1], for: "after")
    #expect(cache.statistics.entries == (step == "before-commit" ? 11 : 6))
    try await cache.trim(to: .entries(1))
    #expect(cache.statistics.entries == 1)
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: What dead processes leave behind

  @Test func twoHundredKilledReadersTakeNoReaderSlots() async throws {
    let path = directory.path("cache")
    let writer = try await SecondProcess.over(path)
    #expect(try await writer.call("store key 2000 1").hasPrefix("ok"))
    for _ in 0..<20 {
      let readers = try await withThrowingTaskGroup(of: SecondProcess.self) { group in
        for _ in 0..<10 {
          group.addTask {
            let reader = try await SecondProcess.over(path)
            _ = try await reader.call("get key")
            return reader
          }
        }
        return try await group.reduce(into: []) { $0.append($1) }
      }
      for reader in readers { reader.kill() }
    }
    let cache = try BlobCache(directory: path)
    #expect(try cache.blob(for: "key")?.count == 2000)
    try await cache.close()
    #expect(try await writer.call("store key 3000 2").hasPrefix("ok"))
  }

  @Test func stagingOfALiveProcessIsLeftAlone() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    let bytes = seededBytes(count: 300_000, seed: 1)
    let (begun, goOn) = (Gate(), Gate())
    async let entry = cache.store(for: "slow") { body in
      try await body.write(bytes.prefix(200_000))
      begun.open()
      await goOn.wait()
      try await body.write(bytes.dropFirst(200_000))
    }
    await begun.wait()
    // Others open, find a dead one's staging file, close again: ours stays.
    let dead = try await SecondProcess.over(path)
    #expect(try await dead.call("fault rename 1 kill") == "ok")
    try dead.send("store other 100000 2")
    await #expect(throws: SecondProcess.Failure.self) { try await dead.nextLine() }
    let other = try await SecondProcess.over(path)
    #expect(try await other.call("store third 100000 3").hasPrefix("ok"))
    try await other.end()
    goOn.open()
    #expect(try await entry.digest == BlobCache.Digest(hashing: bytes))
    #expect(try #require(try cache.blob(for: "slow")).holds(bytes))
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }
}

/// What a process that was killed had announced and acknowledged, key by key.
struct Acknowledged {
  struct Body: Equatable {
    var size: Int
    var seed: UInt64
  }
  private var certain: [String: Body] = [:]
  private var begun: String?
  private var seen: Set<String> = []

  /// A line of `random`: `begin store KEY SIZE SEED`, `begin remove KEY`, `begin clear`, `done`.
  mutating func note(_ line: String) {
    if line.hasPrefix("begin ") {
      begun = String(line.dropFirst(6))
      let words = line.split(separator: " ")
      if words.count > 2 { seen.insert(String(words[2])) }
    } else if line == "done", let command = begun {
      Self.apply(command, to: &certain)
      begun = nil
    } else {
      Issue.record("unexpected line: \(line)")
    }
  }

  /// Every key must be in the state before or after the command that was under way, all of them in
  /// the same one of the two, with the right bytes.
  @discardableResult
  func check(against cache: BlobCache, _ comment: Comment) throws -> [String: Body] {
    var after = certain
    if let begun { Self.apply(begun, to: &after) }
    var fitsBefore = true
    var fitsAfter = true
    for key in seen {
      let blob = try cache.blob(for: BlobCache.Key(key))
      if !Self.fits(blob, certain[key]) { fitsBefore = false }
      if !Self.fits(blob, after[key]) { fitsAfter = false }
    }
    #expect(fitsBefore || fitsAfter, comment)
    return fitsAfter ? after : certain
  }

  /// Checks, and takes the state that was found for the certain one.
  mutating func settle(against cache: BlobCache, _ comment: Comment) throws {
    certain = try check(against: cache, comment)
    begun = nil
  }

  private static func fits(_ blob: BlobCache.Blob?, _ body: Body?) -> Bool {
    guard let blob, let body else { return blob == nil && body == nil }
    return blob.holds(seededBytes(count: body.size, seed: body.seed))
  }

  private static func apply(_ command: String, to state: inout [String: Body]) {
    let words = command.split(separator: " ").map(String.init)
    switch words[0] {
    case "store":
      state[words[1]] = Body(size: Int(words[2]) ?? -1, seed: UInt64(words[3]) ?? 0)
    case "remove": state[words[1]] = nil
    default: state = [:]
    }
  }
}
