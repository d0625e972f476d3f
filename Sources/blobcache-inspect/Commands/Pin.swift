internal import BlobCache

extension PinCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let entry = try await target.writing { cache -> BlobCache.Entry? in
      do throws(BlobCache.Error) {
        if pins { try await cache.pin(key) } else { try await cache.unpin(key) }
      } catch  where error.code == .notCached {
        return nil
      }
      // Somebody may remove it between the two; then it is absent, too.
      return try cache.entry(for: key)
    }
    guard let entry else {
      throw Failure("not in the cache: \(quoted(key.bytes))", status: .found)
    }
    if target.json {
      try output.line(entry.json)
    } else {
      try output.line(
        pins
          ? "pinned: it stays until it is unpinned or removed, and expires as before"
          : "unpinned")
    }
    return .fine
  }
}
