#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// How long an entry is fresh. An expired entry is a miss.
  ///
  /// Times are kept in whole milliseconds, rounded down. A span or a moment beyond the 64 bits of them
  /// (292 million years) is drawn to their end and means never: ``Entry/expiresAt`` is then nil.
  public struct Lifetime: Hashable, Sendable {
    package enum Form: Hashable, Sendable {
      case forever
      case span(milliseconds: Int64)
      case moment(Int64)
      case sliding(window: Int64, atMost: Int64?)
    }

    package let form: Form

    /// Fresh until removed.
    public static let forever = Lifetime(form: .forever)

    /// Fresh for this long after it is stored; zero or less: expired at once.
    public static func expires(after span: Duration) -> Lifetime {
      Lifetime(form: .span(milliseconds: max(0, span.milliseconds)))
    }

    /// Fresh until this moment.
    public static func expires(at moment: Date) -> Lifetime {
      Lifetime(form: .moment(moment.millisecondsSince1970))
    }

    /// Fresh for `window` after it was stored or last read, by any process.
    ///
    /// - Parameters:
    ///   - window: how long an entry lives without being read.
    ///   - atMost: the longest that reads can keep it, counted from when it was stored; nil: no
    ///     limit.
    public static func sliding(_ window: Duration, atMost: Duration? = nil) -> Lifetime {
      Lifetime(
        form: .sliding(
          window: max(0, window.milliseconds), atMost: atMost.map { max(0, $0.milliseconds) }))
    }
  }
}

extension BlobCache.Lifetime: CustomStringConvertible {
  /// The lifetime in words, such as `expires after 20.0 seconds`.
  public var description: String {
    switch form {
    case .forever: "forever"
    case .span(let span): "expires after \(Duration.milliseconds(span))"
    case .moment(let moment): "expires at \(Date(millisecondsSince1970: moment))"
    case .sliding(let window, nil): "sliding \(Duration.milliseconds(window))"
    case .sliding(let window, let most?):
      "sliding \(Duration.milliseconds(window)), at most \(Duration.milliseconds(most))"
    }
  }
}

extension Duration {
  /// Whole milliseconds, rounded down, at the ends of Int64 where it does not fit.
  var milliseconds: Int64 {
    let (seconds, attoseconds) = components
    let (product, overflow) = seconds.multipliedReportingOverflow(by: 1000)
    guard !overflow else { return seconds < 0 ? .min : .max }
    let (sum, overflow2) = product.addingReportingOverflow(attoseconds / 1_000_000_000_000_000)
    return overflow2 ? (seconds < 0 ? .min : .max) : sum
  }
}

extension Date {
  /// Milliseconds since 1970, at the ends of Int64 where it does not fit (and 0 for a date that is
  /// not a number).
  var millisecondsSince1970: Int64 {
    let value = (timeIntervalSince1970 * 1000).rounded(.down)
    if value.isNaN { return 0 }
    return Int64(exactly: value) ?? (value < 0 ? .min : .max)
  }

  init(millisecondsSince1970 milliseconds: Int64) {
    self.init(timeIntervalSince1970: Double(milliseconds) / 1000)
  }
}
