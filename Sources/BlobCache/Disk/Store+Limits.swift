internal import CBlobStore
internal import Dispatch
internal import Synchronization

extension BlobCache.Limits {
  /// As C keeps them: 0 for none.
  ///
  /// - Parameter directory: whose they are to be, for an error.
  func stored(_ operation: String, of directory: String) throws(BlobCache.Error) -> bcs_limits {
    let least = Int(BCS_LIMIT_BYTES_MIN)
    func check<V>(
      _ value: V?, _ message: String, _ isValid: (V) -> Bool
    ) throws(BlobCache.Error) {
      guard let value, !isValid(value) else { return }
      throw BlobCache.Error(
        .invalidArgument, operation: operation, path: directory, message: message,
        cause: "\(value) was given")
    }
    try check(bytes, "A limit in bytes is at least 1 MiB (1,048,576); leave it out for none.") {
      $0 >= least
    }
    try check(entries, "A limit in entries is at least 1; leave it out for none.") { $0 > 0 }
    try check(age, "A limit in age is at least a millisecond; leave it out for none.") {
      $0 >= .milliseconds(1)
    }
    try check(
      minimumFreeDisk, "The free disk space is not negative; nil means 5 %, 1 GiB at most, 0 none."
    ) { $0 >= 0 }
    return bcs_limits(
      bytes: UInt64(bytes ?? 0), entries: UInt64(entries ?? 0),
      age_ms: age?.milliseconds ?? 0,
      minimum_free: minimumFreeDisk.map(UInt64.init) ?? UInt64.max)
  }

  /// Throws for limits that make no sense.
  package func check(_ operation: String, of directory: String) throws(BlobCache.Error) {
    _ = try stored(operation, of: directory)
  }

  init(_ limits: bcs_limits) {
    self.init(
      bytes: limits.bytes == 0 ? nil : Int(clamping: limits.bytes),
      entries: limits.entries == 0 ? nil : Int(clamping: limits.entries),
      age: limits.age_ms == 0 ? nil : .milliseconds(limits.age_ms),
      minimumFreeDisk: limits.minimum_free == .max ? nil : Int(clamping: limits.minimum_free))
  }
}

extension BlobCache {
  /// How far a directory is above limits.
  package struct Excess: Sendable {
    package var entries = 0
    package var bytes = 0
    package var pinnedEntries = 0
    package var pinnedBytes = 0
    /// In quarantine, or being stored: not evicted either.
    package var otherBytes = 0
    /// No eviction gets it below: what may not go takes more than the limits.
    package var isLasting = false
  }

  package func excess(over limits: Limits) -> Excess { store.excess(over: limits) }
}

extension Store {
  /// Those recorded in the directory.
  func limits() throws(BlobCache.Error) -> BlobCache.Limits {
    var limits = bcs_limits()
    let status = try unsafe handle.use("limits") { unsafe bcs_get_limits($0, &limits) }
    guard status == BCS_OK else { throw status.lastError("limits") }
    return BlobCache.Limits(limits)
  }

  /// Records limits; from now on every commit of every process keeps to them. Blocks.
  func record(_ limits: BlobCache.Limits, _ operation: String) throws(BlobCache.Error) {
    var stored = try limits.stored(operation, of: handle.info.path)
    let status = try unsafe handle.use("limits") { unsafe bcs_set_limits($0, &stored) }
    guard status == BCS_OK else { throw status.lastError(operation) }
  }

  /// What an opener asks for; nothing is written where that is recorded already.
  func recordLimits(of configuration: BlobCache.Configuration) throws(BlobCache.Error) {
    guard let wanted = configuration.limits, !configuration.readOnly else { return }
    if try limits() != wanted {
      try record(wanted, "open")
    } else if !excess(over: wanted).isLasting {
      return
    }
    hasLimitsToMeet.store(true, ordering: .relaxed)
  }

  /// Once the opener listens, so that it is told.
  func meetLimitsSoon() {
    guard hasLimitsToMeet.exchange(false, ordering: .relaxed) else { return }
    thread.async { self.meetLimits() }
  }

  /// Evicts what is above the recorded limits; on the writer's thread.
  private func meetLimits() {
    do throws(BlobCache.Error) {
      while try trimStep(.unlimited).more {}
      reportExcess(over: try limits())
    } catch {
      if error.code != .closed { emit(.backgroundError(error)) }
    }
  }

  /// Where the directory stands above limits, as was told at the last commit.
  func excess(over limits: BlobCache.Limits) -> BlobCache.Excess {
    var counted = bcs_counters()
    guard unsafe bcs_count(handle.pointer, &counted) == BCS_OK else { return .init() }
    var out = BlobCache.Excess()
    let fixed = 128 << 10  // of the index, whatever is stored
    let pinned = Int(clamping: counted.pinned_bytes)
    out.pinnedEntries = Int(clamping: counted.pinned_entries)
    out.pinnedBytes = pinned
    out.otherBytes = Int(clamping: counted.staging_allocated + counted.quarantine_allocated)
    if let most = limits.entries {
      out.entries = max(0, Int(clamping: counted.entries) - most)
      out.isLasting = out.pinnedEntries > most
    }
    if let most = limits.bytes {
      out.bytes = max(0, Int(clamping: counted.used_bytes) - most)
      let stays =
        pinned + out.otherBytes + fixed > most || counted.pinned_entries == counted.entries
      if out.bytes > 0 && stays { out.isLasting = true }
    }
    return out
  }

  /// Tells listeners when limits cannot be met.
  func reportExcess(over limits: BlobCache.Limits) {
    let excess = excess(over: limits)
    guard excess.isLasting else { return }
    emit(
      .limitsNotMet(
        BlobCache.Error(
          .pinsTooLarge, operation: "trim", path: handle.info.path,
          message:
            "What is pinned takes more than the limits; unpin or remove some, or raise them.",
          cause: "\(excess.entries) entries and \(excess.bytes) bytes too many;"
            + " \(excess.pinnedEntries) entries of \(excess.pinnedBytes) bytes are pinned,"
            + " \(excess.otherBytes) bytes are in quarantine or being stored")))
  }

  /// One step of a trim: some hundreds of entries. Blocks.
  func trimStep(_ limits: BlobCache.Limits) throws(BlobCache.Error) -> (evicted: Int, more: Bool) {
    var stored = try limits.stored("trim", of: handle.info.path)
    var evicted: UInt64 = 0
    var more = false
    let now = now
    let status = try unsafe handle.use("trim") {
      unsafe bcs_trim($0, &stored, now, &evicted, &more)
    }
    guard status == BCS_OK else { throw status.lastError("trim") }
    return (Int(clamping: evicted), more)
  }
}
