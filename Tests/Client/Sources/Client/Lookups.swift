import BlobCache
import Foundation

/// Lookups are synchronous; nil is a miss.
func lookups() async throws {
  let cache = try BlobCache.temporary()
  let key: BlobCache.Key = "https://img.example/1.jpg"
  check(try cache.blob(for: key) == nil)
  let entry = try await cache.store([1, 2, 3], for: key)

  let blob: BlobCache.Blob? = try cache.blob(for: "https://img.example/1.jpg")
  check(blob?.count == 3)
  let count = try cache.withBytes(for: key) { (bytes: RawSpan) in bytes.byteCount }
  check(count == 3)
  let sum = try cache.withBytes(for: key) { bytes in
    var sum = 0
    for index in 0..<bytes.byteCount {
      sum += Int(bytes.unsafeLoadUnaligned(fromByteOffset: index, as: UInt8.self))
    }
    return sum
  }
  check(sum == 6)
  let missing = try cache.withBytes(for: "missing") { bytes in bytes.byteCount }
  check(missing == nil)
  let digest = entry.digest
  check(try cache.blob(withDigest: digest)?.data == Data([1, 2, 3]))
  check(try cache.entry(for: key)?.size == 3)
  check(try cache.contains(key))
  check(try !cache.contains("missing"))

  // The body's own error comes out unchanged.
  struct Mine: Error {}
  do {
    _ = try cache.withBytes(for: key) { _ in throw Mine() }
    fail("no error")
  } catch is Mine {
  }
  try await cache.close()
}

/// A key is a literal, a string, a part of one, or bytes; every method takes each of them.
func keysOfEveryKind() async throws {
  let cache = try BlobCache.temporary()
  let name = "thumb"
  try await cache.store([1], for: "literal")
  try await cache.store([2], for: "interpolated-\(name)")
  let string = "string"
  try await cache.store([3], for: string)
  let substring = "a substring".dropFirst(2)
  try await cache.store([4], for: substring)
  try await cache.store([5], for: Data([0, 1, 2]))
  try await cache.store([6], for: [UInt8](arrayLiteral: 0, 1, 3))
  try await cache.store([7], for: [UInt8](arrayLiteral: 9, 0, 1, 4, 9)[1..<4])
  try await cache.store([8], for: BlobCache.Key("wrapped".utf8))

  check(try cache.blob(for: BlobCache.Key("literal"))?.data == Data([1]))
  check(try cache.blob(for: "interpolated-thumb")?.data == Data([2]))
  check(try cache.blob(for: string)?.data == Data([3]))
  check(try cache.blob(for: "substring")?.data == Data([4]))
  check(try cache.blob(for: substring)?.data == Data([4]))
  check(try cache.blob(for: [UInt8](arrayLiteral: 0, 1, 2))?.data == Data([5]))
  check(try cache.contains(Data([0, 1, 3])))
  check(try cache.entry(for: Data([0, 1, 4]))?.size == 1)
  check(try cache.blob(for: "wrapped")?.data == Data([8]))
  let fetched = try await cache.fetch(string) { _ in .complete }
  check(fetched.data == Data([3]))
  check(try await cache.renew(substring, lifetime: .forever))
  check(try await cache.remove(Data([0, 1, 2])))
  check(try await !cache.remove(Data([0, 1, 2])))

  // Keys are compared by their bytes: é in its two normal forms is two keys.
  try await cache.store([9], for: "caf\u{E9}")
  check(try !cache.contains("cafe\u{301}"))
  check(BlobCache.Key("caf\u{E9}") != BlobCache.Key("cafe\u{301}"))
  check(BlobCache.Key("a") == BlobCache.Key([0x61]))
  check(BlobCache.Key("a").string == "a" && BlobCache.Key([0xFF]).string == nil)
  try await cache.store([10], for: "")
  check(try cache.contains(""))

  /// A user's own key type.
  struct UserID: BlobCache.KeyConvertible {
    var number: Int
    var blobCacheKey: BlobCache.Key { "user:\(number)" }
  }
  try await cache.store([11], for: UserID(number: 7))
  check(try cache.blob(for: "user:7")?.data == Data([11]))
  try await cache.close()
}

/// Blobs, digests, attributes and entries as values.
func values(_ folder: String) async throws {
  let cache = try BlobCache(directory: folder + "-values")
  defer { try? FileManager.default.removeItem(atPath: folder + "-values") }
  let bytes = [UInt8](repeating: 7, count: 100_000)
  try await cache.store(
    bytes, for: "key", attributes: ["etag": "\"x\"", "raw": [1, 2, 3], "type": "text/plain"])
  guard let blob = try cache.blob(for: "key") else { fail("a miss") }
  check(blob.count == 100_000)
  let span = blob.bytes
  check(span.byteCount == 100_000)
  check(blob.withUnsafeBytes { $0.allSatisfy { $0 == 7 } })
  check(blob.attributes["etag"]?.string == "\"x\"")
  check(blob.attributes["raw"]?.bytes == [1, 2, 3])
  check(blob.attributes["absent"] == nil)
  check(blob.attributes.map { $0.name } == ["etag", "raw", "type"])
  check(blob.entry.key == "key" && blob.entry.size == 100_000)
  try blob.write(to: folder + "-copy")
  check(FileManager.default.contents(atPath: folder + "-copy") == Data(bytes))
  try FileManager.default.removeItem(atPath: folder + "-copy")
  let size = try blob.withFileDescriptor { descriptor in
    lseek(descriptor, 0, SEEK_END)
  }
  check(size == 100_000)

  let digest = try BlobCache.Digest(hex: blob.digest.hex)
  check(digest == blob.digest && digest == BlobCache.Digest(hashing: bytes))
  check("\(digest)" == digest.hex && digest.bytes.count == 32)
  do {
    _ = try BlobCache.Digest(hex: "not hexadecimal")
    fail("no error")
  } catch {
    check(error.code == .invalidDigest)
  }
  switch blob.source {
  case .index, .memory: fail("a large blob is a file")
  case .file: break
  case .loaded, .stale, .loadedNotStored: fail("it was not loaded")
  }
  try await cache.close()
}
