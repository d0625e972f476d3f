import BlobCache
import Dispatch
import Foundation
import Synchronization

/// Hits of the memory tier against what people write first: a dictionary behind a mutex, in this process only. Both
/// sides hold the same 1 KiB bodies under the same keys, which are strings of about 30 bytes, and sum every byte.
enum MemoryHits {
  static let dictionary = "Mutex<[String: [UInt8]]>, every byte summed"

  enum Choice { case uniform, zipf }

  /// A plain cache: the array leaves the lock by a reference, and is read outside of it.
  private final class Plain: Sendable {
    let bodies = Mutex<[String: [UInt8]]>([:])
  }

  static func hits(_ bench: Bench, _ choice: Choice, asBlob: Bool = false) async throws -> Samples {
    let scale = bench.scale
    let entries = choice == .uniform ? scale.entries : scale.entriesToOpen
    let cache = try await filled(bench, entries, choice == .uniform ? "uniform" : "zipf")
    let plain = Plain()
    plain.bodies.withLock { bodies in
      for n in shuffled(0..<entries, seed: 2) { bodies[name(n)] = body(n, 1024) }
    }
    let count = scale.lookups * 4
    let zipf = Zipf(count: entries)
    let pick = { (round: Int) -> [String] in
      let numbers =
        switch choice {
        case .uniform: uniform(count, below: entries, seed: round + 300)
        case .zipf: zipf.sample(count, seed: round + 300)
        }
      return numbers.map(name)
    }
    var sums: [Int: UInt64] = [:]
    func agree(_ round: Int, _ sum: UInt64) throws {
      guard sums.updateValue(sum, forKey: round) ?? sum == sum else {
        throw Failure("the two sides read different bytes")
      }
    }
    let before = cache.statistics
    let samples = try await Samples.interleaved(rounds: scale.rounds) { round in
      let keys = pick(round)
      return try await rate(count) {
        try agree(round, asBlob ? sumByBlob(cache, keys) : sumByBytes(cache, keys))
      }
    } baseline: { round in
      let keys = pick(round)
      return try await rate(count) { try agree(round, try sumPlain(plain, keys)) }
    }
    let after = cache.statistics
    guard after.memoryHits - before.memoryHits == after.hits - before.hits else {
      throw Failure(
        "\(after.memoryHits - before.memoryHits) of \(after.hits - before.hits) hits were of memory"
      )
    }
    try await cache.close()
    return samples
  }

  /// The baseline is the same work on one thread; both on threads of Dispatch.
  static func twoThreads(_ bench: Bench) async throws -> Samples {
    let scale = bench.scale
    let cache = try await filled(bench, scale.entries, "two")
    let lists = (0..<2).map { thread in
      uniform(scale.lookups * 8, below: scale.entries, seed: 400 + thread).map(name)
    }
    let samples = try await Samples.interleaved(rounds: scale.rounds) { _ in
      try threads(lists, cache)
    } baseline: { round in
      try threads([lists[round % 2]], cache)
    }
    try await cache.close()
    return samples
  }

  /// A cache that holds all of its entries in memory.
  private static func filled(_ bench: Bench, _ entries: Int, _ name: String) async throws
    -> BlobCache
  {
    var configuration = BlobCache.Configuration()
    configuration.memory = .init(bytes: 4 << 30, entries: 2 * entries)
    let cache = try BlobCache(
      directory: try bench.newFolder("memory-\(name)"), configuration: configuration)
    for first in stride(from: 0, to: entries, by: 1000) {
      try await cache.storeAll(
        (first..<min(first + 1000, entries)).map {
          BlobCache.Item(key: key($0), bytes: body($0, 1024))
        })
    }
    for n in shuffled(0..<entries, seed: 2) {
      guard try cache.blob(for: key(n)) != nil else { throw Failure("entry \(n) is missing") }
    }
    guard cache.statistics.memoryEntries == entries else {
      throw Failure("\(cache.statistics.memoryEntries) of \(entries) are in memory")
    }
    return cache
  }

  private static func threads(_ lists: [[String]], _ cache: BlobCache) throws -> Double {
    let failures = Atomic<Int>(0)
    let time = seconds {
      DispatchQueue.concurrentPerform(iterations: lists.count) { @Sendable i in
        if (try? sumByBytes(cache, lists[i])) == nil {  // told below
          failures.add(1, ordering: .relaxed)
        }
      }
    }
    guard failures.load(ordering: .relaxed) == 0 else { throw Failure("a lookup failed") }
    return Double(lists.reduce(0) { $0 + $1.count }) / time
  }

  private static func sumPlain(_ plain: Plain, _ keys: [String]) throws -> UInt64 {
    var total: UInt64 = 0
    for key in keys {
      guard let body = plain.bodies.withLock({ $0[key] }) else { throw Failure("a miss") }
      total &+= unsafe sum(body.span.bytes)
    }
    return total
  }

  private static func sumByBytes(_ cache: BlobCache, _ keys: [String]) throws -> UInt64 {
    var total: UInt64 = 0
    for key in keys {
      let part = try cache.withBytes(for: BlobCache.Key(key)) { (bytes: RawSpan) in sum(bytes) }
      guard let part else { throw Failure("a miss") }
      total &+= part
    }
    return total
  }

  private static func sumByBlob(_ cache: BlobCache, _ keys: [String]) throws -> UInt64 {
    var total: UInt64 = 0
    for key in keys {
      guard let blob = try cache.blob(for: BlobCache.Key(key)) else { throw Failure("a miss") }
      total &+= sum(blob.bytes)
    }
    return total
  }
}

extension Zipf {
  fileprivate func sample(_ count: Int, seed: Int) -> [Int] {
    var generator = SeededGenerator(UInt64(seed))
    return (0..<count).map { _ in sample(&generator) }
  }
}
