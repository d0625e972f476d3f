import BlobCache
import CBaseline
import Dispatch
import Foundation
import Synchronization

/// Lookups of 1 KiB bodies, uniform at random; both sides walk the same keys, made before the clock starts.
enum Lookups {
  static func withBytes(_ bench: Bench) async throws -> Samples {
    try await hits(bench) { cache, keys in try Self.sumByBytes(cache, keys) }
  }

  static func blob(_ bench: Bench) async throws -> Samples {
    try await hits(bench) { cache, keys in try Self.sumByBlob(cache, keys) }
  }

  static func miss(_ bench: Bench) async throws -> Samples {
    let (cache, peer) = try await bench.small()
    let (count, entries, rounds) = (bench.scale.lookups, bench.scale.entries, bench.scale.rounds)
    // Spread over the keys that are there, as misses are: numbers above them would all end in one warm corner of
    // LMDB's tree, which is in the order of the keys.
    let absent = { (round: Int) in
      uniform(count, below: entries, seed: round + 100).map { name($0) + "-absent" }
    }
    return try await Samples.interleaved(rounds: rounds) { round in
      let keys = absent(round).map { BlobCache.Key($0) }
      return try await rate(count) {
        for key in keys where try cache.blob(for: key) != nil { throw Failure("a hit") }
      }
    } baseline: { round in
      let keys = KeyList(names: absent(round))
      return try await rate(count) {
        guard try peer.get(keys).found == 0 else { throw Failure("a hit") }
      }
    }
  }

  /// The baseline is the same work on one thread; both on threads of Dispatch.
  static func twoThreads(_ bench: Bench) async throws -> Samples {
    let (cache, _) = try await bench.small()
    let scale = bench.scale
    let lists = (0..<2).map { thread in
      uniform(scale.lookups * 4, below: scale.entries, seed: 200 + thread).map(key)
    }
    return try await Samples.interleaved(rounds: scale.rounds) { _ in
      try threads(lists, cache)
    } baseline: { round in
      try threads([lists[round % 2]], cache)
    }
  }

  private static func threads(_ lists: [[BlobCache.Key]], _ cache: BlobCache) throws -> Double {
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

  private static func hits(
    _ bench: Bench, _ ours: (BlobCache, [BlobCache.Key]) throws -> UInt64
  ) async throws -> Samples {
    let (cache, peer) = try await bench.small()
    let scale = bench.scale
    var sums: [Int: UInt64] = [:]  // by round; both sides must have read the same bytes
    func agree(_ round: Int, _ sum: UInt64) throws {
      guard sums.updateValue(sum, forKey: round) ?? sum == sum else {
        throw Failure("the two sides read different bytes")
      }
    }
    return try await Samples.interleaved(rounds: scale.rounds) { round in
      let keys = uniform(scale.lookups, below: scale.entries, seed: round).map(key)
      return try await rate(keys.count) { try agree(round, try ours(cache, keys)) }
    } baseline: { round in
      let keys = KeyList(uniform(scale.lookups, below: scale.entries, seed: round))
      return try await rate(keys.count) { try agree(round, try peer.get(keys).sum) }
    }
  }

  private static func sumByBytes(_ cache: BlobCache, _ keys: [BlobCache.Key]) throws -> UInt64 {
    var total: UInt64 = 0
    for key in keys {
      guard let part = try cache.withBytes(for: key, { (bytes: RawSpan) in sum(bytes) }) else {
        throw Failure("a miss")
      }
      total &+= part
    }
    return total
  }

  private static func sumByBlob(_ cache: BlobCache, _ keys: [BlobCache.Key]) throws -> UInt64 {
    var total: UInt64 = 0
    for key in keys {
      guard let blob = try cache.blob(for: key) else { throw Failure("a miss") }
      total &+= sum(blob.bytes)
    }
    return total
  }
}

/// Lookups of bodies that are files, against plain files with the same bytes.
enum LargeLookups {
  static func blob(_ bench: Bench, size: Int, count: Int) async throws -> Samples {
    let cache = try BlobCache(
      directory: try bench.newFolder("large-\(size)"), configuration: .withoutMemory)
    let plain = try bench.newFolder("plain-\(size)")
    for n in 0..<count {
      let bytes = body(n, size)
      try await cache.store(bytes, for: key(n))
      try check(unsafe cb_file_write("\(plain)/\(n)", bytes, size), "write")
      guard try cache.blob(for: key(n)) != nil else { throw Failure("a miss") }
    }
    let lookups = max(count, (1 << 30) / size / 4)
    let order = uniform(lookups, below: count, seed: size)
    let keys = order.map(key)
    let paths = order.map { "\(plain)/\($0)" }
    var buffer = [UInt8](repeating: 0, count: size)

    let samples = try await Samples.interleaved(rounds: bench.scale.rounds) { _ in
      var total: UInt64 = 0
      return try await rate(lookups) {
        for key in keys {
          guard let blob = try cache.blob(for: key) else { throw Failure("a miss") }
          total &+= sum(blob.bytes)
        }
      }
    } baseline: { _ in
      var (total, part): (UInt64, UInt64) = (0, 0)
      let read = try await rate(lookups) {
        for path in paths {
          try check(unsafe cb_file_read_sum(path, &buffer, size, &part), "read")
          total &+= part
        }
      }
      let mapped = try await rate(lookups) {
        for path in paths {
          try check(unsafe cb_file_map_sum(path, &part), "mmap")
          total &+= part
        }
      }
      return max(read, mapped)
    }
    try await cache.close()
    return samples
  }
}
