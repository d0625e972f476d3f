import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 1: a lookup gives exactly the bytes that were stored, or nothing; damage heals.
@Suite("1. Whole or absent")
struct WholeOrAbsentTests {
  private let directory = TemporaryDirectory()
  private var folder: CacheFolder { CacheFolder(directory.path("cache")) }

  private func open(
    _ verification: BlobCache.Verification = .onFirstRead
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.verification = verification
    configuration.inlineThreshold = 16_384
    // What is done to the disk shows where lookups ask the disk.
    configuration.memory = .off
    return try BlobCache(directory: directory.path("cache"), configuration: configuration)
  }

  // MARK: Every size and every way of writing

  private static let sizes = [
    0, 1, 4095, 4096, 4097, 16_383, 16_384, 16_385, (1 << 20) - 1, 1 << 20, (1 << 20) + 1,
  ]

  @Test(arguments: sizes, [1, 7, 4096, Int.max])
  func everySizeInEveryChunkSizeComesBackExact(size: Int, chunk: Int) async throws {
    let cache = try open()
    let bytes = seededBytes(count: size, seed: UInt64(size))
    let entry = try await cache.store(for: "streamed") { body in
      var start = 0
      while start < size {
        let end = start + min(chunk, size - start)
        try await body.write(bytes[start..<end])
        start = end
      }
    }
    #expect(entry.size == size)
    #expect(entry.digest == BlobCache.Digest(hashing: bytes))
    #expect(try #require(try cache.blob(for: "streamed")).holds(bytes))
    #expect(entry.location == (size <= 16_384 ? .index : .file))
    try await cache.close()
    let again = try open()
    #expect(try #require(try again.blob(for: "streamed")).holds(bytes))
    try await again.close()
  }

  @Test(arguments: sizes)
  func everySizeStoredAtOnceAndFromAFileComesBackExact(size: Int) async throws {
    let cache = try open()
    let bytes = seededBytes(count: size, seed: 7)
    try Data(bytes).write(to: URL(fileURLWithPath: directory.path("source")))
    try await cache.store(bytes, for: "whole")
    try await cache.store(contentsOf: directory.path("source"), for: "file")
    for key: BlobCache.Key in ["whole", "file"] {
      #expect(try #require(try cache.blob(for: key)).holds(bytes))
      let seen = try cache.withBytes(for: key) { span in span.byteCount }
      #expect(seen == size)
    }
    try await cache.close()
  }

  // MARK: Damage

