import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

struct KeyTests {
  @Test func bytesDecide() {
    #expect(BlobCache.Key("abc") == BlobCache.Key(Array("abc".utf8)))
    #expect(BlobCache.Key("abc").hashValue == BlobCache.Key(Array("abc".utf8)).hashValue)
    #expect(BlobCache.Key("xabc".dropFirst()) == "abc")
    // One letter in two normal forms.
    #expect("\u{e9}" == "e\u{301}")
    #expect(BlobCache.Key("\u{e9}") != BlobCache.Key("e\u{301}"))
    #expect(BlobCache.Key("") == BlobCache.Key([UInt8]()))
    #expect(BlobCache.Key("a\0b") != BlobCache.Key("a"))
  }

  @Test func textAndBytes() {
    let name = "x"
    let key: BlobCache.Key = "user/\(name)"
    #expect(key.string == "user/x")
    #expect(key.byteCount == 6)
    #expect(BlobCache.Key([0xff, 0x00]).string == nil)
    #expect(BlobCache.Key([0xff, 0x00]).description == "0xff00")
    #expect(Data([1, 2]).blobCacheKey == BlobCache.Key([1, 2]))
    #expect([9, 1, 2][1...].blobCacheKey == BlobCache.Key([1, 2] as [UInt8]))
  }
}

struct DigestTests {
  @Test func knownVectors() throws {
    // FIPS 180-4, SHA-256 of "abc" and of nothing.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    #expect(BlobCache.Digest(hashing: "abc".utf8).hex == abc)
    #expect(try BlobCache.Digest(hex: abc.uppercased()).hex == abc)
    #expect(
      BlobCache.Digest(hashing: [UInt8]()).hex
        == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    #expect(try BlobCache.Digest(bytes: BlobCache.Digest(hashing: "abc".utf8).bytes).hex == abc)
  }

  /// Where OpenSSL has no context to give, an implementation of our own stands in. On a new thread,
  /// since each keeps its context; other tests may meet the fault, and do not notice.
  @Test func hashingCannotFail() {
    let bytes = seededBytes(count: 1000, seed: 1)
    let counts = Array(0...130) + [1000]
    let expected = counts.map { BlobCache.Digest(hashing: bytes.prefix($0)) }
    let found = Collected<BlobCache.Digest>()
    let noContext: @Sendable (String) -> Int32 = { $0 == "digest" ? 1 : 0 }
    FaultHook.with(noContext) {
      let done = DispatchSemaphore(value: 0)
      Thread.detachNewThread {
        for count in counts { found.append(BlobCache.Digest(hashing: bytes.prefix(count))) }
        done.signal()
      }
      done.wait()
    }
    #expect(found.elements == expected)
  }

  @Test(arguments: ["", "00", String(repeating: "g", count: 64), String(repeating: "0", count: 65)])
  func notADigest(_ text: String) {
    let error = #expect(throws: BlobCache.Error.self) { try BlobCache.Digest(hex: text) }
    #expect(error?.code == .invalidDigest)
  }
}

struct AttributesTests {
  @Test func orderAndReplacement() {
    var attributes: BlobCache.Attributes = ["b": "1", "a": [1, 2], "b": "3"]
    #expect(attributes.map(\.name) == ["b", "a"])
    #expect(attributes["b"]?.string == "3")
    #expect(attributes["a"]?.bytes == [1, 2])
    attributes["b"] = nil
    #expect(attributes.count == 1)
  }

  @Test func hexExample() throws {
    let attributes: BlobCache.Attributes = ["a": "xy"]
    #expect(try attributes.encoded() == [1, 0, 0x61, 0, 2, 0, 0, 0, 0x78, 0x79])
  }

  @Test func roundTrip() throws {
    let attributes: BlobCache.Attributes = ["etag": "\"x\"", "": [], "\u{e9}": [0, 255], "t": ""]
    let encoded = try attributes.encoded()
    #expect(BlobCache.Attributes(decoding: encoded) == attributes)
    // Cut anywhere, it is read as far as it goes.
    for count in 0..<encoded.count {
      #expect(BlobCache.Attributes(decoding: encoded.prefix(count)).count < attributes.count)
    }
  }

