import BlobCache
import Foundation

/// Stale copies, failures that are remembered, and many keys at once, as a user writes them.
func freshness() async throws {
  struct Down: Error {}
  let clock = BlobCache.ManualClock()
  var configuration = BlobCache.Configuration()
  configuration.clock = clock.clock
  configuration.defaultStaleWindow = .seconds(600)
  configuration.negativeLifetime = .seconds(5)
  configuration.maximumConcurrentLoads = 4
  configuration.maximumWaiters = 1_000
  configuration.loadTimeLimit = .seconds(30)
  configuration.lifetimeJitter = 0.1
  let cache = try BlobCache.temporary(configuration: configuration)
  try await cache.store([1], for: "k", lifetime: .expires(after: .seconds(20)))
  clock.advance(by: .seconds(21))

  let both: BlobCache.FetchPolicy =
    .staleWhileRevalidate(for: .seconds(0)).staleIfError(for: .seconds(60)).refreshingEarly()
  let stale = try await cache.fetch("k", policy: both) { _ in throw Down() }
  check(stale.source == .stale && stale.staleCause is Down && stale.entry.isStale)
  do {
    _ = try await cache.fetch("k") { _ in .complete }
    fail("no error")
  } catch let error as BlobCache.Error {
    check(error.code == .recentlyFailed && error.cause != nil)
  }

  var counts: [Int] = []
  for try await blob in cache.blobs(
    for: "k", policy: .rememberingFailures(for: .zero),
    loader: { load in
      try await load.write([1, 2])
      return .complete(staleWindow: .seconds(7))
    })
  {
    counts.append(blob.count)
  }
  check(counts == [1, 2])
  check(try cache.entry(for: "k")?.staleWindow == .seconds(7))

  var sizes: [String: Int] = [:]
  for await (key, result) in cache.fetchAll(
    ["a", "bb", "ccc"], concurrency: 2,
    loader: { load in
      try await load.write(load.key.string?.utf8 ?? "".utf8)
      return .complete
    })
  {
    sizes[key.string ?? ""] = try result.get().count
  }
  check(sizes == ["a": 1, "bb": 2, "ccc": 3])
  try await cache.close()
}
