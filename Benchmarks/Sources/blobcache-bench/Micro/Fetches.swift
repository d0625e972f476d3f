import BlobCache
import Foundation
import Synchronization

/// `fetch`: what it adds to a hit, and ten thousand waiters of one load.
enum Fetches {
  /// Microseconds that `fetch` takes more than `blob(for:)`, both over the same keys in the same round.
  static func hit(_ bench: Bench) async throws -> Samples {
    let (cache, _) = try await bench.small()
    let scale = bench.scale
    return try await overBound(1, rounds: scale.rounds) { round in
      let keys = uniform(scale.lookups, below: scale.entries, seed: round).map(key)
      let lookup = try await rate(keys.count) {
        for key in keys where try cache.blob(for: key) == nil { throw Failure("a miss") }
      }
      let fetch = try await rate(keys.count) {
        for key in keys {
          _ = try await cache.fetch(key) { _ in throw Failure("a miss") }
        }
      }
      return (1 / fetch - 1 / lookup) * 1e6
    }
  }

  /// Milliseconds from the end of the one load to the moment when the last of 10,000 tasks has its blob.
  static func waiters(_ bench: Bench) async throws -> Samples {
    let cache = try BlobCache(directory: try bench.newFolder("waiters"))
    let samples = try await overBound(100, rounds: min(bench.scale.rounds, 5)) { round in
      try await Waiters(cache: cache, key: key(round)).run(tasks: 10_000)
    }
    try await cache.close()
    return samples
  }

  private static func overBound(
    _ bound: Double, rounds: Int, _ measure: (Int) async throws -> Double
  ) async throws -> Samples {
    try await Samples.interleaved(rounds: rounds, ours: measure, baseline: { _ in bound })
  }
}

/// One key, one load that lasts until everybody has asked.
private final class Waiters: Sendable {
  private let cache: BlobCache
  private let key: BlobCache.Key
  private let asked = Atomic<Int>(0)
  private let loads = Atomic<Int>(0)
  private let loadEnded = Mutex<ContinuousClock.Instant?>(nil)

  init(cache: BlobCache, key: BlobCache.Key) {
    self.cache = cache
    self.key = key
  }

  func run(tasks: Int) async throws -> Double {
    let start = ContinuousClock.now
    let bytes = body(1, 1024)
    let lastServed = try await withThrowingTaskGroup(of: ContinuousClock.Instant.self) { group in
      for _ in 0..<tasks {
        group.addTask {
          self.asked.add(1, ordering: .relaxed)
          let blob = try await self.cache.fetch(self.key) { load in
            self.loads.add(1, ordering: .relaxed)
            while self.asked.load(ordering: .relaxed) < tasks {
              try await Task.sleep(for: .milliseconds(1))
            }
            try await Task.sleep(for: .milliseconds(50))  // those that have asked get to wait
            try await load.write(bytes)
            self.loadEnded.withLock { $0 = .now }
            return .complete
          }
          guard blob.count == bytes.count else { throw Failure("wrong bytes") }
          return .now
        }
      }
      return try await group.reduce(start) { max($0, $1) }
    }
    guard loads.load(ordering: .relaxed) == 1 else { throw Failure("more than one load") }
    guard let end = loadEnded.withLock({ $0 }) else { throw Failure("no load") }
    return (lastServed - end).seconds * 1e3
  }
}
