internal import BlobCache

extension ClearCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let asks = isTerminal(0) && isTerminal(2)
    guard confirmed || asks else {
      throw Failure("clear removes every entry; say --yes to do it where nobody can be asked")
    }
    let removed = try await target.writing { cache in
      let count = cache.statistics.entries
      if !confirmed && !agreed(to: count, in: cache.directory) {
        throw Failure("nothing was removed")
      }
      try await cache.removeAll()
      return count
    }
    if target.json {
      try output.line(.object([.init("removed", .int(removed))]))
    } else {
      try output.line("removed \(counted(removed, "entry", "entries"))")
    }
    return .fine
  }

  private func agreed(to count: Int, in directory: String) -> Bool {
    let entries = counted(count, "entry", "entries")
    Output.standardError("Remove \(entries) from \(quoted(directory.utf8))? [y/N] ")
    return ["y", "yes"].contains(readAnswer()?.lowercased() ?? "")
  }
}
