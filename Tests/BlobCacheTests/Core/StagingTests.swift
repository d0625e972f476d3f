import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// What is staged counts towards the limit in bytes as it grows. Where the temporary folder is on a file system that
/// shares blocks (btrfs, XFS), files are staged that way, and this is asked of it; elsewhere they are copied.
@Suite("Staged bytes count") struct StagingTests {
  private let directory = TemporaryDirectory()

  private func used(_ store: OpaquePointer) -> UInt64 {
    var counters = bcs_counters()
    bcs_count(store, &counters)
    return counters.used_bytes
  }

  @Test(arguments: [1, 4096, 5000, 3_000_000])
  func aStagedFileCountsInWholeBlocksUntilItIsGone(size: Int) throws {
    var options = bcs_options()
    options.create = true
    var opened: OpaquePointer?
    try #require(bcs_open(directory.path("cache"), &options, &opened) == BCS_OK)
    let store = try #require(opened)
    let bytes = seededBytes(count: size, seed: 1)
    let source = directory.path("source")
    try Data(bytes).write(to: URL(filePath: source))
    let before = used(store)
    var stage: OpaquePointer?
    try #require(bcs_stage_begin(store, &stage) == BCS_OK)
    #expect(bcs_stage_file(stage, source) == BCS_OK)
    #expect(used(store) == before + UInt64((size + 4095) / 4096 * 4096))
    var digest = [UInt8](repeating: 0, count: Int(BCS_DIGEST_SIZE))
    var finished: UInt64 = 0
    #expect(bcs_stage_finish(stage, &digest, &finished) == BCS_OK)
    #expect(finished == UInt64(size))
    bcs_stage_free(stage)
    #expect(used(store) == before)
    bcs_close(store)
  }
}
