import Synchronization

/// A door that is closed until somebody opens it. Tests hold loaders with it instead of sleeping.
final class Latch: Sendable {
  private struct State {
    var isOpen = false
    var waiting: [UInt64: CheckedContinuation<Void, any Error>] = [:]
    var last: UInt64 = 0
  }

  private let state = Mutex(State())

  /// How many tasks stand before the door.
  var waiterCount: Int { state.withLock { $0.waiting.count } }

  func open() {
    let waiting = state.withLock { state in
      state.isOpen = true
      defer { state.waiting = [:] }
      return state.waiting.values
    }
    for continuation in waiting { continuation.resume() }
  }

  /// Waits, and throws when the task is cancelled meanwhile.
  func wait() async throws {
    let id = state.withLock { state in
      state.last += 1
      return state.last
    }
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let result: Result<Void, any Error>? = state.withLock { state in
          if Task.isCancelled { return .failure(CancellationError()) }
          if state.isOpen { return .success(()) }
          state.waiting[id] = continuation
          return nil
        }
        if let result { continuation.resume(with: result) }
      }
    } onCancel: {
      state.withLock { $0.waiting.removeValue(forKey: id) }?.resume(throwing: CancellationError())
    }
  }

  /// Waits whatever happens to the task: a loader that ignores its cancellation.
  func waitStubbornly() async {
    await Task.detached { try? await self.wait() }.value  // never cancelled, so it never throws
  }
}

/// Lets others run until something has come about. No time passes by this: a test that waits for
/// what never happens ends at its time limit.
func until(_ condition: () -> Bool) async {
  while !condition() { await Task.yield() }
}

/// A number that many tasks count up.
final class Tally: Sendable {
  private let number = Atomic<Int>(0)
  var value: Int { number.load(ordering: .sequentiallyConsistent) }
  @discardableResult func add() -> Int { number.add(1, ordering: .sequentiallyConsistent).newValue }
}
