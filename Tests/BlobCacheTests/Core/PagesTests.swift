import BlobCache
import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// A false alarm would throw away an index that is sound: none, whatever was done with it.
@Suite("Pages of the index") struct PagesTests {
  private let directory = TemporaryDirectory()

  private func open(_ path: String, map: UInt64 = 0) throws -> OpaquePointer {
    var options = bcs_options()
    options.create = true
    options.initial_map_size = map
    var opened: OpaquePointer?
    try #require(bcs_open(path, &options, &opened) == BCS_OK)
    var info = bcs_info()
    let store = try #require(opened)
    bcs_get_info(store, &info)
    #expect(!info.index_set_aside)
    return store
  }

  private func put(_ store: OpaquePointer, _ key: Int, _ body: [UInt8]) throws -> OpaquePointer {
    var write: OpaquePointer?
    let status = Array("key \(key)".utf8).withUnsafeBytes { key in
      var spec = bcs_entry_spec(
        key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
        tags: nil, tags_count: 0,
        lifetime: bcs_lifetime(kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0),
        stale_ms: 0,
        now_ms: 1)
      return bcs_write_inline(store, &spec, body, body.count, nil, &write)
    }
    #expect(status == BCS_OK)
    return try #require(write)
  }

  private func remove(_ store: OpaquePointer, _ key: Int) throws -> OpaquePointer {
    var write: OpaquePointer?
    let name = Array("key \(key)".utf8)
    #expect(bcs_write_remove(store, name, name.count, &write) == BCS_OK)
    return try #require(write)
  }

  private func commit(_ store: OpaquePointer, _ writes: [OpaquePointer?]) {
    #expect(bcs_commit(store, writes, writes.count, false) == BCS_OK)
    for write in writes { bcs_write_free(write) }
  }

  private func expectSound(_ path: String, _ after: Comment) throws {
    #expect(try IndexFile(of: path).damage(all: false) == nil, after)
    #expect(try IndexFile(of: path).damage(all: true) == nil, after)
  }

  @Test func aSoundIndexIsNeverSuspected() throws {
    let path = directory.path("cache")
    let store = try open(path, map: 1 << 20)  // grows several times on the way
    var random = SeededGenerator(seed: 1)
    let small = seededBytes(count: 64, seed: 1)
    for start in stride(from: 0, to: 100_000, by: 2000) {
      commit(store, try (start..<start + 2000).map { try put(store, $0, small) })
    }
    try expectSound(path, "100,000 entries, and growth")
    for seed in 0..<20 as Range<UInt64> {
      let body = seededBytes(count: 12_000 + Int(seed) * 100, seed: seed)
      commit(
        store,
        try (0..<50).map { _ in try put(store, .random(in: 0..<100_000, using: &random), body) })
      commit(store, [try put(store, 200_000 + Int(seed), body)])
    }
    try expectSound(path, "bodies in runs of pages")
    for start in stride(from: 0, to: 100_000, by: 1000) {
      let keys = (start..<start + 1000).filter { _ in .random(in: 0..<10, using: &random) < 7 }
      commit(store, try keys.map { try remove(store, $0) })
      if start % 10_000 == 0 { try expectSound(path, "removals up to \(start)") }
    }
    try expectSound(path, "removals")
    for start in stride(from: 0, to: 20_000, by: 500) {
      commit(store, try (start..<start + 500).map { try put(store, $0 * 7 % 100_000, small) })
    }
    try expectSound(path, "stores into free pages")
    var clear: OpaquePointer?
    #expect(bcs_write_clear(store, &clear) == BCS_OK)
    commit(store, [clear])
    try expectSound(path, "a list of nearly all pages")
    commit(store, [try put(store, 1, small)])
    bcs_close(store)
    try expectSound(path, "closing")
    let again = try open(path)
    var report = bcs_check_report()
    #expect(bcs_check_structure(again, false, &report, nil, nil) == BCS_OK)
    #expect(!report.damage.found && report.wrong_totals == 0)
    bcs_close(again)
  }

