extension BlobCache {
  /// The SHA-256 (FIPS 180-4) of a blob: 32 bytes, the blob's name by content.
  public struct Digest: Hashable, Sendable {
    // Four words in the order of memory: compared and hashed four times faster than 32 bytes.
    private var words: (UInt64, UInt64, UInt64, UInt64) = (0, 0, 0, 0)

    /// How many bytes a digest has.
    public static let byteCount = 32

    init(uninitialized fill: (UnsafeMutableRawBufferPointer) -> Void) {
      unsafe withUnsafeMutableBytes(of: &words) { unsafe fill($0) }
    }

    init(copying pointer: UnsafeRawPointer) {
      unsafe withUnsafeMutableBytes(of: &words) {
        unsafe $0.copyMemory(from: UnsafeRawBufferPointer(start: pointer, count: 32))
      }
    }

    /// The digest with these 32 bytes.
    ///
    /// - Throws: ``Error`` with code ``Error/Code/invalidDigest`` if there are not exactly 32.
    public init(bytes: some Collection<UInt8>) throws(Error) {
      guard bytes.count == Self.byteCount else {
        throw Error(
          .invalidDigest, operation: "digest",
          message: "A digest has 32 bytes; \(bytes.count) were given.")
      }
      unsafe withUnsafeMutableBytes(of: &words) { unsafe $0.copyBytes(from: bytes) }
    }

    /// The digest written as 64 hexadecimal digits, in either case.
    ///
    /// - Throws: ``Error`` with code ``Error/Code/invalidDigest`` for anything else.
    public init(hex: String) throws(Error) {
      func value(_ digit: UInt8) -> UInt8? {
        switch digit {
        case 0x30...0x39: digit - 0x30
        case 0x41...0x46: digit - 0x41 + 10
        case 0x61...0x66: digit - 0x61 + 10
        default: nil
        }
      }
      let digits = Array(hex.utf8)
      var bytes: [UInt8] = []
      if digits.count == 2 * Self.byteCount {
        for index in stride(from: 0, to: digits.count, by: 2) {
          guard let high = value(digits[index]), let low = value(digits[index + 1]) else { break }
          bytes.append(high << 4 | low)
        }
      }
      guard bytes.count == Self.byteCount else {
        throw Error(
          .invalidDigest, operation: "digest",
          message: "A digest is written as 64 hexadecimal digits; this is not.")
      }
      try self.init(bytes: bytes)
    }

    /// The 32 bytes.
    public var bytes: [UInt8] { unsafe withUnsafeBytes { unsafe [UInt8]($0) } }

    /// The digest as 64 lower-case hexadecimal digits.
    public var hex: String { hexadecimal(bytes) }

    func withUnsafeBytes<R, E: Swift.Error>(
      _ body: (UnsafeRawBufferPointer) throws(E) -> R
    ) throws(E) -> R {
      try unsafe Swift.withUnsafeBytes(of: words, body)
    }

    public static func == (left: Self, right: Self) -> Bool { left.words == right.words }

    public func hash(into hasher: inout Hasher) {
      // The bytes are uniformly distributed already: one word of them is a good hash.
      hasher.combine(words.0)
    }
  }
}

extension BlobCache.Digest: CustomStringConvertible {
  /// The same as ``hex``.
  public var description: String { hex }
}
