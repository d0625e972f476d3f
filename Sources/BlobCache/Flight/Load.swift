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

    /// Appends bytes to the blob. Call it as often as the bytes come: what was written goes to a
    /// file in the cache's directory once it is more than a little, so memory stays bounded.
    ///
    /// A full disk is not the loader's trouble: the bytes are then kept in memory for those who wait
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
