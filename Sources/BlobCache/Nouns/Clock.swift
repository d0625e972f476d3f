internal import Synchronization

#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// Where a cache takes the time from. All lifetimes are reckoned by it, in milliseconds.
  public struct Clock: Sendable {
    private let source: (@Sendable () -> Date)?
    /// Whoever wakes those who wait, when it is not the machine.
    private let alarm: Alarm?
    /// In place of the system's random numbers, for tests: from 0 up to, not including, 1.
    package var dice: (@Sendable () -> Double)?

    /// The machine's clock.
    public static let system = Clock()

    private init() {
      source = nil
      alarm = nil
    }

    /// A clock of your own, for tests; see ``ManualClock``. Called on every lookup, from any
    /// thread. Where the cache waits (a loader's time limit), it looks at the clock from time to time, a
    /// second apart at most.
    public init(now: @escaping @Sendable () -> Date) {
      source = now
      alarm = nil
    }

    fileprivate init(now: @escaping @Sendable () -> Date, alarm: Alarm) {
      source = now
      self.alarm = alarm
    }

    /// Milliseconds since 1970.
    var milliseconds: Int64 {
      if let source { return source().millisecondsSince1970 }
      return systemMilliseconds()
    }

    /// For measuring spans: time since some moment. That of the machine is never set back.
    var reading: Duration {
      if let source { return .milliseconds(source().millisecondsSince1970) }
      return ContinuousClock.now - Self.origin
    }

    private static let origin = ContinuousClock.now

    /// Waits for a ``reading``. Throws `CancellationError` when the task is cancelled meanwhile.
    func sleep(until reading: Duration) async throws {
      if let alarm { return try await alarm.wait(until: reading.milliseconds) }
      if source == nil {
        return try await Task.sleep(until: Self.origin + reading, clock: .continuous)
      }
      // Nobody tells when a foreign clock is moved.
      while case let left = reading - self.reading, left > .zero {
        try await Task.sleep(for: min(left, .seconds(1)))
      }
    }

    /// A random number from 0 up to, not including, 1.
    func chance() -> Double { dice?() ?? .random(in: 0..<1) }
  }

  /// A clock that stands still until it is moved: for tests of what expires.
  ///
  ///     let clock = BlobCache.ManualClock()
  ///     var configuration = BlobCache.Configuration()
  ///     configuration.clock = clock.clock
  ///     let cache = try BlobCache.temporary(configuration: configuration)
  ///     clock.advance(by: .seconds(20))
  public final class ManualClock: Sendable {
    private let alarm: Alarm

    /// A clock that shows `now`; by default 14 November 2023, 22:13:20 UTC.
    public init(now: Date = Date(timeIntervalSince1970: 1_700_000_000)) {
      alarm = Alarm(now.millisecondsSince1970)
    }

    /// What the clock shows.
    public var now: Date { Date(millisecondsSince1970: alarm.now) }

    /// Moves the clock, forwards or (a negative duration) backwards, up to the ends of the 64 bits of its
    /// milliseconds. Time limits that so come to their end do so.
    public func advance(by duration: Duration) {
      alarm.move { $0.clampedSum(duration.milliseconds) }
    }

    /// Sets the clock; otherwise as ``advance(by:)``.
    public func set(to date: Date) { alarm.move { _ in date.millisecondsSince1970 } }

    /// For ``Configuration/clock``.
    public var clock: Clock { Clock(now: { self.now }, alarm: alarm) }
  }
}

/// A time in milliseconds, and those who wait for it to come.
private final class Alarm: Sendable {
  private struct Sleeper {
    let deadline: Int64
    let continuation: CheckedContinuation<Void, any Swift.Error>
  }

  /// What lies beyond the end of the clock's time does not come, though the clock may stand there.
  private static func isDue(_ deadline: Int64, at now: Int64) -> Bool {
    deadline <= now && deadline < .max
  }

  private struct State {
    var last: UInt64 = 0
    var sleepers: [UInt64: Sleeper] = [:]
  }

  private let time: Atomic<Int64>
  private let state = Mutex(State())

  init(_ now: Int64) { time = Atomic(now) }

  var now: Int64 { time.load(ordering: .relaxed) }

  func move(_ change: (Int64) -> Int64) {
    // Under the lock, so that whoever looks at the time under it and then waits misses no move.
    let due = state.withLock { state in
      let now = change(time.load(ordering: .relaxed))
      time.store(now, ordering: .relaxed)
      let due = state.sleepers.filter { Self.isDue($0.value.deadline, at: now) }
      for id in due.keys { state.sleepers[id] = nil }
      return due.values
    }
    for sleeper in due { sleeper.continuation.resume() }
  }

  func wait(until deadline: Int64) async throws {
    let id = state.withLock { state in
      state.last += 1
      return state.last
    }
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let answer: Result<Void, any Swift.Error>? = state.withLock { state in
          if Task.isCancelled { return .failure(CancellationError()) }
          if Self.isDue(deadline, at: time.load(ordering: .relaxed)) { return .success(()) }
          state.sleepers[id] = Sleeper(deadline: deadline, continuation: continuation)
          return nil
        }
        if let answer { continuation.resume(with: answer) }
      }
    } onCancel: {
      let sleeper = state.withLock { $0.sleepers.removeValue(forKey: id) }
      sleeper?.continuation.resume(throwing: CancellationError())
    }
  }
}
