import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// Two stores of one new content that were prepared side by side: the later one finds a file under its digest that it
/// has not read, and puts its own in its place.
@Suite("A file that takes another's place")
struct ReplacedFileTests {
  private let directory = TemporaryDirectory()
  private let bytes = seededBytes(count: 100_000, seed: 1)

  private func staged(_ store: CoreStore, _ key: String) throws -> (OpaquePointer, OpaquePointer) {
    try store.stage(key, bytes)
  }

  /// A checkpoint may know the one that is there, and nothing but its name would be left of it after a power cut.
  @Test func isOnTheDiskBeforeItTakesTheName() throws {
    let store = try CoreStore(directory.path("cache"))
    let first = try staged(store, "first")
    let second = try staged(store, "second")
    let third = try staged(store, "third")
    #expect(store.commit([first.1]) == [BCS_OK])
    #expect(bcs_checkpoint(store.raw, 0) == BCS_OK)
    let failing = FaultHook.here(
      { $0 == "replace-sync" ? EIO : 0 }, during: { store.commit([second.1]) })
    #expect(failing == [BCS_IO])
    #expect(store.record("second") == nil)
    #expect(store.record("first")?.size == 100_000)
    #expect(store.commit([third.1]) == [BCS_OK])
    #expect(store.record("third")?.size == 100_000)
    for stage in [first.0, second.0, third.0] { bcs_stage_free(stage) }
  }
}
