import Foundation
import Synchronization
import Testing

@testable import BlobCache

/// Promise 2 under pressure: loaders that hang, callers without number, loaders that fetch; nothing is
/// kept busy for longer than was said, and everybody is answered once.
@Suite(.serialized, .timeLimit(.minutes(5))) struct LoadBoundsTests {
  let clock = BlobCache.ManualClock()
  let runs = Tally()

  private func open(
    _ change: (inout BlobCache.Configuration) -> Void = { _ in }
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.sweepInterval = nil
    change(&configuration)
    return try BlobCache.temporary(configuration: configuration)
  }

  // MARK: Time limits

  @Test func aHungLoaderKeepsNothingBusy() async throws {
    let events = Collected<BlobCache.Event>()
    let cache = try open {
      $0.loadTimeLimit = .seconds(10)
      $0.onEvent = { events.append($0) }
    }
    let (began, stubborn, told) = (Latch(), Latch(), Tally())
    let tasks = (0..<10).map { _ in
      Task {
        try await cache.fetch("k") { load in
          began.open()
          await stubborn.waitStubbornly()
          if Task.isCancelled { told.add() }
          // What it brings later is dropped, even where it does not notice that it was cancelled.
          return .complete
        }
      }
    }
    try await began.wait()
    await until { cache.store.flights.waiterCount == 10 }
    clock.advance(by: .milliseconds(9_999))
    #expect(cache.store.flights.waiterCount == 10)
    clock.advance(by: .milliseconds(1))
    for task in tasks {
      #expect(try await errorOf { _ = try await task.value }.code == .loadTimedOut)
    }
    #expect(events.elements.map(\.kind) == [.loadFailed])
    #expect((events.elements[0].error as? BlobCache.Error)?.code == .loadTimedOut)
    #expect(events.elements[0].duration == .seconds(10))
    #expect(cache.statistics.failedLoads == 1)
    // The key is free while the old loader still hangs.
    let fresh = try await cache.fetch("k") { load in
      try await load.write("fresh".utf8)
      return .complete
    }
    #expect(text(fresh) == "fresh")
    stubborn.open()
    await until { cache.store.flights.flightCount == 0 }
    #expect(told.value == 1)
    #expect(text(try cache.blob(for: "k")) == "fresh")
    #expect(events.elements.map(\.kind) == [.loadFailed, .loaded])
  }

  @Test func aLimitForOneFetchAndAStaleCopy() async throws {
    let cache = try open()
    try await cache.store("old".utf8, for: "k", lifetime: .expires(after: .seconds(1)))
    clock.advance(by: .seconds(2))
    let began = Latch()
    let task = Task {
      try await cache.fetch("k", policy: .loadTimeLimit(.seconds(3)).staleIfError()) { _ in
        began.open()
        try await Latch().wait()
        return .complete
      }
    }
    try await began.wait()
    clock.advance(by: .seconds(3))
    let blob = try await task.value
    #expect(text(blob) == "old" && blob.source == .stale)
    #expect((blob.staleCause as? BlobCache.Error)?.code == .loadTimedOut)
  }

  @Test func aLoaderInTimeIsLeftAlone() async throws {
    let cache = try open { $0.loadTimeLimit = .seconds(10) }
    for round in 0..<100 {
      let blob = try await cache.fetch(.init("\(round)")) { load in
        clock.advance(by: .seconds(9))
        try await load.write("x".utf8)
        return .complete
      }
      #expect(blob.source == .loaded)
    }
  }

  @Test func theMachinesClockLimitsToo() async throws {
    let cache = try open {
      $0.clock = .system
      $0.loadTimeLimit = .milliseconds(20)
    }
    let stubborn = Latch()
    let error = try await errorOf {
      _ = try await cache.fetch("k") { _ in
        await stubborn.waitStubbornly()
        return .complete
      }
    }
    #expect(error.code == .loadTimedOut)
    stubborn.open()
    await until { cache.store.flights.flightCount == 0 }
  }

  // MARK: Waiters

  @Test func theWaiterCapSaysSoAtOnce() async throws {
    let cache = try open { $0.maximumWaiters = 5 }
    let door = Latch()
    let tasks = (0..<5).map { _ in
      Task {
        try await cache.fetch("k") { load in
          runs.add()
          try await door.wait()
          return .complete
        }
      }
    }
    await until { cache.store.flights.waiterCount == 5 }
    for _ in 0..<100 {
      let error = try await errorOf { _ = try await cache.fetch("k") { _ in .complete } }
      #expect(error.code == .tooManyWaiters)
    }
    _ = try await cache.fetch("other") { _ in .complete }
    tasks[0].cancel()
    await #expect(throws: CancellationError.self) { try await tasks[0].value }
    let sixth = Task { try await cache.fetch("k") { _ in .complete } }
    await until { cache.store.flights.waiterCount == 5 }
    door.open()
    for task in tasks.dropFirst() { _ = try await task.value }
    _ = try await sixth.value
    #expect(runs.value == 1)
  }

  // MARK: Concurrent loads

  @Test func noMoreLoadersRunThanAllowed() async throws {
    let cache = try open { $0.maximumConcurrentLoads = 4 }
    let crowd = Crowd()
    try await withThrowingTaskGroup(of: Void.self) { group in
      for number in 0..<500 {
        group.addTask {
          _ = try await cache.fetch(.init("\(number)")) { load in
            crowd.enter()
            for _ in 0..<number % 7 { await Task.yield() }
            try await load.write("\(number)".utf8)
            crowd.leave()
            return .complete
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(crowd.most <= 4)
    #expect(cache.statistics.loads == 500)
    #expect(cache.store.flights.flightCount == 0)
  }

  @Test(arguments: [1, 2, 3]) func loadersThatFetchDoNotBlockOneAnother(maximum: Int) async throws {
    let cache = try open { $0.maximumConcurrentLoads = maximum }
    let other = try open { $0.maximumConcurrentLoads = maximum }
    // Each key's loader fetches two more, alternately from the other cache, some of them shared.
    @Sendable func get(_ depth: Int, _ number: Int) async throws -> BlobCache.Blob {
      let from = (depth + number) % 2 == 0 ? cache : other
      return try await from.fetch(.init("\(depth)/\(number)")) { load in
        runs.add()
        if depth < 3 {
          async let left = get(depth + 1, number)
          async let right = get(depth + 1, (number + 1) % 10)
          for blob in try await [left, right] { try await load.write(blob.data) }
        } else {
          await Task.yield()
          try await load.write("x".utf8)
        }
        return .complete
      }
    }
    try await withThrowingTaskGroup(of: Int.self) { group in
      for number in 0..<10 { group.addTask { try await get(0, number).count } }
      for try await count in group { #expect(count == 8) }
    }
    #expect(cache.store.flights.flightCount == 0 && other.store.flights.flightCount == 0)
  }

  @Test func whoLeavesTheLineLeavesItToOthers() async throws {
    let cache = try open { $0.maximumConcurrentLoads = 1 }
    let door = Latch()
    let first = Task {
      try await cache.fetch("first") { _ in
        try await door.wait()
        return .complete
      }
    }
    await until { door.waiterCount == 1 }
    let waiting = (0..<1_000).map { number in
      Task {
        try await cache.fetch(.init("\(number)")) { _ in
          runs.add()
          return .complete
        }
      }
    }
    await until { cache.store.flights.waiterCount == 1_001 }
    for task in waiting.dropLast() { task.cancel() }
    for task in waiting.dropLast() {
      await #expect(throws: CancellationError.self) { try await task.value }
    }
    door.open()
    _ = try await first.value
    _ = try await waiting.last?.value
    #expect(runs.value == 1)
    await until { cache.store.flights.flightCount == 0 }
  }

  @Test func timeInTheLineIsNotTheLoaders() async throws {
    let cache = try open {
      $0.maximumConcurrentLoads = 1
      $0.loadTimeLimit = .seconds(10)
    }
    let door = Latch()
    let first = Task {
      try await cache.fetch("first", policy: .loadTimeLimit(.seconds(1_000))) { _ in
        try await door.wait()
        return .complete
      }
    }
    await until { door.waiterCount == 1 }
    let second = Task { try await cache.fetch("second") { _ in .complete } }
    await until { cache.store.flights.flightCount == 2 }
    clock.advance(by: .seconds(100))
    door.open()
    _ = try await first.value
    _ = try await second.value
  }

  // MARK: fetchAll

  @Test func resultsComeInTheOrderOfCompletion() async throws {
    let cache = try open()
    let doors = (0..<4).map { _ in Latch() }
    let keys = (0..<4).map { BlobCache.Key("\($0)") }
    var order: [BlobCache.Key] = []
    doors[2].open()
    for await (key, result) in cache.fetchAll(
      keys,
      loader: { load in
        guard let number = load.key.string.flatMap(Int.init) else { throw Trouble() }
        try await doors[number].wait()
        if number == 3 { throw Trouble() }
        try await load.write("\(number)".utf8)
        return .complete
      })
    {
      order.append(key)
      switch result {
      case .success(let blob): #expect(text(blob) == key.string)
      case .failure(let error): #expect(error is Trouble && key == "3")
      }
      if key == "2" { doors[0].open() }
      if key == "0" { doors[3].open() }
      if key == "3" { doors[1].open() }
    }
    #expect(order == ["2", "0", "3", "1"])
  }

  @Test(arguments: [-1, 1, 3, 100]) func fetchAllIsBounded(concurrency: Int) async throws {
    let cache = try open()
    let crowd = Crowd()
    var count = 0
    for await (_, result) in cache.fetchAll(
      (0..<50).map { "\($0)" }, concurrency: concurrency,
      loader: { load in
        crowd.enter()
        await Task.yield()
        crowd.leave()
        return .complete
      })
    {
      _ = try result.get()
      count += 1
    }
    #expect(count == 50)
    #expect(crowd.most <= max(1, concurrency))
    var none = 0
    for await _ in cache.fetchAll([] as [BlobCache.Key], loader: { _ in .complete }) { none += 1 }
    #expect(none == 0)
  }

  @Test func whatNobodyTakesHoldsTheRestBack() async throws {
    let cache = try open()
    var iterator = cache.fetchAll(
      (0..<100).map { "\($0)" }, concurrency: 2,
      loader: { _ in
        runs.add()
        return .complete
      }
    ).makeAsyncIterator()
    _ = await iterator.next()
    await until { runs.value >= 3 }
    for _ in 0..<1_000 { await Task.yield() }
    #expect(runs.value == 3)
  }

  @Test func abandonedItCancelsTheRest() async throws {
    let cache = try open()
    let (door, cancelled) = (Latch(), Tally())
    for await (key, _) in cache.fetchAll(
      (0..<100).map { "\($0)" }, concurrency: 4,
      loader: { load in
        runs.add()
        if load.key == "0" {
          await until { runs.value >= 4 }
          return .complete
        }
        do {
          try await door.wait()
        } catch {
          cancelled.add()
          throw error
        }
        return .complete
      })
    {
      #expect(key == "0")
      break
    }
    await until { cache.store.flights.flightCount == 0 }
    #expect(cancelled.value >= 3)
    #expect(runs.value <= 5)
  }

  @Test func cancelledItEnds() async throws {
    let cache = try open()
    let task = Task {
      var count = 0
      for await _ in cache.fetchAll(
        ["a", "b"],
        loader: { _ in
          runs.add()
          try await Latch().wait()
          return .complete
        })
      { count += 1 }
      return count
    }
    await until { runs.value == 2 }
    task.cancel()
    #expect(await task.value == 0)
    await until { cache.store.flights.flightCount == 0 }
  }

  // MARK: Storms

  /// 10,000 tasks over stale, failing, hanging and vanishing keys, a third of them cancelled at some
  /// moment. A continuation that is lost ends at the time limit, one that is resumed twice ends the
  /// process (onevcat/Kingfisher#2391).
  @Test(arguments: [nil, 3]) func tenThousandTasksOfAllKinds(maximum: Int?) async throws {
    let cache = try open {
      $0.maximumConcurrentLoads = maximum
      $0.maximumWaiters = 400
      $0.loadTimeLimit = .seconds(5)
      $0.negativeLifetime = .milliseconds(500)
      $0.defaultLifetime = .expires(after: .seconds(2))
      $0.defaultStaleWindow = .seconds(20)
    }
    let answers = Tally()
    let policies: [BlobCache.FetchPolicy] = [
      .cacheFirst, .staleWhileRevalidate(), .staleIfError(), .reload,
      .staleWhileRevalidate(for: .seconds(1)).staleIfError().refreshingEarly(),
      .reload.staleIfError(), .rememberingFailures(for: .zero), .cacheOnly.staleIfError(),
    ]
    await withTaskGroup(of: Void.self) { group in
      for number in 0..<10_000 {
        let dice = Int(UInt64(number) &* 0x9E37_79B9_7F4A_7C15 >> 40)
        group.addTask {
          let task = Task {
            try await cache.fetch(.init("\(dice % 23)"), policy: policies[dice % policies.count]) {
              load in
              for _ in 0..<dice % 13 { await Task.yield() }
              if dice % 5 == 0 { throw Trouble() }
              // Hangs until the clock has gone on, heeding nothing.
              if dice % 97 == 0 {
                let end = clock.clock.reading + .seconds(6)
                _ = await Task.detached { try await clock.clock.sleep(until: end) }.result
              }
              if dice % 7 == 0 { _ = try await cache.fetch("inner") { _ in .complete } }
              try await load.write("x".utf8)
              return .complete
            }
          }
          for _ in 0..<dice % 17 { await Task.yield() }
          if dice % 3 == 0 { task.cancel() }
          if dice % 101 == 0 { _ = try? await cache.remove(.init("\(dice % 23)")) }  // a storm
          _ = await task.result
          answers.add()
        }
      }
      group.addTask {
        while answers.value < 10_000 {
          await Task.yield()
          clock.advance(by: .milliseconds(10))
        }
      }
    }
    #expect(answers.value == 10_000)
    while cache.store.flights.flightCount > 0 {
      clock.advance(by: .seconds(1))
      await Task.yield()
    }
    #expect(cache.store.flights.waiterCount == 0)
    try await cache.close()
  }

  /// Cancelled at each of some hundred moments of each policy's way, alone and in company.
  @Test(arguments: 0..<3) func cancelAtEverySuspensionPoint(kind: Int) async throws {
    let cache = try open {
      $0.maximumConcurrentLoads = 2
      $0.loadTimeLimit = .seconds(1_000)
    }
    let policy: BlobCache.FetchPolicy =
      [.staleIfError(), .staleWhileRevalidate().staleIfError(), .reload.staleIfError()][kind]
    for moment in 0..<100 {
      let key = BlobCache.Key("\(moment)")
      try await cache.store("old".utf8, for: key, lifetime: .expires(after: .milliseconds(1)))
      clock.advance(by: .milliseconds(1))
      let victim = Task {
        try await cache.fetch(key, policy: policy) { load in
          _ = try await cache.fetch("inner/\(moment)") { _ in .complete }
          try await load.write("new".utf8)
          return .complete
        }
      }
      let other = Task {
        try await cache.fetch(key, policy: policy) { load in
          try await load.write("new".utf8)
          return .complete
        }
      }
      for _ in 0..<moment { await Task.yield() }
      victim.cancel()
      do {
        #expect(["old", "new"].contains(text(try await victim.value)))
      } catch {
        #expect(error is CancellationError)
      }
      #expect(["old", "new"].contains(text(try await other.value)))
    }
    await until { cache.store.flights.flightCount == 0 }
  }

  // MARK: Misuse

  @Test func configurationsThatMeanNothing() async throws {
    let changes: [(name: String, value: String, (inout BlobCache.Configuration) -> Void)] = [
      ("defaultStaleWindow", "-1.0 s", { $0.defaultStaleWindow = .seconds(-1) }),
      ("lifetimeJitter", "-0.1", { $0.lifetimeJitter = -0.1 }),
      ("lifetimeJitter", "1.1", { $0.lifetimeJitter = 1.1 }),
      ("lifetimeJitter", "nan", { $0.lifetimeJitter = .nan }),
      ("negativeLifetime", "-1.0 s", { $0.negativeLifetime = .seconds(-1) }),
      ("loadTimeLimit", "0.0 s", { $0.loadTimeLimit = .zero }),
      ("loadTimeLimit", "-2.0 s", { $0.loadTimeLimit = .seconds(-2) }),
      ("leaseTime", "0.999 s", { $0.leaseTime = .milliseconds(999) }),
      ("leaseTime", "-9.0 s", { $0.leaseTime = .seconds(-9) }),
      ("sweepInterval", "0.0 s", { $0.sweepInterval = .zero }),
      ("maximumWaiters", "0", { $0.maximumWaiters = 0 }),
      ("maximumConcurrentLoads", "0", { $0.maximumConcurrentLoads = 0 }),
    ]
    for (name, value, change) in changes {
      let error = try await errorOf { _ = try open(change) }
      #expect(error.code == .invalidArgument, "\(name)")
      #expect(error.message.contains(name), "\(error)")
      #expect("\(error)".contains("\(value)"), "\(error)")
    }
  }

  private struct Trouble: Error {}
}

/// Counts how many are inside at once.
private final class Crowd: Sendable {
  private let inside = Atomic(0)
  private let record = Atomic(0)
  var most: Int { record.load(ordering: .sequentiallyConsistent) }

  func enter() {
    let now = inside.add(1, ordering: .sequentiallyConsistent).newValue
    record.max(now, ordering: .sequentiallyConsistent)
  }

  func leave() { inside.subtract(1, ordering: .sequentiallyConsistent) }
}

private func text(_ blob: BlobCache.Blob?) -> String? {
  blob.map { String(decoding: $0.data, as: UTF8.self) }
}
