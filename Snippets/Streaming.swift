import BlobCache

let cache = try BlobCache.temporary()
let piece = [UInt8](repeating: 7, count: 65_536)

// The body is never in memory as a whole. It is hashed as it is written, and visible only when all of it is there and
// the digest and size are those expected; else the call throws and nothing is stored.
let entry = try await cache.store(for: "model.bin", expectingSize: 64 * piece.count) { body in
  for _ in 0..<64 { try await body.write(piece) }
}
print("stored \(entry.size) bytes in a \(entry.location), sha256:\(entry.digest)")

do {
  let wrong = try BlobCache.Digest(hex: String(repeating: "00", count: 32))
  try await cache.store(piece, for: "other", expecting: wrong)
} catch {
  print(error.code)  // digestMismatch
}
try await cache.close()
