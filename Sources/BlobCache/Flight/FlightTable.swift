internal import Synchronization

/// The flights of one store: a lock around ``FlightMachine``, and its actions carried out outside
/// of that lock.
///
/// It knows neither disk nor loader. A flight's work is a closure that gives a value, so the tests
/// of this class need no directory.
final class FlightTable<Value: Sendable>: Sendable {
  typealias Machine = FlightMachine<BlobCache.Key>
  typealias Work = @Sendable @concurrent (FlightTicket<Value>) async throws -> Value

  fileprivate enum Answer: Sendable {
    case result(Result<Value, any Swift.Error>)
    case cancelled
    case closed
    case askAgain
    case cycle
    case crowded
    case recentlyFailed(any Swift.Error)
    case backingOff(any Swift.Error)
    case timedOut
  }

  fileprivate struct Parked {
    let continuation: CheckedContinuation<Answer, Never>
    /// The edge of the wait-for graph that this waiter stands for, when it is a loader.
    let edge: (waiting: FlightID, target: FlightID)?

    func resume(_ answer: Answer) {
      if let edge {
        WaitGraph.shared.withLock { $0.remove(edge.waiting, waitsFor: edge.target) }
      }
      continuation.resume(returning: answer)
    }
  }

  fileprivate struct State {
    var machine: Machine
    var parked: [WaiterID: Parked] = [:]
    var tasks: [FlightID: Task<Void, Never>] = [:]
    /// Those who wait until a flight has landed, without wanting its value.
    var landings: [FlightID: [CheckedContinuation<Void, Never>]] = [:]
    /// Loaders that wait for a permit: to begin, or (there may be several tasks) to go on.
    var line: [FlightID: [CheckedContinuation<Bool, Never>]] = [:]
  }

  let clock: BlobCache.Clock
  private let limitsLoads: Bool
  private let state: Mutex<State>
  private let failureCount = Atomic<Int>(0)
  private let joinCount = Atomic<Int>(0)
  private let loadCount = Atomic<Int>(0)

  /// - Parameters:
  ///   - clock: what limits, negative lifetimes and back-off go by.
  ///   - maximumLoads: how many loaders run at once; nil: any number.
  init(clock: BlobCache.Clock = .system, maximumLoads: Int? = nil) {
    self.clock = clock
    limitsLoads = maximumLoads != nil
    state = Mutex(
      State(machine: Machine(maximumLoads: maximumLoads, failures: FailureBook { $0.byteCount })))
  }

  /// How many calls waited for somebody else's flight.
  var joins: Int { joinCount.load(ordering: .relaxed) }

  /// How many loaders were run.
  var loads: Int { loadCount.load(ordering: .relaxed) }

  /// How many flights are in the air, those that are cancelled or detached included.
  var flightCount: Int { state.withLock { $0.machine.flights.count } }

  /// How many calls wait.
  var waiterCount: Int { state.withLock { $0.machine.waiterCount } }

  /// Called by the work of a flight when it runs the caller's loader; one that finds the entry
  /// stored meanwhile does not.
  func countLoad() { loadCount.add(1, ordering: .relaxed) }

  /// Joins the current flight of `key`, or starts one with `work`, and waits for its value.
  ///
  /// - Parameters:
  ///   - reload: never join; start a flight and supersede the current one.
  ///   - owner: the instance that asks. See ``cancelAll(owner:)``.
  ///   - work: runs in a task of its own that inherits the task-locals of this one.
  /// - Throws: What `work` throws; `CancellationError` when the calling task is cancelled;
  ///   `BlobCache.Error` when the wait would close a cycle or the instance was closed.
  func value(
    for key: BlobCache.Key, reload: Bool, owner: FlightOwner, terms: FlightTerms = FlightTerms(),
    work: @escaping Work
  ) async throws -> Value {
    // A loader that waits lets others load meanwhile.
    guard let caller = WaitGraph.caller, let permits = caller.permits else {
      return try await answer(key, reload, owner, terms, work)
    }
    permits.lend(caller.flight)
    let result: Result<Value, any Swift.Error>
    do {
      result = .success(try await answer(key, reload, owner, terms, work))
    } catch {
      result = .failure(error)
    }
    await permits.regain(caller.flight)
    return try result.get()
  }

