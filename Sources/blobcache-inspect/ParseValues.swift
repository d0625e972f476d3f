internal import BlobCache

#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

/// A word that is a key where only a key makes sense.
func parseKey(_ word: [UInt8]) throws(UsageError) -> BlobCache.Key {
  guard !word.starts(with: digestPrefix) else {
    throw UsageError("a key is needed here; one that begins with sha256: goes after --key")
  }
  return try checkedKey(word)
}

/// Any bytes that a key may have.
func checkedKey(_ word: [UInt8]) throws(UsageError) -> BlobCache.Key {
  guard word.count <= BlobCache.Key.maximumByteCount else {
    throw UsageError("a key has at most \(grouped(BlobCache.Key.maximumByteCount)) bytes")
  }
  return BlobCache.Key(word)
}

/// A key that no argument can hold, such as one with a NUL byte, as base64 (RFC 4648, section 4).
func parseBase64Key(_ word: [UInt8]) throws(UsageError) -> BlobCache.Key {
  guard let bytes = Data(base64Encoded: Data(word)) else {
    throw UsageError("--key-base64 takes base64 with its padding, not \(quoted(word))")
  }
  return try checkedKey([UInt8](bytes))
}

/// Tags are text.
func parseTag(_ word: [UInt8]) throws(UsageError) -> String {
  guard let tag = String(validating: word, as: UTF8.self) else {
    throw UsageError("--tag takes UTF-8, not \(quoted(word))")
  }
  return tag
}

/// A key, or `sha256:` and a digest.
func parseSubject(_ word: [UInt8]) throws(UsageError) -> Subject {
  guard word.starts(with: digestPrefix) else { return .key(try checkedKey(word)) }
  return .digest(try parseDigest(Array(word.dropFirst(digestPrefix.count))))
}

private let digestPrefix = Array("sha256:".utf8)

/// A digest with or without `sha256:` before it.
func parseDigest(_ word: [UInt8]) throws(UsageError) -> BlobCache.Digest {
  let digits = word.starts(with: digestPrefix) ? word.dropFirst(digestPrefix.count) : word[...]
  do {
    return try BlobCache.Digest(hex: String(decoding: digits, as: UTF8.self))
  } catch {
    throw UsageError(
      "a digest is 64 hexadecimal digits; a key that begins with sha256: goes after --key")
  }
}

func parseSort(_ word: [UInt8]) throws(UsageError) -> ListCommand.Sort {
  guard let sort = ListCommand.Sort(rawValue: String(decoding: word, as: UTF8.self)) else {
    let names = ListCommand.Sort.allCases.map(\.rawValue).joined(separator: ", ")
    throw UsageError("--sort takes one of \(names), not \(quoted(word))")
  }
  return sort
}

func parseCount(_ word: [UInt8], for option: Option) throws(UsageError) -> Int {
  guard word.allSatisfy(isDigit), let count = Int(String(decoding: word, as: UTF8.self)), count > 0
  else { throw UsageError("\(option) takes a number from 1 up, not \(quoted(word))") }
  return count
}

/// A size as people write it: `1048576`, `500MB`, `10GiB`, `1.5 TiB`, in either case. kB, MB … are powers of 1,000, KiB,
/// MiB … of 1,024, and so are the bare letters, as for dd(1) and du(1).
func parseSize(_ word: [UInt8], for option: Option) throws(UsageError) -> Int {
  let wrong = UsageError(
    "\(option) takes a size such as 10GiB, 500MB or 1048576, not \(quoted(word))")
  let number = word.prefix { isDigit($0) || $0 == UInt8(ascii: ".") }
  var unit = word.dropFirst(number.count)
  if unit.first == UInt8(ascii: " ") && unit.count > 1 { unit = unit.dropFirst() }
  guard let bytes = bytes(in: String(decoding: unit, as: UTF8.self).lowercased()),
    let first = number.first, let last = number.last, isDigit(first), isDigit(last)
  else { throw wrong }
  let text = String(decoding: number, as: UTF8.self)
  let tooLarge = UsageError("\(option) is larger than 8 EiB")
  if number.allSatisfy(isDigit) {
    guard let whole = Int(text) else { throw tooLarge }
    let (product, overflow) = whole.multipliedReportingOverflow(by: bytes)
    if overflow { throw tooLarge }
    return product
  }
  guard let value = Double(text) else { throw wrong }
  guard let product = Int(exactly: (value * Double(bytes)).rounded()) else { throw tooLarge }
  return product
}

