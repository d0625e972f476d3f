internal import CBlobStore
internal import Synchronization

extension BlobCache {
  /// Returns when everything that was stored before the call is on the disk, safe from a power cut: in
  /// a `.checkpointed` directory, a checkpoint has been made of it.
  ///
  /// - Throws: ``Error``: something could not be written.
  public func flush() async throws(Error) {
    try await operation("flush") { () async throws(Error) -> Void in
      let store = store
      await store.queue.drain()
      try await BlockingPool.shared.attempt { () throws(Error) -> Void in try store.flush() }
    }
  }

  /// What ``BlobCache/verify(_:repair:progress:)`` looks at.
  public struct VerifyScope: Hashable, Sendable {
    let bodies: Bool
    /// Every blob's bytes, the index, the folders.
    public static let everything = VerifyScope(bodies: true)
    /// The index and the folders, not the blobs' bytes.
    public static let structure = VerifyScope(bodies: false)
  }

  /// How far a verification is.
  public struct VerifyProgress: Hashable, Sendable {
    /// Steps done: blobs read, then rows and files looked at.
    public let done: Int
    /// Of how many, as far as is known.
    public let total: Int
  }

  /// What a verification found.
  public struct VerifyReport: Hashable, Sendable {
    /// A damaged page of the index: its number and what is wrong with it; nil when all are sound. Nothing that stands
    /// in such an index can be looked at, so without a repair the other findings are empty.
    public var indexDamage: String?
    /// Whether this repair, or the opening before it, set a damaged index aside: the cache is empty then. Blob files
    /// that no entry uses are kept by this repair, since the same content, stored again, takes them up; the next one
    /// removes what is left of them.
    public var isIndexSetAside = false
    /// A repair found a damaged index, and left it: it may be set aside only while no other process has the directory
    /// open.
    public var isIndexInUse = false
    /// Blobs that were read and compared with their digests.
    public var checkedBlobs = 0
    /// The keys of blobs that are damaged or missing: the first thousand.
    public var damagedKeys: [Key] = []
    /// How many are.
    public var damagedBlobs = 0
    /// Files that no entry uses. Without `repair`, those changed in the last two seconds are left out: they may
    /// belong to a store that is being committed.
    public var unreferencedFiles = 0
    /// Their bytes.
    public var unreferencedBytes = 0
    /// Rows of the index whose file is missing or has another size.
    public var missingFiles = 0
    /// Names in the cache's folders that are not the cache's. They are never touched, and are no
    /// problem.
    public var foreignNames = 0
    /// Unfinished blobs of processes that are gone.
    public var deadStagingFiles = 0
    /// Totals that disagree with a recount.
    public var wrongTotals = 0
    /// Blobs whose number of users disagrees with a recount.
    public var wrongUseCounts = 0
    /// Entries that disagree with the shared table.
    public var wrongSlots = 0
    /// Rows by content that disagree with the entries.
    public var wrongDigestRows = 0
    /// Rows by tag that disagree with the entries.
    public var wrongTagRows = 0
    /// Whether what was found was put right.
    public var isRepaired = false

    /// Nothing was found.
    public var isSound: Bool {
      indexDamage == nil && !isIndexSetAside && findings == 0
    }

    private var findings: Int {
      damagedBlobs + unreferencedFiles + missingFiles + deadStagingFiles + wrongTotals
        + wrongUseCounts + wrongSlots + wrongDigestRows + wrongTagRows
    }

    package init() {}
  }

