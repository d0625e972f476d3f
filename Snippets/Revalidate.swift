import BlobCache

/// An origin that knows version tags, as an HTTP server does.
struct Origin {
  func get(ifNoneMatch tag: String?) async -> (tag: String, body: [UInt8]?) {
    tag == "v1" ? ("v1", nil) : ("v1", Array("the feed".utf8))
  }
}

let cache = try BlobCache.temporary()

for attempt in 1...2 {
  let feed = try await cache.fetch("feed", policy: .reload) { load in
    let answer = await Origin().get(ifNoneMatch: load.previous?.attributes["etag"]?.string)
    guard let body = answer.body else { return .unchanged }  // keeps the bytes, renews the lifetime
    try await load.write(body)
    return .complete(attributes: ["etag": BlobCache.AttributeValue(answer.tag)])
  }
  let tag = feed.attributes["etag"]?.string ?? "none"
  print("attempt \(attempt): \(feed.count) bytes, etag \(tag)")
}
try await cache.close()
