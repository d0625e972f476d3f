import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 5: a power cut leads back to the last checkpoint. Here another boot id stands for the cut;
/// what the disk may lose of what was not synced is tried by PowerCutTests.
@Suite("5. Checkpoints")
struct CheckpointTests {
  private let directory = TemporaryDirectory()
  private var folder: CacheFolder { CacheFolder(directory.path("cache")) }

  private func open(
    boot: String = "first", every interval: Duration? = nil,
    _ change: (inout BlobCache.Configuration) -> Void = { _ in }
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.bootID = boot
    configuration.durability = .checkpointed(every: interval)
    configuration.sweepInterval = nil
    change(&configuration)
    return try BlobCache(directory: folder.path, configuration: configuration)
  }

  private func bytes(_ i: Int) -> [UInt8] {
    seededBytes(count: i % 3 == 0 ? 30_000 : 500, seed: UInt64(i))
  }

  private func store(_ range: Range<Int>, in cache: BlobCache) async throws {
    for i in range { try await cache.store(bytes(i), for: "\(i)") }
  }

  private func expect(_ range: Range<Int>, in cache: BlobCache) throws {
    for i in range {
      let blob = try #require(try cache.blob(for: "\(i)"), "\(i)")
      #expect(blob.holds(bytes(i)), "\(i)")
    }
  }

  private var transaction: UInt64 {
    guard let data = FileManager.default.contents(atPath: folder.path + "/index/checkpoint")
    else { return 0 }
    return data[16..<24].reversed().reduce(0) { $0 << 8 | UInt64($1) }
  }

  /// As after `kill -9` of everybody and a cut: a copy of the directory, opened by another boot.
  private func cut(_ body: (BlobCache) async throws -> Void) async throws {
    let copy = directory.path("copy-\(UUID())")
    // By another process: to close lock.mdb in this one would give up LMDB's locks (fcntl(2)).
    try #require(Machine.run("cp", "-a", folder.path, copy))
    var configuration = BlobCache.Configuration()
    configuration.bootID = "second"
    let cache = try BlobCache(directory: copy, configuration: configuration)
    try await body(cache)
    try await cache.store([1, 2, 3], for: "after")
    try await cache.sweep()
    // Files of what came after the checkpoint are all that is left over; a sweep keeps them for a minute.
    var report = try await cache.verify(.everything, repair: true)
    report.unreferencedFiles = 0
    report.isIndexSetAside = false
    #expect(report.isSound, "\(report)")
    try await cache.close()
    let structure = try await structureOf(copy)
    #expect(structure == "ok")
  }

  @Test func whatWasThereAtTheCheckpointIsThereAndWhatCameLaterIsNot() async throws {
    let cache = try open()
    try await store(0..<100, in: cache)
    try await cache.flush()
    let first = transaction
    #expect(first > 0)
    try await store(100..<200, in: cache)
    #expect(transaction == first)
    try await cut { other in
      try expect(0..<100, in: other)
      #expect(other.statistics.entries == 100)
      #expect(try other.blob(for: "150") == nil)
    }
    try await cache.flush()
    #expect(transaction > first)
    try await cut { try expect(0..<200, in: $0) }
    try await cache.close()
  }

  @Test func aCleanCloseIsACheckpoint() async throws {
    let cache = try open()
    try await store(0..<50, in: cache)
    try await cache.close()
    try await cut { try expect(0..<50, in: $0) }
    // And the same boot goes on where it was.
    let again = try open()
    try expect(0..<50, in: again)
    try await store(50..<60, in: again)
    try await cut { try expect(0..<50, in: $0) }
    try await again.close()
  }