  /// Reads everything and compares it: the pages of the index, blobs with their digests, the index
  /// with the files, the counts with a recount. Other callers go on meanwhile. It takes as long as
  /// reading all blobs does.
  ///
  /// - Parameters:
  ///   - scope: `.everything`, or `.structure` to leave the blobs' bytes out.
  ///   - repair: whether to put right what is found: damaged entries are removed, and their files
  ///     kept in the folder `quarantine`; an index with a damaged page is moved there as a whole and a
  ///     new one begun, if no other process has the directory open. Default: false.
  ///   - progress: called now and then, on a thread of the cache.
  /// - Throws: ``Error``: it could not be done to the end, or the task was cancelled.
  public func verify(
    _ scope: VerifyScope = .everything, repair: Bool = false,
    progress: (@Sendable (VerifyProgress) -> Void)? = nil
  ) async throws(Error) -> VerifyReport {
    try await operation("verify", writes: repair) { () async throws(Error) -> VerifyReport in
      var report = VerifyReport()
      try await verifyPages(&report, repair: repair)
      if report.indexDamage != nil && !report.isIndexSetAside { return report }
      if scope.bodies { try await verifyBodies(&report, repair: repair, progress: progress) }
      try await verifyStructure(&report, repair: repair, progress: progress)
      report.isRepaired = repair && !report.isSound && !report.isIndexInUse
      return report
    }
  }

  /// Before anything follows them.
  private func verifyPages(
    _ report: inout VerifyReport, repair: Bool
  ) async throws(Error) {
    let store = store
    let found = try await BlockingPool.shared.attempt { () throws(Error) -> bcs_check_report in
      try store.checkPages(repair: repair)
    }
    report.add(pagesOf: found)
  }

  private func verifyBodies(
    _ report: inout VerifyReport, repair: Bool, progress: (@Sendable (VerifyProgress) -> Void)?
  ) async throws(Error) {
    let total = statistics.entries
    var cursor: ListCursor? = ListCursor()
    while let from = cursor {
      if Task.isCancelled {
        throw Error(.cancelled, operation: "verify", message: "The task was cancelled.")
      }
      let store = store
      let (next, damaged, checked) = try await BlockingPool.shared.attempt {
        () throws(Error) -> (ListCursor?, [(Key, bcs_damage)], Int) in
        let page = try store.page(from, prefix: [])
        var damaged: [(Key, bcs_damage)] = []
        for entry in page.entries {
          if let found = try store.damage(of: entry) { damaged.append((entry.key, found.damage)) }
        }
        return (page.next, damaged, page.entries.count)
      }
      cursor = next
      report.checkedBlobs += checked
      report.damagedBlobs += damaged.count
      report.damagedKeys += damaged.prefix(max(0, 1000 - report.damagedKeys.count)).map(\.0)
      if repair {
        var writes: [PreparedWrite] = []
        for (_, damage) in damaged {
          if let write = try store.prepareHeal(damage) { writes.append(write) }
        }
        if !writes.isEmpty { try await store.queue.commit(writes, inPlace: false) }
        for write in writes { _ = try write.outcome("heal") }
      }
      progress?(
        VerifyProgress(done: report.checkedBlobs, total: max(total, report.checkedBlobs)))
    }
  }

  private func verifyStructure(
    _ report: inout VerifyReport, repair: Bool, progress: (@Sendable (VerifyProgress) -> Void)?
  ) async throws(Error) {
    let store = store
    let before = report.checkedBlobs
    let found = try await BlockingPool.shared.attempt { () throws(Error) -> bcs_check_report in
      try store.checkStructure(repair: repair) { done, total in
        progress?(VerifyProgress(done: before + done, total: before + total))
      }
    }
    report.add(pagesOf: found)
    report.unreferencedFiles = Int(clamping: found.unreferenced_files)
    report.unreferencedBytes = Int(clamping: found.unreferenced_bytes)
    report.missingFiles = Int(clamping: found.missing_files)
    report.foreignNames = Int(clamping: found.foreign_names)
    report.deadStagingFiles = Int(clamping: found.dead_staging)
    report.wrongTotals = Int(clamping: found.wrong_totals)
    report.damagedBlobs += Int(clamping: found.damaged_records)
    report.wrongUseCounts = Int(clamping: found.wrong_uses)
    report.wrongSlots = Int(clamping: found.wrong_slots)
    report.wrongDigestRows = Int(clamping: found.wrong_digests)
    report.wrongTagRows = Int(clamping: found.wrong_tags)
  }
}

extension BlobCache.VerifyReport {
  fileprivate mutating func add(pagesOf found: bcs_check_report) {
    if let damage = found.damage.text { indexDamage = damage }
    isIndexSetAside = isIndexSetAside || found.index_set_aside
    isIndexInUse = isIndexInUse || found.in_use
  }
}
