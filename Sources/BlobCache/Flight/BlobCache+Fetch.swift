extension BlobCache {
  /// The blob of a key: from the cache, or brought by a loader that then runs once for all who ask.
  ///
  ///     let blob = try await cache.fetch(url, lifetime: .expires(after: .seconds(20))) { load in
  ///       for try await chunk in try await origin.get(url) { try await load.write(chunk) }
  ///       return .complete
  ///     }
  ///
  /// A fresh entry is returned at once, on the calling thread, and counts as an access. Otherwise
  /// the loader runs, in a task of its own that inherits the task-locals of this one, and everybody
  /// in the process who asks for the key meanwhile waits for it, with the lifetime, attributes and tags of
  /// the call that started it. Waiters of a higher priority raise that of its task.
  ///
  /// - *Errors*: what the loader throws reaches everyone who waits, unchanged. It is not stored, and
  ///   the next call starts anew. When the bytes cannot be stored (a full disk), they are returned
  ///   all the same, with source ``Blob/Source-swift.enum/loadedNotStored(_:)``.
  /// - *Cancellation*: a cancelled waiter throws `CancellationError` at once and disturbs nobody.
  ///   When the last one has left, the loader's task is cancelled and the key is free; a call that
  ///   comes then starts anew.
  /// - *Removal*: a ``remove(_:)-(Key)`` or ``removeAll()`` of the key while it is being loaded: those who
  ///   wait get the result, marked as not stored, and the next call starts anew.
  /// - *Re-entrancy*: a loader may fetch other keys. If it would wait, directly or through other
  ///   loaders and other caches, for its own result, that call throws ``Error/Code/cycle``. Tasks
  ///   that a loader starts count as part of it, `Task.detached` excepted.
  ///
  /// - Parameters:
  ///   - key: names the blob.
  ///   - lifetime: of what the loader brings; nil: the configuration's default. One that is over already
  ///     is an error, also on a hit; what the loader says in its ``Outcome`` is not.
  ///   - staleWindow: for how long after that it is kept, for those who ask for stale; nil: the
  ///     configuration's default, and where the loader returns `.unchanged`, as it was.
  ///   - policy: whether the cache or the loader is asked, and what is given when the loader fails.
  ///     Default: ``FetchPolicy/cacheFirst``.
  ///   - attributes: stored with what the loader brings. Default: none.
  ///   - tags: stored with what the loader brings: names by which it can be removed together with others.
  ///     Where the loader returns `.unchanged`, attributes and tags stay as they are stored. Default: none.
  ///   - loader: writes the blob to ``Load/write(_:)`` and says how it ended, see ``Outcome``. Not
  ///     called on a hit.
  /// - Throws: what the loader throws, `CancellationError`, or ``Error``: among others
  ///   ``Error/Code/notCached`` for ``FetchPolicy/cacheOnly``, ``Error/Code/recentlyFailed`` and
  ///   ``Error/Code/loadTimedOut`` and ``Error/Code/tooManyWaiters`` where the configuration or the policy
  ///   sets such bounds, ``Error/Code/invalidArgument`` for a lifetime that is over and for spans below
  ///   zero, ``Error/Code/closed``, ``Error/Code/keyTooLong``.
  public func fetch(
    _ key: Key, lifetime: Lifetime? = nil, staleWindow: Duration? = nil,
    policy: FetchPolicy = .cacheFirst, attributes: Attributes = [:], tags: [String] = [],
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) async throws -> Blob {
    try checkOpen("fetch")
    if lifetime != nil || staleWindow != nil || policy.flaw != nil {
      try checkFreshness(lifetime, staleWindow, "fetch")
      try policy.check("fetch")
    }
    var mustReadDisk = false
    if policy.form != .reload {
      switch try store.lookup(key, quick: true) {
      case .hit(let blob):
        if policy.earliness > 0, isDueEarly(blob, key, beta: policy.earliness) {
          refresh(key, lifetime, staleWindow, policy, attributes, tags, .refresh(blob), loader)
        }
        return blob
      case .miss: break
      case .wouldBlock: mustReadDisk = true
      }
    }
    return try await fetchSlowly(
      key, lifetime: lifetime, staleWindow: staleWindow, policy: policy, attributes: attributes,
      tags: tags, mustReadDisk: mustReadDisk, loader: loader)
  }

  /// ``fetch(_:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)`` for whatever names blobs.
  public func fetch(
    _ key: some KeyConvertible, lifetime: Lifetime? = nil, staleWindow: Duration? = nil,
    policy: FetchPolicy = .cacheFirst, attributes: Attributes = [:], tags: [String] = [],
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) async throws -> Blob {
    try await fetch(
      key.blobCacheKey, lifetime: lifetime, staleWindow: staleWindow, policy: policy,
      attributes: attributes, tags: tags,
      loader: loader)
  }

  /// Apart from `fetch`, so that a hit pays for none of its frame.
  @inline(never)
  private func fetchSlowly(
    _ key: Key, lifetime: Lifetime?, staleWindow: Duration?, policy: FetchPolicy,
    attributes: Attributes, tags: [String], mustReadDisk: Bool,
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) async throws -> Blob {
    if mustReadDisk, let blob = try await store.lookupOffPool(key) { return blob }
    if policy.staleAtOnce >= 0,
      let copy = try await store.staleCopy(key, within: policy.staleAtOnce)
    {
      if policy.form == .cacheFirst, copy.source == .stale {
        refresh(key, lifetime, staleWindow, policy, attributes, tags, .load, loader)
      }
      if copy.source == .stale { store.counters.staleHits.add() }
      return copy
    }
    if policy.form == .cacheOnly { throw Error.notCached }
    // Attributes and tags that can never be stored are the caller's mistake, and not worth a load.
    if !attributes.isEmpty { _ = try attributes.encoded() }
    _ = try TagCoding.encode(tags)
    _ = try checkedFreshness(lifetime, staleWindow, "fetch")  // the configuration's, too
    let work = work(
      key, lifetime, staleWindow, policy, attributes, tags,
      policy.form == .reload ? .reload : .load, loader)
    var terms = FlightTerms(
      negativeLifetime: policy.negativeLifetime >= 0
        ? policy.negativeLifetime : configuration.negativeLifetime.milliseconds,
      holdsStale: policy.ifError >= 0, maximumWaiters: configuration.maximumWaiters)
    if terms.holdsStale {
      terms.holdsStale = try await store.staleCopy(key, within: policy.ifError) != nil
    }
    let failure: any Swift.Error
    do {
      return try await store.flights.value(
        for: key, reload: work.mode == .reload, owner: owner, terms: terms
      ) { ticket in
        try await work.run(ticket)
      }
    } catch let refusal as BackingOff {
      failure = refusal.cause
    } catch {
      guard policy.ifError >= 0, Self.isFailureOfLoad(error) else { throw error }
      failure = error
    }
    // Looked at anew: it may have been removed or replaced meanwhile.
    guard
      let copy = try await store.staleCopy(
        key, within: policy.ifError, cause: failure, fresh: policy.form == .reload)
    else { throw failure }
    if copy.source == .stale { store.counters.staleHits.add() }
    return copy
  }

  /// Whether a stale copy may stand in for it.
  private static func isFailureOfLoad(_ error: any Swift.Error) -> Bool {
    if Task.isCancelled { return false }
    return (error as? Error)?.isMistake != true
  }

  /// Whether a fresh blob is to be loaded anew before it expires: see `EarlyRefresh`.
  private func isDueEarly(_ blob: Blob, _ key: Key, beta: Double) -> Bool {
    guard let expiry = blob.storage.fixedExpiry else { return false }
    let longest = store.loadTimes.longest
    let left = Double(expiry) - Double(store.now)
    // Beyond that no draw reaches: a random number has 53 bits, so its logarithm is above -37.
    guard longest > 0, left < 37 * beta * Double(longest) else { return false }
    let time = store.loadTimes.of(key) ?? Double(longest)
    return left <= EarlyRefresh.margin(loadTime: time, beta: beta, chance: store.clock.chance())
  }

  /// Loads in the background.
  private func refresh(
    _ key: Key, _ lifetime: Lifetime?, _ staleWindow: Duration?, _ policy: FetchPolicy,
    _ attributes: Attributes, _ tags: [String], _ mode: FlightWork.Mode,
    _ loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) {
    let work = work(key, lifetime, staleWindow, policy, attributes, tags, mode, loader)
    store.flights.refresh(key, owner: owner) { ticket in try await work.run(ticket) }
  }

  private func work(
    _ key: Key, _ lifetime: Lifetime?, _ staleWindow: Duration?, _ policy: FetchPolicy,
    _ attributes: Attributes, _ tags: [String], _ mode: FlightWork.Mode,
    _ loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) -> FlightWork {
    FlightWork(
      store: store, owner: owner, key: key, freshness: freshness(lifetime, staleWindow),
      keepsWindow: staleWindow == nil, attributes: attributes, tags: tags, mode: mode,
      timeLimit: policy.timeLimit ?? configuration.loadTimeLimit,
      leaseTime: configuration.loadsOncePerMachine && !isReadOnly ? configuration.leaseTime : nil,
      loader: loader)
  }
}

