import BlobCache
import Foundation

/// An origin that counts its requests.
actor Origin {
  struct Response {
    var status: Int
    var etag: String
    var chunks: [[UInt8]]
  }
  private(set) var requests = 0
  private var version = 1

  func update() { version += 1 }

  func get(_ name: String, ifNoneMatch etag: String?) -> Response {
    requests += 1
    let current = "v\(version)"
    guard etag != current else { return Response(status: 304, etag: current, chunks: []) }
    let chunk = [UInt8]("\(name) \(current)".utf8)
    return Response(status: 200, etag: current, chunks: [chunk, chunk])
  }
}

/// One loader per key; its outcome, error and bytes reach all who wait.
func readThrough() async throws {
  let origin = Origin()
  let cache = try BlobCache.temporary()
  let name = "page"
  try await withThrowingTaskGroup(of: Data.self) { group in
    for _ in 0..<100 {
      group.addTask {
        try await cache.fetch(name, lifetime: .expires(after: .seconds(20))) { load in
          let response = await origin.get(name, ifNoneMatch: nil)
          for chunk in response.chunks { try await load.write(chunk) }
          return .complete(attributes: ["etag": .init(response.etag)])
        }.data
      }
    }
    for try await data in group { check(data == Data("page v1page v1".utf8)) }
  }
  check(await origin.requests == 1)
  check(try cache.blob(for: name)?.attributes["etag"]?.string == "v1")

  let reloaded = try await cache.fetch("page", policy: .reload) { load in
    try await load.write("fresh".utf8)
    return .complete(lifetime: .forever, attributes: [:], tags: ["loaded"])
  }
  check(reloaded.data == Data("fresh".utf8))
  if case .loaded = reloaded.source {} else { fail("a reload is loaded") }
  check(try await cache.fetch("page", policy: .cacheOnly) { _ in .complete }.count == 5)

  let passing = try await cache.fetch("passing") { load in
    try await load.write([1, 2])
    return .doNotStore
  }
  check(passing.count == 2)
  check(try cache.blob(for: "passing") == nil)

  struct Down: Error {}
  do {
    _ = try await cache.fetch("down") { _ in throw Down() }
    fail("no error")
  } catch is Down {
  }
  do {
    _ = try await cache.fetch("absent", policy: .cacheOnly) { _ in .complete }
    fail("no error")
  } catch let error as BlobCache.Error {
    check(error.code == .notCached)
  }
  let cancelled = Task {
    try await cache.fetch("slow") { load in
      try await Task.sleep(for: .seconds(3600))
      return .complete
    }
  }
  cancelled.cancel()
  do {
    _ = try await cancelled.value
    fail("no error")
  } catch is CancellationError {
  }
  try await cache.close()
}

/// What has expired stands to be revalidated: `.unchanged` keeps the bytes and renews.
func revalidation() async throws {
  let clock = BlobCache.ManualClock()
  var configuration = BlobCache.Configuration()
  configuration.clock = clock.clock
  let cache = try BlobCache.temporary(configuration: configuration)
  let origin = Origin()
  func page() async throws -> BlobCache.Blob {
    try await cache.fetch("page", lifetime: .expires(after: .seconds(20)), policy: .cacheFirst) {
      load in
      let etag = load.previous?.attributes["etag"]?.string
      let response = await origin.get("page", ifNoneMatch: etag)
      if response.status == 304 { return .unchanged }
      for chunk in response.chunks { try await load.write(chunk) }
      return .complete(attributes: ["etag": .init(response.etag)])
    }
  }
  let first = try await page()
  clock.advance(by: .seconds(21))
  check(try await page().data == first.data)
  check(await origin.requests == 2)
  clock.advance(by: .seconds(19))
  check(try await page().data == first.data)
  check(await origin.requests == 2, "a renewed entry is fresh")
  await origin.update()
  clock.advance(by: .seconds(21))
  check(try await page().data == Data("page v2page v2".utf8))

  clock.advance(by: .seconds(21))
  let renewed = try await cache.fetch("page") { load in
    check(load.key == "page")
    return .unchanged(lifetime: .expires(after: .seconds(5)), attributes: ["etag": "other"])
  }
  check(renewed.data == Data("page v2page v2".utf8))
  check(try cache.entry(for: "page")?.attributes["etag"]?.string == "other")
  try await cache.close()
}

/// What takes no closure throws `BlobCache.Error`, typed: no cast is needed, nothing else is thrown.
func errors(_ folder: String) async throws {
  let cache = try BlobCache.temporary()
  try await cache.close()
  do {
    _ = try cache.blob(for: "key")
    fail("no error")
  } catch {
    check(error.code == .closed)
    let typed: BlobCache.Error = error
    check(!typed.message.isEmpty)
  }
  do {
    try await cache.store([1], for: "key")
    fail("no error")
  } catch {
    check(error.code == .closed && error.code.rawValue == "closed")
  }
  let file = folder + "-file"
  try Data().write(to: URL(fileURLWithPath: file))
  do {
    _ = try BlobCache(directory: file)
    fail("no error")
  } catch {
    switch error.code {
    case .notADirectory: check(error.path != nil)
    default: fail("\(error)")
    }
  }
  do {
    _ = try await BlobCache.open(file)
    fail("no error")
  } catch {
    check(error.code == .notADirectory)
  }
  try FileManager.default.removeItem(atPath: file)
}
