internal import BlobCache
internal import Synchronization

/// One line on standard error that is drawn over, when that is a terminal and the whole percent has changed.
final class ProgressBar: Sendable {
  private let shown = Mutex(-1)
  private let isShown: Bool

  init() { isShown = isTerminal(2) }

  func update(_ progress: BlobCache.VerifyProgress) {
    guard isShown else { return }
    shown.withLock { shown in
      let percent = progress.total > 0 ? min(100, progress.done * 100 / progress.total) : 100
      guard percent != shown else { return }
      shown = percent
      let full = percent * 40 / 100
      let bar = String(repeating: "█", count: full) + String(repeating: "░", count: 40 - full)
      Output.standardError(
        "\r\(bar) \(padLeft(String(percent), 3)) %  \(grouped(progress.done)) of "
          + "\(grouped(progress.total))\u{1B}[K")
    }
  }

  /// A count whose end is not known.
  func update(removed: Int) {
    guard isShown else { return }
    Output.standardError("\r\(grouped(removed)) removed …\u{1B}[K")
  }

  /// Takes the line away.
  func finish() {
    if isShown { Output.standardError("\r\u{1B}[K") }
  }
}
