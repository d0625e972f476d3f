import Testing

@testable import BlobCache

/// Random orders of events, and after each the invariants that the head of `FlightMachine.swift`
/// numbers.
@Suite struct FlightMachineTests {
  typealias Machine = FlightMachine<Int>

  @Test(arguments: 0..<24 as Range<UInt64>)
  func everyOrderOfEventsKeepsTheInvariants(seed: UInt64) throws {
    var world = World(seed: seed)
    for _ in 0..<1_000 {
      world.step()
      world.check()
    }
    world.drain()
    world.check()
    #expect(world.machine.flights.isEmpty)
    #expect(world.machine.current.isEmpty)
    #expect(world.machine.waiterCount == 0)
    #expect(world.unanswered.isEmpty, "everybody is answered")
  }

  @Test func theSecondCallerJoinsAndBothAreServedByOneLanding() {
    let machine = Driver<Int>()
    #expect(machine.handle(ask(1, waiter: 1, flight: 1)) == [.start(f(1))])
    #expect(machine.handle(ask(1, waiter: 2, flight: 2)) == [])
    #expect(machine.handle(.commit(f(1))) == [.store(after: [])])
    #expect(served(machine.handle(.land(f(1)))) == [w(1), w(2)])
    #expect(machine.handle(ask(1, waiter: 3, flight: 3)) == [.start(f(3))])
  }

  @Test func oneLeavesAndTheLastOneCancels() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(ask(1, waiter: 2, flight: 2))
    #expect(machine.handle(.leave(w(1))) == [.answerCancelled(w(1))])
    #expect(machine.handle(.leave(w(2))) == [.answerCancelled(w(2)), .cancel(f(1))])
    #expect(machine.handle(ask(1, waiter: 3, flight: 3)) == [.start(f(3))], "the key is free")
    #expect(machine.handle(.commit(f(1))) == [.withhold(.cancelled)])
    #expect(served(machine.handle(.land(f(1)))) == [])
    #expect(machine.current[1] == f(3), "the old landing does not touch the new flight")
  }

  @Test func aCommitOutlivesItsLastWaiter() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(.commit(f(1)))
    #expect(machine.handle(.leave(w(1))) == [.answerCancelled(w(1))])
    #expect(machine.handle(ask(1, waiter: 2, flight: 2)) == [], "joins what is being stored")
    #expect(served(machine.handle(.land(f(1)))) == [w(2)])
  }

  @Test func aReloadSupersedes() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    #expect(machine.handle(ask(1, waiter: 2, flight: 2, reload: true)) == [.start(f(2))])
    #expect(machine.handle(ask(1, waiter: 3, flight: 3)) == [], "joins the reload")
    #expect(machine.handle(.commit(f(1))) == [.withhold(.superseded)])
    #expect(served(machine.handle(.land(f(1)))) == [w(1)])
    #expect(machine.handle(.commit(f(2))) == [.store(after: [])])
    #expect(served(machine.handle(.land(f(2)))) == [w(2), w(3)])
  }

  @Test func aReloadStoresAfterTheCommitThatItCouldNotSupersede() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(.commit(f(1)))
    _ = machine.handle(ask(1, waiter: 2, flight: 2, reload: true))
    #expect(machine.handle(.commit(f(2))) == [.store(after: [f(1)])])
    #expect(machine.handle(.detach(1)) == [.settle([f(1), f(2)])])
  }

  @Test func aRemovalDetaches() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    #expect(machine.handle(.detach(1)) == [])
    #expect(machine.handle(.detach(2)) == [])
    #expect(machine.handle(ask(1, waiter: 2, flight: 2)) == [.start(f(2))])
    #expect(machine.handle(.commit(f(1))) == [.withhold(.detached)])
    #expect(served(machine.handle(.land(f(1)))) == [w(1)])
  }

  @Test func onlyAHigherPriorityEscalates() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1, priority: 9))
    #expect(machine.handle(ask(1, waiter: 2, flight: 2, priority: 9)) == [])
    #expect(
      machine.handle(ask(1, waiter: 3, flight: 3, priority: 25)) == [.escalate(f(1), priority: 25)])
    #expect(machine.handle(.escalate(w(1), priority: 17)) == [])
    #expect(machine.handle(.escalate(w(1), priority: 33)) == [.escalate(f(1), priority: 33)])
    #expect(machine.handle(.escalate(w(99), priority: 33)) == [])
  }

  @Test func closingEndsWhatTheInstanceBegan() {
    let machine = Driver<Int>()
    _ = machine.handle(ask(1, waiter: 1, flight: 1, owner: 1))
    _ = machine.handle(ask(1, waiter: 2, flight: 9, owner: 2))
    _ = machine.handle(ask(2, waiter: 3, flight: 2, owner: 2))
    _ = machine.handle(ask(2, waiter: 4, flight: 9, owner: 1))
    let actions = machine.handle(.close(FlightOwner(number: 1)))
    #expect(actions.contains(.cancel(f(1))))
    #expect(!actions.contains(.cancel(f(2))), "started by another instance, which still waits")
    #expect(actions.contains(.askAgain([w(2)])))
    #expect(
      actions.contains(.answerClosed([w(1), w(4)]))
        || actions.contains(.answerClosed([w(4), w(1)])))
    #expect(machine.handle(ask(3, waiter: 5, flight: 3, owner: 1)) == [.answerClosed([w(5)])])
  }

  // MARK: - Helpers

  private func f(_ number: UInt64) -> FlightID { FlightID(number: number) }
  private func w(_ number: UInt64) -> WaiterID { WaiterID(number: number) }

  private func ask(
    _ key: Int, waiter: UInt64, flight: UInt64, owner: UInt64 = 1, priority: UInt8 = 21,
    reload: Bool = false
  ) -> Machine.Event {
    .ask(
      key, waiter: w(waiter), owner: FlightOwner(number: owner), priority: priority, reload: reload,
      flight: f(flight))
  }

  private func served(_ actions: [Machine.Action]) -> Set<WaiterID>? {
    guard case .deliver(let waiters)? = actions.first, actions.count == 1 else { return nil }
    return Set(waiters)
  }
}

