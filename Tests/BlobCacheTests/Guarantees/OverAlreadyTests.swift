import Foundation
import Synchronization
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// A lifetime that is over already, or a span below zero, is a mistake of who gives it: an error that names it, and
/// nothing is lost. By a clock that stands still.
@Suite("A lifetime that is over is an error") struct OverAlreadyTests {
  private static let start = BlobCache.ManualClock().now

  private let still = StillCache()
  private var directory: TemporaryDirectory { still.directory }
  private var clock: BlobCache.ManualClock { still.clock }
  private let old = Array("old".utf8)

  /// Every call that takes a lifetime and a stale window.
  enum Call: CaseIterable, Sendable {
    case store, storeLarge, storeAll, stream, copyFile, moveFile, renew, renewAbsent, fetchHit,
      fetchMiss, reload

    var key: BlobCache.Key {
      switch self {
      case .renewAbsent, .fetchMiss: "absent"
      default: "k"
      }
    }
  }

  private func make(
    _ call: Call, _ cache: BlobCache, _ lifetime: BlobCache.Lifetime, _ window: Duration? = nil
  ) async throws {
    let new = Array("new".utf8)
    let key = call.key
    switch call {
    case .store: try await cache.store(new, for: key, lifetime: lifetime, staleWindow: window)
    case .storeLarge:
      try await cache.store(
        seededBytes(count: 100_000, seed: 1), for: key, lifetime: lifetime, staleWindow: window)
    case .storeAll:
      try await cache.storeAll([
        BlobCache.Item(key: key, bytes: new), BlobCache.Item(key: "other", bytes: new),
        BlobCache.Item(key: key, bytes: new, lifetime: lifetime, staleWindow: window),
      ])
    case .stream:
      try await cache.store(for: key, lifetime: lifetime, staleWindow: window) { _ in
        Issue.record("the bytes were asked for")
      }
    case .copyFile, .moveFile:
      let file = directory.path("file")
      try Data(new).write(to: URL(filePath: file))
      defer { #expect(FileManager.default.fileExists(atPath: file)) }
      try await cache.store(
        contentsOf: file, for: key, mode: call == .moveFile ? .moving : .copying,
        lifetime: lifetime, staleWindow: window)
    case .renew, .renewAbsent:
      try await cache.renew(key, lifetime: lifetime, staleWindow: window)
    case .fetchHit, .fetchMiss, .reload:
      _ = try await cache.fetch(
        key, lifetime: lifetime, staleWindow: window,
        policy: call == .reload ? .reload : .cacheFirst
      ) { _ in
        Issue.record("the loader ran")
        return .complete
      }
    }
  }

  private static let over: [BlobCache.Lifetime] = [
    .expires(at: start), .expires(at: start.addingTimeInterval(-0.001)),
    .expires(at: Date(timeIntervalSince1970: 0)), .expires(at: .distantPast),
    .expires(at: Date(timeIntervalSince1970: -.infinity)),
    .expires(at: Date(timeIntervalSince1970: .infinity)),
    .expires(at: Date(timeIntervalSince1970: .nan)),
    .expires(at: Date(timeIntervalSince1970: -1e15)),
    .expires(at: Date(timeIntervalSince1970: -1e300)),
    .expires(after: .zero), .expires(after: .nanoseconds(1)), .expires(after: .seconds(-1)),
    .expires(after: .seconds(Int64.min)), .sliding(.zero), .sliding(.seconds(-20)),
    .sliding(.seconds(20), atMost: .zero), .sliding(.seconds(20), atMost: .seconds(-1)),
    .sliding(.zero, atMost: .seconds(60)),
  ]

  private static let endless: [BlobCache.Lifetime] = [
    .expires(at: Date(timeIntervalSince1970: 1e300)),
    .expires(at: Date(timeIntervalSince1970: .greatestFiniteMagnitude)),
    .expires(at: Date(timeIntervalSince1970: 1e17)),
  ]

  @Test(arguments: Call.allCases) func aLifetimeThatIsOverIsRefusedAndNothingIsLost(
    call: Call
  ) async throws {
    let cache = try still.open()
    let before = try await cache.store(
      old, for: "k", lifetime: .expires(after: .seconds(60)), tags: ["t"])
    for lifetime in Self.over {
      let error = try await errorOf { try await make(call, cache, lifetime) }
      #expect(error.code == .invalidArgument, "\(lifetime)")
      #expect(error.message.contains("\(lifetime)"), "\(error)")
      #expect(error.message.contains("give "), "what to do: \(error)")
    }
    try await expectUntouched(cache, before)
    try await cache.close()
  }

  @Test(arguments: endless) func aDateThatNeverComesMeansNever(
    lifetime: BlobCache.Lifetime
  ) async throws {
    let cache = try still.open()
    let entry = try await cache.store(old, for: "k", lifetime: lifetime)
    #expect(entry.expiresAt == nil && entry.lifetime == lifetime)
    try await cache.store(old, for: "renewed", lifetime: .expires(after: .seconds(1)))
    #expect(try await cache.renew("renewed", lifetime: lifetime))
    let fetched = try await cache.fetch("fetched", lifetime: lifetime) { _ in .complete }
    #expect(fetched.entry.expiresAt == nil)
    clock.advance(by: .seconds(1_000_000 * 365 * 86_400))
    for key: BlobCache.Key in ["k", "renewed", "fetched"] {
      #expect(try #require(try cache.entry(for: key)).expiresAt == nil)
      #expect(try cache.blob(for: key) != nil)
    }
    try await cache.close()
  }

  @Test(arguments: Call.allCases) func aStaleWindowBelowZeroIsRefusedAndNothingIsLost(
    call: Call
  ) async throws {
    let cache = try still.open()
    let before = try await cache.store(
      old, for: "k", lifetime: .expires(after: .seconds(60)), tags: ["t"])
    for window: Duration in [.seconds(-1), .nanoseconds(-1), .seconds(Int64.min)] {
      let error = try await errorOf { try await make(call, cache, .forever, window) }
      #expect(error.code == .invalidArgument, "\(window)")
      #expect(error.message.contains("\(window)"), "\(error)")
    }
    try await expectUntouched(cache, before)
    try await cache.close()
  }

  private func expectUntouched(_ cache: BlobCache, _ before: BlobCache.Entry) async throws {
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.generation == before.generation && entry.tags == ["t"])
    #expect(entry.lifetime == before.lifetime && entry.expiresAt == before.expiresAt)
    #expect(entry.staleWindow == before.staleWindow)
    #expect(try #require(try cache.blob(for: "k")).holds(old))
    #expect(cache.statistics.entries == 1 && cache.statistics.loads == 0)
    // Its last user may be a thread that has just done its part.
    try await eventually("no file is left") {
      CacheFolder(directory.path("cache")).files(in: "staging").isEmpty
    }
  }

