import CBlobStore
import Foundation
import Synchronization
import Testing

@testable import blobcache_test_process

/// When blocks of the index go back to the file system: not between two stores, where they are wanted again at once and
/// each hole costs as much as a store.
@Suite("Holes in the index")
struct HolesTests {
  private let directory = TemporaryDirectory()

  /// With a limit of 64 MiB, 4 MiB of free pages are welcome, and from 16 MiB on commits give back.
  private func storeWithFreePages() throws -> CoreStore {
    let store = try CoreStore(directory.path("cache"), bytes: 64 << 20, inline: 16 << 10)
    let keys = (0..<700).map { "small-\($0)" }
    let body = seededBytes(count: 12_000, seed: 1)
    store.commit(try keys.map { try store.put($0, body) })
    store.commit(try keys.map { try store.remove($0) })
    store.commit([try store.put("small", body)])
    #expect(store.indexBytes > 6 << 20)
    return store
  }

  /// How many holes this thread makes.
  private func holes(_ body: () throws -> Void) rethrows -> Int {
    let count = Mutex(0)
    try FaultHook.here(
      { step in
        if step == "punch" { count.withLock { $0 += 1 } }
        return 0
      }, during: body)
    return count.withLock { $0 }
  }

  @Test func areNotMadeWhereStoresMakeRoomForThemselves() throws {
    let store = try storeWithFreePages()
    let made = try holes {
      for i in 0..<90 {
        let (stage, write) = try store.stage("\(i)", seededBytes(count: 1 << 20, seed: UInt64(i)))
        #expect(store.commit([write]) == [BCS_OK])
        bcs_stage_free(stage)
        var more = false
        #expect(bcs_sweep_trash(store.raw, 256, &more) == BCS_OK)
      }
    }
    #expect((0..<90).contains { store.record("\($0)") == nil }, "the limit was reached")
    #expect(made == 0)
    var more = true
    let sweeps = holes { while more && bcs_give_back(store.raw, nil, &more) == BCS_OK {} }
    #expect(sweeps > 0)
    #expect(store.indexBytes <= 4 << 20)
  }

  @Test func areMadeWhenNothingWasCommittedSinceTheLastLook() throws {
    let store = try storeWithFreePages()
    var (since, more) = (UInt64(0), false)
    #expect(bcs_give_back(store.raw, &since, &more) == BCS_BUSY)
    store.commit([try store.put("another", [1])])
    #expect(bcs_give_back(store.raw, &since, &more) == BCS_BUSY)
    #expect(store.indexBytes > 6 << 20)
    repeat {
      #expect(bcs_give_back(store.raw, &since, &more) == BCS_OK)
    } while more
    #expect(store.indexBytes <= 4 << 20)
    store.commit([try store.put("a third", [1])])
    #expect(bcs_give_back(store.raw, &since, &more) == BCS_OK, "there is nothing to give")
  }
}
