import CBlobStore
import Foundation
import Testing

/// What the article on the format shows is what stands on the disk.
@Suite("On-disk format") struct OnDiskFormatTests {
  private func article() throws -> String {
    let root = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
      .deletingLastPathComponent().deletingLastPathComponent()
    return try String(
      contentsOf: root.appending(path: "Sources/BlobCache/BlobCache.docc/OnDiskFormat.md"),
      encoding: .utf8)
  }

  /// The example's bytes, from the article.
  private func example() throws -> [UInt8] {
    let block = try #require(
      article().components(separatedBy: "```").first { $0.contains("generation 4; 2 bytes") })
    return block.split(separator: "\n").flatMap { line in
      // An offset, then up to 16 bytes, then words for people behind three blanks.
      let hex = line.dropFirst(5).components(separatedBy: "   ")[0]
      return hex.split(separator: " ").compactMap { UInt8($0, radix: 16) }
    }
  }

  @Test func aSlidingLifetimeThatWasShortenedIsWrittenAsShown() throws {
    let path = NSTemporaryDirectory() + "format-" + UUID().uuidString
    defer { try? FileManager.default.removeItem(atPath: path) }  // a leftover of a failed test
    var options = bcs_options()
    options.create = true
    var store: OpaquePointer?
    try #require(bcs_open(path, &options, &store) == BCS_OK)
    var write: OpaquePointer?
    var spec = bcs_entry_spec()
    spec.lifetime = bcs_lifetime(
      kind: BCS_SLIDING, shortened_ms: 6_000, deadline_ms: 55_000, window_ms: 20_000)
    spec.now_ms = 1_000
    #expect(
      "key".withCString { key in
        spec.key = UnsafeRawPointer(key)
        spec.key_count = 3
        return bcs_write_inline(store, &spec, "hi", 2, nil, &write)
      } == BCS_OK)
    #expect(bcs_commit(store, [write], 1, false) == BCS_OK)
    bcs_write_free(write)
    bcs_close(store)
    let shown = "d8 d6 00 00 00 00 00 00 20 4e 00 00 00 00 00 00 00 00 00 00 70 17 00 00"
    #expect(try article().contains("`\(shown)`"))
    let data = try #require(FileManager.default.contents(atPath: path + "/index/data.mdb"))
    let bytes = shown.split(separator: " ").compactMap { UInt8($0, radix: 16) }
    #expect(data.range(of: Data(bytes)) != nil)
  }

  @Test func theExampleIsWhatIsWritten() throws {
    let expected = try example()
    #expect(expected.count == 115)
    let path = NSTemporaryDirectory() + "format-" + UUID().uuidString
    defer { try? FileManager.default.removeItem(atPath: path) }  // a leftover of a failed test
    var options = bcs_options()
    options.create = true
    var store: OpaquePointer?
    try #require(bcs_open(path, &options, &store) == BCS_OK)
    // Lines 0 to 6 go to others.
    for key in ["0", "1", "2", "3", "4", "5", "6", "k"] {
      var write: OpaquePointer?
      let status = Array(key.utf8).withUnsafeBytes { key in
        var spec = bcs_entry_spec(
          key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
          tags: nil, tags_count: 0,
          lifetime: bcs_lifetime(
            kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0), stale_ms: 0,
          now_ms: 1_000)
        return bcs_write_inline(store, &spec, "hi", 2, nil, &write)
      }
      #expect(status == BCS_OK)
      #expect(bcs_commit(store, [write], 1, false) == BCS_OK)
      bcs_write_free(write)
    }
    bcs_close(store)
    let data = try #require(FileManager.default.contents(atPath: path + "/index/data.mdb"))
    #expect(data.range(of: Data(expected)) != nil)
  }
}
