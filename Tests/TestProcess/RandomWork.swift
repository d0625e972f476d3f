import BlobCache
import Foundation

/// `random SEED`: stores, removals and now and then a removal of everything, until the process is
/// killed. Each is announced before it begins and acknowledged after it has returned:
///
///     begin store KEY SIZE SEED        done
///     begin remove KEY                 done
///     begin clear                      done
///
/// so that whoever reads the lines knows what must be there: what is done, and for the one that is
/// only begun, either the state before or the one after.
func randomWork(on cache: BlobCache, _ words: [String]) async throws {
  guard let text = words.first, let seed = UInt64(text) else {
    throw UsageError(description: "random SEED")
  }
  var random = SeededGenerator(seed: seed)
  // Inline bodies, bodies about a page, and files; repeated seeds make shared blobs.
  let sizes = [0, 1, 700, 4096, 9000, 70_000, 200_000]
  while true {
    let key = "key-\(Int.random(in: 0..<12, using: &random))"
    switch Int.random(in: 0..<20, using: &random) {
    case 0:
      answer("begin clear")
      try await cache.removeAll()
    case 1...4:
      answer("begin remove \(key)")
      try await cache.remove(BlobCache.Key(key))
    default:
      let size = sizes.randomElement(using: &random) ?? 0
      let body = UInt64.random(in: 0..<6, using: &random)
      answer("begin store \(key) \(size) \(body)")
      let bytes = seededBytes(count: size, seed: body)
      if Bool.random(using: &random) {
        try await cache.store(bytes, for: BlobCache.Key(key))
      } else {
        try await cache.store(for: BlobCache.Key(key)) { body in
          try await body.write(bytes.prefix(size / 2))
          try await body.write(bytes.dropFirst(size / 2))
        }
      }
    }
    answer("done")
  }
}
