internal import BlobCache

extension PutCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    let input = try InputFile(source)
    // Read before the directory is opened: what cannot be read makes no cache.
    let first = try input.read()
    let entry = try await target.writing(creating: true) { cache in
      try await pinned(try await store(first, input, in: cache), in: cache)
    }
    if target.json {
      try output.line(entry.json)
    } else {
      try output.line(
        "stored \(formatted(bytes: entry.size)) as sha256:\(entry.digest.hex), "
          + entry.lifetime.words + (entry.isPinned ? ", pinned" : ""))
    }
    return .fine
  }

  /// The entry once it is pinned; what is stored stays so where that fails.
  private func pinned(
    _ entry: BlobCache.Entry, in cache: BlobCache
  ) async throws -> BlobCache.Entry {
    guard pins else { return entry }
    do {
      try await cache.pin(key)
    } catch {
      throw Failure("stored, but not pinned: \(escaped(error.message))")
    }
    return try cache.entry(for: key) ?? entry
  }

  private func store(
    _ first: [UInt8], _ input: borrowing InputFile, in cache: BlobCache
  ) async throws -> BlobCache.Entry {
    try await cache.store(
      for: key, lifetime: lifetime, attributes: attributes, tags: tags
    ) { body in
      // A file that grows meanwhile is stored as long as it was.
      let size =
        first.count < InputFile.pieceSize ? nil : input.restOfFile().map { first.count + $0 }
      if let size { try await body.expect(size: size) }
      var piece = first[...]
      while !piece.isEmpty {
        try await body.write(piece)
        if body.count == size { break }
        piece = try input.read()[...]
        if let size { piece = piece.dropLast(max(0, body.count + piece.count - size)) }
      }
    }
  }
}
