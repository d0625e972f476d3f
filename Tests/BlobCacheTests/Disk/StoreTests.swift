import Foundation
import Testing

@testable import BlobCache

private func folder() -> String {
  NSTemporaryDirectory() + "blobcache-test-\(UUID().uuidString)"
}

struct LifetimeStoreTests {
  let clock = BlobCache.ManualClock()
  let cache: BlobCache

  init() throws {
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    cache = try BlobCache.temporary(configuration: configuration)
  }

  @Test func after() async throws {
    let entry = try await cache.store([1], for: "k", lifetime: .expires(after: .seconds(20)))
    #expect(entry.expiresAt == clock.now.addingTimeInterval(20))
    clock.advance(by: .milliseconds(19_999))
    #expect(try cache.blob(for: "k") != nil)
    clock.advance(by: .milliseconds(1))
    #expect(try cache.blob(for: "k") == nil)
    #expect(try cache.contains("k") == false)
    #expect(try cache.entry(for: "k")?.isExpired == true)
    #expect(try await cache.renew("k", lifetime: .expires(after: .seconds(20))))
    #expect(try cache.blob(for: "k")?.entry.lifetime == .expires(after: .seconds(20)))
    #expect(try await cache.renew("absent", lifetime: .forever) == false)
  }

  @Test func atMoment() async throws {
    try await cache.store([1], for: "k", lifetime: .expires(at: clock.now.addingTimeInterval(5)))
    clock.advance(by: .seconds(4))
    #expect(try cache.contains("k"))
    clock.advance(by: .seconds(1))
    #expect(try cache.contains("k") == false)
  }

  @Test func sliding() async throws {
    try await cache.store(
      [1], for: "k", lifetime: .sliding(.seconds(10), atMost: .seconds(35)))
    for _ in 0..<4 {
      clock.advance(by: .seconds(8))
      #expect(try cache.blob(for: "k") != nil)
    }
    // 32 s have gone; the window alone would reach to 42.
    clock.advance(by: .seconds(4))
    #expect(try cache.blob(for: "k") == nil)

    try await cache.store([1], for: "j", lifetime: .sliding(.seconds(10)))
    clock.advance(by: .seconds(9))
    #expect(try cache.entry(for: "j") != nil, "metadata is no access")
    clock.advance(by: .seconds(1))
    #expect(try cache.blob(for: "j") == nil)
  }

  @Test func hitsAndAccess() async throws {
    try await cache.store([1], for: "k")
    #expect(try cache.entry(for: "k")?.lastAccess == nil)
    clock.advance(by: .seconds(60))
    _ = try cache.blob(for: "k")
    let entry = try #require(try cache.entry(for: "k"))
    #expect(entry.hits == 1)
    #expect(entry.lastAccess == clock.now)
    #expect(cache.statistics.hits == 1)
    _ = try cache.blob(for: "absent")
    #expect(cache.statistics.misses == 1)
  }
}

struct ListingTests {
  @Test func entriesAndPrefixes() async throws {
    let cache = try BlobCache.temporary()
    let items = (0..<1000).map { number in
      BlobCache.Item(key: "\(number % 2 == 0 ? "a" : "b")/\(number)", bytes: [UInt8(number % 251)])
    }
    try await cache.storeAll(items)
    var keys: Set<BlobCache.Key> = []
    for try await entry in cache.entries() {
      #expect(keys.insert(entry.key).inserted)
    }
    #expect(keys == Set(items.map(\.key)))
    var some = 0
    for try await entry in cache.entries(withPrefix: "a/") {
      #expect(entry.key.string?.hasPrefix("a/") == true)
      some += 1
    }
    #expect(some == 500)
    #expect(try await cache.removeAll(withPrefix: "a/") == 500)
    #expect(cache.statistics.entries == 500)
    #expect(try cache.contains("b/1"))
    #expect(try await cache.removeAll(withPrefix: "") == 500)
    #expect(cache.statistics.removals == 1000)
    try await cache.close()
  }

  @Test func census() async throws {
    let clock = BlobCache.ManualClock()
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    try await cache.store(seeded(500_000), for: "a")
    try await cache.store([1], for: "b", lifetime: .expires(after: .seconds(1)))
    clock.advance(by: .seconds(1))
    let census = try await cache.census()
    #expect(census.statistics.entries == 2)
    #expect(census.statistics.blobBytes == 500_000)
    #expect(census.expired == 1)
    #expect(census.indexAllocatedBytes > 0)
    try await cache.close()
  }
}

