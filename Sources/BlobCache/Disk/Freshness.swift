internal import CBlobStore

#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

/// What a write says about time: how long the entry is fresh, and for how long after that it is kept.
struct Freshness: Sendable {
  var lifetime: BlobCache.Lifetime
  /// Milliseconds; negative, for a renewal: as it was.
  var staleWindow: Int64
  /// The part of its span that this entry lives, above 0 and at most 1: see
  /// `Configuration.lifetimeJitter`.
  var share: Double = 1

  /// As a record keeps it.
  func stored(at now: Int64) -> bcs_lifetime { lifetime.stored(at: now, share: share) }

  /// What a loader said in place of it; nil: nothing.
  func replaced(
    lifetime: BlobCache.Lifetime?, staleWindow: Duration?
  ) -> Freshness {
    var other = self
    if let lifetime { other.lifetime = lifetime }
    if let staleWindow { other.staleWindow = max(0, staleWindow.milliseconds) }
    return other
  }
}

extension BlobCache.Lifetime {
  /// What a caller says must lie ahead of the clock: with a lifetime that is over, the new entry would be gone at once
  /// and the old one lost. (What a loader says is the origin's word, and taken as it is.)
  ///
  /// - Parameter now: asked for only where there is a moment to compare with it.
  func check(
    _ operation: String, now: @autoclosure () -> Int64, ofConfiguration: Bool = false
  ) throws(BlobCache.Error) {
    let name = ofConfiguration ? "The configuration's defaultLifetime" : "The lifetime"
    let problem: String
    switch form {
    case .forever: return
    case .span(let span):
      if span > 0 { return }
      problem = "is over as it begins; give a millisecond at least"
    case .sliding(let window, let most):
      if window > 0 && most ?? 1 > 0 { return }
      problem = "is over as it begins; give a millisecond at least"
    case .moment(let moment):
      let now = now()
      if moment > now { return }
      let shown = Date(millisecondsSince1970: now)
      problem = "is over already, since it is \(shown) by the clock; give a moment that lies ahead"
    case .noMoment:
      problem = "has no moment that a calendar knows; give one that lies ahead, or .forever"
    }
    throw BlobCache.Error(
      .invalidArgument, operation: operation,
      message: "\(name) (\(self)) \(problem). Nothing was changed.")
  }
}

extension Duration {
  /// A stale window, or what else may be zero, that a caller gave.
  func checkNotNegative(
    _ name: String, _ operation: String
  ) throws(BlobCache.Error) {
    if self >= .zero { return }
    throw BlobCache.Error(
      .invalidArgument, operation: operation,
      message: "\(name) (\(self)) is negative; zero is none. Nothing was changed.")
  }
}

extension BlobCache {
  /// Throws for what a caller said about time and cannot mean; nil is what it did not say.
  func checkFreshness(
    _ lifetime: Lifetime?, _ staleWindow: Duration?, _ operation: String
  ) throws(Error) {
    try lifetime?.check(operation, now: store.now)
    try staleWindow?.checkNotNegative("The stale window", operation)
  }

  /// The same with the configuration's word for what it did not say, once that is looked at, too.
  func checkedFreshness(
    _ lifetime: Lifetime?, _ staleWindow: Duration?, _ operation: String
  ) throws(Error) -> Freshness {
    try checkFreshness(lifetime, staleWindow, operation)
    if lifetime == nil {
      try configuration.defaultLifetime.check(operation, now: store.now, ofConfiguration: true)
    }
    return freshness(lifetime, staleWindow)
  }

  /// What a caller said, with the configuration's word for what it did not say.
  func freshness(_ lifetime: Lifetime?, _ staleWindow: Duration?) -> Freshness {
    let jitter = configuration.lifetimeJitter
    return Freshness(
      lifetime: lifetime ?? configuration.defaultLifetime,
      staleWindow: max(0, (staleWindow ?? configuration.defaultStaleWindow).milliseconds),
      share: jitter > 0 ? max(1 - jitter * store.clock.chance(), .leastNormalMagnitude) : 1)
  }
}
