internal import CBlobStore
internal import Dispatch
internal import Synchronization

#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

/// One directory in this process: the C handle, the writer's thread, the flights, the counters.
/// Shared by all `BlobCache` instances of the directory; made and ended by `StoreRegistry`.
final class Store: Sendable {
  let handle: StoreHandle
  /// The first opener's.
  let clock: BlobCache.Clock
  let isReadOnly: Bool
  /// Whether lookups begin with the memory tier. Not where every read is to be verified: a hit in
  /// memory would tell nothing of the disk.
  let hasMemory: Bool
  let counters = StoreCounters()
  /// What C counted, when it was shut.
  let lastCounted = Mutex(bcs_counters())
  let flights: FlightTable<BlobCache.Blob>
  let loadTimes = LoadTimes()
  let queue: WriteQueue
  /// The writer: a serial queue, which gets a thread of its own.
  let thread: DispatchQueue
  let sweeper = Sweeper()
  let checkpointer = Checkpointer()
  let leases: Leases
  /// Left when everything is released.
  let ended = DispatchGroup()
  /// Limits were given, or are exceeded, and nobody has seen to it yet.
  let hasLimitsToMeet = Atomic(false)
  private let hasToldOpening = Atomic(false)

  let isTemporary: Bool
  private let process = currentProcess()
  private let listeners: Listeners

  init(handle: StoreHandle, configuration: BlobCache.Configuration, isTemporary: Bool) {
    self.handle = handle
    leases = Leases(handle: handle)
    self.isTemporary = isTemporary
    clock = configuration.clock
    flights = FlightTable(
      clock: configuration.clock, maximumLoads: configuration.maximumConcurrentLoads)
    isReadOnly = configuration.readOnly
    hasMemory =
      !configuration.readOnly && configuration.verification != .always
      && configuration.memory != .off
    if hasMemory { handle.startMemory(configuration.memory) }
    let listeners = Listeners()
    self.listeners = listeners
    thread = DispatchQueue(label: "blobcache.writer")
    queue = WriteQueue(handle: handle, thread: thread) { listeners.emit(.backgroundError($0)) }
    ended.enter()
    if let interval = configuration.sweepInterval, !configuration.readOnly {
      sweeper.start(self, every: interval)
    }
    makeCheckpoints(every: configuration.durability.interval)
  }

  /// Milliseconds since 1970.
  @inline(__always)
  var now: Int64 { clock.milliseconds }

  /// Bodies up to this many bytes stand in the index.
  var inlineThreshold: Int { handle.info.inlineThreshold }

  /// Whether small writes may be committed on the caller's thread: not where a commit waits for the
  /// disk.
  var commitsInPlace: Bool { handle.info.durability == .checkpointed }

  /// The process that opened it was forked, and this is the child.
  var isForked: Bool { process != currentProcess() }

  // MARK: Instances

  /// Whether a second instance with this configuration may share the store.
  func accept(_ configuration: BlobCache.Configuration) throws(BlobCache.Error) {
    let status = unsafe bcs_check_place(handle.pointer)
    if status != BCS_OK { throw status.lastError("open") }
    if configuration.durability != .asRecorded,
      (configuration.durability == .durable) != (handle.info.durability == .durable)
    {
      throw BlobCache.Error(
        BCS_DURABILITY, operation: "open", path: handle.info.path,
        cause: "it is \(handle.info.durability), and open so in this process")
    }
    if isReadOnly && !configuration.readOnly {
      throw BlobCache.Error(
        .readOnly, operation: "open", path: handle.info.path,
        message: "This process has the directory open for reading only; close that one first.")
    }
  }

  private func makeCheckpoints(every interval: Duration?) {
    guard !isReadOnly, !isTemporary, handle.info.durability != .durable else { return }
    queue.onCheckpointWanted { [weak self] in
      if let self { checkpointer.ask(self) }
    }
    if let interval { checkpointer.start(self, every: interval) }
  }

  /// Blocks until nobody is inside, then flushes and releases. On the store's thread, once.
  func shutDown() {
    sweeper.stop()
    checkpointer.stop()
    leases.stop()
    handle.stages.freeAll()
    if !isTemporary && !isReadOnly {
      // A clean close leaves no files to unlink behind; bounded, since after a `removeAll` of a
      // million blobs the rest is the next opener's.
      let store = unsafe handle.pointer
      var more = true
      for _ in 0..<16 where more {
        if unsafe bcs_sweep_trash(store, 256, &more) != BCS_OK { break }
      }
      more = true
      for _ in 0..<16 where more {
        if unsafe bcs_give_back(store, nil, &more) != BCS_OK { break }
      }
      let status = unsafe bcs_flush(store)
      if status != BCS_OK { emit(.backgroundError(status.lastError("flush"))) }
    }
    keepCounted()
    handle.shut()
    if isTemporary {
      do {
        try FileManager.default.removeItem(atPath: handle.info.path)
      } catch {
        emit(.backgroundError(error))
      }
    }
  }

  // MARK: Events

  /// What the opening found, to the first who listens.
  func tellOpening() {
    guard listeners.isListening, !hasToldOpening.exchange(true, ordering: .relaxed) else { return }
    if handle.info.indexSetAside {
      let error = BlobCache.Error(
        .corrupt, operation: "open", path: "\(handle.info.path)/index",
        message:
          "The index was damaged or torn; it was set aside in quarantine, and a new one was begun. The blob files are"
          + " kept.")
      emit(.indexSetAside(error))
    }
    if handle.info.indexRestored { emit(BlobCache.Event(.indexRestored)) }
  }

  /// Calls every instance's `onEvent`.
  func emit(_ event: BlobCache.Event) {
    if event.kind == .storeFailed { counters.failedStores.add() }
    listeners.emit(event)
  }

  func addListener(_ listener: (@Sendable (BlobCache.Event) -> Void)?) -> Int? {
    listener.map(listeners.add)
  }

  func removeListener(_ id: Int?) {
    if let id { listeners.remove(id) }
  }
}

/// The `onEvent` closures of a store's instances.
private final class Listeners: Sendable {
  private struct State: Sendable {
    var next = 0
    var closures: [Int: @Sendable (BlobCache.Event) -> Void] = [:]
  }

  private let state = Mutex(State())

  func add(_ closure: @escaping @Sendable (BlobCache.Event) -> Void) -> Int {
    state.withLock { state in
      state.next += 1
      state.closures[state.next] = closure
      return state.next
    }
  }

  var isListening: Bool { state.withLock { !$0.closures.isEmpty } }

  func remove(_ id: Int) { state.withLock { _ = $0.closures.removeValue(forKey: id) } }

  func emit(_ event: BlobCache.Event) {
    for closure in state.withLock({ Array($0.closures.values) }) { closure(event) }
  }
}
