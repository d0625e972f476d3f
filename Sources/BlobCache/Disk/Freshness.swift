internal import CBlobStore

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

extension BlobCache {
  /// What a caller said, with the configuration's word for what it did not say.
  func freshness(_ lifetime: Lifetime?, _ staleWindow: Duration?) -> Freshness {
    let jitter = configuration.lifetimeJitter
    return Freshness(
      lifetime: lifetime ?? configuration.defaultLifetime,
      staleWindow: max(0, (staleWindow ?? configuration.defaultStaleWindow).milliseconds),
      share: jitter > 0 ? max(1 - jitter * store.clock.chance(), .leastNormalMagnitude) : 1)
  }
}