/// The work of one flight: take the lease where loads are shared, look again, load, store.
struct FlightWork: Sendable {
  enum Mode: Equatable, Sendable {
    /// Unless a fresh entry is there by now.
    case load
    /// In any case.
    case reload
    /// Unless the fresh entry that is there is another one than this generation.
    case refresh(generation: UInt64)

    static func refresh(_ blob: BlobCache.Blob) -> Mode {
      .refresh(generation: blob.storage.generation)
    }
  }

  let store: Store
  /// The instance that it is done for.
  let owner: FlightOwner
  let key: BlobCache.Key
  let freshness: Freshness
  /// Whether a renewal leaves the stale window as it was.
  let keepsWindow: Bool
  let attributes: BlobCache.Attributes
  let tags: [String]
  let mode: Mode
  let timeLimit: Duration?
  /// How long another process that loads the key may be silent; nil: loads are not shared.
  let leaseTime: Duration?
  let loader: @Sendable @concurrent (inout BlobCache.Load) async throws -> BlobCache.Outcome

  func run(_ ticket: FlightTicket<BlobCache.Blob>) async throws -> BlobCache.Blob {
    try await ticket.board()
    guard let leaseTime else { return try await load(ticket, lease: nil) }
    switch try await lease(ticket, patience: leaseTime) {
    case .found(let blob): return blob
    case .none: return try await load(ticket, lease: nil)
    case .taken(let lease):
      // A cancelled flight does not keep the key, whether its loader heeds that or not.
      return try await withTaskCancellationHandler {
        defer { lease.release() }
        return try await load(ticket, lease: lease)
      } onCancel: {
        lease.release()
      }
    }
  }

