internal import BlobCache

extension SweepCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let report = try await target.writing { try await $0.sweep() }
    let counts = [
      ("expired", report.expired, "entry", "entries", "whose time was over"),
      (
        "unreferencedFiles", report.unreferencedFiles, "blob file", "blob files", "without an entry"
      ),
      (
        "missingFiles", report.missingFiles, "entry", "entries",
        "whose blob file a power cut has taken back"
      ),
      (
        "deadStagingFiles", report.deadStagingFiles, "unfinished blob", "unfinished blobs",
        "of processes that are gone"
      ),
      (
        "quarantinedFiles", report.quarantinedFiles, "file", "files",
        "from the quarantine, which was full"
      ),
    ]
    if target.json {
      try output.line(.object(counts.map { .init($0.0, .int($0.1)) }))
      return .fine
    }
    for (_, count, one, many, what) in counts where count > 0 {
      try output.line("removed \(counted(count, one, many)) \(what)")
    }
    if counts.allSatisfy({ $0.1 == 0 }) { try output.line("nothing to remove") }
    return .fine
  }
}
