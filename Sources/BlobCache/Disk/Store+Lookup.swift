internal import CBlobStore

/// What a lookup gives.
enum Lookup: Sendable {
  case hit(BlobCache.Blob)
  case miss
  /// Only with `quick`: look up again on the BlockingPool, without it.
  case wouldBlock
}

/// Where the C callback leaves what was found; on the stack of the lookup.
@safe private struct Found {
  var storage: BlobStorage?
  let now: Int64
  /// The store, if the memory tier is to be asked whether it wants it.
  var keeper: OpaquePointer?
  var isWanted = false

  init(now: Int64) {
    self.now = now
    unsafe keeper = nil
  }
}

private struct FoundEntry {
  var entry: BlobCache.Entry?
  let now: Int64
}

/// Where the C callback finds whom to give the bytes.
@safe private struct Reader {
  let body: (UnsafeRawBufferPointer) -> Void
  var found: Found
}

extension Store {
  /// Looks a key up: in memory, then in the index by one C call, with one allocation on a hit. Counts
  /// as an access.
  ///
  /// - Parameters:
  ///   - quick: answers `.wouldBlock` where more than 64 KiB would have to be read or hashed.
  ///   - freshOnly: an expired entry is a miss; else it is a hit whose entry says `isExpired`.
  ///   - touch: whether it counts as an access.
  /// - Throws: `.closed`, `.forked`, `.keyTooLong`; other trouble is a miss, counted and told to
  ///   `onEvent`.
  @inline(__always)
  func lookup(
    _ key: BlobCache.Key, quick: Bool = false, freshOnly: Bool = true, touch: Bool = true
  ) throws(BlobCache.Error) -> Lookup {
    var flags: UInt32 = 0
    if freshOnly { flags |= BCS_LOOKUP_FRESH_ONLY.rawValue }
    if touch && !isReadOnly { flags |= BCS_LOOKUP_TOUCH.rawValue }
    if quick { flags |= BCS_LOOKUP_QUICK.rawValue }
    let now = now
    var found = Found(now: now)
    if hasMemory && freshOnly && touch {
      if let blob = recall(key, now: now) { return .hit(blob) }
      unsafe found.keeper = handle.pointer
    }
    var damage = bcs_damage()
    let status = try unsafe handle.use("lookup") { store throws(BlobCache.Error) in
      unsafe key.withUnsafeBytes { bytes in
        unsafe withUnsafeMutablePointer(to: &found) { found in
          unsafe bcs_lookup(
            store, bytes.baseAddress, bytes.count, now, flags, keepBlob, found, &damage)
        }
      }
    }
    if let storage = found.storage {
      if found.isWanted { remember(storage) }
      return .hit(
        BlobCache.Blob(storage: storage, source: storage.header.isFile ? .file : .index))
    }
    if status == BCS_MISS { return .miss }
    if status == BCS_WOULD_BLOCK { return .wouldBlock }
    try handleFailure(status, damage, key: key)
    return .miss
  }

  /// Looks content up. As above.
  func lookup(digest: BlobCache.Digest) throws(BlobCache.Error) -> BlobCache.Blob? {
    var flags = BCS_LOOKUP_FRESH_ONLY.rawValue
    if !isReadOnly { flags |= BCS_LOOKUP_TOUCH.rawValue }
    var found = Found(now: now)
    let now = found.now
    var damage = bcs_damage()
    let status = try unsafe handle.use("lookup") { store throws(BlobCache.Error) in
      unsafe digest.withBytes { bytes in
        unsafe withUnsafeMutablePointer(to: &found) { found in
          unsafe bcs_lookup_digest(store, bytes, now, flags, keepBlob, found, &damage)
        }
      }
    }
    if let storage = found.storage {
      return BlobCache.Blob(storage: storage, source: storage.header.isFile ? .file : .index)
    }
    if status != BCS_MISS { try handleFailure(status, damage, key: nil) }
    return nil
  }

  /// Gives the bytes of a fresh entry to `body`, which must be short: it keeps pages of the index
  /// alive.
  /// - Returns: whether it was called.
  @inline(__always)
  func withBytes(
    of key: BlobCache.Key, _ body: (UnsafeRawBufferPointer) -> Void
  ) throws(BlobCache.Error) -> Bool {
    var flags = BCS_LOOKUP_FRESH_ONLY.rawValue
    if !isReadOnly { flags |= BCS_LOOKUP_TOUCH.rawValue }
    let now = now
    var found = Found(now: now)
    if hasMemory {
      if unsafe recall(key, now: now, body) { return true }
      unsafe found.keeper = handle.pointer
    }
    var damage = bcs_damage()
    // The closure does not outlive this call; C needs it behind a pointer.
    let status = try unsafe withoutActuallyEscaping(body) {
      (body) throws(BlobCache.Error) -> bcs_status in
      var reader = unsafe Reader(body: body, found: found)
      let status = try unsafe handle.use("lookup") { store throws(BlobCache.Error) in
        unsafe key.withUnsafeBytes { bytes in
          unsafe withUnsafeMutablePointer(to: &reader) { reader in
            unsafe bcs_lookup(
              store, bytes.baseAddress, bytes.count, now, flags, readBytes, reader, &damage)
          }
        }
      }
      if let storage = reader.found.storage { remember(storage) }
      return status
    }
    if status == BCS_OK { return true }
    if status == BCS_MISS { return false }
    try handleFailure(status, damage, key: key)
    return false
  }

