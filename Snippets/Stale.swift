import BlobCache

/// An origin that is up, and then is not.
struct Origin {
  struct Down: Error {}
  var isUp = true

  func get() throws -> String {
    guard isUp else { throw Down() }
    return "the weather"
  }
}

let clock = BlobCache.ManualClock()
var configuration = BlobCache.Configuration()
configuration.clock = clock.clock
configuration.defaultLifetime = .expires(after: .seconds(60))
configuration.defaultStaleWindow = .seconds(3600)  // kept that long after its expiry
configuration.loadTimeLimit = .seconds(10)  // a loader that hangs is given up
let cache = try BlobCache.temporary(configuration: configuration)

// Up to a minute late: at once, and one load in the background. Later: wait, and the old copy if that fails.
let policy = BlobCache.FetchPolicy.staleWhileRevalidate(for: .seconds(60)).staleIfError()

var origin = Origin()
for minute in [0, 1, 30, 120] {
  clock.set(to: .init(timeIntervalSince1970: 1_700_000_000 + Double(minute) * 60))
  origin.isUp = minute == 0
  do {
    let blob = try await cache.fetch("weather", policy: policy) { [origin] load in
      try await load.write(origin.get().utf8)
      return .complete
    }
    print("minute \(minute): \(blob.source)", blob.staleCause.map { "since \($0)" } ?? "")
  } catch {
    print("minute \(minute): \(error)")  // older than its stale window: nothing is left to give
  }
}
try await cache.close()
