import CBlobStore

/// What Swift makes of a record: attributes, tags, lifetime and moments of any bytes and numbers become an entry without
/// a trap; and what is encoded is decoded as it was.
@testable import BlobCache

private struct Reader {
  var rest: ArraySlice<UInt8>

  mutating func number() -> UInt64 {
    let part = rest.prefix(8)
    rest = rest.dropFirst(8)
    return part.reversed().reduce(0) { $0 << 8 | UInt64($1) }
  }

  mutating func bytes() -> [UInt8] {
    let count = Int(rest.popFirst() ?? 0) * 4
    defer { rest = rest.dropFirst(count) }
    return Array(rest.prefix(count))
  }
}

private func check(attributes bytes: [UInt8]) {
  let decoded = BlobCache.Attributes(decoding: bytes)
  guard let encoded = try? decoded.encoded() else {
    // Bytes that are no UTF-8 grow when they are mended.
    precondition(bytes.count > BlobCache.Attributes.maximumByteCount / 3)
    return
  }
  precondition(BlobCache.Attributes(decoding: encoded) == decoded, "attributes change")
  _ = "\(decoded)"
}

private func check(tags bytes: [UInt8]) {
  let decoded = bytes.withUnsafeBufferPointer(TagCoding.decode)
  guard let encoded = try? TagCoding.encode(decoded) else { return }
  let again = encoded.withUnsafeBufferPointer(TagCoding.decode)
  precondition(
    Set(again.map { Array($0.utf8) }) == Set(decoded.map { Array($0.utf8) }), "tags change")
  precondition(Set(again.map { Array($0.utf8) }).count == again.count, "a tag twice")
}

@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzEntry(_ start: UnsafePointer<UInt8>?, _ count: Int) -> CInt {
  var reader = Reader(rest: [UInt8](UnsafeBufferPointer(start: start, count: count))[...])
  var record = bcs_record()
  let flags = reader.rest.popFirst() ?? 0
  record.is_file = flags & 1 != 0
  record.pinned = flags & 2 != 0
  record.lifetime = bcs_lifetime(
    kind: bcs_lifetime_kind(rawValue: UInt32(flags >> 2 & 3) % 3),
    shortened_ms: UInt32(truncatingIfNeeded: reader.number()),
    deadline_ms: Int64(bitPattern: reader.number()), window_ms: Int64(bitPattern: reader.number()))
  record.size = reader.number()
  record.generation = reader.number()
  record.written_ms = Int64(bitPattern: reader.number())
  record.access_ms = Int64(bitPattern: reader.number())
  record.stale_ms = Int64(bitPattern: reader.number())
  // As the core makes it of the limit in age.
  let age = Int64(bitPattern: reader.number())
  record.oldest_ms = age > 0 ? record.written_ms.clampedSum(age) : 0
  record.hits = UInt32(flags >> 4)
  let now = Int64(bitPattern: reader.number())
  let (key, attributes, tags) = (reader.bytes(), reader.bytes(), reader.bytes())
  check(attributes: attributes)
  check(tags: tags)
  key.withUnsafeBufferPointer { key in
    attributes.withUnsafeBufferPointer { attributes in
      tags.withUnsafeBufferPointer { tags in
        (record.key, record.key_count) = (key.baseAddress, key.count)
        (record.attributes, record.attributes_count) = (attributes.baseAddress, attributes.count)
        (record.tags, record.tags_count) = (tags.baseAddress, tags.count)
        let entry = BlobCache.Entry(record, now: now)
        precondition(entry.key == BlobCache.Key(Array(key)))
        precondition(entry.isExpired == (spanSinceExpiry(&record, now: now) != nil))
        _ = "\(entry)"
        let again = entry.lifetime.stored(at: record.written_ms)
        _ = BlobCache.Lifetime(again, written: record.written_ms)
      }
    }
  }
  return 0
}
