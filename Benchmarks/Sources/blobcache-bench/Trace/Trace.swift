import Foundation

/// Requests in order. Keys are renumbered from 0 in order of first use; a key keeps the size of its first request.
struct Trace: Sendable {
  let name: String
  private(set) var requests: [Int32] = []
  private(set) var sizes: [Int] = []
  /// The sum of `sizes`: what a cache that never evicts holds in the end.
  private(set) var footprint = 0

  private var numbers: [UInt64: Int32] = [:]

  init(name: String) { self.name = name }

  mutating func append(key: UInt64, size: Int) {
    var number = numbers[key]
    if number == nil {
      number = Int32(sizes.count)
      numbers[key] = number
      sizes.append(size)
      footprint += size
    }
    if let number { requests.append(number) }
  }

  /// Whether sizes differ from 1: capacities are then in bytes of payload, otherwise in entries.
  var isSized: Bool { footprint != sizes.count }

  func capacity(percent: Double) -> Int { max(1, Int(Double(footprint) * percent / 100)) }

  func prefix(_ count: Int) -> Trace {
    var trace = Trace(name: name)
    for key in requests.prefix(count) {
      trace.append(key: UInt64(key), size: sizes[Int(key)])
    }
    return trace
  }
}

// MARK: - Traces made on the spot

extension Trace {
  /// Zipf's law with exponent 0.9 over 20,000 keys; one request in five is for a key that never comes again.
  static func synthetic(requests: Int, sized: Bool) -> Trace {
    var trace = Trace(name: sized ? "zipf with one-hit keys and sizes" : "zipf with one-hit keys")
    var generator = SeededGenerator(9)
    var cumulative: [Double] = []
    var sum = 0.0
    for rank in 1...20_000 {
      sum += pow(Double(rank), -0.9)
      cumulative.append(sum)
    }
    for i in 0..<requests {
      var key = UInt64(1_000_000 + i)
      if Int.random(in: 0..<5, using: &generator) > 0 {
        key = UInt64(rank(of: Double.random(in: 0..<sum, using: &generator), in: cumulative))
      }
      trace.append(key: key, size: sized ? size(of: key) : 1)
    }
    return trace
  }

  /// The first place whose cumulative weight exceeds `weight`.
  private static func rank(of weight: Double, in cumulative: [Double]) -> Int {
    var (low, high) = (0, cumulative.count - 1)
    while low < high {
      let middle = (low + high) / 2
      if cumulative[middle] > weight { high = middle } else { low = middle + 1 }
    }
    return low
  }

  /// 128 bytes to 64 KiB, each octave as frequent as the next.
  private static func size(of key: UInt64) -> Int {
    var generator = SeededGenerator(key)
    return Int(exp2(Double.random(in: 7..<16, using: &generator)))
  }
}
