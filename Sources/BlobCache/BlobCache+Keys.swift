// Every method that takes a key, for whatever is KeyConvertible: a String, bytes, a type of the
// user's own.

extension BlobCache {
  /// See ``blob(for:)-(Key)``.
  @inline(__always)
  public func blob(for key: some KeyConvertible) throws(Error) -> Blob? {
    try blob(for: key.blobCacheKey)
  }

  /// See ``withBytes(for:_:)-(Key,_)``.
  @inline(__always)
  public func withBytes<R>(
    for key: some KeyConvertible, _ body: (RawSpan) throws -> R
  ) throws -> R? {
    try withBytes(for: key.blobCacheKey, body)
  }

  /// See ``entry(for:)-(Key)``.
  public func entry(for key: some KeyConvertible) throws(Error) -> Entry? {
    try entry(for: key.blobCacheKey)
  }

  /// See ``contains(_:)-(Key)``.
  public func contains(_ key: some KeyConvertible) throws(Error) -> Bool {
    try contains(key.blobCacheKey)
  }

  /// Stores bytes; see the form that takes a ``Key``.
  @discardableResult
  public func store(
    _ bytes: some Collection<UInt8> & Sendable, for key: some KeyConvertible,
    lifetime: Lifetime? = nil, staleWindow: Duration? = nil, attributes: Attributes = [:],
    tags: [String] = [], expecting digest: Digest? = nil
  ) async throws(Error) -> Entry {
    try await store(
      bytes, for: key.blobCacheKey, lifetime: lifetime, staleWindow: staleWindow,
      attributes: attributes, tags: tags, expecting: digest)
  }

  /// Stores a file; see the form that takes a ``Key``.
  @discardableResult
  public func store(
    contentsOf path: String, for key: some KeyConvertible, mode: FileMode = .copying,
    lifetime: Lifetime? = nil, staleWindow: Duration? = nil, attributes: Attributes = [:],
    tags: [String] = [],
    expecting digest: Digest? = nil
  ) async throws(Error) -> Entry {
    try await store(
      contentsOf: path, for: key.blobCacheKey, mode: mode, lifetime: lifetime,
      staleWindow: staleWindow, attributes: attributes, tags: tags, expecting: digest)
  }

  /// Stores what `body` writes; see the form that takes a ``Key``.
  @discardableResult
  public func store(
    for key: some KeyConvertible, lifetime: Lifetime? = nil, staleWindow: Duration? = nil,
    attributes: Attributes = [:], tags: [String] = [], expecting digest: Digest? = nil,
    expectingSize size: Int? = nil, body: (inout Body) async throws -> Void
  ) async throws -> Entry {
    try await store(
      for: key.blobCacheKey, lifetime: lifetime, staleWindow: staleWindow, attributes: attributes,
      tags: tags,
      expecting: digest, expectingSize: size, body: body)
  }

  /// See ``remove(_:)-(Key)``.
  @discardableResult
  public func remove(_ key: some KeyConvertible) async throws(Error) -> Bool {
    try await remove(key.blobCacheKey)
  }

  /// See ``removeAll(withPrefix:)-(Key)``.
  @discardableResult
  public func removeAll(withPrefix prefix: some KeyConvertible) async throws(Error) -> Int {
    try await removeAll(withPrefix: prefix.blobCacheKey)
  }

  /// See ``pin(_:)-(Key)``.
  public func pin(_ key: some KeyConvertible) async throws(Error) {
    try await pin(key.blobCacheKey)
  }

  /// See ``unpin(_:)-(Key)``.
  public func unpin(_ key: some KeyConvertible) async throws(Error) {
    try await unpin(key.blobCacheKey)
  }

  /// See ``renew(_:lifetime:staleWindow:)-(Key,_,_)``.
  @discardableResult
  public func renew(
    _ key: some KeyConvertible, lifetime: Lifetime, staleWindow: Duration? = nil
  ) async throws(Error) -> Bool {
    try await renew(key.blobCacheKey, lifetime: lifetime, staleWindow: staleWindow)
  }

  /// See ``entries(withPrefix:)-(Key?)``.
  public func entries(withPrefix prefix: some KeyConvertible) -> Entries {
    entries(withPrefix: Optional(prefix.blobCacheKey))
  }
}
