import BlobCache
import CBlobStore
import Foundation

/// Where threads wait until all of them have come.
private final class Meeting: @unchecked Sendable {
  // Sendable: all of it under the condition's lock.
  private let condition = NSCondition()
  private let expected: Int
  private var arrived = 0
  private var found = 0

  init(of expected: Int) { self.expected = expected }

  func wait() {
    condition.withLock {
      arrived += 1
      found += 1
      condition.broadcast()
      while arrived < expected { condition.wait() }
    }
  }

  /// Of one that will not come.
  func miss() {
    condition.withLock {
      arrived += 1
      condition.broadcast()
    }
  }

  var hits: Int { condition.withLock { found } }
}

extension Commands {
  /// `lookups DIRECTORY COUNT`: opens below the library and stores, answers `open`, and when another line comes looks
  /// it up on COUNT threads, each of which is in its lookup until all of them are. Answers with how many found it.
  func lookupsAtOnce(_ words: [String]) throws -> String {
    guard words.count == 2, let count = Int(words[1]) else {
      throw UsageError(description: "lookups DIRECTORY COUNT")
    }
    var options = bcs_options()
    options.create = true
    var opened: OpaquePointer?
    guard bcs_open(words[0], &options, &opened) == BCS_OK, let opened else { return cError("open") }
    defer { bcs_close(opened) }
    var write: OpaquePointer?
    let status = Array("key".utf8).withUnsafeBytes { key in
      var spec = bcs_entry_spec(
        key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
        tags: nil, tags_count: 0,
        lifetime: bcs_lifetime(
          kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0),
        stale_ms: 0,
        now_ms: 1_900_000_000_000)
      return bcs_write_inline(opened, &spec, "x", 1, nil, &write)
    }
    guard status == BCS_OK, bcs_commit(opened, [write], 1, false) == BCS_OK,
      bcs_flush(opened) == BCS_OK
    else { return cError("store") }
    bcs_write_free(write)
    answer("open")
    _ = readLine()
    let meeting = Meeting(of: count)
    let group = DispatchGroup()
    nonisolated(unsafe) let store = opened  // C allows any thread
    for _ in 0..<count {
      group.enter()
      Thread.detachNewThread {
        var damage = bcs_damage()
        let status = bcs_lookup(
          store, "key", 3, 1_900_000_000_000, 0,
          { context, _, _ in
            context.map { Unmanaged<Meeting>.fromOpaque($0).takeUnretainedValue().wait() }
          }, Unmanaged.passUnretained(meeting).toOpaque(), &damage)
        if status != BCS_OK { meeting.miss() }
        group.leave()
      }
    }
    group.wait()
    return "ok \(meeting.hits)"
  }
}
