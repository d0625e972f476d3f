import BlobCache

/// A folder for caches whose clock stands still until it is moved, and which nothing sweeps unasked.
struct StillCache {
  let directory = TemporaryDirectory()
  let clock = BlobCache.ManualClock()

  /// The directory of the one cache that most tests have.
  var path: String { directory.path("cache") }
  var folder: CacheFolder { CacheFolder(path) }

  func open(
    at other: String? = nil, _ change: (inout BlobCache.Configuration) -> Void = { _ in }
  ) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.sweepInterval = nil
    change(&configuration)
    return try BlobCache(directory: other ?? path, configuration: configuration)
  }
}
