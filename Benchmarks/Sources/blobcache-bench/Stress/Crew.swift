import Foundation

/// The worker processes of a run. Each prints its tally as a line of JSON twice a second; the last line is the result.
struct Crew {
  let directory: String
  let list: String
  let seconds: Int
  let live: Bool

  func run() async throws -> (tally: Tally, seconds: Double, crashes: Int) {
    let start = ContinuousClock.now
    let progress = Progress(enabled: live)
    let (lines, feed) = AsyncStream<(worker: Int, tally: Tally?)>.makeStream()
    let workers = try (0..<Stress.processes).map { try begin($0, feed) }

    var latest = [Tally](repeating: Tally(), count: workers.count)
    var running = workers.count
    for await line in lines {
      if let tally = line.tally { latest[line.worker] = tally } else { running -= 1 }
      if running == 0 { break }
      progress.show(sum(latest), (ContinuousClock.now - start).seconds)
    }
    progress.end()
    var crashes = 0
    for worker in workers {
      worker.waitUntilExit()
      if worker.terminationReason == .uncaughtSignal || worker.terminationStatus > 1 {
        crashes += 1
      }
      // 1 without a failure in its tally: it could not run, and said why on stderr.
      if worker.terminationStatus == 1, !sum(latest).failed { crashes += 1 }
    }
    return (sum(latest), (ContinuousClock.now - start).seconds, crashes)
  }

  private func sum(_ tallies: [Tally]) -> Tally {
    var sum = Tally()
    for tally in tallies { sum.add(tally) }
    return sum
  }

  private func begin(
    _ i: Int, _ feed: AsyncStream<(worker: Int, tally: Tally?)>.Continuation
  ) throws -> Process {
    let process = Process()
    process.executableURL = Bundle.main.executableURL
    process.arguments = [
      "stress-worker", "--directory", directory, "--origin", list, "--seconds", "\(seconds)",
      "--seed", "\(i + 1)",
    ]
    let pipe = Pipe()
    process.standardOutput = pipe
    try process.run()
    let handle = pipe.fileHandleForReading
    Thread.detachNewThread {  // reading a pipe blocks
      for line in Lines(handle: handle) {
        // A line cut short means that the worker died; its exit status tells.
        if let tally = try? JSONDecoder().decode(Tally.self, from: line) { feed.yield((i, tally)) }
      }
      feed.yield((i, nil))
    }
    return process
  }
}

/// The lines that arrive at a pipe, until its other end is closed.
private struct Lines: Sequence, IteratorProtocol {
  let handle: FileHandle
  private var rest = Data()

  init(handle: FileHandle) { self.handle = handle }

  mutating func next() -> Data? {
    while true {
      if let end = rest.firstIndex(of: UInt8(ascii: "\n")) {
        let line = Data(rest[rest.startIndex..<end])
        rest = Data(rest[rest.index(after: end)...])
        return line
      }
      let more = handle.availableData
      if more.isEmpty { return nil }
      rest += more
    }
  }
}

/// One refreshed line on a terminal; a line every two seconds elsewhere.
private final class Progress {
  private let enabled: Bool
  private let terminal = isatty(STDERR_FILENO) == 1
  private var shown = -10.0
  private var last = (requests: 0, seconds: 0.0)

  init(enabled: Bool) { self.enabled = enabled }

  func show(_ tally: Tally, _ seconds: Double) {
    guard enabled, seconds - shown >= (terminal ? 0.45 : 2) else { return }
    shown = seconds
    let rate = Double(tally.requests - last.requests) / max(seconds - last.seconds, 0.001)
    last = (tally.requests, seconds)
    let found = tally.count(.memory) + tally.count(.index) + tally.count(.file)
    let hits = Double(found) / Double(max(tally.requests, 1))
    let line =
      String(format: "%5.1f s  ", seconds) + "\(grouped(Int(rate))) requests/s  "
      + String(format: "hits %.1f %%  ", hits * 100)
      + "loads \(grouped(tally.count(.load)))  joins \(grouped(tally.count(.join)))  "
      + "expired \(grouped(tally.expired))  verified \(bytes(tally.bytesServed))"
    FileHandle.standardError.write(Data((terminal ? "\r\u{1B}[K\(line)" : "\(line)\n").utf8))
  }

  func end() {
    if enabled, terminal { FileHandle.standardError.write(Data("\r\u{1B}[K".utf8)) }
  }
}
