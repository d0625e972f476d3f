internal import BlobCache

extension RenewCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let entry = try await target.writing { cache in
      // Somebody may remove it between the two; then it is absent, too.
      try await cache.renew(key, lifetime: lifetime) ? try cache.entry(for: key) : nil
    }
    guard let entry else {
      throw Failure("not in the cache: \(quoted(key.bytes))", status: .found)
    }
    if target.json {
      try output.line(entry.json)
    } else {
      let expiry = entry.expiry(now: currentMilliseconds())
      try output.line("renewed: \(entry.lifetime.words), expires \(expiry)")
    }
    return .fine
  }
}
