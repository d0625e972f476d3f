// What `fetch` throws, and the causes of what it could not store.

extension BlobCache.Error {
  static let notCached = Self(
    .notCached, operation: "fetch",
    message: """
      The key is not in the cache, or is expired, and `.cacheOnly` runs no loader. Use `.cacheFirst` \
      to load it.
      """)

  static let notToBeStored = Self(
    .declined, operation: "fetch", message: "The loader chose not to store its result.")

  static let nothingToKeep = Self(
    .invalidArgument, operation: "fetch",
    message: """
      The loader returned `.unchanged`, but `load.previous` is nil: there is nothing to keep. \
      Write the bytes and return `.complete`.
      """)

  static let unchangedButWritten = Self(
    .invalidArgument, operation: "fetch",
    message: """
      The loader wrote bytes and returned `.unchanged`. Return `.complete` to store them, or write \
      nothing.
      """)

  /// Of the loader, or of whoever closed or cancelled: it tells nothing of the origin, so no stale copy
  /// stands in for it and no negative lifetime repeats it.
  var isMistake: Bool {
    [.cancelled, .closed, .forked, .cycle, .invalidArgument, .keyTooLong].contains(code)
  }

  static func barred(_ bar: FlightBar) -> Self {
    switch bar {
    case .superseded:
      Self(
        .superseded, operation: "fetch",
        message: "A `.reload` of the key began later; what it brings is stored instead.")
    case .detached:
      Self(
        .superseded, operation: "fetch", message: "The key was removed while it was being loaded.")
    case .cancelled:
      .cancelled("fetch")
    case .timedOut:
      .loadTimedOut
    }
  }

  static let loadTimedOut = Self(
    .loadTimedOut, operation: "fetch",
    message: """
      The loader did not end within its time limit, and was cancelled. Try again later, or give it \
      more time with `loadTimeLimit`.
      """)

  static let tooManyWaiters = Self(
    .tooManyWaiters, operation: "fetch",
    message: """
      As many fetches as `maximumWaiters` allows wait for this key already. Try again later.
      """)

  static func recentlyFailed(_ cause: any Swift.Error) -> Self {
    Self(
      .recentlyFailed, operation: "fetch",
      message: """
        A load of the key failed a short while ago, and the origin was not asked again. Wait for the \
        end of `negativeLifetime`, or use `.reload`.
        """,
      cause: "\(cause)")
  }

  static let closedDuringFetch = closed("fetch")

  static let fetchCycle = Self(
    .cycle, operation: "fetch",
    message: """
      The loader that makes this call would wait for its own result. Let it load what it needs \
      without asking the cache for it.
      """)
}
