import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Opening, closing, and what is told of both.
@Suite("Lifecycle")
struct LifecycleTests {
  private let directory = TemporaryDirectory()

  @Test func everyCallOfAClosedCacheSaysSo() async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    try await cache.store([1], for: "key")
    try await cache.close()
    try await cache.close()
    let digest = BlobCache.Digest(hashing: [1])
    let source = directory.path("source")
    try Data([1]).write(to: URL(fileURLWithPath: source))
    let errors = [
      try await errorOf { _ = try cache.blob(for: "key") },
      try await errorOf { _ = try cache.blob(withDigest: digest) },
      try await errorOf { _ = try cache.withBytes(for: "key") { $0.byteCount } },
      try await errorOf { _ = try cache.entry(for: "key") },
      try await errorOf { _ = try cache.contains("key") },
      try await errorOf { try await cache.store([1], for: "key") },
      try await errorOf { try await cache.store(contentsOf: source, for: "key") },
      try await errorOf { try await cache.store(for: "key") { try await $0.write([1]) } },
      try await errorOf { _ = try await cache.storeAll([BlobCache.Item(key: "a", bytes: [1])]) },
      try await errorOf { _ = try await cache.fetch("key") { _ in .complete } },
      try await errorOf { try await cache.remove("key") },
      try await errorOf { try await cache.removeAll() },
      try await errorOf { try await cache.removeAll(withPrefix: "k") },
      try await errorOf { _ = try await cache.renew("key", lifetime: .forever) },
      try await errorOf { for try await _ in cache.entries() {} },
      try await errorOf { _ = try await cache.verify(.everything) },
      try await errorOf { try await cache.flush() },
    ]
    for error in errors { #expect(error.code == .closed, "\(error)") }
  }

  @Test func statisticsOfAClosedCacheAreThoseOfItsEnd() async throws {
    let cache = try BlobCache(directory: directory.path("cache"))
    try await cache.store([1, 2, 3], for: "small")
    try await cache.store(seededBytes(count: 100_000, seed: 1), for: "large")
    _ = try cache.blob(for: "small")
    _ = try cache.blob(for: "absent")
    let before = cache.statistics
    #expect(before.entries == 2 && before.blobFiles == 1 && before.indexBytes == 3)
    #expect(before.hits == 1 && before.misses == 1 && before.stores == 2)
    try await cache.close()
    #expect(cache.statistics == before)
  }

  @Test func closeInTheMiddleOfManyOperationsEndsThemAll() async throws {
    let path = directory.path("cache")
    for round in 0..<10 {
      let cache = try BlobCache(directory: path)
      let stored = Collected<Int>()
      await withTaskGroup(of: Void.self) { group in
        for index in 0..<120 {
          group.addTask {
            let size = index % 4 == 0 ? 80_000 : 300
            let bytes = seededBytes(count: size, seed: UInt64(index))
            let key = BlobCache.Key("key-\(round)-\(index)")
            do {
              switch index % 3 {
              case 0: try await cache.store(bytes, for: key)
              case 1:
                try await cache.store(for: key) { body in
                  try await body.write(bytes.prefix(100))
                  await Task.yield()
                  try await body.write(bytes.dropFirst(100))
                }
              default:
                let blob = try await cache.fetch(key) { load in
                  try await load.write(bytes)
                  return .complete
                }
                #expect(blob.holds(bytes))
                guard case .loaded = blob.source else { return }
              }
              stored.append(index)
            } catch let error as BlobCache.Error {
              #expect(error.code == .closed || error.code == .cancelled, "\(error)")
            } catch {
              #expect(error is CancellationError, "\(error)")
            }
          }
        }
        group.addTask {
          for _ in 0..<round * 20 { await Task.yield() }
          await #expect(throws: Never.self) { try await cache.close() }
        }
      }
      #expect(throws: BlobCache.Error.self) { try cache.blob(for: "key") }
      let again = try BlobCache(directory: path)
      for index in stored.elements {
        let blob = try #require(try again.blob(for: BlobCache.Key("key-\(round)-\(index)")))
        let size = index % 4 == 0 ? 80_000 : 300
        #expect(blob.holds(seededBytes(count: size, seed: UInt64(index))))
      }
      try await again.close()
    }
    #expect(try await structureOf(path) == "ok")
  }

