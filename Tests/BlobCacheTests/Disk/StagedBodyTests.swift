import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// A body whose staging fails is kept in memory, 64 MiB at most, so that what was loaded can still
/// be handed over.
@Suite struct StagedBodyTests {
  private let directory = TemporaryDirectory()

  /// A store that can stage nothing: its directory is gone.
  private func storeWithoutDirectory() throws -> BlobCache {
    let cache = try BlobCache(directory: directory.path("cache"))
    try FileManager.default.removeItem(atPath: cache.directory)
    return cache
  }

  @Test func upToTheLimitItIsHandedOver() async throws {
    let cache = try storeWithoutDirectory()
    let piece = seededBytes(count: 1 << 20, seed: 1)
    let body = StagedBody(store: cache.store, fallsBackToMemory: true)
    for _ in 0..<64 { try await body.write(piece) }
    #expect(body.count == StagedBody.memoryLimit)
    try await body.finish()
    let cause = BlobCache.Error(.noSpace, operation: "test", message: "")
    let blob = try await body.unstoredBlob(
      key: "k", lifetime: Freshness(lifetime: .forever, staleWindow: 0), attributes: [:],
      cause: cause)
    #expect(blob.count == StagedBody.memoryLimit)
    let matches = blob.withUnsafeBytes { bytes in
      (0..<64).allSatisfy { bytes[($0 << 20)..<(($0 + 1) << 20)].elementsEqual(piece) }
    }
    #expect(matches)
    // Handed over, and never stored.
    let error = try await errorOf {
      _ = try await body.commitEntry(
        key: "k", lifetime: Freshness(lifetime: .forever, staleWindow: 0), attributes: [:], tags: []
      )
    }
    #expect(error.code == .notFound)
    try await cache.close()
  }

  @Test func beyondTheLimitItThrowsWhyItIsInMemory() async throws {
    let cache = try storeWithoutDirectory()
    let piece = [UInt8](repeating: 1, count: 1 << 20)
    let body = StagedBody(store: cache.store, fallsBackToMemory: true)
    for _ in 0..<64 { try await body.write(piece) }
    let error = try await errorOf { try await body.write([1]) }
    #expect(error.message.hasPrefix("The directory was removed or renamed"), "\(error)")
    body.discard()
    try await cache.close()
  }

  @Test func aStoreDoesNotFallBack() async throws {
    let cache = try storeWithoutDirectory()
    let body = StagedBody(store: cache.store, fallsBackToMemory: false)
    let error = try await errorOf {
      for _ in 0..<4 { try await body.write([UInt8](repeating: 1, count: 1 << 20)) }
    }
    #expect(error.code == .notFound)
    body.discard()
    try await cache.close()
  }

  /// Staging that fails in the middle: what is in the file is read back, in order.
  @Test(arguments: [1, 2, 3, 7]) func whatWasStagedIsReadBack(write: Int) async throws {
    let process = try await SecondProcess.over(directory.path("cache-\(write)"))
    #expect(try await process.call("fault stage-write \(write) \(ENOSPC)") == "ok")
    let digest = BlobCache.Digest(hashing: seededBytes(count: 3_000_000, seed: 5)).hex
    #expect(
      try await process.call("fetch k 3000000 5")
        == "loadedNotStored 3000000 \(digest) noSpace")
    #expect(try await process.call("get k") == "miss")
    try await process.end()
  }

  // MARK: Moving a file in

  @Test(arguments: ["stage", "stage-write", "intent", "rename", "before-commit"])
  func aMoveThatFailsKeepsItsSource(step: String) async throws {
    let process = try await SecondProcess.over(directory.path("cache-\(step)"))
    let source = directory.path("source-\(step)")
    let bytes = seededBytes(count: 200_000, seed: 6)
    try Data(bytes).write(to: URL(fileURLWithPath: source))
    #expect(try await process.call("fault \(step) 1 \(EIO)") == "ok")
    #expect(try await process.call("move k \(source)").hasPrefix("error io "))
    #expect(FileManager.default.contents(atPath: source) == Data(bytes))
    #expect(try await process.call("get k") == "miss")
    #expect(try await process.call("move k \(source)").hasPrefix("ok "))
    #expect(fileStatus(source) == nil)
    #expect(try await process.call("get k").hasPrefix("hit 200000 "))
    try await process.end()
  }

  @Test func aMoveOfOtherBytesThanExpectedKeepsItsSource() async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    let source = directory.path("source")
    try Data([1, 2, 3]).write(to: URL(fileURLWithPath: source))
    let error = try await errorOf {
      try await cache.store(
        contentsOf: source, for: "k", mode: .moving, expecting: BlobCache.Digest(hashing: [4]))
    }
    #expect(error.code == .digestMismatch)
    #expect(FileManager.default.contents(atPath: source) == Data([1, 2, 3]))
    try await cache.close()
  }
}
