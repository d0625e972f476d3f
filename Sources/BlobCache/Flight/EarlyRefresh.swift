internal import Synchronization

// Early refresh: a hot key that is loaded anew before it expires, so that nobody ever waits for it.
//
// The rule is XFetch (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede
// Prevention, PVLDB 8(8), 2015): each reader draws for itself, and loads when
//
//     now - delta * beta * ln(rand()) >= expiry
//
// where delta is how long a load takes. The exponential distribution makes the moment of the first early
// load independent of how many readers there are in a way that no fixed margin is: a key that is read
// a thousand times a second is refreshed a few deltas before its end, a key that is read once a minute
// hardly ever early. A larger beta refreshes earlier; 1 is the optimum of the paper.

/// The rule, and how long loads take.
enum EarlyRefresh {
  /// How long before its expiry an entry is to be loaded anew: a draw.
  ///
  /// - Parameter chance: from 0 up to, not including, 1.
  static func margin(loadTime: Double, beta: Double, chance: Double) -> Double {
    // 1 - chance, since the logarithm of 0 is no number.
    -loadTime * beta * naturalLogarithm(1 - chance)
  }
}

/// How long loads took, in milliseconds: of the keys that were loaded last, and the longest of all.
///
/// Bounded: two generations of at most 4,096 keys. When the younger one is full it becomes the older
/// one, and what is asked for again is kept.
final class LoadTimes: Sendable {
  private struct State: Sendable {
    var young: [BlobCache.Key: Double] = [:]
    var old: [BlobCache.Key: Double] = [:]
  }

  static let limit = 4_096
  /// Longer keys are not worth their space: they are taken to be as slow as the slowest.
  static let longestKey = 1_024

  private let state = Mutex(State())
  private let slowest = Atomic<Int>(0)

  /// No load took longer; for a quick look without a lock.
  var longest: Int { slowest.load(ordering: .relaxed) }

  func note(_ key: BlobCache.Key, _ span: Duration) {
    let time = Double(max(0, span.milliseconds))
    slowest.max(Int(min(time, 1e9).rounded(.up)), ordering: .relaxed)
    guard key.byteCount <= Self.longestKey else { return }
    state.withLock { state in
      state.young[key] = time
      guard state.young.count >= Self.limit else { return }
      state.old = state.young
      state.young = [:]
    }
  }

  /// Nil: not known in this process.
  func of(_ key: BlobCache.Key) -> Double? {
    state.withLock { $0.young[key] ?? $0.old[key] }
  }
}
