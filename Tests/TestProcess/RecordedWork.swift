import BlobCache
import Foundation
import Recorder
import Synchronization

/// What the scenarios of the power-cut proof are made of, known to the recorded processes, to those that open what is
/// left, and to the oracle.
enum PowerWork {
  /// Inline bodies of several page counts, and files.
  static let sizes = [0, 60, 700, 3000, 9000, 20_000, 50_000, 120_000]
  /// Few contents, so that keys share them and what was removed is stored again.
  static func seeds(_ keys: Int) -> UInt64 { keys > 20 ? 16 : 4 }
  static let tags = 5

  static func name(_ number: Int) -> String { "k\(number)" }
  /// Where there are many keys, bodies that a limit of 1 MiB cannot hold all.
  static func sizes(_ keys: Int) -> ArraySlice<Int> { keys > 20 ? sizes.suffix(4) : sizes[...] }

  /// A key has the same tag all its life, so a removal by tag is a removal of keys.
  static func tag(_ number: Int) -> Int { number % tags }

  private static let bodies = Mutex<[String: [UInt8]]>([:])

  static func body(_ size: Int, _ seed: UInt64) -> [UInt8] {
    bodies.withLock { bodies in
      if let made = bodies["\(size) \(seed)"] { return made }
      let made = seededBytes(count: size, seed: seed)
      bodies["\(size) \(seed)"] = made
      return made
    }
  }
}

private let operations = Atomic<Int>(0)

extension Commands {
  /// `recorded SEED COUNT TASKS KEYS [clear] [flush]`: so many operations of each kind, by so many tasks at once. Each is
  /// marked in the recording before it begins and after it has returned:
  ///
  ///     begin ID store KEY SIZE SEED        done ID
  ///     begin ID remove KEY                 begin ID tag TAG
  ///     begin ID clear                      begin ID flush
  func recordedWork(_ words: [String]) async throws {
    let cache = try opened()
    let seed = try number(words, 0) { UInt64($0) }
    let (count, tasks) = (try number(words, 1) { Int($0) }, try number(words, 2) { Int($0) })
    let keys = try number(words, 3) { Int($0) }
    let (clears, flushes) = (words.contains("clear"), words.contains("flush"))
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<tasks {
        group.addTask {
          var random = SeededGenerator(seed: seed &+ UInt64(task) &* 7919)
          for _ in 0..<count / tasks {
            let step = RecordedStep(keys: keys, clears: clears, flushes: flushes, random: &random)
            try await step.run(on: cache)
          }
        }
      }
      try await group.waitForAll()
    }
  }
}

extension Commands {
  /// `stored KEY SIZE SEED`: one of the recorded stores, of a key by its number.
  func storeRecorded(_ words: [String]) async throws {
    let step = RecordedStep.store(
      key: try number(words, 0) { Int($0) }, size: try number(words, 1) { Int($0) },
      seed: try number(words, 2) { UInt64($0) }, streamed: false)
    try await step.run(on: opened())
  }

  /// `kill-after mkdir|rename|any COUNT`: `kill -9` when it has made so many such calls more.
  func killAfter(_ words: [String]) throws {
    let operations = ["mkdir": RECORDER_MKDIR, "rename": RECORDER_RENAME, "any": RECORDER_ANY]
    guard let operation = operations[try word(words, 0)] else {
      throw UsageError(description: "kill-after mkdir|rename|any COUNT")
    }
    recorder_kill_after(operation, try number(words, 1) { UInt32($0) })
  }
}

private enum RecordedStep {
  case store(key: Int, size: Int, seed: UInt64, streamed: Bool)
  case remove(key: Int)
  case renew(key: Int)
  case tag(Int)
  case clear
  case flush
  case read(key: Int)

  init(keys: Int, clears: Bool, flushes: Bool, random: inout SeededGenerator) {
    let key = Int.random(in: 0..<keys, using: &random)
    switch Int.random(in: 0..<48, using: &random) {
    case 0 where clears: self = .clear
    case 1: self = .tag(PowerWork.tag(key))
    case 2...8: self = .remove(key: key)
    case 9: self = .renew(key: key)
    case 10...13: self = .read(key: key)
    case 14...16 where flushes: self = .flush
    default:
      self = .store(
        key: key, size: PowerWork.sizes(keys).randomElement(using: &random) ?? 0,
        seed: UInt64.random(in: 0..<PowerWork.seeds(keys), using: &random),
        streamed: Bool.random(using: &random))
    }
  }

  private var text: String? {
    switch self {
    case .store(let key, let size, let seed, _): "store \(PowerWork.name(key)) \(size) \(seed)"
    case .remove(let key): "remove \(PowerWork.name(key))"
    case .tag(let tag): "tag \(tag)"
    case .clear: "clear"
    case .flush: "flush"
    case .renew, .read: nil
    }
  }

  func run(on cache: BlobCache) async throws {
    guard let text else { return try await act(on: cache) }
    let id = "\(getpid()).\(operations.add(1, ordering: .relaxed).newValue)"
    recorder_mark("begin \(id) \(text)")
    try await act(on: cache)
    recorder_mark("done \(id)")
  }

  private func act(on cache: BlobCache) async throws {
    switch self {
    case .store(let key, let size, let seed, let streamed):
      let bytes = PowerWork.body(size, seed)
      let (name, tags) = (BlobCache.Key(PowerWork.name(key)), ["t\(PowerWork.tag(key))"])
      guard streamed else {
        try await cache.store(bytes, for: name, tags: tags)
        return
      }
      try await cache.store(for: name, tags: tags) { body in
        try await body.write(bytes.prefix(size / 3))
        try await body.write(bytes.dropFirst(size / 3))
      }
    case .remove(let key): try await cache.remove(BlobCache.Key(PowerWork.name(key)))
    case .renew(let key):
      try await cache.renew(BlobCache.Key(PowerWork.name(key)), lifetime: .sliding(.seconds(9999)))
    case .tag(let tag): try await cache.removeAll(tagged: "t\(tag)")
    case .clear: try await cache.removeAll()
    case .flush: try await cache.flush()
    case .read(let key): _ = try cache.blob(for: PowerWork.name(key))
    }
  }
}
