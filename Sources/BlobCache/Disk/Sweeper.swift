internal import CBlobStore
internal import Synchronization

/// Removes, from time to time, what time alone makes useless: see sweep.c.
///
/// One process of a directory sweeps at a time. It goes in short steps with a pause after each, so
/// that others hardly notice: 256 removals or one folder a step, at most 50 steps a second.
final class Sweeper: Sendable {
  /// Damaged files are kept for the operator up to this many bytes.
  static let quarantineLimit: UInt64 = 64 << 20
  private static let pause = Duration.milliseconds(20)

  private let task = Mutex<Task<Void, Never>?>(nil)

  /// Sweeps every `interval`, give or take a quarter, until `stop`.
  func start(_ store: Store, every interval: Duration) {
    let running = Task.detached(priority: .background) { [weak store] in
      while !Task.isCancelled {
        // Processes that were started together do not sweep together.
        let jittered = interval.asWait * Double.random(in: 0.75...1.25)
        do { try await Task.sleep(for: jittered) } catch { return }
        guard let store else { return }
        do throws(BlobCache.Error) {
          let report = try await Self.sweep(store, pause: Self.pause)
          if report != BlobCache.SweepReport() { store.emit(.swept(report)) }
        } catch {
          // Another process is at it, or the store has just been closed.
          if ![.busy, .closed, .cancelled].contains(error.code) {
            store.emit(.backgroundError(error))
          }
        }
      }
    }
    task.withLock { $0 = running }
  }

  func stop() { task.withLock { $0.take() }?.cancel() }

  /// One sweep of everything.
  ///
  /// - Throws: `.busy` when another process sweeps; `.cancelled` between two steps.
  static func sweep(
    _ store: Store, pause: Duration?
  ) async throws(BlobCache.Error) -> BlobCache.SweepReport {
    unsafe try await step(store) { unsafe bcs_sweep_begin($0) }
    // The lock belongs to the store, so it is given up in any case.
    do throws(BlobCache.Error) {
      let report = try await sweepLocked(store, pause: pause)
      unsafe bcs_sweep_end(store.handle.pointer)
      return report
    } catch {
      unsafe bcs_sweep_end(store.handle.pointer)
      throw error
    }
  }

  private static func sweepLocked(
    _ store: Store, pause: Duration?
  ) async throws(BlobCache.Error) -> BlobCache.SweepReport {
    var report = BlobCache.SweepReport()
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
      while try store.queue.sweepOnce() {}
    }
    return report
  }

  private struct Step: Sendable {
    var status = BCS_OK
    var line: UInt32 = 0
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
