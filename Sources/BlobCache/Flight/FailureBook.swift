// What is remembered of loads that failed, as a value: times come with the calls, chance too.
//
// Two things hang on it. *Negative lifetimes*: for so long, a caller would rather hear of the old
// failure than have the origin asked again; the caller says for how long. *Back-off*: while there is a
// stale copy to give, a failing origin is asked less and less often.
//
// After the n-th failure in a row the next load waits 2^(n-1) s, at most 60 s, and up to half as long
// again by chance, so that processes and keys that failed together do not come back together. So of one
// key, whatever the number of callers, at most six loads begin in the first minute of a failing origin
// (at 0, 1, 3, 7, 15 and 31 s), and later at most one a minute. Ten minutes without a failure, or a load
// that succeeds, and it begins anew.
//
// It is bounded in number and bytes; what fails first is forgotten first. A forgotten failure means
// that the origin is asked once more than it had to be.

/// See the head of this file.
struct FailureBook<Key: Hashable & Sendable>: Sendable {
  struct Failure: Sendable {
    let cause: any Swift.Error
    /// How many in a row.
    let count: Int
    /// Milliseconds since 1970, as all times here.
    let at: Int64
    let retryAt: Int64
    /// Of the loader and not of the origin: it answers nobody in place of a load. Refreshes, which nobody asks
    /// for, back off all the same.
    let isMistake: Bool
    /// Whether it still answers callers with a negative lifetime.
    fileprivate(set) var isNegative: Bool
    fileprivate let serial: UInt64
  }

  static var countLimit: Int { 8_192 }
  static var byteLimit: Int { 4 << 20 }
  /// After so long without a failure the origin is trusted anew.
  static var memory: Int64 { 600_000 }

  private(set) var failures: [Key: Failure] = [:]
  /// Oldest first. Lines whose serial is not the failure's are dead.
  private var order: [(key: Key, serial: UInt64)] = []
  private var head = 0
  private var serial: UInt64 = 0
  private var bytes = 0
  private let size: @Sendable (Key) -> Int

  /// - Parameter size: how many bytes a key takes.
  init(size: @escaping @Sendable (Key) -> Int = { _ in 0 }) { self.size = size }

  var count: Int { failures.count }

  /// Milliseconds from the `count`-th failure in a row to the next load; `chance` is from 0 up to 1.
  static func delay(after count: Int, chance: Double) -> Int64 {
    let step: Int64 = min(1_000 << min(Int64(count) - 1, 6), 60_000)
    return step + Int64(Double(step) * chance / 2)
  }

  /// What a load of the key failed of, if that was less than `lifetime` milliseconds ago and nothing
  /// has ended it since.
  func negative(_ key: Key, lifetime: Int64, now: Int64) -> Failure? {
    guard lifetime > 0, let failure = failures[key], failure.isNegative else { return nil }
    // A failure in the future: the clock was set back, and nobody knows how old it is.
    guard now >= failure.at, now.clampedDifference(failure.at) < lifetime else { return nil }
    return failure
  }

  /// Whether the origin has to be left alone, while there is something else to give.
  ///
  /// - Parameter sparesMistakes: whether somebody is to hear of the loader's mistakes.
  func isBackingOff(_ key: Key, now: Int64, sparesMistakes: Bool = false) -> Bool {
    guard let failure = failures[key], !(sparesMistakes && failure.isMistake) else { return false }
    return now >= failure.at && now < failure.retryAt
  }

  mutating func record(
    _ key: Key, cause: any Swift.Error, now: Int64, chance: Double, isMistake: Bool = false
  ) {
    let old = failures[key]
    var count = 1
    if let old, now >= old.at, now.clampedDifference(old.at) < Self.memory { count = old.count + 1 }
    serial += 1
    failures[key] = Failure(
      cause: cause, count: count, at: now,
      retryAt: now.clampedSum(Self.delay(after: count, chance: chance)),
      isMistake: isMistake, isNegative: !isMistake, serial: serial)
    if old == nil { bytes += size(key) }
    order.append((key, serial))
    trim()
  }

  mutating func forget(_ key: Key) {
    if failures.removeValue(forKey: key) != nil { bytes -= size(key) }
  }

  /// A reload was asked for: who comes now wants the origin's word. The back-off goes on.
  mutating func endNegative(_ key: Key) { failures[key]?.isNegative = false }

  private mutating func trim() {
    while failures.count > Self.countLimit || bytes > Self.byteLimit, head < order.count {
      let oldest = order[head]
      head += 1
      if failures[oldest.key]?.serial == oldest.serial { forget(oldest.key) }
    }
    // Dead lines are swept away when they are more than the living.
    guard order.count > 2 * failures.count + 64 else { return }
    order = order[head...].filter { failures[$0.key]?.serial == $0.serial }
    head = 0
  }
}
