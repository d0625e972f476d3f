import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 6: bytes on the disk, entries, age and free disk space are bounded at all times.
@Suite("6. The limits hold")
struct LimitsHoldTests {
  private let still = StillCache()
  private var clock: BlobCache.ManualClock { still.clock }
  private var folder: CacheFolder { still.folder }
  /// FORMAT, LOCK, lock.mdb, folders, ballast: what `du` counts and the limit does not. Free pages of the index are
  /// counted apart: they are bounded by four times their allowance, which a checkpoint may keep.
  private let overhead = 3 << 20
  private let free = 4 * (4 << 20)

  private func expectWithin(
    _ limit: Int, _ location: SourceLocation = #_sourceLocation
  ) throws {
    let index = Int(fileStatus(folder.path + "/index/data.mdb")?.st_blocks ?? 0) * 512
    let all = try allocatedBytes(of: folder.path)
    #expect(all - index <= limit + overhead, sourceLocation: location)
    #expect(index <= limit + free, sourceLocation: location)
  }

  private func open(_ limits: BlobCache.Limits?, at path: String? = nil) throws -> BlobCache {
    try still.open(at: path) { $0.limits = limits }
  }

  private func fill(_ cache: BlobCache, _ range: Range<Int>, size: Int) async throws {
    for i in range {
      clock.advance(by: .seconds(1))
      try await cache.store(seededBytes(count: size, seed: UInt64(i)), for: "key-\(i)")
    }
  }

  // MARK: The bounds

