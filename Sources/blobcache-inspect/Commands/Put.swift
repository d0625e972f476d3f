internal import BlobCache

extension PutCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let input = try InputFile(source)
    // Read before the directory is opened: what cannot be read makes no cache.
    let first = try input.read()
    let entry = try await target.writing(creating: true) { cache in
      try await store(first, input, in: cache)
    }
    if target.json {
      try output.line(entry.json)
    } else {
      try output.line(
        "stored \(formatted(bytes: entry.size)) as sha256:\(entry.digest.hex), "
          + "\(entry.lifetime.words)")
    }
    return .fine
  }

  private func store(
    _ first: [UInt8], _ input: borrowing InputFile, in cache: BlobCache
  ) async throws -> BlobCache.Entry {
    try await cache.store(for: key, lifetime: lifetime, attributes: attributes) { body in
      var piece = first
      while !piece.isEmpty {
        try await body.write(piece)
        piece = try input.read()
      }
    }
  }
}
