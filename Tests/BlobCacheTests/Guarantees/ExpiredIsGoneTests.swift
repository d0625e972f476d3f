import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 7: expired is gone; reads extend only what slides; a clock set back makes nothing live
/// for years. All times by manual clocks.
@Suite("7. Expired is gone")
struct ExpiredIsGoneTests {
  private let directory = TemporaryDirectory()
  private let start = Date(timeIntervalSince1970: 1_900_000_000)
  private let bytes = seededBytes(count: 100, seed: 1)

  private func open(_ clock: BlobCache.ManualClock) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    return try BlobCache(directory: directory.path("cache"), configuration: configuration)
  }

  /// Absent to everything that gives bytes.
  private func expectGone(_ key: BlobCache.Key, _ cache: BlobCache) async throws {
    #expect(try cache.blob(for: key) == nil)
    #expect(try !cache.contains(key))
    let seen = try cache.withBytes(for: key) { $0.byteCount }
    #expect(seen == nil)
    #expect(try cache.entry(for: key)?.isExpired != false)
    let error = try await errorOf {
      _ = try await cache.fetch(key, policy: .cacheOnly) { _ in .complete }
    }
    #expect(error.code == .notCached)
  }

  @Test(arguments: [100, 100_000])
  func absoluteLifetimeIsNotExtendedByReads(size: Int) async throws {
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    try await cache.store(
      seededBytes(count: size, seed: 1), for: "key", lifetime: .expires(after: .seconds(20)))
    for _ in 0..<19 {
      clock.advance(by: .seconds(1))
      #expect(try cache.blob(for: "key") != nil)
    }
    clock.advance(by: .seconds(1))
    try await expectGone("key", cache)
    try await cache.close()
  }

  @Test func aMomentIsAMoment() async throws {
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    try await cache.store(bytes, for: "key", lifetime: .expires(at: start.addingTimeInterval(90)))
    try await cache.store(bytes, for: "past", lifetime: .expires(at: start.addingTimeInterval(1)))
    clock.set(to: start.addingTimeInterval(1))
    try await expectGone("past", cache)
    clock.set(to: start.addingTimeInterval(89))
    #expect(try cache.contains("key"))
    #expect(try cache.entry(for: "key")?.expiresAt == start.addingTimeInterval(90))
    clock.set(to: start.addingTimeInterval(91))
    try await expectGone("key", cache)
    try await cache.close()
  }

  @Test func slidingLifetimeIsExtendedByReadsAndByThemOnly() async throws {
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    try await cache.store(bytes, for: "read", lifetime: .sliding(.seconds(20)))
    try await cache.store(bytes, for: "looked at", lifetime: .sliding(.seconds(20)))
    for _ in 0..<10 {
      clock.advance(by: .seconds(15))
      #expect(try cache.blob(for: "read") != nil)
      _ = try cache.entry(for: "looked at")
      _ = try cache.contains("looked at")
    }
    try await expectGone("looked at", cache)
    clock.advance(by: .seconds(21))
    try await expectGone("read", cache)
    try await cache.close()
  }

  @Test func slidingReachesAcrossProcesses() async throws {
    let path = directory.path("cache")
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    let other = try await SecondProcess.over(path, "clock")
    try await cache.store(bytes, for: "key", lifetime: .sliding(.seconds(20)))
    for round in 1...10 {
      let now = start.addingTimeInterval(Double(round) * 15)
      clock.set(to: now)
      #expect(try await other.call("clock \(now.timeIntervalSince1970)") == "ok")
      if round % 2 == 0 {
        #expect(try cache.blob(for: "key") != nil, "round \(round)")
      } else {
        #expect(try await other.call("get key").hasPrefix("hit"), "round \(round)")
      }
    }
    // A reader that is killed has extended it all the same.
    let last = start.addingTimeInterval(10 * 15 + 15)
    #expect(try await other.call("clock \(last.timeIntervalSince1970)") == "ok")
    #expect(try await other.call("get key").hasPrefix("hit"))
    other.kill()
    clock.set(to: last.addingTimeInterval(15))
    #expect(try cache.blob(for: "key") != nil)
    clock.set(to: last.addingTimeInterval(36))
    try await expectGone("key", cache)
    try await cache.close()
  }

  @Test func atMostCapsWhatSlides() async throws {
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    try await cache.store(
      bytes, for: "key", lifetime: .sliding(.seconds(20), atMost: .seconds(50)))
    for _ in 0..<3 {
      clock.advance(by: .seconds(15))
      #expect(try cache.blob(for: "key") != nil)
    }
    clock.advance(by: .seconds(6))
    try await expectGone("key", cache)
    try await cache.close()
  }

  @Test func defaultLifetimeIsTheConfigurationsAndRenewalBeginsAnew() async throws {
    let clock = BlobCache.ManualClock(now: start)
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.defaultLifetime = .expires(after: .seconds(20))
    let cache = try BlobCache(directory: directory.path("cache"), configuration: configuration)
    try await cache.store(bytes, for: "key")
    clock.advance(by: .seconds(15))
    #expect(try await cache.renew("key", lifetime: .expires(after: .seconds(100))))
    #expect(try await !cache.renew("absent", lifetime: .forever))
    clock.advance(by: .seconds(90))
    #expect(try #require(try cache.blob(for: "key")).holds(bytes))
    clock.advance(by: .seconds(11))
    try await expectGone("key", cache)
    try await cache.close()
  }

  @Test func clockSetBackForYearsExpires() async throws {
    let clock = BlobCache.ManualClock(now: start)
    var cache = try open(clock)
    try await cache.store(bytes, for: "absolute", lifetime: .expires(after: .seconds(10)))
    try await cache.store(bytes, for: "sliding", lifetime: .sliding(.seconds(10)))
    clock.set(to: Date(timeIntervalSince1970: 1_600_000_000))
    try await expectGone("absolute", cache)
    try await expectGone("sliding", cache)
    try await cache.close()
    cache = try open(clock)
    try await expectGone("absolute", cache)
    try await cache.store(bytes, for: "absolute", lifetime: .expires(after: .seconds(10)))
    #expect(try cache.contains("absolute"))
    try await cache.close()
  }

  @Test func smallSkewBetweenClocksIsFresh() async throws {
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    try await cache.store(bytes, for: "hour", lifetime: .expires(after: .seconds(3600)))
    try await cache.store(bytes, for: "second", lifetime: .expires(after: .seconds(1)))
    clock.set(to: start.addingTimeInterval(-30))
    #expect(try cache.contains("hour"))
    try await expectGone("second", cache)
    clock.set(to: start.addingTimeInterval(-61))
    try await expectGone("hour", cache)
    try await cache.close()
  }

  @Test func fetchLoadsWhatHasExpiredAndOnlyThat() async throws {
    let clock = BlobCache.ManualClock(now: start)
    let cache = try open(clock)
    let loads = Counter()
    func fetch() async throws {
      _ = try await cache.fetch("key", lifetime: .expires(after: .seconds(20))) { load in
        loads.increment()
        try await load.write(seededBytes(count: 10, seed: 1))
        return .complete
      }
    }
    for _ in 0..<10 {
      try await fetch()
      clock.advance(by: .seconds(7))
    }
    // Loaded at 0, 21, 42 and 63 s.
    #expect(loads.value == 4)
    try await cache.close()
  }
}
