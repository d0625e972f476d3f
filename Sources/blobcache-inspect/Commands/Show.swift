internal import BlobCache

extension ShowCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    try await target.reading { cache, troubles in
      let found: BlobCache.Entry? =
        switch subject {
        case .key(let key): try cache.entry(for: key)
        case .digest(let digest): try cache.blob(withDigest: digest)?.entry
        }
      guard let entry = found else { throw troubles.absence(of: subject) }
      if target.json {
        try output.line(entry.json)
      } else {
        try entry.facts(now: currentMilliseconds()).write(to: output)
      }
      return .fine
    }
  }
}
