extension BlobCache {
  /// Where ``BlobCache/fetch(_:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)`` may take a
  /// blob from, and what it does when that is not to be had.
  ///
  /// One of ``cacheFirst``, ``cacheOnly`` and ``reload``, with any of the options after it:
  ///
  ///     policy: .staleWhileRevalidate(for: .seconds(60)).staleIfError(for: .seconds(3600))
  ///     policy: .reload.staleIfError()
  ///     policy: .cacheFirst.refreshingEarly().loadTimeLimit(.seconds(10))
  ///
  /// An option that stands first begins with ``cacheFirst``. A fetch with a span below zero, or a time limit
  /// that is not above it, throws ``Error/Code/invalidArgument``.
  public struct FetchPolicy: Hashable, Sendable {
    enum Form: Hashable, Sendable { case cacheFirst, cacheOnly, reload }
    let form: Form

    /// Milliseconds; -1: not asked for.
    private(set) var whileRevalidating: Int64 = -1
    private(set) var ifError: Int64 = -1
    /// XFetch's beta; 0: not asked for.
    private(set) var earliness = 0.0
    /// Milliseconds; -1: the configuration's.
    private(set) var negativeLifetime: Int64 = -1
    private(set) var timeLimit: Duration?
    /// An option that was given a span which cannot be meant, which its property then has.
    private(set) var flaw: Option?
    enum Option: Hashable, Sendable {
      case staleWhileRevalidate, staleIfError, rememberingFailures, loadTimeLimit
    }

    private init(form: Form) { self.form = form }

    /// The fresh entry if there is one, else the loader. The default.
    public static let cacheFirst = FetchPolicy(form: .cacheFirst)

    /// The fresh entry if there is one, else an error with code ``Error/Code/notCached``. The loader
    /// is never run and a load that others wait for is not waited for.
    ///
    /// With a stale option, an expired entry within its window is given in place of the error: the last
    /// good copy, when there is no network.
    public static let cacheOnly = FetchPolicy(form: .cacheOnly)

    /// The loader, whatever the cache holds; the entry, fresh or not, is the loader's
    /// ``Load/previous``.
    ///
    /// It never joins a load that began earlier, since that may have asked the origin too early. A
    /// load of the same key that is under way is superseded: its waiters get its result, marked
    /// ``Blob/Source-swift.enum/loadedNotStored(_:)``, and it is not stored. Whoever asks for the
    /// key from now on joins the reload.
    ///
    /// With ``staleIfError(for:)-swift.method``, the copy at hand, fresh or not, is given when the loader
    /// fails. ``staleWhileRevalidate(for:)-swift.method`` and early refresh change nothing.
    public static let reload = FetchPolicy(form: .reload)

    // MARK: Options

    /// ``cacheFirst`` with ``staleWhileRevalidate(for:)-swift.method``.
    public static func staleWhileRevalidate(for window: Duration? = nil) -> FetchPolicy {
      cacheFirst.staleWhileRevalidate(for: window)
    }

    /// An expired entry is given at once, with source ``Blob/Source-swift.enum/stale``, and one load of
    /// the key runs in the background, for those who come later.
    ///
    /// Nobody waits for that load. A failure of it goes to ``Configuration/onEvent``, and the next one
    /// waits longer: 1 s after the first failure in a row, then 2, 4, … up to 60 s, and each up to half as
    /// long again by chance. So at most six loads of a key begin in the first minute of a failing
    /// origin, and later one a minute, whatever the number of callers.
    ///
    /// - Parameter window: how long the entry may have been expired at most. Nil, the default: as long
    ///   as it is kept, which is ``Entry/staleWindow`` and limits every window.
    public func staleWhileRevalidate(for window: Duration? = nil) -> FetchPolicy {
      with {
        $0.whileRevalidating = Self.milliseconds(window)
        $0.note(.staleWhileRevalidate, window ?? .zero < .zero)
      }
    }

    /// ``cacheFirst`` with ``staleIfError(for:)-swift.method``.
    public static func staleIfError(for window: Duration? = nil) -> FetchPolicy {
      cacheFirst.staleIfError(for: window)
    }

    /// When the load fails, an expired entry is given in place of the error, with source
    /// ``Blob/Source-swift.enum/stale`` and the error as its ``Blob/staleCause``.
    ///
    /// A failing origin is then asked less and less often, as told at
    /// ``staleWhileRevalidate(for:)-swift.method``; in between, the copy is given at once, with the last
    /// error as its cause. Also errors of the cache count as failures of the load: a time limit, too many
    /// waiters, a remembered failure. Cancellation, a closed cache and mistakes of the loader do not.
    ///
    /// - Parameter window: how long the entry may have been expired at most. Nil, the default: as long
    ///   as it is kept, which is ``Entry/staleWindow`` and limits every window.
    public func staleIfError(for window: Duration? = nil) -> FetchPolicy {
      with {
        $0.ifError = Self.milliseconds(window)
        $0.note(.staleIfError, window ?? .zero < .zero)
      }
    }

