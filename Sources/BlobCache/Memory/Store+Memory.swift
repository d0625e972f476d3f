internal import CBlobStore

/// Between lookups and the memory tier, whose table is C's (memory.c tells how it stays coherent).
///
/// The tier holds a `BlobStorage` by one reference of Swift's. A hit is guarded by a pin until it has
/// a reference of its own, or until the body of `withBytes` has returned.
extension Store {
  /// A fresh blob that is kept in memory; nil: ask the index. Counts as an access when there is one.
  @inline(__always)
  func recall(_ key: BlobCache.Key, now: Int64) -> BlobCache.Blob? {
    var hit = unsafe bcs_memory_hit()
    guard unsafe find(key, now, &hit), let owner = unsafe hit.item.pointee.owner else { return nil }
    // A reference of its own, before the tier may let its one go.
    let storage = unsafe Unmanaged<BlobStorage>.fromOpaque(owner).retain().takeRetainedValue()
    unsafe bcs_memory_leave(&hit)
    return unsafe BlobCache.Blob(
      storage: storage, source: .memory, access: hit.access_ms, hits: hit.hits)
  }

  /// Gives the bytes of a fresh blob that is kept in memory to `body`.
  /// - Returns: whether it was called.
  @inline(__always)
  func recall(
    _ key: BlobCache.Key, now: Int64, _ body: (UnsafeRawBufferPointer) -> Void
  ) -> Bool {
    var hit = unsafe bcs_memory_hit()
    guard unsafe find(key, now, &hit) else { return false }
    unsafe body(
      UnsafeRawBufferPointer(start: hit.item.pointee.bytes, count: hit.item.pointee.count))
    unsafe bcs_memory_leave(&hit)
    return true
  }

  @inline(__always)
  private func find(_ key: BlobCache.Key, _ now: Int64, _ hit: inout bcs_memory_hit) -> Bool {
    unsafe key.withUnsafeBytes { bytes in
      unsafe bcs_memory_find(handle.pointer, bytes.baseAddress, bytes.count, now, &hit)
    }
  }

  /// Keeps what a lookup has just made of an entry, if it is still the newest and there is room.
  func remember(_ storage: BlobStorage) {
    let owner = unsafe Unmanaged.passRetained(storage)
    let isKept = unsafe storage.withUnsafeMutablePointers { head, tail in
      guard let item = unsafe head.pointer(to: \.item) else { return false }
      let (keyCount, rest) = unsafe (
        head.pointee.keyCount, head.pointee.attributesCount + head.pointee.tagsCount
      )
      unsafe item.pointee.key = UnsafePointer(tail)
      unsafe item.pointee.key_count = UInt32(truncatingIfNeeded: keyCount)
      unsafe item.pointee.bytes =
        head.pointee.body.owned ? head.pointee.body.bytes : UnsafePointer(tail + keyCount + rest)
      unsafe item.pointee.count = head.pointee.count
      unsafe item.pointee.owner = owner.toOpaque()
      unsafe item.pointee.cost = keyCount + rest + head.pointee.count
      return unsafe bcs_memory_put(handle.pointer, item)
    }
    if !isKept { unsafe owner.release() }
  }
}

extension StoreHandle {
  /// Once, before the store is shared.
  func startMemory(_ memory: BlobCache.MemoryTier) {
    unsafe bcs_memory_start(
      pointer, UInt64(clamping: memory.bytes), UInt64(clamping: memory.entries)
    ) {
      owner in
      if let owner = unsafe owner { unsafe Unmanaged<BlobStorage>.fromOpaque(owner).release() }
    }
  }
}
