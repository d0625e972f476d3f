// The decisions of single flight, as a value: events in, actions out, no clock, no lock, no I/O.
//
// ## Words
//
// A *flight* is one running loader and all who wait for it. A *waiter* is one call of `fetch` that
// missed. The flight that a new waiter of a key would join is the key's *current* flight; there may
// be others of the same key that are still in the air (superseded, detached or cancelled) and only
// serve those who already wait for them. A flight *lands* when its task has nothing left to do.
//
// A *refresh* is a flight that nobody waits for: it was begun for those who come later, while a copy
// that is stale, or will be soon, is given to those who came. A flight so asked for is *kept*.
//
//     ask ──▶ (permit) ──▶ loading ──▶ (commit asked) ──▶ committing ──▶ landed
//                             │                │
//                             └── barred ──────┘  superseded · detached · cancelled · timed out:
//                                                 lands without storing
//
// ## Why it is shaped so
//
// Coalescing goes wrong at its edges: the second waiter that is told of the first one's
// cancellation, the error that only the first caller hears of, the loader that throws before its
// first await and leaves its key locked for ever, the removal that is undone by a load that began
// before it. Each of these is an order of events. Here they are ordinary calls on a value, so a test
// can drive some hundred thousand orders and check the invariants after every single one.
//
// ## Invariants
//
//  1. A key has at most one current flight, and nobody joins any other.
//  2. A waiter belongs to exactly one flight and is answered exactly once: by the landing, by its
//     own leaving, by the flight's time limit, or by the closing of an instance. Who is refused belongs
//     to none. An answered waiter is unknown here.
//  3. A current flight is neither barred nor landed.
//  4. A flight without waiters is cancelled, timed out, committing, or kept and current. (A commit is not called back: what it
//     stores is good, and whoever asks meanwhile joins it instead of loading again.)
//  5. A cancelled flight has no waiters, so its error reaches nobody, and is not current, so the
//     key is free at the moment of the cancellation and not at the end of the loader.
//  6. Permission to store is given at most once, never to a barred flight, and never taken back.
//  7. Whoever is permitted to store is told which older flights of the key are still committing, and
//     whoever detaches a key is told the same: after these have landed nothing older can overwrite
//     what comes next.
//  8. `.reload` never joins: it makes a new flight current and bars the one that was.
//  9. A flight's priority is the highest that any of its waiters had, and never sinks.
// 10. A closed instance starts nothing and waits for nothing, however late its call comes.
// 11. When every flight has landed the machine is empty: no key, no waiter, no permit, nothing is left
//     behind (but the numbers of closed instances, and what failed).
// 12. A flight that has timed out, or whose instance was closed before it could store, has no waiters, is
//     not current and holds no permit, whatever its loader does.
// 13. A failure is remembered when a flight lands, or times out, that nothing had barred before; a
//     success, a removal or a store of its key makes it forgotten. Only `.reload` starts a flight against
//     it, unless it was a mistake of the loader: whoever asks then hears of it anew.

/// Names one flight in the whole process, across all stores: the wait-for graph spans them.
struct FlightID: Hashable, Sendable {
  let number: UInt64
}

/// Names one waiting call in the whole process.
struct WaiterID: Hashable, Sendable {
  let number: UInt64
}

/// Names the cache instance on whose behalf somebody waits; several may share a store.
struct FlightOwner: Hashable, Sendable {
  let number: UInt64
}

/// Why the result of a flight must not be stored.
enum FlightBar: Hashable, Sendable {
  /// A `.reload` began later than this flight.
  case superseded
  /// The key was removed, or everything was.
  case detached
  /// Nobody waits any more.
  case cancelled
  /// The loader took longer than it may.
  case timedOut

  /// Whether the flight's task was told to end.
  var isFinal: Bool { self == .cancelled || self == .timedOut }
}

/// What a waiter brings along beside its name.
struct FlightTerms: Sendable {
  /// Milliseconds since 1970.
  var now: Int64 = 0
  /// For how many milliseconds the caller would rather hear of an old failure than load.
  var negativeLifetime: Int64 = 0
  /// Whether the caller has something else to give while the origin has to be left alone.
  var holdsStale = false
  /// How many may wait for one flight; nil: any number.
  var maximumWaiters: Int?
}

/// How a flight ended, as far as what is remembered of it goes.
enum FlightEnding: Sendable {
  case succeeded
  case failed(any Swift.Error, now: Int64, chance: Double, isMistake: Bool = false)
}