  @Test func deinitWithoutCloseIsSafe() async throws {
    let path = directory.path("cache")
    for round in 0..<20 {
      let blob: BlobCache.Blob? = try await {
        let cache = try BlobCache(directory: path)
        try await cache.store(seededBytes(count: 90_000, seed: UInt64(round)), for: "key")
        return try cache.blob(for: "key")
      }()
      #expect(try #require(blob).holds(seededBytes(count: 90_000, seed: UInt64(round))))
    }
    let cache = try BlobCache(directory: path)
    #expect(try cache.blob(for: "key")?.count == 90_000)
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  @Test func temporaryIsRemovedAtCloseAndAtDeinit() async throws {
    let closed = try BlobCache.temporary()
    try await closed.store(seededBytes(count: 90_000, seed: 1), for: "key")
    let first = closed.directory
    #expect(fileStatus(first) != nil)
    try await closed.close()
    #expect(fileStatus(first) == nil)
    let second = try await {
      let dropped = try BlobCache.temporary()
      try await dropped.store([1], for: "key")
      return dropped.directory
    }()
    #expect(second != first)
    try await eventually("the folder of a dropped cache is removed") { fileStatus(second) == nil }
  }

  @Test func openFromAsyncCodeAndMissingParentsAreMade() async throws {
    let cache = try await BlobCache.open(directory.path("a/b/c"))
    try await cache.store([1], for: "key")
    #expect(try cache.contains("key"))
    try await cache.close()
  }

  @Test func openThatFailedCanBeTriedAgain() async throws {
    let path = directory.path("cache")
    try Data("in the way".utf8).write(to: URL(fileURLWithPath: path))
    for _ in 0..<3 {
      #expect(throws: BlobCache.Error.self) { try BlobCache(directory: path) }
    }
    try FileManager.default.removeItem(atPath: path)
    let cache = try BlobCache(directory: path)
    try await cache.store([1], for: "key")
    try await cache.close()
  }

  @Test func manyOpensAndClosesAtOnceShareOneStore() async throws {
    let path = directory.path("cache")
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<8 {
        group.addTask {
          for round in 0..<20 {
            let cache = try await BlobCache.open(path)
            let key = BlobCache.Key("key-\(task)-\(round)")
            try await cache.store(seededBytes(count: 100, seed: UInt64(round)), for: key)
            #expect(try cache.blob(for: key)?.count == 100)
            try await cache.close()
          }
        }
      }
      try await group.waitForAll()
    }
    let cache = try BlobCache(directory: path)
    #expect(cache.statistics.entries == 160)
    try await cache.close()
  }

  @Test func eventsTellOfLoadsFailuresAndDamage() async throws {
    let events = Collected<BlobCache.Event>()
    var configuration = BlobCache.Configuration()
    configuration.verification = .always
    configuration.onEvent = { event in events.append(event) }
    let path = directory.path("cache")
    let cache = try BlobCache(directory: path, configuration: configuration)
    struct Down: Error {}
    let bytes = seededBytes(count: 100_000, seed: 1)
    let blob = try await cache.fetch("key") { load in
      try await load.write(bytes)
      return .complete
    }
    _ = try? await cache.fetch("other") { _ in throw Down() }
    for _ in 0..<100 { _ = try cache.blob(for: "key") }
    try flipByte(of: CacheFolder(path).blobFile(blob.digest), at: 1)
    #expect(try cache.blob(for: "key") == nil)
    try await cache.close()
    let kinds = events.elements.map(\.kind)
    #expect(kinds.filter { $0 == .loaded }.count == 1)
    #expect(kinds.filter { $0 == .loadFailed }.count == 1)
    #expect(kinds.filter { $0 == .damaged }.count == 1)
    #expect(kinds.count == 3, "\(kinds)")
    #expect(events.elements.first?.size == 100_000)
  }
}
