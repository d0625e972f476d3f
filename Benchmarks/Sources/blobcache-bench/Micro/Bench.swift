import BlobCache
import CBaseline
import Foundation
import Synchronization

/// What the rows share: a folder, a scale, and the cache and the LMDB environment that hold the same bodies.
final class Bench: Sendable {
  let folder: String
  let scale: Scale
  /// The stores at a limit, which two rows each look at.
  let limitRounds = Mutex<[String: [AtLimit.Round]]>([:])
  private let filled = Mutex<(cache: BlobCache, peer: Peer)?>(nil)

  init(folder: String, scale: Scale) {
    self.folder = folder
    self.scale = scale
  }

  func newFolder(_ name: String) throws -> String {
    let path = "\(folder)/\(name)"
    try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    return path
  }

  /// Both sides with `scale.entries` bodies of 1 KiB, each read once; made at the first use.
  func small() async throws -> (cache: BlobCache, peer: Peer) {
    if let made = filled.withLock({ $0 }) { return made }
    let cache = try BlobCache(
      directory: try newFolder("small"), configuration: .withoutMemory)
    let peer = try Peer(folder: try newFolder("small-lmdb"))
    let order = shuffled(0..<scale.entries, seed: 1)
    for first in stride(from: 0, to: order.count, by: 1000) {
      let part = Array(order[first..<min(first + 1000, order.count)])
      let bodies = part.map { body($0, 1024) }
      try await cache.storeAll(
        zip(part, bodies).map { BlobCache.Item(key: key($0), bytes: $1) })
      try peer.put(KeyList(part), bodies.flatMap { $0 }, size: 1024, batch: 1000)
    }
    for n in order {
      guard try cache.blob(for: key(n)) != nil else { throw Failure("entry \(n) is missing") }
    }
    let made = (cache, peer)
    filled.withLock { $0 = made }
    return made
  }

  func close() async throws {
    try await filled.withLock({ $0 })?.cache.close()
  }
}

extension BlobCache.Configuration {
  /// For the rows that measure the index and files.
  static var withoutMemory: Self {
    var configuration = Self()
    configuration.memory = .off
    return configuration
  }
}

func key(_ n: Int) -> BlobCache.Key { BlobCache.Key(name(n)) }
func name(_ n: Int) -> String { "https://cdn.example/obj/\(n)" }

func shuffled(_ numbers: Range<Int>, seed: Int) -> [Int] {
  var generator = SeededGenerator(UInt64(seed))
  return numbers.shuffled(using: &generator)
}

/// `count` numbers below `bound`, uniform, the same for the same seed.
func uniform(_ count: Int, below bound: Int, seed: Int) -> [Int] {
  var generator = SeededGenerator(UInt64(seed))
  return (0..<count).map { _ in Int.random(in: 0..<bound, using: &generator) }
}

/// The same keys as C strings.
struct KeyList: Sendable {
  static let stride = 40
  let bytes: [CChar]
  let count: Int

  init(_ numbers: [Int]) { self.init(names: numbers.map(name)) }

  init(names: [String]) {
    var bytes = [CChar](repeating: 0, count: names.count * Self.stride)
    for (i, name) in names.enumerated() {
      for (j, byte) in name.utf8.enumerated() {
        bytes[i * Self.stride + j] = CChar(bitPattern: byte)
      }
    }
    self.bytes = bytes
    count = names.count
  }
}

/// Owns one `cb_lmdb`; one thread at a time.
@safe final class Peer: @unchecked Sendable {  // the rows use it one after another
  private let peer: OpaquePointer

  init(folder: String) throws {
    var peer: OpaquePointer?
    try check(unsafe cb_lmdb_open(folder, 16 << 30, &peer), "mdb_env_open")
    guard let peer = unsafe peer else { throw Failure("mdb_env_open gave nothing") }
    unsafe self.peer = peer
  }

  deinit { unsafe cb_lmdb_close(peer) }

  func put(_ keys: KeyList, _ bodies: [UInt8], size: Int, batch: Int) throws {
    try unsafe keys.bytes.withUnsafeBufferPointer { buffer in
      let list = unsafe cb_keys(
        first: buffer.baseAddress, key_stride: KeyList.stride, count: keys.count)
      try check(unsafe cb_lmdb_put(peer, list, bodies, size, batch), "mdb_put")
    }
  }

  func get(_ keys: KeyList) throws -> (sum: UInt64, found: Int) {
    var (sum, found): (UInt64, Int) = (0, 0)
    try unsafe keys.bytes.withUnsafeBufferPointer { buffer in
      let list = unsafe cb_keys(
        first: buffer.baseAddress, key_stride: KeyList.stride, count: keys.count)
      try check(unsafe cb_lmdb_get(peer, list, &sum, &found), "mdb_get")
    }
    return (sum, found)
  }
}

/// Every byte summed, by the loop that the baselines use.
@inline(__always)
func sum(_ bytes: RawSpan) -> UInt64 {
  unsafe bytes.withUnsafeBytes { unsafe cb_sum($0.baseAddress, $0.count) }
}
