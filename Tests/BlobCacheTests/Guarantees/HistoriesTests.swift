import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 8 as one statement: what tasks of several processes see of a key could have been seen of one that everybody
/// changes and reads at single moments. The long form: BLOBCACHE_HISTORIES=2000.
@Suite("8. Histories", .serialized)
struct HistoriesTests {
  private let directory = TemporaryDirectory()
  private static let histories =
    ProcessInfo.processInfo.environment["BLOBCACHE_HISTORIES"].flatMap(Int.init) ?? 24

  // MARK: The checker

  private typealias Operation = KeyHistory.Operation

  private func write(_ value: UInt64, _ began: UInt64, _ returned: UInt64?) -> Operation {
    Operation(kind: .write, value: value, began: began, returned: returned)
  }
  private func read(_ value: UInt64, _ began: UInt64, _ returned: UInt64?) -> Operation {
    Operation(kind: .read, value: value, began: began, returned: returned)
  }

  @Test func theCheckerAcceptsWhatIs() {
    let histories = [
      [],
      [read(0, 1, 2)],
      [write(1, 1, 2), read(1, 3, 4), write(0, 5, 6), read(0, 7, 8)],
      // Beside a write: before or after it.
      [write(1, 1, 9), read(0, 2, 3), read(1, 4, 5)],
      [write(1, 1, 9), read(1, 2, 3), read(1, 4, 5)],
      // Two writes beside each other, in either order, and a third one over both.
      [write(1, 1, 9), write(2, 1, 9), read(1, 10, 11)],
      [write(1, 1, 9), write(2, 1, 9), read(2, 10, 11), write(3, 12, 13), read(3, 14, 15)],
      [write(1, 1, 9), write(2, 1, 9), read(2, 3, 4), read(1, 5, 6), read(1, 10, 11)],
      // Never returned: happened late, early, or not.
      [write(1, 1, nil), read(0, 2, 3), read(1, 4, 5)],
      [write(1, 1, nil), read(0, 2, 3), read(0, 4, 5)],
      [write(1, 1, nil), write(2, 2, 3), read(2, 4, 5), read(1, 6, 7)],
      // At one moment: beside each other.
      [write(1, 1, 2), read(0, 2, 3)],
    ]
    for history in histories { #expect(KeyHistory(history).isLinearizable, "\(history)") }
  }

  @Test func theCheckerRejectsWhatIsNot() {
    let histories = [
      // Nothing, of what was stored; something, of what was removed; of nobody.
      [write(1, 1, 2), read(0, 3, 4)],
      [write(1, 1, 2), write(0, 3, 4), read(1, 5, 6)],
      [read(7, 1, 2)],
      // An old value; one that comes back; one from the future.
      [write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)],
      [write(1, 1, 2), write(2, 3, 9), read(2, 4, 5), read(1, 6, 7)],
      [read(1, 1, 2), write(1, 3, 4)],
      // New, then old, while the write is under way.
      [write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)],
      // Two writes beside each other, which two readers see in two orders.
      [write(1, 1, 9), write(2, 1, 9), read(1, 10, 11), read(2, 12, 13)],
      [
        write(1, 1, 9), write(2, 1, 9), read(1, 2, 3), read(2, 4, 5), read(1, 6, 7),
      ],
      // Never returned, seen and gone again.
      [write(1, 1, nil), read(1, 2, 3), read(0, 4, 5)],
      [write(1, 5, nil), read(1, 2, 3)],
    ]
    for history in histories { #expect(!KeyHistory(history).isLinearizable, "\(history)") }
  }

  /// Every order of few operations, tried one by one.
  private func isLinearizableByTrying(_ operations: [Operation], _ value: UInt64 = 0) -> Bool {
    if operations.allSatisfy({ $0.returned == nil }) { return true }
    for (index, operation) in operations.enumerated() {
      // It may come first when none of the others returned before it began.
      let others = operations[..<index] + operations[(index + 1)...]
      guard others.allSatisfy({ ($0.returned ?? .max) >= operation.began }) else { continue }
      guard operation.kind == .write || operation.value == value else { continue }
      if isLinearizableByTrying(Array(others), operation.value) { return true }
    }
    return false
  }

