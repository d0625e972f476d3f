internal import CBlobStore
internal import Synchronization

/// Removes what time alone makes useless: see sweep.c.
///
/// One sweep of a directory runs at a time. One in the background goes in short steps with a pause after
/// each, so that others hardly notice: 256 removals or one folder a step, at most 50 steps a second. It ends
/// between two steps when somebody in any process waits to sweep at once, who then does all of it.
final class Sweeper: Sendable {
  /// Damaged files are kept for the operator up to this many bytes.
  static let quarantineLimit: UInt64 = 64 << 20
  private static let pause = Duration.milliseconds(20)
  /// How often whoever waits for a sweep looks whether it has ended.
  private static let look = Duration.milliseconds(10)

  private struct State {
    var task: Task<Void, Never>?
    /// The lock between processes belongs to the store, so it keeps nobody in this one away.
    var isSweeping = false
    /// How many wait here to sweep at once.
    var waiting = 0
  }

  private let state = Mutex(State())

  // MARK: In the background

  /// Sweeps every `interval`, give or take a quarter, until `stop`.
  func start(_ store: Store, every interval: Duration) {
    let running = Task.detached(priority: .background) { [weak store] in
      while !Task.isCancelled {
        // Processes that were started together do not sweep together.
        let jittered = interval.asWait * Double.random(in: 0.75...1.25)
        do { try await Task.sleep(for: jittered) } catch { return }
        guard let store else { return }
        var report = BlobCache.SweepReport()
        do throws(BlobCache.Error) {
          try await store.sweeper.sweepInBackground(store, &report)
        } catch {
          // Another one is at it, or the store has just been closed.
          if ![.busy, .closed, .cancelled].contains(error.code) {
            store.emit(.backgroundError(error))
          }
        }
        if report != BlobCache.SweepReport() { store.emit(.swept(report)) }
      }
    }
    state.withLock { $0.task = running }
  }

  func stop() { state.withLock { $0.task.take() }?.cancel() }

  private func sweepInBackground(
    _ store: Store, _ report: inout BlobCache.SweepReport
  ) async throws(BlobCache.Error) {
    guard enter() else { return }
    defer { leave() }
    unsafe try await Self.step(store) { unsafe bcs_sweep_begin($0) }
    // The lock belongs to the store, so it is given up in any case.
    defer { unsafe bcs_sweep_end(store.handle.pointer) }
    try await Self.sweepLocked(store, pause: Self.pause, &report)
  }

  // MARK: At once

  /// One sweep of everything, after one that runs.
  ///
  /// - Parameters:
  ///   - patience: how long that one is waited for.
  ///   - check: throws when there is no use in waiting any more.
  /// - Throws: `.busy` when it goes on for longer than that; `.cancelled` between two steps.
  func sweep(
    _ store: Store, patience: Duration = .seconds(30), check: () throws(BlobCache.Error) -> Void
  ) async throws(BlobCache.Error) -> BlobCache.SweepReport {
    let end = ContinuousClock.now + patience
    func pause() async throws(BlobCache.Error) {
      try check()
      if ContinuousClock.now >= end {
        throw BlobCache.Error(
          .busy, operation: "sweep", path: store.handle.info.path,
          message: "A sweep is running already; try again when it has ended.")
      }
      do { try await Task.sleep(for: Self.look) } catch { throw .cancelled("sweep") }
    }
    state.withLock { $0.waiting += 1 }
    defer { state.withLock { $0.waiting -= 1 } }
    while !enter() { try await pause() }
    defer { leave() }
    unsafe try await Self.step(store) { unsafe bcs_sweep_want($0) }
    defer { unsafe bcs_sweep_want_no_more(store.handle.pointer) }
    while try await !Self.begins(store) { try await pause() }
    defer { unsafe bcs_sweep_end(store.handle.pointer) }
    var report = BlobCache.SweepReport()
    try await Self.sweepLocked(store, pause: nil, &report)
    return report
  }

  private static func begins(_ store: Store) async throws(BlobCache.Error) -> Bool {
    do throws(BlobCache.Error) {
      unsafe try await step(store) { unsafe bcs_sweep_begin($0) }
      return true
    } catch {
      if error.code == .busy { return false }
      throw error
    }
  }