  /// The entry of a key, expired or not; not an access, and no file is opened.
  func entry(of key: BlobCache.Key) throws(BlobCache.Error) -> BlobCache.Entry? {
    var found = FoundEntry(now: now)
    let now = found.now
    var damage = bcs_damage()
    let status = try unsafe handle.use("entry") { store throws(BlobCache.Error) in
      unsafe key.withUnsafeBytes { bytes in
        unsafe withUnsafeMutablePointer(to: &found) { found in
          unsafe bcs_lookup(
            store, bytes.baseAddress, bytes.count, now, BCS_LOOKUP_METADATA.rawValue, keepEntry,
            found, &damage)
        }
      }
    }
    if let entry = found.entry { return entry }
    if status != BCS_MISS { try handleFailure(status, damage, key: key, operation: "entry") }
    return nil
  }

  // MARK: Trouble

  /// Off the hot path: damage is healed in the background, other trouble counted and told.
  @inline(never)
  private func handleFailure(
    _ status: bcs_status, _ damage: bcs_damage, key: BlobCache.Key?, operation: String = "lookup"
  ) throws(BlobCache.Error) {
    let error = status.lastError(operation)
    switch status {
    case BCS_OK, BCS_MISS:
      return
    case BCS_CLOSED, BCS_FORKED, BCS_KEY_TOO_LONG:
      throw error
    case BCS_DAMAGED:
      counters.damaged.add()
      emit(.damaged(key: key, error: error))
      heal(damage)
    default:
      counters.failedLookups.add()
      emit(.lookupFailed(key: key, error: error))
    }
  }

  /// Queues the removal of a damaged entry, and awaits nothing.
  private func heal(_ damage: bcs_damage) {
    guard !isReadOnly else { return }
    do throws(BlobCache.Error) {
      guard let write = try prepareHeal(damage) else { return }
      queue.commitInBackground(write) { [self] write in
        do throws(BlobCache.Error) {
          _ = try write.outcome("heal")
        } catch {
          emit(.backgroundError(error))
        }
      }
    } catch {
      emit(.backgroundError(error))
    }
  }

  func prepareHeal(_ damage: bcs_damage) throws(BlobCache.Error) -> PreparedWrite? {
    var damage = damage
    return try unsafe PreparedWrite.make(handle, "heal") { store, out in
      unsafe bcs_write_heal(store, &damage, &out)
    }
  }
}

// MARK: The C callbacks

private func keepBlob(
  context: UnsafeMutableRawPointer?, record: UnsafePointer<bcs_record>?,
  body: UnsafeMutablePointer<bcs_body>?
) {
  guard let found = unsafe context?.assumingMemoryBound(to: Found.self), let record = unsafe record
  else { return }
  unsafe found.pointee.askKeeper(record, body)
  unsafe found.pointee.storage = BlobStorage.make(record, body, now: found.pointee.now)
}

extension Found {
  /// Before the body is taken over.
  @inline(__always)
  fileprivate mutating func askKeeper(
    _ record: UnsafePointer<bcs_record>, _ body: UnsafeMutablePointer<bcs_body>?
  ) {
    if let keeper = unsafe keeper, let body = unsafe body {
      isWanted = unsafe bcs_memory_wants(keeper, record, body)
    }
  }
}

private func keepEntry(
  context: UnsafeMutableRawPointer?, record: UnsafePointer<bcs_record>?,
  body: UnsafeMutablePointer<bcs_body>?
) {
  guard let found = unsafe context?.assumingMemoryBound(to: FoundEntry.self),
    let record = unsafe record
  else { return }
  unsafe found.pointee.entry = BlobCache.Entry(record.pointee, now: found.pointee.now)
}

private func readBytes(
  context: UnsafeMutableRawPointer?, record: UnsafePointer<bcs_record>?,
  body: UnsafeMutablePointer<bcs_body>?
) {
  guard let reader = unsafe context?.assumingMemoryBound(to: Reader.self),
    let record = unsafe record, let body = unsafe body
  else { return }
  unsafe reader.pointee.found.askKeeper(record, body)
  if unsafe reader.pointee.found.isWanted {
    let storage = unsafe BlobStorage.make(record, body, now: reader.pointee.found.now)
    unsafe reader.pointee.found.storage = storage
    return unsafe reader.pointee.body(storage.bytes)
  }
  unsafe reader.pointee.body(
    UnsafeRawBufferPointer(start: body.pointee.bytes, count: body.pointee.count))
}
