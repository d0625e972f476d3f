internal import Synchronization

/// Writes buffers to a stage, in order, on the BlockingPool, with at most four outstanding.
final class StageWriter: Sendable {
  static let depth = 4

  let stage: Stage

  private struct State {
    var pending: [[UInt8]] = []
    var running = false
    var written = 0
    var failure: BlobCache.Error?
    /// A buffer that was written, to be filled again: fresh ones cost page faults.
    var spare: [UInt8]?
    var waiter: (continuation: CheckedContinuation<Void, Never>, below: Int)?

    /// The one who waits until fewer are outstanding, when that is so.
    mutating func takeWaiter() -> CheckedContinuation<Void, Never>? {
      guard let waiting = waiter else { return nil }
      guard pending.count < waiting.below || (failure != nil && !running) else { return nil }
      waiter = nil
      return waiting.continuation
    }
  }

  private let state = Mutex(State())

  init(_ stage: Stage) { self.stage = stage }

  func takeSpare() -> [UInt8]? {
    state.withLock { state in
      defer { state.spare = nil }
      return state.spare
    }
  }

  /// Takes a buffer over; waits while four are outstanding. Throws the failure of an earlier one;
  /// this one is then among those that `stop` gives back.
  func write(_ buffer: [UInt8]) async throws(BlobCache.Error) {
    let start = state.withLock { state in
      state.pending.append(buffer)
      guard state.failure == nil, !state.running else { return false }
      state.running = true
      return true
    }
    if start { BlockingPool.shared.submit { self.work() } }
    try await wait(below: Self.depth)
  }

  /// Waits until all is written.
  func drain() async throws(BlobCache.Error) { try await wait(below: 1) }

  /// After a failure: how many bytes are in the stage, and the buffers that are not.
  func stop() async -> (written: Int, unwritten: [[UInt8]]) {
    state.withLock { state in
      defer { state.pending = [] }
      return (state.written, state.pending)
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

  private func work() {
    while true {
      let buffer: [UInt8]? = state.withLock { state in
        // It stays the first of `pending` until it is written; taken out of it meanwhile, so that
        // it is uniquely referenced when it becomes the spare one.
        if !state.pending.isEmpty, state.failure == nil {
          var first: [UInt8] = []
          swap(&first, &state.pending[0])
          return first
        }
        state.running = false
        return nil
      }
      guard var buffer else {
        state.withLock { $0.takeWaiter() }?.resume()
        return
      }
      let failure: BlobCache.Error? = unsafe buffer.withUnsafeBytes { bytes in
        do throws(BlobCache.Error) {
          unsafe try stage.write(bytes)
          return nil
        } catch {
          return error
        }
      }
      let waiter = state.withLock { state in
        if let failure {
          state.failure = failure
          state.pending[0] = buffer
          return nil as CheckedContinuation<Void, Never>?
        }
        state.written += buffer.count
        state.pending.removeFirst()
        buffer.removeAll(keepingCapacity: true)
        state.spare = buffer
        return state.takeWaiter()
      }
      waiter?.resume()
    }
  }
}