/// The machine as an object, since `#expect` cannot call what mutates a value.
private final class Driver<Key: Hashable & Sendable> {
  private var machine = FlightMachine<Key>()
  var current: [Key: FlightID] { machine.current }
  var flights: [FlightID: FlightMachine<Key>.Flight] { machine.flights }
  var waiterCount: Int { machine.waiterCount }

  func handle(_ event: FlightMachine<Key>.Event) -> [FlightMachine<Key>.Action] {
    machine.handle(event)
  }
  func joinable(_ key: Key, reload: Bool) -> FlightID? { machine.joinable(key, reload: reload) }
  func mustEnd(_ id: FlightID) -> Bool { machine.mustEnd(id) }
}

/// A machine, and beside it what an onlooker knows of it.
private struct World {
  let machine = Driver<Int>()
  var random: Seeded
  var number: UInt64 = 0
  /// Key and flight of everybody who waits, by what was asked and told.
  var unanswered: [WaiterID: FlightID] = [:]
  var flying: [FlightID: Int] = [:]
  var cancelled: Set<FlightID> = []
  var timedOut: Set<FlightID> = []
  var kept: Set<FlightID> = []
  var permitted: Set<FlightID> = []
  var barred: Set<FlightID> = []
  var owners: [WaiterID: FlightOwner] = [:]
  var closed: Set<FlightOwner> = []
  var priorities: [FlightID: UInt8] = [:]

  init(seed: UInt64) { random = Seeded(seed) }

  mutating func step() {
    switch Int.random(in: 0..<100, using: &random) {
    case 0..<34: ask()
    case 34..<40: refresh()
    case 40..<52: leave()
    case 52..<55: timeOut()
    case 55..<60: escalate()
    case 60..<73: commit()
    case 73..<90: land()
    case 90..<98: detach()
    case 98: if Int.random(in: 0..<4, using: &random) == 0 { close() }
    default: stray()
    }
  }

  mutating func drain() {
    while let flight = flying.keys.min(by: { $0.number < $1.number }) { land(flight) }
  }

