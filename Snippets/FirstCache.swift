import BlobCache

// Opens the directory, or makes it. Other processes may use it at the same time.
let cache = try await BlobCache.open("/tmp/pages")

// However many tasks ask for a missing key at once, one loader runs, and all of them get its bytes.
let url = "https://example.com/"
let page = try await cache.fetch(url, lifetime: .expires(after: .seconds(20))) { load in
  try await load.write("the page, piece by piece, from wherever it comes".utf8)
  return .complete
}
print("\(page.count) bytes, \(page.source), sha256:\(page.digest)")

// A lookup is synchronous and waits for nobody; nil is a miss.
if let again = try cache.blob(for: url) {
  print("still here for \(again.entry.lifetime)")
}

// A store returns when every process sees it, whole.
try await cache.store("a report".utf8, for: "reports/today", lifetime: .sliding(.seconds(3600)))
try await cache.remove("reports/today")
try await cache.close()
