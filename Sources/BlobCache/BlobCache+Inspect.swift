extension BlobCache {
  /// Counts of the directory and of this process. Cheap; never throws. Once the
  /// directory is closed, those of the moment before.
  public var statistics: Statistics { store.statistics }

  /// Everything that the directory uses and counts; takes a walk through its folders.
  package func census() async throws(Error) -> Census {
    try await operation("statistics", writes: false) { () async throws(Error) -> Census in
      let store = store
      return try await BlockingPool.shared.attempt { () throws(Error) -> Census in
        try store.census()
      }
    }
  }

  /// The entries of the cache, expired ones included, in no particular order. Not an access.
  ///
  ///     for try await entry in cache.entries(withPrefix: "https://img.example/") { … }
  ///
  /// They are read in pages as they are asked for, without holding anything in between: an entry
  /// that is there throughout comes exactly once, one that is stored, replaced or removed meanwhile
  /// once or not at all.
  ///
  /// - Parameter prefix: only entries whose keys begin with it; nil: all. Either way it looks at
  ///   every entry.
  public func entries(withPrefix prefix: Key? = nil) -> Entries {
    Entries(cache: self, prefix: prefix?.bytes ?? [], tag: nil)
  }

  /// The same of those that were stored with a tag, looking at no others.
  package func entries(withPrefix prefix: Key?, tag: String?) -> Entries {
    Entries(cache: self, prefix: prefix?.bytes ?? [], tag: tag)
  }

  /// The entries of a cache; see ``BlobCache/entries(withPrefix:)-(Key?)``.
  public struct Entries: AsyncSequence, Sendable {
    /// What is iterated.
    public typealias Element = Entry
    /// What iterating throws.
    public typealias Failure = Error

    let cache: BlobCache
    let prefix: [UInt8]
    let tag: String?

    /// An iterator from the start.
    public func makeAsyncIterator() -> Iterator {
      Iterator(cache: cache, prefix: prefix, tag: tag)
    }

    /// Reads page by page.
    public struct Iterator: AsyncIteratorProtocol {
      let cache: BlobCache
      let prefix: [UInt8]
      let tag: String?
      private var page: ArraySlice<Entry> = []
      private var cursor: ListCursor? = ListCursor()

      init(cache: BlobCache, prefix: [UInt8], tag: String?) {
        self.cache = cache
        self.prefix = prefix
        self.tag = tag
      }

      /// The next entry; nil after the last.
      ///
      /// - Throws: ``BlobCache/Error``: the cache is closed, the task was cancelled, the prefix is
      ///   longer than a key can be, or the index cannot be read.
      public mutating func next(
        isolation actor: isolated (any Actor)? = #isolation
      ) async throws(Error) -> Entry? {
        while page.isEmpty {
          guard let from = cursor else { return nil }
          if Task.isCancelled {
            throw Error(
              .cancelled, operation: "entries", message: "The task was cancelled while listing.")
          }
          try cache.checkOpen("entries")
          try Key(prefix).checkLength("entries")
          if let tag { try TagCoding.check(tag, "entries") }
          let next = try await cache.store.list(
            from, prefix: prefix, tag: tag.map { Array($0.utf8) })
          page = next.entries[...]
          cursor = next.next
        }
        return page.popFirst()
      }

      /// As above, for callers without isolation.
      public mutating func next() async throws(Error) -> Entry? { try await next(isolation: nil) }
    }
  }
}
