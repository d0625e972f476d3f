internal import CBlobStore
internal import Dispatch
internal import Synchronization

/// Group commit: everything that is queued becomes one transaction, and each caller awaits its own
/// result.
///
/// One thread (a serial Dispatch queue) commits. A call on a quiet store commits in place instead,
/// on the caller's thread, if the lock is free at a try: a hop to the thread and back costs about
/// 45 µs, a commit 12. The queue is bounded in bytes; callers wait for admission before they
/// prepare, so memory does not grow.
final class WriteQueue: Sendable {
  /// The most bytes of queued writes: enough for a few thousand small blobs a batch.
  static let byteLimit = 64 << 20

  fileprivate struct Pending {
    let id: UInt64
    let writes: [PreparedWrite]
    /// Called once: true when committed (or failed), false when taken back.
    let done: @Sendable (Bool) -> Void
  }

  fileprivate struct Waiter {
    let id: UInt64
    let cost: Int
    let continuation: CheckedContinuation<Bool, Never>
  }

  fileprivate struct State {
    var queued: [Pending] = []
    var committing = false
    var lastBatch = 0
    /// How many callers store at one time: the most of late.
    var concurrency = 0
    /// The committing thread waits until this many are queued; 0 when it does not.
    var gathering = 0
    var bytes = 0
    var waiters: [Waiter] = []
    var nextID: UInt64 = 0
    var sweepScheduled = false
    var givesBackSoon = false
    /// The index's newest transaction when giving back was last tried.
    var givenBackAt: UInt64 = 0
    /// Called when nothing is queued or being committed.
    var idleWaiters: [CheckedContinuation<Void, Never>] = []

    mutating func makeID() -> UInt64 {
      nextID += 1
      return nextID
    }
  }

  private let handle: StoreHandle
  private let thread: DispatchQueue
  private let report: @Sendable (BlobCache.Error) -> Void
  private let state = Mutex(State())
  private let checkpointWanted = Mutex<(@Sendable () -> Void)?>(nil)
  /// Signalled when as many are queued as the committing thread waits for.
  private let gathered = DispatchSemaphore(value: 0)

  init(
    handle: StoreHandle, thread: DispatchQueue,
    report: @escaping @Sendable (BlobCache.Error) -> Void
  ) {
    self.handle = handle
    self.thread = thread
    self.report = report
  }

  // MARK: Admission

