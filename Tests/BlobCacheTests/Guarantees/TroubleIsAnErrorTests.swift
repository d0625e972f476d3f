import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 9: trouble is an error, never a crash. Lookups miss or hit, stores throw with the path and
/// the cause, `fetch` still hands over what it loaded.
@Suite("9. Trouble is an error")
struct TroubleIsAnErrorTests {
  private let directory = TemporaryDirectory()

  // MARK: Full disk

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func fullDiskStillHitsAndFetchHandsOver() async throws {
    let disk = try SmallFileSystem(mebibytes: 24)
    var configuration = BlobCache.Configuration()
    // By default entries would go, so that some of the disk stays free.
    configuration.limits = .unlimited
    let cache = try BlobCache(directory: "\(disk.path)/cache", configuration: configuration)
    let large = seededBytes(count: 200_000, seed: 1)
    let small = seededBytes(count: 2000, seed: 2)
    try await cache.store(large, for: "large")
    try await cache.store(small, for: "small")
    disk.fill()

    let error = try await errorOf {
      try await cache.store(seededBytes(count: 500_000, seed: 3), for: "new")
    }
    #expect(error.code == .noSpace)
    #expect(error.path != nil)
    #expect(error.cause != nil)
    // Small bodies go on while the index has free pages, then are refused for the same reason.
    let smallError = try await errorOf {
      for index in 0..<5000 {
        try await cache.store(
          seededBytes(count: 3000, seed: UInt64(index)), for: BlobCache.Key("small-\(index)"))
      }
    }
    #expect(smallError.code == .noSpace)

    for _ in 0..<3 {
      #expect(try #require(try cache.blob(for: "large")).holds(large))
      #expect(try #require(try cache.blob(for: "small")).holds(small))
      #expect(try cache.blob(for: "new") == nil)
    }
    for size in [3000, 500_000] {
      let bytes = seededBytes(count: size, seed: 4)
      let blob = try await cache.fetch(BlobCache.Key("fetched-\(size)")) { load in
        for start in stride(from: 0, to: size, by: 1000) {
          try await load.write(bytes[start..<start + 1000])
        }
        return .complete
      }
      #expect(blob.holds(bytes))
      guard case .loadedNotStored(let cause) = blob.source else {
        Issue.record("\(size): \(blob.source)")
        continue
      }
      #expect(cause.code == .noSpace)
    }

    try FileManager.default.removeItem(atPath: "\(disk.path)/filler")
    for size in [3000, 500_000] {
      let bytes = seededBytes(count: size, seed: 5)
      let key = BlobCache.Key("fetched-\(size)")
      let loaded = try await cache.fetch(key) { load in
        try await load.write(bytes)
        return .complete
      }
      #expect(loaded.holds(bytes))
      #expect(try #require(try cache.blob(for: key)).holds(bytes))
      try await cache.store(bytes, for: "new")
      #expect(try #require(try cache.blob(for: "new")).holds(bytes))
    }
    try await cache.close()
    #expect(try await structureOf("\(disk.path)/cache") == "ok")
  }

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func directoryOnAFullDiskIsNotHalfMade() async throws {
    let disk = try SmallFileSystem(mebibytes: 8)
    disk.fill()
    let error = try await errorOf { _ = try BlobCache(directory: "\(disk.path)/cache") }
    #expect(error.code == .noSpace)
    try FileManager.default.removeItem(atPath: "\(disk.path)/filler")
    // The blocks of what was removed are free when the file system says so.
    try await eventually("room") { mkdir("\(disk.path)/room", 0o700) == 0 }
    rmdir("\(disk.path)/room")
    let cache = try BlobCache(directory: "\(disk.path)/cache")
    try await cache.store([1, 2, 3], for: "key")
    #expect(try #require(try cache.blob(for: "key")).holds([1, 2, 3]))
    try await cache.close()
  }