  @Test func whatEndsAMillisecondFromNowIsNotOver() async throws {
    let cache = try still.open()
    for lifetime: BlobCache.Lifetime in [
      .expires(after: .milliseconds(1)), .sliding(.milliseconds(1)),
      .sliding(.seconds(Int64.max), atMost: .milliseconds(1)),
      .expires(at: clock.now.addingTimeInterval(0.001)), .expires(at: .distantFuture),
    ] {
      let entry = try await cache.store(old, for: "k", lifetime: lifetime, staleWindow: .zero)
      #expect(!entry.isExpired)
      #expect(try cache.blob(for: "k") != nil, "\(lifetime)")
      #expect(try await cache.renew("k", lifetime: lifetime, staleWindow: .zero))
    }
    try await cache.close()
  }

  @Test func aMomentThatComesWhileTheBytesAreWrittenIsRefused() async throws {
    let cache = try still.open()
    let before = try await cache.store(old, for: "k", tags: ["t"])
    let moment = clock.now.addingTimeInterval(5)
    for size in [3, 1_000_000] {
      clock.set(to: moment.addingTimeInterval(-5))
      let error = try await errorOf {
        try await cache.store(for: "k", lifetime: .expires(at: moment)) { body in
          try await body.write(seededBytes(count: size, seed: 1))
          clock.advance(by: .seconds(5))
        }
      }
      #expect(error.code == .invalidArgument)
    }
    try await expectUntouched(cache, before)
    try await cache.close()
  }

  /// Its word is the origin's: the bytes are given, and stored as what has expired.
  @Test(arguments: over) func aLoaderMayBringWhatIsOver(lifetime: BlobCache.Lifetime) async throws {
    let cache = try still.open()
    let loads = Counter()
    for _ in 0..<2 {
      let blob = try await cache.fetch("k") { load in
        loads.increment()
        try await load.write(Array("new".utf8))
        return .complete(lifetime: lifetime, staleWindow: .seconds(-1))
      }
      #expect(blob.source == .loaded && blob.holds(Array("new".utf8)), "\(blob.source)")
      #expect(blob.entry.isExpired, "as it was stored")
      #expect(try cache.blob(for: "k") == nil)
      #expect(try #require(try cache.entry(for: "k")).isExpired)
    }
    #expect(loads.value == 2)
    let renewed = try await cache.fetch("k") { _ in .unchanged(lifetime: lifetime) }
    #expect(renewed.source == .loaded && renewed.holds(Array("new".utf8)), "\(renewed.source)")
    #expect(renewed.entry.isExpired)
    #expect(try cache.blob(for: "k") == nil)
    try await cache.remove("k")
    let removed = try await cache.fetch("k") { load in
      try await cache.remove("k")
      return .complete(lifetime: lifetime)
    }
    guard case .loadedNotStored = removed.source else {
      Issue.record("it was stored")
      return
    }
    #expect(removed.entry.isExpired, "also where it was not stored")
    try await cache.close()
  }

