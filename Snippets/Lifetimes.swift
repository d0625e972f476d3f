import BlobCache

// A clock that stands still until it is moved: tests of what expires need no sleep.
let clock = BlobCache.ManualClock()
var configuration = BlobCache.Configuration()
configuration.clock = clock.clock
let cache = try BlobCache.temporary(configuration: configuration)

// Fresh for 20 s after each read, by whichever process, but never for more than a minute in all.
try await cache.store(
  "state".utf8, for: "session/1", lifetime: .sliding(.seconds(20), atMost: .seconds(60)))

for second in stride(from: 15, through: 75, by: 15) {
  clock.advance(by: .seconds(15))
  print("after \(second) s:", try cache.blob(for: "session/1") == nil ? "expired" : "fresh")
}
try await cache.close()