  @Test func theCheckerAgreesWithTryingEveryOrder() {
    var random = SeededGenerator(seed: 1)
    var linearizable = 0
    for _ in 0..<3000 {
      let operations = (0..<Int.random(in: 2...6, using: &random)).map { number in
        let began = UInt64.random(in: 1...12, using: &random)
        let end = began + UInt64.random(in: 0...6, using: &random)
        return Bool.random(using: &random)
          ? write(
            UInt64.random(in: 0...1, using: &random) * UInt64(number + 1), began,
            Int.random(in: 0..<6, using: &random) == 0 ? nil : end)
          : read(UInt64.random(in: 0...4, using: &random), began, end)
      }
      let expected = isLinearizableByTrying(operations)
      linearizable += expected ? 1 : 0
      #expect(KeyHistory(operations).isLinearizable == expected, "\(operations)")
    }
    #expect(linearizable > 200 && linearizable < 2800, "\(linearizable)")
  }

  // MARK: Histories

  /// The operations on one key of all processes; a removal of everything is a removal of each.
  private func operations(on key: Int, of records: [History.Record]) -> KeyHistory {
    KeyHistory(
      records.filter { $0.key == key || $0.kind == .clear }.map { record in
        Operation(
          kind: record.kind == .lookup ? .read : .write, value: record.value, began: record.began,
          returned: record.returned)
      })
  }

  struct Scene: Sendable, CustomTestStringConvertible {
    var processes: Int
    var memory: Bool
    var kills = false
    var testDescription: String {
      "\(processes) processes, memory \(memory ? "on" : "off")\(kills ? ", one is killed" : "")"
    }
  }

  @Test(arguments: [
    Scene(processes: 1, memory: true), Scene(processes: 1, memory: false),
    Scene(processes: 3, memory: true), Scene(processes: 3, memory: false),
    Scene(processes: 3, memory: true, kills: true),
    Scene(processes: 3, memory: false, kills: true),
  ])
  func whatIsSeenOfAKeyIsLinearizable(scene: Scene) async throws {
    let path = directory.path("cache")
    var configuration = BlobCache.Configuration()
    if !scene.memory { configuration.memory = .off }
    configuration.durability = .checkpointed(every: .milliseconds(40))
    let cache = try BlobCache(directory: path, configuration: configuration)
    var others: [SecondProcess] = []
    let options = scene.memory ? "every=40" : "every=40 memory=0"
    for _ in 1..<scene.processes { others.append(try await SecondProcess.over(path, options)) }
    let (tasks, count) = (3, 240)
    var seen = (operations: 0, values: Set<UInt64>())
    for round in 0..<max(Self.histories / 6, 1) {
      let keys = 2 + round % 3
      let seed = UInt64(round) &* 31 &+ UInt64(scene.processes)
      let clears = round % 2 == 1
      let files = (0..<scene.processes).map { directory.path("history-\(round)-\($0)") }
      let histories = try files.map { try History($0, count: count) }
      for (index, other) in others.enumerated() {
        try other.send(
          "history \(files[index + 1]) \(index + 1) \(count) \(tasks) \(keys) \(seed)\(clears ? " clears" : "")"
        )
      }
      async let own: Void = histories[0].record(
        on: cache, process: 0, tasks: tasks, keys: keys, seed: seed, clears: clears)
      if scene.kills {
        var random = SeededGenerator(seed: seed)
        // Any moment of the history will do, and is what is drawn.
        try await Task.sleep(for: .milliseconds(Int.random(in: 0...60, using: &random)))
        others[0].kill()
      }
      try await own
      for other in others.dropFirst(scene.kills ? 1 : 0) {
        #expect(try await other.nextLine() == "ok")
      }
      if scene.kills { others[0] = try await SecondProcess.over(path, options) }
      let records = histories.flatMap(\.records)
      // Where nobody was killed all of them have returned.
      let returned = records.count { $0.returned != nil }
      if !scene.kills { #expect(returned == count * scene.processes) }
      for key in 0..<keys {
        let history = operations(on: key, of: records)
        #expect(
          history.isLinearizable, "key \(key), round \(round), seed \(seed): \(history.operations)")
      }
      seen.operations += returned
      seen.values.formUnion(records.filter { $0.kind == .lookup }.map(\.value))
      for file in files { unlink(file) }
      // The next round begins with nothing.
      try await cache.removeAll()
    }
    print("histories: \(scene.testDescription): \(seen.operations) operations")
    #expect(seen.values.count > 20)
    if scene.memory { #expect(cache.statistics.memoryHits > 0) }
    for other in others { try await other.end() }
    try await cache.close()
  }
}
