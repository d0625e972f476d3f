internal import CBlobStore

// Tags on disk, in ascending order of their bytes, each once: its length (2 bytes, little-endian) and its UTF-8.

enum TagCoding {
  /// Throws for a tag to look for that no entry can have.
  static func check(_ tag: String, _ operation: String) throws(BlobCache.Error) {
    if tag.utf8.count <= Int(BCS_TAGS_MAX) - 2 { return }
    throw BlobCache.Error(
      .tagsTooLarge, operation: operation,
      message: "A tag has more than 65,534 bytes, so no entry has it; name a shorter one.")
  }

  static func encode(_ tags: [String]) throws(BlobCache.Error) -> [UInt8] {
    if tags.isEmpty { return [] }
    var out: [UInt8] = []
    var last: [UInt8]?
    for tag in tags.map({ Array($0.utf8) }).sorted(by: { $0.lexicographicallyPrecedes($1) }) {
      if tag == last { continue }
      guard tag.count <= Int(UInt16.max), out.count + tag.count + 2 <= Int(BCS_TAGS_MAX) else {
        throw BlobCache.Error(BCS_TAGS_TOO_LARGE, operation: "store")
      }
      out.append(UInt8(truncatingIfNeeded: tag.count))
      out.append(UInt8(truncatingIfNeeded: tag.count >> 8))
      out.append(contentsOf: tag)
      last = tag
    }
    return out
  }

  /// What can be read of `bytes`.
  static func decode(_ bytes: UnsafeBufferPointer<UInt8>) -> [String] {
    var tags: [String] = []
    var at = 0
    while bytes.count - at >= 2 {
      let count = unsafe Int(bytes[at]) | Int(bytes[at + 1]) << 8
      at += 2
      guard bytes.count - at >= count else { break }
      tags.append(unsafe String(decoding: bytes[at..<at + count], as: UTF8.self))
      at += count
    }
    return tags
  }
}
