internal import Dispatch
internal import Synchronization

/// Threads for calls that can block: disk, locks of other processes, long hashing. Such calls never
/// run on the cooperative pool, whose few threads every task of the process shares.
///
/// The workers are serial Dispatch queues, since those get threads of their own; a concurrent queue
/// would draw on the same few threads as the cooperative pool does on Linux.
final class BlockingPool: Sendable {
  /// One for the process. Eight: more would only make the disk seek, and a worker that waits for
  /// another process's lock must not stop the others.
  static let shared = BlockingPool(workers: 8)

  private struct State {
    var jobs: [@Sendable () -> Void] = []
    var head = 0
    var idle: [Int]

    mutating func next() -> (@Sendable () -> Void)? {
      guard head < jobs.count else {
        jobs.removeAll(keepingCapacity: true)
        head = 0
        return nil
      }
      defer { head += 1 }
      return jobs[head]
    }
  }

  private let workers: [DispatchQueue]
  private let state: Mutex<State>

  init(workers count: Int) {
    workers = (0..<count).map { DispatchQueue(label: "blobcache.blocking.\($0)") }
    state = Mutex(State(idle: Array((0..<count).reversed())))
  }

  /// Runs a job on a worker and returns its result. Not cancellable: the job decides.
  func run<T: Sendable>(_ job: @escaping @Sendable () -> T) async -> T {
    await withCheckedContinuation { continuation in
      submit { continuation.resume(returning: job()) }
    }
  }

  /// Runs a throwing job on a worker.
  func attempt<T: Sendable>(
    _ job: @escaping @Sendable () throws(BlobCache.Error) -> T
  ) async throws(BlobCache.Error) -> T {
    let result: Result<T, BlobCache.Error> = await run {
      do throws(BlobCache.Error) { return .success(try job()) } catch { return .failure(error) }
    }
    return try result.get()
  }

  /// Runs a job on a worker, in the order of submission if one worker is free, without waiting for
  /// it.
  func submit(_ job: @escaping @Sendable () -> Void) {
    let worker = state.withLock { state in
      state.jobs.append(job)
      return state.idle.popLast()
    }
    guard let worker else { return }
    workers[worker].async { self.work(worker) }
  }

  private func work(_ worker: Int) {
    while true {
      let job = state.withLock { state in
        let job = state.next()
        if job == nil { state.idle.append(worker) }
        return job
      }
      guard let job else { return }
      job()
    }
  }
}