/// See the essay at the head of this file.
struct FlightMachine<Key: Hashable & Sendable>: Sendable {
  enum Event: Sendable {
    /// A caller missed. `flight` is the name of the flight that is made if none can be joined.
    case ask(
      Key, waiter: WaiterID, owner: FlightOwner, priority: UInt8, reload: Bool, flight: FlightID,
      terms: FlightTerms = FlightTerms())
    /// A caller got a copy that is stale, or will be soon.
    case refresh(Key, owner: FlightOwner, priority: UInt8, flight: FlightID, now: Int64)
    /// A waiter was cancelled.
    case leave(WaiterID)
    /// The task of a waiter was escalated.
    case escalate(WaiterID, priority: UInt8)
    /// The flight is about to run its loader.
    case board(FlightID)
    /// The flight's loader begins to wait for another flight.
    case lend(FlightID)
    /// The flight's loader has what it waited for.
    case regain(FlightID)
    /// The loader did not end in time.
    case timeOut(FlightID, FlightEnding = .succeeded)
    /// The loader is done and its result could be stored.
    case commit(FlightID)
    /// The task of a flight has nothing left to do but to hand over its result.
    case land(FlightID, FlightEnding = .succeeded)
    /// A key was stored.
    case forget(Key)
    /// A key is about to be removed.
    case detach(Key)
    /// An instance closes.
    case close(FlightOwner)
  }

  enum Action: Hashable, Sendable {
    /// Run the loader in a task of its own.
    case start(FlightID)
    /// Cancel the flight's task. Its landing will follow.
    case cancel(FlightID)
    /// Let these loaders go on, each with a permit.
    case admit([FlightID])
    /// The flight stands in the line for a permit no more: it is to end without its loader.
    case turnAway(FlightID)
    /// Raise the priority of the flight's task.
    case escalate(FlightID, priority: UInt8)
    /// Give these the result of the flight that lands. They are in the order in which they came: that
    /// is fair, and a task group looks for the child that ended from its oldest on, so that 10,000
    /// children ending in random order would cost it half a second.
    case deliver([WaiterID])
    /// Tell this one that its own task was cancelled.
    case answerCancelled(WaiterID)
    /// Tell this one that too many wait already.
    case answerCrowded(WaiterID)
    /// Tell this one of the remembered failure.
    case answerRecentlyFailed(WaiterID)
    /// Tell this one to give what it has, since the origin has to be left alone.
    case answerBackingOff(WaiterID)
    /// Tell these that the loader took too long.
    case answerTimedOut([WaiterID])
    /// Tell these that their instance was closed.
    case answerClosed([WaiterID])
    /// These belong to another instance than the one that closed: they ask again.
    case askAgain([WaiterID])
    /// The flight stores its result, once these have landed.
    case store(after: [FlightID])
    /// The flight gives its result to its waiters only.
    case withhold(FlightBar)
    /// Whoever detached goes on once these have landed.
    case settle([FlightID])
  }

  struct Flight: Sendable {
    let key: Key
    let owner: FlightOwner
    var priority: UInt8
    var waiters: Set<WaiterID>
    /// Goes on without waiters.
    var isKept = false
    var isCommitting = false
    var bar: FlightBar?
  }

  private struct Waiter: Sendable {
    let flight: FlightID
    let owner: FlightOwner
  }

  private(set) var current: [Key: FlightID] = [:]
  private(set) var flights: [FlightID: Flight] = [:]
  private var waiters: [WaiterID: Waiter] = [:]
  /// Permitted to store and not landed, oldest first. Apart from `flights` because every removal of
  /// a key asks for it.
  private var committing: [Key: [FlightID]] = [:]
  private var closedOwners: Set<FlightOwner> = []
  private(set) var failures: FailureBook<Key>
  private(set) var permits: LoadPermits

  init(maximumLoads: Int? = nil, failures: FailureBook<Key> = FailureBook()) {
    permits = LoadPermits(maximum: maximumLoads)
    self.failures = failures
  }

  /// How many calls wait at the moment.
  var waiterCount: Int { waiters.count }

  /// The flight that a call would join, or nil when it would start one (8).
  func joinable(_ key: Key, reload: Bool) -> FlightID? {
    reload ? nil : current[key]
  }

  /// Whether the flight must end: it was told to, or has landed already.
  func mustEnd(_ id: FlightID) -> Bool {
    flights[id].map { $0.bar?.isFinal == true } ?? true
  }

  /// Whether the instance was closed.
  func isClosed(_ owner: FlightOwner) -> Bool { closedOwners.contains(owner) }

