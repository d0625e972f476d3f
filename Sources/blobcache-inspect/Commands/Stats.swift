internal import BlobCache

extension StatsCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    try await target.reading { cache, _ in
      let report = StatsReport(info: cache.info, census: try await cache.census())
      if target.json {
        try output.line(report.json)
      } else {
        try report.facts.write(to: output)
      }
      return .fine
    }
  }
}

private struct StatsReport {
  let info: BlobCache.DirectoryInfo
  let census: BlobCache.Census

  private var counts: BlobCache.Statistics { census.statistics }
  private var durability: String { info.durability == .durable ? "durable" : "checkpointed" }

  private var allocated: Int {
    census.indexAllocatedBytes + counts.blobAllocatedBytes + census.slotsAllocatedBytes
      + census.stagingAllocatedBytes + census.quarantineAllocatedBytes
  }

  /// Hits among all lookups; nil before the first.
  private var hitRatio: Double? {
    let lookups = census.totalHits + census.totalMisses
    return lookups > 0 ? Double(census.totalHits) / Double(lookups) : nil
  }

  var json: JSON {
    .object([
      .init("directory", .string(info.path)),
      .init("durability", .string(durability)),
      .init("inlineThreshold", .int(info.inlineThreshold)),
      .init("entries", .int(counts.entries)),
      .init("expired", .int(census.expired)),
      .init("indexBlobBytes", .int(counts.indexBytes)),
      .init("blobFiles", .int(counts.blobFiles)),
      .init("blobFileBytes", .int(counts.blobBytes)),
      .init("allocatedBytes", .int(allocated)),
      .init("blobFileAllocatedBytes", .int(counts.blobAllocatedBytes)),
      .init("indexAllocatedBytes", .int(census.indexAllocatedBytes)),
      .init("indexFreeBytes", .int(census.indexFreeBytes)),
      .init("slotsAllocatedBytes", .int(census.slotsAllocatedBytes)),
      .init("stagingAllocatedBytes", .int(census.stagingAllocatedBytes)),
      .init("quarantineAllocatedBytes", .int(census.quarantineAllocatedBytes)),
      .init("hits", .int(census.totalHits)),
      .init("misses", .int(census.totalMisses)),
      .init("hitRatio", hitRatio.map(JSON.ratio) ?? .null),
      .init("locked", .bool(!info.unlocked)),
    ])
  }

  var facts: Facts {
    var facts = Facts()
    facts.add("directory", escaped(info.path))
    facts.add("durability", durability)
    facts.gap()
    facts.add(
      "entries",
      grouped(counts.entries)
        + (census.expired > 0 ? ", of which \(grouped(census.expired)) expired" : ""))
    facts.add(
      "blobs",
      formatted(bytes: counts.indexBytes) + " in the index, "
        + formatted(bytes: counts.blobBytes)
        + " in \(counted(counts.blobFiles, "file", "files"))")
    facts.gap()
    facts.add("on disk", formatted(bytes: allocated))
    facts.add("  blobs", formatted(bytes: counts.blobAllocatedBytes))
    facts.add(
      "  index",
      formatted(bytes: census.indexAllocatedBytes)
        + ", \(formatted(bytes: census.indexFreeBytes)) of it free for reuse")
    facts.add("  slots", formatted(bytes: census.slotsAllocatedBytes))
    facts.add("  staging", formatted(bytes: census.stagingAllocatedBytes))
    facts.add("  quarantine", formatted(bytes: census.quarantineAllocatedBytes))
    facts.gap()
    facts.add("hits", grouped(census.totalHits) + percentage)
    facts.add("misses", grouped(census.totalMisses))
    return facts
  }

  private var percentage: String {
    guard let hitRatio else { return "" }
    let tenths = Int((hitRatio * 1_000).rounded())
    return " (\(tenths / 10).\(tenths % 10) % of lookups)"
  }
}
