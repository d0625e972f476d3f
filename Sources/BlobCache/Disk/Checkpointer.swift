internal import CBlobStore
internal import Synchronization

/// Makes checkpoints, from time to time and when commits ask for one: see checkpoint.c.
///
/// Every process of a directory has one, and looks whether the last checkpoint, whoever made it, is
/// old enough; so the directory has one in each interval as long as any of them runs.
final class Checkpointer: Sendable {
  private struct State {
    var timer: Task<Void, Never>?
    var isAsked = false
    var isStopped = false
  }
  private let state = Mutex(State())

  /// Makes one every `interval`, give or take a tenth, until `stop`.
  func start(_ store: Store, every interval: Duration) {
    let interval = interval.asWait
    let timer = Task.detached(priority: .utility) { [weak store] in
      while !Task.isCancelled {
        // Processes that were started together do not look together.
        let jittered = interval * Double.random(in: 0.9...1.1)
        do { try await Task.sleep(for: jittered) } catch { return }
        guard let store else { return }
        await BlockingPool.shared.run { Self.make(store, after: interval * 0.9) }
      }
    }
    state.withLock { $0.timer = timer }
  }

  /// Before its time; what is asked for while one is being made is met by that one or by the next.
  func ask(_ store: Store) {
    let begins = state.withLock { state in
      guard !state.isAsked, !state.isStopped else { return false }
      state.isAsked = true
      return true
    }
    guard begins else { return }
    BlockingPool.shared.submit { [weak self, weak store] in
      if let store { Self.make(store, after: .seconds(3600)) }
      self?.state.withLock { $0.isAsked = false }
    }
  }

  func stop() {
    state.withLock { state in
      state.isStopped = true
      return state.timer.take()
    }?.cancel()
  }

  private static func make(_ store: Store, after interval: Duration) {
    do throws(BlobCache.Error) {
      try unsafe store.handle.use("checkpoint") { pointer throws(BlobCache.Error) in
        let milliseconds = interval.milliseconds
        let status = unsafe bcs_checkpoint(pointer, milliseconds)
        guard status == BCS_OK else { throw status.lastError("checkpoint") }
      }
    } catch {
      if ![.busy, .closed, .forked].contains(error.code) { store.emit(.backgroundError(error)) }
    }
  }
}
