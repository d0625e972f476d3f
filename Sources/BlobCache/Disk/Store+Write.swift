internal import CBlobStore

/// What is written beside the bytes, encoded once.
struct EntrySpec: Sendable {
  let key: BlobCache.Key
  let attributes: [UInt8]
  let lifetime: bcs_lifetime
  let now: Int64
  /// As a record keeps them.
  var tags: [UInt8] = []
  /// For how many milliseconds after its expiry it is kept; negative, for a renewal: as it was.
  let staleWindow: Int64
  /// For a renewal that keeps the attributes, or the tags.
  var keepsAttributes = false
  var keepsTags = false

  init(
    key: BlobCache.Key, lifetime: Freshness, attributes: BlobCache.Attributes?,
    tags: [String]? = [], now: Int64
  ) throws(BlobCache.Error) {
    self.key = key
    self.tags = try TagCoding.encode(tags ?? [])
    keepsTags = tags == nil
    self.attributes = try attributes?.encoded() ?? []
    self.lifetime = lifetime.stored(at: now)
    staleWindow = lifetime.staleWindow
    self.now = now
    keepsAttributes = attributes == nil
  }

  /// What a queued write of it keeps in memory beside the body, roughly.
  var cost: Int { key.byteCount + attributes.count + tags.count + 512 }

  func withUnsafeSpec<R>(_ body: (UnsafePointer<bcs_entry_spec>) -> R) -> R {
    unsafe key.withUnsafeBytes { key in
      unsafe attributes.withUnsafeBytes { attributes in
        unsafe tags.withUnsafeBytes { tags in
          // An empty array has no address, but C tells "none" from "keep them" by it.
          var none: UInt8 = 0
          return unsafe withUnsafePointer(to: &none) { none in
            var spec = unsafe bcs_entry_spec(
              key: key.baseAddress, key_count: key.count,
              attributes: keepsAttributes
                ? nil : attributes.baseAddress ?? UnsafeRawPointer(none),
              attributes_count: attributes.count,
              tags: keepsTags ? nil : tags.baseAddress ?? UnsafeRawPointer(none),
              tags_count: tags.count, lifetime: lifetime, stale_ms: staleWindow, now_ms: now)
            return unsafe body(&spec)
          }
        }
      }
    }
  }
}

extension Store {
  // MARK: Preparing

  /// A body that stands in the index. Hashes it if no digest is given.
  func prepareInline(
    _ spec: EntrySpec, _ bytes: UnsafeBufferPointer<UInt8>, digest: BlobCache.Digest? = nil
  ) throws(BlobCache.Error) -> PreparedWrite {
    try unsafe required(
      PreparedWrite.make(handle, "store") { store, out in
        unsafe spec.withUnsafeSpec { spec in
          if let digest {
            unsafe digest.withBytes { digest in
              unsafe bcs_write_inline(
                store, spec, bytes.baseAddress, bytes.count, digest, &out)
            }
          } else {
            unsafe bcs_write_inline(store, spec, bytes.baseAddress, bytes.count, nil, &out)
          }
        }
      })
  }

  /// A body whose file is there already; nil when it is not. May block.
  func prepareShared(
    _ spec: EntrySpec, digest: BlobCache.Digest, size: Int
  ) throws(BlobCache.Error) -> PreparedWrite? {
    try unsafe PreparedWrite.make(handle, "store") { store, out in
      unsafe spec.withUnsafeSpec { spec in
        unsafe digest.withBytes { digest in
          unsafe bcs_write_shared(store, spec, digest, UInt64(size), &out)
        }
      }
    }
  }

  /// A finished stage. May block.
  func prepareStaged(_ spec: EntrySpec, _ stage: Stage) throws(BlobCache.Error) -> PreparedWrite {
    try required(
      unsafe stage.prepare { store, stage, out in
        unsafe spec.withUnsafeSpec { spec in
          unsafe bcs_write_staged(store, spec, stage, &out)
        }
      })
  }

  private func required(_ write: PreparedWrite?) throws(BlobCache.Error) -> PreparedWrite {
    guard let write else { throw BlobCache.Error(BCS_INVALID, operation: "store") }
    return write
  }

  // MARK: Committing

  /// Commits one store and returns when every process sees it.
  /// - Throws: what went wrong; `.busy` for BCS_NEED_BODY, which only shared writes can meet.
  func commit(
    _ write: PreparedWrite, inPlace: Bool, operation: String = "store"
  ) async throws(BlobCache.Error) {
    try await queue.commit([write], inPlace: inPlace && commitsInPlace)
    let status = try write.outcome(operation)
    guard status == BCS_OK else { throw BlobCache.Error(status, operation: operation) }
    counters.stores.add()
  }

