internal import Dispatch
internal import Synchronization

#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

/// A cache of immutable blobs on the local disk, shared by every task, thread and process of a
/// machine.
///
///     let cache = try BlobCache(directory: "/var/cache/thumbnails")
///     try await cache.store(bytes, for: "cat", lifetime: .expires(after: .seconds(3600)))
///     if let blob = try cache.blob(for: "cat") { … }
///
/// Lookups are synchronous and wait for nobody; they may fault a page in from the disk. Everything
/// that writes is `async` and returns when every process sees it. What takes no closure throws
/// ``BlobCache/Error``; what takes one throws the closure's own error unchanged, `BlobCache.Error`
/// for the cache's, and `CancellationError`.
///
/// A second instance for the same directory, also by another path to it, shares everything with the
/// first. An instance that goes without ``close()`` is closed in the background.
public final class BlobCache: Sendable {
  let store: Store
  let configuration: Configuration
  /// Names this instance among those that share the store.
  let owner: FlightOwner
  let operations = Operations()

  private let listener: Int?
  private let isClosed = Atomic<Bool>(false)
  private static let lastOwner = Atomic<UInt64>(0)

  /// Opens a directory, and makes it a cache if it is absent or empty. Blocks, as a rule for less
  /// than 50 ms; see ``open(_:configuration:)``.
  ///
  /// - Parameters:
  ///   - directory: its path; absent folders on the way are made, too.
  ///   - configuration: how; by default, see ``Configuration``.
  /// - Throws: ``Error`` with what is wrong with the directory and what to do. Nothing is left half
  ///   made.
  public convenience init(
    directory: String, configuration: Configuration = Configuration()
  ) throws(Error) {
    try configuration.checkFreshness()
    let store = try StoreRegistry.shared.open(directory, configuration: configuration)
    self.init(store: store, configuration: configuration)
  }

  private init(store: Store, configuration: Configuration) {
    self.store = store
    self.configuration = configuration
    listener = store.addListener(configuration.onEvent)
    owner = FlightOwner(number: Self.lastOwner.add(1, ordering: .relaxed).newValue)
    store.tellOpening()
    store.meetLimitsSoon()
  }

  deinit {
    if isClosed.load(ordering: .relaxed) { return }
    store.removeListener(listener)
    // In the child of a fork there is no thread to shut down on, and the directory is the parent's.
    if store.isForked { return }
    StoreRegistry.shared.release(store)
    // A temporary folder is gone when its cache is; bounded, since a deinit must not hang.
    if store.isTemporary, StoreRegistry.shared.isEnding(store) {
      _ = store.ended.wait(timeout: .now() + .seconds(1))
    }
  }

  /// Opens a directory without blocking the calling thread; otherwise as
  /// ``init(directory:configuration:)``.
  public static func open(
    _ directory: String, configuration: Configuration = Configuration()
  ) async throws(Error) -> BlobCache {
    try await BlockingPool.shared.attempt { () throws(Error) -> BlobCache in
      try BlobCache(directory: directory, configuration: configuration)
    }
  }

  /// A cache in a new folder below the temporary one, which is removed when the cache is closed or
  /// goes: for tests.
  public static func temporary(
    configuration: Configuration = Configuration()
  ) throws(Error) -> BlobCache {
    try configuration.checkFreshness()
    let parent = ProcessInfo.processInfo.environment["TMPDIR"] ?? "/tmp"
    let path = "\(parent)/blobcache-\(UUID().uuidString)"
    let store = try StoreRegistry.shared.open(
      path, configuration: configuration, isTemporary: true)
    return BlobCache(store: store, configuration: configuration)
  }

  /// The directory's path, absolute and without symbolic links.
  public var directory: String { store.handle.info.path }

  /// How the directory was opened.
  package var info: DirectoryInfo { store.handle.info }

  /// Ends what this instance started, and closes the directory if no other instance uses it: what
  /// was stored is then on the disk. Later calls throw ``Error`` with code ``Error/Code/closed``.
  /// Blobs stay valid.
  ///
  /// - *Waited for*: stores, removals, renewals, sweeps and whatever else this instance writes or
  ///   verifies and has begun, also the store of what a loader has brought; and, when no other instance
  ///   uses the directory, that all of it is on the disk. Where that fails, the directory is closed all the same, and
  ///   ``Event/Kind/backgroundError`` tells: whoever must know calls ``flush()`` first, which throws.
  /// - *Not waited for*: loaders. Those that this instance started are cancelled, and its waiting
  ///   fetches throw ``Error/Code/closed`` at once, whether the loaders heed that or not. One that goes
  ///   on all the same finds its ``Load`` closed, and what it brings is dropped. Nor the body of a
  ///   streamed store: the store throws ``Error/Code/closed`` when its body ends.
  ///
  /// Fetches of another instance of the directory that had joined such a loader go on with their own.
  /// Closing twice is allowed.
  ///
  /// - Throws: ``Error`` with code ``Error/Code/forked`` in the child of a fork.
  public func close() async throws(Error) {
    if store.isForked {
      throw Error(.forked, operation: "close", path: directory, message: Self.forkAdvice)
    }
    if isClosed.exchange(true, ordering: .sequentiallyConsistent) { return }
    await store.flights.cancelAll(owner: owner)
    await operations.waitUntilNone()
    StoreRegistry.shared.release(store)
    if StoreRegistry.shared.isEnding(store) {
      await withCheckedContinuation { continuation in
        store.ended.notify(queue: .global()) { continuation.resume() }
      }
    }
    store.removeListener(listener)
  }

  private static let forkAdvice = "The cache was opened before fork(); open it again in the child."

  var isReadOnly: Bool { configuration.readOnly }
  var defaultLifetime: Lifetime { configuration.defaultLifetime }

  /// Throws when this instance was closed. A relaxed load: the store's own gate keeps late calls
  /// out of freed memory.
  @inline(__always)
  func checkOpen(_ operation: StaticString) throws(Error) {
    if isClosed.load(ordering: .relaxed) { throw .closed(operation.description, path: directory) }
  }

  /// Runs something that `close()` waits for.
  func operation<R>(
    _ name: StaticString, writes: Bool = true, _ body: () async throws(Error) -> R
  ) async throws(Error) -> R {
    try checkOpen(name)
    if writes && isReadOnly {
      throw Error(
        .readOnly, operation: name.description, path: directory, message: Self.readOnlyAdvice)
    }
    operations.enter()
    defer { operations.leave() }
    // Again, since `close()` may have looked in between.
    try checkOpen(name)
    return try await body()
  }
}

/// Counts what an instance has going on.
final class Operations: Sendable {
  private struct State {
    var count = 0
    var waiters: [CheckedContinuation<Void, Never>] = []
  }

  private let state = Mutex(State())

  func enter() { state.withLock { $0.count += 1 } }

  func leave() {
    let waiters: [CheckedContinuation<Void, Never>] = state.withLock { state in
      state.count -= 1
      guard state.count == 0 else { return [] }
      defer { state.waiters = [] }
      return state.waiters
    }
    for waiter in waiters { waiter.resume() }
  }

  func waitUntilNone() async {
    await withCheckedContinuation { continuation in
      let none = state.withLock { state in
        if state.count == 0 { return true }
        state.waiters.append(continuation)
        return false
      }
      if none { continuation.resume() }
    }
  }
}