  mutating func handle(_ event: Event) -> [Action] {
    switch event {
    case .ask(let key, let waiter, let owner, let priority, let reload, let flight, let terms):
      ask(
        key, waiter: waiter, owner: owner, priority: priority, reload: reload, newFlight: flight,
        terms: terms)
    case .refresh(let key, let owner, let priority, let flight, let now):
      refresh(key, owner: owner, priority: priority, newFlight: flight, now: now)
    case .leave(let waiter): leave(waiter)
    case .escalate(let waiter, let priority): escalate(waiter, to: priority)
    case .board(let flight): board(flight)
    case .lend(let flight): lend(flight)
    case .regain(let flight): regain(flight)
    case .timeOut(let flight, let ending): timeOut(flight, ending)
    case .commit(let flight): commit(flight)
    case .land(let flight, let ending): land(flight, ending)
    case .forget(let key): forget(key)
    case .detach(let key): detach(key)
    case .close(let owner): close(owner)
    }
  }

  private mutating func ask(
    _ key: Key, waiter: WaiterID, owner: FlightOwner, priority: UInt8, reload: Bool,
    newFlight: FlightID, terms: FlightTerms
  ) -> [Action] {
    if closedOwners.contains(owner) { return [.answerClosed([waiter])] }
    if let id = joinable(key, reload: reload) {
      if let maximum = terms.maximumWaiters, flights[id]?.waiters.count ?? 0 >= maximum {
        return [.answerCrowded(waiter)]
      }
      waiters[waiter] = Waiter(flight: id, owner: owner)
      flights[id]?.waiters.insert(waiter)
      return raise(id, to: priority)
    }
    if reload {
      failures.endNegative(key)
    } else if failures.negative(key, lifetime: terms.negativeLifetime, now: terms.now) != nil {
      return [.answerRecentlyFailed(waiter)]
    } else if terms.holdsStale,
      failures.isBackingOff(key, now: terms.now, sparesMistakes: true)
    {
      return [.answerBackingOff(waiter)]
    }
    let superseded = current[key].map { retire($0, .superseded) } ?? []
    waiters[waiter] = Waiter(flight: newFlight, owner: owner)
    flights[newFlight] = Flight(key: key, owner: owner, priority: priority, waiters: [waiter])
    current[key] = newFlight
    return [.start(newFlight)] + superseded
  }

  private mutating func refresh(
    _ key: Key, owner: FlightOwner, priority: UInt8, newFlight: FlightID, now: Int64
  ) -> [Action] {
    if closedOwners.contains(owner) { return [] }
    if let id = current[key] {
      // Whoever waits for it may leave: the refresh is wanted all the same. One that an instance
      // began which is closing does not come here, it is not current any more.
      flights[id]?.isKept = true
      return []
    }
    if failures.isBackingOff(key, now: now) { return [] }
    flights[newFlight] = Flight(
      key: key, owner: owner, priority: priority, waiters: [], isKept: true)
    current[key] = newFlight
    return [.start(newFlight)]
  }

  private mutating func board(_ id: FlightID) -> [Action] {
    if mustEnd(id) { return [.turnAway(id)] }
    return permits.board(id) ? [.admit([id])] : []
  }

  private mutating func lend(_ id: FlightID) -> [Action] {
    // A loader that goes on although it must end holds nothing to lend (12).
    if mustEnd(id) { return [] }
    return admission(permits.lend(id))
  }

  private mutating func regain(_ id: FlightID) -> [Action] {
    // Whoever must end is not made to wait before it can.
    let goesOn = permits.regain(id)
    return goesOn || (mustEnd(id) && permits.leaveLine(id)) ? [.admit([id])] : []
  }

  private mutating func outOfLine(_ id: FlightID) -> [Action] {
    permits.leaveLine(id) ? [.turnAway(id)] : []
  }

  private func admission(_ ids: [FlightID]) -> [Action] { ids.isEmpty ? [] : [.admit(ids)] }

  private mutating func timeOut(_ id: FlightID, _ ending: FlightEnding) -> [Action] {
    guard let flight = flights[id], !flight.isCommitting, flight.bar?.isFinal != true else {
      return []
    }
    remember(flight, ending)
    bar(id, .timedOut)
    flights[id]?.waiters = []
    for waiter in flight.waiters { waiters[waiter] = nil }
    var actions: [Action] = [.cancel(id)] + outOfLine(id)
    if !flight.waiters.isEmpty { actions.append(.answerTimedOut(inOrder(flight.waiters))) }
    return actions + admission(permits.end(id))
  }

