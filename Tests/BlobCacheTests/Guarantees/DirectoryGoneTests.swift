import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 9: a directory that is removed or renamed while it is open. What writes or walks says so
/// with its name, lookups find what they still can, and opening anew works.
@Suite("9. A directory that goes away")
struct DirectoryGoneTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  enum Loss: CaseIterable { case removed, renamed, replaced }

  private func lose(_ loss: Loss) throws {
    switch loss {
    case .removed: try FileManager.default.removeItem(atPath: path)
    case .renamed: try FileManager.default.moveItem(atPath: path, toPath: path + ".old")
    case .replaced:
      try FileManager.default.moveItem(atPath: path, toPath: path + ".old")
      try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: false)
    }
  }

  @Test(arguments: Loss.allCases) func everyCallSaysSoAndOpeningAnewWorks(loss: Loss) async throws {
    let large = seededBytes(count: 100_000, seed: 1)
    let cache = try BlobCache(directory: path)
    try await cache.store([1], for: "small")
    try await cache.store(large, for: "large")
    let held = try #require(try cache.blob(for: "large"))
    let home = cache.directory
    try lose(loss)

    let errors = [
      try await errorOf { try await cache.store([2], for: "new") },
      try await errorOf { try await cache.store(large, for: "new") },
      try await errorOf {
        try await cache.store(for: "new") { try await $0.write(large + large + large) }
      },
      try await errorOf { try await cache.remove("small") },
      try await errorOf { try await cache.removeAll() },
      try await errorOf { try await cache.removeAll(withPrefix: "s") },
      try await errorOf { _ = try await cache.renew("small", lifetime: .forever) },
      try await errorOf { for try await _ in cache.entries() {} },
      try await errorOf { _ = try await cache.verify(.everything) },
      try await errorOf { _ = try await cache.verify(.structure) },
      try await errorOf { try await cache.flush() },
    ]
    for error in errors {
      #expect(error.code == .notFound, "\(error)")
      #expect(error.path == home, "\(error)")
      #expect(error.message.hasPrefix("The directory was removed or renamed"), "\(error)")
    }

    // Lookups throw nothing, and what they find is right.
    if let blob = try cache.blob(for: "small") { #expect(blob.holds([1])) }
    if let blob = try cache.blob(for: "large") { #expect(blob.holds(large)) }
    #expect(try cache.blob(for: "new") == nil)
    #expect(held.holds(large))
    let fetched = try await cache.fetch("fetched") { load in
      try await load.write(large)
      return .complete
    }
    #expect(fetched.holds(large))
    guard case .loadedNotStored(let cause) = fetched.source else {
      Issue.record("\(fetched.source)")
      return
    }
    #expect(cause.code == .notFound)

    if loss == .renamed {
      // The same directory by its new name: in this process it is open under the old one.
      let error = try await errorOf { _ = try BlobCache(directory: path + ".old") }
      #expect(error.path == home, "\(error)")
    }
    let beside = try BlobCache(directory: path)
    try await beside.store([3], for: "new")
    #expect(try beside.blob(for: "new")?.holds([3]) == true)
    #expect(try beside.blob(for: "small") == nil)
    try await beside.close()

    try await cache.close()
    if loss != .removed {
      let moved = try BlobCache(directory: path + ".old")
      #expect(try moved.blob(for: "small")?.holds([1]) == true)
      #expect(try moved.blob(for: "large")?.holds(large) == true)
      try await moved.store([4], for: "more")
      try await moved.close()
      #expect(try await structureOf(path + ".old") == "ok")
    }
  }

  // MARK: A FORMAT that is lost

  @Test func aCacheWithoutItsFormatIsRefusedUntouched() async throws {
    let cache = try BlobCache(directory: path)
    try await cache.store([1], for: "key")
    try await cache.close()
    let format = try #require(FileManager.default.contents(atPath: path + "/FORMAT"))
    try FileManager.default.removeItem(atPath: path + "/FORMAT")
    let before = snapshot(path)
    let error = try await errorOf { _ = try BlobCache(directory: path) }
    #expect(error.code == .notACache)
    #expect(error.cause?.contains("no FORMAT") == true, "\(error)")
    #expect(snapshot(path) == before)
    try format.write(to: URL(fileURLWithPath: path + "/FORMAT"))
    let again = try BlobCache(directory: path)
    #expect(try again.blob(for: "key")?.holds([1]) == true)
    try await again.close()
  }

  /// Whoever makes a directory begins with FORMAT.new; if it dies, the next one goes on.
  @Test func aDirectoryThatWasBeingMadeIsMadeToTheEnd() async throws {
    for name in [[], ["LOCK"], ["LOCK", "index", "slots"]] {
      let path = directory.path("begun-\(name.count)")
      let whole = try BlobCache(directory: path)
      try await whole.close()
      try FileManager.default.moveItem(atPath: path + "/FORMAT", toPath: path + "/FORMAT.new")
      for other in try FileManager.default.contentsOfDirectory(atPath: path)
      where other != "FORMAT.new" && !name.contains(other) {
        try FileManager.default.removeItem(atPath: "\(path)/\(other)")
      }
      let cache = try BlobCache(directory: path)
      try await cache.store([1], for: "key")
      try await cache.close()
      #expect(fileStatus(path + "/FORMAT") != nil)
      #expect(fileStatus(path + "/FORMAT.new") == nil)
    }
  }
}
