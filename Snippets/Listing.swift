import BlobCache

let cache = try BlobCache.temporary()
try await cache.storeAll(
  (1...3).map { number in
    BlobCache.Item(key: "user/\(number)", bytes: Array("picture \(number)".utf8))
  })

// In pages, each with a short read transaction: an entry that is there throughout comes exactly once.
for try await entry in cache.entries(withPrefix: "user/") {
  print(entry.key, entry.size, entry.hits)
}
print(try await cache.removeAll(withPrefix: "user/"), "removed,", cache.statistics.entries, "left")
try await cache.close()
