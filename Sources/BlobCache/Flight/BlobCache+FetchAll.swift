internal import Synchronization

extension BlobCache {
  /// Fetches many keys, some at a time, and gives the results in the order in which they come: for
  /// prefetching, and for whoever works on whatever is there first.
  ///
  ///     for await (key, result) in cache.fetchAll(urls, loader: { load in … }) { … }
  ///
  /// Nothing begins before the first result is asked for. Results that nobody takes are bounded: with
  /// as many waiting as `concurrency` says, no further key is begun. When the iteration is left, or its
  /// task cancelled, what is running is cancelled (as one waiter of `fetch` leaves) and no further key is
  /// begun. Each iteration begins anew.
  ///
  /// - Parameters:
  ///   - keys: which; a key that comes twice gives two results.
  ///   - concurrency: how many are fetched at once; less than 1 is 1. Default: 8.
  ///   - lifetime: of what the loader brings; nil: the configuration's default.
  ///   - staleWindow: for how long after that it is kept; nil: the configuration's default.
  ///   - policy: as for `fetch`.
  ///   - attributes: stored with what the loader brings.
  ///   - tags: the same.
  ///   - loader: as for `fetch`; ``Load/key`` says which key it is called for.
  /// - Returns: a sequence of each key with its blob, or with what `fetch` threw. It does not throw: a
  ///   failure concerns its key.
  public func fetchAll(
    _ keys: some Sequence<Key>, concurrency: Int = 8, lifetime: Lifetime? = nil,
    staleWindow: Duration? = nil, policy: FetchPolicy = .cacheFirst, attributes: Attributes = [:],
    tags: [String] = [],
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) -> Fetches {
    Fetches(keys: Array(keys), concurrency: max(1, concurrency)) { [self] key in
      try await fetch(
        key, lifetime: lifetime, staleWindow: staleWindow, policy: policy, attributes: attributes,
        tags: tags, loader: loader)
    }
  }

  /// ``fetchAll(_:concurrency:lifetime:staleWindow:policy:attributes:tags:loader:)-(Sequence<Key>,_,_,_,_,_,_,_)``
  /// for whatever names blobs.
  public func fetchAll(
    _ keys: some Sequence<some KeyConvertible>, concurrency: Int = 8, lifetime: Lifetime? = nil,
    staleWindow: Duration? = nil, policy: FetchPolicy = .cacheFirst, attributes: Attributes = [:],
    tags: [String] = [],
    loader: @escaping @Sendable @concurrent (inout Load) async throws -> Outcome
  ) -> Fetches {
    fetchAll(
      keys.map(\.blobCacheKey), concurrency: concurrency, lifetime: lifetime,
      staleWindow: staleWindow, policy: policy, attributes: attributes, tags: tags,
      loader: loader)
  }

  /// Keys and what became of them, in the order of completion; see
  /// ``BlobCache/fetchAll(_:concurrency:lifetime:staleWindow:policy:attributes:tags:loader:)-(Sequence<Key>,_,_,_,_,_,_,_)``.
  public struct Fetches: AsyncSequence, Sendable {
    /// What is iterated: a key, and its blob or what `fetch` threw.
    public typealias Element = (key: Key, result: Result<Blob, any Swift.Error>)
    /// Iterating throws nothing.
    public typealias Failure = Never

    let keys: [Key]
    let concurrency: Int
    let fetch: @Sendable (Key) async throws -> Blob

    /// An iterator from the start.
    public func makeAsyncIterator() -> Iterator { Iterator(fetches: self) }

    /// Gives results as they come. Leaving it ends what runs.
    public struct Iterator: AsyncIteratorProtocol {
      private let fetches: Fetches
      private var holder: CrewHolder?

      init(fetches: Fetches) { self.fetches = fetches }

      /// The next result; nil when all have come, or the task is cancelled.
      public mutating func next(
        isolation actor: isolated (any Actor)? = #isolation
      ) async -> Element? {
        if let holder { return await holder.crew.next() }
        let holder = CrewHolder(FetchCrew(fetches))
        self.holder = holder
        holder.crew.start()
        return await holder.crew.next()
      }

