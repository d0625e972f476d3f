import CBlobStore
import Foundation
import Glibc
import Synchronization

/// The fault hook of the C core in this process: one test at a time has it. It is called on every thread of every test
/// that runs meanwhile, so whoever sets it says 0 wherever it is not meant.
enum FaultHook {
  private static let turn = NSLock()
  private static let current = Mutex<(@Sendable (String) -> Int32)?>(nil)

  static func with<R>(
    _ fault: @escaping @Sendable (_ step: String) -> Int32, during body: () throws -> R
  ) rethrows -> R {
    turn.lock()
    defer { turn.unlock() }
    current.withLock { $0 = fault }
    bcs_set_fault_hook(
      { step, _ in
        guard let step, let fault = FaultHook.current.withLock({ $0 }) else { return 0 }
        return fault(String(cString: step))
      }, nil)
    defer { bcs_set_fault_hook(nil, nil) }
    return try body()
  }

  /// The same for steps of this thread alone.
  static func here<R>(
    _ fault: @escaping @Sendable (_ step: String) -> Int32, during body: () throws -> R
  ) rethrows -> R {
    let thread = pthread_self()
    return try with(
      { pthread_equal(pthread_self(), thread) != 0 ? fault($0) : 0 }, during: body)
  }
}

/// Commits of staged bodies for which there is no space: of all tries but the second.
final class NoSpaceButOnce: Sendable {
  private struct State {
    var isStaged = false
    var tries = 0
  }
  private let state = Mutex(State())

  func fault(_ step: String) -> Int32 {
    state.withLock { state in
      if step == "intent" { state.isStaged = true }
      // Evictions in between publish nothing, and are let through.
      guard step == "before-commit", state.isStaged else { return 0 }
      state.isStaged = false
      state.tries += 1
      return state.tries == 2 ? 0 : EDQUOT
    }
  }
}
