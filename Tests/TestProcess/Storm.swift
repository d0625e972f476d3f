import BlobCache
import Foundation
import Synchronization

extension Commands {
  /// `storm LEDGER PROCESS SEED [evicts] [clears]`: everything that the library does, by some tasks at once, until the
  /// ledger says that it is over, or the process is killed. Each task checks what it finds.
  func storm(_ words: [String]) async throws -> String {
    let storm = Storm(
      cache: try opened(), ledger: try Ledger(word(words, 0)),
      process: try number(words, 1) { Int($0) }, evicts: words.contains("evicts"),
      clears: words.contains("clears"))
    let seed = try number(words, 2) { UInt64($0) }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<Ledger.tasks {
        group.addTask {
          for key in Ledger.keys(of: storm.process, task) {
            try storm.ledger.settle(key, in: storm.cache, evicts: storm.evicts)
          }
          var random = SeededGenerator(seed: seed &+ UInt64(task) &* 7919)
          while !storm.ledger.isOver && !Task.isCancelled {
            try await storm.step(task, &random)
          }
        }
      }
      do {
        try await group.waitForAll()
      } catch {
        group.cancelAll()
        throw error
      }
    }
    return "ok"
  }
}

/// One process of those that are killed and stopped beside each other.
private struct Storm: Sendable {
  let cache: BlobCache
  let ledger: Ledger
  let process: Int
  let evicts: Bool
  let clears: Bool

  private static let loads = 3

  func step(_ task: Int, _ random: inout SeededGenerator) async throws {
    let own = Ledger.keys(of: process, task).randomElement(using: &random) ?? 0
    switch Int.random(in: 0..<300, using: &random) {
    case 0..<110: try await store(own, &random)
    case 110..<135: try await remove(own)
    case 135..<190: try look(own)
    case 190..<250: try look(Int.random(in: 0..<Ledger.keys, using: &random))
    case 250..<262: try await renew(own)
    case 262..<270: try await pin(own, Bool.random(using: &random))
    case 270..<273: try await removeTagged(task)
    case 273..<288: try await fetch(Int.random(in: 0..<Self.loads, using: &random), &random)
    case 288..<292:
      try await cache.remove(Self.load(Int.random(in: 0..<Self.loads, using: &random)))
    case 292: try await storeAll(task, &random)
    case 293: try await sweep()
    case 294: try await cache.flush()
    case 295 where clears: try await clear()
    case 296: try await list(task)
    case 297 where evicts: try await cache.trim(to: .bytes(1 << 20))
    default: _ = try cache.entry(for: Ledger.name(own))
    }
  }

  // MARK: Time

  /// How long something took, unless this process was stopped meanwhile.
  private func timed<R>(_ kind: Ledger.Kind, _ body: () async throws -> R) async rethrows -> R {
    let (stops, start) = (ledger.stops(process), monotonicNanoseconds())
    let result = try await body()
    let end = monotonicNanoseconds()
    if stops.isMultiple(of: 2) && ledger.stops(process) == stops {
      ledger.note(kind, of: process, end - start)
    }
    return result
  }

  private func look(_ key: Int) throws {
    let (stops, start) = (ledger.stops(process), monotonicNanoseconds())
    try ledger.check(key, in: cache, evicts: evicts)
    let end = monotonicNanoseconds()
    if stops.isMultiple(of: 2) && ledger.stops(process) == stops {
      ledger.note(.lookup, of: process, end - start)
    }
  }

  // MARK: Own keys

  private func tags(_ key: Int) -> [String] {
    let task = key / Ledger.keysOfTask % Ledger.tasks
    return Ledger.isTagged(key) ? [Ledger.tag(process, task)] : []
  }

  private func store(_ key: Int, _ random: inout SeededGenerator) async throws {
    let value = Ledger.value(&random, small: ledger.state(key).isPinned)
    let (body, name, tags) = (Ledger.body(value), Ledger.name(key), tags(key))
    let streams = Bool.random(using: &random)
    let clears = ledger.clearsDone
    ledger.begin(key, value)
    let isStored = try await unlessFull {
      try await timed(.write) {
        guard streams else {
          try await cache.store(body, for: name, tags: tags)
          return
        }
        try await cache.store(for: name, tags: tags) { writer in
          try await writer.write(body.prefix(body.count / 3))
          await Task.yield()
          try await writer.write(body.dropFirst(body.count / 3))
        }
      }
    }
    if isStored { ledger.done(key, value, clears: clears) } else { ledger.failed(key) }
  }

