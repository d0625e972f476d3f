#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// How long an entry is fresh. An expired entry is a miss.
  ///
  /// Times are kept in whole milliseconds, rounded down. A span or a date beyond the 64 bits of them
  /// (292 million years) is drawn to their end and means never: ``Entry/expiresAt`` is then nil.
  ///
  /// One that is over already, being zero, negative, a moment that the clock has reached, or no moment at all
  /// (an infinite date, or one that is not a number), is refused by whatever takes it:
  /// ``Error/Code/invalidArgument``, and what is stored stays as it is. Only a loader may say so, in its
  /// ``Outcome``: the blob is then given, and stored as expired.
  public struct Lifetime: Hashable, Sendable {
    package enum Form: Hashable, Sendable {
      case forever
      case span(milliseconds: Int64)
      case moment(Int64)
      /// Seconds since 1970, as bits: a date that is infinite or not a number.
      case noMoment(UInt64)
      case sliding(window: Int64, atMost: Int64?)
    }

    package let form: Form

    /// Fresh until removed.
    public static let forever = Lifetime(form: .forever)

    /// Fresh for this long after it is stored: a millisecond at least.
    public static func expires(after span: Duration) -> Lifetime {
      Lifetime(form: .span(milliseconds: span.milliseconds))
    }

    /// Fresh until this moment, which lies ahead.
    public static func expires(at moment: Date) -> Lifetime {
      guard moment.timeIntervalSince1970.isFinite else {
        return Lifetime(form: .noMoment(moment.timeIntervalSince1970.bitPattern))
      }
      return Lifetime(form: .moment(moment.millisecondsSince1970))
    }

    /// Fresh for `window` after it was stored or last read, by any process.
    ///
    /// - Parameters:
    ///   - window: how long an entry lives without being read: a millisecond at least.
    ///   - atMost: the longest that reads can keep it, counted from when it was stored, a millisecond at
    ///     least; nil: no limit.
    public static func sliding(_ window: Duration, atMost: Duration? = nil) -> Lifetime {
      Lifetime(
        form: .sliding(window: window.milliseconds, atMost: atMost?.milliseconds))
    }
  }
}

extension BlobCache.Lifetime: CustomStringConvertible {
  /// The lifetime in words, such as `expires after 20.0 seconds`.
  public var description: String {
    switch form {
    case .forever: "forever"
    case .span(let span): "expires after \(Duration.milliseconds(span))"
    case .moment(.max): "expires at a date too far away to come"
    case .moment(let moment): "expires at \(Date(millisecondsSince1970: moment))"
    case .noMoment(let bits): "expires at \(Double(bitPattern: bits)) s after 1970"
    case .sliding(let window, nil): "sliding \(Duration.milliseconds(window))"
    case .sliding(let window, let most?):
      "sliding \(Duration.milliseconds(window)), at most \(Duration.milliseconds(most))"
    }
  }
}

extension Duration {
  /// As long as anything waits: a hundred years.
  static let longestWait = Duration.seconds(100 * 365 * 86_400)

  /// A span that somebody gave, as it is added to a clock's reading, multiplied or slept through:
  /// where that would leave the range of a clock or of `Duration`, nobody sees a difference.
  var asWait: Duration { max(.zero, min(self, .longestWait)) }

  /// Whole milliseconds, rounded down, at the ends of Int64 where it does not fit.
  var milliseconds: Int64 {
    // A Duration has more seconds than `components` can tell.
    if self >= .seconds(Int64.max) { return .max }
    if self <= .seconds(Int64.min) { return .min }
    let (seconds, attoseconds) = components
    let (product, overflow) = seconds.multipliedReportingOverflow(by: 1000)
    guard !overflow else { return seconds < 0 ? .min : .max }
    let (sum, overflow2) = product.addingReportingOverflow(attoseconds / 1_000_000_000_000_000)
    return overflow2 ? (seconds < 0 ? .min : .max) : sum
  }
}

extension Int64 {
  /// Without overflow: the ends of Int64 stand for "ever".
  func clampedSum(_ other: Int64) -> Int64 {
    let (sum, overflow) = addingReportingOverflow(other)
    return overflow ? (other < 0 ? .min : .max) : sum
  }

  /// The same of a difference.
  func clampedDifference(_ other: Int64) -> Int64 {
    let (difference, overflow) = subtractingReportingOverflow(other)
    return overflow ? (other < 0 ? .max : .min) : difference
  }
}

extension Date {
  /// Milliseconds since 1970, at the ends of Int64 where it does not fit (and 0 for a date that is
  /// not a number).
  var millisecondsSince1970: Int64 {
    if timeIntervalSince1970.isNaN { return 0 }
    return exactMilliseconds ?? (timeIntervalSince1970 < 0 ? .min : .max)
  }

  /// The same; nil where it does not fit.
  var exactMilliseconds: Int64? { Int64(exactly: (timeIntervalSince1970 * 1000).rounded(.down)) }

  init(millisecondsSince1970 milliseconds: Int64) {
    self.init(timeIntervalSince1970: Double(milliseconds) / 1000)
  }
}