  /// What was only peeked at, once more: this counts as an access.
  func accessed(_ previous: BlobCache.Blob) throws(BlobCache.Error) -> BlobCache.Blob {
    if case .hit(let blob) = try store.lookup(key, quick: true) { return blob }
    return previous
  }

  private func load(
    _ ticket: FlightTicket<BlobCache.Blob>, lease: Lease?
  ) async throws -> BlobCache.Blob {
    let previous = try await store.peek(key)
    // Whoever stored between the caller's miss and this flight has done its work.
    if let previous, suffices(previous) { return try accessed(previous) }

    let start = store.clock.reading
    store.flights.countLoad()
    let body = StagedBody(store: store, for: key, fallsBackToMemory: true, owner: owner)
    do {
      var load = BlobCache.Load(key: key, previous: previous, body: body)
      // A flight that must end gives up what it has on the disk, whether its loader heeds that or not.
      let outcome = try await withTaskCancellationHandler {
        try await inTime(ticket, since: start) { try await loader(&load) }
      } onCancel: {
        body.abandon()
      }
      let time = store.clock.reading - start
      if let newer = try await overtaking(lease, outcome, previous: previous) {
        body.discard()
        return newer
      }
      let blob = try await conclude(outcome, body: body, previous: previous, ticket: ticket)
      if case .loadedNotStored(let cause) = blob.source, cause.code == .loadTimedOut { return blob }
      store.loadTimes.note(key, time)
      store.emit(.loaded(key: key, duration: store.clock.reading - start, size: blob.count))
      return blob
    } catch {
      body.discard()
      if Task.isCancelled {
        // `write` says `.cancelled`, having a typed error; those who wait know `CancellationError`.
        if let own = error as? BlobCache.Error, own.code == .cancelled { throw CancellationError() }
        throw error
      }
      store.counters.failedLoads.add()
      store.emit(.loadFailed(key: key, duration: store.clock.reading - start, error: error))
      throw error
    }
  }

  func suffices(_ previous: BlobCache.Blob) -> Bool {
    suffices(
      previous.storage.generation, isExpired: previous.storage.header.expiredFor >= 0)
  }

  func suffices(_ generation: UInt64, isExpired: Bool) -> Bool {
    if isExpired { return false }
    switch mode {
    case .load: return true
    case .reload: return false
    case .refresh(let seen): return generation != seen
    }
  }

  /// Calls the loader, with its time limit running.
  private func inTime(
    _ ticket: FlightTicket<BlobCache.Blob>, since start: Duration,
    _ load: () async throws -> BlobCache.Outcome
  ) async throws -> BlobCache.Outcome {
    guard let timeLimit else { return try await load() }
    let timer = ticket.limit(to: timeLimit) { [store, key] error in
      store.counters.failedLoads.add()
      store.emit(.loadFailed(key: key, duration: store.clock.reading - start, error: error))
    }
    defer { timer.cancel() }
    return try await load()
  }

