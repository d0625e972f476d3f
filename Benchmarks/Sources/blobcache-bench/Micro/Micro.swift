import Foundation

/// Runs the rows one after another and prints them: a table for people, an object a line for programs.
enum Micro {
  @concurrent
  static func run(_ options: Options) async throws -> Bool {
    var options = options
    let quick = options.flag("--quick")
    let json = options.flag("--json")
    let only = try options.value("--only")
    try options.end()

    let scale = quick ? Scale.quick : .full
    let rows = Row.all(scale).filter { only.map($0.name.contains) ?? true }
    guard !rows.isEmpty else { throw UsageError("no row's name contains \(only ?? "")") }
    let folder = try makeFolder("micro")
    defer { removeFolder(folder) }
    let bench = Bench(folder: folder, scale: scale)
    if !json { print(Report.head) }
    var met = true
    for row in rows {
      let report = Report(row: row, samples: try await row.measure(bench))
      print(json ? try report.json : report.text)
      fflush(nil)
      met = met && report.ratio >= row.target
    }
    try await bench.close()
    if !json { print(met ? "every row meets its target" : "some rows miss their target") }
    return true  // a missed target is a figure to report, not a failed run
  }
}

/// One line of the result, its ratio oriented so that larger is better.
private struct Report {
  let row: Row
  let ours: Double
  let baseline: Double
  let ratio: Double
  let samples: Samples

  init(row: Row, samples: Samples) {
    self.row = row
    self.samples = samples
    ours = samples.ours.median
    baseline = samples.baseline.median
    ratio = row.unit.isRate ? ours / baseline : baseline / max(ours, baseline / 1000)
  }

  static let head = """
    Medians of interleaved rounds, warm page cache; every entry was read once before, so that the \
    verification of the first read is done.

    \(pad("what", 46))\(pad("ours", -14))\(pad("baseline", -14))\(pad("ratio", -8))\(pad("target", -8))
    """

  var text: String {
    let line =
      pad(row.name, 46) + pad(row.unit.text(ours), -14) + pad(row.unit.text(baseline), -14)
      + pad(String(format: "%.2f", ratio), -8) + pad(String(format: "%.2f", row.target), -8)
      + (ratio >= row.target ? "" : "  missed")
    let list = { (values: [Double]) in values.map(row.unit.text).joined(separator: "  ") }
    return """
      \(line)
          against \(row.against)
          ours      \(list(samples.ours))
          baseline  \(list(samples.baseline))
      """
  }

  var json: String {
    get throws {
      struct Line: Encodable { let row: String, ours, baseline, ratio, target: Double }
      let encoder = JSONEncoder()
      encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
      let line = Line(
        row: row.name, ours: ours, baseline: baseline, ratio: ratio, target: row.target)
      return String(decoding: try encoder.encode(line), as: UTF8.self)
    }
  }
}

/// Left-aligned in `width` columns, right-aligned when it is negative.
func pad(_ text: String, _ width: Int) -> String {
  let blanks = String(repeating: " ", count: max(0, abs(width) - text.count))
  return width < 0 ? blanks + text : text + blanks
}