  private func storeAll(_ task: Int, _ random: inout SeededGenerator) async throws {
    let keys = Ledger.keys(of: process, task)
    let values = keys.map { _ in Ledger.value(&random, small: true) }
    let items = zip(keys, values).map { key, value in
      BlobCache.Item(key: Ledger.name(key), bytes: Ledger.body(value), tags: tags(key))
    }
    let clears = ledger.clearsDone
    for (key, value) in zip(keys, values) { ledger.begin(key, value) }
    let isStored = try await unlessFull { _ = try await cache.storeAll(items) }
    for (key, value) in zip(keys, values) {
      // Of a batch that failed each may be there or not.
      if isStored {
        ledger.done(key, value, clears: clears)
      } else {
        try ledger.settle(key, in: cache, evicts: evicts)
      }
    }
  }

  private func remove(_ key: Int) async throws {
    ledger.setPinned(key, false)
    ledger.begin(key, 0)
    try await timed(.write) { _ = try await cache.remove(Ledger.name(key)) }
    ledger.done(key, 0, clears: ledger.clearsDone)
  }

  private func removeTagged(_ task: Int) async throws {
    let keys = Ledger.keys(of: process, task).filter(Ledger.isTagged)
    for key in keys {
      ledger.setPinned(key, false)
      ledger.begin(key, 0)
    }
    try await cache.removeAll(tagged: Ledger.tag(process, task))
    for key in keys { ledger.done(key, 0, clears: ledger.clearsDone) }
  }

  private func renew(_ key: Int) async throws {
    let state = ledger.state(key)
    let renewed = try await unlessFull {
      let found = try await cache.renew(Ledger.name(key), lifetime: .sliding(.seconds(9999)))
      guard found == (state.certain != 0) || ledger.mayMiss(state, evicts: evicts) else {
        throw Ledger.Wrong(description: "renewal of key \(key): \(found)")
      }
    }
    if renewed { try look(key) }
  }

  private func pin(_ key: Int, _ pin: Bool) async throws {
    let state = ledger.state(key)
    // Small ones, so that there is always room for them.
    guard state.certain != 0, state.certain >> 56 <= 4 else { return }
    if !pin { ledger.setPinned(key, false) }
    do throws(BlobCache.Error) {
      if pin {
        try await cache.pin(Ledger.name(key))
        ledger.setPinned(key, true)
      } else {
        try await cache.unpin(Ledger.name(key))
      }
    } catch {
      switch error.code {
      case .notCached where ledger.mayMiss(state, evicts: evicts): ledger.setPinned(key, false)
      case .pinsTooLarge where evicts: break
      default: throw error
      }
    }
  }

  private func list(_ task: Int) async throws {
    for try await entry in cache.entries(withPrefix: "storm/\(process)") {
      guard entry.key.description.count > 0 else { throw Ledger.Wrong(description: "no key") }
    }
  }

  // MARK: Everybody's

  private static func load(_ number: Int) -> BlobCache.Key { BlobCache.Key("load/\(number)") }

  private func fetch(_ number: Int, _ random: inout SeededGenerator) async throws {
    let body = Ledger.body(Ledger.value(&random))
    let blob = try await timed(.fetch) {
      try await cache.fetch(Self.load(number)) { load in
        try await load.write(body.prefix(body.count / 2))
        await Task.yield()
        try await load.write(body.dropFirst(body.count / 2))
        return .complete
      }
    }
    if try Ledger.value(of: blob) == 0 { throw Ledger.Wrong(description: "a load of nothing") }
    // Superseded: somebody removed the key meanwhile.
    if case .loadedNotStored(let error) = blob.source, !evicts, error.code != .superseded {
      throw Ledger.Wrong(description: "a load is not stored: \(error)")
    }
  }

  private func clear() async throws {
    ledger.beginClear()
    try await cache.removeAll()
    ledger.endClear()
  }

  private func sweep() async throws {
    do throws(BlobCache.Error) {
      try await cache.sweep()
    } catch {
      // Busy: another one is stopped in the middle of its own.
      if error.code != .busy { throw error }
    }
  }

  /// False: the limit refuses it, which happens only where there is one.
  private func unlessFull(_ body: () async throws -> Void) async throws -> Bool {
    do {
      try await body()
      return true
    } catch let error as BlobCache.Error
      where evicts && [.noSpace, .tooLarge, .pinsTooLarge].contains(error.code)
    {
      return false
    }
  }
}

/// Of the clock that all processes of a machine share.
func monotonicNanoseconds() -> UInt64 {
  var now = timespec()
  clock_gettime(CLOCK_MONOTONIC, &now)
  return UInt64(now.tv_sec) * 1_000_000_000 + UInt64(now.tv_nsec)
}
