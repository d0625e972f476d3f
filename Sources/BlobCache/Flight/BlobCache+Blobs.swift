extension BlobCache {
  /// The copy at hand, even a stale one, and then the fresh one if it is another: show the old picture
  /// now, and the new one when it comes.
  ///
  ///     for try await blob in cache.blobs(for: url, loader: download) { view.show(blob.data) }
  ///
  /// At most two blobs:
  /// 1. What is there: a fresh entry, which is then the only one, or an expired one within its stale
  ///    window, with source ``Blob/Source-swift.enum/stale``.
  /// 2. What a load brings that begins when the second one is asked for, as by
  ///    ``fetch(_:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)``; it does not come if its
  ///    digest is that of the first. So the end of the loop says that the last blob is up to date.
  ///
  /// Nothing runs that is not waited for: who leaves the loop after the first blob begins no load.
  ///
  /// - Parameters:
  ///   - key: names the blob.
  ///   - lifetime: of what the loader brings; nil: the configuration's default.
  ///   - staleWindow: for how long after that it is kept; nil: the configuration's default.
  ///   - policy: with ``FetchPolicy/reload``, a fresh entry is given first, too, and loaded anew; with
  ///     ``FetchPolicy/cacheOnly``, nothing is loaded. The window of ``FetchPolicy/staleWhileRevalidate(for:)-swift.method``
  ///     limits the age of the first blob; with ``FetchPolicy/staleIfError(for:)-swift.method``, a load
  ///     that fails ends the sequence without an error, once the first blob was given.
  ///   - attributes: stored with what the loader brings.
  ///   - tags: the same.
  ///   - loader: as for `fetch`.
  /// - Returns: a sequence that throws what `fetch` does. Each iteration of it begins anew.
  public func blobs(
    for key: Key, lifetime: Lifetime? = nil, staleWindow: Duration? = nil,
    policy: FetchPolicy = .cacheFirst, attributes: Attributes = [:], tags: [String] = [],
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) -> Blobs {
    Blobs(
      cache: self, key: key, lifetime: lifetime, staleWindow: staleWindow, policy: policy,
      attributes: attributes, tags: tags, loader: loader)
  }

  /// ``blobs(for:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)`` for whatever names blobs.
  public func blobs(
    for key: some KeyConvertible, lifetime: Lifetime? = nil, staleWindow: Duration? = nil,
    policy: FetchPolicy = .cacheFirst, attributes: Attributes = [:], tags: [String] = [],
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) -> Blobs {
    blobs(
      for: key.blobCacheKey, lifetime: lifetime, staleWindow: staleWindow, policy: policy,
      attributes: attributes, tags: tags, loader: loader)
  }

  /// The copies of a key, the old one and the new one; see
  /// ``BlobCache/blobs(for:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)``.
  public struct Blobs: AsyncSequence, Sendable {
    /// What is iterated.
    public typealias Element = Blob
    /// What iterating throws.
    public typealias Failure = any Swift.Error

    let cache: BlobCache
    let key: Key
    let lifetime: Lifetime?
    let staleWindow: Duration?
    let policy: FetchPolicy
    let attributes: Attributes
    let tags: [String]
    let loader: @Sendable @concurrent (inout Load) async throws -> Outcome

    /// An iterator from the start.
    public func makeAsyncIterator() -> Iterator { Iterator(blobs: self) }

    /// Gives one, then the other.
    public struct Iterator: AsyncIteratorProtocol {
      private enum Stage {
        case atHand
        case newer(than: Digest)
        case ended
      }

      let blobs: Blobs
      private var stage = Stage.atHand

      init(blobs: Blobs) { self.blobs = blobs }

      /// The next copy; nil after the last.
      ///
      /// - Throws: what `fetch` throws.
      public mutating func next(
        isolation actor: isolated (any Actor)? = #isolation
      ) async throws(any Swift.Error) -> Blob? {
        switch stage {
        case .ended: return nil
        case .atHand:
          stage = .ended
          guard let copy = try await blobs.copyAtHand() else { return try await blobs.load() }
          let isLast = copy.source != .stale && blobs.policy.form != .reload
          if !isLast && blobs.policy.form != .cacheOnly { stage = .newer(than: copy.digest) }
          return copy
        case .newer(let digest):
          stage = .ended
          let blob = try await blobs.load()
          // Stale again: the load failed, and the policy has it so.
          return blob.source == .stale || blob.digest == digest ? nil : blob
        }
      }

      /// As above, for callers without isolation.
      public mutating func next() async throws -> Blob? { try await next(isolation: nil) }
    }
  }
}

extension BlobCache.Blobs {
  fileprivate func load() async throws -> BlobCache.Blob {
    try await cache.fetch(
      key, lifetime: lifetime, staleWindow: staleWindow, policy: policy.waiting,
      attributes: attributes, tags: tags, loader: loader)
  }

  fileprivate func copyAtHand() async throws -> BlobCache.Blob? {
    if policy.form == .reload { return try await cache.copyAtHand(key) }
    var look = BlobCache.FetchPolicy.cacheOnly.staleWhileRevalidate()
    if policy.whileRevalidating >= 0 {
      look = look.staleWhileRevalidate(for: .milliseconds(policy.whileRevalidating))
    }
    do {
      return try await cache.fetch(key, policy: look, loader: loader)
    } catch let error as BlobCache.Error where error.code == .notCached {
      return nil
    }
  }
}

extension BlobCache {
  fileprivate func copyAtHand(_ key: Key) async throws -> Blob? {
    try checkOpen("fetch")
    return try await store.staleCopy(key, within: .max)
  }
}
