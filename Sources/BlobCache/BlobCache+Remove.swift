extension BlobCache {
  /// Removes an entry. Returns when no process sees it any more. A load of the key that is running
  /// is not stored.
  ///
  /// - Returns: whether there was one.
  /// - Throws: ``Error``; the entry is then still there.
  @discardableResult
  public func remove(_ key: Key) async throws(Error) -> Bool {
    try await operation("remove") { () async throws(Error) -> Bool in
      try await store.remove(key)
    }
  }

  /// Removes all entries. Loads that are running are not stored.
  ///
  /// - Throws: ``Error``; the entries are then still there.
  public func removeAll() async throws(Error) {
    try await operation("removeAll") { () async throws(Error) -> Void in
      try await store.removeAll()
    }
  }

  /// Removes the entries whose keys begin with a prefix, in batches; it looks at every entry.
  /// Entries that are stored while it runs may stay, entries that are stored after it has returned
  /// always do.
  ///
  /// - Returns: how many it removed.
  /// - Throws: ``Error``; some of the entries may have been removed. ``Error/Code/keyTooLong`` for a
  ///   prefix that is longer than a key can be.
  @discardableResult
  public func removeAll(withPrefix prefix: Key) async throws(Error) -> Int {
    try await operation("removeAll") { () async throws(Error) -> Int in
      try prefix.checkLength("removeAll")
      return try await store.removeAll(withPrefix: prefix)
    }
  }

  /// Gives an entry a new lifetime, counted from now, expired or not; its bytes and attributes
  /// stay.
  ///
  /// - Returns: false if there is no such entry.
  /// - Throws: ``Error``; the entry is then as it was.
  @discardableResult
  public func renew(_ key: Key, lifetime: Lifetime) async throws(Error) -> Bool {
    try await operation("renew") { () async throws(Error) -> Bool in
      try await store.renew(key: key, generation: 0, lifetime: lifetime, attributes: nil) != nil
    }
  }
}
