import CBlobStore
import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 2 for the processes of a machine: with `loadsOncePerMachine`, a missing key is loaded once among all of
/// them; who dies or stands still in a load is replaced; nobody else's cancellation or end is felt; nothing is left.
@Suite("2. One load per machine", .serialized, .timeLimit(.minutes(5)))
struct OneLoadPerMachineTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }
  private var log: LoadLog { LoadLog(path: directory.path("loads")) }
  /// Bodies are larger than what stands in the index, so that there are staging files.
  private let size = 600_000

  private func digest(seed: UInt64) -> String {
    BlobCache.Digest(hashing: seededBytes(count: size, seed: seed)).hex
  }

  private func herd(_ seed: Int, tasks: Int = 1, how: String = "") -> String {
    "herd key \(size) \(seed) \(tasks) \(log.path) \(how)"
  }

  private func loads(_ count: Int) async throws {
    try await eventually("\(count) loads have begun") { log.count == count }
  }

  /// Waits until so many processes have asked for a lease, those that hold one among them: each then has a number, and
  /// a lock that tells its signs of life. Who waits gives that back now and then, and takes it again.
  private func processesMeet(_ count: Int) async throws {
    let locks = try LeaseLocks(of: path)
    var numbers: Set<Int> = []
    try await eventually("\(count) processes ask for leases") {
      for sign in try locks.signsOfLife() { numbers.insert(sign.number) }
      return numbers.count >= count
    }
  }

  private func shared(
    leaseTime: Duration = .seconds(30), maximumLoads: Int? = nil
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.maximumConcurrentLoads = maximumLoads
    configuration.loadsOncePerMachine = true
    configuration.leaseTime = leaseTime
    return try BlobCache(directory: path, configuration: configuration)
  }

  /// No lock of a lease is held by anybody, seen from a description of its own.
  private func nothingIsHeld() async throws {
    let locks = try LeaseLocks(of: path)
    try await eventually("no lease is held") { try locks.first(from: 6, count: 0) == nil }
  }

  // MARK: - One load

  @Test func eightProcessesOfAHundredTasksLoadOnce() async throws {
    var processes: [SecondProcess] = []
    for _ in 0..<8 { processes.append(try await .over(path, "once")) }
    for (index, process) in processes.enumerated() {
      try process.send(herd(index, tasks: 100))
    }
    try await loads(1)
    try await processesMeet(8)
    try log.open()
    var answers: Set<String> = []
    for process in processes { answers.insert(try await process.nextLine()) }
    #expect(log.count == 1)
    #expect(answers.count == 1, "all got the same bytes")
    try await nothingIsHeld()
    for process in processes { try await process.end() }
    #expect(try await structureOf(path) == "ok")
  }

  /// One that takes longer than the lease time, but gives signs.
  @Test func aSlowLoaderIsWaitedFor() async throws {
    let slow = try await SecondProcess.over(path, "once lease=1")
    let other = try await SecondProcess.over(path, "once lease=1")
    try slow.send(herd(1))
    try await loads(1)
    try other.send(herd(2))
    let locks = try LeaseLocks(of: path)
    try await eventually("there were signs of life for twice the lease time") {
      try locks.signsOfLife().contains { $0.beats > 8 }
    }
    #expect(log.count == 1)
    try log.open()
    #expect(try await slow.nextLine() == "ok \(digest(seed: 1))")
    #expect(try await other.nextLine() == "ok \(digest(seed: 1))")
    #expect(log.count == 1)
  }

  @Test func withoutTheSettingEachProcessLoads() async throws {
    let one = try await SecondProcess.over(path)
    let two = try await SecondProcess.over(path, "once")
    try two.send(herd(2))
    try await loads(1)
    try one.send(herd(1))
    try await loads(2)
    try log.open()
    #expect(try await one.nextLine().hasPrefix("ok"))
    #expect(try await two.nextLine().hasPrefix("ok"))
  }

  /// Its error is its own; the next one asks the origin, once.
  @Test func whenALoadFailsTheNextProcessLoads() async throws {
    let failing = try await SecondProcess.over(path, "once")
    let others = try await [SecondProcess.over(path, "once"), SecondProcess.over(path, "once")]
    try failing.send(herd(1, tasks: 10, how: "fail"))
    try await loads(1)
    for other in others { try other.send(herd(2, tasks: 10)) }
    try await processesMeet(3)
    try log.open()
    #expect(try await failing.nextLine().hasPrefix("error other"))
    for other in others { #expect(try await other.nextLine() == "ok \(digest(seed: 2))") }
    #expect(log.count == 2)
    try await nothingIsHeld()
  }

  // MARK: - Holders that die or stand still

  @Test func whoIsKilledInALoadIsReplacedAtOnce() async throws {
    let cache = try shared()
    let killed = try await SecondProcess.over(path, "once")
    let other = try await SecondProcess.over(path, "once")
    try killed.send(herd(1, tasks: 10))
    try await loads(1)
    try other.send(herd(2, tasks: 10))
    try await processesMeet(2)
    #expect(log.count == 1)
    let start = ContinuousClock.now
    killed.kill()
    try await loads(2)
    #expect(ContinuousClock.now - start < .seconds(10), "not the lease time")
    try log.open()
    #expect(try await other.nextLine() == "ok \(digest(seed: 2))")
    #expect(log.count == 2)
    // What the dead one had staged goes with the next sweep.
    _ = try await cache.sweep()
    let debris = CacheFolder(path).files(in: "staging").filter { $0.contains(".\(killed.pid).") }
    #expect(debris == [])
    try await cache.close()
    try await nothingIsHeld()
    try await other.end()
    #expect(try await structureOf(path) == "ok")
  }

  /// Of those who wait, one loads in its place; what it brings itself when it goes on is older and is dropped.
  @Test func whoIsStoppedInALoadIsPassedBy() async throws {
    let stopped = try await SecondProcess.over(path, "once lease=1")
    let others = try await [
      SecondProcess.over(path, "once lease=1"), SecondProcess.over(path, "once lease=1"),
    ]
    try stopped.send(herd(1))
    try await loads(1)
    kill(stopped.pid, SIGSTOP)
    let start = ContinuousClock.now
    for other in others { try other.send(herd(2, tasks: 10)) }
    try await loads(2)
    #expect(ContinuousClock.now - start < .seconds(10))
    try await processesMeet(3)
    try log.open()
    for other in others { #expect(try await other.nextLine() == "ok \(digest(seed: 2))") }
    #expect(log.count == 2)
    kill(stopped.pid, SIGCONT)
    #expect(try await stopped.nextLine() == "ok \(digest(seed: 2))")
    #expect(try await others[0].call("get key").hasPrefix("hit \(size) \(digest(seed: 2))"))
    #expect(log.count == 2)
    try await nothingIsHeld()
    try await stopped.end()
    for other in others { try await other.end() }
    #expect(try await structureOf(path) == "ok")
  }

  /// Each loader holds a lease and wants the other's: one gives up after the lease time.
  @Test func loadersOfTwoProcessesDoNotWaitForEachOtherForEver() async throws {
    let one = try await SecondProcess.over(path, "once lease=1")
    let two = try await SecondProcess.over(path, "once lease=1")
    try one.send("nest a b \(log.path)")
    try two.send("nest b a \(log.path)")
    try await loads(2)
    try log.open()
    #expect(try await one.nextLine() == "ok")
    #expect(try await two.nextLine() == "ok")
    try await nothingIsHeld()
  }

  // MARK: - Those who wait

  @Test func cancellationWhileWaitingTouchesNobodyElse() async throws {
    let cache = try shared()
    let holder = try await SecondProcess.over(path, "once")
    try holder.send(herd(1))
    try await loads(1)
    let fetch = { @Sendable () async throws -> BlobCache.Blob in
      try await cache.fetch("key") { _ in
        Issue.record("the other process loads")
        return .complete
      }
    }
    let (cancelled, stays) = (Task { try await fetch() }, Task { try await fetch() })
    try await eventually("both wait") { cache.store.flights.waiterCount == 2 }
    try await processesMeet(2)
    cancelled.cancel()
    await #expect(throws: CancellationError.self) { try await cancelled.value }
    // The last one that leaves ends the flight.
    let alone = Task { try await cache.fetch("other") { _ in .complete } }
    _ = try await alone.value
    #expect(cache.store.flights.waiterCount == 1)
    try log.open()
    #expect(try await stays.value.digest.hex == digest(seed: 1))
    #expect(try await holder.nextLine() == "ok \(digest(seed: 1))")
    #expect(log.count == 1)
    #expect(cache.statistics.loads == 1, "that of the other key")
    try await cache.close()
  }

  @Test func theLastWhoLeavesEndsTheWait() async throws {
    let cache = try shared()
    let holder = try await SecondProcess.over(path, "once")
    try holder.send(herd(1))
    try await loads(1)
    let waiting = Task { try await cache.fetch("key") { _ in .complete } }
    try await eventually("it waits") { cache.store.flights.waiterCount == 1 }
    try await processesMeet(2)
    waiting.cancel()
    await #expect(throws: CancellationError.self) { try await waiting.value }
    try await eventually("the flight ends") { cache.store.flights.flightCount == 0 }
    #expect(cache.statistics.loads == 0)
    try log.open()
    #expect(try await holder.nextLine() == "ok \(digest(seed: 1))")
    try await cache.close()
  }

  @Test func closeEndsTheWait() async throws {
    let cache = try shared()
    let holder = try await SecondProcess.over(path, "once")
    try holder.send(herd(1))
    try await loads(1)
    let waiting = Task { try await cache.fetch("key") { _ in .complete } }
    try await eventually("it waits") { cache.store.flights.waiterCount == 1 }
    try await processesMeet(2)
    let start = ContinuousClock.now
    try await cache.close()
    #expect(ContinuousClock.now - start < .seconds(10))
    let error = try await errorOf { _ = try await waiting.value }
    #expect(error.code == .closed)
    try log.open()
    #expect(try await holder.nextLine() == "ok \(digest(seed: 1))")
    #expect(log.count == 1)
  }

  /// A loader that ignores its cancellation keeps the key from nobody.
  @Test func aCancelledLoadGivesTheLeaseUp() async throws {
    let cache = try shared()
    let other = try await SecondProcess.over(path, "once")
    let (door, runs) = (Latch(), Tally())
    let deserted = Task {
      try await cache.fetch("key") { _ in
        runs.add()
        await door.waitStubbornly()
        return .doNotStore
      }
    }
    await until { runs.value == 1 }
    try other.send(herd(2))
    try await processesMeet(2)
    #expect(log.count == 0)
    deserted.cancel()
    try await loads(1)
    try log.open()
    #expect(try await other.nextLine() == "ok \(digest(seed: 2))")
    door.open()
    _ = await deserted.result
    try await cache.close()
  }

  /// With one permit, whoever waits for another process lends it, and has it again when it loads.
  @Test func whoWaitsForAnotherProcessLendsItsPermit() async throws {
    let cache = try shared(maximumLoads: 1)
    let holder = try await SecondProcess.over(path, "once")
    try holder.send(herd(1))
    try await loads(1)
    let running = Tally()
    let waiting = Task {
      try await cache.fetch("key") { load in
        #expect(running.add() == 2, "after the other key")
        try await load.write("here".utf8)
        return .complete
      }
    }
    try await eventually("it waits") { cache.store.flights.waiterCount == 1 }
    try await processesMeet(2)
    _ = try await cache.fetch("other") { _ in
      running.add()
      return .complete
    }
    holder.kill()
    #expect(try await waiting.value.count == 4)
    #expect(cache.store.flights.flightCount == 0)
    try await cache.close()
  }

  // MARK: - Policies

  @Test func reloadWaitsForNoOtherProcess() async throws {
    let cache = try shared()
    let holder = try await SecondProcess.over(path, "once")
    try holder.send(herd(1))
    try await loads(1)
    let blob = try await cache.fetch("key", policy: .reload) { load in
      try await load.write("reloaded".utf8)
      return .complete
    }
    #expect(blob.count == 8)
    try log.open()
    #expect(try await holder.nextLine().hasPrefix("ok"))
    try await cache.close()
  }

  @Test func staleCopiesAreRenewedByOneProcess() async throws {
    let old = BlobCache.Digest(hashing: Array("old".utf8)).hex
    let processes = try await [SecondProcess.over(path, "once"), SecondProcess.over(path, "once")]
    let cache = try shared()
    try await cache.store("old".utf8, for: "key", lifetime: .expires(after: .milliseconds(1)))
    try await eventually("it expires") { try cache.blob(for: "key") == nil }
    for process in processes { try process.send(herd(1, tasks: 50, how: "stale")) }
    for process in processes { #expect(try await process.nextLine() == "ok \(old)") }
    try await loads(1)
    try await processesMeet(2)
    #expect(log.count == 1)
    try log.open()
    try await eventually("the new one comes") { try cache.blob(for: "key") != nil }
    #expect(try cache.blob(for: "key")?.digest.hex == digest(seed: 1))
    try await nothingIsHeld()
    #expect(log.count == 1)
    try await cache.close()
  }

  /// Shorter than four signs of life.
  @Test func badInputIsRefused() async throws {
    let error = try await errorOf { _ = try shared(leaseTime: .milliseconds(999)) }
    #expect(error.code == .invalidArgument)
    #expect(error.message.contains("leaseTime"))
  }
}