struct StoreLifecycleTests {
  @Test func twoInstancesShare() async throws {
    let path = folder()
    let one = try BlobCache(directory: path)
    let two = try BlobCache(directory: path)
    let link = path + ".link"
    try FileManager.default.createSymbolicLink(atPath: link, withDestinationPath: path)
    defer {
      try? FileManager.default.removeItem(atPath: link)
      try? FileManager.default.removeItem(atPath: path)
    }
    let three = try BlobCache(directory: link)
    #expect(one.store === two.store)
    #expect(one.store === three.store)
    try await one.store([1], for: "k")
    try await one.close()
    let error = #expect(throws: BlobCache.Error.self) { try one.blob(for: "k") }
    #expect(error?.code == .closed)
    #expect(try two.blob(for: "k") != nil)
    try await two.close()
    #expect(try three.blob(for: "k") != nil)
    try await three.close()
    try await three.close()
    let again = try await BlobCache.open(path)
    #expect(try again.blob(for: "k") != nil)
    var durable = BlobCache.Configuration()
    durable.durability = .durable
    let mismatch = #expect(throws: BlobCache.Error.self) {
      try BlobCache(directory: path, configuration: durable)
    }
    #expect(mismatch?.code == .durabilityMismatch)
    try await again.close()
  }

  @Test func withoutClose() async throws {
    let path = folder()
    defer { try? FileManager.default.removeItem(atPath: path) }
    for round in 0..<20 {
      let cache = try BlobCache(directory: path)
      if round > 0 { #expect(try cache.blob(for: "k\(round - 1)") != nil) }
      try await cache.store([UInt8(round)], for: "k\(round)")
    }
  }

  @Test func everythingThrowsClosed() async throws {
    let cache = try BlobCache.temporary()
    let directory = cache.directory
    #expect(FileManager.default.fileExists(atPath: directory))
    try await cache.close()
    #expect(!FileManager.default.fileExists(atPath: directory))
    func expectClosed(_ call: () async throws -> Void) async {
      let error = await #expect(throws: BlobCache.Error.self) { try await call() }
      #expect(error?.code == .closed)
    }
    await expectClosed { _ = try cache.blob(for: "k") }
    await expectClosed { _ = try cache.withBytes(for: "k") { $0.byteCount } }
    await expectClosed { _ = try cache.entry(for: "k") }
    await expectClosed { try await cache.store([1], for: "k") }
    await expectClosed { try await cache.store(for: "k") { try await $0.write([1]) } }
    await expectClosed { try await cache.storeAll([]) }
    await expectClosed { try await cache.remove("k") }
    await expectClosed { try await cache.removeAll() }
    await expectClosed { try await cache.renew("k", lifetime: .forever) }
    await expectClosed { try await cache.flush() }
    await expectClosed { _ = try await cache.verify() }
    await expectClosed { for try await _ in cache.entries() {} }
    _ = cache.statistics
  }

  @Test func closeDuringStreaming() async throws {
    let cache = try BlobCache.temporary()
    let error = await #expect(throws: BlobCache.Error.self) {
      try await cache.store(for: "k") { body in
        try await body.write(seeded(600_000))
        try await cache.close()
        try await body.write(seeded(600_000))
      }
    }
    #expect(error?.code == .closed)
  }

  @Test func badDirectories() async throws {
    let path = folder()
    try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: path) }
    try Data([1]).write(to: URL(fileURLWithPath: path + "/photo.jpg"))
    var error = #expect(throws: BlobCache.Error.self) { try BlobCache(directory: path) }
    #expect(error?.code == .notACache)
    error = #expect(throws: BlobCache.Error.self) { try BlobCache(directory: path + "/photo.jpg") }
    #expect(error?.code == .notADirectory)
    error = #expect(throws: BlobCache.Error.self) {
      try BlobCache(directory: path + "/photo.jpg/such")
    }
    #expect(error?.code == .notADirectory)
    #expect(error?.path?.contains(path) == true)
    var readOnly = BlobCache.Configuration()
    readOnly.readOnly = true
    error = #expect(throws: BlobCache.Error.self) {
      try BlobCache(directory: path + "/absent", configuration: readOnly)
    }
    #expect(error?.code == .notFound)
  }

  @Test func flushAndVerify() async throws {
    let cache = try BlobCache.temporary()
    try await cache.store(seeded(300_000), for: "a")
    try await cache.store(seeded(100), for: "b")
    try await cache.flush()
    let report = try await cache.verify()
    #expect(report.checkedBlobs == 2)
    #expect(report.isSound)
    try await cache.close()
  }
}

struct StoreDamageTests {
  @Test func flippedByteIsAMissAndHeals() async throws {
    let events = Events()
    let path = folder()
    defer { try? FileManager.default.removeItem(atPath: path) }
    let body = seeded(400_000)
    do {
      let cache = try BlobCache(directory: path)
      try await cache.store(body, for: "k")
      try await cache.close()
    }
    let hex = BlobCache.Digest(hashing: body).hex
    let file = "\(path)/blobs/\(hex.prefix(2))/\(hex)"
    let handle = try #require(FileHandle(forUpdatingAtPath: file))
    try handle.seek(toOffset: 1000)
    try handle.write(contentsOf: [body[1000] ^ 1])
    try handle.close()
    var configuration = BlobCache.Configuration()
    configuration.onEvent = { events.add($0) }
    let cache = try BlobCache(directory: path, configuration: configuration)
    let report = try await cache.verify()
    #expect(report.damagedKeys == ["k"])
    #expect(try cache.blob(for: "k") == nil)
    #expect(events.kinds.contains(.damaged))
    try await cache.flush()
    #expect(try cache.entry(for: "k") == nil)
    #expect(cache.statistics.damaged == 1)
    try await cache.store(body, for: "k")
    #expect(try cache.blob(for: "k")?.withUnsafeBytes { [UInt8]($0) } == body)
    #expect(try await cache.verify(repair: true).damagedBlobs == 0)
    try await cache.close()
  }
}

final class Events: @unchecked Sendable {  // its lock guards the list
  private let lock = NSLock()
  private var list: [BlobCache.Event] = []
  func add(_ event: BlobCache.Event) { lock.withLock { list.append(event) } }
  var kinds: [BlobCache.Event.Kind] { lock.withLock { list.map(\.kind) } }
}
