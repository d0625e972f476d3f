import BlobCache
import Foundation

/// Milliseconds to open a directory that is there, closed properly before, its files in the page cache.
enum Opens {
  static func open(_ bench: Bench, entries: Int) async throws -> Samples {
    let folder = try bench.newFolder("open-\(entries)")
    let cache = try BlobCache(directory: folder)
    let order = shuffled(0..<entries, seed: entries)
    for first in stride(from: 0, to: entries, by: 10_000) {
      let part = order[first..<min(first + 10_000, entries)]
      try await cache.storeAll(part.map { BlobCache.Item(key: key($0), bytes: body($0, 32)) })
    }
    try await cache.close()
    return try await Samples.interleaved(rounds: bench.scale.rounds) { round in
      let start = ContinuousClock.now
      let again = try BlobCache(directory: folder)
      let time = (ContinuousClock.now - start).seconds * 1e3
      guard again.statistics.entries == entries, try again.contains(key(round)) else {
        throw Failure("entries are missing")
      }
      try await again.close()
      return time
    } baseline: { _ in
      50
    }
  }
}