  /// Counts a store that fails, wherever on its way.
  func countingFailure<R>(
    _ body: () async throws(BlobCache.Error) -> R
  ) async throws(BlobCache.Error) -> R {
    do throws(BlobCache.Error) {
      return try await body()
    } catch {
      if error.code != .cancelled { counters.failedStores.add() }
      throw error
    }
  }

  /// Stores bytes that are at hand.
  func store<Bytes: Collection<UInt8> & Sendable>(
    _ bytes: Bytes, spec: EntrySpec, expecting digest: BlobCache.Digest?
  ) async throws(BlobCache.Error) -> BlobCache.Entry {
    guard bytes.count <= inlineThreshold else {
      return try await storeLarge(bytes, spec: spec, expecting: digest)
    }
    let cost = spec.cost + bytes.count
    try await queue.admit(cost)
    defer { queue.release(cost) }
    let write = try prepareInline(spec, bytes, expecting: digest)
    try await commit(write, inPlace: true)
    return write.entry(now: spec.now)
  }

  /// As above, for any collection, checked against a digest if one is given.
  func prepareInline(
    _ spec: EntrySpec, _ bytes: some Collection<UInt8>, expecting expected: BlobCache.Digest?
  ) throws(BlobCache.Error) -> PreparedWrite {
    func prepare(
      _ buffer: UnsafeBufferPointer<UInt8>
    ) -> Result<PreparedWrite, BlobCache.Error> {
      Result { () throws(BlobCache.Error) -> PreparedWrite in
        var digest: BlobCache.Digest?
        if let expected {
          digest = unsafe BlobCache.Digest(hashing: buffer)
          try check(digest, expected)
        }
        return try unsafe prepareInline(spec, buffer, digest: digest)
      }
    }
    let prepared =
      unsafe bytes.withContiguousStorageIfAvailable(prepare)
      ?? [UInt8](bytes).withUnsafeBufferPointer(prepare)
    return try prepared.get()
  }

  private func storeLarge<Bytes: Collection<UInt8> & Sendable>(
    _ bytes: Bytes, spec: EntrySpec, expecting expected: BlobCache.Digest?
  ) async throws(BlobCache.Error) -> BlobCache.Entry {
    let shared = try await BlockingPool.shared.attempt {
      [self] () throws(BlobCache.Error) -> PreparedWrite in
      let digest = BlobCache.Digest(hashing: bytes)
      if let expected { try check(digest, expected) }
      // Content that is there already is not written a second time.
      if let write = try prepareShared(spec, digest: digest, size: bytes.count) { return write }
      return try stage(bytes, spec)
    }
    try await queue.commit([shared], inPlace: false)
    if try shared.outcome("store") == BCS_NEED_BODY {
      // The file went away in between.
      let staged = try await BlockingPool.shared.attempt {
        [self] () throws(BlobCache.Error) -> PreparedWrite in try stage(bytes, spec)
      }
      try await commit(staged, inPlace: false)
      return staged.entry(now: spec.now)
    }
    counters.stores.add()
    return shared.entry(now: spec.now)
  }

  /// Blocks.
  private func stage(
    _ bytes: some Collection<UInt8>, _ spec: EntrySpec
  ) throws(BlobCache.Error) -> PreparedWrite {
    let stage = try begin(spec)
    try stage.expect(bytes.count)
    func write(_ buffer: UnsafeBufferPointer<UInt8>) -> Result<Void, BlobCache.Error> {
      Result { () throws(BlobCache.Error) -> Void in
        try unsafe stage.write(UnsafeRawBufferPointer(buffer))
      }
    }
    let written =
      unsafe bytes.withContiguousStorageIfAvailable(write)
      ?? [UInt8](bytes).withUnsafeBufferPointer(write)
    try written.get()
    _ = try stage.finish()
    return try prepareStaged(spec, stage)
  }

  private func begin(_ spec: EntrySpec) throws(BlobCache.Error) -> Stage {
    let stage = try Stage.begin(handle)
    try stage.belongs(to: spec.key, besides: spec.attributes.count + spec.tags.count)
    return stage
  }

