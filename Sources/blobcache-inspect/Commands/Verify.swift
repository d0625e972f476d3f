internal import BlobCache

extension VerifyCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let report: BlobCache.VerifyReport
    if repair {
      report = try await target.writing { try await check($0) }
    } else {
      do {
        report = try await target.reading { cache, _ in try await check(cache) }
      } catch let error as BlobCache.Error where error.code == .corrupt {
        return try tell(error, output)
      }
    }
    if target.json {
      try output.line(json(report))
    } else {
      try write(report, to: output)
    }
    return report.isSound ? .fine : .found
  }

  /// What cannot be opened for reading is a finding, too.
  private func tell(_ error: BlobCache.Error, _ output: Output) throws -> ExitStatus {
    var report = BlobCache.VerifyReport()
    let what = error.cause ?? error.message
    report.indexDamage = error.path.map { "\($0): \(what)" } ?? what
    if target.json {
      try output.line(json(report))
    } else {
      try output.line("cannot be read: \(escaped(report.indexDamage ?? ""))")
      try output.line("nothing else was checked. \(escaped(error.message))")
    }
    return .found
  }

  private func check(_ cache: BlobCache) async throws -> BlobCache.VerifyReport {
    let bar = ProgressBar()
    defer { bar.finish() }
    return try await cache.verify(.everything, repair: repair) { bar.update($0) }
  }

  private func write(_ report: BlobCache.VerifyReport, to output: Output) throws {
    if let damage = report.indexDamage { try output.line("index damaged: \(escaped(damage))") }
    if report.isIndexSetAside {
      try output.line("index set aside in the folder quarantine; the cache is empty")
    }
    for key in report.damagedKeys { try output.line("damaged: \(readable(key))") }
    if report.damagedBlobs > report.damagedKeys.count {
      let more = report.damagedBlobs - report.damagedKeys.count
      try output.line("damaged: \(grouped(more)) more")
    }
    for problem in problems(report) where problem.count > 0 {
      let detail = problem.detail.map { " (\($0))" } ?? ""
      try output.line("\(counted(problem.count, problem.one, problem.many))\(detail)")
    }
    if report.foreignNames > 0 {
      let names = counted(report.foreignNames, "name", "names")
      try output.line("\(names) in the cache's folders that the cache did not make; left alone")
    }
    let checked = counted(report.checkedBlobs, "blob", "blobs")
    if report.indexDamage != nil && !report.isIndexSetAside {
      try output.line(
        report.isIndexInUse
          ? "not repaired: other processes have the directory open; end them, then --repair again"
          : "nothing else was checked; --repair sets the index aside, while no other process"
            + " has the directory open: the cache is empty then, its blob files are kept")
      return
    }
    switch (report.isSound, repair) {
    case (true, _): try output.line("sound: \(checked) checked")
    case (false, true): try output.line("repaired: \(checked) checked")
    case (false, false):
      try output.line("problems found: \(checked) checked; --repair puts them right")
    }
  }

  private struct Problem {
    let count: Int
    let one: String
    let many: String
    var detail: String?
  }

  private func problems(_ report: BlobCache.VerifyReport) -> [Problem] {
    [
      Problem(count: report.missingFiles, one: "blob file missing", many: "blob files missing"),
      Problem(
        count: report.unreferencedFiles, one: "blob file without an entry",
        many: "blob files without an entry",
        detail: formatted(bytes: report.unreferencedBytes)
          + (report.isIndexSetAside ? ", kept for being stored again" : "")),
      Problem(
        count: report.deadStagingFiles, one: "unfinished blob of a process that is gone",
        many: "unfinished blobs of processes that are gone"),
      Problem(count: report.wrongTotals, one: "wrong total", many: "wrong totals"),
      Problem(count: report.wrongUseCounts, one: "wrong use count", many: "wrong use counts"),
      Problem(count: report.wrongSlots, one: "wrong slot", many: "wrong slots"),
      Problem(
        count: report.wrongDigestRows, one: "wrong digest row", many: "wrong digest rows"),
      Problem(count: report.wrongTagRows, one: "wrong tag row", many: "wrong tag rows"),
    ]
  }

  private func json(_ report: BlobCache.VerifyReport) -> JSON {
    .object([
      .init("sound", .bool(report.isSound)),
      .init("repaired", .bool(report.isRepaired)),
      .init("indexDamage", report.indexDamage.map { .string($0) } ?? .null),
      .init("indexSetAside", .bool(report.isIndexSetAside)),
      .init("indexInUse", .bool(report.isIndexInUse)),
      .init("checkedBlobs", .int(report.checkedBlobs)),
      .init("damagedBlobs", .int(report.damagedBlobs)),
      .init("damagedKeys", .array(report.damagedKeys.map { .object([keyField($0)]) })),
      .init("missingFiles", .int(report.missingFiles)),
      .init("unreferencedFiles", .int(report.unreferencedFiles)),
      .init("unreferencedBytes", .int(report.unreferencedBytes)),
      .init("deadStagingFiles", .int(report.deadStagingFiles)),
      .init("wrongTotals", .int(report.wrongTotals)),
      .init("wrongUseCounts", .int(report.wrongUseCounts)),
      .init("wrongSlots", .int(report.wrongSlots)),
      .init("wrongDigestRows", .int(report.wrongDigestRows)),
      .init("wrongTagRows", .int(report.wrongTagRows)),
      .init("foreignNames", .int(report.foreignNames)),
    ])
  }
}
