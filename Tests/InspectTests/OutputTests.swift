import BlobCache
import Foundation
import Testing

@testable import blobcache_inspect

@Suite struct OutputTests {
  @Test(arguments: [
    ("", ""), ("plain é 日本", "plain é 日本"), ("a\\b", "a\\\\b"), ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
    ("\u{1B}[31m", "\\x1b[31m"), ("\u{0}\u{7F}", "\\x00\\x7f"), ("\u{9B}31m", "\\u{9b}31m"),
    ("\u{202E}x\u{2066}", "\\u{202e}x\\u{2066}"), ("\u{2028}", "\\u{2028}"), ("\r\n", "\\r\\n"),
  ])
  func escapesText(text: String, expected: String) { #expect(escaped(text.utf8) == expected) }

  @Test(
    arguments: [
      ([0xFF], "\\xff"), ([0x61, 0xC3], "a\\xc3"), ([0xC3, 0xA9, 0xFF], "é\\xff"),
      ([0xE6, 0x97, 0x61], "\\xe6\\x97a"), ([0xED, 0xA0, 0x80], "\\xed\\xa0\\x80"),
      ([0xC0, 0x80], "\\xc0\\x80"), ([0xFF, 0x0A, 0x5C], "\\xff\\n\\\\"),
    ] as [([UInt8], String)])
  func escapesBytes(bytes: [UInt8], expected: String) { #expect(escaped(bytes) == expected) }

  @Test func quotesShorten() {
    #expect(quoted("a".utf8) == "'a'")
    #expect(quoted(String(repeating: "a", count: 81).utf8).count == 80)
    let path = "/front/" + String(repeating: "a", count: 81) + "/end"
    #expect(quoted(path.utf8).hasPrefix("'/front/aaa"))
    #expect(quoted(path.utf8).hasSuffix("aaa/end'"))
  }

  @Test func json() {
    let value = JSON.object([
      .init("a", .null), .init("b", .bool(true)), .init("c", .int(-3)), .init("d", .seconds(1_500)),
      .init("e", .seconds(20_000)), .init("f", .seconds(1)), .init("g", .ratio(0.98765)),
      .init("h", .array([.int(1), .object([])])), .init("i", .base64([0xFF, 0])),
      .init("j\"\\", .string("\u{0}\n\u{1B}\u{7F}\u{9B}\u{202E}é/")),
    ])
    #expect(
      value.text
        == #"{"a":null,"b":true,"c":-3,"d":1.5,"e":20,"f":0.001,"g":0.9877,"h":[1,{}],"i":"/wA=","#
        + #""j\"\\":"\u0000\n\u001b\u007f\u009b\u202eé/"}"#)
  }

  @Test(arguments: [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1_048_575, "1.0 MiB"),
    (1_048_576, "1.0 MiB"), (10 << 30, "10.0 GiB"), (Int.max, "8192.0 PiB"),
  ])
  func sizes(bytes: Int, expected: String) { #expect(formatted(bytes: bytes) == expected) }

  @Test(
    arguments: [
      (0, "0ms"), (99, "99ms"), (100, "0.1s"), (949, "0.9s"), (950, "1s"), (1_000, "1s"),
      (1_499, "1s"),
      (59_499, "59s"), (59_999, "1m"), (60_000, "1m"), (61_000, "1m1s"), (3_599_999, "1h"),
      (7_199_990, "2h"), (7_170_000, "2h"), (7_169_000, "1h59m"), (86_399_000, "1d"),
      (31_535_999_000, "1y"), (5_400_000, "1h30m"), (3_601_000, "1h"),
      (604_800_000, "7d"), (90_000_000_000, "2y312d"),
    ] as [(Int64, String)])
  func spans(milliseconds: Int64, expected: String) {
    #expect(formatted(milliseconds: milliseconds) == expected)
  }

  @Test func moments() {
    #expect(timestamp(0) == "1970-01-01T00:00:00.000Z")
    #expect(timestamp(1_700_000_000_123) == "2023-11-14T22:13:20.123Z")
    #expect(timestamp(-1) == "1969-12-31T23:59:59.999Z")
    #expect(timestamp(951_782_400_000) == "2000-02-29T00:00:00.000Z")
    #expect(timestamp(4_107_542_400_000) == "2100-03-01T00:00:00.000Z")
    #expect(timestamp(.max) == "9999-12-31T23:59:59.999Z")
    #expect(timestamp(.min) == "0000-01-01T00:00:00.000Z")
    #expect(readable(1_700_000_000_123) == "2023-11-14 22:13:20 UTC")
    #expect(relative(1_000, now: 500) == "in 0.5s")
    #expect(relative(500, now: 1_000) == "0.5s ago")
    #expect(relative(.max, now: -1) == "in ages")
    #expect(relative(.min, now: 1) == "ages ago")
  }

  @Test func numbers() {
    #expect(
      [0, 999, 1_000, 1_234_567, -1_234].map(grouped) == [
        "0", "999", "1,000", "1,234,567", "-1,234",
      ])
    #expect(counted(1, "entry", "entries") == "1 entry")
    #expect(counted(2_000, "entry", "entries") == "2,000 entries")
    #expect([0, 62, 63].map(formatted(hits:)) == ["0", "62", "63+"])
  }

  @Test func rowsAreAligned() async throws {
    let clock = BlobCache.ManualClock()
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache.temporary(configuration: configuration)
    let small = try await cache.store(
      [1, 2, 3], for: "a\n", lifetime: .expires(after: .seconds(20)))
    let large = try await cache.store([UInt8](repeating: 1, count: 1_500_000), for: "")
    let now = clock.now.milliseconds + 5_000
    #expect(Row.header == "      SIZE  READS       STORED      EXPIRES  PIN  KEY")
    #expect(Row.text(small, now: now) == "       3 B      0       5s ago       in 15s       a\\n")
    #expect(
      Row.text(large, now: now) == "   1.4 MiB      0       5s ago        never       (empty)")
    try await cache.close()
  }

  @Test func topIsTheHeadOfTheSortedList() async throws {
    let cache = try BlobCache.temporary()
    var random = SystemRandomNumberGenerator()
    var entries: [BlobCache.Entry] = []
    for index in 0..<60 {
      let size = Int.random(in: 0..<12, using: &random)
      entries.append(
        try await cache.store([UInt8](repeating: 7, count: size), for: "k\(index)"))
    }
    for sort in ListCommand.Sort.allCases {
      for reverse in [false, true] {
        let order = Order(sort: sort, reverse: reverse)
        let expected = entries.sorted(by: order.precedes).map(\.key)
        for limit in [1, 2, 7, 59, 60, 61] {
          var top = Top(limit: limit, order: order)
          for entry in entries.shuffled() { top.insert(entry) }
          #expect(top.sorted().map(\.key) == Array(expected.prefix(limit)))
        }
        var all = Top(limit: nil, order: order)
        for entry in entries.shuffled() { all.insert(entry) }
        #expect(all.sorted().map(\.key) == expected)
      }
    }
    try await cache.close()
  }
}