  func check() {
    for (key, flight) in machine.current {  // 1, 3
      #expect(machine.flights[flight]?.key == key)
      #expect(machine.flights[flight]?.bar == nil)
    }
    var count = 0
    for (id, flight) in machine.flights {
      count += flight.waiters.count
      #expect(flying[id] == flight.key)
      if flight.waiters.isEmpty {  // 4
        #expect(
          flight.bar?.isFinal == true || flight.isCommitting
            || (flight.isKept && machine.current[flight.key] == id))
      }
      if flight.bar == .timedOut {  // 12
        #expect(flight.waiters.isEmpty)
        #expect(machine.current[flight.key] != id)
        #expect(machine.mustEnd(id))
      }
      #expect((flight.bar == .timedOut) == timedOut.contains(id))
      #expect(flight.isKept == kept.contains(id) || closed.contains(flight.owner))
      if flight.bar == .cancelled {  // 5
        #expect(flight.waiters.isEmpty)
        #expect(machine.current[flight.key] != id)
        #expect(machine.mustEnd(id))
      }
      #expect((flight.bar == .cancelled) == cancelled.contains(id))
      #expect(flight.isCommitting == permitted.contains(id))
      if flight.isCommitting { #expect(flight.bar == nil) }  // 6
      for waiter in flight.waiters { #expect(unanswered[waiter] == id) }  // 2
      #expect(flight.priority == priorities[id])  // 9
    }
    #expect(count == unanswered.count && count == machine.waiterCount)
    #expect(machine.flights.count == flying.count)
  }

  private mutating func ask() {
    number += 1
    let key = Int.random(in: 0..<4, using: &random)
    let waiter = WaiterID(number: number)
    let fresh = FlightID(number: number)
    let owner = FlightOwner(number: UInt64.random(in: 0..<6, using: &random))
    let reload = Int.random(in: 0..<6, using: &random) == 0
    let priority = UInt8.random(in: 1..<40, using: &random)
    let older = machine.current[key]
    let joined = machine.joinable(key, reload: reload)
    let actions = machine.handle(
      .ask(
        key, waiter: waiter, owner: owner, priority: priority, reload: reload, flight: fresh))
    if closed.contains(owner) {  // 10
      #expect(actions == [.answerClosed([waiter])])
      return
    }
    owners[waiter] = owner
    if let joined {
      #expect(!reload)
      #expect(!cancelled.contains(joined))
      unanswered[waiter] = joined
      let known = priorities[joined, default: 0]
      #expect(actions == (known < priority ? [.escalate(joined, priority: priority)] : []))
      priorities[joined] = max(known, priority)
    } else {
      #expect(actions.first == .start(fresh))
      absorb(Array(actions.dropFirst()), expecting: [])
      unanswered[waiter] = fresh
      flying[fresh] = key
      priorities[fresh] = priority
      if let older {  // 8
        #expect(reload)
        if !permitted.contains(older) { barred.insert(older) }
      }
    }
  }

  private mutating func refresh() {
    number += 1
    let key = Int.random(in: 0..<4, using: &random)
    let fresh = FlightID(number: number)
    let owner = FlightOwner(number: UInt64.random(in: 0..<6, using: &random))
    let older = machine.current[key]
    let actions = machine.handle(
      .refresh(key, owner: owner, priority: 5, flight: fresh, now: 0))
    if closed.contains(owner) {  // 10
      #expect(actions.isEmpty)
    } else if let older {
      #expect(actions.isEmpty)
      kept.insert(older)
    } else {
      #expect(actions == [.start(fresh)])
      flying[fresh] = key
      priorities[fresh] = 5
      kept.insert(fresh)
    }
  }

  private mutating func timeOut() {
    guard let flight = pick(flying.keys.map(\.number)).map(FlightID.init(number:)) else { return }
    let waiting = unanswered.filter { $0.value == flight }.keys.sorted { $0.number < $1.number }
    let actions = machine.handle(.timeOut(flight))
    if permitted.contains(flight) || cancelled.contains(flight) || timedOut.contains(flight) {
      #expect(actions.isEmpty)
      return
    }
    #expect(
      actions
        == (waiting.isEmpty ? [.cancel(flight)] : [.cancel(flight), .answerTimedOut(waiting)])
    )
    for waiter in waiting { unanswered[waiter] = nil }
    timedOut.insert(flight)
  }

  private mutating func leave() {
    guard let waiter = pick(unanswered.keys.map(\.number)).map(WaiterID.init(number:)) else {
      return
    }
    let flight = unanswered.removeValue(forKey: waiter)
    absorb(machine.handle(.leave(waiter)), expecting: [.answerCancelled(waiter)])
    if let flight, !unanswered.values.contains(flight), !permitted.contains(flight) {
      #expect(cancelled.contains(flight) != (kept.contains(flight) && !barred.contains(flight)))
    }
    #expect(machine.handle(.leave(waiter)).isEmpty, "answered once")
  }

  private mutating func escalate() {
    guard let waiter = pick(unanswered.keys.map(\.number)).map(WaiterID.init(number:)),
      let flight = unanswered[waiter]
    else { return }
    let priority = UInt8.random(in: 1..<60, using: &random)
    let known = priorities[flight, default: 0]
    let actions = machine.handle(.escalate(waiter, priority: priority))
    #expect(actions == (known < priority ? [.escalate(flight, priority: priority)] : []))
    priorities[flight] = max(known, priority)
  }

