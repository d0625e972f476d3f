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
      return try await store.removeAll(matching: Selection(prefix: prefix), progress: nil)
    }
  }

  /// Removes the entries that were stored with a tag, in batches, looking at no others; otherwise
  /// as ``removeAll(withPrefix:)-(Key)``.
  ///
  /// - Returns: how many it removed.
  /// - Throws: ``Error``; some of the entries may have been removed. ``Error/Code/tagsTooLarge`` for a tag
  ///   that is longer than an entry's can be.
  @discardableResult
  public func removeAll(tagged tag: String) async throws(Error) -> Int {
    try await removeAll(matching: .tagged(tag))
  }

  /// Removes the entries that a selection takes, pinned ones included, in batches. Entries that are
  /// stored while it runs may stay, entries that are stored after it has returned always do.
  ///
  /// - Parameters:
  ///   - selection: which entries.
  ///   - progress: called after each batch with how many have been removed; on any thread.
  /// - Returns: how many it removed.
  /// - Throws: ``Error``, ``Error/Code/cancelled`` between two batches; some of the entries may have
  ///   been removed.
  @discardableResult
  public func removeAll(
    matching selection: Selection, progress: (@Sendable (Int) -> Void)? = nil
  ) async throws(Error) -> Int {
    try await operation("removeAll") { () async throws(Error) -> Int in
      try selection.check("removeAll")
      return try await store.removeAll(matching: selection, progress: progress)
    }
  }

  /// Keeps an entry from eviction and sweeps, until ``unpin(_:)-(Key)`` or its removal; a store in
  /// its place is pinned, too. It still expires, and counts as used.
  ///
  /// - Throws: ``Error``: ``Error/Code/notCached`` if there is no such entry,
  ///   ``Error/Code/pinsTooLarge`` if what is pinned would take more than seven eighths of
  ///   the limit in bytes, or all of the limit in entries; a blob file that several pinned entries
  ///   share counts once.
  public func pin(_ key: Key) async throws(Error) {
    try await setPin(key, true, "pin")
  }

  /// Lets an entry be evicted and swept again.
  ///
  /// - Throws: ``Error``: ``Error/Code/notCached`` if there is no such entry.
  public func unpin(_ key: Key) async throws(Error) {
    try await setPin(key, false, "unpin")
  }

  private func setPin(_ key: Key, _ pin: Bool, _ name: StaticString) async throws(Error) {
    try await operation(name) { () async throws(Error) -> Void in
      if try await store.pin(key, pin) { return }
      throw Error(
        .notCached, operation: name.description,
        message: "There is no entry under this key; store it first.")
    }
  }

  /// Gives an entry a new lifetime, counted from now, expired or not; its bytes and attributes
  /// stay.
  ///
  /// - Parameters:
  ///   - key: the key.
  ///   - lifetime: how long it is fresh from now on.
  ///   - staleWindow: for how long after that it is kept, for those who ask for stale; zero: not at all; nil:
  ///     as it was.
  /// - Returns: false if there is no such entry.
  /// - Throws: ``Error``, with ``Error/Code/invalidArgument`` for a lifetime that is over already; the entry
  ///   is then as it was.
  @discardableResult
  public func renew(
    _ key: Key, lifetime: Lifetime, staleWindow: Duration? = nil
  ) async throws(Error) -> Bool {
    try await operation("renew") { () async throws(Error) -> Bool in
      var freshness = try checkedFreshness(lifetime, staleWindow, "renew")
      if staleWindow == nil { freshness.staleWindow = -1 }
      let renewed = try await store.renew(
        key: key, generation: 0, lifetime: freshness, attributes: nil)
      if renewed != nil { store.flights.forgetFailure(of: key) }
      return renewed != nil
    }
  }
}
