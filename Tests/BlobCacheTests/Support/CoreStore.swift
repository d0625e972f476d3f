import CBlobStore
import Foundation
import Testing

/// A store below the library, for tests that choose which writes share a batch. Closed with the last reference.
final class CoreStore {
  let raw: OpaquePointer
  private let path: String
  static let now: Int64 = 1_000_000

  init(_ path: String, bytes limit: Int = 0, inline threshold: UInt32 = 0) throws {
    var options = bcs_options()
    options.create = true
    options.inline_threshold = threshold
    var opened: OpaquePointer?
    try #require(bcs_open(path, &options, &opened) == BCS_OK)
    raw = try #require(opened)
    self.path = path
    if limit > 0 {
      var limits = bcs_limits()
      limits.bytes = UInt64(limit)
      try #require(bcs_set_limits(raw, &limits) == BCS_OK)
    }
  }

  deinit { bcs_close(raw) }

  var indexBytes: Int { Int(fileStatus(path + "/index/data.mdb")?.st_blocks ?? 0) * 512 }

  static func withSpec<R>(
    _ key: String, stale: Int64 = 0, lifetime: bcs_lifetime? = nil,
    _ body: (UnsafePointer<bcs_entry_spec>) -> R
  ) -> R {
    let forever = bcs_lifetime(
      kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0)
    return Array(key.utf8).withUnsafeBytes { key in
      var spec = bcs_entry_spec(
        key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
        tags: nil, tags_count: 0, lifetime: lifetime ?? forever, stale_ms: stale, now_ms: now)
      return body(&spec)
    }
  }

  func put(
    _ key: String, _ body: [UInt8], stale: Int64 = 0, lifetime: bcs_lifetime? = nil
  ) throws -> OpaquePointer {
    var write: OpaquePointer?
    let status = Self.withSpec(key, stale: stale, lifetime: lifetime) {
      bcs_write_inline(raw, $0, body, body.count, nil, &write)
    }
    try #require(status == BCS_OK)
    return try #require(write)
  }

  /// A body that is to be a file. The stage is freed by the caller.
  func stage(_ key: String, _ bytes: [UInt8]) throws -> (OpaquePointer, OpaquePointer) {
    var stage: OpaquePointer?
    try #require(bcs_stage_begin(raw, &stage) == BCS_OK)
    try #require(bcs_stage_write(stage, bytes, bytes.count) == BCS_OK)
    var digest = [UInt8](repeating: 0, count: Int(BCS_DIGEST_SIZE))
    var size: UInt64 = 0
    try #require(bcs_stage_finish(stage, &digest, &size) == BCS_OK)
    var write: OpaquePointer?
    let status = Self.withSpec(key) { bcs_write_staged(raw, $0, stage, &write) }
    try #require(status == BCS_OK)
    return (try #require(stage), try #require(write))
  }

  func renew(
    _ key: String, stale: Int64 = -1, lifetime: bcs_lifetime? = nil
  ) throws -> OpaquePointer {
    var write: OpaquePointer?
    let status = Self.withSpec(key, stale: stale, lifetime: lifetime) {
      bcs_write_renew(raw, $0, 0, &write)
    }
    try #require(status == BCS_OK)
    return try #require(write)
  }

  func remove(_ key: String) throws -> OpaquePointer {
    var write: OpaquePointer?
    try #require(bcs_write_remove(raw, key, key.utf8.count, &write) == BCS_OK)
    return try #require(write)
  }

  func pin(_ key: String) throws -> OpaquePointer {
    var write: OpaquePointer?
    try #require(bcs_write_pin(raw, key, key.utf8.count, true, &write) == BCS_OK)
    return try #require(write)
  }

  /// Commits and frees them; what became of each.
  @discardableResult
  func commit(_ writes: [OpaquePointer?]) -> [bcs_status] {
    _ = bcs_commit(raw, writes, writes.count, false)
    defer { for write in writes { bcs_write_free(write) } }
    return writes.map { bcs_write_result($0, nil) }
  }

  /// What an entry's record says, its pointers aside.
  func record(_ key: String) -> bcs_record? {
    var found: bcs_record?
    var damage = bcs_damage()
    let status = withUnsafeMutablePointer(to: &found) { found in
      bcs_lookup(
        raw, key, key.utf8.count, Self.now, BCS_LOOKUP_METADATA.rawValue,
        { context, record, _ in
          context?.assumingMemoryBound(to: bcs_record?.self).pointee = record?.pointee
        }, found, &damage)
    }
    return status == BCS_OK ? found : nil
  }
}
