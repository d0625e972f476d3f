#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// The name under which a blob is stored: any bytes, 65,536 at most. The empty key is allowed.
  ///
  /// A key wraps a string or bytes without copying them. Keys are compared by their bytes, never as
  /// text: `é` in its two Unicode normal forms is two keys, and a key made from a string equals one
  /// made from its UTF-8.
  ///
  /// A literal is a key: `cache.blob(for: "user/\(id)")`. Longer keys than ``maximumByteCount`` can
  /// be made; using one throws ``Error`` with code ``Error/Code/keyTooLong``.
  public struct Key: Sendable {
    // Slices, so that a Substring or an ArraySlice becomes a key without an allocation.
    enum Storage: Sendable {
      case text(Substring)
      case bytes(ArraySlice<UInt8>)
    }

    let storage: Storage

    /// A key longer than this many bytes cannot be used.
    public static let maximumByteCount = 65_536

    /// A key from the UTF-8 of a string, without copying it.
    public init(_ string: String) { storage = .text(Substring(string)) }

    /// A key from the UTF-8 of a part of a string, without copying it.
    public init(_ string: Substring) { storage = .text(string) }

    /// A key from bytes, without copying them if they are in an array or a slice of one.
    public init(_ bytes: some Collection<UInt8>) {
      if let array = bytes as? [UInt8] {
        storage = .bytes(array[...])
      } else if let slice = bytes as? ArraySlice<UInt8> {
        storage = .bytes(slice)
      } else {
        storage = .bytes([UInt8](bytes)[...])
      }
    }

    /// The bytes of the key.
    public var bytes: [UInt8] {
      switch storage {
      case .text(let text): [UInt8](text.utf8)
      case .bytes(let bytes): [UInt8](bytes)
      }
    }

    /// The key as text; nil if its bytes are not UTF-8.
    public var string: String? {
      switch storage {
      case .text(let text): String(text)
      case .bytes(let bytes): String(validating: bytes, as: UTF8.self)
      }
    }

    /// How many bytes the key has.
    public var byteCount: Int {
      switch storage {
      case .text(let text): text.utf8.count
      case .bytes(let bytes): bytes.count
      }
    }

    /// Gives the bytes without a copy (a string that is not contiguous UTF-8, on Apple systems, is
    /// copied first).
    @inline(always)
    func withUnsafeBytes<R, E: Swift.Error>(
      _ body: (UnsafeRawBufferPointer) throws(E) -> R
    ) throws(E) -> R {
      switch storage {
      case .text(let text): try unsafe text.utf8.span.withUnsafeBytes(body)
      case .bytes(let bytes): try unsafe bytes.span.withUnsafeBytes(body)
      }
    }
  }

  /// A type whose values name blobs. `String`, `Substring`, `[UInt8]`, `ArraySlice<UInt8>` and
  /// `Data` do; a type of your own needs only ``blobCacheKey``.
  public protocol KeyConvertible {
    /// The key that this value stands for. Equal values must give equal keys.
    var blobCacheKey: BlobCache.Key { get }
  }
}

extension BlobCache.Key: Hashable {
  public static func == (left: Self, right: Self) -> Bool {
    unsafe left.withUnsafeBytes { l in
      unsafe right.withUnsafeBytes { r in unsafe l.count == r.count && l.elementsEqual(r) }
    }
  }

  public func hash(into hasher: inout Hasher) {
    unsafe withUnsafeBytes { unsafe hasher.combine(bytes: $0) }
  }
}

extension BlobCache.Key: ExpressibleByStringInterpolation {
  public init(stringLiteral value: String) { self.init(value) }
}

extension BlobCache.Key: CustomStringConvertible {
  /// The key as text, or its bytes in hexadecimal after `0x`.
  public var description: String { string ?? "0x" + hexadecimal(bytes) }
}

extension BlobCache.Key: BlobCache.KeyConvertible {
  public var blobCacheKey: BlobCache.Key { self }
}

extension String: BlobCache.KeyConvertible {
  public var blobCacheKey: BlobCache.Key { BlobCache.Key(self) }
}

extension Substring: BlobCache.KeyConvertible {
  public var blobCacheKey: BlobCache.Key { BlobCache.Key(self) }
}

extension [UInt8]: BlobCache.KeyConvertible {
  public var blobCacheKey: BlobCache.Key { BlobCache.Key(self) }
}

extension ArraySlice<UInt8>: BlobCache.KeyConvertible {
  public var blobCacheKey: BlobCache.Key { BlobCache.Key(self) }
}

extension Data: BlobCache.KeyConvertible {
  public var blobCacheKey: BlobCache.Key { BlobCache.Key(self) }
}

extension BlobCache.Key {
  func checkLength(_ operation: String) throws(BlobCache.Error) {
    guard byteCount > Self.maximumByteCount else { return }
    throw BlobCache.Error(
      .keyTooLong, operation: operation,
      message: "A key has more than 65,536 bytes; use a digest of it as the key.")
  }

  /// In quotes, on one line and 80 characters at most: for descriptions, which must not be as long
  /// as keys may be.
  var summary: String {
    let prefix = shortened(Self.text(of: self), to: 80)
    return "\"\(prefix)\""
  }

  private static func text(of key: Self) -> String {
    var out = String.UnicodeScalarView()
    for scalar in key.description.unicodeScalars {
      // Control characters would break the line, or a terminal.
      if scalar.properties.generalCategory == .control || scalar == "\"" || scalar == "\\" {
        out.append(contentsOf: scalar.escaped(asASCII: false).unicodeScalars)
      } else {
        out.append(scalar)
      }
    }
    return String(out)
  }
}

/// A text of at most `most` characters: the middle of a longer one is left out, since the ends of
/// paths and keys tell the most.
func shortened(_ text: String, to most: Int) -> String {
  guard text.utf8.count > most, text.count > most else { return text }
  return text.prefix(most / 2) + "…" + text.suffix(most - most / 2 - 1)
}

/// Two lower-case digits per byte.
func hexadecimal(_ bytes: some Sequence<UInt8>) -> String {
  let digits = Array("0123456789abcdef".utf8)
  var out: [UInt8] = []
  for byte in bytes {
    out.append(digits[Int(byte >> 4)])
    out.append(digits[Int(byte & 15)])
  }
  return String(decoding: out, as: UTF8.self)
}