  private func conclude(
    _ outcome: BlobCache.Outcome, body: StagedBody, previous: BlobCache.Blob?,
    ticket: FlightTicket<BlobCache.Blob>
  ) async throws -> BlobCache.Blob {
    let freshness = freshness.replaced(
      lifetime: outcome.lifetime, staleWindow: outcome.staleWindow)
    switch outcome.form {
    case .complete:
      return try await keep(
        body, lifetime: freshness, attributes: outcome.attributes ?? attributes,
        tags: outcome.tags ?? tags, ticket: ticket)
    case .doNotStore:
      try await body.finish()
      return try await body.unstoredBlob(
        key: key, lifetime: freshness, attributes: attributes, tags: tags, cause: .notToBeStored)
    case .unchanged:
      guard let previous else { throw BlobCache.Error.nothingToKeep }
      guard body.count == 0 else { throw BlobCache.Error.unchangedButWritten }
      var renewed = freshness
      if keepsWindow && outcome.staleWindow == nil {
        renewed.staleWindow = previous.storage.header.staleWindow
      }
      return try await renew(
        previous, lifetime: renewed, attributes: outcome.attributes, tags: outcome.tags, body: body,
        ticket: ticket)
    }
  }

  /// Stores what was written, if it may be and can be; hands it over in any case.
  private func keep(
    _ body: StagedBody, lifetime freshness: Freshness, attributes: BlobCache.Attributes,
    tags: [String], ticket: FlightTicket<BlobCache.Blob>
  ) async throws -> BlobCache.Blob {
    // Hashing a large body takes long, so it comes before the point of no return.
    try await body.finish()
    if let bar = await ticket.barFromStoring() {
      return try await body.unstoredBlob(
        key: key, lifetime: freshness, attributes: attributes, tags: tags, cause: .barred(bar))
    }
    return try await commit(body, lifetime: freshness, attributes: attributes, tags: tags)
  }

  private func commit(
    _ body: StagedBody, lifetime freshness: Freshness, attributes: BlobCache.Attributes,
    tags: [String]
  ) async throws -> BlobCache.Blob {
    do throws(BlobCache.Error) {
      return try await body.commit(
        key: key, lifetime: freshness, attributes: attributes, tags: tags)
    } catch {
      store.emit(.storeFailed(key: key, error: error))
      return try await body.unstoredBlob(
        key: key, lifetime: freshness, attributes: attributes, tags: tags, cause: error)
    }
  }

  /// Lets the previous bytes be fresh anew.
  private func renew(
    _ previous: BlobCache.Blob, lifetime freshness: Freshness, attributes: BlobCache.Attributes?,
    tags: [String]?, body: StagedBody, ticket: FlightTicket<BlobCache.Blob>
  ) async throws -> BlobCache.Blob {
    if let bar = await ticket.barFromStoring() {
      return previous.from(.loadedNotStored(.barred(bar)))
    }
    do throws(BlobCache.Error) {
      let renewed = try await store.renew(
        key: key, generation: previous.entry.generation, lifetime: freshness,
        attributes: attributes, tags: tags)
      // What is there now: the renewed entry, or what somebody has stored in its place.
      if let blob = try await store.peek(key), renewed != nil || blob.storage.header.expiredFor < 0
      {
        return blob.from(.loaded)
      }
      if renewed != nil { return previous.from(.loaded) }
    } catch {
      store.emit(.storeFailed(key: key, error: error))
      return previous.from(.loadedNotStored(error))
    }
    // Removed while the loader asked: the loader says that the bytes are right, and they are held.
    try await body.expect(previous.count)
    try await body.write(Contents(blob: previous))
    try await body.finish()
    return try await commit(
      body, lifetime: freshness, attributes: attributes ?? previous.attributes,
      tags: tags ?? previous.storage.tags)
  }
}

/// A blob's bytes as a collection, without a copy.
private struct Contents: RandomAccessCollection, Sendable {
  let blob: BlobCache.Blob

  var startIndex: Int { 0 }
  var endIndex: Int { blob.count }
  subscript(position: Int) -> UInt8 { unsafe blob.withUnsafeBytes { unsafe $0[position] } }

  func withContiguousStorageIfAvailable<R>(
    _ body: (UnsafeBufferPointer<UInt8>) throws -> R
  ) rethrows -> R? {
    try unsafe blob.withUnsafeBytes { unsafe try body($0.assumingMemoryBound(to: UInt8.self)) }
  }
}