  private func answer(
    _ key: BlobCache.Key, _ reload: Bool, _ owner: FlightOwner, _ terms: FlightTerms,
    _ work: @escaping Work
  ) async throws -> Value {
    while true {
      let waiter = WaiterID.next()
      let answer = await withTaskCancellationHandler {
        await withTaskPriorityEscalationHandler {
          await withCheckedContinuation { continuation in
            ask(
              key, waiter: waiter, owner: owner, reload: reload, terms: terms,
              continuation: continuation, work: work)
          }
        } onPriorityEscalated: { _, priority in
          perform(.escalate(waiter, priority: priority.rawValue))
        }
      } onCancel: {
        perform(.leave(waiter))
      }
      switch answer {
      case .result(let result): return try result.get()
      case .cancelled: throw CancellationError()
      case .closed: throw BlobCache.Error.closedDuringFetch
      case .cycle: throw BlobCache.Error.fetchCycle
      case .askAgain: continue
      case .crowded: throw BlobCache.Error.tooManyWaiters
      case .recentlyFailed(let cause): throw BlobCache.Error.recentlyFailed(cause)
      case .backingOff(let cause): throw BackingOff(cause: cause)
      case .timedOut: throw BlobCache.Error.loadTimedOut
      }
    }
  }

  /// Begins a load that nobody waits for, unless one of the key is in the air or its origin has to be
  /// left alone.
  func refresh(_ key: BlobCache.Key, owner: FlightOwner, work: @escaping Work) {
    let event = Machine.Event.refresh(
      key, owner: owner, priority: Task.currentPriority.rawValue, flight: FlightID.next(),
      now: clock.milliseconds)
    carryOut(state.withLock { decide(&$0, event) }, work: work)
  }

  /// The key was stored, so nothing is held against it any more.
  func forgetFailure(of key: BlobCache.Key) {
    if failureCount.load(ordering: .relaxed) > 0 { perform(.forget(key)) }
  }

  /// Ends a flight for its waiters and its key. False: it had ended, or is storing what it brought.
  func timeOut(_ flight: FlightID) -> Bool {
    let ending = FlightEnding.failed(
      BlobCache.Error.loadTimedOut, now: clock.milliseconds, chance: clock.chance())
    let (ended, effects) = state.withLock { state in
      let mayEnd = !state.machine.mustEnd(flight)
      let effects = decide(&state, .timeOut(flight, ending))
      return (mayEnd && state.machine.mustEnd(flight), effects)
    }
    carryOut(effects, work: nil)
    return ended
  }

  /// Bars the current flight of `key` from storing, and lets the next caller start a new one. What
  /// was being committed already is waited for, so that a removal made after this call removes it.
  func detach(_ key: BlobCache.Key) async {
    await settle { _ in [key] }
  }

  /// ``detach(_:)`` for every key in the air that `isAffected` names.
  func detachAll(where isAffected: (BlobCache.Key) -> Bool = { _ in true }) async {
    await settle { machine in
      Set(machine.flights.values.lazy.map(\.key)).union(machine.failures.failures.keys)
        .filter(isAffected)
    }
  }

  /// Ends everything that an instance began: its waiting calls throw, the loaders it started are
  /// cancelled, and the stores that they have begun are waited for. Calls of other instances that had
  /// joined one of these ask again, with their own loaders.
  ///
  /// Loaders are not waited for: one that heeds nothing would never let its cache be closed. What they
  /// bring later is dropped.
  func cancelAll(owner: FlightOwner) async {
    perform(.close(owner))
    let storing = state.withLock { state in
      state.machine.flights.filter { $0.value.owner == owner && $0.value.isCommitting }.map(\.key)
    }
    await landed(storing)
  }

  /// Whether the instance was closed.
  func isClosed(_ owner: FlightOwner) -> Bool { state.withLock { $0.machine.isClosed(owner) } }

  // MARK: - Waiting

