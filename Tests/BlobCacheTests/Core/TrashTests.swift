import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// Files that cannot be unlinked keep no others from going, however many there are.
@Suite("The trash") struct TrashTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  private func put(_ store: OpaquePointer, _ index: Int) throws -> OpaquePointer {
    var stage: OpaquePointer?
    var write: OpaquePointer?
    var size: UInt64 = 0
    var digest = [UInt8](repeating: 0, count: Int(BCS_DIGEST_SIZE))
    let body = seededBytes(count: 5000, seed: UInt64(index))
    try #require(bcs_stage_begin(store, &stage) == BCS_OK)
    try #require(bcs_stage_write(stage, body, body.count) == BCS_OK)
    try #require(bcs_stage_finish(stage, &digest, &size) == BCS_OK)
    let status = Array("key \(index)".utf8).withUnsafeBytes { key in
      var spec = bcs_entry_spec(
        key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
        tags: nil, tags_count: 0,
        lifetime: bcs_lifetime(kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0),
        stale_ms: 0,
        now_ms: 1)
      return bcs_write_staged(store, &spec, stage, &write)
    }
    try #require(status == BCS_OK)
    let batch = [write]
    #expect(bcs_commit(store, batch, 1, false) == BCS_OK)
    bcs_write_free(write)
    bcs_stage_free(stage)
    return store
  }

  /// In place of each of these folders stands a link to itself: nothing in it can be unlinked, whoever asks.
  private func block(_ folders: [String]) throws {
    for folder in folders {
      try #require(rename("\(path)/blobs/\(folder)", directory.path(folder)) == 0)
      try #require(symlink(folder, "\(path)/blobs/\(folder)") == 0)
    }
  }

  private func unblock(_ folders: [String]) throws {
    for folder in folders {
      try #require(unlink("\(path)/blobs/\(folder)") == 0)
      try #require(rename(directory.path(folder), "\(path)/blobs/\(folder)") == 0)
    }
  }

  private func sweep(_ store: OpaquePointer, limit: Int) -> bcs_status {
    var status = BCS_OK
    var more = true
    while more && status == BCS_OK { status = bcs_sweep_trash(store, limit, &more) }
    return status
  }

  @Test(arguments: [0x00..<0x80, 0x80..<0x100, 0x40..<0xC0])
  func filesThatCannotBeUnlinkedKeepNoOthers(resisting: Range<Int>) throws {
    var options = bcs_options()
    options.create = true
    options.inline_threshold = 16
    var opened: OpaquePointer?
    try #require(bcs_open(path, &options, &opened) == BCS_OK)
    let store = try #require(opened)
    for index in 0..<200 { _ = try put(store, index) }
    let files = CacheFolder(path).blobFiles
    try #require(files.count == 200)
    let folders = Set(files.map { String($0.prefix(2)) }).sorted()
    let stuck = folders.filter { resisting.contains(Int($0, radix: 16) ?? -1) }
    // More of them than a sweep passes over: 4 times its limit, and one.
    let limit = 4
    let resist = files.count { stuck.contains(String($0.prefix(2))) }
    try #require(resist > 3 * (4 * limit + 1))
    try block(stuck)
    var clear: OpaquePointer?
    try #require(bcs_write_clear(store, &clear) == BCS_OK)
    #expect(bcs_commit(store, [clear], 1, false) == BCS_OK)
    bcs_write_free(clear)

    // Each sweep ends at what it cannot unlink, and says so; the next one goes on behind it.
    for _ in 0..<resist / (4 * limit + 1) + 1 { #expect(sweep(store, limit: limit) != BCS_OK) }
    #expect(CacheFolder(path).blobFiles.allSatisfy { $0.count == 2 }, "only the links are there")
    var counters = bcs_counters()
    bcs_count(store, &counters)
    #expect(counters.used_bytes >= UInt64(resist) * 8192, "what is there still counts")

    // Once they can be unlinked, they are: the first ones, too.
    try unblock(stuck)
    #expect(CacheFolder(path).blobFiles.count == resist)
    for _ in 0..<2 { #expect(sweep(store, limit: limit) == BCS_OK) }
    #expect(CacheFolder(path).blobFiles.isEmpty)
    var report = bcs_check_report()
    #expect(bcs_check_structure(store, false, &report, nil, nil) == BCS_OK)
    #expect(report.wrong_totals == 0 && report.unreferenced_files == 0)
    bcs_close(store)
  }
}
