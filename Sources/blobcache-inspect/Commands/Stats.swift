internal import BlobCache

extension StatsCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    try await target.reading { cache, _ in
      let report = StatsReport(
        info: cache.info, limits: try cache.limits, census: try await cache.census())
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
  let limits: BlobCache.Limits
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

  /// How full a limit is; nil without one.
  private func fullness(_ count: Int, of limit: Int?) -> Double? {
    limit.map { Double(count) / Double($0) }
  }

  private var isAutomaticReserve: Bool { limits.minimumFreeDisk == nil }
  /// Nil where the limits leave no space free, or the file system does not tell.
  private var reserve: Int? { census.diskReserve > 0 ? census.diskReserve : nil }

  var json: JSON {
    .object([
      .init("directory", .string(info.path)),
      .init("durability", .string(durability)),
      .init("inlineThreshold", .int(info.inlineThreshold)),
      .init("entries", .int(counts.entries)),
      .init("expired", .int(census.expired)),
      .init("pinnedEntries", .int(counts.pinnedEntries)),
      .init("pinnedBytes", .int(counts.pinnedBytes)),
      .init("usedBytes", .int(counts.usedBytes)),
      .init("limitBytes", limits.bytes.map(JSON.int) ?? .null),
      .init("limitEntries", limits.entries.map(JSON.int) ?? .null),
      .init("limitAgeSeconds", limits.age.map { .seconds($0.wholeMilliseconds) } ?? .null),
      .init("bytesFullness", fullness(counts.usedBytes, of: limits.bytes).map(JSON.ratio) ?? .null),
      .init(
        "entriesFullness", fullness(counts.entries, of: limits.entries).map(JSON.ratio) ?? .null),
      .init("freeDiskLimitBytes", reserve.map(JSON.int) ?? .null),
      .init("freeDiskLimitIsAutomatic", .bool(isAutomaticReserve)),
      .init("freeDiskBytes", .int(census.diskFree)),
      .init("indexBlobBytes", .int(counts.indexBytes)),
      .init("blobFiles", .int(counts.blobFiles)),
      .init("blobFileBytes", .int(counts.blobBytes)),
      .init("allocatedBytes", .int(allocated)),
      .init("blobFileAllocatedBytes", .int(counts.blobAllocatedBytes)),
      .init("indexAllocatedBytes", .int(census.indexAllocatedBytes)),
      .init("indexFreeBytes", .int(census.indexSpareBytes)),
      .init("slotsAllocatedBytes", .int(census.slotsAllocatedBytes)),
      .init("stagingAllocatedBytes", .int(census.stagingAllocatedBytes)),
      .init("quarantineAllocatedBytes", .int(census.quarantineAllocatedBytes)),
      .init("hits", .int(census.totalHits)),
      .init("memoryHits", .int(census.totalMemoryHits)),
      .init("misses", .int(census.totalMisses)),
      .init("hitRatio", hitRatio.map(JSON.ratio) ?? .null),
      .init("evictions", .int(counts.evictions)),
      .init(
        "evictionAgeSeconds",
        counts.evictions > 0 ? .seconds(counts.evictionAge.wholeMilliseconds) : .null),
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
    facts.add(
      "pinned",
      counts.pinnedEntries == 0
        ? "none"
        : "\(counted(counts.pinnedEntries, "entry", "entries")), "
          + formatted(bytes: counts.pinnedBytes))
    facts.gap()
    addLimits(to: &facts)
    facts.gap()
    facts.add("on disk", formatted(bytes: allocated))
    facts.add("  blobs", formatted(bytes: counts.blobAllocatedBytes))
    facts.add(
      "  index",
      formatted(bytes: census.indexAllocatedBytes)
        + ", \(formatted(bytes: census.indexSpareBytes)) of it free for reuse")
    facts.add("  slots", formatted(bytes: census.slotsAllocatedBytes))
    facts.add("  staging", formatted(bytes: census.stagingAllocatedBytes))
    facts.add("  quarantine", formatted(bytes: census.quarantineAllocatedBytes))
    facts.gap()
    facts.add("hits", grouped(census.totalHits) + percentage)
    facts.add("  in memory", grouped(census.totalMemoryHits))
    facts.add("misses", grouped(census.totalMisses))
    facts.add(
      "evictions",
      grouped(counts.evictions)
        + (counts.evictions > 0
          ? ", of late \(formatted(milliseconds: counts.evictionAge.wholeMilliseconds))"
            + " after their last read" : ""))
    return facts
  }

  private func addLimits(to facts: inout Facts) {
    facts.add("in use", formatted(bytes: counts.usedBytes))
    facts.add(
      "  limit",
      limits.bytes.map { formatted(bytes: $0) + full(counts.usedBytes, of: $0) } ?? "none")
    facts.add(
      "  entries", limits.entries.map { grouped($0) + full(counts.entries, of: $0) } ?? "none")
    facts.add("  age", limits.age.map { formatted(milliseconds: $0.wholeMilliseconds) } ?? "none")
    facts.add(
      "  free disk",
      (reserve.map { formatted(bytes: $0) } ?? "none")
        + (isAutomaticReserve ? " (automatic: 5 % of the file system, 1 GiB at most)" : "")
        + "; \(formatted(bytes: census.diskFree)) are free")
  }

  private func full(_ count: Int, of limit: Int) -> String {
    ", \(percent(fullness(count, of: limit) ?? 0)) full"
  }

  private func percent(_ ratio: Double) -> String {
    let tenths = Int((min(ratio, 1_000_000) * 1_000).rounded())
    return "\(tenths / 10).\(tenths % 10) %"
  }

  private var percentage: String { hitRatio.map { " (\(percent($0)) of lookups)" } ?? "" }
}
