extension Store {
  /// A lookup of a fresh entry that may read and hash as much as it has to, on threads that may wait
  /// for the disk.
  func lookupOffPool(
    _ key: BlobCache.Key, freshOnly: Bool = true, touch: Bool = true
  ) async throws(BlobCache.Error) -> BlobCache.Blob? {
    let found = try await BlockingPool.shared.attempt {
      [self] () throws(BlobCache.Error) -> Lookup in
      try lookup(key, freshOnly: freshOnly, touch: touch)
    }
    if case .hit(let blob) = found { return blob }
    return nil
  }

  /// What is there, expired or not, and not counted as an access.
  func peek(_ key: BlobCache.Key) async throws(BlobCache.Error) -> BlobCache.Blob? {
    switch try lookup(key, quick: true, freshOnly: false, touch: false) {
    case .hit(let blob): return blob
    case .miss: return nil
    case .wouldBlock: return try await lookupOffPool(key, freshOnly: false, touch: false)
    }
  }

  /// The copy at hand: fresh, or expired for less than `window` milliseconds and its own stale window,
  /// and then marked so.
  ///
  /// - Parameters:
  ///   - cause: why a stale one is given, if because of a failure.
  ///   - fresh: whether a fresh one is marked, too.
  func staleCopy(
    _ key: BlobCache.Key, within window: Int64, cause: (any Swift.Error)? = nil, fresh: Bool = false
  ) async throws(BlobCache.Error) -> BlobCache.Blob? {
    guard let copy = try await peek(key) else { return nil }
    let (age, kept) = (copy.storage.header.expiredFor, copy.storage.header.staleWindow)
    if age < 0 && !fresh { return copy }
    guard age < min(window, kept) else { return nil }
    return copy.from(.stale, cause: cause)
  }
}

extension BlobCache.Blob {
  /// The same bytes, with another word on where they came from.
  func from(
    _ source: Source, cause: (any Swift.Error)? = nil
  ) -> BlobCache.Blob {
    BlobCache.Blob(
      storage: storage, source: source, access: access, hits: hits, staleCause: cause)
  }
}