  @Test(arguments: endless) func whatALoaderCallsEndlessNeverExpires(
    lifetime: BlobCache.Lifetime
  ) async throws {
    let cache = try still.open()
    _ = try await cache.fetch("k") { _ in .complete(lifetime: lifetime) }
    #expect(try #require(try cache.entry(for: "k")).expiresAt == nil)
    try await cache.close()
  }

  @Test func aPolicysSpanThatCannotBeMeantIsRefused() async throws {
    let cache = try still.open()
    try await cache.store(old, for: "hit")
    let policies: [(BlobCache.FetchPolicy, String)] = [
      (.staleWhileRevalidate(for: .seconds(-1)), "staleWhileRevalidate"),
      (.staleIfError(for: .nanoseconds(-1)), "staleIfError"),
      (.cacheOnly.staleIfError(for: .seconds(-1)), "staleIfError"),
      (.rememberingFailures(for: .seconds(-1)), "rememberingFailures"),
      (.reload.loadTimeLimit(.seconds(-1)), "loadTimeLimit"),
      (.loadTimeLimit(.seconds(-1)).staleIfError(for: .seconds(1)), "loadTimeLimit"),
    ]
    for (policy, name) in policies {
      for key: BlobCache.Key in ["hit", "miss"] {
        let error = try await errorOf {
          _ = try await cache.fetch(key, policy: policy) { _ in
            Issue.record("the loader ran")
            return .complete
          }
        }
        #expect(error.code == .invalidArgument)
        #expect(error.message.contains(name) && error.message.contains("-"), "\(error)")
      }
    }
    for policy: BlobCache.FetchPolicy in [.loadTimeLimit(.zero), .reload.loadTimeLimit(.zero)] {
      let error = try await errorOf {
        _ = try await cache.fetch("miss", policy: policy) { _ in
          Issue.record("the loader ran")
          return .complete
        }
      }
      #expect(error.code == .invalidArgument)
      #expect(error.message.contains("loadTimeLimit (0.0 seconds) is not above zero"), "\(error)")
    }
    // The last word holds.
    let mended = BlobCache.FetchPolicy.loadTimeLimit(.seconds(-1)).loadTimeLimit(.seconds(1))
    #expect(try await cache.fetch("hit", policy: mended) { _ in .complete }.holds(old))
    try await cache.close()
  }

  @Test(
    arguments: [
      .expires(after: .zero), .expires(after: .seconds(-1)), .sliding(.seconds(20), atMost: .zero),
      .expires(at: Date(timeIntervalSince1970: .nan)),
    ] as [BlobCache.Lifetime]) func aDefaultLifetimeThatIsOverAsItBeginsOpensNothing(
      lifetime: BlobCache.Lifetime
    ) async throws
  {
    let error = try await errorOf { _ = try still.open { $0.defaultLifetime = lifetime } }
    #expect(error.code == .invalidArgument)
    #expect(error.message.contains("defaultLifetime") && error.message.contains("\(lifetime)"))
    #expect(!FileManager.default.fileExists(atPath: directory.path("cache")))
  }

  @Test func aDefaultMomentThatHasComeIsRefusedByWhatWouldUseIt() async throws {
    let cache = try still.open {
      $0.defaultLifetime = .expires(at: clock.now.addingTimeInterval(10))
    }
    try await cache.store(old, for: "k")
    try await cache.renew("k", lifetime: .forever)
    clock.advance(by: .seconds(10))
    for call in [
      { try await cache.store([1], for: "k") },
      { try await cache.storeAll([.init(key: "k", bytes: [1])])[0] },
      { try await cache.fetch("miss") { _ in .complete }.entry },
    ] as [() async throws -> BlobCache.Entry] {
      let error = try await errorOf { _ = try await call() }
      #expect(error.code == .invalidArgument && error.message.contains("defaultLifetime"))
    }
    #expect(try await cache.fetch("k") { _ in .complete }.holds(old), "a hit needs no lifetime")
    try await cache.store([1], for: "k", lifetime: .forever)
    try await cache.close()
  }
}
