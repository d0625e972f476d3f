import Foundation

/// One trace's result: a table for people, an object a line for programs.
struct ReplayReport {
  private let trace: Trace
  private let percents: [Double]
  private let capacities: [Int]
  private var rows: [(name: String, outcomes: [Outcome])] = []

  init(trace: Trace, percents: [Double], capacities: [Int]) {
    self.trace = trace
    self.percents = percents
    self.capacities = capacities
  }

  mutating func add(_ name: String, _ outcomes: [Outcome]) { rows.append((name, outcomes)) }

  var text: String {
    let size = trace.isSized ? " (\(bytes(trace.footprint)))" : ""
    var lines = [
      "\(trace.name): \(grouped(trace.requests.count)) requests, "
        + "\(grouped(trace.sizes.count)) keys\(size)",
      line("capacity, % of the footprint", percents.map { String(format: "%g", $0) }),
      line(
        "capacity, \(trace.isSized ? "payload" : "entries")",
        capacities.map { trace.isSized ? bytes($0) : grouped($0) }),
      "hits, % of requests",
    ]
    lines += self.lines(\.objectRatio)
    if trace.isSized {
      lines.append("hits, % of bytes")
      lines += self.lines(\.byteRatio)
    }
    return lines.joined(separator: "\n") + "\n"
  }

  func json(
    _ cache: String, percent: Double, capacity: Int, _ outcome: Outcome
  ) throws -> String {
    struct Line: Encodable {
      let trace, cache, unit: String
      let percent: Double
      let capacity, requests, keys, hits: Int
      let objectHitRatio, byteHitRatio: Double
    }
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
    let line = Line(
      trace: trace.name, cache: cache, unit: trace.isSized ? "bytes" : "entries", percent: percent,
      capacity: capacity, requests: outcome.requests, keys: trace.sizes.count, hits: outcome.hits,
      objectHitRatio: outcome.objectRatio, byteHitRatio: outcome.byteRatio)
    return String(decoding: try encoder.encode(line), as: UTF8.self)
  }

  /// A line each, and where the store took part, how far it is above or below the best of those it is measured by.
  private func lines(_ ratio: KeyPath<Outcome, Double>) -> [String] {
    var lines = rows.map { row in
      line("  \(row.name)", row.outcomes.map { percent($0[keyPath: ratio]) })
    }
    if let ours = rows.first(where: { $0.name == "BlobCache" }) {
      let rivals = rows.filter { ["LRU", "SIEVE", "S3-FIFO"].contains($0.name) }
      let gaps = percents.indices.map { i in
        let best = rivals.map { $0.outcomes[i][keyPath: ratio] }.max() ?? 0
        return String(format: "%+.2f", (ours.outcomes[i][keyPath: ratio] - best) * 100)
      }
      lines.append(line("  less the best, W-TinyLFU aside", gaps))
    }
    return lines
  }

  private func line(_ name: String, _ cells: [String]) -> String {
    pad(name, 32) + cells.map { pad($0, -11) }.joined()
  }

  private func percent(_ ratio: Double) -> String { String(format: "%.2f", ratio * 100) }
}