  @Test func limits() throws {
    let most = BlobCache.Attributes.maximumByteCount - 8
    let fits: BlobCache.Attributes = ["a": .init([UInt8](repeating: 0, count: most))]
    #expect(try fits.encoded().count == BlobCache.Attributes.maximumByteCount)
    let large: BlobCache.Attributes = ["a": .init([UInt8](repeating: 0, count: most + 1))]
    let error = #expect(throws: BlobCache.Error.self) { try large.encoded() }
    #expect(error?.code == .attributesTooLarge)
  }

  @Test func garbageIsRead() {
    var generator = SystemRandomNumberGenerator()
    for _ in 0..<2000 {
      let bytes = (0..<Int.random(in: 0...40)).map { _ in UInt8.random(in: 0...3, using: &generator)
      }
      _ = BlobCache.Attributes(decoding: bytes)
    }
  }
}

struct LifetimeTests {
  @Test func extremesAreClamped() {
    let span = BlobCache.Lifetime.expires(after: .seconds(Int64.max)).stored(at: 5)
    #expect(span.deadline_ms == .max)
    #expect(BlobCache.Lifetime.expires(after: .seconds(-5)).stored(at: 5).deadline_ms == 5)
    #expect(Date.distantFuture.millisecondsSince1970 > 0)
    #expect(Date(timeIntervalSince1970: .infinity).millisecondsSince1970 == .max)
    #expect(Date(timeIntervalSince1970: .nan).millisecondsSince1970 == 0)
  }

  /// What is too long for the calendar is never, and not a date of the year 292,000,000.
  @Test func hugeDurationsNeverExpire() async throws {
    let clock = BlobCache.ManualClock()
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    for lifetime: BlobCache.Lifetime in [
      .expires(after: .seconds(Int64.max)), .sliding(.seconds(Int64.max)),
      .sliding(.seconds(Int64.max), atMost: .seconds(Int64.max)),
    ] {
      let entry = try await cache.store([1], for: "k", lifetime: lifetime)
      #expect(entry.expiresAt == nil, "\(lifetime)")
      clock.advance(by: .seconds(400 * 365 * 86_400))
      #expect(try cache.blob(for: "k") != nil, "\(lifetime)")
      #expect(try #require(try cache.entry(for: "k")).expiresAt == nil, "\(lifetime)")
    }
    let bounded = try await cache.store(
      [1], for: "k", lifetime: .sliding(.seconds(Int64.max), atMost: .seconds(60)))
    #expect(bounded.expiresAt == clock.now.addingTimeInterval(60))
    try await cache.close()
  }

  @Test func throughTheRecord() {
    for lifetime: BlobCache.Lifetime in [
      .forever, .expires(after: .seconds(20)), .expires(at: Date(timeIntervalSince1970: 99)),
      .sliding(.seconds(5)), .sliding(.seconds(5), atMost: .seconds(60)),
    ] {
      #expect(BlobCache.Lifetime(lifetime.stored(at: 1000), written: 1000) == lifetime)
    }
  }
}

struct ClockTests {
  @Test func manual() {
    let clock = BlobCache.ManualClock(now: Date(timeIntervalSince1970: 10))
    clock.advance(by: .milliseconds(1500))
    #expect(clock.clock.milliseconds == 11_500)
    clock.set(to: Date(timeIntervalSince1970: 1))
    #expect(clock.now == Date(timeIntervalSince1970: 1))
  }

  @Test func whatLiesBeyondTheEndOfTimeDoesNotCome() async {
    let manual = BlobCache.ManualClock()
    manual.advance(by: .seconds(Int64.max))
    let clock = manual.clock
    let sleeper = Task { try await clock.sleep(until: clock.reading + .seconds(1)) }
    for _ in 0..<100 { await Task.yield() }
    manual.advance(by: .seconds(Int64.max))
    sleeper.cancel()
    await #expect(throws: CancellationError.self) { try await sleeper.value }
  }

  @Test func system() {
    let now = Date().millisecondsSince1970
    #expect(abs(BlobCache.Clock.system.milliseconds - now) < 1000)
  }
}