  /// A renewal or a pin writes the record anew, and must not give a good seal to a damaged one.
  @Test func aDamagedRecordIsNotRenewed() async throws {
    var cache = try open()
    try await cache.store([1, 2, 3], for: "key", attributes: ["etag": "SECRETMARK"])
    try await cache.close()
    let data = folder.path + "/index/data.mdb"
    let bytes = try #require(FileManager.default.contents(atPath: data))
    let mark = Data("SECRETMARK".utf8)
    var start = bytes.startIndex
    while let found = bytes.range(of: mark, in: start..<bytes.endIndex) {
      try flipByte(of: data, at: found.lowerBound)
      start = found.upperBound
    }
    cache = try open()
    #expect(try await cache.renew("key", lifetime: .forever) == false)
    #expect(try await errorOf { try await cache.pin("key") }.code == .notCached)
    #expect(try cache.blob(for: "key") == nil)
    try await cache.store([4], for: "key")
    #expect(try cache.blob(for: "key")?.holds([4]) == true)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  /// A change in the same tick of the file system's clock as the one before leaves no other time in the inode
  /// (Linux before 6.13: a tick is up to 10 ms).
  @Test func aChangeInTheTickOfTheVerificationIsSeen() async throws {
    let cache = try open()
    for round in 0..<50 {
      let bytes = seededBytes(count: 60_000, seed: UInt64(round))
      let digest = try await cache.store(bytes, for: "key").digest
      #expect(try cache.blob(for: "key")?.holds(bytes) == true)
      try flipByte(of: folder.blobFile(digest), at: 50_000)
      #expect(try cache.blob(for: "key") == nil)
    }
    try await cache.close()
  }

  /// Another program writes into the file, to and fro, while it is read: verified or not.
  @Test func aChangeDuringTheReadIsSeen() async throws {
    let cache = try open()
    let bytes = seededBytes(count: 400_000, seed: 1)
    let digest = try await cache.store(bytes, for: "key").digest
    let path = folder.blobFile(digest)
    let reads = Counter()
    // A thread of its own: it never waits, and the pool has two.
    let stranger = Thread {
      var flipped = false
      while reads.value < 1_000 {
        flipped.toggle()
        let file = Glibc.open(path, O_WRONLY)
        if file < 0 { continue }  // in quarantine: it comes again
        var byte = flipped ? bytes[399_999] ^ 0x40 : bytes[399_999]
        for _ in 0..<20 { _ = pwrite(file, &byte, 1, 399_999) }
        Glibc.close(file)
      }
    }
    stranger.start()
    var served = 0
    while reads.value < 1_000 {
      reads.increment()
      if let blob = try cache.blob(for: "key") {
        #expect(blob.holds(bytes))
        served += 1
      } else {
        try await cache.store(bytes, for: "key")
      }
    }
    #expect(served > 0)
    try await cache.close()
  }

  enum Damage: CaseIterable {
    case truncated, flipped, emptied, removed

    func apply(to path: String) throws {
      switch self {
      case .truncated: try #require(truncate(path, 99_999) == 0)
      case .flipped: try flipByte(of: path, at: 50_000)
      case .emptied: try #require(truncate(path, 0) == 0)
      case .removed: try FileManager.default.removeItem(atPath: path)
      }
    }
  }

  /// With `.always`, under an open cache that has read the file before; with `.onFirstRead`, while
  /// it is closed.
  @Test(arguments: Damage.allCases, [false, true])
  func damagedFileIsAMissAndHealsOnTheNextFetch(damage: Damage, whileOpen: Bool) async throws {
    var cache = try open(whileOpen ? .always : .onFirstRead)
    let bytes = seededBytes(count: 100_000, seed: 1)
    let digest = try await cache.store(bytes, for: "key").digest
    #expect(try cache.blob(for: "key") != nil)
    if !whileOpen { try await cache.close() }
    try damage.apply(to: folder.blobFile(digest))
    if !whileOpen { cache = try open() }

    #expect(try cache.blob(for: "key") == nil)
    #expect(try cache.blob(withDigest: digest) == nil)
    let loads = Counter()
    for _ in 0..<3 {
      let blob = try await cache.fetch("key") { load in
        loads.increment()
        try await load.write(bytes)
        return .complete
      }
      #expect(blob.holds(bytes))
    }
    #expect(loads.value == 1)
    #expect(try #require(try cache.blob(for: "key")).holds(bytes))
    try await cache.flush()
    #expect(folder.quarantined.count == (damage == .removed ? 0 : 1))
    #expect(folder.blobFiles.count == 1)
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func storingDamagedContentAgainReplacesTheBadFile() async throws {
    let bytes = seededBytes(count: 100_000, seed: 2)
    var cache = try open()
    let digest = try await cache.store(bytes, for: "a").digest
    try await cache.close()
    try #require(truncate(folder.blobFile(digest), 10) == 0)
    cache = try open()
    try await cache.store(bytes, for: "b")
    #expect(try #require(try cache.blob(for: "b")).holds(bytes))
    #expect(try #require(try cache.blob(for: "a")).holds(bytes))
    try await cache.close()
  }

  @Test func flippedByteOfABodyInsideTheIndexIsAMiss() async throws {
    var cache = try open()
    let bytes = seededBytes(count: 1000, seed: 3)
    try await cache.store(bytes, for: "small")
    try await cache.store(Array("bystander".utf8), for: "other")
    try await cache.close()
    let index = folder.path + "/index/data.mdb"
    var data = try Data(contentsOf: URL(fileURLWithPath: index))
    var flipped = 0
    while let range = data.range(of: Data(bytes)) {
      try flipByte(of: index, at: range.lowerBound + 500)
      data[range.lowerBound + 500] ^= 0x40
      flipped += 1
    }
    try #require(flipped > 0)
    cache = try open()
    #expect(try cache.blob(for: "small") == nil)
    let seen = try cache.withBytes(for: "small") { $0.byteCount }
    #expect(seen == nil)
    #expect(try #require(try cache.blob(for: "other")).holds(Array("bystander".utf8)))
    let healed = try await cache.fetch("small") { load in
      try await load.write(bytes)
      return .complete
    }
    #expect(healed.holds(bytes))
    #expect(try #require(try cache.blob(for: "small")).holds(bytes))
    try await cache.close()
  }

  @Test func fileThatVanishesUnderTheIndexCostsOneLoad() async throws {
    let cache = try open()
    let bytes = seededBytes(count: 60_000, seed: 4)
    let digest = try await cache.store(bytes, for: "key").digest
    try FileManager.default.removeItem(atPath: folder.blobFile(digest))
    let loads = Counter()
    for _ in 0..<4 {
      let blob = try await cache.fetch("key") { load in
        loads.increment()
        try await load.write(bytes)
        return .complete
      }
      #expect(blob.holds(bytes))
    }
    #expect(loads.value == 1)
    try await cache.close()
  }

  // MARK: Broken off

  struct BrokenOff: Error {}

  @Test(arguments: [10, 5000, 500_000])
  func storeThatBreaksOffLeavesNothing(size: Int) async throws {
    let cache = try open()
    let old = Array("old".utf8)
    try await cache.store(old, for: "replaced")
    for key: BlobCache.Key in ["absent", "replaced"] {
      await #expect(throws: BrokenOff.self) {
        try await cache.store(for: key) { body in
          try await body.write(seededBytes(count: size, seed: 5))
          throw BrokenOff()
        }
      }
      await #expect(throws: BrokenOff.self) {
        try await cache.fetch(key, policy: .reload) { load in
          try await load.write(seededBytes(count: size, seed: 5))
          throw BrokenOff()
        }
      }
    }
    #expect(try cache.blob(for: "absent") == nil)
    #expect(try #require(try cache.blob(for: "replaced")).holds(old))
    try await cache.close()
    #expect(folder.blobFiles.isEmpty)
    #expect(try await structureOf(folder.path) == "ok")
  }