  /// Each takes a place in lock.mdb, which is mapped: a page without a block would be SIGBUS. So they are in a process
  /// of their own.
  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func aHundredLookupsAtOnceAreHitsOnAFullDisk() async throws {
    let disk = try SmallFileSystem(mebibytes: 24)
    let process = try SecondProcess()
    #expect(try await process.call("lookups \(disk.path)/cache 100") == "open")
    disk.fillToTheLast()
    #expect(try await process.call("go") == "ok 100")
    #expect(try await process.end() == 0)
  }

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func anOpenThatFindsNoBlocksForTheReadersIsAnError() async throws {
    let disk = try SmallFileSystem(mebibytes: 24)
    let path = "\(disk.path)/cache"
    let first = try await SecondProcess.over(path)
    #expect(try await first.call("store key 100 1").hasPrefix("ok"))
    try await first.end()
    try FileManager.default.removeItem(atPath: "\(path)/index/lock.mdb")
    disk.fillToTheLast()
    let second = try SecondProcess()
    #expect(try await second.call("open \(path)").hasPrefix("error noSpace "))
    try FileManager.default.removeItem(atPath: "\(disk.path)/filler")
    #expect(try await second.call("open \(path)") == "ok")
    #expect(try await second.call("get key").hasPrefix("hit 100 "))
    #expect(try await second.end() == 0)
  }

  // MARK: No descriptors

