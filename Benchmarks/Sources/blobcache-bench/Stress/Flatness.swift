import Foundation

/// The rule of the soak. The first third of the run is warm-up; then nothing may grow: the median of the last third is
/// at most 10 % above the median of the middle third. Medians, since memory and disk breathe with what is under way.
struct Flatness: Encodable {
  static let growth = 1.10

  let what: String
  let middle: Int
  let last: Int

  var isFlat: Bool { middle > 0 && Double(last) <= Double(middle) * Self.growth }

  var text: String {
    String(format: "%+.1f %%, ", 100 * (Double(last) / Double(max(middle, 1)) - 1))
      + "from \(bytes(middle)) to \(bytes(last))" + (isFlat ? "" : "   NOT FLAT")
  }

  /// Resident memory of each worker, then the directory's allocated blocks.
  static func judge(_ looks: [Watch.Look], seconds: Int) -> [Flatness] {
    let third = Double(seconds) / 3
    func median(_ range: Range<Double>, _ value: (Watch.Look) -> Int) -> Int {
      let values = looks.filter { range.contains($0.seconds) }.map(value).filter { $0 > 0 }
      return values.isEmpty ? 0 : Int(values.map(Double.init).median)
    }
    func judge(_ what: String, _ value: (Watch.Look) -> Int) -> Flatness {
      Flatness(
        what: what, middle: median(third..<2 * third, value),
        last: median(2 * third..<3 * third, value))
    }
    let workers = looks.first?.resident.count ?? 0
    return (0..<workers).map { i in judge("memory, process \(i + 1)") { $0.resident[i] } }
      + [judge("disk") { $0.walked }]
  }
}