  private mutating func commit() {
    guard let flight = pick(flying.keys.map(\.number)).map(FlightID.init(number:)) else { return }
    let actions = machine.handle(.commit(flight))
    switch actions.first {
    case nil: #expect(permitted.contains(flight), "asked twice")
    case .store(let older):
      #expect(!barred.contains(flight) && !cancelled.contains(flight))
      #expect(!timedOut.contains(flight))
      let expected = permitted.filter { flying[$0] == flying[flight] && flying[$0] != nil }
      #expect(Set(older) == expected)  // 7
      permitted.insert(flight)
    case .withhold:
      #expect(
        barred.contains(flight) || cancelled.contains(flight) || timedOut.contains(flight))
    default: Issue.record("unexpected \(actions)")
    }
  }

  private mutating func land() {
    if let flight = pick(flying.keys.map(\.number)).map(FlightID.init(number:)) { land(flight) }
  }

  private mutating func land(_ flight: FlightID) {
    let waiting = unanswered.filter { $0.value == flight }.keys
    let actions = machine.handle(.land(flight))
    guard case .deliver(let served)? = actions.first, actions.count == 1 else {
      Issue.record("unexpected \(actions)")
      return
    }
    #expect(served == waiting.sorted { $0.number < $1.number })
    for waiter in served { unanswered[waiter] = nil }
    flying[flight] = nil
    permitted.remove(flight)
    cancelled.remove(flight)
    timedOut.remove(flight)
    kept.remove(flight)
    priorities[flight] = nil
    #expect(machine.handle(.land(flight)).isEmpty, "lands once")
    #expect(machine.handle(.commit(flight)).isEmpty)
  }

  private mutating func detach() {
    let key = Int.random(in: 0..<4, using: &random)
    let older = machine.current[key]
    var actions = machine.handle(.detach(key))
    if case .cancel? = actions.first { absorb([actions.removeFirst()], expecting: []) }
    let committing = permitted.filter { flying[$0] == key }
    if committing.isEmpty {
      #expect(actions.isEmpty)
    } else if case .settle(let flights)? = actions.first {
      #expect(Set(flights) == committing)  // 7
    } else {
      Issue.record("unexpected \(actions)")
    }
    #expect(machine.current[key] == nil)
    if let older, !permitted.contains(older) { barred.insert(older) }
  }

  private mutating func close() {
    let owner = FlightOwner(number: UInt64.random(in: 0..<3, using: &random))
    closed.insert(owner)
    absorb(machine.handle(.close(owner)), expecting: [])
    for waiter in unanswered.keys { #expect(owners[waiter] != owner) }
    for flight in machine.flights.values where flight.owner == owner {
      #expect(flight.bar?.isFinal == true || flight.isCommitting)
    }
  }

  /// Events of things that are gone or never were.
  private mutating func stray() {
    let id = number + 1_000_000
    #expect(machine.handle(.leave(WaiterID(number: id))).isEmpty)
    #expect(machine.handle(.land(FlightID(number: id))).isEmpty)
    #expect(machine.handle(.commit(FlightID(number: id))).isEmpty)
    #expect(machine.handle(.detach(99)).isEmpty)
  }

  private mutating func absorb(
    _ actions: [FlightMachine<Int>.Action], expecting: [FlightMachine<Int>.Action]
  ) {
    for action in expecting { #expect(actions.contains(action)) }
    for action in actions {
      switch action {
      case .cancel(let flight):
        #expect(!permitted.contains(flight))
        #expect(cancelled.insert(flight).inserted, "cancelled once")
      case .answerClosed(let waiters):
        for waiter in waiters {
          #expect(unanswered.removeValue(forKey: waiter) != nil)
          #expect(owners[waiter].map(closed.contains) == true)
        }
      case .askAgain(let waiters):
        for waiter in waiters {
          #expect(unanswered.removeValue(forKey: waiter) != nil)
          #expect(owners[waiter].map(closed.contains) == false)
        }
      case .answerCancelled: break
      default: Issue.record("unexpected \(action)")
      }
    }
  }

  private mutating func pick(_ numbers: [UInt64]) -> UInt64? {
    // Sorted, since the order of a dictionary differs from run to run.
    numbers.sorted().randomElement(using: &random)
  }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the same sequence for a seed, everywhere.
private struct Seeded: RandomNumberGenerator {
  private var state: UInt64
  init(_ seed: UInt64) { state = seed }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var z = state
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }
}
