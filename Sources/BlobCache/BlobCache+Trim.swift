extension BlobCache {
  /// The limits that are recorded in the directory, for all its processes.
  ///
  /// - Throws: ``Error`` when the cache is closed.
  public var limits: Limits {
    get throws(Error) {
      try checkOpen("limits")
      return try store.limits()
    }
  }

  /// Evicts entries until the directory is within limits: those that are older than its limit in
  /// age, then those that are worth least. Pinned ones stay. Others go on meanwhile: each step holds
  /// the write lock for some hundreds of entries.
  ///
  /// - Parameters:
  ///   - limits: how far. Limits that the directory has beside these hold as always.
  ///   - recording: whether these become the directory's limits. Default: no.
  /// - Returns: how many entries were evicted. Where what is pinned keeps the directory above the limits,
  ///   the event ``Event/Kind/limitsNotMet`` says so, and by how much.
  /// - Throws: ``Error``: ``Error/Code/invalidArgument`` for limits that make no sense,
  ///   ``Error/Code/cancelled`` between two steps, or what kept it from going on.
  @discardableResult
  public func trim(to limits: Limits, recording: Bool = false) async throws(Error) -> Int {
    try await operation("trim") { () async throws(Error) -> Int in
      let store = store
      // Before anything is evicted.
      _ = try limits.stored("trim", of: directory)
      if recording {
        try await BlockingPool.shared.attempt { () throws(Error) -> Void in
          try store.record(limits, "trim")
        }
      }
      var evicted = 0
      if let age = limits.age {
        let aged = Selection(olderThan: age, sparesPinned: true)
        evicted += try await store.removeAll(matching: aged, progress: nil)
      }
      var more = true
      while more {
        if Task.isCancelled { throw .cancelled("trim") }
        let step = try await BlockingPool.shared.attempt {
          () throws(Error) -> (evicted: Int, more: Bool) in try store.trimStep(limits)
        }
        evicted += step.evicted
        more = step.more
      }
      try await BlockingPool.shared.attempt { () throws(Error) -> Void in
        try store.queue.sweepAll()
      }
      let recorded = try store.limits()
      var both = limits
      both.bytes = [limits.bytes, recorded.bytes].compactMap(\.self).min()
      both.entries = [limits.entries, recorded.entries].compactMap(\.self).min()
      store.reportExcess(over: both)
      return evicted
    }
  }

  /// Removes what time has made useless: entries that have expired and whose stale window is over,
  /// blob files that no entry uses, what processes that are gone left in staging, and of the files
  /// kept in quarantine those above 64 MiB, the oldest first. The cache does so by itself every
  /// ``Configuration/sweepInterval``. One sweep of a directory runs at a time: one in the background, of any
  /// process, makes way for this one, another call of it is waited for, half a minute at most.
  ///
  /// - Throws: ``Error``: ``Error/Code/busy`` when a sweep has been running for all that time,
  ///   ``Error/Code/cancelled`` between two steps, or what kept it from going on.
  @discardableResult
  public func sweep() async throws(Error) -> SweepReport {
    try await operation("sweep") { () async throws(Error) -> SweepReport in
      try await store.sweeper.sweep(store) { () throws(Error) -> Void in try checkOpen("sweep") }
    }
  }
}
