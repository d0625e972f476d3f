import BlobCache

var configuration = BlobCache.Configuration()
// Or .checkpointed(every: .seconds(30)); recorded when the directory is made.
configuration.durability = .durable
configuration.onEvent = { event in
  // Off the path of hits, from any thread: loads, failures, damage, what an opening found.
  switch event.kind {
  case .backgroundError, .damaged, .indexSetAside, .limitsNotMet, .storeFailed:
    print("cache:", event.kind.rawValue, event.error.map { "\($0)" } ?? "")
  default: break
  }
}
let cache = try BlobCache.temporary(configuration: configuration)
try await cache.store("kept".utf8, for: "key")  // on the disk when it returns
try await cache.close()
