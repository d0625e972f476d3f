import Testing

@testable import BlobCache

/// The lock and the effects around the state machine, with numbers in place of blobs.
@Suite(.timeLimit(.minutes(5))) struct FlightTableTests {
  let table = FlightTable<Int>()

  @Test func oneValueForAll() async throws {
    let door = Latch()
    let runs = Tally()
    let tasks = (0..<100).map { _ in
      Task {
        try await table.value(for: "k", reload: false, owner: me) { _ in
          try await door.wait()
          return runs.add()
        }
      }
    }
    await until { table.waiterCount == 100 }
    door.open()
    for task in tasks { #expect(try await task.value == 1) }
    #expect(runs.value == 1)
    #expect(table.joins == 99)
    #expect(table.flightCount == 0)
  }

  @Test func aThrowBeforeTheFirstAwaitFreesTheKey() async throws {
    for _ in 0..<100 {
      await #expect(throws: Trouble(number: 1)) {
        try await table.value(for: "k", reload: false, owner: me) { _ in throw Trouble(number: 1) }
      }
    }
    #expect(try await table.value(for: "k", reload: false, owner: me) { _ in 4 } == 4)
  }

  @Test func theLastOneOutCancelsTheLoaderAndTheKeyIsFreeAtOnce() async throws {
    let door = Latch()
    let (began, wasCancelled) = (Latch(), Tally())
    let first = Task {
      try await table.value(for: "k", reload: false, owner: me) { ticket in
        began.open()
        await door.waitStubbornly()
        if Task.isCancelled { wasCancelled.add() }
        #expect(await ticket.barFromStoring() == .cancelled)
        throw Trouble(number: 1)
      }
    }
    try await began.wait()
    first.cancel()
    await #expect(throws: CancellationError.self) { try await first.value }
    #expect(table.flightCount == 1, "the loader is still running")
    let second = try await table.value(for: "k", reload: false, owner: me) { _ in 2 }
    #expect(second == 2)
    door.open()
    await until { table.flightCount == 0 }
    #expect(wasCancelled.value == 1)
  }

  @Test func aTaskThatIsCancelledAlreadyStartsNothing() async throws {
    let task = Task {
      withUnsafeCurrentTask { unsafe $0?.cancel() }
      return try await table.value(for: "k", reload: false, owner: me) { _ in
        Issue.record("the loader ran")
        return 1
      }
    }
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(table.flightCount == 0)
  }

  @Test func theFlightIsJoinedUntilItsCommitIsDone() async throws {
    let (committing, door) = (Latch(), Latch())
    let first = Task {
      try await table.value(for: "k", reload: false, owner: me) { ticket in
        #expect(await ticket.barFromStoring() == nil)
        committing.open()
        try await door.wait()
        return 1
      }
    }
    try await committing.wait()
    let second = Task { try await table.value(for: "k", reload: false, owner: me) { _ in 2 } }
    await until { table.waiterCount == 2 }
    first.cancel()
    await #expect(throws: CancellationError.self) { try await first.value }
    second.cancel()
    await #expect(throws: CancellationError.self) { try await second.value }
    let third = Task { try await table.value(for: "k", reload: false, owner: me) { _ in 3 } }
    await until { table.waiterCount == 1 }
    door.open()
    #expect(try await third.value == 1)
  }

  @Test func aRemovalWaitsForTheCommitThatItFinds() async throws {
    let (committing, door, ended) = (Latch(), Latch(), Tally())
    let load = Task {
      try await table.value(for: "k", reload: false, owner: me) { ticket in
        #expect(await ticket.barFromStoring() == nil)
        committing.open()
        try await door.wait()
        ended.add()
        return 1
      }
    }
    try await committing.wait()
    let removal = Task {
      await table.detach("k")
      return ended.value
    }
    // Freed for others while the removal waits.
    await until { table.waiterCount == 1 }
    var other = -1
    while other == -1 {
      other = try await table.value(for: "other", reload: false, owner: me) { _ in 5 }
    }
    door.open()
    #expect(await removal.value == 1, "the commit ended before the removal went on")
    #expect(try await load.value == 1)
  }

  @Test func aReloadWaitsForTheCommitThatItCouldNotSupersede() async throws {
    let (committing, door) = (Latch(), Latch())
    let order = Tally()
    let first = Task {
      try await table.value(for: "k", reload: false, owner: me) { ticket in
        #expect(await ticket.barFromStoring() == nil)
        committing.open()
        try await door.wait()
        return order.add()
      }
    }
    try await committing.wait()
    let loaded = Latch()
    let second = Task {
      try await table.value(for: "k", reload: true, owner: me) { ticket in
        loaded.open()
        #expect(await ticket.barFromStoring() == nil)
        return order.add()
      }
    }
    try await loaded.wait()
    door.open()
    #expect(try await first.value == 1)
    #expect(try await second.value == 2)
  }

  @Test func detachAllNamesWhatIsAffected() async throws {
    let door = Latch()
    let tasks = ["a/1", "a/2", "b/1"].map { key in
      Task {
        try await table.value(for: BlobCache.Key(key), reload: false, owner: me) { ticket in
          try await door.wait()
          return await ticket.barFromStoring() == .detached ? 1 : 0
        }
      }
    }
    await until { door.waiterCount == 3 }
    await table.detachAll { $0.string?.hasPrefix("a/") == true }
    door.open()
    var results: [Int] = []
    for task in tasks { results.append(try await task.value) }
    #expect(results == [1, 1, 0])
  }

  @Test func closingAnInstance() async throws {
    let other = FlightOwner(number: 2)
    let runs = Tally()
    let (firstRuns, stubborn) = (Latch(), Latch())
    let mine = Task {
      try await table.value(for: "k", reload: false, owner: me) { _ in
        firstRuns.open()
        await stubborn.waitStubbornly()
        runs.add()
        throw CancellationError()
      }
    }
    try await firstRuns.wait()
    let theirs = Task { try await table.value(for: "k", reload: false, owner: other) { _ in 9 } }
    await until { table.waiterCount == 2 }
    await table.cancelAll(owner: me)
    #expect(table.flightCount > 0, "closing waited for no loader")
    #expect(try await theirs.value == 9, "the other instance asked again, with its own loader")
    await #expect {
      try await mine.value
    } throws: {
      ($0 as? BlobCache.Error)?.code == .closed
    }
    stubborn.open()
    await until { table.flightCount == 0 }
    await #expect {
      try await table.value(for: "new", reload: false, owner: me) { _ in 1 }
    } throws: {
      ($0 as? BlobCache.Error)?.code == .closed
    }
  }

  @Test func aLoaderMayCloseItsOwnInstance() async throws {
    let task = Task {
      try await table.value(for: "k", reload: false, owner: me) { _ in
        await table.cancelAll(owner: me)
        return 1
      }
    }
    await #expect(throws: BlobCache.Error.self) { try await task.value }
    await until { table.flightCount == 0 }
  }

  @Test func theLoadersTaskInheritsTaskLocalsAndIsNobodysChild() async throws {
    let value = try await Locals.$name.withValue("first") {
      try await table.value(for: "k", reload: false, owner: me) { _ in
        Locals.name == "first" && WaitGraph.currentFlight != nil ? 1 : 0
      }
    }
    #expect(value == 1)
  }

  @Test func aJoinerOfHigherPriorityRaisesTheLoader() async throws {
    let (began, raised) = (Latch(), Latch())
    let low = Task(priority: .background) {
      try await table.value(for: "k", reload: false, owner: me) { _ in
        try await withTaskPriorityEscalationHandler {
          began.open()
          try await raised.wait()
          return Int(Task.currentPriority.rawValue)
        } onPriorityEscalated: { _, _ in
          raised.open()
        }
      }
    }
    await until { table.flightCount == 1 }
    let high = Task(priority: .high) {
      try await began.wait()
      return try await table.value(for: "k", reload: false, owner: me) { _ in -1 }
    }
    #expect(try await high.value >= Int(TaskPriority.high.rawValue))
    _ = try await low.value
  }

  /// Cancels at random moments while loaders throw, return, commit and are removed: everybody is
  /// answered once (a CheckedContinuation that is lost or resumed twice ends the process).
  @Test(arguments: 0..<8 as Range<UInt64>)
  func stormOfCancellations(seed: UInt64) async throws {
    let answers = Tally()
    let total = 1_000
    await withTaskGroup(of: Void.self) { group in
      for number in 0..<total {
        let dice = (UInt64(number) &+ seed &* 7919) &* 0x9E37_79B9_7F4A_7C15 >> 32
        group.addTask {
          let task = Task {
            try await table.value(
              for: BlobCache.Key("\(dice % 7)"), reload: dice % 11 == 0, owner: me
            ) { ticket in
              if dice % 5 == 0 { throw Trouble(number: 1) }
              for _ in 0..<dice % 13 { await Task.yield() }
              if dice % 3 == 0 { try Task.checkCancellation() }
              return await ticket.barFromStoring() == nil ? 1 : 0
            }
          }
          for _ in 0..<dice % 17 { await Task.yield() }
          if dice % 2 == 0 { task.cancel() }
          if dice % 19 == 0 { await table.detach(BlobCache.Key("\(dice % 7)")) }
          _ = await task.result
          answers.add()
        }
      }
    }
    #expect(answers.value == total)
    await until { table.flightCount == 0 }
    #expect(table.waiterCount == 0)
  }
}

private let me = FlightOwner(number: 1)

private enum Locals {
  @TaskLocal static var name = "none"
}

private struct Trouble: Error, Equatable { let number: Int }
