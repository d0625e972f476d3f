internal import BlobCache

extension RemoveCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let (removed, absent): (Int, [BlobCache.Key]) = try await target.writing { cache in
      switch which {
      case .prefix(let prefix): (try await cache.removeAll(withPrefix: prefix), [])
      case .keys(let keys): try await remove(keys, from: cache)
      }
    }
    if target.json {
      try output.line(
        .object([.init("removed", .int(removed)), .init("absent", .int(absent.count))]))
    } else {
      try output.line("removed \(counted(removed, "entry", "entries"))")
    }
    try output.flush()
    for key in absent { Output.complain("not in the cache: \(quoted(key.bytes))") }
    return absent.isEmpty ? .fine : .found
  }

  private func remove(
    _ keys: [BlobCache.Key], from cache: BlobCache
  ) async throws -> (removed: Int, absent: [BlobCache.Key]) {
    var absent: [BlobCache.Key] = []
    for key in keys where try await !cache.remove(key) { absent.append(key) }
    return (keys.count - absent.count, absent)
  }
}
