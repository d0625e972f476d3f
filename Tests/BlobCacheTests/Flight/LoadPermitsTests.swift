import Testing

@testable import BlobCache

@Suite struct LoadPermitsTests {
  private func f(_ number: UInt64) -> FlightID { FlightID(number: number) }

  @Test func withoutALimitNobodyWaits() {
    var permits = LoadPermits()
    for number in 0..<100 as Range<UInt64> {
      let boards = permits.board(f(number))
      #expect(boards)
    }
    #expect(permits.holders.isEmpty && permits.lineCount == 0)
  }

  @Test func firstComeFirstServed() {
    var permits = LoadPermits(maximum: 2)
    let boards = (1...5).map { permits.board(f($0)) }
    #expect(boards == [true, true, false, false, false])
    let left = permits.leaveLine(f(4))
    #expect(left)
    let first = permits.end(f(1))
    #expect(first == [f(3)])
    let second = permits.end(f(3))
    #expect(second == [f(5)])
    let last = [permits.end(f(2)), permits.end(f(5))]
    #expect(last == [[], []])
    #expect(permits.holders.isEmpty && permits.lineCount == 0)
  }

  @Test func whoWaitsLendsAndReturnsBeforeTheLine() {
    var permits = LoadPermits(maximum: 1)
    let boards = (1...3).map { permits.board(f($0)) }
    #expect(boards == [true, false, false])
    let lent = permits.lend(f(1))
    #expect(lent == [f(2)])
    let regained = permits.regain(f(1))
    #expect(!regained)
    let next = permits.end(f(2))
    #expect(next == [f(1)], "before 3")
    #expect(permits.holders == [f(1)])
  }

  @Test func severalTasksOfALoader() {
    var permits = LoadPermits(maximum: 1)
    _ = permits.board(f(1))
    _ = permits.board(f(2))
    let first = permits.lend(f(1))
    #expect(first == [f(2)])
    let second = permits.lend(f(1))
    #expect(second == [])
    let one = permits.regain(f(1))
    #expect(one, "goes on without one, since another of its tasks waits")
    #expect(permits.holders == [f(2)])
    let two = permits.regain(f(1))
    #expect(!two)
    // One of its tasks begins to wait anew while another stands in the line.
    _ = permits.lend(f(1))
    let admitted = permits.end(f(2))
    #expect(admitted == [f(1)])
    #expect(permits.holders.isEmpty, "who waits holds none")
    let three = permits.regain(f(1))
    #expect(three)
    #expect(permits.holders == [f(1)])
  }

  /// Loaders that fetch one another's keys in chains, more of them than permits: all come to an end.
  @Test(arguments: 1...4) func chainsComeToTheirEnd(maximum: Int) {
    var permits = LoadPermits(maximum: maximum)
    // Flight n waits for flight n + 1, in chains of ten.
    var running: Set<FlightID> = []
    var waiting: [FlightID: FlightID] = [:]
    var begun: Set<FlightID> = []
    var ended: Set<FlightID> = []
    func isLast(_ flight: FlightID) -> Bool { flight.number % 10 == 9 }
    func board(_ flight: FlightID) {
      if permits.board(flight) { running.insert(flight) }
    }
    for chain in 0..<20 as Range<UInt64> { board(f(chain * 10)) }
    while let flight = running.min(by: { $0.number < $1.number }) {
      #expect(permits.holders.count <= maximum)
      running.remove(flight)
      if !isLast(flight), begun.insert(flight).inserted {
        let inner = f(flight.number + 1)
        waiting[inner] = flight
        running.formUnion(permits.lend(flight))
        board(inner)
      } else {
        ended.insert(flight)
        running.formUnion(permits.end(flight))
        if let outer = waiting[flight], permits.regain(outer) { running.insert(outer) }
      }
    }
    #expect(ended.count == 200)
    #expect(permits.holders.isEmpty && permits.lineCount == 0)
  }

  /// Random orders, and after each the invariants that the head of `LoadPermits.swift` numbers.
  @Test(arguments: 1...4) func everyOrderKeepsTheInvariants(maximum: Int) {
    var permits = LoadPermits(maximum: maximum)
    var random = SystemRandomNumberGenerator()
    var number: UInt64 = 0
    /// Those that are known, with how many others their loaders wait for.
    var waits: [FlightID: Int] = [:]
    var inLine: Set<FlightID> = []
    for _ in 0..<20_000 {
      let some = waits.keys.randomElement(using: &random)
      switch (Int.random(in: 0..<6, using: &random), some) {
      case (0, _), (_, nil):
        number += 1
        waits[f(number)] = 0
        if !permits.board(f(number)) { inLine.insert(f(number)) }
      case (1, let flight?) where !inLine.contains(flight):
        inLine.subtract(permits.lend(flight))
        waits[flight, default: 0] += 1
      case (2, let flight?) where waits[flight] ?? 0 > 0:
        if !permits.regain(flight) { inLine.insert(flight) }
        waits[flight, default: 0] -= 1
      case (3, let flight?):
        inLine.subtract(permits.end(flight))
        inLine.remove(flight)
        waits[flight] = nil
      case (4, let flight?):
        let left = permits.leaveLine(flight)
        #expect(left == inLine.contains(flight))
        if inLine.remove(flight) != nil {
          _ = permits.end(flight)
          waits[flight] = nil
        }
      default: break
      }
      #expect(permits.holders.count <= maximum)  // 2
      #expect(permits.lineCount == inLine.count)
      if !inLine.isEmpty { #expect(permits.holders.count == maximum) }  // 3
      #expect(permits.holders.allSatisfy { waits[$0] == 0 })  // 1
    }
    for flight in waits.keys { inLine.subtract(permits.end(flight)) }
    #expect(permits.holders.isEmpty && permits.lineCount == 0)
  }
}