  /// The limit falls on each system call of a store in turn; nothing half made is ever visible.
  @Test(arguments: 0...9)
  func noDescriptorsLeftIsAnErrorOfTheStoreAndAMissOfTheLookup(spare: Int) async throws {
    let path = directory.path("cache")
    let process = try await SecondProcess.over(path)
    #expect(try await process.call("store file 100000 1").hasPrefix("ok"))
    #expect(try await process.call("store small 100 2").hasPrefix("ok"))
    #expect(try await process.call("descriptors \(spare)") == "ok")
    #expect(try await process.call("get small").hasPrefix("hit 100 "))
    let file = try await process.call("get file")
    #expect(file == "miss" || file.hasPrefix("hit 100000 "), "\(file)")
    let stored = try await process.call("store new 90000 3")
    #expect(stored.hasPrefix("ok ") || stored.hasPrefix("error tooManyFiles "), "\(stored)")
    let streamed = try await process.call("stream newer 90000 4 5000")
    #expect(streamed.hasPrefix("ok ") || streamed.hasPrefix("error tooManyFiles "), "\(streamed)")
    let digest = BlobCache.Digest(hashing: seededBytes(count: 80_000, seed: 5)).hex
    let fetched = try await process.call("fetch fetched 80000 5")
    #expect(fetched.contains(" 80000 \(digest)"), "\(fetched)")
    if spare == 0 {
      #expect(file == "miss")
      #expect(stored.hasPrefix("error tooManyFiles "))
      #expect(fetched.hasSuffix(" tooManyFiles"))
    }
    try await process.end()

    let cache = try BlobCache(directory: path)
    #expect(try cache.blob(for: "file")?.count == 100_000)
    if let blob = try cache.blob(for: "new") {
      #expect(blob.holds(seededBytes(count: 90_000, seed: 3)))
    } else {
      #expect(!stored.hasPrefix("ok"))
    }
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  @Test(arguments: [0, 1, 2, 3, 5, 8, 12])
  func openWithoutDescriptorsIsAnErrorAndALaterOneWorks(spare: Int) async throws {
    let path = directory.path("cache")
    for made in [false, true] {
      if made {
        let cache = try BlobCache(directory: path)
        try await cache.store(seededBytes(count: 100_000, seed: 1), for: "key")
        try await cache.close()
      }
      let process = try SecondProcess()
      #expect(try await process.call("descriptors \(spare)") == "ok")
      let opened = try await process.call("open \(path)")
      #expect(opened == "ok" || opened.hasPrefix("error tooManyFiles "), "\(opened)")
      if spare == 0 { #expect(opened != "ok") }
      #expect(try await process.end() == 0)
    }
    let cache = try BlobCache(directory: path)
    #expect(try cache.blob(for: "key")?.count == 100_000)
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  /// Dispatch traps when it needs a descriptor of its own and there is none; by then it must have them.
  @Test(arguments: [0, 1, 2, 3, 4, 6, 12, 64])
  func theRuntimeHasItsDescriptorsBeforeTheFirstCacheIsOpen(spare: Int) async throws {
    let path = directory.path("cache")
    let process = try SecondProcess(arguments: ["bare", path, "\(spare)"])
    let opened = try await process.nextLine()
    if spare == 64 { #expect(opened == "ok") }
    if opened == "ok" {
      #expect(try await process.nextLine().hasPrefix("ok "))
      #expect(try await process.nextLine() == "alive")
    } else {
      #expect(opened.hasPrefix("error tooManyFiles "), "\(opened)")
    }
    #expect(await process.status() == 0, "\(process.standardError)")
  }

  @Test(arguments: ["format", "index-open", "slots-allocate"])
  func aStepOfOpenThatFailsLeavesADirectoryThatOpensLater(step: String) async throws {
    let path = directory.path("cache")
    let process = try SecondProcess()
    #expect(try await process.call("fault \(step) 1 \(EIO)") == "ok")
    let opened = try await process.call("open \(path)")
    #expect(opened.hasPrefix("error io "), "\(opened)")
    #expect(try await process.call("open \(path)") == "ok")
    #expect(try await process.call("store key 100000 1").hasPrefix("ok"))
    #expect(try await process.call("get key").hasPrefix("hit 100000 "))
    try await process.end()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: No permission

  @Test(.enabled(if: Machine.canBecomeNobody, "needs root, setpriv and a build others can read"))
  func withoutPermissionOpeningIsAnErrorAndNothingIsTouched() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    try await cache.store([1], for: "key")
    try await cache.close()
    try #require(chmod(directory.path, 0o755) == 0)
    let nobody = try SecondProcess(wrapper: Machine.asNobody)
    #expect(try await nobody.call("open \(path)").hasPrefix("error permission "))
    #expect(try await nobody.call("open \(directory.path("new"))").hasPrefix("error permission "))
    #expect(fileStatus(directory.path("new")) == nil)
  }

  // MARK: Steps that fail

  static let steps = [
    "stage", "intent", "rename", "before-commit", "after-commit", "slots", "unlink",
  ]

  @Test(arguments: steps, [EIO, ENOSPC])
  func aStepThatFailsFailsItsStoreOnly(step: String, code: Int32) async throws {
    let path = directory.path("cache")
    let process = try await SecondProcess.over(path)
    #expect(try await process.call("store old 100000 1").hasPrefix("ok"))
    #expect(try await process.call("fault \(step) 1 \(code)") == "ok")
    let stored = try await process.call("store new 90000 2")
    let got = try await process.call("get new")
    if stored.hasPrefix("ok") {
      #expect(got.hasPrefix("hit 90000 "), "\(step)")
    } else {
      #expect(stored.hasPrefix("error \(code == ENOSPC ? "noSpace" : "io") "), "\(stored)")
      #expect(got == "miss", "\(step)")
    }
    #expect(try await process.call("get old").hasPrefix("hit 100000 "))
    #expect(try await process.call("store new 90001 3").hasPrefix("ok"))
    #expect(try await process.call("get new").hasPrefix("hit 90001 "))
    #expect(try await process.call("clear") == "ok")
    try await process.end()
    #expect(try await structureOf(path) == "ok")
  }

  /// The other files are unlinked by the same sweep, and the one that could not be is by a later one.
  @Test func aFileThatCannotBeUnlinkedDoesNotKeepTheOthers() async throws {
    let path = directory.path("cache")
    let process = try await SecondProcess.over(path)
    for index in 0..<4 {
      #expect(try await process.call("store key-\(index) 50000 \(index)").hasPrefix("ok"))
    }
    #expect(try await process.call("fault unlink 1 \(EACCES)") == "ok")
    #expect(try await process.call("clear") == "ok")
    try await eventually("three of four files go") { CacheFolder(path).blobFiles.count == 1 }
    #expect(try await process.call("store small 10 1").hasPrefix("ok"))
    try await eventually("the fourth goes") { CacheFolder(path).blobFiles.isEmpty }
    try await process.end()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: Garbage

  @Test func aStoreOverARecordThatCannotBeReadCountsOnce() async throws {
    let path = directory.path("cache")
    let key = "a key whose record is damaged"
    var cache = try BlobCache(directory: path)
    try await cache.store([1, 2, 3], for: BlobCache.Key(key))
    try await cache.close()
    let index = path + "/index/data.mdb"
    var data = try #require(FileManager.default.contents(atPath: index))
    // The fixed part of a record, 104 bytes, stands before the key; old copies of the page may be there too.
    var from = data.startIndex
    while let found = data.range(of: Data(key.utf8), in: from..<data.endIndex) {
      try overwrite(index, at: found.lowerBound - 104, with: [UInt8](repeating: 0xff, count: 104))
      from = found.upperBound
    }
    #expect(from > data.startIndex)
    data.removeAll()
    cache = try BlobCache(directory: path)
    try await cache.store([4, 5, 6], for: BlobCache.Key(key))
    #expect(try #require(try cache.blob(for: BlobCache.Key(key))).holds([4, 5, 6]))
    #expect(cache.statistics.entries == 1)
    try await cache.close()
  }

  enum Garbage: String, CaseIterable {
    case random, zeroes, half, empty, metaPages

    func apply(to path: String) throws {
      let size = Int(try #require(fileStatus(path)).st_size)
      switch self {
      case .random: try overwrite(path, at: 0, with: seededBytes(count: size, seed: 1))
      case .zeroes: try overwrite(path, at: 0, with: [UInt8](repeating: 0, count: size))
      case .half: try #require(truncate(path, size / 2) == 0)
      case .empty: try #require(truncate(path, 0) == 0)
      case .metaPages: try overwrite(path, at: 0, with: seededBytes(count: 8192, seed: 2))
      }
    }
  }

  /// In a second process, since a crash would end the tests. The index may be set aside or refused;
  /// blob files stay, and the same content stored again is not written a second time.
  @Test(arguments: Garbage.allCases)
  func garbageInTheIndexIsSetAsideOrRefusedAndBlobsAreKept(garbage: Garbage) async throws {
    let path = directory.path("cache")
    let digest = BlobCache.Digest(hashing: seededBytes(count: 100_000, seed: 1))
    let first = try await SecondProcess.over(path)
    #expect(try await first.call("store large 100000 1") == "ok \(digest.hex)")
    #expect(try await first.call("fill 100 2000") == "ok 100")
    try await first.end()
    let file = CacheFolder(path).blobFile(digest)
    let inode = try #require(fileStatus(file)).st_ino

    try garbage.apply(to: path + "/index/data.mdb")
    let second = try SecondProcess()
    let opened = try await second.call("open \(path)")
    if opened == "ok" {
      let large = try await second.call("get large")
      #expect(large == "miss" || large == "hit 100000 \(digest.hex) \(digest.hex)")
      for index in 0..<100 {
        let bytes = BlobCache.Digest(hashing: seededBytes(count: 2000, seed: UInt64(index))).hex
        let answer = try await second.call("get fill-\(index)")
        #expect(answer == "miss" || answer == "hit 2000 \(bytes) \(bytes)")
      }
      #expect(try await second.call("store again 100000 1") == "ok \(digest.hex)")
      #expect(fileStatus(file)?.st_ino == inode)
      #expect(try await second.call("get again").hasPrefix("hit 100000 "))
    } else {
      #expect(opened.hasPrefix("error corrupt "), "\(opened)")
      #expect(fileStatus(file)?.st_ino == inode)
    }
    #expect(try await second.end() == 0)
  }

  enum SlotDamage: CaseIterable { case missing, empty, half, random, zeroes }

  @Test(arguments: SlotDamage.allCases)
  func slotsThatAreMissingOrDamagedAreRebuiltAtOpen(damage: SlotDamage) async throws {
    let path = directory.path("cache")
    let first = try await SecondProcess.over(path)
    #expect(try await first.call("fill 300 200") == "ok 300")
    #expect(try await first.call("store large 100000 1 sliding:3600").hasPrefix("ok"))
    try await first.end()
    let slots = path + "/slots"
    let size = Int(try #require(fileStatus(slots)).st_size)
    switch damage {
    case .missing: try FileManager.default.removeItem(atPath: slots)
    case .empty: try #require(truncate(slots, 0) == 0)
    case .half: try #require(truncate(slots, size / 2) == 0)
    case .random: try overwrite(slots, at: 0, with: seededBytes(count: min(size, 1 << 20), seed: 1))
    case .zeroes:
      try overwrite(slots, at: 0, with: [UInt8](repeating: 0, count: min(size, 1 << 20)))
    }
    let second = try await SecondProcess.over(path)
    #expect(try await second.call("statistics") == "ok entries=301")
    for index in 0..<300 {
      #expect(try await second.call("get fill-\(index)").hasPrefix("hit 200 "))
    }
    #expect(try await second.call("get large").hasPrefix("hit 100000 "))
    #expect(try await second.call("remove fill-7") == "ok true")
    #expect(try await second.call("store fill-8 10 1").hasPrefix("ok"))
    try await second.end()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: Fork

  @Test func aForkedChildIsToldSo() async throws {
    let process = try await SecondProcess.over(directory.path("cache"))
    #expect(try await process.call("store key 100 1").hasPrefix("ok"))
    #expect(try await process.call("fork key") == "forked")
    #expect(try await process.call("get key").hasPrefix("hit 100 "))
    #expect(try await process.call("store key 200 1").hasPrefix("ok"))
  }
}
