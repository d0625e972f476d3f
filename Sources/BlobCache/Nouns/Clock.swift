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

    /// The machine's clock.
    public static let system = Clock()

    private init() { source = nil }

    /// A clock of your own, for tests; see ``ManualClock``. Called on every lookup, from any
    /// thread.
    public init(now: @escaping @Sendable () -> Date) { source = now }

    /// Milliseconds since 1970.
    var milliseconds: Int64 {
      if let source { return source().millisecondsSince1970 }
      return systemMilliseconds()
    }
  }

  /// A clock that stands still until it is moved: for tests of what expires.
  ///
  ///     let clock = BlobCache.ManualClock()
  ///     var configuration = BlobCache.Configuration()
  ///     configuration.clock = clock.clock
  ///     let cache = try BlobCache.temporary(configuration: configuration)
  ///     clock.advance(by: .seconds(20))
  public final class ManualClock: Sendable {
    private let time: Atomic<Int64>

    /// A clock that shows `now`; by default 14 November 2023, 22:13:20 UTC.
    public init(now: Date = Date(timeIntervalSince1970: 1_700_000_000)) {
      time = Atomic(now.millisecondsSince1970)
    }

    /// What the clock shows.
    public var now: Date { Date(millisecondsSince1970: time.load(ordering: .relaxed)) }

    /// Moves the clock, forwards or (a negative duration) backwards.
    public func advance(by duration: Duration) {
      time.wrappingAdd(duration.milliseconds, ordering: .relaxed)
    }

    /// Sets the clock.
    public func set(to date: Date) { time.store(date.millisecondsSince1970, ordering: .relaxed) }

    /// For ``Configuration/clock``.
    public var clock: Clock { Clock { self.now } }
  }
}