  // MARK: Steps

  private func enter() -> Bool {
    state.withLock { state in
      if state.isSweeping { return false }
      state.isSweeping = true
      return true
    }
  }

  private func leave() { state.withLock { $0.isSweeping = false } }

  /// Adds what is removed to a report as it goes.
  ///
  /// - Parameter pause: nil: at once; else between two steps, and ends with `.busy` when somebody waits.
  private static func sweepLocked(
    _ store: Store, pause: Duration?, _ report: inout BlobCache.SweepReport
  ) async throws(BlobCache.Error) {
    var line: UInt32 = 0
    var done = false
    while !done {
      let now = store.now
      let from = line
      let result = unsafe try await step(store, pause) { store in
        var step = Step(line: from)
        step.status = unsafe bcs_sweep_expired(store, &step.line, now, &step.removed, &step.done)
        return step
      }
      (line, done) = (result.line, result.done)
      report.expired += Int(clamping: result.removed)
    }
    var rows = Step()
    while !rows.done {
      let from = rows.cursor
      rows = unsafe try await step(store, pause) { store in
        var step = Step()
        step.cursor = from
        step.status = unsafe step.cursor.withUnsafeMutableBufferPointer { cursor in
          unsafe bcs_sweep_missing(store, cursor.baseAddress, &step.removed, &step.done)
        }
        return step
      }
      report.missingFiles += Int(clamping: rows.removed)
    }
    report.deadStagingFiles += unsafe try await count(store, pause) {
      unsafe bcs_sweep_staging($0, &$1)
    }
    report.quarantinedFiles += unsafe try await count(store, pause) {
      unsafe bcs_sweep_quarantine($0, quarantineLimit, &$1)
    }
    for folder in UInt8.min...UInt8.max {
      report.unreferencedFiles += unsafe try await count(store, pause) {
        unsafe bcs_sweep_folder($0, folder, &$1)
      }
    }
    try await BlockingPool.shared.attempt { () throws(BlobCache.Error) -> Void in
      try store.queue.sweepAll()
      // What a checkpoint keeps goes after the next one.
      if store.queue.wantsCheckpoint {
        try store.checkpoint()
        try store.queue.sweepAll()
      }
    }
  }

  private struct Step: Sendable {
    var status = BCS_OK
    var line: UInt32 = 0
    var cursor = [UInt8](repeating: 0, count: Int(BCS_HASH_SIZE))
    var removed: UInt64 = 0
    var done = false
  }

  private static func count(
    _ store: Store, _ pause: Duration?,
    _ body: @escaping @Sendable (OpaquePointer, inout UInt64) -> bcs_status
  ) async throws(BlobCache.Error) -> Int {
    let result = unsafe try await step(store, pause) { store in
      var step = Step()
      unsafe step.status = body(store, &step.removed)
      return step
    }
    return Int(clamping: result.removed)
  }

  private static func step(
    _ store: Store, _ body: @escaping @Sendable (OpaquePointer) -> bcs_status
  ) async throws(BlobCache.Error) {
    _ = unsafe try await step(store, nil) { unsafe Step(status: body($0)) }
  }

  private static func step(
    _ store: Store, _ pause: Duration?, _ body: @escaping @Sendable (OpaquePointer) -> Step
  ) async throws(BlobCache.Error) -> Step {
    if let pause {
      do { try await Task.sleep(for: pause) } catch { throw .cancelled("sweep") }
      let isWantedHere = store.sweeper.state.withLock { $0.waiting > 0 }
      let isWantedElsewhere = unsafe bcs_sweep_is_wanted(store.handle.pointer)
      if isWantedHere || isWantedElsewhere {
        throw BlobCache.Error(BCS_BUSY, operation: "sweep")
      }
    }
    if Task.isCancelled { throw .cancelled("sweep") }
    return try await BlockingPool.shared.attempt { () throws(BlobCache.Error) -> Step in
      try unsafe store.handle.use("sweep") { pointer throws(BlobCache.Error) -> Step in
        let result = unsafe body(pointer)
        guard result.status == BCS_OK else { throw result.status.lastError("sweep") }
        return result
      }
    }
  }
}
