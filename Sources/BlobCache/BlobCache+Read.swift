extension BlobCache {
  /// The blob under a key; nil when there is none, or it is expired. Counts as an access.
  ///
  /// Synchronous: takes no lock that a writer holds. A blob in a file is read and verified on the
  /// calling thread; ``fetch(_:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)`` does that elsewhere when it is
  /// large.
  ///
  /// - Throws: ``Error`` when the cache is closed, the process was forked, or the key is too long;
  ///   nothing else: damage is a miss (and heals in the background), and so is trouble with
  ///   reading.
  @inline(__always)
  public func blob(for key: Key) throws(Error) -> Blob? {
    try checkOpen("lookup")
    if case .hit(let blob) = try store.lookup(key) { return blob }
    return nil
  }

  /// Calls `body` with the bytes under a key, in place: no copy, no allocation of a blob. Counts as
  /// an access.
  ///
  ///     let sum = try cache.withBytes(for: key) { bytes in checksum(bytes) }
  ///
  /// - Parameters:
  ///   - key: the key.
  ///   - body: gets the bytes. It must be short, since pages of the index stay in use meanwhile,
  ///     and must not call the
  ///     cache.
  /// - Returns: what `body` returns; nil, without calling it, when there is no fresh entry.
  /// - Throws: what `body` throws, unchanged; ``Error`` as ``blob(for:)-(Key)``.
  @inlinable
  public func withBytes<R>(for key: Key, _ body: (RawSpan) throws -> R) throws -> R? {
    // Inlinable, so that the caller's compiler knows R: generic code would spend a quarter of a hit on its metadata.
    var result: R?
    var failure: (any Swift.Error)?
    try unsafe lookUpBytes(of: key) { bytes in
      do {
        result = try body(unsafe RawSpan(_unsafeBytes: bytes))
      } catch {
        failure = error
      }
    }
    if let failure { throw failure }
    return result
  }

  @usableFromInline
  func lookUpBytes(of key: Key, _ body: (UnsafeRawBufferPointer) -> Void) throws(Error) {
    try checkOpen("lookup")
    _ = try unsafe store.withBytes(of: key, body)
  }

  /// A blob with this content, under whatever key; nil when there is none that is fresh. Counts as
  /// an access.
  ///
  /// - Throws: ``Error`` as ``blob(for:)-(Key)``.
  public func blob(withDigest digest: Digest) throws(Error) -> Blob? {
    try checkOpen("lookup")
    return try store.lookup(digest: digest)
  }

  /// What is known of a key, expired or not; nil when there is no entry. Not an access; no bytes
  /// are read.
  ///
  /// - Throws: ``Error`` as ``blob(for:)-(Key)``.
  public func entry(for key: Key) throws(Error) -> Entry? {
    try checkOpen("entry")
    return try store.entry(of: key)
  }

  /// Whether there is a fresh entry. Not an access; its bytes are not looked at.
  ///
  /// - Throws: ``Error`` as ``blob(for:)-(Key)``.
  public func contains(_ key: Key) throws(Error) -> Bool {
    guard let entry = try entry(for: key) else { return false }
    return !entry.isExpired
  }
}
