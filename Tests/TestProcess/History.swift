import BlobCache
import Foundation
import Glibc
import Synchronization

/// What some tasks of one process did with few keys, and when by the clock that all processes share: a mapped file, so
/// that a process which is killed leaves what it had begun.
// Sendable: each record is written by one task, and read when that has ended.
final class History: @unchecked Sendable {
  /// A removal, of one key or of all, stores 0.
  enum Kind: UInt64 {
    case store = 1
    case lookup, clear
  }

  struct Record {
    var kind: Kind
    var key: Int
    /// What was stored or found; 0: nothing.
    var value: UInt64
    var began: UInt64
    /// Nil: it has not returned.
    var returned: UInt64?
  }

  struct Failure: Error, CustomStringConvertible {
    var description: String
  }

  private let words: UnsafeMutablePointer<UInt64>
  private let count: Int
  private static let width = 4

  /// Room for so many operations; all of them absent in a new file.
  init(_ path: String, count: Int) throws {
    let size = count * Self.width * 8
    let file = Glibc.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    guard file >= 0, ftruncate(file, off_t(size)) == 0 else {
      throw Failure(description: "\(path): errno \(errno)")
    }
    defer { close(file) }
    guard let pages = mmap(nil, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
      pages != MAP_FAILED
    else { throw Failure(description: "mmap: errno \(errno)") }
    words = pages.assumingMemoryBound(to: UInt64.self)
    self.count = count
  }

  deinit { munmap(words, count * Self.width * 8) }

  var records: [Record] {
    (0..<count).compactMap { number in
      let at = words + number * Self.width
      guard at[1] != 0, let kind = Kind(rawValue: at[0] & 0xFF) else { return nil }
      return Record(
        kind: kind, key: Int(at[0] >> 8), value: at[3], began: at[1],
        returned: at[2] == 0 ? nil : at[2])
    }
  }

  private func begin(_ number: Int, _ kind: Kind, _ key: Int, _ value: UInt64) {
    let at = words + number * Self.width
    at[0] = kind.rawValue | UInt64(key) << 8
    at[3] = value
    at[1] = monotonicNanoseconds()
  }

  private func end(_ number: Int, found value: UInt64? = nil) {
    let now = monotonicNanoseconds()
    let at = words + number * Self.width
    if let value { at[3] = value }
    at[2] = now
  }

  // MARK: Bodies

  static func name(_ key: Int) -> BlobCache.Key { BlobCache.Key("history/\(key)") }

  /// Inline bodies, and now and then a file.
  static func body(_ value: UInt64) -> [UInt8] {
    let count = value % 9 == 0 ? 17_000 : Int(value % 61) * 8 + 8
    return [UInt64](repeating: value.littleEndian, count: count / 8).withUnsafeBytes { Array($0) }
  }

  private static func value(_ bytes: UnsafeRawBufferPointer) throws -> UInt64 {
    let value = bytes.count < 8 ? 0 : UInt64(littleEndian: bytes.loadUnaligned(as: UInt64.self))
    guard value != 0, bytes.elementsEqual(body(value)) else {
      throw Failure(description: "a body that nobody stored, of \(bytes.count) bytes")
    }
    return value
  }

  // MARK: Making one

  /// So many operations by each of so many tasks; values are made unique by `process`.
  func record(
    on cache: BlobCache, process: Int, tasks: Int, keys: Int, seed: UInt64, clears: Bool
  ) async throws {
    let each = count / tasks
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<tasks {
        group.addTask {
          var random = SeededGenerator(seed: seed &+ UInt64(process * 64 + task) &* 7919)
          let first = UInt64(process * 64 + task + 1) << 32
          for number in task * each..<(task + 1) * each {
            let key = Int.random(in: 0..<keys, using: &random)
            try await self.step(
              number, key, first + UInt64(number), Int.random(in: 0..<64, using: &random), clears,
              on: cache)
          }
        }
      }
      try await group.waitForAll()
    }
  }

  private func step(
    _ number: Int, _ key: Int, _ value: UInt64, _ choice: Int, _ clears: Bool, on cache: BlobCache
  ) async throws {
    let name = Self.name(key)
    switch choice {
    case 0 where clears:
      begin(number, .clear, 0, 0)
      try await cache.removeAll()
      end(number)
    case 0..<6:
      begin(number, .store, key, 0)
      try await cache.remove(name)
      end(number)
    case 6..<24:
      let body = Self.body(value)
      begin(number, .store, key, value)
      try await cache.store(body, for: name)
      end(number)
    case 24..<28:
      let body = Self.body(value)
      begin(number, .store, key, value)
      try await cache.store(for: name) { writer in
        try await writer.write(body.prefix(8))
        try await writer.write(body.dropFirst(8))
      }
      end(number)
    case 28..<46:
      begin(number, .lookup, key, 0)
      let found = try cache.blob(for: name)?.withUnsafeBytes { try Self.value($0) }
      end(number, found: found ?? 0)
    default:
      begin(number, .lookup, key, 0)
      let found = try cache.withBytes(for: name) { span in
        try span.withUnsafeBytes { try Self.value($0) }
      }
      end(number, found: found ?? 0)
    }
  }
}

extension Commands {
  /// `history FILE PROCESS COUNT TASKS KEYS SEED [clears]`
  func history(_ words: [String]) async throws -> String {
    let count = try number(words, 2) { Int($0) }
    let history = try History(word(words, 0), count: count)
    try await history.record(
      on: opened(), process: number(words, 1) { Int($0) }, tasks: number(words, 3) { Int($0) },
      keys: number(words, 4) { Int($0) }, seed: number(words, 5) { UInt64($0) },
      clears: words.contains("clears"))
    return "ok"
  }
}
