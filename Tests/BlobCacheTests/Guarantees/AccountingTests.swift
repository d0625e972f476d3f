import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 6: what is counted is what there is. The long form: BLOBCACHE_OPERATIONS=1000000.
@Suite("6. Accounting")
struct AccountingTests {
  private let directory = TemporaryDirectory()
  private var folder: CacheFolder { CacheFolder(directory.path("cache")) }
  private let operations =
    ProcessInfo.processInfo.environment["BLOBCACHE_OPERATIONS"].flatMap(Int.init) ?? 9_000
  private let limit = 24 << 20
  /// Free pages of the index up to their allowance, the ballast, lock.mdb, LOCK, folders, and the slot
  /// table of some thousand lines: what Guarantees says that `du` counts and the limit does not.
  private let overhead = (4 << 20) + (2 << 20) + (1 << 20) + (1 << 20)

  private func blobBytes() throws -> Int {
    let names =
      FileManager.default.enumerator(atPath: folder.path + "/blobs")?.allObjects as? [String] ?? []
    return names.filter { $0.count > 60 }.reduce(0) { sum, name in
      sum + Int(fileStatus("\(folder.path)/blobs/\(name)")?.st_blocks ?? 0) * 512
    }
  }

  @Test func duAgreesWithTheStatisticsAfterMixedOperationsAtTheLimit() async throws {
    var configuration = BlobCache.Configuration()
    configuration.limits = .bytes(limit)
    let cache = try BlobCache(directory: folder.path, configuration: configuration)
    let others = [
      try await SecondProcess.over(folder.path), try await SecondProcess.over(folder.path),
    ]
    let rounds = 3
    let each = operations / 3 / rounds
    for round in 0..<rounds {
      for (i, other) in others.enumerated() {
        try other.send("mixed \(each) \(round * 10 + i + 1)")
      }
      try await mixedWork(on: cache, count: each, seed: UInt64(round * 10))
      for other in others {
        #expect(try await other.nextLine(patience: .seconds(3600)).hasPrefix("ok"))
      }
      // A sweep unlinks what waits for it and counts staging anew; whoever sweeps, it is done then.
      try await eventually("a sweep") {
        do { try await cache.sweep() } catch let error as BlobCache.Error where error.code == .busy
        {
          return false
        }
        return true
      }
      try await cache.flush()  // a checkpoint keeps pages until the next one
      try await cache.sweep()
      let statistics = cache.statistics
      let used = statistics.usedBytes
      let allocated = try allocatedBytes(of: folder.path)
      #expect(used <= limit + (64 << 10))
      #expect(statistics.blobAllocatedBytes == (try blobBytes()))
      #expect(allocated >= used && allocated <= used + overhead, "\(allocated - used)")
    }
    #expect(cache.statistics.evictions > 100)
    for other in others { try await other.end() }
    try await cache.close()
    #expect(try await structureOf(folder.path) == "ok")
  }
}
