import Foundation

/// The worker processes of a run. Each prints its tally as a line of JSON twice a second; the last line is the result.
struct Crew {
  let plan: Plan
  let list: String
  /// Bytes that each worker keeps in memory.
  let memory: Int
  let watch: Watch

  func run() async throws -> (tally: Tally, seconds: Double, crashes: Int) {
    let start = ContinuousClock.now
    let progress = Progress(plan, watch)
    let (lines, feed) = AsyncStream<(worker: Int, tally: Tally?)>.makeStream()
    let workers = try (0..<plan.processes).map { try begin($0, feed) }
    watch.begin(processes: workers.map(\.processIdentifier))

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
    let seconds = (ContinuousClock.now - start).seconds
    try await watch.end()
    return (sum(latest), seconds, crashes)
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
      "stress-worker", "--directory", plan.directory, "--origin", list,
      "--seconds", "\(plan.seconds)", "--seed", "\(i + 1)", "--memory", "\(memory)",
    ]
    // As a service that keeps large bodies would run (the guide's "Memory"): malloc of glibc has an arena per thread, and
    // keeps at the top of each what it freed, until what a process holds is four times what it uses.
    process.environment = ProcessInfo.processInfo.environment.merging(
      ["MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "1048576"]) { own, _ in own }
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
