import BlobCache
import Foundation

/// What checkpoints cost: the same stores with one every few seconds and with none, in turn.
///
/// 64 tasks overwrite 100,000 keys with bodies of 1 KiB, at 20,000 a second and as fast as it goes; one more task looks up
/// keys. The baseline is the same directory and load without a checkpoint but the one at its end.
enum Checkpoints {
  private static let keys = 100_000
  private static let size = 1024

  private struct Load {
    var stores: Double
    var storeTimes = Histogram()
    var lookupTimes = Histogram()
    var index = 0
  }

  static func run(_ options: Options) async throws -> Bool {
    var options = options
    let isQuick = options.flag("--quick")
    let seconds = try options.number("--seconds") ?? (isQuick ? 2 : 12)
    let rounds = try options.number("--rounds") ?? (isQuick ? 1 : 3)
    try options.end()
    let interval = Duration.seconds(isQuick ? 0.5 : 5)
    print(
      "checkpoints every \(interval), \(seconds) s a run, medians of \(rounds) after one to warm up"
    )
    for (name, pace, most) in [("20,000 stores/s", 20_000, 10.0), ("as fast as it goes", 0, 30.0)] {
      var (with, without): ([Load], [Load]) = ([], [])
      let samples = try await Samples.interleaved(rounds: rounds) { round in
        let load = try await load(pace, .checkpointed(every: interval), seconds)
        if round > 0 { with.append(load) }
        return load.stores
      } baseline: { round in
        let load = try await load(pace, .checkpointed(every: nil), seconds)
        if round > 0 { without.append(load) }
        return load.stores
      }
      let (ours, baseline) = (samples.ours.median, samples.baseline.median)
      print("\(name): \(text(1 - ours / baseline, 100)) % fewer stores, at most \(most) % wanted")
      report("  with   ", ours, with)
      report("  without", baseline, without)
    }
    return true
  }

  private static func report(_ name: String, _ stores: Double, _ loads: [Load]) {
    var (store, lookup) = (Histogram(), Histogram())
    for load in loads {
      store.add(load.storeTimes)
      lookup.add(load.lookupTimes)
    }
    let index = (loads.map(\.index).max() ?? 0) >> 20
    print(
      "\(name) \(Int(stores)) stores/s; a store p50 \(text(store.quantile(0.5), 1e-3)) µs,"
        + " p99.9 \(text(store.quantile(0.999), 1e-3)) µs; a lookup p50 \(text(lookup.quantile(0.5), 1e-3)) µs,"
        + " p99.9 \(text(lookup.quantile(0.999), 1e-3)) µs; index file at most \(index) MiB")
  }

  private static func text(_ value: Double?, _ factor: Double) -> String {
    String(format: "%.1f", (value ?? .nan) * factor)
  }

  private static func load(
    _ pace: Int, _ durability: BlobCache.Durability, _ seconds: Int
  ) async throws -> Load {
    try await withFolder("checkpoints") { folder in
      var configuration = BlobCache.Configuration()
      configuration.durability = durability
      configuration.memory = .off
      let cache = try BlobCache(directory: folder, configuration: configuration)
      let end = ContinuousClock.now + .seconds(seconds)
      let load = try await withThrowingTaskGroup(of: Load.self) { group in
        for task in 0..<64 {
          group.addTask { try await stores(in: cache, task, pace: pace, until: end) }
        }
        group.addTask { try lookups(in: cache, until: end) }
        group.addTask { try await growth(of: folder, until: end) }
        return try await group.reduce(into: Load(stores: 0)) { sum, load in
          sum.stores += load.stores / Double(seconds)
          sum.storeTimes.add(load.storeTimes)
          sum.lookupTimes.add(load.lookupTimes)
          sum.index = max(sum.index, load.index)
        }
      }
      try await cache.close()
      return load
    }
  }

  private static func stores(
    in cache: BlobCache, _ task: Int, pace: Int, until end: ContinuousClock.Instant
  ) async throws -> Load {
    var load = Load(stores: 0)
    var random = SeededGenerator(UInt64(task))
    let bytes = body(task, size)
    let gap = pace > 0 ? Duration.seconds(64 / Double(pace)) : .zero
    var next = ContinuousClock.now
    while true {
      if gap > .zero {
        next += gap
        if next > ContinuousClock.now { try await Task.sleep(until: next, clock: .continuous) }
      }
      let start = ContinuousClock.now
      if start >= end { return load }
      let key = BlobCache.Key("key-\(Int.random(in: 0..<keys, using: &random))")
      try await cache.store(bytes, for: key)
      load.storeTimes.add((ContinuousClock.now - start).nanoseconds)
      load.stores += 1
    }
  }

  private static func lookups(
    in cache: BlobCache, until end: ContinuousClock.Instant
  ) throws -> Load {
    var load = Load(stores: 0)
    var random = SeededGenerator(99)
    while true {
      let start = ContinuousClock.now
      if start >= end { return load }
      _ = try cache.withBytes(for: "key-\(Int.random(in: 0..<keys, using: &random))") { bytes in
        bytes.byteCount
      }
      load.lookupTimes.add((ContinuousClock.now - start).nanoseconds)
      // Some thousands a second: it is to measure, not to load.
      usleep(200)
    }
  }

  private static func growth(
    of folder: String, until end: ContinuousClock.Instant
  ) async throws -> Load {
    var load = Load(stores: 0)
    while ContinuousClock.now < end {
      var status = stat()
      if unsafe stat("\(folder)/index/data.mdb", &status) == 0 {
        load.index = max(load.index, Int(status.st_blocks) * 512)
      }
      try await Task.sleep(for: .milliseconds(20))
    }
    return load
  }
}
