import BlobCache
import CBaseline
import Foundation

/// Stores of bodies that are not there yet; both sides insert the same keys in the same shuffled order.
enum Stores {
  static func manyTasks(_ bench: Bench) async throws -> Samples {
    try await small(bench, "many", count: bench.scale.stores, batch: 1000) {
      cache, keys, bodies in
      let tasks = 64
      try await withThrowingTaskGroup(of: Void.self) { group in
        for task in 0..<tasks {
          group.addTask {
            for i in stride(from: task, to: keys.count, by: tasks) {
              try await cache.store(bodies[i], for: keys[i])
            }
          }
        }
        try await group.waitForAll()
      }
    }
  }

  static func oneTask(_ bench: Bench) async throws -> Samples {
    try await small(bench, "one", count: bench.scale.stores / 4, batch: 1) {
      cache, keys, bodies in
      for i in keys.indices { try await cache.store(bodies[i], for: keys[i]) }
    }
  }

  static func streamed(_ bench: Bench) async throws -> Samples {
    let cache = try BlobCache(directory: try bench.newFolder("streamed"))
    let (size, piece) = (16 << 20, 64 << 10)
    let bytes = body(7, size)
    let pieces = stride(from: 0, to: size, by: piece).map { Array(bytes[$0..<$0 + piece]) }
    let stores = bench.scale.largeStores
    let samples = try await Samples.interleaved(rounds: bench.scale.rounds) { round in
      // Different bytes each time: a digest that is there already would not be written.
      let firsts = (0..<stores).map { body(round * stores + $0, piece) }
      sync()  // else the kernel makes a writer wait for what the rounds before have left
      return try await rate(stores * size) {
        for (i, first) in firsts.enumerated() {
          try await cache.store(for: key(round * stores + i)) { body in
            try await body.write(first)
            for piece in pieces.dropFirst() { try await body.write(piece) }
          }
        }
      }
    } baseline: { _ in
      var digest = [UInt8](repeating: 0, count: 32)
      return try await rate(stores * size) {
        for _ in 0..<stores { try check(unsafe cb_sha256(bytes, size, piece, &digest), "SHA-256") }
      }
    }
    try await cache.close()
    return samples
  }

  private static func small(
    _ bench: Bench, _ name: String, count: Int, batch: Int,
    _ ours: (BlobCache, [BlobCache.Key], [[UInt8]]) async throws -> Void
  ) async throws -> Samples {
    let cache = try BlobCache(directory: try bench.newFolder("store-\(name)"))
    let peer = try Peer(folder: try bench.newFolder("store-\(name)-lmdb"))
    let order = { (round: Int) in shuffled(round * count..<(round + 1) * count, seed: round) }
    let samples = try await Samples.interleaved(rounds: bench.scale.rounds) { round in
      let keys = order(round).map(key)
      let bodies = order(round).map { body($0, 1024) }
      return try await rate(count) { try await ours(cache, keys, bodies) }
    } baseline: { round in
      let keys = KeyList(order(round))
      let bodies = order(round).flatMap { body($0, 1024) }
      return try await rate(count) {
        try peer.put(keys, bodies, size: 1024, batch: batch)
      }
    }
    try await cache.close()
    return samples
  }
}