    /// ``cacheFirst`` with ``refreshingEarly(beta:)-swift.method``.
    public static func refreshingEarly(beta: Double = 1) -> FetchPolicy {
      cacheFirst.refreshingEarly(beta: beta)
    }

    /// A fresh entry that expires soon is given, and may be loaded anew in the background, so that a key
    /// that is read often never expires under its readers.
    ///
    /// Each reader draws for itself (the XFetch rule of Vattani, Chierichetti and Lowenstein, 2015): it
    /// loads when less than `-d * beta * ln(random)` is left, where `d` is how long the last load of the key
    /// took in this process, or the longest load of all if that is not known. Before the first load of
    /// the process nothing is refreshed early. Entries that never expire and those that slide (but for
    /// their `atMost`) are left alone; failures are dealt with as at
    /// ``staleWhileRevalidate(for:)-swift.method``.
    ///
    /// - Parameter beta: above 1: earlier; below: later. What is not above zero turns it off. Default: 1.
    public func refreshingEarly(beta: Double = 1) -> FetchPolicy {
      with { $0.earliness = beta > 0 && beta.isFinite ? beta : 0 }
    }

    /// ``cacheFirst`` with ``rememberingFailures(for:)-swift.method``.
    public static func rememberingFailures(for span: Duration) -> FetchPolicy {
      cacheFirst.rememberingFailures(for: span)
    }

    /// Throws ``Error/Code/recentlyFailed`` when a load of the key failed less than this ago, in place of
    /// ``Configuration/negativeLifetime``. Zero: asks the origin.
    public func rememberingFailures(for span: Duration) -> FetchPolicy {
      with {
        $0.negativeLifetime = Self.milliseconds(span)
        $0.note(.rememberingFailures, span < .zero)
      }
    }

    /// ``cacheFirst`` with ``loadTimeLimit(_:)-swift.method``.
    public static func loadTimeLimit(_ limit: Duration) -> FetchPolicy {
      cacheFirst.loadTimeLimit(limit)
    }

    /// How long the loader may take, above zero, in place of ``Configuration/loadTimeLimit``. That of the
    /// call which starts the load holds for all who join.
    public func loadTimeLimit(_ limit: Duration) -> FetchPolicy {
      with {
        $0.timeLimit = limit
        $0.note(.loadTimeLimit, limit <= .zero)
      }
    }

    /// What is below zero stays so.
    private static func milliseconds(_ span: Duration?) -> Int64 {
      guard let span else { return .max }
      return span < .zero ? min(-1, span.milliseconds) : span.milliseconds
    }

    private mutating func note(_ option: Option, _ isFlawed: Bool) {
      if isFlawed { flaw = option } else if flaw == option { flaw = nil }
    }

    /// Throws for a span that cannot be meant.
    func check(_ operation: String) throws(BlobCache.Error) {
      guard let flaw else { return }
      let (name, span): (String, Duration) =
        switch flaw {
        case .staleWhileRevalidate:
          ("The policy's staleWhileRevalidate", .milliseconds(whileRevalidating))
        case .staleIfError: ("The policy's staleIfError", .milliseconds(ifError))
        case .rememberingFailures:
          ("The policy's rememberingFailures", .milliseconds(negativeLifetime))
        case .loadTimeLimit:
          throw BlobCache.Error(
            .invalidArgument, operation: operation,
            message: """
              The policy's loadTimeLimit (\(timeLimit ?? .zero)) is not above zero; give a span that \
              is, or leave the option out. Nothing was changed.
              """)
        }
      try span.checkNotNegative(name, operation)
    }

    private func with(_ change: (inout FetchPolicy) -> Void) -> FetchPolicy {
      var other = self
      change(&other)
      return other
    }

    /// The same, with a wait for the loader in place of a stale copy at once.
    var waiting: FetchPolicy { with { $0.whileRevalidating = -1 } }

    /// How long an entry may have been expired that is given without asking the loader; -1: not at all.
    var staleAtOnce: Int64 {
      switch form {
      case .cacheFirst: whileRevalidating
      case .cacheOnly: max(whileRevalidating, ifError)
      case .reload: -1
      }
    }
  }
}

extension BlobCache.FetchPolicy: CustomStringConvertible {
  /// The policy as it is written, such as `cacheFirst.staleIfError(for: 60.0 seconds)`.
  public var description: String {
    var text =
      switch form {
      case .cacheFirst: "cacheFirst"
      case .cacheOnly: "cacheOnly"
      case .reload: "reload"
      }
    func option(_ name: String, _ window: Int64) {
      guard window >= 0 else { return }
      text += window == .max ? ".\(name)()" : ".\(name)(for: \(Duration.milliseconds(window)))"
    }
    option("staleWhileRevalidate", whileRevalidating)
    option("staleIfError", ifError)
    if earliness > 0 { text += ".refreshingEarly(beta: \(earliness))" }
    option("rememberingFailures", negativeLifetime)
    if let timeLimit { text += ".loadTimeLimit(\(timeLimit))" }
    return text
  }
}
