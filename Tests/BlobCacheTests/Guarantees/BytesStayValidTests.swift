import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 10: bytes stay valid as long as the `Blob` is held.
@Suite("10. Bytes stay valid")
struct BytesStayValidTests {
  private let directory = TemporaryDirectory()
  /// Inside the index, read from a file, mapped from a file.
  static let sizes = [0, 700, 100_000, 4 << 20]

  @Test(arguments: sizes)
  func afterReplacementRemovalClearingAndClose(size: Int) async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    let bytes = seededBytes(count: size, seed: 1)
    try await cache.store(bytes, for: "key")
    var held = [try #require(try cache.blob(for: "key"))]
    try await cache.store(seededBytes(count: size, seed: 2), for: "key")
    try await cache.store(bytes, for: "key")
    held.append(try #require(try cache.blob(for: "key")))
    try await cache.remove("key")
    held.append(
      try await cache.fetch("key") { load in
        try await load.write(bytes)
        return .complete
      })
    try await cache.removeAll()
    // Pages and inodes that were freed are used for something else.
    for index in 0..<200 {
      try await cache.store(seededBytes(count: 900, seed: UInt64(index)), for: "other-\(index)")
    }
    try await cache.store(seededBytes(count: max(size, 1), seed: 3), for: "another")
    for blob in held { #expect(blob.holds(bytes)) }
    try await cache.close()
    for blob in held {
      #expect(blob.holds(bytes))
      #expect(blob.digest == BlobCache.Digest(hashing: bytes))
      #expect(blob.data == Data(bytes))
      try blob.write(to: directory.path("copy"))
      #expect(FileManager.default.contents(atPath: directory.path("copy")) == Data(bytes))
    }
    try FileManager.default.removeItem(atPath: directory.path("cache"))
    for blob in held { #expect(blob.holds(bytes)) }
  }

  @Test(arguments: sizes)
  func whateverACallerDoesToItsDataNeverReachesTheCache(size: Int) async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    let bytes = seededBytes(count: size, seed: 1)
    try await cache.store(bytes, for: "key")
    let blob = try #require(try cache.blob(for: "key"))
    var data = blob.data
    data.append(contentsOf: [1, 2, 3])
    data[data.startIndex] ^= 0xFF
    data.removeAll()
    #expect(blob.holds(bytes))
    #expect(try #require(try cache.blob(for: "key")).holds(bytes))
    try await cache.close()
  }

  @Test func whileAnotherProcessRemovesThem() async throws {
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path)
    let other = try await SecondProcess.over(path)
    let large = seededBytes(count: 3 << 20, seed: 1)
    let small = seededBytes(count: 900, seed: 2)
    try await cache.store(large, for: "large")
    try await cache.store(small, for: "small")
    let heldLarge = try #require(try cache.blob(for: "large"))
    let heldSmall = try #require(try cache.blob(for: "small"))
    #expect(try await other.call("hold large") == "ok")
    #expect(try await other.call("clear") == "ok")
    #expect(try await other.call("fill 300 900") == "ok 300")
    #expect(heldLarge.holds(large))
    #expect(heldSmall.holds(small))
    try await cache.close()
    #expect(try await other.call("held") == "ok \(BlobCache.Digest(hashing: large).hex)")
  }

  @Test func descriptorsGiveTheSameBytes() async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    for size in Self.sizes {
      let bytes = seededBytes(count: size, seed: 1)
      try await cache.store(bytes, for: "key")
      let blob = try #require(try cache.blob(for: "key"))
      try await cache.remove("key")
      let read = try blob.withFileDescriptor { descriptor in
        try FileHandle(fileDescriptor: descriptor, closeOnDealloc: false).readToEnd() ?? Data()
      }
      #expect(read == Data(bytes))
    }
    try await cache.close()
  }
}
