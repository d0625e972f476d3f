internal import BlobCache

extension TrimCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    if isDryRun {
      return try await target.reading { cache, _ in
        let limits = limits(over: try cache.limits)
        try limits.check("trim", of: cache.directory)
        try await Forecast(limits, of: cache).write(to: output, json: target.json)
        return .fine
      }
    }
    return try await target.writing { cache in
      let limits = limits(over: try cache.limits)
      let evicted = try await cache.trim(to: limits, recording: records)
      let counts = cache.statistics
      let excess = cache.excess(over: limits)
      let isWithin = excess.entries == 0 && excess.bytes == 0
      if target.json {
        try output.line(
          .object([
            .init("evicted", .int(evicted)),
            .init("entries", .int(counts.entries)),
            .init("usedBytes", .int(counts.usedBytes)),
            .init("withinLimits", .bool(isWithin)),
            .init("excessEntries", .int(excess.entries)),
            .init("excessBytes", .int(excess.bytes)),
            .init("pinnedEntries", .int(excess.pinnedEntries)),
            .init("pinnedBytes", .int(excess.pinnedBytes)),
            .init("recorded", .bool(records)),
          ]))
      } else {
        try output.line(
          "evicted \(counted(evicted, "entry", "entries")); "
            + "\(counted(counts.entries, "entry", "entries")) and "
            + "\(formatted(bytes: counts.usedBytes)) are left")
        if records { try output.line("recorded as the directory's limits") }
      }
      if !isWithin && !excess.isLasting && !target.json {
        try output.line(
          "\(excess.words) above the limits: stored meanwhile, or about to be evicted")
      }
      try output.flush()
      if !isWithin && excess.isLasting {
        Output.complain("still \(excess.words) above the limits: \(excess.reason)")
      }
      return excess.isLasting && !isWithin ? .found : .fine
    }
  }

  /// What is given, in place of what is recorded.
  private func limits(over recorded: BlobCache.Limits) -> BlobCache.Limits {
    var limits = recorded
    if let bytes { limits.bytes = bytes.value }
    if let entries { limits.entries = entries.value }
    if let age { limits.age = age.value }
    return limits
  }
}

extension TrimCommand.Bound {
  fileprivate var value: Value? {
    switch self {
    case .unlimited: nil
    case .most(let value): value
    }
  }
}

extension BlobCache.Excess {
  fileprivate var words: String {
    [
      entries > 0 ? counted(entries, "entry", "entries") : nil,
      bytes > 0 ? formatted(bytes: bytes) : nil,
    ].compactMap(\.self).joined(separator: " and ")
  }

  /// What no eviction takes.
  fileprivate var reason: String {
    counted(pinnedEntries, "entry", "entries")
      + " of \(formatted(bytes: pinnedBytes)) \(pinnedEntries == 1 ? "is" : "are") pinned"
      + (otherBytes > 0 ? ", \(formatted(bytes: otherBytes)) in quarantine or being stored" : "")
  }
}

/// How far a directory is from limits, and about how much would go.
private struct Forecast {
  let limits: BlobCache.Limits
  let counts: BlobCache.Statistics
  /// Entries older than the limit in age that are not pinned.
  let aged: Int
  /// What the file system lacks of the space that is to stay free.
  let lacking: Int
  let goingEntries: Int
  let goingBytes: Int

  init(_ limits: BlobCache.Limits, of cache: BlobCache) async throws {
    let census = try await cache.census()
    self.limits = limits
    counts = census.statistics
    aged = try await Self.aged(beyond: limits.age, in: cache)
    lacking = max(0, census.diskReserve - census.diskFree)
    // As if all entries took the same: what is evicted is larger, as a rule, so there are fewer.
    let fixed =
      census.slotsAllocatedBytes + census.stagingAllocatedBytes + census.quarantineAllocatedBytes
    let each = Double(max(0, counts.usedBytes - fixed)) / Double(max(1, counts.entries))
    let left = Double(counts.entries - aged)
    let tooMany = max(0, left - Double(limits.entries ?? .max))
    let tooLarge = max(
      0, Double(counts.usedBytes) - Double(aged) * each - Double(limits.bytes ?? .max),
      Double(lacking) - Double(aged) * each)
    let byBytes = each > 0 ? (tooLarge / each).rounded(.up) : 0
    let evictable = max(0, left - Double(counts.pinnedEntries))
    goingEntries = aged + Int(min(evictable, max(tooMany, byBytes)))
    goingBytes = Int(Double(goingEntries) * each)
  }

  private static func aged(beyond age: Duration?, in cache: BlobCache) async throws -> Int {
    guard let age else { return 0 }
    let oldest = currentMilliseconds() - age.wholeMilliseconds
    var count = 0
    for try await entry in cache.entries() {
      if !entry.isPinned && entry.storedAt.milliseconds < oldest { count += 1 }
    }
    return count
  }

  private var excessEntries: Int { limits.entries.map { max(0, counts.entries - $0) } ?? 0 }
  private var excessBytes: Int { limits.bytes.map { max(0, counts.usedBytes - $0) } ?? 0 }

  func write(to output: Output, json: Bool) throws {
    if json {
      try output.line(
        .object([
          .init("entries", .int(counts.entries)),
          .init("usedBytes", .int(counts.usedBytes)),
          .init("limitBytes", limits.bytes.map(JSON.int) ?? .null),
          .init("limitEntries", limits.entries.map(JSON.int) ?? .null),
          .init("limitAgeSeconds", limits.age.map { .seconds($0.wholeMilliseconds) } ?? .null),
          .init("excessBytes", .int(excessBytes)),
          .init("excessEntries", .int(excessEntries)),
          .init("agedEntries", .int(aged)),
          .init("lackingDiskBytes", .int(lacking)),
          .init("aboutEntries", .int(goingEntries)),
          .init("aboutBytes", .int(goingBytes)),
        ]))
      return
    }
    var facts = Facts()
    facts.add(
      "bytes",
      formatted(bytes: counts.usedBytes)
        + against(limits.bytes, excessBytes) { formatted(bytes: $0) })
    facts.add(
      "entries", grouped(counts.entries) + against(limits.entries, excessEntries, grouped))
    facts.add(
      "age",
      limits.age.map {
        "\(grouped(aged)) older than \(formatted(milliseconds: $0.wholeMilliseconds))"
      } ?? "no limit")
    if lacking > 0 {
      facts.add("free disk", "\(formatted(bytes: lacking)) less than is to stay free")
    }
    facts.add(
      "would go",
      goingEntries == 0
        ? "nothing"
        : "about \(counted(goingEntries, "entry", "entries")), \(formatted(bytes: goingBytes))")
    try facts.write(to: output)
  }

  private func against(_ limit: Int?, _ excess: Int, _ text: (Int) -> String) -> String {
    guard let limit else { return ", no limit" }
    let rest = excess > 0 ? "\(text(excess)) too many" : "within the limit"
    return " of \(text(limit)): \(rest)"
  }
}

extension Duration {
  /// Rounded down; at the ends of Int64 where it does not fit.
  var wholeMilliseconds: Int64 {
    let (seconds, attoseconds) = components
    let (product, overflow) = seconds.multipliedReportingOverflow(by: 1_000)
    guard !overflow else { return seconds < 0 ? .min : .max }
    return product &+ attoseconds / 1_000_000_000_000_000
  }
}
