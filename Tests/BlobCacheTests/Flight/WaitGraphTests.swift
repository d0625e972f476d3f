import Testing

@testable import BlobCache

@Suite(.timeLimit(.minutes(5))) struct WaitGraphTests {
  // MARK: - The graph

  @Test func aFlightCannotWaitForItself() {
    let graph = Graph()
    #expect(!graph.add(f(1), waitsFor: f(1)))
    #expect(graph.isEmpty)
  }

  @Test func noRingOfAnyLengthCloses() {
    for length: UInt64 in 2...40 {
      let graph = Graph()
      for number in 1..<length { #expect(graph.add(f(number), waitsFor: f(number + 1))) }
      #expect(!graph.add(f(length), waitsFor: f(1)))
      #expect(graph.add(f(1), waitsFor: f(length)), "a shortcut is no ring")
    }
  }

  @Test func aDiamondIsNoRing() {
    let graph = Graph()
    #expect(graph.add(f(1), waitsFor: f(2)))
    #expect(graph.add(f(1), waitsFor: f(3)))
    #expect(graph.add(f(2), waitsFor: f(4)))
    #expect(graph.add(f(3), waitsFor: f(4)))
    #expect(!graph.add(f(4), waitsFor: f(1)))
  }

  @Test func edgesAreCountedAndForgotten() {
    let graph = Graph()
    #expect(graph.add(f(1), waitsFor: f(2)))
    #expect(graph.add(f(1), waitsFor: f(2)))
    graph.remove(f(1), waitsFor: f(2))
    #expect(!graph.add(f(2), waitsFor: f(1)), "one of the two still waits")
    graph.remove(f(1), waitsFor: f(2))
    #expect(graph.isEmpty)
    #expect(graph.add(f(2), waitsFor: f(1)))
    graph.remove(f(7), waitsFor: f(8))
  }

  // MARK: - Flights

  @Test func aLoaderThatAsksForItsOwnKeyIsToldSo() async throws {
    let table = FlightTable<Int>()
    await expectCycle {
      try await table.value(for: "a", reload: false, owner: owner) { _ in
        try await table.value(for: "a", reload: false, owner: owner) { _ in 1 }
      }
    }
    let after = try await table.value(for: "a", reload: false, owner: owner) { _ in 2 }
    #expect(after == 2, "the key is free")
    #expect(table.flightCount == 0 && table.waiterCount == 0)
  }

  @Test func aRingThroughALongChainIsToldToTheOneThatClosesIt() async throws {
    let table = FlightTable<Int>()
    @Sendable func ask(_ number: Int) async throws -> Int {
      try await table.value(for: "\(number % 50)", reload: false, owner: owner) { _ in
        do {
          return try await ask(number + 1) + 1
        } catch let error as BlobCache.Error where error.code == .cycle {
          return 0
        }
      }
    }
    #expect(try await ask(0) == 49, "only the last of fifty is refused")
    #expect(table.flightCount == 0)
  }

  @Test func twoThatAskForEachOtherAcrossTwoCaches() async throws {
    let (one, two) = (FlightTable<Int>(), FlightTable<Int>())
    let bothRun = Latch()
    let second = Task {
      try await two.value(for: "b", reload: false, owner: owner) { _ in
        try await bothRun.wait()
        await until { two.waiterCount == 2 }  // the loader of a waits for us now
        do {
          return try await one.value(for: "a", reload: false, owner: owner) { _ in -1 }
        } catch let error as BlobCache.Error where error.code == .cycle {
          return 7
        }
      }
    }
    await until { two.flightCount == 1 }
    let first = try await one.value(for: "a", reload: false, owner: owner) { _ in
      bothRun.open()
      return try await two.value(for: "b", reload: false, owner: owner) { _ in -1 } + 1
    }
    #expect(first == 8)
    #expect(try await second.value == 7)
  }

  @Test func childTasksOfALoaderCountAsIt() async throws {
    let table = FlightTable<Int>()
    let refused = Tally()
    _ = try await table.value(for: "a", reload: false, owner: owner) { _ in
      await withTaskGroup(of: Void.self) { group in
        for _ in 0..<8 {
          group.addTask {
            do {
              _ = try await table.value(for: "a", reload: false, owner: owner) { _ in 1 }
            } catch let error as BlobCache.Error where error.code == .cycle {
              refused.add()
            } catch {}
          }
        }
      }
      return 1
    }
    #expect(refused.value == 8)
  }

  @Test func manyMayWaitForOneWithoutARing() async throws {
    let table = FlightTable<Int>()
    let door = Latch()
    let tasks = (0..<20).map { number in
      Task {
        try await table.value(for: "\(number)", reload: false, owner: owner) { _ in
          try await table.value(for: "shared", reload: false, owner: owner) { _ in
            try await door.wait()
            return 3
          }
        }
      }
    }
    await until { table.waiterCount == 40 }
    #expect(table.joins == 19)
    door.open()
    for task in tasks { #expect(try await task.value == 3) }
  }

  @Test func aWaiterThatLeftNoLongerClosesARing() async throws {
    let table = FlightTable<Int>()
    let door = Latch()
    // The loader of a waits for b in a child task, gives up, and then b may wait for a.
    let b = Task {
      try await table.value(for: "b", reload: false, owner: owner) { _ in
        try await door.wait()
        return try await table.value(for: "a", reload: false, owner: owner) { _ in -1 }
      }
    }
    await until { table.flightCount == 1 }
    let a = Task {
      try await table.value(for: "a", reload: false, owner: owner) { _ in
        let child = Task {
          try await table.value(for: "b", reload: false, owner: owner) { _ in -1 }
        }
        await until { table.waiterCount == 3 }
        child.cancel()
        _ = await child.result
        door.open()
        await until { table.waiterCount == 3 }  // b's loader joined us
        return 5
      }
    }
    #expect(try await a.value == 5)
    #expect(try await b.value == 5)
  }

  private func expectCycle(_ body: () async throws -> Int) async {
    do {
      let value = try await body()
      Issue.record("no error but \(value)")
    } catch let error as BlobCache.Error {
      #expect(error.code == .cycle)
    } catch {
      Issue.record("\(error)")
    }
  }

  private func f(_ number: UInt64) -> FlightID { FlightID(number: number) }
}

/// The graph as an object, since `#expect` cannot call what mutates a value.
private final class Graph {
  private var graph = WaitGraph()
  var isEmpty: Bool { graph.isEmpty }
  func add(_ waiting: FlightID, waitsFor target: FlightID) -> Bool {
    graph.add(waiting, waitsFor: target)
  }
  func remove(_ waiting: FlightID, waitsFor target: FlightID) {
    graph.remove(waiting, waitsFor: target)
  }
}

private let owner = FlightOwner(number: 1)