  @Test func entriesNeverExceedTheirLimit() async throws {
    let cache = try open(.entries(100))
    for i in 0..<500 {
      try await fill(cache, i..<i + 1, size: 100)
      #expect(cache.statistics.entries <= 100)
    }
    #expect(cache.statistics.entries == 100)
    #expect(cache.statistics.evictions == 400)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test(arguments: [1_000, 100_000])
  func bytesNeverExceedTheirLimit(size: Int) async throws {
    let limit = 8 << 20
    let cache = try open(.bytes(limit))
    for i in 0..<6 {
      let each = limit / size / (size == 1_000 ? 8 : 2)
      try await fill(cache, i * each..<(i + 1) * each, size: size)
      #expect(cache.statistics.usedBytes <= limit + 4 * size + (64 << 10))
      try expectWithin(limit)
    }
    // Small bodies share the index's pages, three or fewer to a page.
    #expect(cache.statistics.entries * size > limit / 3)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func aBatchLargerThanTheLimitEndsWithinIt() async throws {
    let limit = 4 << 20
    let cache = try open(.bytes(limit))
    let items = (0..<4_000).map {
      BlobCache.Item(key: "\($0)", bytes: seededBytes(count: 4_000, seed: UInt64($0)))
    }
    try await cache.storeAll(items)
    // One batch may exceed it; what comes next makes room for that, too.
    for i in 0..<40 { try await fill(cache, i * 10..<i * 10 + 10, size: 100) }
    try await cache.trim(to: .bytes(limit))
    #expect(cache.statistics.usedBytes <= limit)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// The limit counts the index by what LMDB tells of its trees. Here it is held against the file: all pages up to the
  /// last one that are not free.
  @Test func whatTheLimitCountsIsWhatTheIndexTakes() async throws {
    let cache = try open(.unlimited)
    for start in stride(from: 0, to: 20_000, by: 1_000) {
      try await cache.storeAll(
        (start..<start + 1_000).map {
          .init(key: "\($0)", bytes: [1, 2, 3], tags: ["one", "another"])
        })
    }
    for prefix in ["", "12", "1"] {
      if !prefix.isEmpty { try await cache.removeAll(withPrefix: .init(prefix)) }
      let census = try await cache.census()
      let pages = try IndexFile(of: folder.path).lastPage + 1
      let taken = pages * IndexFile.pageSize - census.indexFreeBytes
      #expect(census.statistics.usedBytes == taken, "after the removal of \(prefix)")
      // It is reckoned before the commit, which writes the list of free pages anew.
      #expect(abs(cache.statistics.usedBytes - taken) <= 8 * IndexFile.pageSize)
    }
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func severalProcessesTogetherKeepToTheLimitThatOneSet() async throws {
    let limit = 12 << 20
    let cache = try open(.bytes(limit))
    let others = [
      try await SecondProcess.over(folder.path), try await SecondProcess.over(folder.path),
    ]
    for other in others { try other.send("fill 300 60000") }
    for i in 0..<20 {
      try await fill(cache, i * 20..<(i + 1) * 20, size: 60_000)
      try expectWithin(limit)
    }
    for other in others {
      #expect(try await other.nextLine().hasPrefix("ok"))
      try await other.end()
    }
    try await fill(cache, 0..<1, size: 10)
    try expectWithin(limit)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func agedEntriesAreGoneAndSwept() async throws {
    let cache = try open(.age(.seconds(100)))
    try await fill(cache, 0..<10, size: 100)
    clock.advance(by: .seconds(95))
    #expect(try cache.blob(for: "key-0") == nil)
    #expect(try cache.blob(for: "key-9") != nil)
    let aged = try #require(try cache.entry(for: "key-0"))
    #expect(aged.isExpired && aged.expiresAt == aged.storedAt + 100)
    let report = try await cache.sweep()
    #expect(report.expired == cache.statistics.removals || report.expired > 0)
    #expect(cache.statistics.entries == 10 - report.expired)
    clock.advance(by: .seconds(100))
    #expect(try cache.blob(for: "key-9") == nil)
    try await cache.sweep()
    #expect(cache.statistics.entries == 0)
    try await cache.close()
  }

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func freeDiskSpaceIsLeft() async throws {
    let disk = try SmallFileSystem(mebibytes: 64)
    let path = "\(disk.path)/cache"
    let cache = try open(.init(minimumFreeDisk: 16 << 20), at: path)
    for i in 0..<100 {
      try await fill(cache, i..<i + 1, size: 1 << 20)
      #expect(freeBytes(of: disk.path) >= (16 << 20) - (3 << 20))
    }
    #expect(cache.statistics.evictions > 30)
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  @Test func aStreamedBodyMakesRoomWhileItIsStaged() async throws {
    let limit = 8 << 20
    let cache = try open(.bytes(limit))
    try await fill(cache, 0..<70, size: 100_000)
    let piece = seededBytes(count: 1 << 20, seed: 1)
    try await cache.store(for: "large", expectingSize: 6 * piece.count) { body in
      for _ in 0..<6 {
        try await body.write(piece)
        try expectWithin(limit)
      }
    }
    #expect(try cache.blob(for: "large")?.count == 6 << 20)
    #expect(cache.statistics.usedBytes <= limit)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// Many entries that were removed leave a table in which the few that may go are hard to find.
  @Test func aTableOfFreeLinesHidesNobody() async throws {
    let limit = 16 << 20
    let cache = try open(.unlimited)
    try await cache.storeAll((0..<20_000).map { .init(key: "small-\($0)", bytes: [1]) })
    try await cache.removeAll(withPrefix: "small-")
    try await cache.trim(to: .init(bytes: limit), recording: true)
    try await fill(cache, 0..<60, size: 1 << 20)
    #expect(cache.statistics.usedBytes <= limit + (1 << 20))
    try await cache.storeAll((0..<2_000).map { .init(key: "pin-\($0)", bytes: [1]) })
    for i in 0..<500 { try await cache.pin("pin-\(i)") }
    try await cache.trim(to: .entries(505))
    #expect(cache.statistics.entries == 505)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func aLargeBodyMakesRoomOnADiskThatIsNearlyFull() async throws {
    let disk = try SmallFileSystem(mebibytes: 64)
    let path = "\(disk.path)/cache"
    let cache = try open(nil, at: path)
    for i in 0..<12 {
      try await fill(cache, i..<i + 1, size: 14 << 20)
      #expect(try cache.contains("key-\(i)"))
    }
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  /// There is room for bytes, and none for another file.
  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func aFileSystemWithoutInodesEvicts() async throws {
    let disk = try SmallFileSystem(inodes: 500)
    let path = "\(disk.path)/cache"
    let cache = try open(nil, at: path)
    for i in 0..<600 {
      try await fill(cache, i..<i + 1, size: 20_000)
      #expect(try cache.contains("key-\(i)"))
    }
    try await cache.store(for: "streamed") { body in
      try await body.write(seededBytes(count: 100_000, seed: 1))
    }
    #expect(try cache.blob(for: "streamed")?.count == 100_000)
    #expect(cache.statistics.evictions > 100)
    try await cache.trim(to: .entries(50))
    try await cache.sweep()
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  @Test func aPinnedEntryCanBeReplacedByOneOfItsSize() async throws {
    let cache = try open(.bytes(3 << 20))
    try await cache.store(seededBytes(count: 1_800_000, seed: 1), for: "pinned")
    try await cache.pin("pinned")
    let bytes = seededBytes(count: 1_800_000, seed: 2)
    try await cache.store(bytes, for: "pinned")
    #expect(try cache.blob(for: "pinned")?.holds(bytes) == true)
    #expect(cache.statistics.pinnedEntries == 1)
    try await cache.close()
  }

  @Test func trimmingToAnAgeRemovesWhatIsOlder() async throws {
    let cache = try open(nil)
    try await fill(cache, 0..<20, size: 10)
    try await cache.pin("key-0")
    #expect(try await cache.trim(to: .age(.seconds(10))) == 8)
    #expect(try cache.contains("key-0"))
    #expect(cache.statistics.entries == 12)
    try await cache.close()
  }

  // MARK: What does not fit

  @Test func whatIsLargerThanTheLimitIsRefusedAndTheRestStays() async throws {
    let cache = try open(.bytes(4 << 20))
    try await fill(cache, 0..<20, size: 50_000)
    let bytes = seededBytes(count: 5 << 20, seed: 1)
    let whole = try await errorOf { try await cache.store(bytes, for: "large") }
    let streamed = try await errorOf {
      try await cache.store(for: "large", expectingSize: bytes.count) { body in
        try await body.write(bytes)
      }
    }
    for error in [whole, streamed] {
      #expect(error.code == .tooLarge)
      #expect(error.message.contains("limit"))
    }
    #expect(cache.statistics.entries == 20)
    #expect(folder.files(in: "staging").filter { !$0.contains("+") }.isEmpty)
    let blob = try await cache.fetch("large") { load in
      try await load.write(bytes)
      return .complete
    }
    // Its size was not known before: half of the limit made room for it, and it was handed over unstored.
    #expect(blob.holds(bytes))
    #expect(try cache.blob(for: "large") == nil)
    try await cache.close()
  }

  @Test func aFetchOfWhatIsTooLargeHandsItOverManyTimes() async throws {
    let cache = try open(.bytes(2 << 20))
    let bytes = seededBytes(count: 8 << 20, seed: 1)
    for _ in 0..<20 {
      let blob = try await cache.fetch("large") { load in
        for start in stride(from: 0, to: bytes.count, by: 100_000) {
          try await load.write(bytes[start..<min(start + 100_000, bytes.count)])
        }
        return .complete
      }
      #expect(blob.holds(bytes))
    }
    try await cache.close()
  }

  @Test func aHugeBatchIsFollowedByItsEvictions() async throws {
    let cache = try open(.entries(100))
    try await cache.storeAll((0..<2_000).map { .init(key: "\($0)", bytes: [1]) })
    #expect(cache.statistics.entries <= 100)
    try await cache.close()
    let smaller = try open(.entries(10))
    try await eventually("the lower limit is met") { smaller.statistics.entries <= 10 }
    try await smaller.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test(arguments: [
    BlobCache.Limits(bytes: -1), .bytes(0), .bytes(4_095), .bytes(1 << 19), .entries(0),
    .entries(-5),
    .age(.zero), .age(.seconds(-1)), .init(minimumFreeDisk: -1),
  ])
  func absurdLimitsAreAnErrorAndChangeNothing(limits: BlobCache.Limits) async throws {
    let cache = try open(.entries(7))
    try await cache.store([1], for: "key")
    #expect(try await errorOf { _ = try self.open(limits) }.code == .invalidArgument)
    #expect(try await errorOf { try await cache.trim(to: limits) }.code == .invalidArgument)
    #expect(
      try await errorOf { try await cache.trim(to: limits, recording: true) }.code
        == .invalidArgument)
    #expect(try cache.limits == .entries(7))
    #expect(cache.statistics.entries == 1)
    try await cache.close()
    let absent = still.directory.path("absent")
    #expect(try await errorOf { _ = try self.open(limits, at: absent) }.code == .invalidArgument)
    #expect(fileStatus(absent) == nil)
  }

  @Test func moreFreeDiskThanThereIsIsAnErrorAndChangesNothing() async throws {
    let cache = try open(.entries(7))
    try await cache.store(seededBytes(count: 50_000, seed: 1), for: "key")
    let limits = BlobCache.Limits(minimumFreeDisk: 1 << 50)
    for error in [
      try await errorOf { _ = try self.open(limits) },
      try await errorOf { try await cache.trim(to: limits) },
      try await errorOf { try await cache.trim(to: limits, recording: true) },
    ] {
      #expect(error.code == .invalidArgument)
      #expect(error.cause?.contains("the file system has") == true)
    }
    #expect(try cache.limits == .entries(7))
    #expect(cache.statistics.entries == 1)
    try await cache.close()
  }

  @Test func absurdlyLargeLimitsAreNoLimits() async throws {
    let cache = try open(.init(bytes: .max, entries: .max, age: .seconds(Int64.max / 1_000)))
    try await fill(cache, 0..<20, size: 100)
    #expect(cache.statistics.entries == 20)
    #expect(try cache.limits.bytes == .max)
    try await cache.close()
  }

  // MARK: Who sets them

  @Test func limitsAreRecordedAndTheLastExplicitOnesWin() async throws {
    let first = try open(.init(bytes: 64 << 20, entries: 50))
    try await fill(first, 0..<60, size: 10)
    try await first.close()
    let reopened = try open(nil)
    #expect(try reopened.limits == .init(bytes: 64 << 20, entries: 50))
    try await fill(reopened, 60..<70, size: 10)
    #expect(reopened.statistics.entries == 50)
    let second = try open(.entries(80))
    #expect(try reopened.limits == .entries(80))
    try await fill(reopened, 70..<120, size: 10)
    #expect(reopened.statistics.entries == 80)
    try await second.close()
    try await reopened.close()
  }

  @Test func reopeningWithALargerLimitEvictsNothing() async throws {
    let first = try open(.bytes(64 << 20))
    try await fill(first, 0..<200, size: 50_000)
    try await first.close()
    let larger = try open(.bytes(1 << 30))
    try await fill(larger, 200..<201, size: 10)
    #expect(larger.statistics.entries == 201)
    #expect(larger.statistics.evictions == 0)
    try await larger.close()
  }

  @Test func trimGoesAsFarAsAskedAndRecordsNothingUnlessAsked() async throws {
    let cache = try open(.entries(1_000))
    try await fill(cache, 0..<900, size: 100)
    #expect(try await cache.trim(to: .unlimited) == 0)
    #expect(try await cache.trim(to: .entries(100)) == 800)
    #expect(cache.statistics.entries == 100)
    #expect(try cache.limits == .entries(1_000))
    try await cache.trim(to: .entries(50), recording: true)
    #expect(cache.statistics.entries == 50)
    #expect(try cache.limits == .entries(50))
    try await cache.close()
  }

  // MARK: What goes first

  @Test func whatWasReadStaysAndWhatHasExpiredGoesFirst() async throws {
    let cache = try open(.entries(200))
    for i in 0..<100 {
      try await cache.store([UInt8(i)], for: "short \(i)", lifetime: .expires(after: .seconds(5)))
    }
    for i in 0..<100 { try await cache.store([UInt8(i)], for: "read \(i)") }
    for _ in 0..<4 {
      clock.advance(by: .seconds(10))
      for i in 0..<100 { #expect(try cache.blob(for: "read \(i)") != nil) }
    }
    for i in 0..<90 { try await fill(cache, i..<i + 1, size: 10) }
    let read = try (0..<100).filter { try cache.contains("read \($0)") }.count
    #expect(read >= 90)  // a sample of 32 may miss the last few of the expired
    try await cache.close()
  }

  /// A hit in one process keeps an entry that another would evict.
  @Test func hitsInAnotherProcessCount() async throws {
    let cache = try open(.entries(100))
    for i in 0..<100 { try await fill(cache, i..<i + 1, size: 100) }
    let other = try await SecondProcess.over(folder.path, "clock")
    for round in 0..<10 {
      clock.advance(by: .seconds(60))
      _ = try await other.call("clock \(clock.now.timeIntervalSince1970)")
      // One line in five, so that every sample of neighbours has others, too.
      for i in stride(from: 0, to: 100, by: 5) {
        #expect(try await other.call("get key-\(i)").hasPrefix("hit"))
      }
      try await fill(cache, 1_000 + round * 20..<1_020 + round * 20, size: 100)
    }
    try await other.end()
    #expect(cache.statistics.entries == 100)
    try await cache.close()
  }

  // MARK: Pins

  @Test func pinnedEntriesSurviveLimitsAndSweeps() async throws {
    let cache = try open(.entries(50))
    try await cache.store([1], for: "pinned", lifetime: .expires(after: .seconds(1)))
    try await cache.pin("pinned")
    try await fill(cache, 0..<300, size: 100)
    try await cache.sweep()
    #expect(try cache.entry(for: "pinned") != nil)
    #expect(cache.statistics.pinnedEntries == 1)
    try await cache.store([2], for: "pinned")
    #expect(cache.statistics.pinnedEntries == 1)
    try await fill(cache, 300..<600, size: 100)
    #expect(try cache.blob(for: "pinned")?.holds([2]) == true)
    try await cache.unpin("pinned")
    #expect(cache.statistics.pinnedEntries == 0)
    #expect(cache.statistics.pinnedBytes == 0)
    try await fill(cache, 600..<1_200, size: 100)
    #expect(try cache.entry(for: "pinned") == nil)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func pinningMoreThanTheLimitIsAnErrorThatSaysSo() async throws {
    let cache = try open(.bytes(4 << 20))
    var pinned = 0
    var refusal: BlobCache.Error?
    for i in 0..<60 where refusal == nil {
      do {
        try await fill(cache, i..<i + 1, size: 100_000)
        try await cache.pin("key-\(i)")
        pinned += 1
      } catch let error as BlobCache.Error {
        refusal = error
      }
    }
    #expect(refusal?.code == .pinsTooLarge)
    #expect(refusal?.message.contains("pinned") == true)
    #expect(cache.statistics.pinnedEntries == pinned)
    for i in 0..<pinned { #expect(try cache.contains("key-\(i)")) }
    #expect(cache.statistics.usedBytes <= 4 << 20)
    #expect(try await errorOf { try await cache.pin("missing") }.code == .notCached)
    #expect(try await errorOf { try await cache.unpin("missing") }.code == .notCached)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func pinsLeaveRoomWhateverTheLimitCounts() async throws {
    let cache = try open(.entries(10))
    try await fill(cache, 0..<9, size: 10)
    for i in 0..<9 { try await cache.pin("key-\(i)") }
    try await fill(cache, 9..<20, size: 10)
    #expect(cache.statistics.entries == 10)
    #expect(try await errorOf { try await cache.pin("key-19") }.code == .pinsTooLarge)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func aTableThatWasLargeDoesNotWeighOnASmallLimit() async throws {
    let cache = try open(.unlimited)
    try await cache.storeAll((0..<30_000).map { .init(key: "small-\($0)", bytes: [1]) })
    try await cache.trim(to: .bytes(2 << 20), recording: true)
    #expect(cache.statistics.entries > 1_000)
    try await fill(cache, 0..<1, size: 1_000)
    #expect(try cache.contains("key-0"))
    try await cache.close()
  }

  @Test func aClockThatIsSetBackMakesNothingLiveLongerThanTheAgeLimit() async throws {
    let cache = try open(.age(.seconds(60)))
    try await fill(cache, 0..<1, size: 10)
    clock.advance(by: .seconds(-86_400))
    #expect(try cache.blob(for: "key-0") == nil)
    try await cache.close()
  }

  // MARK: Damage

  @Test func filesThatAreGoneDoNotStopEvictionAndSizesComeRight() async throws {
    let cache = try open(.bytes(8 << 20))
    try await fill(cache, 0..<60, size: 100_000)
    for name in folder.blobFiles.prefix(20) {
      try FileManager.default.removeItem(atPath: "\(folder.path)/blobs/\(name)")
    }
    try await fill(cache, 60..<300, size: 100_000)
    try expectWithin(8 << 20)
    _ = try await cache.verify(.everything, repair: true)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// Words of the table's head that repeat the index are taken from the index by who is alone.
  @Test func nonsenseInTheHeadOfTheTableEvictsNothing() async throws {
    let cache = try open(.bytes(64 << 20))
    try await fill(cache, 0..<100, size: 100)
    try await cache.close()
    // Everything that opening does not compare: from the limits to the end of the head.
    try overwrite(folder.path + "/slots", at: 144, with: Array(repeating: 1, count: 32))
    try overwrite(folder.path + "/slots", at: 192, with: Array(repeating: 1, count: 128))
    let again = try open(nil)
    try await fill(again, 100..<110, size: 100)
    #expect(again.statistics.entries == 110)
    #expect(try again.limits == .bytes(64 << 20))
    try await again.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// Free lines that name entries propose in vain, each time as the worst of all.
  @Test func linesOfNobodyKeepNothingFromMakingRoom() async throws {
    let cache = try open(.entries(100))
    try await fill(cache, 0..<100, size: 100)
    // Every other one: no sample is without them.
    for index in stride(from: 0, to: 100, by: 2) {
      try await cache.remove(BlobCache.Key("key-\(index)"))
    }
    try await cache.close()
    let lines = 33_751_040
    let table = try #require(FileHandle(forReadingAtPath: folder.path + "/slots"))
    try table.seek(toOffset: UInt64(lines))
    let bytes = [UInt8](try #require(try table.read(upToCount: 64 * 100)))
    try table.close()
    let free = (0..<100).filter { line in
      bytes[line * 64 + 48..<line * 64 + 64].allSatisfy { $0 == 0 }
    }
    try #require(free.count >= 49)
    for line in free {
      let hash = seededBytes(count: 16, seed: UInt64(line))
      try overwrite(folder.path + "/slots", at: lines + line * 64 + 48, with: hash)
    }
    // Few stores, since each takes one of these lines and makes it right.
    let again = try open(.entries(50))
    try await fill(again, 100..<110, size: 100)
    #expect(again.statistics.entries == 50)
    try await again.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// The table's words for eviction are hints: nonsense in them costs choice, not entries.
  @Test func nonsenseInTheGhostsIsSurvived() async throws {
    let cache = try open(.entries(100))
    try await fill(cache, 0..<300, size: 100)
    try await cache.close()
    try overwrite(folder.path + "/slots", at: 65_536, with: seededBytes(count: 4_096, seed: 3))
    let again = try open(nil)
    try await fill(again, 300..<600, size: 100)
    #expect(again.statistics.entries == 100)
    try await again.close()
    #expect(try await structureOf(folder.path) == "ok")
  }
}

/// What `du` counts.
func allocatedBytes(of path: String) throws -> Int {
  let names = FileManager.default.enumerator(atPath: path)?.allObjects as? [String] ?? []
  return ([""] + names).reduce(0) { sum, name in
    sum + Int(fileStatus(name.isEmpty ? path : "\(path)/\(name)")?.st_blocks ?? 0) * 512
  }
}

private func freeBytes(of path: String) -> Int {
  var status = statvfs()
  return statvfs(path, &status) == 0 ? Int(status.f_bavail) * Int(status.f_frsize) : -1
}
