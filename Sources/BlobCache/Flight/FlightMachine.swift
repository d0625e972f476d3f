// The decisions of single flight, as a value: events in, actions out, no clock, no lock, no I/O.
//
// ## Words
//
// A *flight* is one running loader and all who wait for it. A *waiter* is one call of `fetch` that
// missed. The flight that a new waiter of a key would join is the key's *current* flight; there may
// be others of the same key that are still in the air (superseded, detached or cancelled) and only
// serve those who already wait for them. A flight *lands* when its task has nothing left to do.
//
//     ask ──▶ loading ──▶ (commit asked) ──▶ committing ──▶ landed
//                │                │
//                └── barred ──────┘  superseded · detached · cancelled: lands without storing
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
//     own leaving, or by the closing of an instance. An answered waiter is unknown here.
//  3. A current flight is neither barred nor landed.
//  4. A flight without waiters is cancelled, or is committing. (A commit is not called back: what it
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
// 11. When every flight has landed the machine is empty: no key, no waiter, nothing is left behind
//     (but the numbers of closed instances).

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
}

/// See the essay at the head of this file.
struct FlightMachine<Key: Hashable & Sendable>: Sendable {
  enum Event: Sendable {
    /// A caller missed. `flight` is the name of the flight that is made if none can be joined.
    case ask(
      Key, waiter: WaiterID, owner: FlightOwner, priority: UInt8, reload: Bool, flight: FlightID)
    /// A waiter was cancelled.
    case leave(WaiterID)
    /// The task of a waiter was escalated.
    case escalate(WaiterID, priority: UInt8)
    /// The loader is done and its result could be stored.
    case commit(FlightID)
    /// The task of a flight has nothing left to do but to hand over its result.
    case land(FlightID)
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
    /// Raise the priority of the flight's task.
    case escalate(FlightID, priority: UInt8)
    /// Give these the result of the flight that lands. They are in the order in which they came: that
    /// is fair, and a task group looks for the child that ended from its oldest on, so that 10,000
    /// children ending in random order would cost it half a second.
    case deliver([WaiterID])
    /// Tell this one that its own task was cancelled.
    case answerCancelled(WaiterID)
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

  /// How many calls wait at the moment.
  var waiterCount: Int { waiters.count }

  /// The flight that a call would join, or nil when it would start one (8).
  func joinable(_ key: Key, reload: Bool) -> FlightID? {
    reload ? nil : current[key]
  }

  /// Whether the flight must end: it was cancelled, or has landed already.
  func mustEnd(_ id: FlightID) -> Bool {
    flights[id].map { $0.bar == .cancelled } ?? true
  }

  mutating func handle(_ event: Event) -> [Action] {
    switch event {
    case .ask(let key, let waiter, let owner, let priority, let reload, let flight):
      ask(
        key, waiter: waiter, owner: owner, priority: priority, reload: reload, newFlight: flight)
    case .leave(let waiter): leave(waiter)
    case .escalate(let waiter, let priority): escalate(waiter, to: priority)
    case .commit(let flight): commit(flight)
    case .land(let flight): land(flight)
    case .detach(let key): detach(key)
    case .close(let owner): close(owner)
    }
  }

  private mutating func ask(
    _ key: Key, waiter: WaiterID, owner: FlightOwner, priority: UInt8, reload: Bool,
    newFlight: FlightID
  ) -> [Action] {
    if closedOwners.contains(owner) { return [.answerClosed([waiter])] }
    if let id = joinable(key, reload: reload) {
      waiters[waiter] = Waiter(flight: id, owner: owner)
      flights[id]?.waiters.insert(waiter)
      return raise(id, to: priority)
    }
    if let older = current[key] { bar(older, .superseded) }
    waiters[waiter] = Waiter(flight: newFlight, owner: owner)
    flights[newFlight] = Flight(key: key, owner: owner, priority: priority, waiters: [waiter])
    current[key] = newFlight
    return [.start(newFlight)]
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

  private mutating func land(_ id: FlightID) -> [Action] {
    guard let flight = flights.removeValue(forKey: id) else { return [] }
    if current[flight.key] == id { current[flight.key] = nil }
    if flight.isCommitting {
      let others = committing[flight.key, default: []].filter { $0 != id }
      committing[flight.key] = others.isEmpty ? nil : others
    }
    for waiter in flight.waiters { waiters[waiter] = nil }
    return [.deliver(flight.waiters.sorted { $0.number < $1.number })]
  }

  private mutating func detach(_ key: Key) -> [Action] {
    if let id = current[key] { bar(id, .detached) }
    return committing[key].map { [.settle($0)] } ?? []
  }

  private mutating func close(_ owner: FlightOwner) -> [Action] {
    closedOwners.insert(owner)
    var closed: [WaiterID] = []
    var again: [WaiterID] = []
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
      actions += cancelIfDeserted(id)
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

  private mutating func cancelIfDeserted(_ id: FlightID) -> [Action] {
    guard let flight = flights[id], flight.waiters.isEmpty, !flight.isCommitting,
      flight.bar != .cancelled
    else { return [] }
    bar(id, .cancelled)
    return [.cancel(id)]
  }

  private mutating func raise(_ id: FlightID, to priority: UInt8) -> [Action] {
    guard let flight = flights[id], flight.priority < priority else { return [] }
    flights[id]?.priority = priority
    return [.escalate(id, priority: priority)]
  }
}
