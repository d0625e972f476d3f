import BlobCache

var configuration = BlobCache.Configuration()
configuration.limits = .init(bytes: 10 << 30, entries: 1_000_000)
let cache = try BlobCache.temporary(configuration: configuration)

try await cache.store("a page".utf8, for: "pages/1", tags: ["user:7"])
try await cache.pin("pages/1")  // neither evicted nor swept, until unpinned or removed

try await cache.removeAll(tagged: "user:7")
try await cache.trim(to: .bytes(1 << 30))  // once; the recorded limits stay
print(try cache.limits, cache.statistics.usedBytes, "bytes used")
try await cache.close()
