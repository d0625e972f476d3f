import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 4 step by step: a process stands still inside each step that changes something, others read meanwhile, and
/// then it is killed there. The long form, BLOBCACHE_KILLS=5000, does so for each time that a step is reached.
@Suite("4. Killed at each step", .serialized)
struct KilledAtEachStepTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }
  private static let isLong = Machine.kills != nil

  // MARK: The steps

  enum Mode: String, CaseIterable {
    case checkpointed = "every=3600000"
    case often = "every=20"
    case durable

    var durability: BlobCache.Durability {
      self == .durable ? .durable : .checkpointed(every: .seconds(3600))
    }
  }

  /// Of a store, a removal, and what follows them.
  static let storing = [
    "stage", "stage-write", "stage-sync", "intent", "intent-written", "rename", "renamed", "lines",
    "before-commit", "after-commit", "announced", "slots", "intent-clear", "trash", "trash-commit",
    "unlink", "unlinked", "flush",
  ]
  static let checkpoints = [
    "checkpoint-begin", "pin", "checkpoint-sync", "checkpoint-data", "checkpoint-write",
    "checkpoint-written", "checkpoint-rename", "checkpoint-renamed", "checkpoint-folder",
    "checkpoint-settle", "checkpoint-settled",
  ]
  static let opening = [
    "lock-opened", "index-open", "slots-allocate", "users", "format", "ballast",
  ]
  static let elsewhere = [
    "restore", "restored", "aside", "evict", "punch", "quarantined", "replace-sync",
    "staging-dead",
  ]

  /// Steps that only read, or that no file and no table tells of.
  private static let harmless: Set = ["digest", "list", "blob-open"]

  /// The seam and these tests name the same steps, so that a new one is not left out.
  @Test func eachStepOfTheSeamIsInOneOfTheLists() throws {
    let sources = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
      .appendingPathComponent("../../../CSources/CBlobStore").standardizedFileURL
    var steps: Set<String> = []
    for file in try FileManager.default.contentsOfDirectory(atPath: sources.path)
    where file.hasSuffix(".c") {
      let text = try String(contentsOf: sources.appendingPathComponent(file), encoding: .utf8)
      for part in text.components(separatedBy: "bcsi_fault(\"").dropFirst() {
        steps.insert(String(part.prefix { $0 != "\"" }))
      }
    }
    let listed = Set(Self.storing + Self.checkpoints + Self.opening + Self.elsewhere)
    #expect(steps.subtracting(Self.harmless) == listed)
  }

  // MARK: Standing still, then killed

  /// How it went: nil when the work came to its end before the step was reached so often.
  private func stopAndKill(
    _ process: SecondProcess, _ work: [String], _ acknowledged: inout Acknowledged,
    whileStopped: (Acknowledged) throws -> Void
  ) async throws -> String? {
    for command in work {
      if !command.hasPrefix("flush") { acknowledged.note("begin \(command)") }
      try process.send(command)
      guard let answer = try await process.nextLineOrStop() else {
        try whileStopped(acknowledged)
        process.kill()
        return command
      }
      #expect(answer.hasPrefix("ok"), "\(command): \(answer)")
      if !command.hasPrefix("flush") { acknowledged.note("done") }
    }
    // Files of the dead are unlinked a little later; a step of that may still come.
    try await eventually("the step, or the end of the work") {
      if try process.isStopped { return true }
      return CacheFolder(path).blobFiles.count <= 1
    }
    try process.send("fault none")
    if try await process.nextLineOrStop() != nil { return nil }
    try whileStopped(acknowledged)
    process.kill()
    return "afterwards"
  }

  private static let work = [
    "store a 300 1", "store b 90000 2", "store b 90000 3", "flush", "store a 400 4", "remove b",
    "store c 90000 3", "clear", "flush", "store d 70000 5", "store a 300 6", "flush",
  ]

  @Test(arguments: storing + checkpoints, Mode.allCases)
  func killedWhereItStandsStillBesideAReader(step: String, mode: Mode) async throws {
    if step == "stage-sync" && mode != .durable { return }
    if Self.checkpoints.contains(step) && mode == .durable { return }
    var configuration = BlobCache.Configuration()
    configuration.durability = mode.durability
    configuration.sweepInterval = nil
    var reached = 0
    let short = mode == .often ? [(1, false)] : [(1, true), (1, false), (2, true)]
    for (count, isBeside) in Self.isLong ? (2...29).map({ ($0 / 2, $0 % 2 == 0) }) : short {
      let comment: Comment = "\(step), \(mode), \(count), \(isBeside)"
      var acknowledged = Acknowledged()
      let process = try await SecondProcess.over(path, mode.rawValue)
      #expect(try await process.call("clear") == "ok")
      #expect(try await process.call("fault \(step) \(count) stop") == "ok")
      var beside = isBeside ? try BlobCache(directory: path, configuration: configuration) : nil
      let at = try await stopAndKill(process, Self.work, &acknowledged) { acknowledged in
        guard let beside else { return }
        let began = ContinuousClock.now
        try acknowledged.check(against: beside, comment)
        #expect(ContinuousClock.now - began < .seconds(10), comment)
      }
      if at == nil { try await process.end() } else { reached += 1 }
      let cache = try beside ?? BlobCache(directory: path, configuration: configuration)
      beside = nil
      try acknowledged.check(against: cache, comment)
      try await cache.store(seededBytes(count: 70_000, seed: 6), for: "after")
      try acknowledged.settle(against: cache, comment)
      try await expectNothingLeft(cache, comment)
    }
    #expect(reached > 0, "the step \(step) is never reached")
  }

  private func expectNothingLeft(_ cache: BlobCache, _ comment: Comment) async throws {
    try await cache.sweep()
    #expect(try await strayFiles(of: cache) == [], comment)
    let path = cache.directory
    try await cache.close()
    #expect(Leftovers(path).afterAll == [], comment)
    #expect(try await structureOf(path) == "ok", comment)
  }

  // MARK: Opening

  /// In a folder of its own each time: some steps come once in the life of a directory.
  @Test(arguments: opening) func killedWhileItOpens(step: String) async throws {
    for (number, mode) in Mode.allCases.enumerated() {
      let path = directory.path("cache-\(number)")
      let process = try SecondProcess()
      #expect(try await process.call("fault \(step) 1 stop") == "ok")
      try process.send("open \(path) \(mode.rawValue)")
      let answer = try await process.nextLineOrStop()
      #expect(answer == nil, "the step \(step) is not reached: \(answer ?? "")")
      process.kill()
      let next = try await SecondProcess.over(path, mode.rawValue)
      #expect(try await next.call("store a 300 1").hasPrefix("ok"))
      #expect(try await next.call("store b 90000 1").hasPrefix("ok"))
      #expect(try await next.call("close") == "ok")
      try await next.end()
      // And one that is there.
      let again = try SecondProcess()
      #expect(try await again.call("fault \(step) 1 stop") == "ok")
      try again.send("open \(path) \(mode.rawValue)")
      _ = try await again.nextLineOrStop()
      again.kill()
      var configuration = BlobCache.Configuration()
      configuration.durability = mode.durability
      let cache = try BlobCache(directory: path, configuration: configuration)
      #expect(try #require(try cache.blob(for: "a")).holds(seededBytes(count: 300, seed: 1)))
      #expect(try #require(try cache.blob(for: "b")).holds(seededBytes(count: 90_000, seed: 1)))
      try await expectNothingLeft(cache, "\(step), \(mode)")
    }
  }

  /// A boot later, in the middle of going back to the checkpoint, between its two pages among it; and where there is none.
  @Test(arguments: ["restore 1", "restore 2", "restored 1", "users 1", "aside 1"])
  func killedWhileItGoesBackToTheCheckpoint(step: String) async throws {
    let first = try await SecondProcess.over(path, "boot=first every=3600000")
    for i in 0..<9 {
      #expect(try await first.call("store \(i) \(i % 3 == 0 ? 30_000 : 500) \(i)").hasPrefix("ok"))
    }
    #expect(try await first.call("flush") == "ok")
    #expect(try await first.call("store later 500 1").hasPrefix("ok"))
    first.kill()
    let isAside = step.hasPrefix("aside")
    if isAside { unlink(path + "/index/checkpoint") }
    for _ in 0..<3 {
      let process = try SecondProcess()
      #expect(try await process.call("fault \(step) stop") == "ok")
      try process.send("open \(path) boot=second every=3600000")
      let answer = try await process.nextLineOrStop()
      if answer != nil && isAside { break }  // it was set aside by the first one
      #expect(answer == nil, "the step \(step) is not reached: \(answer ?? "")")
      process.kill()
    }
    var configuration = BlobCache.Configuration()
    configuration.bootID = "second"
    let cache = try BlobCache(directory: path, configuration: configuration)
    for i in 0..<9 {
      let blob = try cache.blob(for: BlobCache.Key("\(i)"))
      #expect((blob != nil) == !isAside)
      if let blob {
        #expect(blob.holds(seededBytes(count: i % 3 == 0 ? 30_000 : 500, seed: UInt64(i))))
      }
    }
    try await cache.store([1], for: "after")
    let report = try await cache.verify(.everything, repair: true)
    #expect(report.damagedBlobs == 0 && report.missingFiles == 0 && report.wrongTotals == 0)
    try await cache.close()
    #expect(Leftovers(path).afterAll == [])
  }

  // MARK: Room, damage, debris

  /// Entries go, and holes are made, in front of what is stored: what is there is right, all of it is counted.
  @Test(arguments: ["evict", "punch"]) func killedWhileRoomIsMade(step: String) async throws {
    for (number, mode) in Mode.allCases.enumerated() {
      // Thousands of single stores, each of which waits for the disk.
      if step == "punch" && mode == .durable && !Self.isLong { continue }
      for count in Self.isLong ? Array(1...10) : [1 + number] {
        let path = directory.path("cache-\(number)")
        let limit = step == "evict" ? 1 << 20 : 8 << 20
        let process = try await SecondProcess.over(path, "\(mode.rawValue) limit=\(limit)")
        #expect(try await process.call("fault \(step) \(count) stop") == "ok")
        var stopped = false
        for round in 0..<20 where !stopped {
          // Pages that are free, more than are kept: then a sweep gives them back.
          let work =
            step == "evict" ? ["mixed 160 \(round)"] : ["fill 2400 3000", "clear", "sweep"]
          for command in work where !stopped {
            try process.send(command)
            stopped = try await process.nextLineOrStop() == nil
          }
        }
        #expect(stopped, "the step \(step) is never reached")
        process.kill()
        var configuration = BlobCache.Configuration()
        configuration.durability = .asRecorded
        let cache = try BlobCache(directory: path, configuration: configuration)
        try await cache.store([1], for: "after")
        #expect(try await cache.verify(.everything).isSound)
        #expect(cache.statistics.usedBytes <= limit + (64 << 10))
        try await expectNothingLeft(cache, "\(step), \(mode), \(count)")
      }
    }
  }

  @Test(arguments: ["quarantined", "replace-sync"], [Mode.checkpointed, .often])
  func killedWhileDamageIsMended(step: String, mode: Mode) async throws {
    var process = try await SecondProcess.over(path, mode.rawValue)
    #expect(try await process.call("store a 90000 1").hasPrefix("ok"))
    #expect(try await process.call("store b 300 2").hasPrefix("ok"))
    try await process.end()
    let digest = BlobCache.Digest(hashing: seededBytes(count: 90_000, seed: 1))
    try flipByte(of: CacheFolder(path).blobFile(digest), at: 1000)
    process = try await SecondProcess.over(path, "\(mode.rawValue) always")
    #expect(try await process.call("fault \(step) 1 stop") == "ok")
    try process.send(step == "quarantined" ? "get a" : "store c 90000 1")
    if let answer = try await process.nextLineOrStop() {
      // The entry is taken out a little later, by the store's own thread.
      #expect(step == "quarantined" && answer == "miss")
      try await process.untilStopped()
    }
    process.kill()
    let cache = try BlobCache(directory: path)
    if let blob = try cache.blob(for: "a") {
      #expect(blob.holds(seededBytes(count: 90_000, seed: 1)))
    }
    #expect(try #require(try cache.blob(for: "b")).holds(seededBytes(count: 300, seed: 2)))
    let bytes = seededBytes(count: 90_000, seed: 1)
    for key in ["a", "c"] as [BlobCache.Key] {
      try await cache.store(bytes, for: key)
      #expect(try #require(try cache.blob(for: key)).holds(bytes))
    }
    #expect(try await cache.verify(.everything).isSound)
    try await expectNothingLeft(cache, "\(step), \(mode)")
  }

  /// Whoever sweeps what a dead one has left is killed, too.
  @Test func killedWhileItSweepsWhatADeadOneLeft() async throws {
    for count in 1...3 {
      let first = try await SecondProcess.over(path)
      #expect(try await first.call("fault renamed 1 kill") == "ok")
      try first.send("store key-\(count) 90000 \(count)")
      _ = await first.status()
      let second = try SecondProcess()
      #expect(try await second.call("fault staging-dead \(count) stop") == "ok")
      try second.send("open \(path)")
      if try await second.nextLineOrStop() != nil { #expect(count > 1) }
      second.kill()
      let cache = try BlobCache(directory: path)
      #expect(try cache.blob(for: BlobCache.Key("key-\(count)")) == nil)
      try await expectNothingLeft(cache, "\(count)")
    }
  }

  // MARK: Every call to the kernel

  /// Killed right after its first, second … call that changes a file: pages and meta pages of the index, syncs, renames.
  /// The short form takes some of them.
  @Test(arguments: Mode.allCases) func killedAfterEachCallThatChangesAFile(mode: Mode) async throws
  {
    let stride = Self.isLong ? 1 : 9
    var configuration = BlobCache.Configuration()
    configuration.durability = mode.durability
    configuration.sweepInterval = nil
    var killed = 0
    for number in 0..<2000 {
      let count = 1 + number * stride
      let comment: Comment = "\(mode), after \(count) calls"
      let process = try await SecondProcess.over(
        path, mode.rawValue,
        environment: [
          "BLOBCACHE_RECORD_LOG": directory.path("log"), "BLOBCACHE_RECORD_ROOT": path,
        ])
      var acknowledged = Acknowledged()
      #expect(try await process.call("clear") == "ok")
      #expect(try await process.call("kill-after any \(count)") == "ok")
      do {
        for command in Self.work {
          let isNoted = !command.hasPrefix("flush")
          if isNoted { acknowledged.note("begin \(command)") }
          let answer = try await process.call(command)
          #expect(answer.hasPrefix("ok"), "\(command): \(answer)")
          if isNoted { acknowledged.note("done") }
        }
        #expect(try await process.call("close") == "ok")
        try await process.end()
        break
      } catch is SecondProcess.Failure {
        killed += 1
      }
      let cache = try BlobCache(directory: path, configuration: configuration)
      try acknowledged.check(against: cache, comment)
      try await cache.store(seededBytes(count: 70_000, seed: 6), for: "after")
      try acknowledged.settle(against: cache, comment)
      try await expectNothingLeft(cache, comment)
      unlink(directory.path("log"))
    }
    print("killed after each call, \(mode): \(killed) of them")
    #expect(killed >= 5)
  }
}