  @Test func cancelledStoreIsStoredWholeOrNotAtAll() async throws {
    let cache = try open()
    let bytes = seededBytes(count: 200_000, seed: 6)
    for round in 0..<50 {
      let key = BlobCache.Key("key-\(round)")
      let task = Task {
        try await cache.store(for: key) { body in
          for start in stride(from: 0, to: bytes.count, by: 10_000) {
            try await body.write(bytes[start..<start + 10_000])
            await Task.yield()
          }
        }
      }
      for _ in 0..<round { await Task.yield() }
      task.cancel()
      let outcome = await task.result
      let blob = try cache.blob(for: key)
      switch outcome {
      case .success: #expect(try #require(blob).holds(bytes))
      case .failure(let error):
        #expect(error is CancellationError, "\(error)")
        #expect(blob == nil)
      }
    }
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }

  // MARK: Expected digest and size

  @Test func expectedContentStaysThroughAVerify() async throws {
    let cache = try open()
    for size in [100, 100_000] {
      let bytes = seededBytes(count: size, seed: 8)
      let key = BlobCache.Key("expected-\(size)")
      try await cache.store(
        for: key, expecting: BlobCache.Digest(hashing: bytes), expectingSize: size
      ) { body in
        try await body.write(bytes)
      }
    }
    let report = try await cache.verify(.everything, repair: true)
    #expect(report.isSound)
    #expect(try cache.contains("expected-100"))
    #expect(try cache.contains("expected-100000"))
    try await cache.close()
  }

  @Test(arguments: [100, 100_000])
  func unexpectedContentIsAnErrorAndNothingIsStored(size: Int) async throws {
    let cache = try open()
    let bytes = seededBytes(count: size, seed: 9)
    let other = BlobCache.Digest(hashing: Array("other".utf8))
    let wholeError = try await errorOf {
      try await cache.store(bytes, for: "key", expecting: other)
    }
    #expect(wholeError.code == .digestMismatch)
    let streamError = try await errorOf {
      try await cache.store(for: "key", expecting: other) { try await $0.write(bytes) }
    }
    #expect(streamError.code == .digestMismatch)
    for expectedSize in [size - 1, size + 1] {
      let sizeError = try await errorOf {
        try await cache.store(for: "key", expectingSize: expectedSize) { body in
          try await body.write(bytes)
        }
      }
      #expect(sizeError.code == .sizeMismatch)
    }
    #expect(try cache.blob(for: "key") == nil)
    try await cache.close()
    #expect(folder.blobFiles.isEmpty)
  }