  /// Waits until the queue has room for `cost` bytes. Give them back with `release`.
  func admit(_ cost: Int) async throws(BlobCache.Error) {
    if Task.isCancelled { throw .cancelled("store") }
    let admitted = state.withLock { $0.admit(cost) }
    if admitted { return }
    let id = state.withLock { $0.makeID() }
    let granted = await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        let now: Bool? = state.withLock { state in
          if state.admit(cost) { return true }
          if Task.isCancelled { return false }
          state.waiters.append(Waiter(id: id, cost: cost, continuation: continuation))
          return nil
        }
        if let now { continuation.resume(returning: now) }
      }
    } onCancel: {
      let waiter = state.withLock { state in
        state.waiters.firstIndex { $0.id == id }.map { state.waiters.remove(at: $0) }
      }
      waiter?.continuation.resume(returning: false)
    }
    if !granted { throw .cancelled("store") }
  }

  func release(_ cost: Int) {
    let admitted = state.withLock { state in
      state.bytes -= cost
      var admitted: [Waiter] = []
      while let first = state.waiters.first, state.fits(first.cost) {
        state.bytes += first.cost
        admitted.append(state.waiters.removeFirst())
      }
      return admitted
    }
    for waiter in admitted { waiter.continuation.resume(returning: true) }
  }

  // MARK: Committing

  /// Commits these writes, in one transaction and in order, with whatever else is queued. Then ask
  /// each for its outcome.
  ///
  /// - Parameter inPlace: whether the caller's thread may commit (nothing in it can take long).
  /// - Throws: `.cancelled` if the task was cancelled and the writes could be taken back unmade.
  func commit(_ writes: [PreparedWrite], inPlace: Bool) async throws(BlobCache.Error) {
    if Task.isCancelled { throw .cancelled("store") }
    if inPlace, commitInPlace(writes) { return }
    let id = state.withLock { $0.makeID() }
    let committed = await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        enqueue(Pending(id: id, writes: writes) { continuation.resume(returning: $0) })
      }
    } onCancel: {
      takeBack(id)
    }
    if !committed { throw .cancelled("store") }
  }

  /// Queues a write that nobody awaits.
  func commitInBackground(
    _ write: PreparedWrite, then: @escaping @Sendable (PreparedWrite) -> Void
  ) {
    let id = state.withLock { $0.makeID() }
    enqueue(Pending(id: id, writes: [write]) { _ in then(write) })
  }

  private func commitInPlace(_ writes: [PreparedWrite]) -> Bool {
    let mine = state.withLock { state in
      guard state.queued.isEmpty, !state.committing, state.lastBatch <= 1 else { return false }
      state.committing = true
      return true
    }
    guard mine else { return false }
    let committed = run(writes, tryOnly: true)
    let (more, sweep, idle) = state.withLock { state in
      state.committing = false
      let sweep = !state.sweepScheduled
      state.sweepScheduled = true
      return (!state.queued.isEmpty, sweep, state.takeIdleWaiters())
    }
    for waiter in idle { waiter.resume() }
    if more { thread.async { self.work() } }
    if sweep { scheduleSweep() }
    return committed
  }

  private func enqueue(_ pending: Pending) {
    let (start, enough) = state.withLock { state in
      state.queued.append(pending)
      let enough = state.gathering > 0 && state.queued.count == state.gathering
      // Whoever is committing or gathering looks at the queue again before it ends.
      return (state.queued.count == 1 && !state.committing && state.gathering == 0, enough)
    }
    if start { thread.async { self.work() } }
    if enough { gathered.signal() }
  }

  private func takeBack(_ id: UInt64) {
    let pending = state.withLock { state in
      state.queued.firstIndex { $0.id == id }.map { state.queued.remove(at: $0) }
    }
    pending?.done(false)
  }

  /// The callers whose writes were just committed are about to come again, one after another: waiting for half of
  /// them, 200 µs at most, makes one transaction of what would be several. Half, so that the others prepare theirs
  /// while these are committed.
  private func gather() {
    let waits = state.withLock { state in
      let expected = state.concurrency / 2
      guard expected >= 2, state.queued.count < expected else { return false }
      state.gathering = expected
      return true
    }
    guard waits else { return }
    let inTime = gathered.wait(timeout: .now() + .microseconds(200)) == .success
    let signalled = state.withLock { state in
      defer { state.gathering = 0 }
      return state.queued.count >= state.gathering
    }
    // A signal that came after the time is not left for the next one.
    if !inTime && signalled { gathered.wait() }
  }

  private func work() {
    while true {
      gather()
      let batch: [Pending]? = state.withLock { state in
        guard !state.committing, !state.queued.isEmpty else { return nil }
        state.committing = true
        defer { state.queued = [] }
        return state.queued
      }
      guard let batch else { return }
      _ = run(batch.count == 1 ? batch[0].writes : batch.flatMap(\.writes), tryOnly: false)
      let (sweep, idle) = state.withLock { state in
        state.committing = false
        state.lastBatch = batch.count
        state.concurrency = max(batch.count + state.queued.count, state.concurrency * 7 / 8)
        let sweep = !state.sweepScheduled
        state.sweepScheduled = true
        return (sweep, state.takeIdleWaiters())
      }
      for pending in batch { pending.done(true) }
      for waiter in idle { waiter.resume() }
      if sweep { scheduleSweep() }
      askForCheckpoint()
    }
  }

  var wantsCheckpoint: Bool { unsafe bcs_wants_checkpoint(handle.pointer) }

  private func askForCheckpoint() {
    guard wantsCheckpoint else { return }
    checkpointWanted.withLock { $0 }?()
  }

  /// Called on the writer's thread when a commit has made a checkpoint due before its time.
  func onCheckpointWanted(_ body: @escaping @Sendable () -> Void) {
    checkpointWanted.withLock { $0 = body }
  }

  /// False when the lock was not free at a try. Any other failure is left in the writes.
  private func run(_ writes: [PreparedWrite], tryOnly: Bool) -> Bool {
    let store = unsafe handle.pointer
    let status = unsafe withUnsafeTemporaryAllocation(
      of: OpaquePointer?.self, capacity: writes.count
    ) { pointers in
      for (index, write) in writes.enumerated() {
        unsafe pointers.initializeElement(at: index, to: write.pointer)
      }
      return unsafe bcs_commit(store, pointers.baseAddress, writes.count, tryOnly)
    }
    if status == BCS_OK { return true }
    if status == BCS_BUSY && tryOnly { return false }
    let error = status.lastError("commit")
    for write in writes { write.batchFailure = error }
    return true
  }

  // MARK: Idle moments

  /// Returns when everything that was queued before is committed.
  func drain() async {
    await withCheckedContinuation { continuation in
      let idle = state.withLock { state in
        if state.queued.isEmpty && !state.committing { return true }
        state.idleWaiters.append(continuation)
        return false
      }
      if idle { continuation.resume() }
    }
  }

  /// Files whose removal was committed are unlinked when the store has been let alone for a moment.
  private func scheduleSweep() {
    thread.asyncAfter(deadline: .now() + .milliseconds(50)) { [weak self] in self?.sweep() }
  }

  private func sweep() {
    state.withLock { $0.sweepScheduled = false }
    let end = repeatWhileIdle { () throws(BlobCache.Error) -> Bool in try unlinkSome() }
    // When it is busy, the writer's next batch schedules a sweep again.
    if end == .done { scheduleGivingBack() }
  }

  /// Blocks of the index that nothing needs go when nobody, of any process, has written for a second.
  private func scheduleGivingBack() {
    let isFirst = state.withLock { state in
      defer { state.givesBackSoon = true }
      return !state.givesBackSoon
    }
    guard isFirst else { return }
    thread.asyncAfter(deadline: .now() + .seconds(1)) { [weak self] in self?.giveBack() }
  }

  private func giveBack() {
    state.withLock { $0.givesBackSoon = false }
    let end = repeatWhileIdle { () throws(BlobCache.Error) -> Bool in
      var last = state.withLock { $0.givenBackAt }
      defer { state.withLock { $0.givenBackAt = last } }
      return try unsafe giveSomeBack(since: &last)
    }
    if end == .busy { scheduleGivingBack() }
  }

  private enum End { case done, busy, failed }

  /// Steps until there are no more, a batch is queued, or another one is busy.
  private func repeatWhileIdle(_ step: () throws(BlobCache.Error) -> Bool) -> End {
    while state.withLock({ $0.queued.isEmpty }) {
      do throws(BlobCache.Error) {
        if try !step() { return .done }
      } catch {
        if error.code == .busy { return .busy }
        if error.code != .closed { report(error) }
        return .failed
      }
    }
    return .busy
  }

  /// Unlinks what is to be unlinked, and gives back what the index does not need. Blocks.
  func sweepAll() throws(BlobCache.Error) {
    while try unlinkSome() {}
    while try unsafe giveSomeBack(since: nil) {}
  }

  private func giveSomeBack(
    since: UnsafeMutablePointer<UInt64>?
  ) throws(BlobCache.Error) -> Bool {
    try unsafe handle.use("sweep") { store throws(BlobCache.Error) -> Bool in
      var more = false
      let status = unsafe bcs_give_back(store, since, &more)
      guard status == BCS_OK else { throw status.lastError("sweep") }
      return more
    }
  }

  /// Some files; true when there are more. Blocks.
  private func unlinkSome() throws(BlobCache.Error) -> Bool {
    try unsafe handle.use("sweep") { store throws(BlobCache.Error) -> Bool in
      var more = false
      let status = unsafe bcs_sweep_trash(store, 256, &more)
      guard status == BCS_OK else { throw status.lastError("sweep") }
      return more
    }
  }
}

extension WriteQueue.State {
  fileprivate func fits(_ cost: Int) -> Bool {
    // A write larger than the whole bound goes alone.
    bytes == 0 || bytes + cost <= WriteQueue.byteLimit
  }

  fileprivate mutating func admit(_ cost: Int) -> Bool {
    guard waiters.isEmpty, fits(cost) else { return false }
    bytes += cost
    return true
  }

  fileprivate mutating func takeIdleWaiters() -> [CheckedContinuation<Void, Never>] {
    guard queued.isEmpty, !committing else { return [] }
    defer { idleWaiters = [] }
    return idleWaiters
  }
}