  /// Registers a waiter together with its continuation, in one step under the lock.
  ///
  /// A cancellation cannot fall in between: the cancelled flag of a task is set before its handlers
  /// run. Either it is seen here, or the handler comes for the lock later and finds the waiter.
  private func ask(
    _ key: BlobCache.Key, waiter: WaiterID, owner: FlightOwner, reload: Bool, terms: FlightTerms,
    continuation: CheckedContinuation<Answer, Never>, work: @escaping Work
  ) {
    let caller = WaitGraph.currentFlight
    let priority = Task.currentPriority.rawValue
    var terms = terms
    terms.now = clock.milliseconds
    let (refusal, effects): (Answer?, [Effect]) = state.withLock { state in
      if Task.isCancelled { return (.cancelled, []) }
      let joined = state.machine.joinable(key, reload: reload)
      let flight = joined ?? FlightID.next()
      if let caller {
        let fits = WaitGraph.shared.withLock { $0.add(caller, waitsFor: flight) }
        if !fits { return (.cycle, []) }
      }
      state.parked[waiter] = Parked(
        continuation: continuation, edge: caller.map { (waiting: $0, target: flight) })
      let event = Machine.Event.ask(
        key, waiter: waiter, owner: owner, priority: priority, reload: reload, flight: flight,
        terms: terms)
      let effects = decide(&state, event)
      // Refused, it is parked no more.
      if joined != nil && state.parked[waiter] != nil { joinCount.add(1, ordering: .relaxed) }
      return (nil, effects)
    }
    if let refusal { continuation.resume(returning: refusal) }
    carryOut(effects, work: work)
  }

  /// Waits until these have landed.
  private func landed(_ flights: [FlightID]) async {
    for flight in flights {
      await withCheckedContinuation { continuation in
        let isGone = state.withLock { state in
          if state.machine.flights[flight] == nil { return true }
          state.landings[flight, default: []].append(continuation)
          return false
        }
        if isGone { continuation.resume() }
      }
    }
  }

  private func settle(_ affected: (Machine) -> some Collection<BlobCache.Key>) async {
    let effects: [Effect] = state.withLock { state in
      if state.machine.flights.isEmpty && state.machine.failures.count == 0 { return [] }
      return affected(state.machine).flatMap { decide(&state, .detach($0)) }
    }
    carryOut(effects, work: nil)
    for case .settle(let older) in effects { await landed(older) }
  }

  func board(_ flight: FlightID) async -> Bool {
    limitsLoads ? await stand(.board(flight), flight) : true
  }

  /// Waits in the line, as far as the event leads there. False: turned away.
  private func stand(_ event: Machine.Event, _ flight: FlightID) async -> Bool {
    await withCheckedContinuation { continuation in
      let effects = state.withLock { state in
        state.line[flight, default: []].append(continuation)
        return decide(&state, event)
      }
      carryOut(effects, work: nil)
    }
  }

  func barFromStoring(_ flight: FlightID) async -> FlightBar? {
    for action in state.withLock({ $0.machine.handle(.commit(flight)) }) {
      switch action {
      case .withhold(let bar): return bar
      case .store(after: let older): await landed(older)
      default: break
      }
    }
    return nil
  }

  // MARK: - Effects

  /// An action with everything in hand that it needs, so that it can be done without the lock.
  fileprivate enum Effect {
    case start(FlightID)
    case cancel(Task<Void, Never>)
    case escalate(Task<Void, Never>, UInt8)
    case answer([Parked], Answer)
    case landed([CheckedContinuation<Void, Never>])
    case goOn([CheckedContinuation<Bool, Never>], Bool)
    case settle([FlightID])
  }

  private func perform(_ event: Machine.Event, result: Result<Value, any Swift.Error>? = nil) {
    carryOut(state.withLock { decide(&$0, event, result: result) }, work: nil)
  }

  private func decide(
    _ state: inout State, _ event: Machine.Event, result: Result<Value, any Swift.Error>? = nil
  ) -> [Effect] {
    let effects = state.apply(event, result: result)
    failureCount.store(state.machine.failures.count, ordering: .relaxed)
    return effects
  }

  private func carryOut(_ effects: [Effect], work: Work?) {
    for effect in effects {
      switch effect {
      case .start(let flight): if let work { start(flight, work) }
      case .cancel(let task): task.cancel()
      case .escalate(let task, let priority):
        task.escalatePriority(to: TaskPriority(rawValue: priority))
      case .answer(let waiters, let answer): for waiter in waiters { waiter.resume(answer) }
      case .landed(let others): for other in others { other.resume() }
      case .goOn(let loaders, let permitted):
        for loader in loaders { loader.resume(returning: permitted) }
      case .settle: break
      }
    }
  }

