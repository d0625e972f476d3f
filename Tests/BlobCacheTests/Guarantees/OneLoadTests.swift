import CBlobStore
import Foundation
import Synchronization
import Testing

@testable import BlobCache

/// Promise 2: however many tasks ask for a missing key, one loader runs; its error reaches everyone
/// who waited, is not stored, and the next caller starts anew; one waiter's cancellation touches
/// nobody else; when the last waiter leaves, the loader is cancelled.
@Suite(.timeLimit(.minutes(5))) struct OneLoadTests {
  let cache: BlobCache
  let runs = Tally()

  init() throws {
    cache = try BlobCache.temporary()
  }

  // MARK: - One load

  @Test func tenThousandTasksOneLoad() async throws {
    let door = Latch()
    let count = 10_000
    let wrong = Tally()
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<count {
        group.addTask {
          do {
            let blob = try await cache.fetch("k") { load in
              runs.add()
              try await door.wait()
              try await load.write("value".utf8)
              return .complete
            }
            if text(blob) != "value" { wrong.add() }
          } catch {
            wrong.add()
          }
        }
      }
      await until { flights.waiterCount == count }
      door.open()
    }
    #expect(runs.value == 1)
    #expect(wrong.value == 0)
    #expect(cache.statistics.loads == 1)
    #expect(cache.statistics.joins == count - 1)
    #expect(flights.flightCount == 0)
    let after = try await cache.fetch("k") { _ in
      Issue.record("the loader ran on a hit")
      return .complete
    }
    #expect(after.source == .index)
  }

  @Test func aStoreBetweenTheMissAndTheFlightIsFound() async throws {
    // The entry is expired at the first look and fresh at the second: the clock is asked once for each.
    let late = Mutex(false)
    var configuration = BlobCache.Configuration()
    configuration.clock = BlobCache.Clock {
      late.withLock { late in
        defer { late = false }
        return Date(timeIntervalSince1970: late ? 3_000 : 1_000)
      }
    }
    let cache = try BlobCache.temporary(configuration: configuration)
    try await cache.store(
      Array("stored".utf8), for: "k",
      lifetime: .expires(at: Date(timeIntervalSince1970: 2_000)))
    late.withLock { $0 = true }
    let blob = try await cache.fetch("k") { _ in
      Issue.record("loaded a second time")
      return .complete
    }
    #expect(text(blob) == "stored")
    #expect(cache.statistics.loads == 0)
  }

  @Test func aCallerBetweenLoaderAndCommitJoins() async throws {
    // A flight leaves the table only after its store is committed: no caller ever finds neither the
    // flight nor the entry.
    for round in 0..<200 {
      let key = BlobCache.Key("\(round)")
      await withTaskGroup(of: Void.self) { group in
        for lag in 0..<8 {
          group.addTask {
            for _ in 0..<lag * 3 { await Task.yield() }
            do {
              _ = try await cache.fetch(key) { load in
                runs.add()
                try await load.write("x".utf8)
                return .complete
              }
            } catch {
              Issue.record(error)
            }
          }
        }
      }
    }
    #expect(runs.value == 200)
  }

  @Test func joinersTakeTheFirstCallersLifetimeAndAttributes() async throws {
    let door = Latch()
    let first = Task {
      try await cache.fetch("k", lifetime: .expires(after: .seconds(60)), attributes: ["n": "1"]) {
        load in
        try await door.wait()
        try await load.write("x".utf8)
        return .complete
      }
    }
    await until { flights.waiterCount == 1 }
    let second = Task {
      try await cache.fetch("k", lifetime: .forever, attributes: ["n": "2"]) { _ in .complete }
    }
    await until { flights.waiterCount == 2 }
    door.open()
    let blobs = (try await first.value, try await second.value)
    #expect(blobs.0.entry == blobs.1.entry)
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.lifetime == .expires(after: .seconds(60)))
    #expect(entry.attributes["n"]?.string == "1")
  }

  @Test func aLargeBodyIsWholeForEveryWaiter() async throws {
    let piece = (0..<100_000).map { UInt8(truncatingIfNeeded: $0 &* 31) }
    let whole = Array(repeatElement(piece, count: 30).joined())
    let tasks = (0..<5).map { _ in
      Task {
        try await cache.fetch("k") { load in
          runs.add()
          for _ in 0..<30 { try await load.write(piece) }
          return .complete
        }
      }
    }
    for task in tasks {
      let blob = try await task.value
      #expect(blob.digest == BlobCache.Digest(hashing: whole))
      #expect(blob.count == whole.count)
      #expect(unsafe blob.withUnsafeBytes { unsafe $0.elementsEqual(whole) })
    }
    #expect(runs.value == 1)
    #expect(try cache.entry(for: "k")?.location == .file)
  }

  // MARK: - Errors

  @Test func aHundredWaitersOneFailingCallAHundredErrors() async throws {
    let door = Latch()
    let tasks = (0..<100).map { _ in
      Task {
        try await cache.fetch("k") { _ in
          let run = runs.add()
          try await door.wait()
          throw OriginDown(number: run)
        }
      }
    }
    await until { flights.waiterCount == 100 }
    door.open()
    for task in tasks { await #expect(throws: OriginDown(number: 1)) { try await task.value } }
    #expect(runs.value == 1)
    #expect(try cache.entry(for: "k") == nil, "an error is not stored")
    #expect(cache.statistics.failedLoads == 1)
    #expect(text(try await load("k", "again")) == "again")
  }

  @Test func aLoaderThatThrowsBeforeItsFirstAwaitFreesItsKey() async throws {
    for number in 0..<50 {
      await #expect(throws: OriginDown(number: number)) {
        try await cache.fetch("k") { _ in throw OriginDown(number: number) }
      }
    }
    #expect(text(try await load("k", "value")) == "value")
    #expect(flights.flightCount == 0)
  }

  @Test func aLoaderThatFailsHalfWayStoresNothing() async throws {
    await #expect(throws: OriginDown(number: 7)) {
      try await cache.fetch("k") { load in
        try await load.write([UInt8](repeating: 1, count: 1_000_000))
        throw OriginDown(number: 7)
      }
    }
    #expect(try cache.blob(for: "k") == nil)
  }

  @Test func whatCannotBeStoredIsHandedOver() async throws {
    var huge = BlobCache.Attributes()
    huge["a"] = BlobCache.AttributeValue([UInt8](repeating: 0, count: 70_000))
    let attributes = huge
    let blob = try await cache.fetch("k") { load in
      try await load.write("value".utf8)
      return .complete(attributes: attributes)
    }
    #expect(text(blob) == "value")
    guard case .loadedNotStored(let cause) = blob.source else {
      Issue.record("\(blob.source)")
      return
    }
    #expect(cause.code == .attributesTooLarge)
    await expect(.attributesTooLarge) {
      try await cache.fetch("k", attributes: attributes) { _ in
        Issue.record("a load that the caller's mistake makes useless")
        return .complete
      }
    }
  }

  @Test(arguments: [BlobCache.FetchPolicy.cacheFirst, .cacheOnly, .reload])
  func aKeyThatIsTooLong(policy: BlobCache.FetchPolicy) async throws {
    let key = BlobCache.Key([UInt8](repeating: 65, count: 65_537))
    await expect(.keyTooLong) {
      try await cache.fetch(key, policy: policy) { _ in
        Issue.record("the loader ran")
        return .complete
      }
    }
  }

  // MARK: - Cancellation

  @Test(arguments: [0, 1]) func oneOfTwoIsCancelled(which: Int) async throws {
    let door = Latch()
    let tasks = try await two(door)
    tasks[which].cancel()
    await #expect(throws: CancellationError.self) { try await tasks[which].value }
    door.open()
    #expect(text(try await tasks[1 - which].value) == "value")
    #expect(runs.value == 1)
    #expect(try cache.blob(for: "k") != nil)
  }

  @Test(arguments: [0, 1]) func oneIsCancelledAndTheLoaderFails(which: Int) async throws {
    let door = Latch()
    let tasks = try await two(door, error: OriginDown(number: 3))
    tasks[which].cancel()
    await #expect(throws: CancellationError.self) { try await tasks[which].value }
    door.open()
    await #expect(throws: OriginDown(number: 3)) { try await tasks[1 - which].value }
  }

  @Test func theLastOneOutCancelsTheLoader() async throws {
    let (began, ended) = (Latch(), Latch())
    let task = Task {
      try await cache.fetch("k") { load in
        began.open()
        defer { ended.open() }
        do {
          try await Latch().wait()
        } catch {
          runs.add()
        }
        do throws(BlobCache.Error) {
          try await load.write("late".utf8)
        } catch {
          #expect(error.code == .cancelled)
          runs.add()
        }
        return .complete
      }
    }
    try await began.wait()
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(text(try await load("k", "mine")) == "mine", "the key is free at once")
    try await ended.wait()
    await until { flights.flightCount == 0 }
    #expect(runs.value == 3, "cancelled, refused, and the second loader")
    #expect(text(try cache.blob(for: "k")) == "mine", "the cancelled load stored nothing")
  }

  @Test func whoComesAroundACancellationNeverGetsItsError() async throws {
    for _ in 0..<200 {
      let door = Latch()
      let first = await held(by: door, "k", "first")
      let second = Task { try await load("k", "second") }
      first.cancel()
      await #expect(throws: CancellationError.self) { try await first.value }
      door.open()
      // It came just before the cancellation and kept the flight alive, or after it.
      #expect(["first", "second"].contains(text(try await second.value)))
      try await cache.remove("k")
    }
  }

  @Test(arguments: 0..<10) func cancelAtEverySuspensionPoint(point: Int) async throws {
    // Alone: the load ends. With company: the other gets the value. A CheckedContinuation that is
    // resumed twice or never ends the process, or this test at its time limit.
    for others in [0, 1] {
      let key = BlobCache.Key("\(others)")
      let victim = Mutex<Task<BlobCache.Blob, any Error>?>(nil)
      let ready = Latch()
      let task = Task {
        try await ready.wait()
        return try await cache.fetch(key) { load in
          for step in 0..<10 {
            if step == 0 { await until { flights.waiterCount == 1 + others } }
            if step == point { victim.withLock { $0?.cancel() } }
            if step % 2 == 0 { try await load.write("x".utf8) } else { await Task.yield() }
          }
          return .complete
        }
      }
      victim.withLock { $0 = task }
      ready.open()
      if others == 1 {
        await until { flights.waiterCount == 1 }
        let other = try await load(key, "own")
        #expect(text(other) == "xxxxx")
      }
      await #expect(throws: CancellationError.self) { try await task.value }
      await until { flights.flightCount == 0 }
      #expect(text(try await load(key, "own")) == (others == 1 ? "xxxxx" : "own"))
    }
  }

  @Test func aCancelledTaskStillHits() async throws {
    _ = try await load("k", "value")
    let task = Task {
      withUnsafeCurrentTask { unsafe $0?.cancel() }
      return try await load("k", "other")
    }
    #expect(text(try await task.value) == "value")
  }

  // MARK: - Removal and reload during a flight

  enum Removal: CaseIterable { case one, all, prefix }

  @Test(arguments: Removal.allCases) func aRemovalDetaches(removal: Removal) async throws {
    let door = Latch()
    let first = await held(by: door, "key", "old")
    switch removal {
    case .one: try await cache.remove("key")
    case .all: try await cache.removeAll()
    case .prefix: _ = try await cache.removeAll(withPrefix: "ke")
    }
    #expect(text(try await load("key", "new")) == "new", "a later caller starts a new flight")
    door.open()
    let old = try await first.value
    #expect(text(old) == "old")
    expectNotStored(old, .superseded)
    #expect(text(try cache.blob(for: "key")) == "new")
  }

  @Test func aReloadSupersedes() async throws {
    let door = Latch()
    let first = await held(by: door, "k", "old")
    let newer = Latch()
    let second = Task {
      try await cache.fetch("k", policy: .reload) { load in
        try await newer.wait()
        try await load.write("new".utf8)
        return .complete
      }
    }
    await until { flights.waiterCount == 2 }
    let joiner = Task { try await load("k", "never") }
    await until { flights.waiterCount == 3 }
    door.open()
    let old = try await first.value
    #expect(text(old) == "old")
    expectNotStored(old, .superseded)
    #expect(try cache.blob(for: "k") == nil)
    newer.open()
    #expect(text(try await second.value) == "new")
    #expect(text(try await joiner.value) == "new")
    #expect(text(try cache.blob(for: "k")) == "new")
  }

  @Test func aReloadReplacesWhatIsThereAndKeepsItWhenItFails() async throws {
    _ = try await load("k", "one")
    await #expect(throws: OriginDown(number: 1)) {
      try await cache.fetch("k", policy: .reload) { load in
        #expect(text(load.previous) == "one")
        throw OriginDown(number: 1)
      }
    }
    #expect(text(try cache.blob(for: "k")) == "one")
    let blob = try await load("k", "two", policy: .reload)
    #expect(text(blob) == "two")
    #expect(blob.source == .loaded)
    #expect(text(try cache.blob(for: "k")) == "two")
  }

  @Test func previousStaysReadableAfterARemoval() async throws {
    let body = (0..<3_000_000).map { UInt8(truncatingIfNeeded: $0 &* 7) }
    try await cache.store(body, for: "k")
    let (began, door) = (Latch(), Latch())
    let task = Task {
      try await cache.fetch("k", policy: .reload) { load in
        began.open()
        try await door.wait()
        guard let previous = load.previous else { throw OriginDown(number: 0) }
        try await load.write(previous.data)
        return .complete
      }
    }
    try await began.wait()
    try await cache.remove("k")
    door.open()
    let blob = try await task.value
    #expect(blob.digest == BlobCache.Digest(hashing: body))
    expectNotStored(blob, .superseded)
  }

  // MARK: - Outcomes and policies

  @Test func cacheOnlyNeverLoads() async throws {
    let clock = BlobCache.ManualClock()
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    let never: @Sendable @concurrent (inout BlobCache.Load) async throws -> BlobCache.Outcome = {
      _ in
      Issue.record("the loader ran")
      return .complete
    }
    await expect(.notCached) { try await cache.fetch("k", policy: .cacheOnly, loader: never) }
    try await cache.store(
      Array("v".utf8), for: "k", lifetime: .expires(after: .seconds(20)))
    #expect(text(try await cache.fetch("k", policy: .cacheOnly, loader: never)) == "v")
    clock.advance(by: .seconds(21))
    await expect(.notCached) { try await cache.fetch("k", policy: .cacheOnly, loader: never) }
  }

  @Test func unchangedRenewsWhatIsThere() async throws {
    let clock = BlobCache.ManualClock()
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    let twenty = BlobCache.Lifetime.expires(after: .seconds(20))
    try await cache.store(
      Array("v".utf8), for: "k", lifetime: twenty, attributes: ["etag": "1"])
    clock.advance(by: .seconds(21))
    #expect(try cache.blob(for: "k") == nil)
    let blob = try await cache.fetch("k", lifetime: twenty) { load in
      #expect(load.previous?.entry.isExpired == true)
      #expect(load.previous?.attributes["etag"]?.string == "1")
      return .unchanged
    }
    #expect(text(blob) == "v")
    #expect(!blob.entry.isExpired)
    #expect(blob.source == .loaded)
    clock.advance(by: .seconds(19))
    let renewed = try #require(try cache.blob(for: "k"))
    #expect(renewed.attributes["etag"]?.string == "1", "attributes stay")
    clock.advance(by: .seconds(2))
    _ = try await cache.fetch("k") { _ in
      .unchanged(lifetime: .forever, attributes: ["etag": "2"])
    }
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.lifetime == .forever)
    #expect(entry.attributes["etag"]?.string == "2")
  }

  @Test func unchangedWithoutAnythingToKeepIsAMistake() async throws {
    await expect(.invalidArgument) { try await cache.fetch("k") { _ in .unchanged } }
    _ = try await load("k", "v")
    await expect(.invalidArgument) {
      try await cache.fetch("k", policy: .reload) { load in
        try await load.write("w".utf8)
        return .unchanged
      }
    }
    #expect(text(try cache.blob(for: "k")) == "v")
  }

  @Test(arguments: [10, 3_000_000])
  func unchangedStoresAgainWhatAnotherProcessRemoved(size: Int) async throws {
    let body = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 13) }
    try await cache.store(body, for: "k", attributes: ["a": "1"])
    let blob = try await cache.fetch("k", policy: .reload) { _ in
      try await removeBehindTheBack("k")
      #expect(try cache.entry(for: "k") == nil)
      return .unchanged
    }
    #expect(blob.source == .loaded)
    #expect(blob.digest == BlobCache.Digest(hashing: body))
    let again = try #require(try cache.blob(for: "k"))
    #expect(again.digest == blob.digest)
    #expect(again.attributes["a"]?.string == "1")
  }

  @Test func unchangedDoesNotUndoALaterStore() async throws {
    _ = try await load("k", "old")
    let blob = try await cache.fetch("k", policy: .reload) { _ in
      try await cache.store(Array("newer".utf8), for: "k")
      return .unchanged
    }
    #expect(text(blob) == "newer")
    #expect(text(try cache.blob(for: "k")) == "newer")
  }

  @Test func doNotStoreReachesTheWaitersOnly() async throws {
    let blob = try await cache.fetch("k") { load in
      try await load.write("private".utf8)
      return .doNotStore
    }
    #expect(text(blob) == "private")
    expectNotStored(blob, .declined)
    #expect(try cache.entry(for: "k") == nil)
    _ = try await load("k", "kept")
    _ = try await cache.fetch("k", policy: .reload) { _ in .doNotStore }
    #expect(text(try cache.blob(for: "k")) == "kept")
  }

  @Test func theLoaderMayKnowLifetimeAndAttributesBetter() async throws {
    _ = try await cache.fetch("k", lifetime: .forever, attributes: ["a": "1"]) { load in
      try await load.write("v".utf8)
      return .complete(lifetime: .sliding(.seconds(5)), attributes: ["b": "2"])
    }
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.lifetime == .sliding(.seconds(5)))
    #expect(entry.attributes["a"] == nil && entry.attributes["b"]?.string == "2")
  }

  @Test func aLoaderThatWritesNothingStoresAnEmptyBlob() async throws {
    let blob = try await cache.fetch("k") { _ in .complete }
    #expect(blob.count == 0 && blob.source == .loaded)
    #expect(try cache.blob(for: "k")?.count == 0)
  }

  // MARK: - Re-entrancy and closing

  @Test func aRingAcrossTwoCachesIsToldSoAndNotHung() async throws {
    let other = try BlobCache.temporary()
    let blob = try await cache.fetch("a") { load in
      let inner = try await other.fetch("b") { inner in
        do {
          _ = try await cache.fetch("a") { _ in .complete }
          Issue.record("no error")
        } catch let error as BlobCache.Error {
          #expect(error.code == .cycle)
        }
        try await inner.write("b".utf8)
        return .complete
      }
      try await load.write(inner.data)
      return .complete
    }
    #expect(text(blob) == "b")
  }

  @Test func aLoaderMayFetchOtherKeysAndWriteToTheCache() async throws {
    let blob = try await cache.fetch("index") { outer in
      try await cache.store(Array("side".utf8), for: "side")
      for key in ["p1", "p2", "p1"] {
        let part = try await load(BlobCache.Key(key), key)
        try await outer.write(part.data)
      }
      try await cache.remove("side")
      return .complete
    }
    #expect(text(blob) == "p1p2p1")
    #expect(blob.source == .loaded)
  }

  @Test func closingEndsTheLoad() async throws {
    let began = Latch()
    let task = Task {
      try await cache.fetch("k") { _ in
        began.open()
        try await Latch().wait()
        return .complete
      }
    }
    try await began.wait()
    try await cache.close()
    await expect(.closed) { try await task.value }
    await expect(.closed) { try await load("k", "v") }
    await expect(.closed) { try await load("k", "v", policy: .reload) }
    await until { flights.flightCount == 0 }
  }

  @Test func anotherInstanceGoesOnWithItsOwnLoader() async throws {
    let sibling = try BlobCache(directory: cache.directory)
    let began = Latch()
    let task = Task {
      try await cache.fetch("k") { _ in
        began.open()
        try await Latch().wait()
        return .complete
      }
    }
    try await began.wait()
    let theirs = Task {
      try await sibling.fetch("k") { load in
        try await load.write("theirs".utf8)
        return .complete
      }
    }
    await until { flights.waiterCount == 2 }
    try await cache.close()
    #expect(text(try await theirs.value) == "theirs")
    await expect(.closed) { try await task.value }
    try await sibling.close()
  }

  @Test func fromInsideAnActorAndOnTheMainActor() async throws {
    #expect(text(try await Client(cache: cache).get("k")) == "v1")
    #expect(text(try await onMain()) == "v1")
  }

  @Test func eventsTellOfLoadsAndFailures() async throws {
    let events = Mutex<[BlobCache.Event]>([])
    var configuration = BlobCache.Configuration()
    configuration.onEvent = { event in events.withLock { $0.append(event) } }
    let cache = try BlobCache.temporary(configuration: configuration)
    _ = try? await cache.fetch("k") { _ in throw OriginDown(number: 1) }  // the event tells of it
    _ = try await cache.fetch("k") { load in
      try await load.write("12345".utf8)
      return .complete
    }
    let seen = events.withLock { $0 }
    #expect(seen.map(\.kind) == [.loadFailed, .loaded])
    #expect(seen.first?.error as? OriginDown == OriginDown(number: 1))
    #expect(seen.last?.size == 5 && seen.last?.key == "k" && seen.last?.duration != nil)
  }

  // MARK: - Helpers

  private var flights: FlightTable<BlobCache.Blob> { cache.store.flights }

  private func load(
    _ key: BlobCache.Key, _ value: String, policy: BlobCache.FetchPolicy = .cacheFirst
  ) async throws -> BlobCache.Blob {
    try await cache.fetch(key, policy: policy) { load in
      runs.add()
      try await load.write(value.utf8)
      return .complete
    }
  }

  /// One who waits for a load that stands before a door.
  private func held(
    by door: Latch, _ key: BlobCache.Key, _ value: String
  ) async -> Task<BlobCache.Blob, any Error> {
    let task = Task {
      try await cache.fetch(key) { load in
        try await door.wait()
        try await load.write(value.utf8)
        return .complete
      }
    }
    await until { flights.waiterCount == 1 }
    return task
  }

  /// Two who wait for one load that stands before a door.
  private func two(
    _ door: Latch, error: OriginDown? = nil
  ) async throws -> [Task<BlobCache.Blob, any Error>] {
    var tasks: [Task<BlobCache.Blob, any Error>] = []
    for count in 1...2 {
      tasks.append(
        Task {
          try await cache.fetch("k") { load in
            runs.add()
            try await door.wait()
            if let error { throw error }
            try await load.write("value".utf8)
            return .complete
          }
        })
      await until { flights.waiterCount == count }
    }
    return tasks
  }

  /// As another process would: without a word to this one's flights.
  private func removeBehindTheBack(_ key: BlobCache.Key) async throws {
    let handle = cache.store.handle
    let write = try PreparedWrite.make(handle, "remove") { store, out in
      unsafe key.withUnsafeBytes { key in
        unsafe bcs_write_remove(store, key.baseAddress, key.count, &out)
      }
    }
    try await cache.store.queue.commit([#require(write)], inPlace: false)
  }

  @MainActor private func onMain() async throws -> BlobCache.Blob {
    try await cache.fetch("k") { _ in .doNotStore }
  }

  private func expect(
    _ code: BlobCache.Error.Code, sourceLocation: SourceLocation = #_sourceLocation,
    _ body: () async throws -> BlobCache.Blob
  ) async {
    do {
      let blob = try await body()
      Issue.record("no error, but \(blob.source)", sourceLocation: sourceLocation)
    } catch let error as BlobCache.Error {
      #expect(error.code == code, sourceLocation: sourceLocation)
    } catch {
      Issue.record(error, sourceLocation: sourceLocation)
    }
  }

  private func expectNotStored(
    _ blob: BlobCache.Blob, _ code: BlobCache.Error.Code,
    sourceLocation: SourceLocation = #_sourceLocation
  ) {
    if case .loadedNotStored(let cause) = blob.source {
      #expect(cause.code == code, sourceLocation: sourceLocation)
    } else {
      Issue.record("source is \(blob.source)", sourceLocation: sourceLocation)
    }
  }
}

private func text(_ blob: BlobCache.Blob?) -> String? {
  blob.map { String(decoding: $0.data, as: UTF8.self) }
}

private struct OriginDown: Error, Equatable { let number: Int }

private actor Client {
  let cache: BlobCache
  private var calls = 0

  init(cache: BlobCache) { self.cache = cache }

  func get(_ key: String) async throws -> BlobCache.Blob {
    calls += 1
    let value = "v\(calls)"
    return try await cache.fetch(key) { load in
      try await load.write(value.utf8)
      return .complete
    }
  }
}
