extension BlobCache {
  /// A loader's place to write to, and what the cache knows of the key so far.
  ///
  /// It is given to the loader of ``BlobCache/fetch(_:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)``, belongs
  /// to it alone, and ends with it.
  public struct Load: ~Copyable, Sendable {
    /// The key that is wanted.
    public let key: Key

    /// What was stored under the key before: an expired entry, or for ``FetchPolicy/reload`` any.
    /// Nil if there is none, and also when the bytes on the disk turned out to be damaged.
    ///
    /// Its bytes stay readable as long as it is held, even if the entry is removed meanwhile. Its
    /// attributes are the place for validators such as an ETag.
    public let previous: Blob?

    let body: StagedBody

    /// Announces how many bytes the blob will have in all, where the origin tells (a `Content-Length`). A body
    /// of another size fails the load, with ``Error/Code/sizeMismatch``.
    ///
    /// An announced blob may take all of the directory's limit in bytes. Without an announcement it is
    /// stored only up to half of it, so that at least about half of what is there stays. One that
    /// does not fit is handed over all the same, marked as not stored, up to 64 MiB.
    ///
    /// - Throws: ``Error``: what keeps it from being stored, ``Error/Code/tooLarge`` as a rule, where it has
    ///   more than 64 MiB, before anything makes room for it; let it pass.
    ///   ``Error/Code/invalidArgument`` for a negative size.
    public mutating func expect(size: Int) async throws(BlobCache.Error) {
      try await body.expect(size)
    }

    /// Appends bytes to the blob. Call it as often as the bytes come: what was written goes to a
    /// file in the cache's directory once it is more than a little, so memory stays bounded.
    ///
    /// A full disk is not the loader's trouble, nor a blob larger than the limit: the bytes are then kept in memory for those who wait
    /// and marked as not stored.
    ///
    /// - Throws: ``Error`` with code ``Error/Code/cancelled`` when the load was cancelled since
    ///   nobody waits for it any more, and ``Error/Code/closed`` when its cache was closed; let them
    ///   pass. Other codes when the bytes can be kept nowhere.
    public mutating func write(_ bytes: some Collection<UInt8>) async throws(BlobCache.Error) {
      try await body.write(bytes)
    }
  }
}
