import Testing

@testable import BlobCache

/// One rule of the machine a test: refreshes, failures, time limits, waiters, permits.
@Suite struct FlightRulesTests {
  typealias Machine = FlightMachine<Int>

  // MARK: Refreshes

  @Test func aRefreshIsOneAndNeedsNoWaiters() {
    let machine = Driver()
    #expect(machine.handle(refresh(1, flight: 1)) == [.start(f(1))])
    #expect(machine.handle(refresh(1, flight: 2)) == [], "one is in the air")
    #expect(machine.handle(ask(1, waiter: 1, flight: 3)) == [], "who must wait joins it")
    #expect(machine.handle(.leave(w(1))) == [.answerCancelled(w(1))], "and does not end it")
    #expect(machine.handle(.commit(f(1))) == [.store(after: [])])
    #expect(machine.handle(.land(f(1))) == [.deliver([])])
    #expect(machine.isEmpty)
  }

  @Test func aRefreshKeepsAFlightWhoseWaitersLeave() {
    let machine = Driver()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    #expect(machine.handle(refresh(1, flight: 2)) == [])
    #expect(machine.handle(.leave(w(1))) == [.answerCancelled(w(1))])
    #expect(machine.handle(.commit(f(1))) == [.store(after: [])])
  }

  @Test func aRemovalOrAReloadEndsARefreshThatNobodyWaitsFor() {
    let machine = Driver()
    _ = machine.handle(refresh(1, flight: 1))
    #expect(machine.handle(.detach(1)) == [.cancel(f(1))])
    _ = machine.handle(refresh(1, flight: 2))
    #expect(
      machine.handle(ask(1, waiter: 1, flight: 3, reload: true)) == [.start(f(3)), .cancel(f(2))])
    _ = machine.handle(refresh(2, flight: 4))
    _ = machine.handle(ask(2, waiter: 2, flight: 9))
    #expect(machine.handle(.detach(2)) == [])
    #expect(machine.handle(.leave(w(2))) == [.answerCancelled(w(2)), .cancel(f(4))])
  }

  @Test func closingEndsRefreshes() {
    let machine = Driver()
    _ = machine.handle(refresh(1, flight: 1))
    #expect(machine.handle(.close(FlightOwner(number: 1))) == [.cancel(f(1))])
    #expect(machine.handle(refresh(1, flight: 2)) == [])
  }

  // MARK: Failures

  @Test func aNegativeLifetimeAnswersWithoutALoad() {
    let machine = Driver()
    fail(machine, flight: 1, at: 0)
    #expect(
      machine.handle(ask(1, waiter: 2, flight: 2, negative: 1_000, now: 999))
        == [.answerRecentlyFailed(w(2))])
    #expect(
      machine.handle(ask(1, waiter: 3, flight: 3, now: 999)) == [.start(f(3))], "asked for none")
    #expect(
      machine.handle(ask(1, waiter: 4, flight: 4, negative: 1_000, now: 999)) == [],
      "joins what is in the air")
    #expect(machine.handle(.land(f(3))) == [.deliver([w(3), w(4)])])
    #expect(
      machine.handle(ask(1, waiter: 5, flight: 5, negative: 1_000, now: 999)) == [.start(f(5))],
      "a success ended it")
  }

  @Test(arguments: 0..<4) func whatEndsANegativeLifetime(how: Int) {
    let machine = Driver()
    fail(machine, flight: 1, at: 0)
    switch how {
    case 0: _ = machine.handle(.forget(1))
    case 1: _ = machine.handle(.detach(1))
    case 2:
      _ = machine.handle(ask(1, waiter: 8, flight: 8, reload: true, negative: 1_000, now: 1))
      _ = machine.handle(.leave(w(8)))
    default: break
    }
    let actions = machine.handle(ask(1, waiter: 9, flight: 9, negative: 1_000, now: 1))
    #expect(actions == (how < 3 ? [.start(f(9))] : [.answerRecentlyFailed(w(9))]))
  }

  @Test func aFailureBacksOffThoseWhoHaveSomethingElse() {
    let machine = Driver()
    fail(machine, flight: 1, at: 0)
    #expect(
      machine.handle(ask(1, waiter: 2, flight: 2, holdsStale: true, now: 999))
        == [.answerBackingOff(w(2))])
    #expect(machine.handle(refresh(1, flight: 3, now: 999)) == [])
    #expect(machine.handle(refresh(1, flight: 4, now: 1_000)) == [.start(f(4))])
  }

  @Test(arguments: [FlightBar.superseded, .detached, .cancelled])
  func whatWasBarredIsNoFailureOfTheKey(bar: FlightBar) {
    let machine = Driver()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    switch bar {
    case .superseded: _ = machine.handle(ask(1, waiter: 2, flight: 2, reload: true))
    case .detached: _ = machine.handle(.detach(1))
    default: _ = machine.handle(.leave(w(1)))
    }
    _ = machine.handle(.land(f(1), .failed(Down(), now: 0, chance: 0)))
    #expect(machine.failureCount == 0)
  }

  // MARK: Time limits

  @Test func aTimeLimitFreesTheKey() {
    let machine = Driver()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(ask(1, waiter: 2, flight: 1))
    #expect(machine.handle(timeOut(1)) == [.cancel(f(1)), .answerTimedOut([w(1), w(2)])])
    #expect(machine.handle(timeOut(1)) == [], "once")
    #expect(machine.mustEnd(f(1)))
    #expect(machine.handle(ask(1, waiter: 3, flight: 3)) == [.start(f(3))])
    #expect(machine.handle(.commit(f(1))) == [.withhold(.timedOut)], "what it brings is dropped")
    #expect(machine.handle(.land(f(1))) == [.deliver([])])
    #expect(machine.failureCount == 1, "its late success ends no failure")
    #expect(machine.current[1] == f(3))
  }

  @Test func aCommitIsNotTimedOut() {
    let machine = Driver()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(.commit(f(1)))
    #expect(machine.handle(timeOut(1)) == [])
    #expect(machine.handle(.land(f(1))) == [.deliver([w(1)])])
    #expect(machine.handle(timeOut(1)) == [])
  }

  @Test func aSupersededFlightTimesOutForItsOwn() {
    let machine = Driver()
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(ask(1, waiter: 2, flight: 2, reload: true))
    #expect(machine.handle(timeOut(1)) == [.cancel(f(1)), .answerTimedOut([w(1)])])
    #expect(machine.current[1] == f(2))
    #expect(machine.failureCount == 0, "it is not the key's any more")
  }

  // MARK: Waiters

  @Test func theCapRefusesAndFreesAsWaitersLeave() {
    let machine = Driver()
    _ = machine.handle(ask(1, waiter: 1, flight: 1, maximum: 2))
    _ = machine.handle(ask(1, waiter: 2, flight: 1, maximum: 2))
    #expect(machine.handle(ask(1, waiter: 3, flight: 3, maximum: 2)) == [.answerCrowded(w(3))])
    #expect(machine.waiterCount == 2)
    _ = machine.handle(.leave(w(1)))
    #expect(machine.handle(ask(1, waiter: 4, flight: 4, maximum: 2)) == [])
    #expect(
      machine.handle(ask(1, waiter: 5, flight: 5, reload: true, maximum: 2)) == [.start(f(5))],
      "a reload waits for its own")
  }

  // MARK: Permits

  @Test func loadsStandInALine() {
    let machine = Driver(maximumLoads: 1)
    for number in 1...3 as ClosedRange<UInt64> {
      _ = machine.handle(ask(Int(number), waiter: number, flight: number))
    }
    #expect(machine.handle(.board(f(1))) == [.admit([f(1)])])
    #expect(machine.handle(.board(f(2))) == [])
    #expect(machine.handle(.board(f(3))) == [])
    #expect(
      machine.handle(.leave(w(2))) == [.answerCancelled(w(2)), .cancel(f(2)), .turnAway(f(2))])
    #expect(machine.handle(.land(f(1))) == [.deliver([w(1)]), .admit([f(3)])])
    #expect(machine.handle(.board(f(2))) == [.turnAway(f(2))])
  }

  @Test func aTimeLimitGivesThePermitBack() {
    let machine = Driver(maximumLoads: 1)
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(ask(2, waiter: 2, flight: 2))
    _ = machine.handle(.board(f(1)))
    _ = machine.handle(.board(f(2)))
    #expect(
      machine.handle(timeOut(1)) == [.cancel(f(1)), .answerTimedOut([w(1)]), .admit([f(2)])])
    // What the hung loader does later holds nothing.
    #expect(machine.handle(.lend(f(1))) == [])
    #expect(machine.handle(.regain(f(1))) == [.admit([f(1)])])
    #expect(machine.handle(.land(f(1))) == [.deliver([])])
  }

  @Test func aCancelledLoaderIsNotMadeToWaitForItsPermit() {
    let machine = Driver(maximumLoads: 1)
    _ = machine.handle(ask(1, waiter: 1, flight: 1))
    _ = machine.handle(ask(2, waiter: 2, flight: 2))
    _ = machine.handle(.board(f(1)))
    _ = machine.handle(.board(f(2)))
    #expect(machine.handle(.lend(f(1))) == [.admit([f(2)])])
    _ = machine.handle(.leave(w(1)))
    #expect(machine.handle(.regain(f(1))) == [.admit([f(1)])])
    // One that stands in the line already is let go.
    _ = machine.handle(ask(3, waiter: 3, flight: 3))
    _ = machine.handle(.board(f(3)))
    #expect(machine.handle(.lend(f(2))) == [.admit([f(3)])])
    #expect(machine.handle(.regain(f(2))) == [])
    #expect(
      machine.handle(.leave(w(2))) == [.answerCancelled(w(2)), .cancel(f(2)), .turnAway(f(2))])
  }

  // MARK: Helpers

  private struct Down: Error {}

  private func f(_ number: UInt64) -> FlightID { FlightID(number: number) }
  private func w(_ number: UInt64) -> WaiterID { WaiterID(number: number) }

  private func ask(
    _ key: Int, waiter: UInt64, flight: UInt64, reload: Bool = false, negative: Int64 = 0,
    holdsStale: Bool = false, maximum: Int? = nil, now: Int64 = 0
  ) -> Machine.Event {
    .ask(
      key, waiter: w(waiter), owner: FlightOwner(number: 1), priority: 21, reload: reload,
      flight: f(flight),
      terms: FlightTerms(
        now: now, negativeLifetime: negative, holdsStale: holdsStale, maximumWaiters: maximum))
  }

  private func refresh(_ key: Int, flight: UInt64, now: Int64 = 0) -> Machine.Event {
    .refresh(
      key, owner: FlightOwner(number: 1), priority: 21, flight: f(flight), now: now)
  }

  private func timeOut(_ flight: UInt64) -> Machine.Event {
    .timeOut(f(flight), .failed(Down(), now: 0, chance: 0))
  }

  private func fail(_ machine: Driver, flight: UInt64, at now: Int64) {
    _ = machine.handle(ask(1, waiter: flight, flight: flight, now: now))
    _ = machine.handle(.land(f(flight), .failed(Down(), now: now, chance: 0)))
  }

  /// The machine as an object, since `#expect` cannot call what mutates a value.
  private final class Driver {
    private var machine: Machine
    init(maximumLoads: Int? = nil) { machine = Machine(maximumLoads: maximumLoads) }

    var current: [Int: FlightID] { machine.current }
    var waiterCount: Int { machine.waiterCount }
    var failureCount: Int { machine.failures.count }
    var isEmpty: Bool { machine.flights.isEmpty && machine.current.isEmpty }
    func mustEnd(_ id: FlightID) -> Bool { machine.mustEnd(id) }
    func handle(_ event: Machine.Event) -> [Machine.Action] { machine.handle(event) }
  }
}
