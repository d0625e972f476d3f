import Foundation
import Synchronization
import Testing

@testable import BlobCache

/// Promises 2 and 7 where time and failures meet: expired is gone unless a policy asks for it, a failing
/// origin is asked a bounded number of times, and nobody hears of what was not asked for.
@Suite(.serialized, .timeLimit(.minutes(5))) struct FreshnessTests {
  let clock = BlobCache.ManualClock()
  let events = Collected<BlobCache.Event>()
  let runs = Tally()
  let cache: BlobCache

  init() throws {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.clock.dice = { 0 }
    configuration.defaultStaleWindow = .seconds(100)
    configuration.defaultLifetime = .expires(after: .seconds(20))
    configuration.sweepInterval = nil
    configuration.onEvent = { [events] in events.append($0) }
    cache = try BlobCache.temporary(configuration: configuration)
  }

  // MARK: Stale while revalidate

  @Test func staleIsAMissUnlessAPolicyAsksForIt() async throws {
    try await makeStale("k")
    #expect(try cache.blob(for: "k") == nil)
    #expect(try !cache.contains("k"))
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.isExpired && entry.isStale)
    #expect(entry.expiredFor == .seconds(1) && entry.staleWindow == .seconds(100))
    #expect(text(try await load("k", "new")) == "new")
  }

  @Test func aThousandGetTheStaleCopyAtOnceAndOneLoadRuns() async throws {
    try await makeStale("k")
    let door = Latch()
    try await withThrowingTaskGroup(of: BlobCache.Blob.self) { group in
      for _ in 0..<1_000 {
        group.addTask {
          try await cache.fetch("k", policy: .staleWhileRevalidate()) { load in
            runs.add()
            try await door.wait()
            try await load.write("new".utf8)
            return .complete
          }
        }
      }
      // All of them come back while the door is closed.
      for try await blob in group {
        #expect(blob.source == .stale && blob.staleCause == nil)
        #expect(text(blob) == "old" && blob.entry.isStale)
      }
    }
    await until { runs.value == 1 }
    #expect(cache.statistics.staleHits == 1_000)
    door.open()
    await landed()
    #expect(text(try cache.blob(for: "k")) == "new")
    #expect(runs.value == 1)
  }

  @Test func windowsLimitOneAnother() async throws {
    try await cache.store("old".utf8, for: "k", lifetime: seconds(20), staleWindow: .seconds(30))
    clock.advance(by: .seconds(29))
    #expect(try await source("k", .cacheOnly.staleIfError(for: .seconds(10))) == .stale)
    #expect(try await source("k", .staleWhileRevalidate(for: .seconds(9))) == .loaded)
    try await cache.store("old".utf8, for: "k", lifetime: seconds(20), staleWindow: .seconds(30))
    clock.advance(by: .seconds(49))
    #expect(try await source("k", .staleWhileRevalidate()) == .stale)
    try await cache.store("old".utf8, for: "k", lifetime: seconds(20), staleWindow: .seconds(30))
    clock.advance(by: .seconds(50))
    #expect(try await source("k", .staleWhileRevalidate(for: .seconds(1_000))) == .loaded)
    try await cache.store("old".utf8, for: "k", lifetime: seconds(20), staleWindow: .zero)
    clock.advance(by: .seconds(20))
    #expect(try await source("k", .staleWhileRevalidate()) == .loaded, "no window at all")
  }

  @Test func aClockThatIsSetBackMakesNothingStale() async throws {
    try await cache.store("old".utf8, for: "k", staleWindow: .seconds(1_000_000_000))
    clock.advance(by: .seconds(-86_400))
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.isExpired && !entry.isStale && entry.expiredFor == nil)
    #expect(try await source("k", .staleWhileRevalidate()) == .loaded)
  }

  @Test func aFailingBackgroundLoadIsToldAndBacksOff() async throws {
    try await cache.store("old".utf8, for: "k", lifetime: seconds(1), staleWindow: .seconds(10_000))
    clock.advance(by: .seconds(1))
    var begun: [Int] = []
    for second in 0..<600 {
      let before = runs.value
      let blob = try await failing("k", .staleWhileRevalidate())
      #expect(blob.source == .stale)
      await landed()
      if runs.value > before { begun.append(second) }
      clock.advance(by: .seconds(1))
    }
    #expect(begun.prefix(6) == [0, 1, 3, 7, 15, 31])
    #expect(begun.count <= 6 + 9)
    #expect(events.elements.map(\.kind) == begun.map { _ in .loadFailed })
    // One success, and it is asked at once again.
    #expect(text(try await load("k", "new", .reload)) == "new")
    clock.advance(by: .seconds(21))
    let before = runs.value
    _ = try await failing("k", .staleWhileRevalidate())
    await until { runs.value == before + 1 }
  }

  @Test func closingEndsABackgroundLoad() async throws {
    try await makeStale("k")
    let (began, cancelled) = (Latch(), Tally())
    _ = try await cache.fetch("k", policy: .staleWhileRevalidate()) { _ in
      began.open()
      do { try await Latch().wait() } catch { cancelled.add() }
      return .complete
    }
    try await began.wait()
    try await cache.close()
    await until { cancelled.value == 1 && cache.store.flights.flightCount == 0 }
  }

  @Test func aRemovalEndsABackgroundLoad() async throws {
    try await makeStale("k")
    let (began, ended) = (Latch(), Latch())
    _ = try await cache.fetch("k", policy: .staleWhileRevalidate()) { load in
      began.open()
      do { try await Latch().wait() } catch { ended.open() }
      return .complete
    }
    try await began.wait()
    try await cache.remove("k")
    try await ended.wait()
    await landed()
    #expect(try cache.entry(for: "k") == nil)
  }

  // MARK: Stale if error

  @Test func aFailingOriginIsAskedABoundedNumberOfTimesAMinute() async throws {
    // jperasmus/stale-while-revalidate-cache#39
    try await cache.store("old".utf8, for: "k", lifetime: seconds(1), staleWindow: .seconds(10_000))
    clock.advance(by: .seconds(1))
    for second in 0..<60 {
      for _ in 0..<20 {
        let blob = try await failing("k", .staleIfError())
        #expect(blob.source == .stale && text(blob) == "old")
        #expect(blob.staleCause as? Down != nil, "second \(second)")
      }
      clock.advance(by: .seconds(1))
    }
    #expect(runs.value == 6)
    clock.advance(by: .seconds(3_600))
    let late = runs.value
    for _ in 0..<60 {
      _ = try await failing("k", .staleIfError())
      clock.advance(by: .milliseconds(100))
    }
    #expect(runs.value <= late + 3, "ten minutes without a failure: it begins anew")
  }

  @Test func staleIfErrorLoadsFirst() async throws {
    try await makeStale("k")
    let blob = try await load("k", "new", .staleIfError())
    #expect(text(blob) == "new" && blob.source == .loaded && blob.staleCause == nil)
  }

  @Test func withoutACopyTheErrorComes() async throws {
    await #expect(throws: Down.self) { try await failing("k", .staleIfError()) }
    try await cache.store("old".utf8, for: "k", lifetime: seconds(1), staleWindow: .seconds(10))
    clock.advance(by: .seconds(1))
    clock.advance(by: .seconds(10))
    await #expect(throws: Down.self) { try await failing("k", .staleIfError()) }
    try await cache.store("old".utf8, for: "k", lifetime: seconds(1), staleWindow: .seconds(50))
    clock.advance(by: .seconds(1))
    clock.advance(by: .seconds(10))
    await #expect(throws: Down.self) { try await failing("k", .staleIfError(for: .seconds(10))) }
    await #expect(throws: Down.self) { try await failing("k", .staleWhileRevalidate(for: .zero)) }
  }

  @Test func whatIsRemovedDuringTheLoadIsNotGiven() async throws {
    try await makeStale("k")
    await #expect(throws: Down.self) {
      try await cache.fetch("k", policy: .staleIfError()) { _ in
        try await cache.remove("k")
        throw Down()
      }
    }
  }

  @Test func mistakesAndCancellationAreNotHidden() async throws {
    try await makeStale("k")
    let error = try await errorOf {
      _ = try await cache.fetch("k", policy: .staleIfError()) { load in
        try await load.write("x".utf8)
        return .unchanged
      }
    }
    #expect(error.code == .invalidArgument)
    clock.advance(by: .seconds(2))
    let began = Latch()
    let task = Task {
      try await cache.fetch("k", policy: .staleIfError()) { _ in
        began.open()
        try await Latch().wait()
        return .complete
      }
    }
    try await began.wait()
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
  }

  @Test func bothCombined() async throws {
    let policy = BlobCache.FetchPolicy.staleWhileRevalidate(for: .seconds(10))
      .staleIfError(for: .seconds(50))
    try await cache.store("old".utf8, for: "k", lifetime: seconds(20))
    clock.advance(by: .seconds(25))
    let young = try await failing("k", policy)
    #expect(young.source == .stale && young.staleCause == nil)
    await landed()
    clock.advance(by: .seconds(25))
    let older = try await failing("k", policy)
    #expect(older.source == .stale && older.staleCause is Down, "waited for the load")
    clock.advance(by: .seconds(21))
    await #expect(throws: Down.self) { try await failing("k", policy) }
    #expect(runs.value == 3)
  }

  @Test func aReloadThatFailsGivesTheCopyAtHand() async throws {
    try await cache.store("good".utf8, for: "k")
    let blob = try await failing("k", .reload.staleIfError())
    #expect(text(blob) == "good" && blob.source == .stale && blob.staleCause is Down)
    #expect(!blob.entry.isExpired)
    #expect(runs.value == 1)
    _ = try await failing("k", .reload.staleIfError())
    #expect(runs.value == 2, "a reload asks whatever failed before")
    #expect(try await source("k", .cacheFirst) == .index)
  }

  @Test func theLastGoodCopyWithoutANetwork() async throws {
    try await makeStale("k")
    let blob = try await failing("k", .cacheOnly.staleIfError())
    #expect(text(blob) == "old" && blob.source == .stale)
    await landed()
    #expect(runs.value == 0)
    let error = try await errorOf { _ = try await failing("absent", .cacheOnly.staleIfError()) }
    #expect(error.code == .notCached)
  }

  // MARK: Negative lifetimes

  @Test func aThousandCallsOneOriginCallAndAfterItsTimeAnother() async throws {
    // koala73/worldmonitor#3527, SDWebImage's failedURLs
    let policy = BlobCache.FetchPolicy.rememberingFailures(for: .seconds(1))
    let codes = Collected<BlobCache.Error.Code>()
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<1_000 {
        group.addTask {
          do {
            _ = try await failing("k", policy)
            Issue.record("no error")
          } catch let error as BlobCache.Error {
            #expect(error.cause?.contains("Down") == true)
            codes.append(error.code)
          } catch {
            #expect(error is Down)
          }
        }
      }
    }
    #expect(runs.value == 1)
    #expect(codes.elements.allSatisfy { $0 == .recentlyFailed })
    clock.advance(by: .milliseconds(999))
    #expect(try await errorOf { _ = try await failing("k", policy) }.code == .recentlyFailed)
    clock.advance(by: .milliseconds(1))
    #expect(text(try await load("k", "well again", policy)) == "well again")
  }

  enum Ending: CaseIterable {
    case reload, store, stream, batch, remove, removeAll, callerWantsNone
  }

  @Test(arguments: Ending.allCases) func whatEndsANegativeLifetime(ending: Ending) async throws {
    var configuration = BlobCache.Configuration()
    configuration.negativeLifetime = .seconds(3_600)
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    func failing(_ policy: BlobCache.FetchPolicy = .cacheFirst) async throws -> BlobCache.Blob {
      try await cache.fetch("k", policy: policy) { _ in
        runs.add()
        throw Down()
      }
    }
    await #expect(throws: Down.self) { try await failing() }
    #expect(try await errorOf { _ = try await failing() }.code == .recentlyFailed)
    switch ending {
    case .reload: await #expect(throws: Down.self) { try await failing(.reload) }
    case .store: try await cache.store("x".utf8, for: "k", lifetime: seconds(1))
    case .stream:
      try await cache.store(for: "k", lifetime: seconds(1)) { try await $0.write("x".utf8) }
    case .batch: try await cache.storeAll([.init(key: "k", bytes: [1], lifetime: seconds(1))])
    case .remove: try await cache.remove("k")
    case .removeAll: try await cache.removeAll()
    case .callerWantsNone: break
    }
    clock.advance(by: .seconds(1))  // what was stored has expired
    let before = runs.value
    let policy: BlobCache.FetchPolicy =
      ending == .callerWantsNone ? .rememberingFailures(for: .zero) : .cacheFirst
    if ending == .reload {
      // It failed again, and that is remembered.
      #expect(try await errorOf { _ = try await failing() }.code == .recentlyFailed)
      #expect(runs.value == before)
    } else {
      await #expect(throws: Down.self) { try await failing(policy) }
      #expect(runs.value == before + 1)
    }
  }

  enum Mistake: CaseIterable {
    case nothingToKeep, writtenAndUnchanged, cycle, closed, keyTooLong, invalidArgument

    var code: BlobCache.Error.Code {
      switch self {
      case .nothingToKeep, .writtenAndUnchanged, .invalidArgument: .invalidArgument
      case .cycle: .cycle
      case .closed: .closed
      case .keyTooLong: .keyTooLong
      }
    }
  }

  /// A loader that makes one, and counts.
  private func make(
    _ mistake: Mistake, in cache: BlobCache, _ policy: BlobCache.FetchPolicy, closed: BlobCache
  ) async throws -> BlobCache.Blob {
    try await cache.fetch("k", policy: policy) { [runs] load in
      runs.add()
      switch mistake {
      case .nothingToKeep, .writtenAndUnchanged:
        if mistake == .writtenAndUnchanged || load.previous != nil { try await load.write([1]) }
        return .unchanged
      case .cycle: _ = try await cache.fetch("k") { _ in .complete }
      case .closed: _ = try closed.blob(for: "k")
      case .keyTooLong: _ = try cache.blob(for: BlobCache.Key([UInt8](repeating: 1, count: 70_000)))
      case .invalidArgument:
        try await cache.store([1], for: "other", lifetime: .expires(after: .zero))
      }
      return .complete
    }
  }

  @Test(arguments: Mistake.allCases) func mistakesOfTheLoaderAreNotRemembered(
    mistake: Mistake
  ) async throws {
    var configuration = BlobCache.Configuration()
    configuration.negativeLifetime = .seconds(3_600)
    configuration.clock = clock.clock
    let (cache, closed) = (
      try BlobCache.temporary(configuration: configuration), try BlobCache.temporary()
    )
    try await closed.close()
    func made(_ policy: BlobCache.FetchPolicy = .cacheFirst) async throws -> BlobCache.Error {
      try await errorOf { _ = try await make(mistake, in: cache, policy, closed: closed) }
    }
    for run in 1...3 {
      #expect(try await made().code == mistake.code)
      #expect(runs.value == run)
    }
    // Nor does a stale copy stand in for them, the second time no more than the first.
    try await cache.store("old".utf8, for: "k", lifetime: seconds(1))
    clock.advance(by: .seconds(2))
    for run in 4...6 {
      #expect(try await made(.staleIfError()).code == mistake.code)
      #expect(runs.value == run)
    }
    // What nobody waits for backs off all the same.
    clock.advance(by: .seconds(600))
    for _ in 0..<50 {
      _ = try await make(mistake, in: cache, .staleWhileRevalidate(), closed: closed)
      await until { cache.store.flights.flightCount == 0 }
    }
    #expect(runs.value == 7)
    try await cache.close()
  }

  @Test func aRememberedFailureIsAReasonForStale() async throws {
    try await makeStale("k")
    let policy = BlobCache.FetchPolicy.rememberingFailures(for: .seconds(50)).staleIfError()
    _ = try await failing("k", policy)
    clock.advance(by: .seconds(10))
    let blob = try await failing("k", policy)
    #expect(blob.source == .stale)
    #expect((blob.staleCause as? BlobCache.Error)?.code == .recentlyFailed)
    #expect(runs.value == 1)
  }

  // MARK: Early refresh, jitter

  @Test func aHotKeyNeverExpiresUnderItsReaders() async throws {
    // Chance is what it is about here.
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    func fetch() async throws -> BlobCache.Blob {
      try await cache.fetch(
        "k", lifetime: .expires(after: .seconds(10)), policy: .refreshingEarly()
      ) { load in
        let run = runs.add()
        clock.advance(by: .milliseconds(500))
        try await load.write("\(run)".utf8)
        return .complete
      }
    }
    _ = try await fetch()
    var waited = 0
    // A reader every 10 ms, for 100 s.
    for _ in 0..<10_000 {
      if try await fetch().source == .loaded { waited += 1 }
      await until { cache.store.flights.flightCount == 0 }
      clock.advance(by: .milliseconds(10))
    }
    #expect(waited == 0)
    // 100 s and what the loads take, a lifetime of 10 s less some load times each.
    #expect((10...30).contains(runs.value), "\(runs.value) loads")
  }

  @Test func earlyRefreshLeavesOthersAlone() async throws {
    _ = try await cache.fetch("slow") { load in
      clock.advance(by: .seconds(5))
      try await load.write("x".utf8)
      return .complete
    }
    try await cache.store("old".utf8, for: "forever", lifetime: .forever)
    try await cache.store("old".utf8, for: "slides", lifetime: .sliding(.seconds(1)))
    try await cache.store("old".utf8, for: "late", lifetime: seconds(10_000))
    for key in ["forever", "slides", "late"] {
      _ = try await failing(.init(key), .refreshingEarly(beta: 1))
    }
    await landed()
    #expect(runs.value == 0)
  }

  @Test func whatIsStoredTogetherDoesNotExpireTogether() async throws {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.lifetimeJitter = 0.1
    let cache = try BlobCache.temporary(configuration: configuration)
    let entries = try await cache.storeAll(
      (0..<200).map { .init(key: .init("\($0)"), bytes: [1], lifetime: seconds(1_000)) })
    let left = try entries.map { try #require($0.expiresAt).timeIntervalSince(clock.now) }
    #expect(left.allSatisfy { $0 >= 900 && $0 <= 1_000 })
    #expect(Set(left.map { Int($0 / 10) }).count >= 8)
    #expect(entries.allSatisfy { $0.lifetime == seconds(1_000) }, "what was asked for")
    let moment = clock.now.addingTimeInterval(60)
    let exact = try await cache.store([1], for: "m", lifetime: .expires(at: moment))
    #expect(exact.expiresAt == moment)
    let sliding = try await cache.store(
      [1], for: "s", lifetime: .sliding(.seconds(50), atMost: .seconds(1_000)))
    #expect(sliding.expiresAt == clock.now.addingTimeInterval(50))
  }

  @Test(arguments: [0.3, 1])
  func whatIsShortenedKeepsItsLifetimeAndAMillisecond(jitter: Double) async throws {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.lifetimeJitter = jitter
    configuration.clock.dice = { 1 - 1e-9 }
    let cache = try BlobCache.temporary(configuration: configuration)
    for lifetime: BlobCache.Lifetime in [
      .expires(after: .milliseconds(1)), .expires(after: .milliseconds(2)), seconds(1_000),
      .sliding(.seconds(1_000), atMost: .milliseconds(1)),
      .sliding(.seconds(1_000), atMost: .seconds(1_000)),
      .sliding(.seconds(1), atMost: .seconds(1_000)),
      .sliding(.seconds(1_000_000_000), atMost: .seconds(500_000_000)),
      .sliding(.seconds(1), atMost: .seconds(Int64.max)), .sliding(.seconds(1)),
    ] {
      let stored = try await cache.store([1], for: "k", lifetime: lifetime)
      let found = try #require(try cache.entry(for: "k"))
      let blob = try #require(try cache.blob(for: "k"), "a millisecond is left of \(lifetime)")
      #expect(stored.expiresAt == found.expiresAt)
      let isEndless = stored.expiresAt == nil || lifetime == .sliding(.seconds(1))
      for entry in [stored, found, blob.entry] where !isEndless {
        if case .sliding(_, let most?) = lifetime.form, most == .max { continue }
        #expect(entry.lifetime == lifetime, "what was asked for")
      }
      try await cache.pin("k")
      #expect(try cache.entry(for: "k")?.lifetime == found.lifetime)
      try await cache.unpin("k")
      try await cache.renew("k", lifetime: lifetime)
      #expect(try cache.entry(for: "k")?.lifetime == found.lifetime)
    }
    let short = try await cache.store(
      [1], for: "k", lifetime: .sliding(.seconds(1_000), atMost: .seconds(1_000)))
    let left = try #require(short.expiresAt).timeIntervalSince(clock.now)
    #expect(abs(left - max(0.001, 1_000 * (1 - jitter))) < 0.01)
  }

  // MARK: Stale windows

  @Test func windowsOfStoresAndRenewals() async throws {
    func window() throws -> Duration? { try cache.entry(for: "k")?.staleWindow }
    try await cache.store([1], for: "k")
    #expect(try window() == .seconds(100), "the configuration's")
    try await cache.store([1], for: "k", staleWindow: .seconds(7))
    #expect(try window() == .seconds(7))
    try await cache.renew("k", lifetime: seconds(5))
    #expect(try window() == .seconds(7), "as it was")
    clock.advance(by: .seconds(6))
    _ = try await cache.fetch("k") { _ in .unchanged }
    #expect(try window() == .seconds(7), "as it was")
    try await cache.renew("k", lifetime: seconds(5), staleWindow: .seconds(8))
    #expect(try window() == .seconds(8))
    clock.advance(by: .seconds(6))
    _ = try await cache.fetch("k", staleWindow: .seconds(9)) { _ in .unchanged }
    #expect(try window() == .seconds(9))
    clock.advance(by: .seconds(21))
    _ = try await cache.fetch("k") { _ in .unchanged(staleWindow: .seconds(10)) }
    #expect(try window() == .seconds(10))
    _ = try await cache.fetch("k", policy: .reload) { _ in .complete(staleWindow: .seconds(11)) }
    #expect(try window() == .seconds(11))
    _ = try await cache.fetch("k", staleWindow: .seconds(12), policy: .reload) { _ in .complete }
    #expect(try window() == .seconds(12))
    try await cache.storeAll([.init(key: "k", bytes: [1], staleWindow: .seconds(13))])
    #expect(try window() == .seconds(13))
    try await cache.store(for: "k", staleWindow: .seconds(14)) { try await $0.write([1]) }
    #expect(try window() == .seconds(14))
  }

  // MARK: Helpers

  private struct Down: Error {}

  private func seconds(_ count: Int) -> BlobCache.Lifetime { .expires(after: .seconds(count)) }

  private func landed() async { await until { cache.store.flights.flightCount == 0 } }

  /// An entry with the bytes "old" that has been expired for a second.
  private func makeStale(_ key: BlobCache.Key) async throws {
    try await cache.store("old".utf8, for: key)
    clock.advance(by: .seconds(21))
  }

  private func load(
    _ key: BlobCache.Key, _ value: String, _ policy: BlobCache.FetchPolicy = .cacheFirst
  ) async throws -> BlobCache.Blob {
    try await cache.fetch(key, policy: policy) { load in
      runs.add()
      try await load.write(value.utf8)
      return .complete
    }
  }

  private func source(
    _ key: BlobCache.Key, _ policy: BlobCache.FetchPolicy
  ) async throws -> BlobCache.Blob.Source {
    let source = try await load(key, "new", policy).source
    await landed()
    return source
  }

  private func failing(
    _ key: BlobCache.Key, _ policy: BlobCache.FetchPolicy
  ) async throws -> BlobCache.Blob {
    try await cache.fetch(key, policy: policy) { _ in
      runs.add()
      throw Down()
    }
  }
}

private func text(_ blob: BlobCache.Blob?) -> String? {
  blob.map { String(decoding: $0.data, as: UTF8.self) }
}
