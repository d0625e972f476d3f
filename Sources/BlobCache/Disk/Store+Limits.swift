internal import CBlobStore
internal import Dispatch

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
    if try limits() == wanted { return }
    try record(wanted, "open")
    thread.async { self.meetLimits() }
  }

  /// Evicts what is above the recorded limits; on the writer's thread.
  private func meetLimits() {
    do throws(BlobCache.Error) {
      while try trimStep(.unlimited).more {}
    } catch {
      if error.code != .closed { emit(.backgroundError(error)) }
    }
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
