import Testing

@testable import BlobCache

/// The old copy now, the new one when it comes.
@Suite(.timeLimit(.minutes(5))) struct BlobsTests {
  let clock = BlobCache.ManualClock()
  let runs = Tally()
  let cache: BlobCache

  init() throws {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.defaultLifetime = .expires(after: .seconds(20))
    cache = try BlobCache.temporary(configuration: configuration)
  }

  @Test func nothingAtHand() async throws {
    #expect(try await all("new") == ["new loaded"])
    #expect(runs.value == 1)
  }

  @Test func aFreshOneIsTheOnlyOne() async throws {
    try await cache.store("old".utf8, for: "k")
    #expect(try await all("new") == ["old index"])
    #expect(runs.value == 0)
  }

  @Test func aStaleOneThenTheNewOne() async throws {
    try await makeStale()
    #expect(try await all("new") == ["old stale", "new loaded"])
    #expect(runs.value == 1)
  }

  @Test func theSameBytesComeOnce() async throws {
    try await makeStale()
    #expect(try await all("old") == ["old stale"])
    #expect(runs.value == 1)
    #expect(try cache.contains("k"), "renewed all the same")
  }

  @Test func aReloadGivesTheFreshOneFirst() async throws {
    try await cache.store("old".utf8, for: "k")
    #expect(try await all("new", .reload) == ["old index", "new loaded"])
  }

  @Test func cacheOnlyLoadsNothing() async throws {
    let error = try await errorOf { _ = try await all("new", .cacheOnly) }
    #expect(error.code == .notCached)
    try await makeStale()
    #expect(try await all("new", .cacheOnly) == ["old stale"])
    #expect(runs.value == 0)
  }

  @Test func theWindowLimitsTheFirst() async throws {
    try await makeStale()
    #expect(
      try await all("new", .staleWhileRevalidate(for: .milliseconds(1))) == ["new loaded"])
    try await makeStale()
    #expect(
      try await all("newer", .staleWhileRevalidate(for: .seconds(2)))
        == ["new stale", "newer loaded"])
  }

  @Test func aFailure() async throws {
    struct Down: Error {}
    try await makeStale()
    var seen: [String] = []
    await #expect(throws: Down.self) {
      for try await blob in cache.blobs(for: "k", loader: { _ in throw Down() }) {
        seen.append(line(blob))
      }
    }
    #expect(seen == ["old stale"])
    for try await blob in cache.blobs(
      for: "k", policy: .staleIfError(), loader: { _ in throw Down() })
    { seen.append(line(blob)) }
    #expect(seen == ["old stale", "old stale"], "ends without an error")
  }

  @Test func whoLeavesAfterTheFirstBeginsNothing() async throws {
    try await makeStale()
    for try await _ in blobs("new", .cacheFirst) { break }
    #expect(cache.store.flights.flightCount == 0 && runs.value == 0)
  }

  private func makeStale() async throws {
    if try cache.entry(for: "k") == nil { try await cache.store("old".utf8, for: "k") }
    clock.advance(by: .seconds(21))
  }

  private func blobs(_ value: String, _ policy: BlobCache.FetchPolicy) -> BlobCache.Blobs {
    cache.blobs(for: "k", policy: policy) { load in
      runs.add()
      try await load.write(value.utf8)
      return .complete
    }
  }

  private func all(
    _ value: String, _ policy: BlobCache.FetchPolicy = .cacheFirst
  ) async throws -> [String] {
    var lines: [String] = []
    for try await blob in blobs(value, policy) { lines.append(line(blob)) }
    return lines
  }

  private func line(_ blob: BlobCache.Blob) -> String {
    "\(String(decoding: blob.data, as: UTF8.self)) \(blob.source)"
  }
}
