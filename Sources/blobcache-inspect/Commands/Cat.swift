internal import BlobCache

extension CatCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    try await target.reading { cache, troubles in
      guard let blob = try find(in: cache) else { throw try absence(in: cache, troubles) }
      // From the mapping to the descriptor: a large blob is never copied as a whole.
      try unsafe blob.withUnsafeBytes { try unsafe output.raw($0) }
      return .fine
    }
  }

  private func find(in cache: BlobCache) throws -> BlobCache.Blob? {
    switch subject {
    case .key(let key): try cache.blob(for: key)
    case .digest(let digest): try cache.blob(withDigest: digest)
    }
  }

  private func absence(in cache: BlobCache, _ troubles: Troubles) throws -> Failure {
    if case .key(let key) = subject, let entry = try cache.entry(for: key), entry.isExpired {
      let when = entry.expiry(now: currentMilliseconds())
      return Failure("expired \(when): \(subject.words); renew makes it fresh", status: .found)
    }
    return troubles.absence(of: subject)
  }
}