  /// LMDB never writes pages that a transaction took and gave back: the file ends before its last page.
  @Test func aFileThatEndsBeforeFreePagesIsWhole() throws {
    let path = directory.path("cache")
    let file = IndexFile(of: path)
    let store = try open(path)
    let small = seededBytes(count: 64, seed: 1)
    commit(store, try (0..<1000).map { try put(store, $0, small) })
    let wide = seededBytes(count: 16_000, seed: 2)
    var random = SeededGenerator(seed: 1)
    for round in 0..<200 where try file.pageCount > file.lastPage {
      let keys = 1000..<1000 + Int.random(in: 10..<200, using: &random)
      let size = Int.random(in: 0..<3000, using: &random)
      commit(
        store,
        try keys.map { try put(store, $0, Array(wide.prefix(size + round))) }
          + keys.map { try remove(store, $0) })
    }
    bcs_close(store)
    #expect(try file.pageCount <= file.lastPage)
    try expectSound(path, "stores and removals in one batch")
    let again = try open(path)  // and not set aside
    var counters = bcs_counters()
    bcs_count(again, &counters)
    #expect(counters.entries == 1000)
    commit(again, try (1000..<1100).map { try put(again, $0, wide) })
    bcs_close(again)
    try expectSound(path, "stores into pages that were not there")
    #expect(truncate(file.path, off_t(try file.lastPage * IndexFile.pageSize / 2)) == 0)
    #expect(try file.damage(all: false) != nil)
  }

  /// Where a writer stands still, or is killed, between writing its meta page and telling readers of it, they are
  /// given the snapshot before. LMDB keeps the number of that in its table of readers.
  @Test func aCommitThatReadersAreNotToldOfIsNoDamage() async throws {
    let path = directory.path("cache")
    let store = try open(path)
    for index in 0..<5 { commit(store, [try put(store, index, [1, 2, 3])]) }
    let table = try #require(FileHandle(forUpdatingAtPath: path + "/index/lock.mdb"))
    let last = UInt64(try IndexFile(of: path).lastTransaction)
    func told(_ transaction: UInt64) throws {
      try table.seek(toOffset: 48)
      try table.write(contentsOf: withUnsafeBytes(of: transaction) { Data($0) })
    }
    try table.seek(toOffset: 48)
    try #require(try table.read(upToCount: 8) == withUnsafeBytes(of: last) { Data($0) })
    try told(last - 1)
    var report = bcs_check_report()
    #expect(bcs_check_pages(store, false, &report) == BCS_OK)
    #expect(!report.damage.found)
    let opener = try await SecondProcess.over(path)
    #expect(try await opener.call("get absent") == "miss")
    try await opener.end()
    // A transaction that is no neighbour's is damage.
    try told(last - 3)
    #expect(bcs_check_pages(store, false, &report) == BCS_OK)
    #expect(report.damage.found)
    try told(last)
    #expect(bcs_check_pages(store, false, &report) == BCS_OK)
    #expect(!report.damage.found)
    bcs_close(store)
  }

  /// MDB_DUPSORT and MDB_DUPFIXED, which LMDB would follow without a word: the index of a version that kept duplicates.
  @Test(arguments: ["digests", "tags"])
  func anIndexWithDuplicatesIsSetAsideAndItsBlobsStay(tree: String) async throws {
    let folder = CacheFolder(directory.path("cache"))
    let bytes = seededBytes(count: 100_000, seed: 1)
    let first = try BlobCache(directory: folder.path)
    let digest = try await first.store(bytes, for: "large", tags: ["tag"]).digest
    try await first.close()
    let inode = try #require(fileStatus(folder.blobFile(digest))?.st_ino)
    let file = IndexFile(of: folder.path)
    try file.setFlags(0x14, ofTree: tree)
    for all in [false, true] {
      #expect(try file.damage(all: all)?.hasSuffix("a tree of ours has flags of another") == true)
    }
    let second = try BlobCache(directory: folder.path)
    #expect(folder.quarantined.contains { $0.hasPrefix("index.") })
    #expect(try second.blob(for: "large") == nil)
    try await second.store(bytes, for: "large", tags: ["tag"])
    #expect(fileStatus(folder.blobFile(digest))?.st_ino == inode)
    #expect(try await second.removeAll(tagged: "tag") == 1)
    try await second.close()
    #expect(try file.damage(all: true) == nil)
  }

  @Test func besideAWritingProcessNothingIsSuspected() async throws {
    let path = directory.path("cache")
    let writer = try await SecondProcess.over(path)
    #expect(try await writer.call("fill 500 300") == "ok 500")
    try writer.send("random 7")
    let reading = Task { while (try? await writer.nextLine()) != nil {} }  // ends with the writer
    let cache = try BlobCache(directory: path)
    let clock = ContinuousClock()
    let end = clock.now + .seconds(4)
    while clock.now < end {
      let opener = try await SecondProcess.over(path)  // looks at the paths, beside the writer
      for _ in 0..<20 {
        let damage = try await cache.verify(.structure).indexDamage
        #expect(damage == nil, "\(damage ?? "")")
      }
      try await opener.end()
    }
    try await cache.close()
    writer.kill()
    await reading.value
    #expect(try await structureOf(path) == "ok")
  }
}
