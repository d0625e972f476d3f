import BlobCache
import Foundation
import Synchronization

/// What a store costs where every one has to make room, against the same store far below the limit: two directories
/// with as many entries, one at its limit, the other with 64 times as much. One task, one store after another, each
/// timed by itself.
struct AtLimit: Sendable {
  /// One round's stores, in seconds.
  struct Round: Sendable {
    var atLimit: [Double] = []
    var farBelow: [Double] = []
  }

  let name: String
  let size: Int
  /// Of the one directory, in bytes.
  let limit: Int
  /// Stores of a round, in each directory.
  let count: Int

  static func rows(_ scale: Scale) -> [Row] {
    let quick = scale.entries < Scale.full.entries
    let small = AtLimit(
      name: "1 KiB", size: 1 << 10, limit: (quick ? 8 : 64) << 20, count: quick ? 500 : 2_000)
    let file = AtLimit(
      name: "64 KiB", size: 64 << 10, limit: (quick ? 32 : 256) << 20, count: quick ? 200 : 800)
    return [small, file].flatMap { trial in
      [
        Row(
          name: "store \(trial.name) at the limit",
          against: "the same store far below its limit, p50 of both", unit: .operations, target: 0.5
        ) { bench in
          let rounds = try await trial.rounds(bench)
          return Samples(
            ours: rounds.map { 1 / $0.atLimit.median },
            baseline: rounds.map { 1 / $0.farBelow.median })
        },
        Row(
          name: "store \(trial.name) at the limit, p99 against 5 x p50",
          against: "a bound: five times its p50", unit: .microseconds, target: 1
        ) { bench in
          let rounds = try await trial.rounds(bench)
          return Samples(
            ours: rounds.map { $0.atLimit.quantile(0.99) * 1e6 },
            baseline: rounds.map { 5e6 * $0.atLimit.median })
        },
      ]
    }
  }

  private func rounds(_ bench: Bench) async throws -> [Round] {
    if let done = bench.limitRounds.withLock({ $0[name] }) { return done }
    let full = try Side(self, bench.newFolder("at-limit-\(size)"), limit: limit)
    // Filled, and turned over once, so that what it evicts has an age.
    while full.cache.statistics.evictions == 0 { try await full.fill(64) }
    try await full.fill(full.cache.statistics.entries)
    let roomy = try Side(self, bench.newFolder("far-below-\(size)"), limit: 64 * limit)
    try await roomy.fill(full.cache.statistics.entries)

    var rounds: [Round] = []
    for i in 0...bench.scale.rounds {
      sync()  // else the kernel makes a writer wait for what was written before
      var round = Round()
      if i.isMultiple(of: 2) { round.atLimit = try await full.time(count) }
      round.farBelow = try await roomy.time(count)
      if !i.isMultiple(of: 2) { round.atLimit = try await full.time(count) }
      if i > 0 { rounds.append(round) }
    }
    let counted = (full.cache.statistics, roomy.cache.statistics)
    guard counted.0.usedBytes > limit * 9 / 10, counted.1.evictions == 0 else {
      throw Failure("at the limit of \(limit): \(counted.0); far below: \(counted.1)")
    }
    try await full.cache.close()
    try await roomy.cache.close()
    let done = rounds
    bench.limitRounds.withLock { $0[name] = done }
    return done
  }
}

/// One of the two directories; bodies and keys go on where they stopped.
private final class Side {
  let cache: BlobCache
  private let size: Int
  private var next = 0

  init(_ trial: AtLimit, _ folder: String, limit: Int) throws {
    var configuration = BlobCache.Configuration.withoutMemory
    configuration.limits = .bytes(limit)
    configuration.sweepInterval = nil
    cache = try BlobCache(directory: folder, configuration: configuration)
    size = trial.size
  }

  func fill(_ count: Int) async throws {
    let numbers = next..<next + count
    next += count
    for first in stride(from: numbers.lowerBound, to: numbers.upperBound, by: 64) {
      let part = first..<min(first + 64, numbers.upperBound)
      try await cache.storeAll(part.map { BlobCache.Item(key: key($0), bytes: body($0, size)) })
    }
  }

  /// Seconds of each of `count` stores.
  func time(_ count: Int) async throws -> [Double] {
    let bodies = (next..<next + count).map { (key($0), body($0, size)) }
    next += count
    var times: [Double] = []
    times.reserveCapacity(count)
    for (key, body) in bodies {
      let start = ContinuousClock.now
      try await cache.store(body, for: key)
      times.append((ContinuousClock.now - start).seconds)
    }
    return times
  }
}

extension [Double] {
  /// The least that `q` of the values do not exceed.
  fileprivate func quantile(_ q: Double) -> Double {
    guard !isEmpty else { return .nan }
    return sorted()[Swift.min(count - 1, Int((Double(count) * q).rounded(.up)) - 1)]
  }
}