  /// Whatever is written after a checkpoint leaves its pages as they are, however much it is.
  @Test func pagesOfACheckpointAreNotUsedAgain() async throws {
    let cache = try open { $0.limits = .bytes(32 << 20) }
    try await store(0..<300, in: cache)
    try await cache.flush()
    let first = transaction
    for round in 1...4 {
      for i in 0..<300 {
        try await cache.store(seededBytes(count: 400, seed: UInt64(round * 1000 + i)), for: "\(i)")
      }
      try await cache.removeAll()
    }
    if transaction == first {
      try await cut { other in
        // Files may be gone, bodies in the index are not.
        for i in 0..<300 where i % 3 != 0 {
          #expect(try #require(try other.blob(for: "\(i)")).holds(bytes(i)))
        }
        for i in 0..<300 where i % 3 == 0 {
          if let blob = try other.blob(for: "\(i)") { #expect(blob.holds(bytes(i))) }
        }
        try await other.sweep()
      }
    }
    try await cache.close()
  }

  @Test func checkpointsAreMadeByTime() async throws {
    let cache = try open(every: .milliseconds(20))
    try await store(0..<10, in: cache)
    try await eventually("a checkpoint") { transaction > 0 }
    try await cache.flush()
    let second = transaction
    try await store(10..<20, in: cache)
    try await eventually("the next one") { transaction > second }
    try await cut { try expect(0..<10, in: $0) }
    try await cache.close()
  }

  /// The index outgrows its bound by no more than what stores are made to wait for.
  @Test func churnMakesCheckpointsBeforeTheirTime() async throws {
    let limit = 16 << 20
    let cache = try open { $0.limits = .bytes(limit) }
    try await store(0..<100, in: cache)
    try await cache.flush()
    let first = transaction
    var most = 0
    for round in 0..<60 {
      let items = (0..<300).map {
        BlobCache.Item(
          key: "\($0)", bytes: seededBytes(count: 4000, seed: UInt64(round * 300 + $0)))
      }
      try await cache.storeAll(items)
      most = max(most, Int(fileStatus(folder.path + "/index/data.mdb")?.st_blocks ?? 0) * 512)
    }
    #expect(transaction > first)
    #expect(most <= limit + 4 * (4 << 20) + (6 << 20), "\(most >> 20) MiB")
    try await cache.close()
    let structure = try await structureOf(folder.path)
    #expect(structure == "ok")
  }

  enum Fate: String, CaseIterable { case killed, stopped, closed }

  /// Who made the checkpoint holds its pin; what becomes of that process does not matter.
  @Test(arguments: Fate.allCases)
  func theHolderOfThePinMayGo(fate: Fate) async throws {
    let limit = 16 << 20
    let holder = try await SecondProcess.over(folder.path, "boot=first")
    let cache = try open { $0.limits = .bytes(limit) }
    try await store(0..<100, in: cache)
    _ = try await holder.call("store theirs 500 9")
    _ = try await holder.call("flush")
    let first = transaction
    #expect(first > 0)
    switch fate {
    case .killed: holder.kill()
    case .stopped: kill(holder.pid, SIGSTOP)
    case .closed:
      _ = try await holder.call("close")
      try await holder.end()
    }
    // Some hundred MiB of churn: with the old pin in the way, stores would be refused.
    for round in 0..<60 {
      try await cache.storeAll(
        (1000..<1300).map {
          BlobCache.Item(
            key: "\($0)", bytes: seededBytes(count: 4000, seed: UInt64(round * 300 + $0)))
        })
    }
    #expect(transaction > first)
    let size = Int(fileStatus(folder.path + "/index/data.mdb")?.st_blocks ?? 0) * 512
    #expect(size <= limit + 4 * (4 << 20) + (6 << 20), "\(size >> 20) MiB")
    try await cache.flush()
    try await cut { other in
      for i in 1000..<1300 where try cache.contains("\(i)") {
        #expect(
          try #require(try other.blob(for: "\(i)")).holds(
            seededBytes(count: 4000, seed: UInt64(59 * 300 + i))))
      }
    }
    if fate == .stopped {
      kill(holder.pid, SIGCONT)
      #expect(try await holder.call("store theirs 500 10").hasPrefix("ok"))
      _ = try await holder.call("flush")
      try await holder.end()
    }
    try await cache.close()
    let structure = try await structureOf(folder.path)
    #expect(structure == "ok")
  }

  /// The next writer pins what nobody holds any more before it changes anything.
  @Test func afterAKillTheNextWriterProtectsTheCheckpoint() async throws {
    let holder = try await SecondProcess.over(folder.path, "boot=first")
    let cache = try open()
    try await store(0..<50, in: cache)
    _ = try await holder.call("flush")
    holder.kill()
    _ = await holder.status()
    for i in 0..<50 { try await cache.remove("\(i)") }
    try await store(100..<150, in: cache)
    try await cut { other in
      for i in 0..<50 where i % 3 != 0 {
        let blob = try #require(try other.blob(for: "\(i)"))
        #expect(blob.holds(bytes(i)))
      }
    }
    try await cache.close()
  }

  enum Damage: String, CaseIterable { case flipped, truncated, empty, missing, link, ofAnother }

  @Test(arguments: Damage.allCases)
  func aDamagedCheckpointCostsTheEntriesAndNothingElse(damage: Damage) async throws {
    let cache = try open()
    try await store(0..<30, in: cache)
    try await cache.close()
    let path = folder.path + "/index/checkpoint"
    switch damage {
    case .flipped: try flipByte(of: path, at: 5000)
    case .truncated: try #require(truncate(path, 4000) == 0)
    case .empty: try #require(truncate(path, 0) == 0)
    case .missing: try FileManager.default.removeItem(atPath: path)
    case .link:
      try FileManager.default.moveItem(atPath: path, toPath: directory.path("moved"))
      try FileManager.default.createSymbolicLink(
        atPath: path, withDestinationPath: directory.path("moved"))
    case .ofAnother:
      let other = directory.path("other")
      let another = try BlobCache(directory: other)
      for i in 0..<3 { try await another.store([1, 2, 3], for: "\(i)") }
      try await another.close()
      try FileManager.default.removeItem(atPath: path)
      try FileManager.default.copyItem(atPath: other + "/index/checkpoint", toPath: path)
    }
    try await cut { other in
      for i in 0..<30 {
        if let blob = try other.blob(for: "\(i)") { #expect(blob.holds(bytes(i))) }
      }
      try await store(0..<30, in: other)
      try expect(0..<30, in: other)
    }
  }

  @Test(arguments: [
    "checkpoint-write", "checkpoint-rename", "checkpoint-folder", "checkpoint-sync",
  ])
  func aStepThatFailsLeavesTheCheckpointBefore(step: String) async throws {
    let process = try await SecondProcess.over(folder.path, "boot=first")
    for i in 0..<9 { _ = try await process.call("store \(i) \(bytes(i).count) \(i)") }
    #expect(try await process.call("flush") == "ok")
    for i in 9..<18 { _ = try await process.call("store \(i) \(bytes(i).count) \(i)") }
    _ = try await process.call("fault \(step) 1 \(step == "checkpoint-sync" ? EIO : ENOSPC)")
    #expect(try await process.call("flush").hasPrefix("error"))
    #expect(try await process.call("store more 500 1").hasPrefix("ok"))
    try await cut { try expect(0..<9, in: $0) }
    // A sync that failed is final; the rest may be tried again.
    let again = try await process.call("flush")
    #expect(step == "checkpoint-sync" ? again.hasPrefix("error io") : again == "ok")
    process.kill()
    try await cut { try expect(0..<(again == "ok" ? 18 : 9), in: $0) }
  }

  @Test(
    arguments: [
      "checkpoint-begin", "checkpoint-sync", "checkpoint-write", "checkpoint-rename",
      "checkpoint-folder",
    ], ["kill", "stop"])
  func inTheMiddleOfOneTheOneBeforeStands(step: String, how: String) async throws {
    let process = try await SecondProcess.over(folder.path, "boot=first")
    for i in 0..<9 { _ = try await process.call("store \(i) \(bytes(i).count) \(i)") }
    #expect(try await process.call("flush") == "ok")
    for i in 9..<18 { _ = try await process.call("store \(i) \(bytes(i).count) \(i)") }
    _ = try await process.call("fault \(step) 1 \(how)")
    try process.send("flush")
    if how == "stop" { try await process.untilStopped() } else { _ = await process.status() }
    try await cut { try expect(0..<9, in: $0) }
    // With the write lock it stands in everybody's way until it goes on; elsewhere in nobody's.
    let isLocked = how == "stop" && ["checkpoint-begin", "checkpoint-rename"].contains(step)
    if !isLocked {
      let cache = try open()
      try await store(18..<27, in: cache)
      try await cache.flush()
      try await cut { try expect(0..<27, in: $0) }
      try await cache.close()
    }
    if how == "stop" {
      kill(process.pid, SIGCONT)
      #expect(try await process.nextLine() == "ok")
      try await process.end()
    }
    try await cut { try expect(0..<(isLocked ? 18 : 27), in: $0) }
  }

  @Test func afterACutEveryFileIsVerifiedWhateverTheSetting() async throws {
    let cache = try open()
    try await store(0..<9, in: cache)
    try await cache.close()
    let digest = BlobCache.Digest(hashing: bytes(3))
    try flipByte(of: folder.blobFile(digest), at: 100)
    let other = try open(boot: "second") { $0.verification = .never }
    #expect(try other.blob(for: "3") == nil)
    #expect(try other.blob(for: "6") != nil)
    try await other.close()
  }

  @Test func anIntervalOfAnyLengthIsOne() async throws {
    for interval in [Duration.seconds(Int64.max), .seconds(1 << 62), .milliseconds(10)] {
      let cache = try open(every: interval)
      try await store(0..<3, in: cache)
      try await cache.close()
    }
    try await cut { try expect(0..<3, in: $0) }
  }

  @Test func absurdIntervalsAreAnError() async throws {
    for interval in [Duration.zero, .milliseconds(-5), .milliseconds(9)] {
      let error = try await errorOf { _ = try open(every: interval) }
      #expect(error.code == .invalidArgument)
    }
  }

  /// LMDB's table of readers is found among the mappings of the process, where another cache's path may end like this one's.
  @Test func aCacheWhosePathEndsWithThisOnesIsAnother() async throws {
    let path = directory.path("cache")
    let nested = directory.path("nested") + path
    try FileManager.default.createDirectory(atPath: nested, withIntermediateDirectories: true)
    for round in 0..<3 {
      // The filler's place is that of the one that comes last, above the nested one.
      let filler = try BlobCache(directory: directory.path("filler"))
      let other = try BlobCache(directory: nested)
      try await filler.close()
      let cache = try BlobCache(directory: path)
      try await cache.store([1], for: "key")
      try await cache.flush()
      try await other.close()
      let process = try await SecondProcess.over(path)
      #expect(try await process.call("store theirs 1000 \(round)").hasPrefix("ok"))
      #expect(try await process.call("flush") == "ok")
      try await cache.store([2], for: "key")
      try await cache.flush()
      #expect(try await process.call("store theirs 1000 7").hasPrefix("ok"))
      #expect(try await process.call("flush") == "ok")
      try await process.end()
      try await cache.store([3], for: "key")
      #expect(try #require(try cache.blob(for: "key")).holds([3]))
      try await cache.close()
    }
  }
}
