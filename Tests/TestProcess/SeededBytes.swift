/// The bytes that a size and a seed stand for, so that two processes can agree on a body of any size
/// by two numbers. SplitMix64 (Steele, Lea, Flood 2014), little-endian words, cut to `count`.
func seededBytes(count: Int, seed: UInt64) -> [UInt8] {
  var state = seed
  var words = [UInt64](repeating: 0, count: (count + 7) / 8)
  for index in words.indices {
    words[index] = splitMix64(&state)
  }
  return words.withUnsafeBytes { bytes in Array(bytes.prefix(count)) }
}

/// One step of SplitMix64: the next number of a sequence that a seed begins.
func splitMix64(_ state: inout UInt64) -> UInt64 {
  state &+= 0x9E37_79B9_7F4A_7C15
  var word = state
  word = (word ^ (word >> 30)) &* 0xBF58_476D_1CE4_E5B9
  word = (word ^ (word >> 27)) &* 0x94D0_49BB_1331_11EB
  return word ^ (word >> 31)
}

/// A repeatable generator for tests; the seed is in the failure message, so a run can be had again.
struct SeededGenerator: RandomNumberGenerator {
  var state: UInt64
  init(seed: UInt64) { state = seed }
  mutating func next() -> UInt64 { splitMix64(&state) }
}
