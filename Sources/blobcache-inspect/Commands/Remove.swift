internal import BlobCache

extension RemoveCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let (removed, absent): (Int, [BlobCache.Key]) = try await target.writing { cache in
      switch which {
      case .matching(let selection): (try await remove(selection, from: cache), [])
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
    _ selection: BlobCache.Selection, from cache: BlobCache
  ) async throws -> Int {
    let bar = ProgressBar()
    defer { bar.finish() }
    return try await cache.removeAll(matching: selection) { bar.update(removed: $0) }
  }

  private func remove(
    _ keys: [BlobCache.Key], from cache: BlobCache
  ) async throws -> (removed: Int, absent: [BlobCache.Key]) {
    var absent: [BlobCache.Key] = []
    for key in keys where try await !cache.remove(key) { absent.append(key) }
    return (keys.count - absent.count, absent)
  }
}
