import Foundation
import Synchronization
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Everything beside everything: each kind of call while each other kind is under way, closing among them.
@Suite("In all orders", .serialized)
struct AllOrdersTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  enum Call: CaseIterable {
    case store, file, stream, batch, fetch, look, withBytes, list, remove, removeTag, removePrefix,
      clear, renew, pin, trim, sweep, verify, repair, flush, close
  }

  private static func key(_ number: Int) -> BlobCache.Key { BlobCache.Key("key-\(number % 12)") }

  /// A key has one content of its own, so whatever is found under it must be that.
  private static func bytes(_ number: Int) -> [UInt8] {
    seededBytes(count: number % 3 == 0 ? 40_000 : 500 + number % 12, seed: UInt64(number % 12))
  }

  private static func expect(_ blob: BlobCache.Blob?, _ number: Int) {
    if let blob { #expect(blob.holds(bytes(number))) }
  }

  private static func run(_ call: Call, _ number: Int, on cache: BlobCache) async throws {
    let (key, bytes, tags) = (key(number), bytes(number), ["tag-\(number % 3)"])
    switch call {
    case .store, .file:
      let entry = try await cache.store(bytes, for: key, tags: tags)
      #expect(entry.size == bytes.count)
    case .stream:
      try await cache.store(for: key, tags: tags) { body in
        try await body.write(bytes.prefix(100))
        await Task.yield()
        try await body.write(bytes.dropFirst(100))
      }
    case .batch:
      _ = try await cache.storeAll(
        (0..<6).map { BlobCache.Item(key: Self.key($0), bytes: Self.bytes($0)) })
    case .fetch:
      let blob = try await cache.fetch(key) { load in
        try await load.write(bytes)
        return .complete
      }
      #expect(blob.holds(bytes))
    case .look: expect(try cache.blob(for: key), number)
    case .withBytes:
      let count = try cache.withBytes(for: key) { $0.byteCount }
      #expect(count == nil || count == bytes.count)
    case .list: for try await _ in cache.entries() {}
    case .remove: try await cache.remove(key)
    case .removeTag: try await cache.removeAll(tagged: tags[0])
    case .removePrefix: _ = try await cache.removeAll(withPrefix: "key-1")
    case .clear: try await cache.removeAll()
    case .renew: _ = try await cache.renew(key, lifetime: .sliding(.seconds(999)))
    case .pin:
      try await cache.pin(key)
      try await cache.unpin(key)
    case .trim: _ = try await cache.trim(to: .entries(4))
    case .sweep: try await cache.sweep()
    case .verify: #expect(try await cache.verify(.everything).isSound)
    case .repair: _ = try await cache.verify(.structure, repair: true)
    case .flush: try await cache.flush()
    case .close: try await cache.close()
    }
  }

  /// What a call may say when others are beside it; any other error is a fault.
  private static func attempt(_ call: Call, _ number: Int, on cache: BlobCache, closes: Bool) async
  {
    do {
      try await run(call, number, on: cache)
    } catch let error as BlobCache.Error {
      switch error.code {
      case .closed where closes, .cancelled where closes: break
      case .notCached where call == .pin: break
      default: Issue.record("\(call): \(error)")
      }
    } catch {
      if !(closes && error is CancellationError) { Issue.record("\(call): \(error)") }
    }
  }

  // MARK: Pairs

  /// Each call beside each other one, in both orders, over a directory that has something in it.
  @Test(arguments: Call.allCases) func eachCallBesideEachOther(first: Call) async throws {
    var cache = try BlobCache(directory: path)
    for (index, second) in Call.allCases.enumerated() {
      for number in 0..<12 {
        try await cache.store(
          Self.bytes(number), for: Self.key(number), tags: ["tag-\(number % 3)"])
      }
      let closes = first == .close || second == .close
      let used = cache
      await withTaskGroup(of: Void.self) { group in
        for number in 0..<6 {
          let call = number % 2 == 0 ? first : second
          group.addTask {
            for _ in 0..<number { await Task.yield() }
            await Self.attempt(call, index + number, on: used, closes: closes)
          }
        }
      }
      if closes {
        try await cache.close()
        cache = try BlobCache(directory: path)
      }
      for number in 0..<12 { Self.expect(try cache.blob(for: Self.key(number)), number) }
    }
    #expect(try await cache.verify(.everything).isSound)
    try await cache.sweep()
    #expect(try await strayFiles(of: cache) == [])
    try await cache.close()
    #expect(Leftovers(path).afterAll == [])
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: The end in the middle

  enum End: CaseIterable { case closed, dropped, closedBesideAnother }

  /// A thousand operations of all kinds are under way when the instance is closed, or goes.
  @Test(arguments: End.allCases) func endInTheMiddleOfAThousandOperations(end: End) async throws {
    for round in 0..<3 {
      // Of an instance that the tasks alone hold, when it is to be dropped.
      let stored = Collected<Int>()
      let second = end == .closedBesideAnother ? try BlobCache(directory: path) : nil
      let begun = Tally()
      try await {
        let cache = try BlobCache(directory: path)
        await withTaskGroup(of: Void.self) { group in
          let calls = Call.allCases.filter {
            ![.close, .clear, .remove, .removePrefix, .removeTag, .trim, .sweep, .verify, .repair]
              .contains($0)
          }
          for number in 0..<1000 {
            group.addTask {
              begun.add()
              if number % 3 == 0 {
                let key = BlobCache.Key("own-\(round)-\(number)")
                do throws(BlobCache.Error) {
                  try await cache.store(Self.bytes(number), for: key)
                  stored.append(number)
                } catch {
                  #expect(error.code == .closed || error.code == .cancelled, "\(error)")
                }
              } else {
                // Sweeps go one after another, and a verification reads everything: few of them.
                let call = number % 50 == 1 ? Call.sweep : calls[number % calls.count]
                await Self.attempt(call, number, on: cache, closes: true)
              }
            }
          }
          if end != .dropped {
            group.addTask {
              await until { begun.value > 100 + round * 300 }
              await #expect(throws: Never.self) { try await cache.close() }
            }
          }
        }
      }()
      if let second {
        // It shares the store, and goes on.
        try await second.store([1], for: "second")
        #expect(try second.blob(for: "second")?.count == 1)
        try await second.close()
      }
      let again = try BlobCache(directory: path)
      for number in stored.elements {
        let blob = try #require(try again.blob(for: BlobCache.Key("own-\(round)-\(number)")))
        #expect(blob.holds(Self.bytes(number)))
      }
      if end == .dropped { #expect(stored.elements.count == 334) }
      #expect(stored.elements.count > 0)
      try await again.sweep()
      #expect(try await strayFiles(of: again) == [])
      try await again.close()
    }
    #expect(Leftovers(path).afterAll == [])
    #expect(try await structureOf(path) == "ok")
  }

  // MARK: Fork

  /// Threads and tasks use the cache while the process is forked again and again: each child is told so and ends, and the
  /// parent goes on as if nothing had happened.
  @Test func forksInTheMiddleOfOperations() async throws {
    let process = try await SecondProcess.over(path)
    #expect(try await process.call("fork-storm 60") == "ok forked=60 wrong=0")
    #expect(try await process.call("store key 300 1").hasPrefix("ok"))
    #expect(try await process.call("close") == "ok")
    #expect(Leftovers(path).afterAll == [])
    #expect(try await structureOf(path) == "ok")
    try await process.end()
  }
}