      /// As above, for callers without isolation.
      public mutating func next() async -> Element? { await next(isolation: nil) }
    }
  }
}

/// Dismisses its crew when the iteration is left: the crew's own tasks hold the crew, but not this.
private final class CrewHolder: Sendable {
  let crew: FetchCrew

  init(_ crew: FetchCrew) { self.crew = crew }
  deinit { crew.dismiss() }
}

/// Workers that each take a key, fetch it, hand the result over and wait until it is taken.
private final class FetchCrew: Sendable {
  typealias Element = BlobCache.Fetches.Element

  private struct State: Sendable {
    var nextKey = 0
    var workers = 0
    var tasks: [Task<Void, Never>] = []
    /// Results that nobody has taken, and the workers that wait with them.
    var ready: [(element: Element, worker: CheckedContinuation<Void, Never>)] = []
    var taker: CheckedContinuation<Element?, Never>?
    var isDismissed = false
  }

  private let fetches: BlobCache.Fetches
  private let state = Mutex(State())

  init(_ fetches: BlobCache.Fetches) { self.fetches = fetches }

  /// Runs in the task of the iteration, so that the workers inherit its task-locals and priority.
  func start() {
    let count = min(fetches.concurrency, fetches.keys.count)
    state.withLock { $0.workers = count }
    for _ in 0..<count {
      let task = Task { await work() }
      let isLate = state.withLock { state in
        state.tasks.append(task)
        return state.isDismissed
      }
      if isLate { task.cancel() }
    }
  }

  private func work() async {
    while let key = takeKey() {
      let result: Result<BlobCache.Blob, any Swift.Error>
      do {
        result = .success(try await fetches.fetch(key))
      } catch {
        result = .failure(error)
      }
      await handOver((key, result))
    }
    let taker = state.withLock { state in
      state.workers -= 1
      return state.workers == 0 ? state.taker.take() : nil
    }
    taker?.resume(returning: nil)
  }

  private func takeKey() -> BlobCache.Key? {
    state.withLock { state in
      guard !state.isDismissed, state.nextKey < fetches.keys.count else { return nil }
      defer { state.nextKey += 1 }
      return fetches.keys[state.nextKey]
    }
  }

  private func handOver(_ element: Element) async {
    await withCheckedContinuation { (worker: CheckedContinuation<Void, Never>) in
      let (taker, goesOn) = state.withLock { state in
        if state.isDismissed { return (nil as CheckedContinuation<Element?, Never>?, true) }
        if let taker = state.taker.take() { return (taker, true) }
        state.ready.append((element, worker))
        return (nil, false)
      }
      taker?.resume(returning: element)
      if goesOn { worker.resume() }
    }
  }

  func next() async -> Element? {
    await withTaskCancellationHandler {
      await withCheckedContinuation { (taker: CheckedContinuation<Element?, Never>) in
        let (worker, answer) = state.withLock {
          state -> (CheckedContinuation<Void, Never>?, Element??) in
          if state.isDismissed { return (nil, .some(nil)) }
          if !state.ready.isEmpty {
            let first = state.ready.removeFirst()
            return (first.worker, .some(first.element))
          }
          if state.workers == 0 { return (nil, .some(nil)) }
          state.taker = taker
          return (nil, nil)
        }
        worker?.resume()
        if let answer { taker.resume(returning: answer) }
      }
    } onCancel: {
      dismiss()
    }
  }

  /// Ends everything; later results are dropped.
  func dismiss() {
    let (tasks, workers, taker) = state.withLock { state in
      state.isDismissed = true
      defer {
        state.tasks = []
        state.ready = []
      }
      return (state.tasks, state.ready.map(\.worker), state.taker.take())
    }
    for task in tasks { task.cancel() }
    for worker in workers { worker.resume() }
    taker?.resume(returning: nil)
  }
}
