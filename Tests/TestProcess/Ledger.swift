import BlobCache
import Foundation
import Glibc
import Synchronization

/// What processes that may be killed at any instruction have done: pages that outlive them.
///
/// Each key belongs to one task of one process. The task writes down the value that it is about to give the key, does it,
/// and then writes that it has returned; so whoever looks, whenever, knows what a key may have: the value that is certain,
/// or the one that is under way. A removal of everything, and evictions, take away what they do not own, and are reckoned
/// with by counting the former.
final class Ledger: @unchecked Sendable {  // the pages are only touched by atomic operations
  static let processes = 3
  static let tasks = 3
  static let keysOfTask = 6
  static let keys = processes * tasks * keysOfTask
  /// Of a key that nothing is under way for.
  private static let none = UInt64.max
  private static let size = (128 + keys * 8) * 8

  struct Wrong: Error, CustomStringConvertible {
    var description: String
  }

  private let pages: UnsafeMutableRawPointer

  init(_ path: String) throws {
    let file = Glibc.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    guard file >= 0, ftruncate(file, off_t(Self.size)) == 0 else {
      throw Wrong(description: "\(path): errno \(errno)")
    }
    defer { close(file) }
    guard let pages = mmap(nil, Self.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
      pages != MAP_FAILED
    else { throw Wrong(description: "mmap: errno \(errno)") }
    self.pages = pages
  }

  deinit { munmap(pages, Self.size) }

  private func word(_ index: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    pages.assumingMemoryBound(to: Atomic<UInt64>.self) + index
  }
  private func load(_ index: Int) -> UInt64 {
    word(index).pointee.load(ordering: .sequentiallyConsistent)
  }
  private func put(_ value: UInt64, _ index: Int) {
    word(index).pointee.store(value, ordering: .sequentiallyConsistent)
  }
  @discardableResult
  private func add(_ index: Int) -> UInt64 {
    word(index).pointee.add(1, ordering: .sequentiallyConsistent).newValue
  }

  // MARK: Values

  /// Inline bodies, bodies about a page, and files.
  private static let sizes = [8, 60, 700, 3000, 9000, 17_000, 40_000, 120_000]

  /// A value is the size of a body and a number; 0 is no body. Few numbers make contents that keys share.
  static func value(_ random: inout SeededGenerator, small: Bool = false) -> UInt64 {
    let size = UInt64.random(in: 1...(small ? 4 : UInt64(sizes.count)), using: &random)
    let number =
      Bool.random(using: &random)
      ? UInt64.random(in: 0..<6, using: &random) : UInt64.random(in: 6..<1 << 56, using: &random)
    return size << 56 | number
  }

  /// Nothing but the value, again and again: any eight bytes tell which they are of.
  static func body(_ value: UInt64) -> [UInt8] {
    let count = sizes[Int(value >> 56) - 1]
    let words = [UInt64](repeating: value.littleEndian, count: (count + 7) / 8)
    return words.withUnsafeBytes { Array($0.prefix(count)) }
  }

  /// The value that a blob is of; throws when it is the whole body of none.
  static func value(of blob: BlobCache.Blob?) throws -> UInt64 {
    guard let blob else { return 0 }
    return try blob.withUnsafeBytes { bytes in
      guard bytes.count >= 8 else { throw Wrong(description: "a body of \(bytes.count) bytes") }
      let value = UInt64(littleEndian: bytes.loadUnaligned(as: UInt64.self))
      guard value >> 56 >= 1, value >> 56 <= sizes.count else {
        throw Wrong(description: "bytes that nobody stored")
      }
      let expected = body(value)
      guard expected.count == bytes.count,
        bytes.baseAddress.map({ memcmp(expected, $0, expected.count) == 0 }) == true
      else { throw Wrong(description: "a body that is not whole: \(bytes.count) bytes") }
      return value
    }
  }

  static func name(_ key: Int) -> BlobCache.Key { BlobCache.Key("storm/\(key)") }
  static func keys(of process: Int, _ task: Int) -> Range<Int> {
    let first = (process * tasks + task) * keysOfTask
    return first..<first + keysOfTask
  }
  /// Half of a task's keys have its tag, all their lives.
  static func isTagged(_ key: Int) -> Bool { key.isMultiple(of: 2) }
  static func tag(_ process: Int, _ task: Int) -> String { "tag-\(process)-\(task)" }

  // MARK: The round

  var isOver: Bool {
    get { load(0) != 0 }
    set { put(newValue ? 1 : 0, 0) }
  }

  var clearsBegun: UInt64 { load(1) }
  var clearsDone: UInt64 { load(2) }
  func beginClear() { add(1) }
  func endClear() { add(2) }
  /// One that was under way when its process was killed has happened by now, or never will.
  func settleClears() { put(load(1), 2) }

  // MARK: Processes

  private func process(_ number: Int) -> Int { 16 + number * 16 }

  /// Odd while the process is stopped; a wait that begins and ends with the same even number is its own.
  func stops(_ number: Int) -> UInt64 { load(process(number)) }
  func noteStop(_ number: Int) { add(process(number)) }

  enum Kind: Int, CaseIterable {
    case lookup = 1
    case fetch, write
  }

  func note(_ kind: Kind, of number: Int, _ nanoseconds: UInt64) {
    word(process(number) + kind.rawValue).pointee.max(
      nanoseconds, ordering: .sequentiallyConsistent)
    add(process(number) + 4 + kind.rawValue)
  }
  func longest(_ kind: Kind) -> Duration {
    let most = (0..<Self.processes).map { load(process($0) + kind.rawValue) }.max() ?? 0
    return .nanoseconds(Int64(most))
  }
  func count(_ kind: Kind) -> UInt64 {
    (0..<Self.processes).map { load(process($0) + 4 + kind.rawValue) }.reduce(0, +)
  }

  // MARK: Keys

  private func key(_ number: Int) -> Int { 128 + number * 8 }

  struct State: Equatable {
    var version: UInt64
    var certain: UInt64
    var pending: UInt64?
    /// Removals of everything that were over before the value was stored.
    var clears: UInt64
    var isPinned: Bool
  }

  /// As it was at one moment.
  func state(_ number: Int) -> State {
    let at = key(number)
    while true {
      let version = load(at)
      let pending = load(at + 2)
      let state = State(
        version: version, certain: load(at + 1), pending: pending == Self.none ? nil : pending,
        clears: load(at + 3), isPinned: load(at + 4) != 0)
      if load(at) == version { return state }
    }
  }

  func begin(_ number: Int, _ value: UInt64) {
    put(value, key(number) + 2)
    add(key(number))
  }

  func done(_ number: Int, _ value: UInt64, clears: UInt64) {
    put(value, key(number) + 1)
    put(clears, key(number) + 3)
    put(Self.none, key(number) + 2)
    add(key(number))
  }

  /// It failed, and changed nothing.
  func failed(_ number: Int) {
    put(Self.none, key(number) + 2)
    add(key(number))
  }

  func setPinned(_ number: Int, _ pinned: Bool) { put(pinned ? 1 : 0, key(number) + 4) }

  /// A file of zeroes has values under way for all keys.
  func prepare() { for number in 0..<Self.keys { done(number, 0, clears: 0) } }

  /// Whether a key may be without its value: an eviction, or a removal of everything that was not over when it was stored.
  func mayMiss(_ state: State, evicts: Bool) -> Bool {
    state.certain == 0 || evicts && !state.isPinned || state.clears != clearsBegun
  }

  func allows(_ found: UInt64, _ state: State, evicts: Bool) -> Bool {
    found == state.certain || found == state.pending
      || found == 0 && mayMiss(state, evicts: evicts)
  }

  /// Looks a key up, at some moment of any process; what it finds must be what the ledger allows, unless that changed.
  @discardableResult
  func check(_ number: Int, in cache: BlobCache, evicts: Bool) throws -> UInt64 {
    let before = state(number)
    let found = try Self.value(of: cache.blob(for: Self.name(number)))
    guard allows(found, before, evicts: evicts) || state(number).version != before.version else {
      throw Wrong(
        description: """
          key \(number) has \(String(found, radix: 16)), the ledger says \
          \(String(before.certain, radix: 16)) or \(before.pending.map { String($0, radix: 16) } ?? "nothing else")
          """)
    }
    return found
  }

  /// What was under way when its process was killed: takes what is found for certain.
  func settle(_ number: Int, in cache: BlobCache, evicts: Bool) throws {
    let clears = clearsDone
    let found = try check(number, in: cache, evicts: evicts)
    let before = state(number)
    if before.pending != nil || found != before.certain { setPinned(number, false) }
    if before.pending != nil { done(number, found, clears: clears) }
  }
}
