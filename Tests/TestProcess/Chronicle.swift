import BlobCache
import Foundation
import Glibc
import Synchronization

/// A history that one process writes and others check while it is being written.
///
/// Step n does what its number says (stores, removes, renews, clears), on a key that its number says;
/// when it has returned, n is published in a shared page. A reader takes the number p before its
/// lookup and q after it: what it found must be what held after one of the steps p … q + 1, the last
/// one being under way. So an answer from before p, which had returned, is an old value.
final class Chronicle: @unchecked Sendable {  // the page is only touched by atomic operations
  static let keys = 3
  private let page: UnsafeMutableRawPointer

  struct Failure: Error, CustomStringConvertible {
    var description: String
  }

  enum Step: Equatable {
    case store, remove, renew, clear
  }

  init(_ path: String) throws {
    let file = Glibc.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    guard file >= 0, ftruncate(file, 4096) == 0 else {
      throw Failure(description: "\(path): errno \(errno)")
    }
    defer { close(file) }
    guard let page = mmap(nil, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
      page != MAP_FAILED
    else { throw Failure(description: "mmap: errno \(errno)") }
    self.page = page
  }

  deinit { munmap(page, 4096) }

  private var published: UnsafeMutablePointer<Atomic<Int>> {
    page.assumingMemoryBound(to: Atomic<Int>.self)
  }

  /// The last step that has returned; 0: none yet.
  var returned: Int { published.pointee.load(ordering: .acquiring) }

  private static func mix(_ number: Int) -> UInt64 {
    var word = UInt64(number) &* 0x9E37_79B9_7F4A_7C15
    word = (word ^ (word >> 30)) &* 0xBF58_476D_1CE4_E5B9
    return word ^ (word >> 27)
  }

  static func step(_ number: Int) -> Step {
    switch mix(number) % 64 {
    case 0: .clear
    case 1...8: .remove
    case 9...16: .renew
    default: .store
    }
  }

  static func key(of number: Int) -> Int { Int(mix(number) >> 32) % keys }
  static func name(_ key: Int) -> BlobCache.Key { BlobCache.Key("chronicle/\(key)") }

  /// The number that is stored under a key after a step; nil: nothing.
  static func value(of key: Int, after number: Int) -> Int? {
    var number = number
    while number > 0 {
      switch step(number) {
      case .clear: return nil
      case .store where self.key(of: number) == key: return number
      case .remove where self.key(of: number) == key: return nil
      default: number -= 1
      }
    }
    return nil
  }

  /// The number, and seldom so many bytes that they become a file.
  static func body(_ number: Int) -> [UInt8] {
    var bytes = withUnsafeBytes(of: number.littleEndian, Array.init)
    bytes += [UInt8](
      repeating: UInt8(truncatingIfNeeded: number), count: number % 300 == 0 ? 70_000 : number % 97)
    return bytes
  }

  /// The number in a body that is whole; nil for any other.
  static func number(in bytes: UnsafeRawBufferPointer) -> Int? {
    guard bytes.count >= 8 else { return nil }
    let number = Int(littleEndian: bytes.loadUnaligned(as: Int.self))
    let count = 8 + (number % 300 == 0 ? 70_000 : number % 97)
    guard bytes.count == count,
      bytes.dropFirst(8).allSatisfy({ $0 == UInt8(truncatingIfNeeded: number) })
    else { return nil }
    return number
  }

  /// Goes on from where it stands, to step `last`.
  func write(_ cache: BlobCache, to last: Int) async throws {
    for number in stride(from: returned + 1, through: last, by: 1) {
      let key = Self.name(Self.key(of: number))
      switch Self.step(number) {
      case .store: try await cache.store(Self.body(number), for: key)
      case .remove: try await cache.remove(key)
      case .renew: try await cache.renew(key, lifetime: .expires(after: .seconds(3600)))
      case .clear: try await cache.removeAll()
      }
      published.pointee.store(number, ordering: .releasing)
    }
  }

  /// Looks up again and again until step `last` has returned; gives the number of lookups.
  func read(_ cache: BlobCache, to last: Int) throws -> Int {
    var lookups = 0
    var (seen, sinceThen) = (0, 0)
    while true {
      let before = returned
      let key = lookups % Self.keys
      var found: Int?
      if lookups.isMultiple(of: 2) {
        found = try cache.withBytes(for: Self.name(key)) { span in
          span.withUnsafeBytes { Self.number(in: $0) ?? -1 }
        }
      } else {
        found = try cache.blob(for: Self.name(key))?.withUnsafeBytes { Self.number(in: $0) ?? -1 }
      }
      let after = returned
      lookups += 1
      let allowed = (before...after + 1).contains { Self.value(of: key, after: $0) == found }
      guard allowed else {
        throw Failure(
          description: """
            lookup \(lookups) of key \(key) found \(found.map(String.init) ?? "nothing"); the steps \
            \(before) to \(after + 1) give \(Self.value(of: key, after: before) ?? 0) and later
            """)
      }
      if after >= last { return lookups }
      // Some lookups around each step are enough: between them the processor is the writer's and other tests'.
      (seen, sinceThen) = after == seen ? (seen, sinceThen + 1) : (after, 0)
      if sinceThen >= 32 {
        sinceThen = 0
        usleep(50)
      }
    }
  }
}

extension Commands {
  /// `chronicle write FILE LAST` or `chronicle read FILE LAST`.
  func chronicle(_ words: [String]) async throws -> String {
    guard words.count == 3, let last = Int(words[2]) else {
      throw UsageError(description: "chronicle write|read FILE LAST")
    }
    let chronicle = try Chronicle(words[1])
    if words[0] == "read" {
      let lookups = try chronicle.read(opened(), to: last)
      return "ok \(lookups) \(try opened().statistics.memoryHits)"
    }
    try await chronicle.write(opened(), to: last)
    return "ok"
  }
}
