import Foundation
import Synchronization
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// What goes wrong only when two things happen at one time: each was a fault once.
@Suite("Beside each other", .timeLimit(.minutes(2)))
struct BesideEachOtherTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  // MARK: A commit that fails

  /// The lines of the slot table go odd before the commit; when it fails they say again what they said, the time of
  /// the last access among it.
  @Test(arguments: [100, 100_000])
  func aCommitThatFailsKeepsAccessTimes(size: Int) async throws {
    let process = try await SecondProcess.over(path, "clock")
    let start = 1_900_000_000
    #expect(try await process.call("clock \(start)") == "ok")
    #expect(try await process.call("store key \(size) 1 sliding:20").hasPrefix("ok"))
    #expect(try await process.call("clock \(start + 15)") == "ok")
    #expect(try await process.call("get key").hasPrefix("hit"))
    #expect(try await process.call("fault before-commit 1 \(EIO)") == "ok")
    #expect(try await process.call("store key \(size) 2 sliding:20").hasPrefix("error io "))
    #expect(try await process.call("fault before-commit 1 \(EIO)") == "ok")
    #expect(try await process.call("remove key").hasPrefix("error io "))
    #expect(try await process.call("clock \(start + 34)") == "ok")
    #expect(try await process.call("get key").hasPrefix("hit \(size) "))
    #expect(try await process.call("clock \(start + 55)") == "ok")
    #expect(try await process.call("get key") == "miss")
    try await process.end()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: A removal beside a verification

  /// It stands between an entry's record and its file; when it goes on, that one is gone.
  @Test(arguments: 1...3)
  func whatIsRemovedWhileItIsVerifiedIsNotDamaged(file: Int) async throws {
    let process = try await SecondProcess.over(path)
    for index in 0..<3 {
      #expect(try await process.call("store key-\(index) 100000 \(index)").hasPrefix("ok"))
    }
    let cache = try BlobCache(directory: path)
    #expect(try await process.call("fault blob-open \(file) stop") == "ok")
    try process.send("verify look")
    try await process.untilStopped()
    try await cache.removeAll()
    try await eventually("their files go") { CacheFolder(path).blobFiles.isEmpty }
    kill(process.pid, SIGCONT)
    #expect(try await process.nextLine() == "sound unreferenced=0")
    try await process.end()
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: The map grows

  /// From 256 KiB to 4 MiB, by whichever process needs it first; the others take it over, readers too.
  @Test func theMapGrowsWhileThreeProcessesStoreAndRead() async throws {
    var processes: [SecondProcess] = []
    for _ in 0..<3 { processes.append(try await SecondProcess.over(path, "map=262144")) }
    var configuration = BlobCache.Configuration()
    configuration.initialMapSize = 262_144
    let cache = try BlobCache(directory: path, configuration: configuration)
    for process in processes { try process.send("fill 250 8000") }
    let digests = (0..<250).map { BlobCache.Digest(hashing: seededBytes(count: 8000, seed: $0)) }
    var seen = 0
    for round in 0..<100_000 where seen < 250 {
      let index = round % 250
      guard let blob = try cache.blob(for: BlobCache.Key("fill-\(index)")) else {
        await Task.yield()
        seen = 0
        continue
      }
      try #require(BlobCache.Digest(hashing: blob.data) == digests[index])
      seen += 1
    }
    for process in processes {
      #expect(try await process.nextLine() == "ok 250")
      #expect(try await process.call("get fill-249").hasSuffix(" \(digests[249].hex)"))
    }
    #expect(seen == 250)
    try await cache.close()
    for process in processes { try await process.end() }
    #expect(try await structureOf(path) == "ok")
  }

  /// The walk holds a reader, and growth waits for all readers: it gives way, and begins again with nothing counted.
  @Test func verifyWhileTheMapGrowsEndsAndFindsNothing() async throws {
    var configuration = BlobCache.Configuration()
    configuration.initialMapSize = 262_144
    let cache = try BlobCache(directory: path, configuration: configuration)
    let other = try await SecondProcess.over(path, "map=262144")
    for _ in 0..<2 { try other.send("fill 300 8000") }
    let isOver = Atomic<Bool>(false)
    async let reports = {
      var reports: [BlobCache.VerifyReport] = []
      repeat {
        reports.append(try await cache.verify(reports.count % 2 == 0 ? .structure : .everything))
      } while !isOver.load(ordering: .relaxed)
      return reports
    }()
    for index in 0..<300 {
      try await cache.store(
        seededBytes(count: 8000, seed: UInt64(index)), for: BlobCache.Key("mine-\(index % 60)"))
    }
    for _ in 0..<2 { #expect(try await other.nextLine() == "ok 300") }
    isOver.store(true, ordering: .relaxed)
    for report in try await reports { #expect(report.isSound, "\(report)") }
    #expect(try await cache.verify().checkedBlobs == 360)
    try await cache.close()
  }

  // MARK: By digest

  @Test(arguments: [500, 40_000])
  func lookupByDigestNeverGivesOtherContentWhileKeysFlip(size: Int) async throws {
    let cache = try BlobCache(directory: path)
    let other = try await SecondProcess.over(path)
    let contents = [seededBytes(count: size, seed: 0), seededBytes(count: size, seed: 1)]
    let digests = contents.map { BlobCache.Digest(hashing: $0) }
    try other.send("flip \(size < 1000 ? 3000 : 600) \(size)")
    let isOver = Atomic<Bool>(false)
    async let answer = {
      defer { isOver.store(true, ordering: .relaxed) }
      return try await other.nextLine()
    }()
    var hits = 0
    repeat {
      for (content, digest) in zip(contents, digests) {
        guard let blob = try cache.blob(withDigest: digest) else { continue }
        try #require(blob.digest == digest)
        try #require(blob.holds(content))
        hits += 1
      }
      await Task.yield()
    } while !isOver.load(ordering: .relaxed) || hits == 0
    #expect(try await answer.hasPrefix("ok "))
    try await cache.close()
  }

  // MARK: Closing

  /// A lookup that has begun ends as if the cache were open; one that begins later says that it is closed. A miss or
  /// another error would mean that the descriptors went away under it.
  @Test func closeDuringFileReadsLeavesEachReadWhole() async throws {
    let bytes = [
      seededBytes(count: 60_000, seed: 1), seededBytes(count: 2_000_000, seed: 2),
    ]
    var configuration = BlobCache.Configuration()
    configuration.verification = .never
    for round in 0..<5 {
      let cache = try BlobCache(directory: path, configuration: configuration)
      if round == 0 {
        for (index, body) in bytes.enumerated() {
          try await cache.store(body, for: BlobCache.Key("file-\(index)"))
        }
      }
      let reads = Atomic<Int>(0)
      let threads = DispatchGroup()
      let wrong = Collected<String>()
      for thread in 0..<4 {
        DispatchQueue(label: "reader \(thread)").async(group: threads) {
          do {
            while true {
              let index = thread % 2
              guard let blob = try cache.blob(for: BlobCache.Key("file-\(index)")) else {
                return wrong.append("a miss")
              }
              if !blob.holds(bytes[index]) { return wrong.append("other bytes") }
              reads.add(1, ordering: .relaxed)
            }
          } catch {
            if (error as? BlobCache.Error)?.code != .closed { wrong.append("\(error)") }
          }
        }
      }
      await until { reads.load(ordering: .relaxed) > 3 }
      try await cache.close()
      await withCheckedContinuation { continuation in
        threads.notify(queue: .global()) { continuation.resume() }
      }
      #expect(wrong.elements.isEmpty, "\(wrong.elements)")
    }
  }

  @Test(arguments: [60_000, 2_000_000])
  func closeWaitsForAFileThatIsAboutToBeOpened(size: Int) async throws {
    let process = try await SecondProcess.over(path)
    #expect(try await process.call("store key \(size) 1").hasPrefix("ok"))
    #expect(try await process.call("close-reading key") == "hit \(size)")
  }

  // MARK: Flipped behind our back

  @Test func aStoreOverAFlippedFileIsReadableRightAfterwards() async throws {
    let cache = try BlobCache(directory: path)
    let other = try await SecondProcess.over(path)
    let bytes = seededBytes(count: 50_000, seed: 7)
    let digest = try await cache.store(bytes, for: "first").digest
    for round in 0..<20 {
      #expect(try cache.blob(for: "first") != nil)
      #expect(try await other.call("get first").hasPrefix("hit"))
      try flipByte(of: CacheFolder(path).blobFile(digest), at: round * 1000)
      let key = "again-\(round % 3)"
      if round % 2 == 0 {
        try await cache.store(bytes, for: BlobCache.Key(key))
      } else {
        #expect(try await other.call("store \(key) 50000 7") == "ok \(digest.hex)")
      }
      for name in [key, "first"] {
        #expect(try #require(try cache.blob(for: BlobCache.Key(name)), "\(round)").holds(bytes))
        let answer = try await other.call("get \(name)")
        #expect(answer == "hit 50000 \(digest.hex) \(digest.hex)", "\(round)")
      }
    }
    try await cache.close()
    try await other.end()
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: Fork

  @Test func aChildThatIsForkedAtAnyMomentKeepsNoDescriptorOfLock() async throws {
    let process = try SecondProcess()
    #expect(try await process.call("forks 200 \(path)") == "ok kept=0")
  }
}
