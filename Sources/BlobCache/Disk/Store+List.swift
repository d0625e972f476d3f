internal import CBlobStore

/// Where a listing goes on, in the order of key hashes.
struct ListCursor: Sendable {
  fileprivate var hash = BlobCache.KeyHash()
}

struct ListPage: Sendable {
  var entries: [BlobCache.Entry]
  /// Nil at the end.
  var next: ListCursor?
}

private struct Listed {
  var entries: [BlobCache.Entry] = []
  let now: Int64
}

extension Store {
  static var pageSize: Int { 256 }

  /// One page, in one short read transaction, on the BlockingPool. It may be empty without being
  /// the last.
  func list(
    _ cursor: ListCursor, prefix: [UInt8], tag: [UInt8]? = nil
  ) async throws(BlobCache.Error) -> ListPage {
    try await BlockingPool.shared.attempt { [self] () throws(BlobCache.Error) -> ListPage in
      guard let tag else { return try page(cursor, prefix: prefix) }
      var page = try page(cursor, tag: tag)
      page.entries.removeAll { !$0.key.bytes.starts(with: prefix) }
      return page
    }
  }

  /// Blocks.
  private func page(_ cursor: ListCursor, tag: [UInt8]) throws(BlobCache.Error) -> ListPage {
    try unsafe page(cursor) { store, position, listed, done in
      unsafe tag.withUnsafeBytes { tag in
        unsafe bcs_list_tagged(
          store, tag.baseAddress, tag.count, position, Self.pageSize, keepListed, listed, &done)
      }
    }
  }

  /// Blocks.
  func page(_ cursor: ListCursor, prefix: [UInt8]) throws(BlobCache.Error) -> ListPage {
    try unsafe page(cursor) { store, position, listed, done in
      unsafe prefix.withUnsafeBytes { prefix in
        unsafe bcs_list(
          store, position, prefix.baseAddress, prefix.count, Self.pageSize, keepListed, listed,
          &done)
      }
    }
  }

  private func page(
    _ cursor: ListCursor,
    _ read: (
      OpaquePointer, UnsafeMutablePointer<UInt8>, UnsafeMutablePointer<Listed>, inout Bool
    ) -> bcs_status
  ) throws(BlobCache.Error) -> ListPage {
    var listed = Listed(now: now)
    var position = cursor.hash
    var done = false
    let status = try unsafe handle.use("entries") { store throws(BlobCache.Error) in
      unsafe withUnsafeMutablePointer(to: &position) { position in
        unsafe withUnsafeMutablePointer(to: &listed) { listed in
          unsafe read(
            store, UnsafeMutableRawPointer(position).assumingMemoryBound(to: UInt8.self), listed,
            &done)
        }
      }
    }
    guard status == BCS_OK else { throw status.lastError("entries") }
    return ListPage(
      entries: listed.entries, next: done ? nil : ListCursor(hash: position))
  }

  /// Reads and verifies one entry, on the caller's thread; nil when it is sound or gone.
  func damage(of entry: BlobCache.Entry) throws(BlobCache.Error) -> (
    damage: bcs_damage, error: BlobCache.Error
  )? {
    var damage = bcs_damage()
    let status = try unsafe handle.use("verify") { store throws(BlobCache.Error) in
      unsafe entry.keyHash.withBytes { unsafe bcs_check(store, $0, &damage) }
    }
    switch status {
    case BCS_OK, BCS_MISS: return nil
    case BCS_DAMAGED: return (damage, status.lastError("verify"))
    default: throw status.lastError("verify")
    }
  }
}

private func keepListed(
  context: UnsafeMutableRawPointer?, record: UnsafePointer<bcs_record>?,
  body: UnsafeMutablePointer<bcs_body>?
) {
  guard let listed = unsafe context?.assumingMemoryBound(to: Listed.self),
    let record = unsafe record
  else { return }
  unsafe listed.pointee.entries.append(BlobCache.Entry(record.pointee, now: listed.pointee.now))
}
