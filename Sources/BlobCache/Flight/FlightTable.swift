internal import Synchronization

/// What the task of a flight holds: its name, and the question whether it may store.
struct FlightTicket<Value: Sendable>: Sendable {
  let flight: FlightID
  fileprivate let table: FlightTable<Value>

  /// Asks whether the result may be stored, and if so waits until nothing older of the same key is
  /// being committed. Nil means yes. Ask once, right before the commit: from then on the flight
  /// can no longer be superseded, detached or cancelled.
  func barFromStoring() async -> FlightBar? {
    await table.barFromStoring(flight)
  }
}

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
    var machine = Machine()
    var parked: [WaiterID: Parked] = [:]
    var tasks: [FlightID: Task<Void, Never>] = [:]
    /// Those who wait until a flight has landed, without wanting its value.
    var landings: [FlightID: [CheckedContinuation<Void, Never>]] = [:]
  }

  private let state = Mutex(State())
  private let joinCount = Atomic<Int>(0)
  private let loadCount = Atomic<Int>(0)

  init() {}

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
    for key: BlobCache.Key, reload: Bool, owner: FlightOwner, work: @escaping Work
  ) async throws -> Value {
    while true {
      let waiter = WaiterID.next()
      let answer = await withTaskCancellationHandler {
        await withTaskPriorityEscalationHandler {
          await withCheckedContinuation { continuation in
            ask(
              key, waiter: waiter, owner: owner, reload: reload, continuation: continuation,
              work: work)
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
      }
    }
  }

  /// Bars the current flight of `key` from storing, and lets the next caller start a new one. What
  /// was being committed already is waited for, so that a removal made after this call removes it.
  func detach(_ key: BlobCache.Key) async {
    await settle { $0.handle(.detach(key)) }
  }

  /// ``detach(_:)`` for every key in the air that `isAffected` names.
  func detachAll(where isAffected: (BlobCache.Key) -> Bool = { _ in true }) async {
    await settle { machine in
      let keys = Set(machine.flights.values.lazy.map(\.key)).filter(isAffected)
      return keys.flatMap { machine.handle(.detach($0)) }
    }
  }

  /// Ends everything that an instance began: its waiting calls throw, the loaders it started are
  /// cancelled, and their end is waited for. Calls of other instances that had joined one of these
  /// ask again, with their own loaders.
  ///
  /// Called from inside a loader, it does not wait for that loader nor for those who wait for it.
  func cancelAll(owner: FlightOwner) async {
    perform(.close(owner))
    let mine = state.withLock { state in
      state.machine.flights.filter { $0.value.owner == owner }.map(\.key)
    }
    if let own = WaitGraph.currentFlight {
      await landed(mine.filter { id in !WaitGraph.shared.withLock { $0.reaches(id, own) } })
    } else {
      await landed(mine)
    }
  }

  // MARK: - Waiting

  /// Registers a waiter together with its continuation, in one step under the lock.
  ///
  /// A cancellation cannot fall in between: the cancelled flag of a task is set before its handlers
  /// run. Either it is seen here, or the handler comes for the lock later and finds the waiter.
  private func ask(
    _ key: BlobCache.Key, waiter: WaiterID, owner: FlightOwner, reload: Bool,
    continuation: CheckedContinuation<Answer, Never>, work: @escaping Work
  ) {
    let caller = WaitGraph.currentFlight
    let priority = Task.currentPriority.rawValue
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
      if joined != nil { joinCount.add(1, ordering: .relaxed) }
      let event = Machine.Event.ask(
        key, waiter: waiter, owner: owner, priority: priority, reload: reload, flight: flight)
      return (nil, state.apply(event, result: nil))
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

  private func settle(_ detach: (inout Machine) -> [Machine.Action]) async {
    let older = state.withLock { state in
      state.machine.flights.isEmpty
        ? []
        : detach(&state.machine).flatMap { action in
          if case .settle(let flights) = action { flights } else { [FlightID]() }
        }
    }
    await landed(older)
  }

  fileprivate func barFromStoring(_ flight: FlightID) async -> FlightBar? {
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
  }

  private func perform(_ event: Machine.Event, result: Result<Value, any Swift.Error>? = nil) {
    let effects = state.withLock { $0.apply(event, result: result) }
    carryOut(effects, work: nil)
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
      }
    }
  }

  /// Runs in the task of the first caller, so that `Task` copies its task-locals and its priority.
  private func start(_ flight: FlightID, _ work: @escaping Work) {
    let base = Task.currentPriority.rawValue
    let task = WaitGraph.$currentFlight.withValue(flight) {
      Task {
        let result: Result<Value, any Swift.Error>
        do {
          result = .success(try await work(FlightTicket(flight: flight, table: self)))
        } catch {
          result = .failure(error)
        }
        perform(.land(flight), result: result)
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
      case .askAgain(let waiters): effects.append(.answer(unpark(waiters), .askAgain))
      case .store, .withhold, .settle: break
      }
    }
    if case .land(let flight) = event {
      tasks[flight] = nil
      if let others = landings.removeValue(forKey: flight) { effects.append(.landed(others)) }
    }
    return effects
  }

  private mutating func unpark(_ waiters: [WaiterID]) -> [FlightTable.Parked] {
    waiters.compactMap { parked.removeValue(forKey: $0) }
  }
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