  @Test func attributesThatAreTooLargeAreAnErrorAndNothingIsStored() async throws {
    let cache = try open()
    let large: BlobCache.Attributes = ["a": .init([UInt8](repeating: 1, count: 65_537))]
    let fits: BlobCache.Attributes = ["a": .init([UInt8](repeating: 1, count: 65_000))]
    let error = try await errorOf { try await cache.store([1], for: "key", attributes: large) }
    #expect(error.code == .attributesTooLarge)
    let streamError = try await errorOf {
      try await cache.store(for: "key", attributes: large) { try await $0.write([1]) }
    }
    #expect(streamError.code == .attributesTooLarge)
    #expect(try cache.blob(for: "key") == nil)
    try await cache.store([1], for: "key", attributes: fits)
    #expect(try cache.blob(for: "key")?.attributes == fits)
    try await cache.close()
  }

  @Test func aLargeStreamTakesLittleMemory() async throws {
    let process = try await SecondProcess.over(folder.path)
    let answer = try await process.call("flood key 400")
    let words = answer.split(separator: " ")
    try #require(words.first == "ok", "\(answer)")
    let kibibytes = try #require(Int(words[1]))
    #expect(kibibytes < 150 << 10, "high-water mark of resident memory")
    try await process.end()
    let cache = try open()
    #expect(try cache.entry(for: "key")?.size == 400 << 20)
    try await cache.close()
  }

  // MARK: Many writers

  /// Also where locks of files are granted to everybody: names in staging are each process's own.
  @Test(arguments: ["kept", "granted"])
  func eightProcessesStreamTheSameContentAtDifferentSpeed(locks: String) async throws {
    let path = folder.path
    // Made by one: without locks nothing keeps two from making it at once.
    try await open().close()
    let processes = try await withThrowingTaskGroup(of: SecondProcess.self) { group in
      for _ in 0..<8 {
        group.addTask {
          try await SecondProcess.over(path, environment: ["BLOBCACHE_LOCKS": locks])
        }
      }
      return try await group.reduce(into: []) { $0.append($1) }
    }
    let bytes = seededBytes(count: 400_000, seed: 10)
    for (index, process) in processes.enumerated() {
      try process.send("stream same-\(index % 2) 400000 10 \(500 << index)")
    }
    for process in processes {
      #expect(try await process.nextLine() == "ok \(BlobCache.Digest(hashing: bytes).hex)")
    }
    for process in processes { try await process.end() }
    #expect(folder.blobFiles.count == 1)
    // The slot table relies on locks; the bytes do not.
    if locks == "kept" { #expect(try await structureOf(path) == "ok") }
    let cache = try open()
    // What a process had just stored may not have been unlinked when it ended; the next open does it.
    #expect(folder.files(in: "staging").filter { !$0.contains("+") }.isEmpty)
    #expect(try #require(try cache.blob(for: "same-0")).holds(bytes))
    #expect(try #require(try cache.blob(for: "same-1")).holds(bytes))
    try await cache.close()
  }

  @Test func readerDuringReplacementSeesOneOfTheTwoWhole() async throws {
    let cache = try open(.always)
    let bodies = [seededBytes(count: 90_000, seed: 11), seededBytes(count: 3000, seed: 12)]
    try await cache.store(bodies[0], for: "key")
    let done = Counter()
    try await withThrowingTaskGroup(of: Void.self) { group in
      group.addTask {
        for round in 0..<200 { try await cache.store(bodies[round % 2], for: "key") }
        done.increment()
      }
      group.addTask {
        while done.value == 0 {
          let blob = try #require(try cache.blob(for: "key"))
          #expect(blob.holds(bodies[0]) || blob.holds(bodies[1]))
          await Task.yield()
        }
      }
      try await group.waitForAll()
    }
    try await cache.close()
  }
}
