internal import Synchronization

/// Writes buffers to a stage, on the BlockingPool, with at most four outstanding.
///
/// Two workers go through the buffers, each in order: one appends them to the file, one hashes them.
/// Hashing takes three times as long as writing into the page cache, so a body costs the time of its
/// hash alone.
final class StageWriter: Sendable {
  static let depth = 4

  let stage: Stage

  private enum Work: CaseIterable {
    case append, hash
  }

  private struct Progress {
    /// How many of `pending` this worker is through with.
    var done = 0
    var running = false
  }

  private struct State {
    /// Those that not both workers are through with.
    var pending: [[UInt8]] = []
    var append = Progress()
    var hash = Progress()
    var written = 0
    var failure: BlobCache.Error?
    var waiter: (continuation: CheckedContinuation<Void, Never>, below: Int)?

    subscript(_ work: Work) -> Progress {
      get { work == .append ? append : hash }
      set { if work == .append { append = newValue } else { hash = newValue } }
    }

    /// Marks the workers that have something to do as running, and names them.
    mutating func workersToStart() -> [Work] {
      guard failure == nil else { return [] }
      var started: [Work] = []
      for work in Work.allCases where !self[work].running && self[work].done < pending.count {
        self[work].running = true
        started.append(work)
      }
      return started
    }

    /// The next buffer of a worker, which stops running when there is none.
    mutating func next(_ work: Work) -> [UInt8]? {
      if failure == nil, self[work].done < pending.count { return pending[self[work].done] }
      self[work].running = false
      return nil
    }

    /// Gives the buffer that both are through with now.
    mutating func finish(_ work: Work, count: Int) -> [UInt8]? {
      self[work].done += 1
      if work == .append { written += count }
      guard append.done > 0, hash.done > 0 else { return nil }
      append.done -= 1
      hash.done -= 1
      return pending.removeFirst()
    }

    /// The one who waits until fewer are outstanding, when that is so. After a failure it waits until neither worker
    /// runs any more: then the buffers are its own again.
    mutating func takeWaiter() -> CheckedContinuation<Void, Never>? {
      guard let waiting = waiter else { return nil }
      let isIdle = !append.running && !hash.running
      guard failure == nil ? pending.count < waiting.below : isIdle else { return nil }
      waiter = nil
      return waiting.continuation
    }
  }

  private let state = Mutex(State())

  init(_ stage: Stage) { self.stage = stage }

  /// Takes a buffer over; waits while four are outstanding. Throws the failure of an earlier one;
  /// this one is then among those that `stop` gives back.
  func write(_ buffer: [UInt8]) async throws(BlobCache.Error) {
    let started = state.withLock { state in
      state.pending.append(buffer)
      return state.workersToStart()
    }
    for work in started { BlockingPool.shared.submit { self.run(work) } }
    try await wait(below: Self.depth)
  }

  /// Waits until all is written and hashed.
  func drain() async throws(BlobCache.Error) { try await wait(below: 1) }

  /// After a failure: how many bytes are in the stage, and the buffers that are not.
  func stop() -> (written: Int, unwritten: [[UInt8]]) {
    state.withLock { state in
      defer {
        state.pending = []
        state.append.done = 0
        state.hash.done = 0
      }
      return (state.written, Array(state.pending.dropFirst(state.append.done)))
    }
  }

  private func wait(below: Int) async throws(BlobCache.Error) {
    await withCheckedContinuation { continuation in
      let now = state.withLock { state in
        state.waiter = (continuation, below)
        return state.takeWaiter()
      }
      now?.resume()
    }
    if let failure = state.withLock({ $0.failure }) { throw failure }
  }

  private func run(_ work: Work) {
    while let result = runNext(work) {
      let (finished, waiter) = state.withLock { state in
        var finished: [UInt8]?
        switch result {
        case .success(let count): finished = state.finish(work, count: count)
        case .failure(let failure): state.failure = state.failure ?? failure
        }
        return (finished, state.takeWaiter())
      }
      if let finished { StageBuffers.give(finished) }
      waiter?.resume()
    }
    // It runs no more; who waits for a failed stage to come to rest may go on.
    state.withLock { $0.takeWaiter() }?.resume()
  }

  /// Works on the next buffer and lets go of it, so that whoever fills it again has it alone. Nil when there is none.
  private func runNext(_ work: Work) -> Result<Int, BlobCache.Error>? {
    guard let buffer = state.withLock({ $0.next(work) }) else { return nil }
    return unsafe buffer.withUnsafeBytes { bytes in
      do throws(BlobCache.Error) {
        switch work {
        case .append: unsafe try stage.append(bytes)
        case .hash: unsafe try stage.hash(bytes)
        }
        return .success(bytes.count)
      } catch {
        return .failure(error)
      }
    }
  }
}
