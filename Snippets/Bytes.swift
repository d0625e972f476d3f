import BlobCache
import Foundation

let cache = try BlobCache.temporary()
try await cache.store("Four ways to the bytes".utf8, for: "note")

if let blob = try cache.blob(for: "note") {
  // A copy as Data, the caller's to do with as it likes.
  print(String(decoding: blob.data, as: UTF8.self))

  // A RawSpan, without a copy; it cannot outlive the blob, which is bound to a name for that.
  let bytes = blob.bytes
  let word = bytes.extracting(first: 4).withUnsafeBytes { String(decoding: $0, as: UTF8.self) }
  print(bytes.byteCount, "bytes, the first word is", word)

  // A pointer, for C and for everything that takes a collection; valid inside the closure only.
  print("lines:", blob.withUnsafeBytes { $0.count { $0 == UInt8(ascii: "\n") } + 1 })

  // A file, replaced as a whole.
  let file = FileManager.default.temporaryDirectory.appendingPathComponent("note.txt").path
  try blob.write(to: file)
  try FileManager.default.removeItem(atPath: file)
}

// In one step from the key, lent in place without even a Blob; nil is a miss. Keep the body short.
let count = try cache.withBytes(for: "note") { bytes in bytes.byteCount }
print(count ?? 0, "bytes")
try await cache.close()
