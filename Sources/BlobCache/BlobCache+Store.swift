extension BlobCache {
  /// Stores bytes under a key, in place of what was there. Returns when every process sees them.
  ///
  /// Cancelled while it waits in line, it throws ``Error/Code/cancelled`` and nothing was stored;
  /// later, it succeeds.
  ///
  /// - Parameters:
  ///   - bytes: the blob; any number of bytes, none included.
  ///   - key: the key.
  ///   - lifetime: how long it is fresh; nil: ``Configuration/defaultLifetime``.
  ///   - staleWindow: for how long after that it is kept, for those who ask for stale; zero: not at
  ///     all; nil: ``Configuration/defaultStaleWindow``.
  ///   - attributes: kept with the entry, 64 KiB at most.
  ///   - tags: names by which it can be removed together with others; 64 KiB at most.
  ///   - digest: if given, bytes with another SHA-256 are not stored.
  /// - Returns: the entry as it was stored.
  /// - Throws: ``Error`` with the path and the cause, ``Error/Code/invalidArgument`` for a lifetime that is
  ///   over already; what was there before is still there.
  @discardableResult
  public func store(
    _ bytes: some Collection<UInt8> & Sendable, for key: Key, lifetime: Lifetime? = nil,
    staleWindow: Duration? = nil, attributes: Attributes = [:], tags: [String] = [],
    expecting digest: Digest? = nil
  ) async throws(Error) -> Entry {
    try await operation("store") { () async throws(Error) -> Entry in
      let freshness = try checkedFreshness(lifetime, staleWindow, "store")
      let spec = try spec(key, freshness, attributes, tags)
      let entry = try await store.countingFailure { () async throws(Error) -> Entry in
        try await store.store(bytes, spec: spec, expecting: digest)
      }
      store.flights.forgetFailure(of: key)
      return entry
    }
  }

  /// What becomes of a file whose bytes are stored.
  public struct FileMode: Hashable, Sendable {
    let removesSource: Bool
    /// The file stays (its blocks are shared where the file system can).
    public static let copying = FileMode(removesSource: false)
    /// The file is removed once its bytes are stored.
    public static let moving = FileMode(removesSource: true)
  }

  /// Stores the bytes of a regular file. Symbolic links are not followed.
  ///
  /// - Parameters:
  ///   - path: the file, which must not change meanwhile.
  ///   - key: the key.
  ///   - mode: whether the file stays. Default: it does.
  ///   - lifetime: how long it is fresh; nil: ``Configuration/defaultLifetime``.
  ///   - staleWindow: for how long after that it is kept, for those who ask for stale; zero: not at
  ///     all; nil: ``Configuration/defaultStaleWindow``.
  ///   - attributes: kept with the entry, 64 KiB at most.
  ///   - tags: names by which it can be removed together with others; 64 KiB at most.
  ///   - digest: if given, bytes with another SHA-256 are not stored.
  /// - Throws: ``Error`` as for bytes; ``Error/Code/notFound`` and such for the file. It then stays
  ///   in any case. With `.moving`, an error whose operation is `unlink` says that the bytes are
  ///   stored and the file could not be removed.
  @discardableResult
  public func store(
    contentsOf path: String, for key: Key, mode: FileMode = .copying, lifetime: Lifetime? = nil,
    staleWindow: Duration? = nil, attributes: Attributes = [:], tags: [String] = [],
    expecting digest: Digest? = nil
  ) async throws(Error) -> Entry {
    try Error.checkPath(path, "store")
    return try await operation("store") { () async throws(Error) -> Entry in
      let freshness = try checkedFreshness(lifetime, staleWindow, "store")
      let spec = try spec(key, freshness, attributes, tags)
      let entry = try await store.countingFailure { () async throws(Error) -> Entry in
        try await store.store(file: path, spec: spec, expecting: digest)
      }
      store.flights.forgetFailure(of: key)
      guard mode.removesSource else { return entry }
      do throws(Error) {
        try SystemFile.remove(path)
      } catch {
        throw Error(
          error.code, operation: error.operation, path: path,
          message: "The bytes are stored, but their file could not be removed; remove it yourself.",
          cause: error.cause)
      }
      return entry
    }
  }

  /// Stores a blob that `body` writes piece by piece, in bounded memory whatever its size. Nothing
  /// is visible until it is whole; if `body` throws, nothing is stored.
  ///
  ///     try await cache.store(for: url, expecting: digest) { body in
  ///       for try await chunk in upstream { try await body.write(chunk) }
  ///     }
  ///
  /// - Parameters:
  ///   - key: the key.
  ///   - lifetime: how long it is fresh; nil: ``Configuration/defaultLifetime``.
  ///   - staleWindow: for how long after that it is kept, for those who ask for stale; zero: not at
  ///     all; nil: ``Configuration/defaultStaleWindow``.
  ///   - attributes: kept with the entry, 64 KiB at most.
  ///   - tags: names by which it can be removed together with others; 64 KiB at most.
  ///   - digest: if given, bytes with another SHA-256 are not stored.
  ///   - size: if given, another number of bytes is not stored. A body whose size is known neither from
  ///     here nor from ``Body/expect(size:)`` may take half of the directory's limit in bytes, one
  ///     that is announced all of it.
  ///   - write: writes the bytes; runs where the caller runs.
  /// - Throws: ``Error/Code/tooLarge`` before anything makes room for a body that is announced and does
  ///   not fit, or for more of one that is not announced than half of the limit; what `write` throws, unchanged; `CancellationError`; ``Error`` as for bytes, also when the
  ///   lifetime ends while they are written.
  @discardableResult
  public func store(
    for key: Key, lifetime: Lifetime? = nil, staleWindow: Duration? = nil,
    attributes: Attributes = [:], tags: [String] = [], expecting digest: Digest? = nil,
    expectingSize size: Int? = nil,
    body write: (inout Body) async throws -> Void
  ) async throws -> Entry {
    // Known before the first byte is asked for.
    try checkOpen("store")
    if isReadOnly {
      throw Error(.readOnly, operation: "store", path: directory, message: Self.readOnlyAdvice)
    }
    let freshness = try checkedFreshness(lifetime, staleWindow, "store")
    let spec = try spec(key, freshness, attributes, tags)
    try key.checkLength("store")

    var body = Body(
      staged: StagedBody(
        store: store, for: key, besides: spec.attributes.count + spec.tags.count,
        fallsBackToMemory: false))
    do {
      if let size { try await body.expect(size: size) }
      try await write(&body)
      let staged = body.staged
      return try await operation("store") { () async throws(Error) -> Entry in
        let entry = try await store.countingFailure { () async throws(Error) -> Entry in
          try await staged.finish(expecting: digest, size: size)
          // Its moment may have come while the bytes did.
          try freshness.lifetime.check("store", now: store.now)
          return try await staged.commitEntry(
            key: spec.key, lifetime: freshness, attributes: attributes, tags: tags)
        }
        store.flights.forgetFailure(of: key)
        return entry
      }
    } catch let error as Error where error.code == .cancelled && Task.isCancelled {
      body.staged.discard()
      throw CancellationError()
    } catch {
      body.staged.discard()
      throw error
    }
  }

  /// One of the blobs of ``BlobCache/storeAll(_:)``.
  public struct Item: Sendable {
    /// The key.
    public var key: Key
    /// The blob.
    public var bytes: [UInt8]
    /// How long it is fresh; nil: ``Configuration/defaultLifetime``.
    public var lifetime: Lifetime?
    /// For how long after that it is kept, for those who ask for stale; nil:
    /// ``Configuration/defaultStaleWindow``.
    public var staleWindow: Duration?
    /// Kept with the entry, 64 KiB at most.
    public var attributes: Attributes
    /// Names by which it can be removed together with others; 64 KiB at most.
    public var tags: [String]

    /// An item for ``BlobCache/storeAll(_:)``.
    public init(
      key: Key, bytes: some Collection<UInt8>, lifetime: Lifetime? = nil,
      staleWindow: Duration? = nil, attributes: Attributes = [:], tags: [String] = []
    ) {
      self.tags = tags
      self.key = key
      self.bytes = (bytes as? [UInt8]) ?? [UInt8](bytes)
      self.lifetime = lifetime
      self.staleWindow = staleWindow
      self.attributes = attributes
    }
  }

  /// Stores many blobs in their order: runs of small ones in one batch, large ones each on its own.
  /// Of items with equal keys the last one stays.
  ///
  /// - Returns: the entries, in the order of the items. Where the directory is at a limit, some may
  ///   have made room for others already.
  /// - Throws: ``Error`` of the first item that could not be stored; others may have been. None was if it
  ///   is ``Error/Code/invalidArgument``: an item's lifetime is over already, or its stale window negative.
  @discardableResult
  public func storeAll(_ items: some Sequence<Item>) async throws(Error) -> [Entry] {
    let items = Array(items)
    return try await operation("store") { () async throws(Error) -> [Entry] in
      var freshness: [Freshness] = []
      for item in items {
        freshness.append(try checkedFreshness(item.lifetime, item.staleWindow, "store"))
      }
      let entries = try await store.storeAll(items, freshness)
      for item in items { store.flights.forgetFailure(of: item.key) }
      return entries
    }
  }

  private func spec(
    _ key: Key, _ freshness: Freshness, _ attributes: Attributes, _ tags: [String]
  ) throws(Error) -> EntrySpec {
    try EntrySpec(
      key: key, lifetime: freshness, attributes: attributes, tags: tags, now: store.now)
  }

  static let readOnlyAdvice =
    "The cache was opened for reading only; open it for writing to change it."
}
