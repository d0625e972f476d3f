import Foundation
import Testing

@testable import BlobCache

/// The same bytes for the same seed, incompressible.
func seeded(_ count: Int, seed: UInt64 = 1) -> [UInt8] {
  var state = seed &* 0x9E37_79B9_7F4A_7C15 | 1
  var bytes: [UInt8] = []
  bytes.reserveCapacity(count)
  while bytes.count < count {
    state ^= state << 13
    state ^= state >> 7
    state ^= state << 17
    bytes.append(UInt8(truncatingIfNeeded: state >> 32))
  }
  return bytes
}

struct RoundTripTests {
  static let threshold = (try? BlobCache.temporary().info.inlineThreshold) ?? 0
  static var sizes: [Int] {
    [0, 1, threshold - 1, threshold, threshold + 1, 1 << 20 - 1, 1 << 20, (1 << 20) + 1]
  }

  @Test(arguments: sizes) func bytes(_ size: Int) async throws {
    let cache = try BlobCache.temporary()
    let body = seeded(size)
    let entry = try await cache.store(body, for: "k", attributes: ["etag": "x"])
    #expect(entry.size == size)
    #expect(entry.digest == BlobCache.Digest(hashing: body))
    #expect(entry.location == (size > Self.threshold ? .file : .index))
    let blob = try #require(try cache.blob(for: "k"))
    #expect(blob.count == size)
    #expect(blob.withUnsafeBytes { [UInt8]($0) } == body)
    #expect([UInt8](blob.data) == body)
    #expect(blob.digest == entry.digest)
    #expect(blob.attributes["etag"]?.string == "x")
    #expect(blob.source == (size > Self.threshold ? .file : .index))
    #expect(blob.entry.key == "k")
    let read = try cache.withBytes(for: "k") { span in
      #expect(span.byteCount == size)
      return span.withUnsafeBytes { [UInt8]($0) }
    }
    #expect(read == body)
    #expect(try cache.blob(withDigest: entry.digest)?.count == size)
    try await cache.close()
    #expect(blob.withUnsafeBytes { [UInt8]($0) } == body)
  }

  @Test(arguments: sizes, [1, 1000, 65536, 300_000]) func streamed(_ size: Int, _ chunk: Int)
    async throws
  {
    if chunk == 1 && size > 100_000 { return }
    let cache = try BlobCache.temporary()
    let body = seeded(size)
    let entry = try await cache.store(
      for: "k", expecting: BlobCache.Digest(hashing: body), expectingSize: size
    ) { writer in
      var offset = 0
      while offset < size {
        try await writer.write(body[offset..<min(size, offset + chunk)])
        offset += chunk
      }
      #expect(writer.count == size)
    }
    #expect(entry.size == size)
    let blob = try #require(try cache.blob(for: "k"))
    #expect(blob.withUnsafeBytes { [UInt8]($0) } == body)
    try await cache.close()
  }

  @Test func replacingAndRemoving() async throws {
    let cache = try BlobCache.temporary()
    for size in [10, 200_000, 20, 300_000] {
      try await cache.store(seeded(size), for: "k")
      #expect(try cache.blob(for: "k")?.count == size)
    }
    let held = try #require(try cache.blob(for: "k"))
    #expect(try await cache.remove("k"))
    #expect(try await cache.remove("k") == false)
    #expect(try cache.blob(for: "k") == nil)
    #expect(held.withUnsafeBytes { [UInt8]($0) } == seeded(300_000))
    #expect(try cache.entry(for: "k") == nil)
    try await cache.store([1], for: "a")
    try await cache.removeAll()
    #expect(try cache.contains("a") == false)
    #expect(cache.statistics.entries == 0)
    try await cache.close()
  }

  @Test func sameContentIsSharedAndStays() async throws {
    let cache = try BlobCache.temporary()
    let body = seeded(500_000)
    try await cache.store(body, for: "a")
    try await cache.store(body, for: "b")
    #expect(cache.statistics.blobFiles == 1)
    try await cache.remove("a")
    #expect(try cache.blob(for: "b")?.withUnsafeBytes { [UInt8]($0) } == body)
    try await cache.close()
  }