  /// Runs in the task of the first caller, so that `Task` copies its task-locals and its priority.
  private func start(_ flight: FlightID, _ work: @escaping Work) {
    let base = Task.currentPriority.rawValue
    let caller = WaitGraph.Caller(flight: flight, permits: limitsLoads ? self : nil)
    let task = WaitGraph.$caller.withValue(caller) {
      Task {
        let result: Result<Value, any Swift.Error>
        let ending: FlightEnding
        do {
          result = .success(try await work(FlightTicket(flight: flight, table: self)))
          ending = .succeeded
        } catch {
          result = .failure(error)
          ending = .failed(
            error, now: clock.milliseconds, chance: clock.chance(),
            isMistake: (error as? BlobCache.Error)?.isMistake == true)
        }
        perform(.land(flight, ending), result: result)
      }
    }
    // What was decided before the task could be entered is made up for here.
    let (mustEnd, priority) = state.withLock { state in
      guard let known = state.machine.flights[flight] else { return (false, base) }
      state.tasks[flight] = task
      return (state.machine.mustEnd(flight), known.priority)
    }
    if mustEnd { task.cancel() }
    if priority > base { task.escalatePriority(to: TaskPriority(rawValue: priority)) }
  }
}

extension FlightTable.State {
  /// Feeds the machine and takes out of the tables what its actions need. `result` comes with a
  /// landing.
  fileprivate mutating func apply(
    _ event: FlightTable.Machine.Event, result: Result<Value, any Swift.Error>?
  ) -> [FlightTable.Effect] {
    var effects: [FlightTable.Effect] = []
    for action in machine.handle(event) {
      switch action {
      case .start(let flight): effects.append(.start(flight))
      case .cancel(let flight): if let task = tasks[flight] { effects.append(.cancel(task)) }
      case .escalate(let flight, let priority):
        if let task = tasks[flight] { effects.append(.escalate(task, priority)) }
      case .deliver(let waiters):
        if let result { effects.append(.answer(unpark(waiters), .result(result))) }
      case .answerCancelled(let waiter): effects.append(.answer(unpark([waiter]), .cancelled))
      case .answerClosed(let waiters): effects.append(.answer(unpark(waiters), .closed))
      case .answerTimedOut(let waiters): effects.append(.answer(unpark(waiters), .timedOut))
      case .answerCrowded(let waiter): effects.append(.answer(unpark([waiter]), .crowded))
      case .answerRecentlyFailed(let waiter):
        effects.append(.answer(unpark([waiter]), .recentlyFailed(cause(event))))
      case .answerBackingOff(let waiter):
        effects.append(.answer(unpark([waiter]), .backingOff(cause(event))))
      case .admit(let flights):
        effects += flights.map { .goOn(line.removeValue(forKey: $0) ?? [], true) }
      case .turnAway(let flight):
        effects.append(.goOn(line.removeValue(forKey: flight) ?? [], false))
      case .settle(let flights): effects.append(.settle(flights))
      case .askAgain(let waiters): effects.append(.answer(unpark(waiters), .askAgain))
      case .store, .withhold: break
      }
    }
    if case .land(let flight, _) = event {
      tasks[flight] = nil
      if let others = landings.removeValue(forKey: flight) { effects.append(.landed(others)) }
    }
    return effects
  }

  /// What the failure was that an ask was refused for.
  private func cause(_ event: FlightTable.Machine.Event) -> any Swift.Error {
    guard case .ask(let key, _, _, _, _, _, _) = event, let failure = machine.failures.failures[key]
    else { return BackingOff(cause: CancellationError()) }
    return failure.cause
  }

  private mutating func unpark(_ waiters: [WaiterID]) -> [FlightTable.Parked] {
    waiters.compactMap { parked.removeValue(forKey: $0) }
  }
}

extension FlightTable: PermitLender {
  func lend(_ flight: FlightID) { perform(.lend(flight)) }
  func regain(_ flight: FlightID) async { _ = await stand(.regain(flight), flight) }
}

// The generic class above cannot hold these.
private let lastFlight = Atomic<UInt64>(0)
private let lastWaiter = Atomic<UInt64>(0)

extension FlightID {
  static func next() -> FlightID {
    FlightID(number: lastFlight.add(1, ordering: .relaxed).newValue)
  }
}

extension WaiterID {
  static func next() -> WaiterID {
    WaiterID(number: lastWaiter.add(1, ordering: .relaxed).newValue)
  }
}
