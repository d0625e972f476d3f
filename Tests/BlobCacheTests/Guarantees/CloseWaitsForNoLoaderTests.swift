import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// `close()` waits for stores, and never for a loader: also not for one that heeds nothing.
@Suite(.timeLimit(.minutes(2))) struct CloseWaitsForNoLoaderTests {
  private let directory = TemporaryDirectory()
  private let clock = BlobCache.ManualClock()

  private func open(
    _ change: (inout BlobCache.Configuration) -> Void = { _ in }
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.sweepInterval = nil
    change(&configuration)
    return try BlobCache(directory: directory.path("cache"), configuration: configuration)
  }

  /// A load of `key` that writes so many bytes, heeds nothing until `gate` opens, and then writes on.
  private func stubborn(
    _ cache: BlobCache, _ key: BlobCache.Key = "k", size: Int = 700_000, began: Latch, gate: Gate,
    late: Collected<BlobCache.Error>
  ) -> Task<BlobCache.Blob, any Error> {
    Task {
      try await cache.fetch(key) { load in
        try await load.write(seededBytes(count: size, seed: 1))
        began.open()
        await gate.wait()
        do {
          try await load.write(seededBytes(count: 300_000, seed: 2))
        } catch let error as BlobCache.Error {
          late.append(error)
        }
        return .complete
      }
    }
  }

  @Test(arguments: [10, 700_000]) func aLoaderThatHeedsNothingKeepsNobodyFromClosing(
    size: Int
  ) async throws {
    let cache = try open()
    let (began, gate, late) = (Latch(), Gate(), Collected<BlobCache.Error>())
    let first = stubborn(cache, size: size, began: began, gate: gate, late: late)
    try await began.wait()
    let second = Task { try await cache.fetch("k") { _ in .complete } }
    await until { cache.store.flights.waiterCount == 2 }
    let flights = cache.store.flights
    try await cache.close()
    #expect(flights.flightCount == 1, "the loader runs on")
    #expect(try await errorOf { _ = try await first.value }.code == .closed)
    #expect(try await errorOf { _ = try await second.value }.code == .closed)
    try await eventually("no file is left") {
      CacheFolder(directory.path("cache")).files(in: "staging").isEmpty
    }

    // The directory is free, and what the loader brings after all disturbs nobody.
    let again = try open()
    try await again.store([7], for: "k")
    gate.open()
    await until { flights.flightCount == 0 }
    #expect(late.elements.map(\.code) == [.closed])
    #expect(try again.blob(for: "k")?.holds([7]) == true)
    try await again.close()
    #expect(try await structureOf(directory.path("cache")) == "ok")
  }

  @Test func aSiblingKeepsNeitherTheFileNorThePermitOfAClosedInstance() async throws {
    let cache = try open { $0.maximumConcurrentLoads = 1 }
    let sibling = try open()
    let (began, gate, late) = (Latch(), Gate(), Collected<BlobCache.Error>())
    let task = stubborn(cache, began: began, gate: gate, late: late)
    try await began.wait()
    #expect(!CacheFolder(cache.directory).files(in: "staging").isEmpty)
    try await cache.close()
    #expect(try await errorOf { _ = try await task.value }.code == .closed)
    try await eventually(
      "its file is gone, at the latest with the piece that is just being written"
    ) {
      CacheFolder(cache.directory).files(in: "staging").isEmpty
    }
    let blob = try await sibling.fetch("other") { _ in .complete }
    #expect(blob.source == .loaded, "the only permit is free")
    gate.open()
    await until { sibling.store.flights.flightCount == 0 }
    #expect(late.elements.map(\.code) == [.closed])
    #expect(try sibling.blob(for: "k") == nil)
    try await sibling.close()
  }

  @Test func aLoaderThatWasGivenUpKeepsNobodyFromClosing() async throws {
    let cache = try open { $0.loadTimeLimit = .seconds(10) }
    let (began, gate, late) = (Latch(), Gate(), Collected<BlobCache.Error>())
    let task = stubborn(cache, began: began, gate: gate, late: late)
    try await began.wait()
    clock.advance(by: .seconds(10))
    #expect(try await errorOf { _ = try await task.value }.code == .loadTimedOut)
    try await eventually("its file is given up") {
      CacheFolder(cache.directory).files(in: "staging").isEmpty
    }
    let flights = cache.store.flights
    try await cache.close()
    gate.open()
    await until { flights.flightCount == 0 }
    #expect(late.elements.map(\.code) == [.closed])
  }

  @Test func manyLoadersThatHeedNothingLeaveNothingBehind() async throws {
    for round in 0..<10 {
      let cache = try open { $0.maximumConcurrentLoads = round % 2 == 0 ? nil : 4 }
      let flights = cache.store.flights
      let gate = Gate()
      let tasks = (0..<16).map { index in
        Task {
          try await cache.fetch(BlobCache.Key("\(index)")) { load in
            for piece in 0..<20 {
              try await load.write(seededBytes(count: 70_000, seed: UInt64(piece)))
              if piece == index { await gate.wait() }
            }
            return .complete
          }
        }
      }
      for _ in 0..<round * 50 { await Task.yield() }
      let closing = Task { try await cache.close() }
      if round % 3 == 0 { gate.open() }
      try await closing.value
      for task in tasks { _ = await task.result }
      gate.open()
      await until { flights.flightCount == 0 }
      #expect(flights.waiterCount == 0)
    }
    try await eventually("no file is left") {
      CacheFolder(directory.path("cache")).files(in: "staging").isEmpty
    }
    #expect(try await structureOf(directory.path("cache")) == "ok")
  }
}
