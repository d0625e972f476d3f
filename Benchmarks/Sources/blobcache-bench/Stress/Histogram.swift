/// Latencies in nanoseconds, in buckets a sixteenth of a power of two wide: 6 % resolution, at most 1,024 counters.
struct Histogram: Codable {
  private var counts: [Int: Int] = [:]
  private(set) var total = 0

  mutating func add(_ nanoseconds: Int) {
    counts[Self.bucket(max(nanoseconds, 16)), default: 0] += 1
    total += 1
  }

  mutating func add(_ other: Histogram) {
    counts.merge(other.counts, uniquingKeysWith: +)
    total += other.total
  }

  /// The upper edge of the bucket that holds the quantile, in nanoseconds; nil when nothing was counted.
  func quantile(_ q: Double) -> Double? {
    var left = Int((Double(total) * q).rounded(.up))
    for (bucket, count) in counts.sorted(by: { $0.key < $1.key }) {
      left -= count
      if left <= 0 { return Double((17 + bucket % 16)) * Double(1 << (bucket / 16)) }
    }
    return nil
  }

  /// 16 × the exponent above 4, plus the four bits below the highest.
  private static func bucket(_ value: Int) -> Int {
    let shift = Int.bitWidth - 1 - value.leadingZeroBitCount - 4
    return shift * 16 + (value >> shift) - 16
  }
}
