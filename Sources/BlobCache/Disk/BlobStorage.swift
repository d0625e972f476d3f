internal import CBlobStore

/// What a hit found: the record's fixed part; key, attributes, tags and an inline body follow it in the
/// same allocation.
@safe struct BlobHead {
  /// As the memory tier knows it, and generation and lifetime for everybody. In front: a hit in
  /// memory reads it and the key, and little else.
  var item: bcs_memory_item
  var digest: BlobCache.Digest
  var keyHash: BlobCache.KeyHash
  var access: Int64
  var hits: UInt32
  /// When the limit in age makes it expire; 0: never.
  var oldest: Int64
  var isFile: Bool
  /// For how many milliseconds it had been expired; -1: it was fresh.
  var expiredFor: Int64
  var staleWindow: Int64
  var isPinned: Bool
  var keyCount: Int
  var attributesCount: Int
  var tagsCount: Int
  var count: Int
  /// A body outside this allocation: the file mapped or read. Given back when the storage goes.
  var body: bcs_body
}

/// A blob's bytes and its entry, immutable, in one allocation (and a mapping or buffer for a file).
/// They stay valid whatever becomes of the entry, its file or the store.
@safe final class BlobStorage: ManagedBuffer<BlobHead, UInt8> {
  deinit {
    unsafe withUnsafeMutablePointerToHeader { head in
      if unsafe head.pointee.body.owned { unsafe bcs_release_body(&head.pointee.body) }
    }
  }

  /// Copies what a lookup found, or takes its body over where that is offered.
  @inline(__always)
  static func make(
    _ record: UnsafePointer<bcs_record>, _ body: UnsafeMutablePointer<bcs_body>?, now: Int64
  ) -> BlobStorage {
    var taken = unsafe bcs_body()
    var bytes: UnsafePointer<UInt8>?
    var count = 0
    if let body = unsafe body {
      if unsafe body.pointee.owned {
        unsafe bcs_take_body(body, &taken)
        unsafe taken.owned = true
      } else {
        unsafe bytes = body.pointee.bytes
        count = unsafe body.pointee.count
      }
    }
    return unsafe make(
      record, expiredFor: unsafe spanSinceExpiry(record, now: now) ?? -1, body: taken,
      inline: UnsafeBufferPointer(start: bytes, count: count))
  }

  /// With a body that is owned, or else with a copy of `inline`.
  @inline(__always)
  static func make(
    _ record: UnsafePointer<bcs_record>, expiredFor: Int64, body: bcs_body,
    inline: UnsafeBufferPointer<UInt8>
  ) -> BlobStorage {
    let keyCount = unsafe record.pointee.key_count
    let attributesCount = unsafe record.pointee.attributes_count
    let tagsCount = unsafe record.pointee.tags_count
    let buffer = BlobStorage.create(
      minimumCapacity: keyCount + attributesCount + tagsCount + inline.count
    ) { _ in
      unsafe BlobHead(
        item: bcs_memory_item(record.pointee),
        digest: BlobCache.Digest(copying: record.pointer(to: \.digest)!),
        keyHash: BlobCache.KeyHash(UnsafeRawPointer(record.pointer(to: \.key_hash)!)),
        access: record.pointee.access_ms, hits: record.pointee.hits,
        oldest: record.pointee.oldest_ms, isFile: record.pointee.is_file,
        expiredFor: expiredFor, staleWindow: record.pointee.stale_ms,
        isPinned: record.pointee.pinned,
        keyCount: keyCount, attributesCount: attributesCount, tagsCount: tagsCount,
        count: body.owned ? body.count : inline.count, body: body)
    }
    unsafe buffer.withUnsafeMutablePointerToElements { tail in
      if let key = unsafe record.pointee.key {
        unsafe tail.update(from: key, count: keyCount)
      }
      if let attributes = unsafe record.pointee.attributes {
        unsafe (tail + keyCount).update(from: attributes, count: attributesCount)
      }
      if tagsCount > 0, let tags = unsafe record.pointee.tags {
        unsafe (tail + keyCount + attributesCount).update(from: tags, count: tagsCount)
      }
      if let bytes = inline.baseAddress {
        unsafe (tail + keyCount + attributesCount + tagsCount).update(
          from: bytes, count: inline.count)
      }
    }
    return unsafe unsafeDowncast(buffer, to: BlobStorage.self)
  }

  @inline(__always)
  var bytes: UnsafeRawBufferPointer {
    unsafe withUnsafeMutablePointers { head, tail in
      unsafe head.pointee.body.owned
        ? UnsafeRawBufferPointer(start: head.pointee.body.bytes, count: head.pointee.count)
        : UnsafeRawBufferPointer(
          start: tail + head.pointee.keyCount + head.pointee.attributesCount
            + head.pointee.tagsCount,
          count: head.pointee.count)
    }
  }

  /// Changes with every write of the entry.
  var generation: UInt64 { unsafe header.item.generation }

  /// When the entry expires, however often it is read; nil: never.
  var fixedExpiry: Int64? {
    let (lifetime, oldest) = unsafe (header.item.lifetime, header.oldest)
    let deadline = lifetime.kind == BCS_FOREVER ? .max : lifetime.deadline_ms
    let expiry = oldest > 0 ? min(deadline, oldest) : deadline
    return expiry == .max ? nil : expiry
  }

  var attributes: BlobCache.Attributes {
    unsafe withUnsafeMutablePointers { head, tail in
      unsafe BlobCache.Attributes(
        decoding: UnsafeBufferPointer(
          start: tail + head.pointee.keyCount, count: head.pointee.attributesCount))
    }
  }

  var tags: [String] {
    unsafe withUnsafeMutablePointers { head, tail in
      unsafe TagCoding.decode(
        UnsafeBufferPointer(
          start: tail + head.pointee.keyCount + head.pointee.attributesCount,
          count: head.pointee.tagsCount))
    }
  }

  var key: BlobCache.Key {
    unsafe withUnsafeMutablePointers { head, tail in
      unsafe BlobCache.Key(
        [UInt8](UnsafeBufferPointer(start: tail, count: head.pointee.keyCount)))
    }
  }

  /// The entry, with the access that its lookup found in the slot.
  func entry(access: Int64, hits: UInt32) -> BlobCache.Entry {
    let head = header
    return unsafe BlobCache.Entry(
      key: key, digest: head.digest, size: head.count, lifetime: head.item.lifetime,
      written: head.item.written_ms, access: access, oldest: head.oldest, hits: Int(hits),
      expiredFor: head.expiredFor < 0 ? nil : head.expiredFor, staleWindow: head.staleWindow,
      attributes: attributes, tags: tags, isPinned: head.isPinned, isFile: head.isFile,
      generation: head.item.generation,
      keyHash: head.keyHash)
  }
}

extension bcs_memory_item {
  /// What is known before the object is there.
  @inline(__always)
  fileprivate init(_ record: borrowing bcs_record) {
    unsafe self.init()
    unsafe slot = record.slot
    unsafe generation = record.generation
    unsafe epoch = record.epoch
    unsafe written_ms = record.written_ms
    unsafe lifetime = record.lifetime
  }
}