  @Test func files() async throws {
    let cache = try BlobCache.temporary()
    for size in [0, 100, 400_000] {
      let path = NSTemporaryDirectory() + "blobcache-test-\(UUID().uuidString)"
      try Data(seeded(size)).write(to: URL(fileURLWithPath: path))
      let entry = try await cache.store(contentsOf: path, for: "f")
      #expect(entry.size == size)
      #expect(FileManager.default.fileExists(atPath: path))
      try await cache.store(contentsOf: path, for: "g", mode: .moving)
      #expect(!FileManager.default.fileExists(atPath: path))
      let blob = try #require(try cache.blob(for: "g"))
      #expect(blob.withUnsafeBytes { [UInt8]($0) } == seeded(size))
      try blob.write(to: path)
      #expect(try Data(contentsOf: URL(fileURLWithPath: path)) == Data(seeded(size)))
      try FileManager.default.removeItem(atPath: path)
      let end = try blob.withFileDescriptor { lseek($0, 0, SEEK_END) }
      #expect(Int(end) == size)
    }
    let error = await #expect(throws: BlobCache.Error.self) {
      try await cache.store(contentsOf: "/nonexistent/file", for: "f")
    }
    #expect(error?.code == .notFound)
    try await cache.close()
  }

  @Test func batch() async throws {
    let cache = try BlobCache.temporary()
    let items = (0..<500).map { number in
      BlobCache.Item(
        key: "k\(number)",
        bytes: seeded(number == 250 ? 200_000 : number * 7, seed: UInt64(number)),
        attributes: ["n": "\(number)"])
    }
    let entries = try await cache.storeAll(items)
    #expect(entries.map(\.key) == items.map(\.key))
    for item in items {
      let blob = try #require(try cache.blob(for: item.key))
      #expect(blob.withUnsafeBytes { [UInt8]($0) } == item.bytes)
      #expect(blob.attributes == item.attributes)
    }
    #expect(cache.statistics.entries == 500)
    #expect(try await cache.storeAll([]) == [])
    try await cache.close()
  }

  @Test func manyTasks() async throws {
    let cache = try BlobCache.temporary()
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<64 {
        group.addTask {
          for number in 0..<30 {
            let key = "\(task)/\(number)"
            try await cache.store(seeded(700, seed: UInt64(task * 100 + number)), for: key)
            #expect(try cache.contains(key))
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(cache.statistics.entries == 64 * 30)
    #expect(try await cache.verify().isSound)
    try await cache.close()
  }

  @Test func expectationsAndFailures() async throws {
    let cache = try BlobCache.temporary()
    let wrong = BlobCache.Digest(hashing: [0])
    for size in [10, 500_000] {
      var error = await #expect(throws: BlobCache.Error.self) {
        try await cache.store(seeded(size), for: "k", expecting: wrong)
      }
      #expect(error?.code == .digestMismatch)
      error = await #expect(throws: BlobCache.Error.self) {
        try await cache.store(for: "k", expectingSize: size + 1) {
          try await $0.write(seeded(size))
        }
      }
      #expect(error?.code == .sizeMismatch)
      struct Mine: Error {}
      await #expect(throws: Mine.self) {
        try await cache.store(for: "k") { body in
          try await body.write(seeded(size))
          throw Mine()
        }
      }
      #expect(try cache.blob(for: "k") == nil)
    }
    let error = await #expect(throws: BlobCache.Error.self) {
      try await cache.store([1], for: BlobCache.Key([UInt8](repeating: 65, count: 65_537)))
    }
    #expect(error?.code == .keyTooLong)
    #expect(throws: BlobCache.Error.self) {
      try cache.blob(for: BlobCache.Key([UInt8](repeating: 65, count: 65_537)))
    }
    let longest = BlobCache.Key([UInt8](repeating: 65, count: 65_536))
    try await cache.store([1], for: longest)
    #expect(try cache.blob(for: longest)?.count == 1)
    try await cache.store([2], for: "")
    #expect(try cache.blob(for: "")?.count == 1)
    try await cache.close()
  }

  @Test func cancelledBefore() async throws {
    let cache = try BlobCache.temporary()
    let task = Task {
      while !Task.isCancelled { await Task.yield() }
      try await cache.store([1], for: "k")
    }
    task.cancel()
    let result = await task.result
    #expect(throws: BlobCache.Error.self) { try result.get() }
    #expect(try cache.blob(for: "k") == nil)
    let streaming = Task {
      while !Task.isCancelled { await Task.yield() }
      try await cache.store(for: "k") { try await $0.write([1]) }
    }
    streaming.cancel()
    await #expect(throws: CancellationError.self) { try await streaming.value }
    try await cache.close()
  }

  @Test func cancelledAtAnyTime() async throws {
    let cache = try BlobCache.temporary()
    for round in 0..<200 {
      let key = "k\(round)"
      let task = Task { try await cache.store(seeded(1000), for: key) }
      let other = Task { try await cache.store(seeded(1000), for: key + "x") }
      if round % 3 > 0 { await Task.yield() }
      task.cancel()
      switch await task.result {
      case .success: #expect(try cache.contains(key))
      case .failure(let error):
        #expect((error as? BlobCache.Error)?.code == .cancelled)
        #expect(try cache.contains(key) == false)
      }
      _ = try await other.value
    }
    try await cache.close()
  }
}
