import BlobCache
import Foundation

/// Every form of `store`.
func storesOfEveryKind(_ folder: String) async throws {
  var configuration = BlobCache.Configuration()
  configuration.defaultLifetime = .expires(after: .seconds(3600))
  configuration.durability = .durable
  let cache = try await BlobCache.open(folder, configuration: configuration)

  // Bytes of any collection.
  let array: [UInt8] = [1, 2, 3]
  let key: BlobCache.Key = "key"
  try await cache.store(array, for: key, lifetime: .expires(after: .seconds(20)))
  try await cache.store(Data(array), for: key)
  try await cache.store("text".utf8, for: key)
  try await cache.store(array[1...], for: key)
  try await cache.store(CollectionOfOne(9), for: key)
  let entry = try await cache.store(
    array, for: "attributes", lifetime: .sliding(.seconds(20), atMost: .seconds(3600)),
    attributes: ["etag": "\"x\""])
  check(entry.size == 3 && entry.attributes["etag"]?.string == "\"x\"")
  check(entry.lifetime == .sliding(.seconds(20), atMost: .seconds(3600)))

  // A file, copied or moved.
  let path = folder + "-source"
  try Data(repeating: 5, count: 200_000).write(to: URL(fileURLWithPath: path))
  try await cache.store(contentsOf: path, for: "copied")
  check(FileManager.default.fileExists(atPath: path))
  try await cache.store(contentsOf: path, for: "moved", mode: .moving)
  check(!FileManager.default.fileExists(atPath: path))
  check(try cache.blob(for: "moved")?.count == 200_000)

  // A stream, with what is expected of it.
  let digest = BlobCache.Digest(hashing: [UInt8](repeating: 1, count: 40))
  let upstream = AsyncStream<[UInt8]> { continuation in
    for _ in 0..<4 { continuation.yield([UInt8](repeating: 1, count: 10)) }
    continuation.finish()
  }
  let streamed = try await cache.store(
    for: "streamed", lifetime: .sliding(.seconds(20), atMost: .seconds(3600)),
    attributes: ["etag": "\"x\""], expecting: digest, expectingSize: 40
  ) { body in
    for await chunk in upstream { try await body.write(chunk) }
  }
  check(streamed.digest == digest && streamed.size == 40)
  check(try cache.blob(withDigest: digest)?.count == 40)

  // Several in one batch.
  let entries = try await cache.storeAll([
    BlobCache.Item(key: "a", bytes: [1]),
    BlobCache.Item(
      key: "b", bytes: [2], lifetime: .expires(at: Date(timeIntervalSinceNow: 60)),
      attributes: ["n": "2"]),
  ])
  check(entries.map { $0.size } == [1, 1])
  check(try cache.contains("a") && cache.contains("b"))
  try await cache.flush()
  try await cache.close()
}

/// Removal, renewal, listing, verification, counters.
func maintenance() async throws {
  let clock = BlobCache.ManualClock()
  var configuration = BlobCache.Configuration()
  configuration.clock = clock.clock
  let cache = try BlobCache.temporary(configuration: configuration)
  for index in 0..<10 {
    try await cache.store([UInt8(index)], for: "https://a/\(index)")
    try await cache.store([UInt8(index)], for: "https://b/\(index)")
  }
  var listed = 0
  for try await entry in cache.entries() { listed += entry.size }
  check(listed == 20)
  var keys: Set<BlobCache.Key> = []
  for try await entry in cache.entries(withPrefix: "https://a/") { keys.insert(entry.key) }
  check(keys.count == 10 && keys.contains("https://a/3"))

  check(try await cache.removeAll(withPrefix: "https://a/") == 10)
  check(try await cache.remove("https://b/1"))
  check(try await !cache.remove("https://b/1"))
  check(try await cache.renew("https://b/2", lifetime: .expires(after: .seconds(20))))
  check(try await !cache.renew("absent", lifetime: .forever))
  clock.advance(by: .seconds(30))
  check(try !cache.contains("https://b/2"))
  check(try cache.contains("https://b/3"))

  let report = try await cache.verify(.everything)
  check(report.isSound)
  _ = try await cache.verify(.everything, repair: true) { _ in }
  check(cache.statistics.stores >= 20)
  try await cache.removeAll()
  check(cache.statistics.entries == 0)
  try await cache.close()
}
