import Foundation
import Testing

@testable import BlobCache

/// Every span that a user may give, at the ends of what a `Duration` holds: it means "ever" or is an error,
/// and traps nowhere.
@Suite(.timeLimit(.minutes(2))) struct LongSpansTests {
  private let directory = TemporaryDirectory()
  struct Down: Error {}

  static let long: [Duration] = [
    .seconds(200 * 365 * 86_400), .nanoseconds(Int64.max), .milliseconds(Int64.max),
    .seconds(Int64.max), Duration(attoseconds: .max),
  ]
  static let negative: [Duration] = [
    .nanoseconds(-1), .milliseconds(Int64.min), .seconds(Int64.min), Duration(attoseconds: .min),
  ]

  typealias Setting = @Sendable (inout BlobCache.Configuration, Duration) -> Void
  static let settings: [(name: String, set: Setting)] = [
    ("loadTimeLimit", { $0.loadTimeLimit = $1 }),
    ("sweepInterval", { $0.sweepInterval = $1 }),
    ("durability", { $0.durability = .checkpointed(every: $1) }),
    ("negativeLifetime", { $0.negativeLifetime = $1 }),
    ("leaseTime", { ($0.loadsOncePerMachine, $0.leaseTime) = (true, $1) }),
    ("defaultStaleWindow", { $0.defaultStaleWindow = $1 }),
    ("defaultLifetime", { $0.defaultLifetime = .expires(after: $1) }),
    ("defaultLifetime, sliding", { $0.defaultLifetime = .sliding($1) }),
    ("defaultLifetime, atMost", { $0.defaultLifetime = .sliding(.seconds(1), atMost: $1) }),
    ("limits.age", { $0.limits = .age($1) }),
  ]

  static let policies: [@Sendable (Duration) -> BlobCache.FetchPolicy] = [
    { .staleWhileRevalidate(for: $0) }, { .staleIfError(for: $0) },
    { .rememberingFailures(for: $0) },
    { .loadTimeLimit($0) },
    {
      .staleWhileRevalidate(for: $0).staleIfError(for: $0).rememberingFailures(for: $0)
        .loadTimeLimit($0)
    },
    { .reload.loadTimeLimit($0).refreshingEarly() },
  ]

  enum Time: CaseIterable { case system, manual, foreign, late }

  private func configuration(_ time: Time) -> BlobCache.Configuration {
    var configuration = BlobCache.Configuration()
    configuration.lifetimeJitter = 0.5
    configuration.sweepInterval = nil
    switch time {
    case .system: break
    case .manual: configuration.clock = BlobCache.ManualClock().clock
    case .foreign: configuration.clock = BlobCache.Clock { Date() }
    case .late:
      let clock = BlobCache.ManualClock()
      clock.advance(by: .seconds(Int64.max))
      configuration.clock = clock.clock
    }
    return configuration
  }

  /// What an instance does with its time: everything.
  private func use(_ cache: BlobCache, isLate: Bool) async throws {
    let entry = try await cache.store([1], for: "stored")
    if !isLate { #expect(!entry.isExpired) }
    for _ in 0..<2 {
      let blob = try await cache.fetch("loaded") { load in
        try await load.write([2])
        return .complete
      }
      #expect(blob.holds([2]))
      await #expect(throws: (any Error).self) {
        _ = try await cache.fetch("failing", policy: .staleIfError()) { _ in throw Down() }
      }
    }
    _ = try await cache.fetch("stored", policy: .reload) { load in
      load.previous == nil ? .complete : .unchanged
    }
    _ = try cache.blob(for: "stored")
    _ = try await cache.sweep()
  }

  @Test(arguments: settings.indices, Time.allCases)
  func aLongSettingMeansEver(setting: Int, time: Time) async throws {
    let setting = Self.settings[setting]
    for span in Self.long {
      var configuration = configuration(time)
      setting.set(&configuration, span)
      let cache = try BlobCache.temporary(configuration: configuration)
      try await use(cache, isLate: time == .late)
      try await cache.close()
    }
  }

  @Test(arguments: settings.indices)
  func aNegativeSettingIsAnError(setting: Int) async throws {
    for span in Self.negative {
      var configuration = BlobCache.Configuration()
      Self.settings[setting].set(&configuration, span)
      let error = try await errorOf {
        _ = try BlobCache(directory: directory.path("cache"), configuration: configuration)
      }
      #expect(error.code == .invalidArgument)
    }
  }

  @Test(arguments: Time.allCases) func aLongArgumentMeansEver(time: Time) async throws {
    let cache = try BlobCache.temporary(configuration: configuration(time))
    for span in Self.long {
      for lifetime: BlobCache.Lifetime in [
        .expires(after: span), .sliding(span), .sliding(.seconds(1), atMost: span),
        .sliding(span, atMost: span),
      ] {
        try await cache.store([1], for: "k", lifetime: lifetime, staleWindow: span)
        try await cache.renew("k", lifetime: lifetime, staleWindow: span)
        for policy in Self.policies {
          _ = try await cache.fetch(
            "k", lifetime: lifetime, staleWindow: span, policy: policy(span)
          ) { _ in .complete }
          _ = policy(span).description
          try await cache.remove("k")
          _ = try await cache.fetch("k", policy: policy(span)) { _ in
            .complete(lifetime: lifetime, staleWindow: span)
          }
          await #expect(throws: (any Error).self) {
            _ = try await cache.fetch("failing", policy: policy(span)) { _ in throw Down() }
          }
        }
      }
      #expect(try await cache.removeAll(matching: .older(than: span)) == 0)
      try await cache.trim(to: .age(span))
    }
    try await cache.close()
  }

  @Test func aNegativeArgumentIsAnErrorUnlessALoaderSaysIt() async throws {
    let cache = try BlobCache.temporary(configuration: configuration(.manual))
    for span in Self.negative {
      let calls: [() async throws -> Void] = [
        { try await cache.store([1], for: "k", lifetime: .expires(after: span)) },
        { try await cache.store([1], for: "k", lifetime: .sliding(span)) },
        { try await cache.store([1], for: "k", lifetime: .sliding(.seconds(1), atMost: span)) },
        { try await cache.store([1], for: "k", staleWindow: span) },
        { try await cache.renew("k", lifetime: .forever, staleWindow: span) },
        { _ = try await cache.fetch("k", staleWindow: span) { _ in .complete } },
        { try await cache.removeAll(matching: .older(than: span)) },
        { try await cache.trim(to: .age(span)) },
      ]
      for call in calls { #expect(try await errorOf { try await call() }.code == .invalidArgument) }
      for policy in Self.policies {
        let error = try await errorOf {
          _ = try await cache.fetch("k", policy: policy(span)) { _ in .complete }
        }
        #expect(error.code == .invalidArgument)
      }
      for lifetime: BlobCache.Lifetime in [
        .expires(after: span), .sliding(span), .sliding(.seconds(1), atMost: span),
      ] {
        let blob = try await cache.fetch("of a loader") { _ in
          .complete(lifetime: lifetime, staleWindow: span)
        }
        #expect(blob.count == 0)
      }
    }
    try await cache.close()
  }

  @Test func aManualClockStopsAtTheEndsOfTime() throws {
    let clock = BlobCache.ManualClock()
    let start = clock.now
    for _ in 0..<3 { clock.advance(by: .seconds(Int64.max)) }
    #expect(clock.now > start)
    clock.advance(by: Duration(attoseconds: .max))
    #expect(clock.now > start)
    clock.set(to: start)
    for _ in 0..<3 { clock.advance(by: .seconds(Int64.min)) }
    #expect(clock.now < start)
    clock.advance(by: Duration(attoseconds: .min))
    #expect(clock.now < start)
  }

  @Test func aFailureIsRememberedAtTheEndOfTime() {
    var book = FailureBook<Int>()
    book.record(1, cause: Down(), now: .min, chance: 0.5)
    book.record(1, cause: Down(), now: .max, chance: 0.5)
    #expect(book.negative(1, lifetime: .max, now: .max) != nil)
    #expect(book.negative(1, lifetime: .max, now: .min) == nil)
    #expect(!book.isBackingOff(1, now: .max))
  }
}
