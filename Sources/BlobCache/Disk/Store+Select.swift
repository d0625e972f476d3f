internal import CBlobStore

extension Store {
  /// Removes what a selection takes, in batches of a page: by generation, so that an entry that was
  /// stored since it was looked at stays.
  func removeAll(
    matching selection: BlobCache.Selection, progress: (@Sendable (Int) -> Void)?
  ) async throws(BlobCache.Error) -> Int {
    let prefix = selection.prefix?.bytes ?? []
    let tag = selection.tag.map { Array($0.utf8) }
    let isByPrefix = BlobCache.Selection(prefix: selection.prefix) == selection
    if isByPrefix {
      await flights.detachAll { key in
        unsafe key.withUnsafeBytes { unsafe $0.starts(with: prefix) }
      }
    }
    var removed = 0
    var cursor: ListCursor? = ListCursor()
    while let from = cursor {
      if Task.isCancelled {
        throw BlobCache.Error(
          .cancelled, operation: "removeAll",
          message: "The task was cancelled; \(removed) entries had been removed.")
      }
      let page = try await list(from, prefix: prefix, tag: tag)
      cursor = page.next
      let now = now
      var writes: [PreparedWrite] = []
      for entry in page.entries where selection.takes(entry, now: now) {
        if let write = try prepareRemoval(of: entry) { writes.append(write) }
      }
      if writes.isEmpty { continue }
      try await queue.commit(writes, inPlace: false)
      var here = 0
      for write in writes where try write.outcome("remove") == BCS_OK { here += 1 }
      removed += here
      counters.removals.add(here)
      progress?(removed)
    }
    return removed
  }

  /// Keeps an entry from eviction and sweeps, or no longer does; false if there is none.
  func pin(_ key: BlobCache.Key, _ pin: Bool) async throws(BlobCache.Error) -> Bool {
    let operation = pin ? "pin" : "unpin"
    guard
      let write = try
        (unsafe PreparedWrite.make(handle, operation) { store, out in
          unsafe key.withUnsafeBytes { key in
            unsafe bcs_write_pin(store, key.baseAddress, key.count, pin, &out)
          }
        })
    else { return false }
    try await queue.commit([write], inPlace: commitsInPlace)
    return try write.outcome(operation) == BCS_OK
  }

  private func prepareRemoval(
    of entry: BlobCache.Entry
  ) throws(BlobCache.Error) -> PreparedWrite? {
    try unsafe PreparedWrite.make(handle, "remove") { store, out in
      unsafe entry.keyHash.withBytes {
        unsafe bcs_write_remove_if(store, $0, entry.generation, &out)
      }
    }
  }
}
