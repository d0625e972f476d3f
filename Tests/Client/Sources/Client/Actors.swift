import BlobCache
import Foundation

/// Calls from inside actors, with their state captured.
actor Thumbnails {
  private let cache: BlobCache
  private let origin = Origin()
  private var served = 0
  private var sizes: [String: Int] = [:]

  init(cache: BlobCache) { self.cache = cache }

  func thumbnail(_ name: String) async throws -> Data {
    let width = sizes[name, default: 16]
    let origin = origin
    let blob = try await cache.fetch("\(name)@\(width)") { load in
      let response = await origin.get(name, ifNoneMatch: nil)
      await self.note(name)
      for chunk in response.chunks { try await load.write(chunk) }
      return .complete
    }
    served += 1
    return blob.data
  }

  func store(_ bytes: [UInt8], _ name: String) async throws -> Int {
    try await cache.store(bytes, for: name)
    // The body runs where its caller is: the actor's state is at hand.
    let entry = try await cache.store(for: "\(name)-streamed") { body in
      sizes[name] = bytes.count
      try await body.write(bytes)
      served += 1
    }
    // And so does a lookup's body.
    let counted = try cache.withBytes(for: name) { span in
      served += 1
      return span.byteCount
    }
    check(counted == bytes.count)
    return entry.size
  }

  private func note(_ name: String) { sizes[name] = 16 }
  var count: Int { served }
}

@MainActor
final class ViewModel {
  var shown: Data?
  var pieces = 0

  init() {}

  func show(_ name: String, from cache: BlobCache) async throws {
    shown = try cache.blob(for: name)?.data
    let blob = try await cache.fetch(name) { load in
      try await load.write("main".utf8)
      return .complete
    }
    shown = blob.data
    try await cache.store(for: "streamed-\(name)") { body in
      for piece in ["a", "b"] {
        pieces += 1
        try await body.write(piece.utf8)
      }
    }
    for try await _ in cache.entries() { pieces += 1 }
  }
}

func actors() async throws {
  let cache = try BlobCache.temporary()
  let thumbnails = Thumbnails(cache: cache)
  check(try await thumbnails.thumbnail("cat") == Data("cat v1cat v1".utf8))
  check(try await thumbnails.store([1, 2, 3], "dog") == 3)
  check(await thumbnails.count == 3)
  let model = await ViewModel()
  try await model.show("page", from: cache)
  check(await model.shown == Data("main".utf8))
  check(await model.pieces >= 2)
  // From detached tasks, sharing the cache.
  let sum = try await withThrowingTaskGroup(of: Int.self) { group in
    for index in 0..<20 {
      group.addTask {
        try await cache.fetch("n-\(index % 4)") { load in
          try await load.write([1, 2])
          return .complete
        }.count
      }
    }
    return try await group.reduce(0, +)
  }
  check(sum == 40)
  try await cache.close()
}
