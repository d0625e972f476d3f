internal import CBlobStore

#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

// Between the nouns and the C records. Attributes on disk, one after another, numbers
// little-endian:
//
//   | bytes | field                                |
//   |-------|--------------------------------------|
//   | 2     | n, count of the name's UTF-8         |
//   | n     | the name                             |
//   | 1     | 0: the value is text; 1: bytes       |
//   | 4     | m, count of the value's bytes        |
//   | m     | the value                            |
//
// ["a": "xy"] is 01 00 61 00 02 00 00 00 78 79.

extension BlobCache.Attributes {
  func encoded() throws(BlobCache.Error) -> [UInt8] {
    if isEmpty { return [] }
    var out: [UInt8] = []
    for (name, value) in self {
      let nameCount = name.utf8.count
      let bytes = value.bytes
      guard nameCount <= Int(UInt16.max),
        out.count + nameCount + bytes.count + 7 <= Self.maximumByteCount
      else { throw BlobCache.Error(BCS_ATTRIBUTES_TOO_LARGE, operation: "store") }
      out.append(UInt8(truncatingIfNeeded: nameCount))
      out.append(UInt8(truncatingIfNeeded: nameCount >> 8))
      out.append(contentsOf: name.utf8)
      out.append(value.isText ? 0 : 1)
      for shift in [0, 8, 16, 24] { out.append(UInt8(truncatingIfNeeded: bytes.count >> shift)) }
      out.append(contentsOf: bytes)
    }
    return out
  }

  /// What can be read of `bytes`: decoding ends at the first thing that is not as above.
  init(decoding bytes: some RandomAccessCollection<UInt8>) {
    self.init()
    var rest = bytes[...]
    func number(_ count: Int) -> Int? {
      guard rest.count >= count else { return nil }
      var value = 0
      for (shift, byte) in rest.prefix(count).enumerated() { value |= Int(byte) << (8 * shift) }
      rest = rest.dropFirst(count)
      return value
    }
    while !rest.isEmpty {
      guard let nameCount = number(2), rest.count >= nameCount else { return }
      let name = String(decoding: rest.prefix(nameCount), as: UTF8.self)
      rest = rest.dropFirst(nameCount)
      guard let kind = number(1), kind <= 1, let count = number(4), rest.count >= count else {
        return
      }
      let value = rest.prefix(count)
      rest = rest.dropFirst(count)
      self[name] =
        kind == 0
        ? BlobCache.AttributeValue(String(decoding: value, as: UTF8.self))
        : BlobCache.AttributeValue(value)
    }
  }
}

extension BlobCache.Lifetime {
  /// As a record keeps it, for an entry written at `now`.
  ///
  /// - Parameter share: the part of a span that the entry lives, above 0 and at most 1. A record keeps
  ///   the whole span beside the moment, or how much is missing of it, so `Entry.lifetime` stays what was
  ///   asked for.
  func stored(at now: Int64, share: Double = 1) -> bcs_lifetime {
    /// What is taken off a span: a millisecond stays.
    func cut(_ span: Int64, atMost limit: Int64 = .max) -> Int64 {
      guard share < 1, span > 1 else { return 0 }
      return max(0, min(span - Int64(Double(span) * share), span - 1, limit))
    }
    return switch form {
    case .forever: bcs_lifetime(BCS_FOREVER, deadline: .max)
    case .span(let span):
      // Only a loader brings what is negative: see `check`.
      bcs_lifetime(
        BCS_EXPIRES, deadline: now.clampedSum(max(0, span - cut(span))), window: max(0, span))
    case .moment(let moment): bcs_lifetime(BCS_EXPIRES, deadline: moment)
    case .noMoment:
      // Over, whatever the clock shows.
      bcs_lifetime(BCS_EXPIRES, deadline: min(0, now))
    case .sliding(let window, nil):
      bcs_lifetime(BCS_SLIDING, deadline: .max, window: max(0, window))
    case .sliding(let window, let most?):
      bcs_lifetime(
        BCS_SLIDING,
        deadline: now.clampedSum(max(0, most - cut(most, atMost: Int64(UInt32.max)))),
        window: max(0, window),
        shortened: UInt32(clamping: cut(most, atMost: Int64(UInt32.max))))
    }
  }

  init(_ lifetime: bcs_lifetime, written: Int64) {
    switch lifetime.kind {
    case BCS_EXPIRES where lifetime.window_ms > 0:
      self.init(form: .span(milliseconds: lifetime.window_ms))
    case BCS_EXPIRES:
      self.init(form: .moment(lifetime.deadline_ms))
    case BCS_SLIDING:
      let most =
        lifetime.deadline_ms == .max
        ? nil
        : lifetime.deadline_ms.clampedDifference(written)
          .clampedSum(Int64(lifetime.shortened_ms))
      self.init(form: .sliding(window: lifetime.window_ms, atMost: most))
    default:
      self.init(form: .forever)
    }
  }
}

extension bcs_lifetime {
  init(
    _ kind: bcs_lifetime_kind, deadline: Int64, window: Int64 = 0, shortened: UInt32 = 0
  ) {
    self.init(
      kind: kind, shortened_ms: shortened, deadline_ms: deadline, window_ms: window)
  }

  /// When an entry expires that was last read at `access`; nil: never.
  func expiry(access: Int64) -> Int64? {
    switch kind {
    case BCS_EXPIRES: Self.moment(deadline_ms)
    case BCS_SLIDING: Self.moment(min(access.clampedSum(window_ms), deadline_ms))
    default: nil
    }
  }

  /// The end of Int64 is what too long a span is drawn to, and means never.
  private static func moment(_ milliseconds: Int64) -> Int64? {
    milliseconds == .max ? nil : milliseconds
  }
}