private func bytes(in unit: String) -> Int? {
  if unit.isEmpty || unit == "b" { return 1 }
  let letters: [Character] = ["k", "m", "g", "t", "p"]
  guard let letter = unit.first, let power = letters.firstIndex(of: letter) else { return nil }
  let base: Int
  switch unit.dropFirst() {
  case "b": base = 1_000
  case "", "ib": base = 1_024
  default: return nil
  }
  return (0...power).reduce(1) { product, _ in product * base }
}

/// `NAME=VALUE`; a value that is not UTF-8 is bytes.
func parseAttribute(
  _ word: [UInt8]
) throws(UsageError) -> (name: String, value: BlobCache.AttributeValue) {
  let parts = word.split(
    separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
  guard parts.count == 2, !parts[0].isEmpty, let name = String(validating: parts[0], as: UTF8.self)
  else { throw UsageError("--attribute takes NAME=VALUE, not \(quoted(word))") }
  if let text = String(validating: parts[1], as: UTF8.self) {
    return (name, BlobCache.AttributeValue(text))
  }
  return (name, BlobCache.AttributeValue(Array(parts[1])))
}

/// A duration as people write it: `500ms`, `20s`, `1.5h`, `1h30m`, `7d`, `2w`. Units fall from left to right.
func parseDuration(_ word: [UInt8], for option: Option) throws(UsageError) -> Duration {
  let wrong = UsageError(
    "\(option) takes a duration such as 20s, 5m, 1h30m or 7d, not \(quoted(word))")
  var rest = word[...]
  var total: Int64 = 0
  var last = Int64.max
  guard !rest.isEmpty else { throw wrong }
  while !rest.isEmpty {
    let number = rest.prefix { isDigit($0) || $0 == UInt8(ascii: ".") }
    rest = rest.dropFirst(number.count)
    let name = rest.prefix { !isDigit($0) && $0 != UInt8(ascii: ".") }
    rest = rest.dropFirst(name.count)
    guard let unit = milliseconds(in: String(decoding: name, as: UTF8.self)), unit < last,
      let first = number.first, let end = number.last, isDigit(first), isDigit(end),
      let amount = scaled(String(decoding: number, as: UTF8.self), by: unit)
    else { throw wrong }
    last = unit
    let (sum, overflow) = total.addingReportingOverflow(amount)
    guard !overflow, sum <= longestMilliseconds else {
      let isLifetime = [.ttl, .sliding, .atMost].contains(option)
      throw UsageError(
        "\(option) is longer than 10,000 years" + (isLifetime ? "; say --forever" : ""))
    }
    total = sum
  }
  return .milliseconds(total)
}

/// A duration that a lifetime can have: with none the entry would be gone at once.
func parseSpan(_ word: [UInt8], for option: Option) throws(UsageError) -> Duration {
  let span = try parseDuration(word, for: option)
  guard span > .zero else { throw UsageError("\(option) is at least 1ms, not \(quoted(word))") }
  return span
}

/// Beyond it, moments stop fitting where they are kept.
private let longestMilliseconds: Int64 = 10_000 * 365 * 86_400_000

private func milliseconds(in unit: String) -> Int64? {
  switch unit {
  case "ms": 1
  case "s": 1_000
  case "m", "min": 60_000
  case "h": 3_600_000
  case "d": 86_400_000
  case "w": 7 * 86_400_000
  default: nil
  }
}

/// Whole milliseconds of `number` units, clamped above the longest; nil for what is no number.
private func scaled(_ number: String, by unit: Int64) -> Int64? {
  if let whole = Int64(number) {
    let (product, overflow) = whole.multipliedReportingOverflow(by: unit)
    return overflow ? longestMilliseconds + 1 : product
  }
  guard let value = Double(number) else { return nil }
  let product = (value * Double(unit)).rounded()
  return product <= Double(longestMilliseconds) ? Int64(product) : longestMilliseconds + 1
}

private func isDigit(_ byte: UInt8) -> Bool { (0x30...0x39).contains(byte) }
