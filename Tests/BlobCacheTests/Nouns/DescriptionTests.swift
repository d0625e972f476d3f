import Foundation
import Testing

@testable import BlobCache

/// What `print` shows: one line, no body, keys cut to what a line holds.
@Suite struct DescriptionTests {
  private let long = BlobCache.Key("a\n" + String(repeating: "k", count: 5000) + "z")

  @Test func keysAreShortenedAndStayOnOneLine() {
    #expect(BlobCache.Key("user/\"1\"").summary == #""user/\"1\"""#)
    #expect(BlobCache.Key("").summary == "\"\"")
    #expect(BlobCache.Key([0xFF, 1]).summary == "\"0xff01\"")
    let summary = long.summary
    #expect(summary.count == 82)
    #expect(summary.hasPrefix(#""a\nkkk"#))
    #expect(summary.hasSuffix("kz\""))
    #expect(summary.contains("…"))
  }

  @Test func eventsTellWhatIsKnown() {
    let error = BlobCache.Error(.noSpace, operation: "write", message: "No space.")
    #expect(
      "\(BlobCache.Event.loaded(key: "k", duration: .milliseconds(20), size: 7))"
        == "loaded \"k\", 7 bytes, 0.02 seconds")
    #expect(
      "\(BlobCache.Event.storeFailed(key: "k", error: error))"
        == "storeFailed \"k\": No space. (noSpace, in write)")
    #expect("\(BlobCache.Event.Kind.damaged)" == "damaged")
  }

  @Test func limitsAreWords() {
    #expect("\(BlobCache.Limits.unlimited)" == "Limits(none)")
    #expect(
      "\(BlobCache.Limits.bytes(1 << 20))"
        == "Limits(at most 1048576 bytes, 5 % of the disk free, 1 GiB at most)")
    #expect(
      "\(BlobCache.Limits(bytes: 5, entries: 6, age: .seconds(7), minimumFreeDisk: 8))"
        == "Limits(at most 5 bytes, at most 6 entries, no older than 7.0 seconds, "
        + "8 bytes of the disk free)")
  }

  @Test func blobsAndEntriesShowNoBytes() async throws {
    let cache = try BlobCache.temporary()
    let entry = try await cache.store(
      Array("secret".utf8), for: long, lifetime: .expires(after: .seconds(20)),
      attributes: ["etag": "x", "b": [1, 2]])
    let blob = try #require(try cache.blob(for: long))
    let digest = BlobCache.Digest(hashing: Array("secret".utf8)).hex
    #expect(
      "\(entry)"
        == "Entry(\(long.summary), 6 bytes, index, expires after 20.0 seconds, "
        + "attributes [\"etag\": \"x\", \"b\": 2 bytes], sha256:\(digest))")
    #expect("\(blob)" == "Blob(\(long.summary), 6 bytes, index, sha256:\(digest))")
    #expect("\(BlobCache.Attributes())" == "[:]")
    try await cache.close()
  }
}
