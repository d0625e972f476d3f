/// How long one flight waits for another process that loads its key: a value without clock or lock.
///
/// The holder of a lease gives signs of life. While it does, it is waited for, however long its
/// loader takes: that is what single flight means, and the loader's time limit is its bound. A holder
/// that stands still (stopped, swapped out, in a debugger) is passed by after `patience`: whoever waits
/// takes the lease at the next level, one gets it, and the others wait for that one. Above the last
/// level everybody loads for himself. A holder that died needs no decision: its lease is free.
///
/// A flight that a loader waits for waits for `patience` at most, signs or not. Otherwise two
/// processes could wait for each other for ever: here the loader of A, which holds the lease of A, for
/// B, there the loader of B for A. No process sees that ring; so nobody who holds something waits
/// without an end.
struct LeaseWatch: Sendable {
  enum Decision: Equatable, Sendable {
    /// Look again after a pause.
    case wait
    /// Try the next level at once.
    case passBy
    /// Load without a lease.
    case goOn
  }

  private static let longestPause = Duration.milliseconds(100)

  let patience: Duration
  private(set) var level = 0
  private var last: Leases.Holder?
  private var silence = Duration.zero
  private var waitedAsNested = Duration.zero
  private var basePause = Duration.milliseconds(5)

  init(patience: Duration) { self.patience = patience }

  /// - Parameters:
  ///   - elapsed: since the last look. More than two pauses count as two: it is then this process
  ///     that stood still.
  ///   - isNested: whether a loader of this process waits for the flight.
  mutating func see(
    _ holder: Leases.Holder, after elapsed: Duration, isNested: Bool
  ) -> Decision {
    let time = min(elapsed, basePause * 2)
    waitedAsNested = isNested ? waitedAsNested + time : .zero
    if waitedAsNested >= patience { return .goOn }
    silence = holder == last ? silence + time : .zero
    last = holder
    guard silence >= patience else { return .wait }
    (level, last, silence) = (level + 1, nil, .zero)
    return level < Leases.levels ? .passBy : .goOn
  }

  /// How long to wait before the next look: longer and longer, so that a short load is seen at its end
  /// and a long one costs ten looks a second.
  ///
  /// - Parameter chance: from 0 up to 1, so that processes do not look in step.
  mutating func pause(chance: Double) -> Duration {
    basePause = min(basePause * 1.5, Self.longestPause)
    return basePause * (0.75 + chance / 2)
  }
}
