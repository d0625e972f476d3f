import Foundation

/// One refreshed line on a terminal; a line every two seconds elsewhere, every ten for a soak.
final class Progress {
  private let plan: Plan
  private let watch: Watch
  private let terminal: Bool
  private var shown = -10.0
  private var last = (requests: 0, seconds: 0.0)

  init(_ plan: Plan, _ watch: Watch) {
    self.plan = plan
    self.watch = watch
    terminal = isatty(STDERR_FILENO) == 1 && !plan.soak
  }

  func show(_ tally: Tally, _ seconds: Double) {
    guard !plan.json, seconds - shown >= (terminal ? 0.45 : plan.soak ? 10 : 2) else { return }
    shown = seconds
    let rate = Double(tally.requests - last.requests) / max(seconds - last.seconds, 0.001)
    last = (tally.requests, seconds)
    let hits = Double(tally.hits) / Double(max(tally.requests, 1))
    let look = watch.looks.last
    var line =
      String(format: "%5.1f s  ", seconds) + "\(grouped(Int(rate))) requests/s  "
      + String(format: "hits %.1f %%  ", hits * 100)
    if plan.soak {
      let resident = look?.resident.map { String(format: "%.1f", Double($0) / 1_048_576) } ?? []
      line +=
        "memory \(resident.joined(separator: " ")) MiB  disk \(bytes(look?.walked ?? 0))  "
        + "used \(bytes(look?.used ?? 0))  evictions \(grouped(look?.evictions ?? 0))"
    } else {
      line +=
        "loads \(grouped(tally.count(.load)))  joins \(grouped(tally.count(.join)))  "
        + "expired \(grouped(tally.expired))  evictions \(grouped(look?.evictions ?? 0))  "
        + "used \(bytes(look?.used ?? 0))"
    }
    FileHandle.standardError.write(Data((terminal ? "\r\u{1B}[K\(line)" : "\(line)\n").utf8))
  }

  func end() {
    if terminal, !plan.json { FileHandle.standardError.write(Data("\r\u{1B}[K".utf8)) }
  }
}