  /// Stores many: small ones in batches of at most half the queue's bound, large ones on their own.
  func storeAll(
    _ items: [BlobCache.Item], _ freshness: [Freshness]
  ) async throws(BlobCache.Error) -> [BlobCache.Entry] {
    let now = now
    var entries: [BlobCache.Entry?] = Array(repeating: nil, count: items.count)
    var specs: [EntrySpec] = []
    for (item, freshness) in zip(items, freshness) {
      // All of them, before anything is stored.
      specs.append(
        try EntrySpec(
          key: item.key, lifetime: freshness, attributes: item.attributes, tags: item.tags,
          now: now))
    }
    var index = 0
    while index < items.count {
      if items[index].bytes.count > inlineThreshold {
        entries[index] = try await store(items[index].bytes, spec: specs[index], expecting: nil)
        index += 1
        continue
      }
      let start = index
      var cost = 0
      while index < items.count, items[index].bytes.count <= inlineThreshold,
        cost < WriteQueue.byteLimit / 2
      {
        cost += specs[index].cost + items[index].bytes.count
        index += 1
      }
      try await queue.admit(cost)
      defer { queue.release(cost) }
      var writes: [PreparedWrite] = []
      for item in start..<index {
        writes.append(try prepareInline(specs[item], items[item].bytes, expecting: nil))
      }
      try await queue.commit(writes, inPlace: false)
      var failure: BlobCache.Error?
      for (item, write) in zip(start..., writes) {
        do throws(BlobCache.Error) {
          let status = try write.outcome("store")
          guard status == BCS_OK else { throw BlobCache.Error(status, operation: "store") }
          entries[item] = write.entry(now: now)
          counters.stores.add()
        } catch {
          counters.failedStores.add()
          failure = failure ?? error
        }
      }
      if let failure { throw failure }
    }
    return entries.compactMap(\.self)
  }

  /// Copies a file into the store.
  func store(
    file path: String, spec: EntrySpec, expecting expected: BlobCache.Digest?
  ) async throws(BlobCache.Error) -> BlobCache.Entry {
    let write = try await BlockingPool.shared.attempt {
      [self] () throws(BlobCache.Error) -> PreparedWrite in
      let stage = try begin(spec)
      try stage.copy(file: path)
      let digest = try stage.finish().digest
      if let expected { try check(digest, expected) }
      return try prepareStaged(spec, stage)
    }
    try await commit(write, inPlace: false)
    return write.entry(now: spec.now)
  }

  func check(
    _ digest: BlobCache.Digest?, _ expected: BlobCache.Digest
  ) throws(BlobCache.Error) {
    guard digest == expected else {
      throw BlobCache.Error(
        .digestMismatch, operation: "store", path: handle.info.path,
        message: "The bytes do not have the digest that was expected; nothing was stored."
          + " Bring them again, or correct the digest.",
        cause: "SHA-256 is \(digest?.hex ?? "unknown"), expected \(expected.hex)")
    }
  }

  // MARK: Removing, renewing

  /// Removes an entry; false if there was none.
  func remove(_ key: BlobCache.Key) async throws(BlobCache.Error) -> Bool {
    // First the flight, so that what it brings is not stored after the removal.
    await flights.detach(key)
    let write = try unsafe required(
      PreparedWrite.make(handle, "remove") { store, out in
        unsafe key.withUnsafeBytes { key in
          unsafe bcs_write_remove(store, key.baseAddress, key.count, &out)
        }
      })
    try await queue.commit([write], inPlace: commitsInPlace)
    let removed = try write.outcome("remove") == BCS_OK
    if removed { counters.removals.add() }
    return removed
  }

  /// Removes everything.
  func removeAll() async throws(BlobCache.Error) {
    await flights.detachAll()
    let write = try unsafe required(
      PreparedWrite.make(handle, "removeAll") { store, out in
        unsafe bcs_write_clear(store, &out)
      })
    try await queue.commit([write], inPlace: false)
    _ = try write.outcome("removeAll")
  }

  /// Gives an entry a new lifetime and, unless nil, new attributes; the bytes stay.
  ///
  /// - Parameter generation: renews only the entry that still has it; 0: whatever is there.
  /// - Returns: nil if there is no such entry (any more).
  func renew(
    key: BlobCache.Key, generation: UInt64, lifetime: Freshness,
    attributes: BlobCache.Attributes?, tags: [String]? = nil
  ) async throws(BlobCache.Error) -> BlobCache.Entry? {
    let spec = try EntrySpec(
      key: key, lifetime: lifetime, attributes: attributes, tags: tags, now: now)
    let write = try unsafe required(
      PreparedWrite.make(handle, "renew") { store, out in
        unsafe spec.withUnsafeSpec { unsafe bcs_write_renew(store, $0, generation, &out) }
      })
    try await queue.commit([write], inPlace: commitsInPlace)
    return try write.outcome("renew") == BCS_OK ? write.entry(now: spec.now) : nil
  }
}
