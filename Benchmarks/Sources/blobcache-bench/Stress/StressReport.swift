import Foundation

/// The closing table.
struct StressReport {
  let tally: Tally
  let seconds: Double
  let looks: [Watch.Look]
  let bound: Bound?
  /// Looks that found more than the bound.
  let violations: Int
  let flatness: [Flatness]

  private var evictions: Int { (looks.last?.evictions ?? 0) - (looks.first?.evictions ?? 0) }
  private var evictionAge: Double { looks.last?.evictionAge.seconds ?? 0 }
  private var used: Int { looks.last?.used ?? 0 }
  private var mostUsed: Int { looks.map(\.used).max() ?? 0 }
  private var disk: Int { looks.last?.walked ?? 0 }
  private var index: Int { looks.last?.index ?? 0 }
  private var mostIndex: Int { looks.map(\.index).max() ?? 0 }
  private var mostOutside: Int { looks.map { $0.walked - $0.index }.max() ?? 0 }
  private var perSecond: Double { Double(tally.requests) / seconds }

  var text: String {
    let share = { (n: Int) in
      String(format: "%.2f %%", 100 * Double(n) / Double(max(tally.requests, 1)))
    }
    let line = { (what: String, value: String, note: String) in
      pad(what, 22) + pad(value, -16) + (note.isEmpty ? "" : "   \(note)")
    }
    var lines = [
      "",
      line("requests", grouped(tally.requests), "\(grouped(Int(perSecond))) a second"),
      line("  hits", grouped(tally.hits), share(tally.hits)),
      line("  hits, memory", grouped(tally.count(.memory)), share(tally.count(.memory))),
      line("  hits, index", grouped(tally.count(.index)), share(tally.count(.index))),
      line("  hits, file", grouped(tally.count(.file)), share(tally.count(.file))),
      line("  loads", grouped(tally.count(.load)), share(tally.count(.load))),
      line("  joins", grouped(tally.count(.join)), "waited for somebody else's load"),
      line("expired", grouped(tally.expired), "loads that found a copy past its lifetime"),
      line(
        "served", bytes(tally.bytesServed), "\(bytes(Int(Double(tally.bytesServed) / seconds)))/s"),
      line("verified", grouped(tally.verified), "blobs compared with their file's SHA-256"),
      line("wrong", grouped(tally.wrongBytes), ""),
      line(
        "duplicate loads", grouped(tally.duplicateLoads), "two at a time of one key in one process"),
      line("errors", grouped(tally.errors), ""),
      line("not stored", grouped(tally.notStored), ""),
      line(
        "evictions", grouped(evictions), "\(grouped(Int(Double(evictions) / seconds))) a second"),
      line(
        "age at eviction", duration(evictionAge * 1e9),
        "since the last read, a moving average"),
      line("limit", bound.map { bytes($0.limit) } ?? "none", ""),
      line("used", bytes(used), "at most \(bytes(mostUsed))\(allowed(\.used))"),
      line("disk use", bytes(disk), "allocated blocks, by a walk"),
      line("  index", bytes(index), "its file, free pages included, at most \(bytes(mostIndex))"),
      line("  all else", bytes(disk - index), "at most \(bytes(mostOutside))\(allowed(\.walked))"),
      line(
        "above the bound", grouped(violations), "of \(grouped(looks.count)) samples"),
      line("memory", bytes(tally.residentKiB << 10), "the largest process, at most"),
    ]
    for item in flatness { lines.append(line("flat: \(item.what)", "", item.text)) }
    lines += [
      "",
      pad("latency", 22) + pad("p50", -12) + pad("p99", -12) + pad("p99.9", -12),
    ]
    for kind in Tally.Kind.allCases {
      let cells = [0.5, 0.99, 0.999].map { quantile in
        pad(duration(tally.latency[kind]?.quantile(quantile)), -12)
      }
      lines.append(pad("  \(kind.rawValue)", 22) + cells.joined())
    }
    return lines.joined(separator: "\n") + "\n"
  }

  private func allowed(_ most: KeyPath<Bound, Int>) -> String {
    bound.map { ", allowed \(bytes($0[keyPath: most]))" } ?? ""
  }

  var json: String {
    get throws {
      var latency: [String: [String: Double]] = [:]
      for kind in Tally.Kind.allCases {
        for (name, q) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
          latency[kind.rawValue, default: [:]][name] = tally.latency[kind]?.quantile(q)
        }
      }
      let line = Line(
        seconds: seconds, requests: tally.requests, requestsPerSecond: perSecond,
        memoryHits: tally.count(.memory), indexHits: tally.count(.index),
        fileHits: tally.count(.file), loads: tally.count(.load),
        joins: tally.count(.join), expired: tally.expired, bytesServed: tally.bytesServed,
        verified: tally.verified, wrongBytes: tally.wrongBytes,
        duplicateLoads: tally.duplicateLoads, errors: tally.errors, notStored: tally.notStored,
        evictions: evictions, evictionAgeSeconds: evictionAge, limitBytes: bound?.limit,
        usedBytes: used, usedBytesMost: mostUsed, usedBytesAllowed: bound?.used,
        diskBytes: disk, indexFileBytes: index, indexFileBytesMost: mostIndex,
        outsideIndexBytesMost: mostOutside, outsideIndexBytesAllowed: bound?.walked,
        samples: looks.count, samplesAboveBound: violations,
        residentBytes: tally.residentKiB << 10, flatness: flatness, latencyNanoseconds: latency)
      let encoder = JSONEncoder()
      encoder.outputFormatting = [.sortedKeys]
      return String(decoding: try encoder.encode(line), as: UTF8.self)
    }
  }

  private struct Line: Encodable {
    let seconds: Double
    let requests: Int
    let requestsPerSecond: Double
    let memoryHits, indexHits, fileHits, loads, joins, expired, bytesServed, verified: Int
    let wrongBytes, duplicateLoads, errors, notStored, evictions: Int
    let evictionAgeSeconds: Double
    let limitBytes: Int?
    let usedBytes, usedBytesMost: Int
    let usedBytesAllowed: Int?
    let diskBytes, indexFileBytes, indexFileBytesMost, outsideIndexBytesMost: Int
    let outsideIndexBytesAllowed: Int?
    let samples, samplesAboveBound, residentBytes: Int
    let flatness: [Flatness]
    let latencyNanoseconds: [String: [String: Double]]
  }
}

func grouped(_ n: Int) -> String {
  var text = ""
  for (i, digit) in String(n).reversed().enumerated() {
    if i > 0, i.isMultiple(of: 3), digit != "-" { text.append(",") }
    text.append(digit)
  }
  return String(text.reversed())
}

func bytes(_ n: Int) -> String {
  let units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
  var (value, unit) = (Double(n), 0)
  while value >= 1024, unit < units.count - 1 { (value, unit) = (value / 1024, unit + 1) }
  return unit == 0 ? "\(n) bytes" : String(format: "%.1f %@", value, units[unit])
}

private func duration(_ nanoseconds: Double?) -> String {
  guard let nanoseconds else { return "–" }
  return switch nanoseconds {
  case ..<1e3: String(format: "%.0f ns", nanoseconds)
  case ..<1e6: String(format: "%.1f µs", nanoseconds / 1e3)
  case ..<1e9: String(format: "%.1f ms", nanoseconds / 1e6)
  default: String(format: "%.2f s", nanoseconds / 1e9)
  }
}