/// For how many milliseconds a record has been expired; nil: it is fresh. The end of Int64 when the
/// clock was set back since it was written, so that nobody knows, and beyond the limit in age, where
/// nothing is kept, not even as stale.
func spanSinceExpiry(_ record: UnsafePointer<bcs_record>, now: Int64) -> Int64? {
  guard unsafe bcs_is_expired(record, now) else { return nil }
  let (expiry, oldest) = unsafe (bcs_expiry_ms(record), record.pointee.oldest_ms)
  if oldest > 0 && now >= oldest { return .max }
  let (span, overflow) = now.subtractingReportingOverflow(expiry)
  return overflow || span < 0 ? .max : span
}

extension BlobCache.KeyHash {
  init(_ pointer: UnsafeRawPointer) {
    high = unsafe pointer.loadUnaligned(as: UInt64.self)
    low = unsafe pointer.loadUnaligned(fromByteOffset: 8, as: UInt64.self)
  }

  func withBytes<R, E: Swift.Error>(
    _ body: (UnsafePointer<UInt8>) throws(E) -> R
  ) throws(E) -> R {
    try unsafe withUnsafePointer(to: self) { pointer throws(E) -> R in
      try unsafe body(UnsafeRawPointer(pointer).assumingMemoryBound(to: UInt8.self))
    }
  }
}

extension BlobCache.Digest {
  func withBytes<R, E: Swift.Error>(
    _ body: (UnsafePointer<UInt8>) throws(E) -> R
  ) throws(E) -> R {
    try unsafe withUnsafePointer(to: self) { pointer throws(E) -> R in
      try unsafe body(UnsafeRawPointer(pointer).assumingMemoryBound(to: UInt8.self))
    }
  }

  /// The SHA-256 of bytes.
  public init(hashing bytes: some Collection<UInt8>) {
    func hash(_ buffer: UnsafeBufferPointer<UInt8>) -> Self {
      unsafe Self(uninitialized: { out in
        // Never fails: what stands in for OpenSSL needs nothing that could be missing.
        _ = unsafe bcs_digest(
          buffer.baseAddress, buffer.count,
          out.baseAddress?.assumingMemoryBound(to: UInt8.self))
      })
    }
    self =
      unsafe bytes.withContiguousStorageIfAvailable(hash)
      ?? [UInt8](bytes).withUnsafeBufferPointer(hash)
  }
}

extension BlobCache.Entry {
  /// A copy of a record, which is only valid inside the call that gave it.
  init(_ record: borrowing bcs_record, now: Int64) {
    let key = unsafe UnsafeBufferPointer(start: record.key, count: record.key_count)
    let attributes = unsafe UnsafeBufferPointer(
      start: record.attributes, count: record.attributes_count)
    var copy = unsafe copy record
    let expiredFor = unsafe spanSinceExpiry(&copy, now: now)
    let digest = unsafe withUnsafeBytes(of: &copy.digest) {
      unsafe BlobCache.Digest(copyingBytes: $0)
    }
    let hash = unsafe withUnsafeBytes(of: &copy.key_hash) { unsafe BlobCache.KeyHash(bytes: $0) }
    self.init(
      key: unsafe BlobCache.Key([UInt8](key)), digest: digest,
      size: Int(clamping: unsafe copy.size), lifetime: unsafe copy.lifetime,
      written: unsafe copy.written_ms, access: unsafe copy.access_ms,
      oldest: unsafe copy.oldest_ms,
      hits: Int(unsafe copy.hits), expiredFor: expiredFor, staleWindow: unsafe copy.stale_ms,
      attributes: unsafe BlobCache.Attributes(decoding: attributes),
      tags: unsafe TagCoding.decode(
        UnsafeBufferPointer(start: record.tags, count: record.tags_count)),
      isPinned: unsafe copy.pinned, isFile: unsafe copy.is_file, generation: unsafe copy.generation,
      keyHash: hash)
  }

  init(
    key: BlobCache.Key, digest: BlobCache.Digest, size: Int, lifetime: bcs_lifetime,
    written: Int64, access: Int64, oldest: Int64, hits: Int, expiredFor: Int64?,
    staleWindow: Int64, attributes: BlobCache.Attributes, tags: [String], isPinned: Bool,
    isFile: Bool, generation: UInt64, keyHash: BlobCache.KeyHash
  ) {
    self.init(
      key: key, digest: digest, size: size,
      lifetime: BlobCache.Lifetime(lifetime, written: written),
      storedAt: Date(millisecondsSince1970: written),
      expiresAt: [lifetime.expiry(access: access), oldest > 0 ? oldest : nil].compactMap(\.self)
        .min().map(Date.init(millisecondsSince1970:)),
      lastAccess: hits == 0 ? nil : Date(millisecondsSince1970: access), hits: hits,
      isExpired: expiredFor != nil, staleWindow: .milliseconds(max(0, staleWindow)),
      expiredFor: expiredFor.flatMap { $0 == .max ? nil : .milliseconds($0) },
      attributes: attributes, tags: tags, isPinned: isPinned, location: isFile ? .file : .index,
      generation: generation, keyHash: keyHash)
  }
}

extension BlobCache.Digest {
  init(copyingBytes bytes: UnsafeRawBufferPointer) {
    self = unsafe Self(uninitialized: { unsafe $0.copyMemory(from: bytes) })
  }
}

extension BlobCache.KeyHash {
  init(bytes: UnsafeRawBufferPointer) {
    high = unsafe bytes.loadUnaligned(as: UInt64.self)
    low = unsafe bytes.loadUnaligned(fromByteOffset: 8, as: UInt64.self)
  }
}