  private mutating func remember(_ flight: Flight, _ ending: FlightEnding) {
    guard flight.bar == nil else { return }
    switch ending {
    case .succeeded: failures.forget(flight.key)
    case .failed(let cause, let now, let chance, let isMistake):
      failures.record(
        flight.key, cause: cause, now: now, chance: chance, isMistake: isMistake)
    }
  }

  private mutating func forget(_ key: Key) -> [Action] {
    failures.forget(key)
    return []
  }

  private func inOrder(_ waiters: Set<WaiterID>) -> [WaiterID] {
    waiters.sorted { $0.number < $1.number }
  }

  private mutating func leave(_ waiter: WaiterID) -> [Action] {
    guard let left = waiters.removeValue(forKey: waiter) else { return [] }
    flights[left.flight]?.waiters.remove(waiter)
    return [.answerCancelled(waiter)] + cancelIfDeserted(left.flight)
  }

  private mutating func escalate(_ waiter: WaiterID, to priority: UInt8) -> [Action] {
    waiters[waiter].map { raise($0.flight, to: priority) } ?? []
  }

  private mutating func commit(_ id: FlightID) -> [Action] {
    guard let flight = flights[id], !flight.isCommitting else { return [] }
    if let bar = flight.bar { return [.withhold(bar)] }
    let older = committing[flight.key, default: []]
    flights[id]?.isCommitting = true
    committing[flight.key] = older + [id]
    return [.store(after: older)]
  }

  private mutating func land(_ id: FlightID, _ ending: FlightEnding) -> [Action] {
    guard let flight = flights.removeValue(forKey: id) else { return [] }
    remember(flight, ending)
    if current[flight.key] == id { current[flight.key] = nil }
    if flight.isCommitting {
      let others = committing[flight.key, default: []].filter { $0 != id }
      committing[flight.key] = others.isEmpty ? nil : others
    }
    for waiter in flight.waiters { waiters[waiter] = nil }
    // A task that the loader left behind may still stand in the line.
    return [.deliver(inOrder(flight.waiters))] + outOfLine(id) + admission(permits.end(id))
  }

  private mutating func detach(_ key: Key) -> [Action] {
    failures.forget(key)
    let deserted = current[key].map { retire($0, .detached) } ?? []
    return deserted + (committing[key].map { [.settle($0)] } ?? [])
  }

  private mutating func close(_ owner: FlightOwner) -> [Action] {
    closedOwners.insert(owner)
    var closed: [WaiterID] = []
    var again: [WaiterID] = []
    var permitless: [FlightID] = []
    var actions: [Action] = []
    for (id, flight) in flights {
      let ends = flight.owner == owner && !flight.isCommitting
      for waiter in flight.waiters {
        if waiters[waiter]?.owner == owner {
          closed.append(waiter)
        } else if ends {
          again.append(waiter)
        } else {
          continue
        }
        waiters[waiter] = nil
        flights[id]?.waiters.remove(waiter)
      }
      if ends { flights[id]?.isKept = false }
      actions += cancelIfDeserted(id)
      if ends { permitless.append(id) }
    }
    // Once nobody of them stands in the line any more.
    for id in permitless.sorted(by: { $0.number < $1.number }) {
      actions += admission(permits.end(id))
    }
    if !closed.isEmpty { actions.append(.answerClosed(closed)) }
    if !again.isEmpty { actions.append(.askAgain(again)) }
    return actions
  }

  /// The flight is not the key's any more. One that is committing stores all the same (6); the
  /// others will not.
  private mutating func bar(_ id: FlightID, _ bar: FlightBar) {
    guard let flight = flights[id] else { return }
    if current[flight.key] == id { current[flight.key] = nil }
    if !flight.isCommitting { flights[id]?.bar = bar }
  }

  /// As `bar`; one that only went on for those who come later ends.
  private mutating func retire(_ id: FlightID, _ bar: FlightBar) -> [Action] {
    self.bar(id, bar)
    return cancelIfDeserted(id)
  }

  private mutating func cancelIfDeserted(_ id: FlightID) -> [Action] {
    guard let flight = flights[id], flight.waiters.isEmpty, !flight.isCommitting,
      flight.bar?.isFinal != true, !(flight.isKept && flight.bar == nil)
    else { return [] }
    bar(id, .cancelled)
    return [.cancel(id)] + outOfLine(id)
  }

  private mutating func raise(_ id: FlightID, to priority: UInt8) -> [Action] {
    guard let flight = flights[id], flight.priority < priority else { return [] }
    flights[id]?.priority = priority
    return [.escalate(id, priority: priority)]
  }
}
