import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promises 1, 9 and 10 against strangers: files that somebody cuts off, rewrites, replaces, takes away or locks up
/// behind an open cache, and limits that the system sets on the process.
@Suite("1, 9. Strangers and limits of the system", .timeLimit(.minutes(2)))
struct StrangersTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  enum Deed: CaseIterable { case cutOff, emptied, rewritten, replaced, removed, lockedUp, extended }

  private func doIt(_ deed: Deed, to file: String) throws {
    let size = Int(try #require(fileStatus(file)).st_size)
    switch deed {
    case .cutOff: try #require(truncate(file, off_t(size / 2)) == 0)
    case .emptied: try #require(truncate(file, 0) == 0)
    case .rewritten: try overwrite(file, at: size / 2, with: [UInt8](repeating: 0xEE, count: 100))
    case .replaced:
      try Data(seededBytes(count: size, seed: 77)).write(
        to: URL(fileURLWithPath: file), options: .atomic)
    case .removed: try FileManager.default.removeItem(atPath: file)
    case .lockedUp: try #require(chmod(file, 0) == 0)
    case .extended: try #require(truncate(file, off_t(size + 10_000)) == 0)
    }
  }

  /// Read and mapped sizes; a held blob is a copy in both.
  @Test(arguments: Deed.allCases, [100_000, 3 << 20])
  func aFileThatAStrangerChangesIsAMissAndHeldCopiesStay(deed: Deed, size: Int) async throws {
    var configuration = BlobCache.Configuration()
    configuration.mapping = .copy
    configuration.memory = .off
    let cache = try BlobCache(directory: path, configuration: configuration)
    let bytes = seededBytes(count: size, seed: 1)
    let digest = try await cache.store(bytes, for: "key").digest
    let held = try #require(try cache.blob(for: "key"))
    let loaded = try await cache.fetch("loaded") { load in
      try await load.write(bytes)
      return .complete
    }
    try doIt(deed, to: CacheFolder(path).blobFile(digest))

    // Root may read what is locked up.
    if let found = try cache.blob(for: "key") {
      #expect(deed == .lockedUp && Machine.isRoot)
      #expect(found.holds(bytes))
    }
    #expect(held.holds(bytes))
    #expect(loaded.holds(bytes))
    let again = try await cache.fetch("key") { load in
      try await load.write(bytes)
      return .complete
    }
    #expect(again.holds(bytes))
    try await cache.store(bytes, for: "key")
    #expect(try #require(try cache.blob(for: "key")).holds(bytes))
    #expect(held.holds(bytes))
    try await cache.close()
  }

  @Test(arguments: [100_000, 3 << 20])
  func aFileThatAStrangerReplacesOrRemovesLeavesAMappingAsItWas(size: Int) async throws {
    let cache = try BlobCache(directory: path)
    let bytes = seededBytes(count: size, seed: 1)
    for deed in [Deed.replaced, .removed, .lockedUp] {
      let digest = try await cache.store(bytes, for: "key").digest
      let held = try #require(try cache.blob(for: "key"))
      try doIt(deed, to: CacheFolder(path).blobFile(digest))
      #expect(held.holds(bytes))
      if let found = try cache.blob(for: "key") { #expect(found.holds(bytes)) }
      _ = try await cache.verify(.everything, repair: true)
    }
    try await cache.close()
  }

  @Test(.enabled(if: Machine.canMount, "needs root, mkfs.ext4 and permission to mount"))
  func aFileSystemThatBecomesReadOnlyGoesOnBeingRead() async throws {
    let disk = try SmallFileSystem(mebibytes: 24)
    let path = "\(disk.path)/cache"
    let process = try await SecondProcess.over(path, "memory=0")
    #expect(try await process.call("store small 500 1").hasPrefix("ok"))
    #expect(try await process.call("store large 200000 2").hasPrefix("ok"))
    #expect(try await process.call("flush") == "ok")
    // What is mapped for writing keeps a file system from being made read-only, but for by force.
    try #require(Machine.run("sync", "-f", disk.path))
    guard Machine.run("mount", "-o", "remount,ro", disk.path) else {
      // Busy: the kernel says so while somebody may write. Another mount of it can be.
      try await process.end()
      try #require(Machine.run("mount", "-o", "remount,ro", disk.path))
      let error = try await errorOf { _ = try BlobCache(directory: path) }
      #expect(error.code == .readOnly, "\(error)")
      #expect(error.path?.hasPrefix(path) == true)
      #expect(Machine.run("mount", "-o", "remount,rw", disk.path))
      let cache = try BlobCache(directory: path)
      #expect(
        try #require(try cache.blob(for: "large")).holds(seededBytes(count: 200_000, seed: 2)))
      try await cache.close()
      return
    }
    #expect(try await process.call("get small").hasPrefix("hit 500 "))
    #expect(try await process.call("get large").hasPrefix("hit 200000 "))
    #expect(try await process.call("store new 200000 3").contains("readOnly"))
    try await process.end()
  }

  @Test func aFileLimitIsAnErrorOfTheStoreThatMeetsIt() async throws {
    let process = try await SecondProcess.over(path, "memory=0")
    #expect(try await process.call("store small 500 1").hasPrefix("ok"))
    #expect(try await process.call("store large 300000 2").hasPrefix("ok"))
    #expect(try await process.call("limit file 200000") == "ok")
    let refused = try await process.call("store new 300000 3")
    #expect(refused.hasPrefix("error"), "\(refused)")
    #expect(try await process.call("get small").hasPrefix("hit 500 "))
    #expect(try await process.call("get large").hasPrefix("hit 300000 "))
    #expect(try await process.call("get new") == "miss")
    #expect(try await process.call("store below 100000 4").hasPrefix("ok"))
    #expect(try await process.call("get below").hasPrefix("hit 100000 "))
    try await process.end()
    #expect(try await structureOf(path) == "ok")
  }

  /// A body that has no room in the address space is an error of its call; the next one works.
  @Test func anAddressSpaceThatIsFullIsAnError() async throws {
    let process = try await SecondProcess.over(path, "memory=0")
    #expect(try await process.call("store small 500 1").hasPrefix("ok"))
    #expect(try await process.call("stream large 80000000 2 65536").hasPrefix("ok"))
    try await process.end()
    let reader = try await SecondProcess.over(path, "memory=0")
    #expect(try await reader.call("get small").hasPrefix("hit 500 "))
    #expect(try await reader.call("limit memory 40000000") == "ok")
    let refused = try await reader.call("get large")
    #expect(refused == "miss" || refused.hasPrefix("error"), "\(refused)")
    #expect(try await reader.call("get small").hasPrefix("hit 500 "))
    #expect(try await reader.call("store next 500 3").hasPrefix("ok"))
    try await reader.end()
    #expect(try await structureOf(path) == "ok")
  }
}
