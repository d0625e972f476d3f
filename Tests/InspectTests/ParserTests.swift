import BlobCache
import Testing

@testable import blobcache_inspect

private func parse(_ words: String...) throws(UsageError) -> Command { try parse(words) }

private func parse(_ words: [String]) throws(UsageError) -> Command {
  try Command(parsing: words.map { Array($0.utf8) })
}

private let plain = Target(directory: "d", json: false)
private let json = Target(directory: "d", json: true)
private let zeros = String(repeating: "0", count: 64)

@Suite struct ParserTests {
  @Test func helpAndVersion() throws {
    #expect(try parse("help") == .help(nil))
    #expect(try parse("help", "list") == .help(.list))
    #expect(try parse("--help") == .help(nil))
    #expect(try parse("-h") == .help(nil))
    #expect(try parse("list", "--help") == .help(.list))
    #expect(try parse("--help", "list", "d", "--json") == .help(.list))
    #expect(try parse("version") == .version)
    #expect(try parse("--version") == .version)
  }

  @Test func simpleCommands() throws {
    #expect(try parse("stats", "d") == .stats(StatsCommand(target: plain)))
    #expect(try parse("stats", "d", "--json") == .stats(StatsCommand(target: json)))
    #expect(try parse("--json", "stats", "d") == .stats(StatsCommand(target: json)))
    #expect(try parse("verify", "d") == .verify(VerifyCommand(target: plain)))
    #expect(
      try parse("verify", "--repair", "d") == .verify(VerifyCommand(target: plain, repair: true)))
    #expect(try parse("clear", "d") == .clear(ClearCommand(target: plain)))
    #expect(
      try parse("clear", "d", "--yes") == .clear(ClearCommand(target: plain, confirmed: true)))
  }

  @Test func list() throws {
    #expect(try parse("list", "d") == .list(ListCommand(target: plain)))
    let all = ListCommand(
      target: json, prefix: "a", tag: "t", expiredOnly: true, pinnedOnly: true, sort: .size,
      reverse: true, limit: 10)
    #expect(
      try parse(
        "list", "d", "--prefix", "a", "--expired", "--sort", "size", "--reverse", "--limit", "10",
        "--json", "--tag", "t", "--pinned") == .list(all))
    #expect(
      try parse(
        "list", "--limit=10", "--sort=size", "--prefix=a", "--reverse", "--json", "--expired",
        "--tag=t", "--pinned", "d")
        == .list(all))
    for sort in ListCommand.Sort.allCases {
      #expect(
        try parse("list", "d", "--sort", sort.rawValue)
          == .list(ListCommand(target: plain, sort: sort)))
    }
    // A value may look like an option, and may hold an equals sign.
    #expect(
      try parse("list", "d", "--prefix", "--json")
        == .list(ListCommand(target: plain, prefix: "--json")))
    #expect(
      try parse("list", "d", "--prefix=a=b") == .list(ListCommand(target: plain, prefix: "a=b")))
    #expect(try parse("list", "d", "--prefix=") == .list(ListCommand(target: plain, prefix: "")))
  }

  @Test func subjects() throws {
    let digest = try BlobCache.Digest(hex: zeros)
    #expect(try parse("show", "d", "k") == .show(ShowCommand(target: plain, subject: .key("k"))))
    #expect(try parse("show", "d", "") == .show(ShowCommand(target: plain, subject: .key(""))))
    #expect(try parse("show", "d", "-") == .show(ShowCommand(target: plain, subject: .key("-"))))
    for words in [
      ["show", "d", "sha256:\(zeros)"], ["show", "d", "--digest", zeros],
      ["show", "d", "--digest=sha256:\(zeros)"],
    ] {
      #expect(try parse(words) == .show(ShowCommand(target: plain, subject: .digest(digest))))
    }
    #expect(
      try parse("cat", "d", "--key", "sha256:x")
        == .cat(CatCommand(target: plain, subject: .key("sha256:x"))))
    #expect(
      try parse("cat", "--", "d", "--key")
        == .cat(CatCommand(target: plain, subject: .key("--key"))))
    #expect(
      try parse("cat", "d", "--", "--") == .cat(CatCommand(target: plain, subject: .key("--"))))
    let binary: [UInt8] = [0xFF, 0x01, 0x0A]
    #expect(
      try Command(parsing: [Array("cat".utf8), Array("d".utf8), binary])
        == .cat(CatCommand(target: plain, subject: .key(BlobCache.Key(binary)))))
    #expect(
      try Command(parsing: [Array("cat".utf8), Array("d".utf8), Array("--key=".utf8) + binary])
        == .cat(CatCommand(target: plain, subject: .key(BlobCache.Key(binary)))))
  }

  @Test func put() throws {
    #expect(try parse("put", "d", "k") == .put(PutCommand(target: plain, key: "k")))
    #expect(try parse("put", "d", "k", "-") == .put(PutCommand(target: plain, key: "k")))
    #expect(
      try parse("put", "d", "--key=k", "f")
        == .put(PutCommand(target: plain, key: "k", source: .file(Array("f".utf8)))))
    var command = PutCommand(target: plain, key: "k", lifetime: .expires(after: .seconds(20)))
    #expect(try parse("put", "d", "k", "--ttl", "20s") == .put(command))
    command.lifetime = .sliding(.seconds(20), atMost: .seconds(3600))
    #expect(try parse("put", "d", "k", "--sliding=20s", "--at-most=1h") == .put(command))
    command.lifetime = .sliding(.seconds(20))
    #expect(try parse("put", "d", "k", "--sliding=20s") == .put(command))
    command.lifetime = .forever
    #expect(try parse("put", "d", "k", "--forever") == .put(command))
    command.lifetime = nil
    command.attributes = ["etag": "\"x\"", "empty": "", "eq": "a=b"]
    #expect(
      try parse(
        "put", "d", "k", "--attribute", "etag=\"x\"", "--attribute=empty=", "--attribute", "eq=a=b")
        == .put(command))
    command.attributes = [:]
    command.tags = ["a", "b"]
    command.pins = true
    #expect(try parse("put", "d", "k", "--tag", "a", "--pin", "--tag=b") == .put(command))
    command.tags = []
    command.pins = false
    command.attributes = ["b": [0xFF]]
    let words =
      ["put", "d", "k", "--attribute"].map { Array($0.utf8) } + [Array("b=".utf8) + [0xFF]]
    #expect(try Command(parsing: words) == .put(command))
  }

  @Test func removeAndRenew() throws {
    #expect(
      try parse("remove", "d", "a", "b")
        == .remove(RemoveCommand(target: plain, which: .keys(["a", "b"]))))
    #expect(
      try parse("remove", "d", "a", "--key=sha256:x", "--key", "y")
        == .remove(RemoveCommand(target: plain, which: .keys(["sha256:x", "y", "a"]))))
    #expect(
      try parse("remove", "d", "--prefix", "a")
        == .remove(RemoveCommand(target: plain, which: .matching(.init(prefix: "a")))))
    #expect(
      try parse(
        "remove", "d", "--tag=t", "--prefix=a", "--expired", "--larger", "10MiB", "--older=7d")
        == .remove(
          RemoveCommand(
            target: plain,
            which: .matching(
              .init(
                prefix: "a", tag: "t", largerThan: 10 << 20, olderThan: .seconds(604_800),
                expiredOnly: true)))))
    #expect(
      try parse("renew", "d", "k", "--ttl=1h30m")
        == .renew(RenewCommand(target: plain, key: "k", lifetime: .expires(after: .seconds(5400)))))
    #expect(
      try parse("renew", "d", "k", "--forever")
        == .renew(RenewCommand(target: plain, key: "k", lifetime: .forever)))
  }

  @Test func pinTrimAndSweep() throws {
    #expect(
      try parse("pin", "d", "k", "--json") == .pin(PinCommand(target: json, key: "k", pins: true)))
    #expect(
      try parse("unpin", "d", "--key=k") == .pin(PinCommand(target: plain, key: "k", pins: false)))
    #expect(try parse("sweep", "d", "--json") == .sweep(SweepCommand(target: json)))
    #expect(try parse("trim", "d") == .trim(TrimCommand(target: plain)))
    #expect(
      try parse("trim", "d", "--bytes", "10GiB", "--entries=5", "--age", "7d", "--dry-run")
        == .trim(
          TrimCommand(
            target: plain, bytes: .most(10 << 30), entries: .most(5),
            age: .most(.seconds(604_800)), isDryRun: true)))
    #expect(
      try parse("trim", "d", "--bytes=none", "--entries=none", "--age=none", "--record")
        == .trim(
          TrimCommand(
            target: plain, bytes: .unlimited, entries: .unlimited, age: .unlimited, records: true)))
  }

  @Test func keysInBase64() throws {
    let key = BlobCache.Key([0x61, 0, 0x62])
    #expect(
      try parse("show", "d", "--key-base64", "YQBi")
        == .show(ShowCommand(target: plain, subject: .key(key))))
    #expect(
      try parse("put", "d", "--key-base64=YQBi", "f")
        == .put(PutCommand(target: plain, key: key, source: .file(Array("f".utf8)))))
    #expect(
      try parse("remove", "d", "k", "--key-base64=YQBi", "--key-base64=", "--key=x")
        == .remove(RemoveCommand(target: plain, which: .keys(["x", key, "", "k"]))))
  }

  @Test(arguments: [
    ("0", 0), ("1048576", 1_048_576), ("1B", 1), ("10kB", 10_000), ("10KB", 10_000),
    ("500MB", 500_000_000), ("500mb", 500_000_000), ("10GiB", 10 << 30), ("10G", 10 << 30),
    ("10 GiB", 10 << 30), ("1.5TiB", 3 << 39), ("0.5K", 512), ("2P", 2 << 50), ("1.0MiB", 1 << 20),
    ("9223372036854775807", Int.max),
  ])
  func sizes(written: String, bytes: Int) throws {
    #expect(try parseSize(Array(written.utf8), for: .bytes) == bytes)
  }

  @Test(arguments: [
    "", "GiB", "-1", "+1", "1e6", "0x10", "1.", ".5K", "1..5K", "1.2.3K", "10 ", "10  K", "10iB",
    "10KiBs", "10E", "10Bi", "ten", "nan", "inf", "none", "１K", "1,000",
  ])
  func wrongSizes(written: String) {
    #expect(
      throws: UsageError(
        "--bytes takes a size such as 10GiB, 500MB or 1048576, not \(quoted(written.utf8))")
    ) { try parseSize(Array(written.utf8), for: .bytes) }
  }

  @Test(arguments: ["9223372036854775808", "8192PiB", "9000.5PiB", "99999999999999999999.5G"])
  func largeSizes(written: String) {
    #expect(throws: UsageError("--bytes is larger than 8 EiB")) {
      try parseSize(Array(written.utf8), for: .bytes)
    }
  }

  @Test(arguments: [
    ("0s", 0), ("500ms", 500), ("20s", 20_000), ("5m", 300_000), ("5min", 300_000),
    ("1h30m", 5_400_000), ("1.5h", 5_400_000), ("0.25s", 250), ("7d", 604_800_000),
    ("2w", 1_209_600_000), ("1w2d3h4m5s6ms", 788_645_006),
  ])
  func durations(written: String, milliseconds: Int) throws {
    #expect(
      try parseDuration(Array(written.utf8), for: .ttl) == .milliseconds(milliseconds))
  }

  @Test(arguments: [
    "", "20", "s", "20 s", "20x", "-5s", "+5s", "5s20", "30m1h", "1h1h", "1.s", ".5s", "1..5s",
    "1.2.3s",
    "1e3s", "inf", "nan", "２s", "20S", "0x10s",
  ])
  func wrongDurations(written: String) {
    #expect(
      throws: UsageError(
        "--ttl takes a duration such as 20s, 5m, 1h30m or 7d, not \(quoted(written.utf8))")
    ) { try parseDuration(Array(written.utf8), for: .ttl) }
  }

  @Test(arguments: ["10001000d", "9223372036854775807w", "99999999999999999999s", "9e9.0d"])
  func longDurations(written: String) {
    #expect(throws: UsageError.self) { try parseDuration(Array(written.utf8), for: .ttl) }
  }

  @Test(arguments: [
    ([], "no command was given"),
    ([""], "unknown command ''"),
    (["frob"], "unknown command 'frob'"),
    (["frob", "--help"], "unknown command 'frob'"),
    (["help", "frob"], "unknown command 'frob'"),
    (["help", "list", "x"], "one word too many: 'x'"),
    (["version", "x"], "one word too many: 'x'"),
    (["stats"], "stats needs a directory"),
    (["stats", ""], "the directory's path must be UTF-8 and not empty: ''"),
    (["stats", "d", "x"], "one word too many: 'x'"),
    (["stats", "d", "--prefix", "x"], "stats has no option --prefix"),
    (["stats", "d", "--version"], "stats has no option --version"),
    (["stats", "d", "--json", "--json"], "--json was given twice"),
    (["stats", "d", "--json=yes"], "--json takes no value"),
    (["list", "d", "--frob"], "unknown option '--frob'; a key that begins with - goes after --"),
    (["list", "d", "-x"], "unknown option '-x'; a key that begins with - goes after --"),
    (["list", "d", "--JSON"], "unknown option '--JSON'; a key that begins with - goes after --"),
    (
      ["list", "d", "--\u{1B}[31m"],
      "unknown option '--\\x1b[31m'; a key that begins with - goes after --"
    ),
    (["list", "d", "--limit"], "--limit needs a value"),
    (["list", "d", "--limit", "0"], "--limit takes a number from 1 up, not '0'"),
    (["list", "d", "--limit", "-1"], "--limit takes a number from 1 up, not '-1'"),
    (["list", "d", "--limit", "ten"], "--limit takes a number from 1 up, not 'ten'"),
    (["list", "d", "--limit="], "--limit takes a number from 1 up, not ''"),
    (["list", "d", "--limit=1", "--limit=2"], "--limit was given twice"),
    (
      ["list", "d", "--limit=99999999999999999999"],
      "--limit takes a number from 1 up, not '99999999999999999999'"
    ),
    (
      ["list", "d", "--sort", "name"],
      "--sort takes one of size, age, hits, expiry, not 'name'"
    ),
    (["list", "d", "--reverse"], "--reverse needs --sort"),
    (["list", "d", "k"], "one word too many: 'k'"),
    (["show", "d"], "show needs a key or a digest"),
    (["show", "d", "a", "b"], "one word too many: 'b'"),
    (["show", "d", "--key", "a", "b"], "one word too many: 'b'"),
    (["show", "d", "--key=a", "--digest=\(zeros)"], "show takes --key or --digest, not both"),
    (
      ["show", "d", "sha256:12"],
      "a digest is 64 hexadecimal digits; a key that begins with sha256: goes after --key"
    ),
    (
      ["cat", "d", "--digest", "\(zeros)0"],
      "a digest is 64 hexadecimal digits; a key that begins with sha256: goes after --key"
    ),
    (["cat", "d", "k", "--json"], "cat has no option --json"),
    (["put", "d"], "put needs a key"),
    (
      ["put", "d", "sha256:12"],
      "a key is needed here; one that begins with sha256: goes after --key"
    ),
    (["put", "d", "k", ""], "the file to put has an empty name"),
    (["put", "d", "k", "f", "g"], "one word too many: 'g'"),
    (["put", "d", "k", "--attribute", "x"], "--attribute takes NAME=VALUE, not 'x'"),
    (["put", "d", "k", "--attribute", "=x"], "--attribute takes NAME=VALUE, not '=x'"),
    (["put", "d", "k", "--attribute=a=1", "--attribute=a=2"], "attribute 'a' was given twice"),
    (
      ["put", "d", "k", "--ttl=1s", "--sliding=1s"],
      "--ttl, --sliding and --forever exclude each other"
    ),
    (
      ["put", "d", "k", "--ttl=1s", "--forever"],
      "--ttl, --sliding and --forever exclude each other"
    ),
    (["put", "d", "k", "--at-most=1s"], "--at-most needs --sliding"),
    (["put", "d", "k", "--ttl=1s", "--at-most=1s"], "--at-most needs --sliding"),
    (["put", "d", "k", "--ttl=1s", "--ttl=2s"], "--ttl was given twice"),
    (
      ["put", "d", "k", "--ttl=10001y"],
      "--ttl takes a duration such as 20s, 5m, 1h30m or 7d, not '10001y'"
    ),
    (["put", "d", "k", "--ttl=600000w"], "--ttl is longer than 10,000 years; say --forever"),
    (["put", "d", String(repeating: "k", count: 65_537)], "a key has at most 65,536 bytes"),
    (
      ["remove", "d"], "remove needs a key, --prefix, --tag, --expired, --larger or --older"
    ),
    (
      ["remove", "d", "k", "--prefix=x"],
      "remove takes keys, or options that choose entries, not both"
    ),
    (
      ["remove", "d", "k", "--expired"],
      "remove takes keys, or options that choose entries, not both"
    ),
    (
      ["remove", "d", "--larger=x"],
      "--larger takes a size such as 10GiB, 500MB or 1048576, not 'x'"
    ),
    (["remove", "d", "--older=600000w"], "--older is longer than 10,000 years"),
    (["show", "d", "--key=a", "--key-base64=YQ=="], "--key and --key-base64 exclude each other"),
    (
      ["show", "d", "--key-base64=a"], "--key-base64 takes base64 with its padding, not 'a'"
    ),
    (["trim", "d", "--entries=0"], "--entries takes a number from 1 up, not '0'"),
    (["trim", "d", "--record"], "--record needs --bytes, --entries or --age"),
    (
      ["trim", "d", "--age=1d", "--record", "--dry-run"],
      "--dry-run changes nothing, so it cannot --record"
    ),
    (
      ["trim", "d", "--bytes=none"], "none takes a limit away, which needs --record"
    ),
    (["trim", "d", "k"], "one word too many: 'k'"),
    (["pin", "d"], "pin needs a key"),
    (["unpin", "d", "a", "b"], "one word too many: 'b'"),
    (["sweep", "d", "--yes"], "sweep has no option --yes"),
    (
      ["remove", "d", "--prefix="],
      "--prefix is empty, which means every entry; that is what clear does"
    ),
    (
      ["remove", "d", "k", "sha256:x"],
      "a key is needed here; one that begins with sha256: goes after --key"
    ),
    (["renew", "d", "k"], "renew needs --ttl, --sliding or --forever"),
    (["renew", "d", "--ttl=1s"], "renew needs a key"),
    (["clear", "d", "k"], "one word too many: 'k'"),
  ])
  func errors(words: [String], message: String) {
    #expect(throws: UsageError(message)) { try parse(words) }
  }

  @Test func everyCommandHasHelp() {
    for verb in Verb.allCases {
      #expect(verb.help.hasPrefix("usage: blobcache-inspect \(verb.rawValue)"))
      for option in verb.options { #expect(verb.help.contains(option.description)) }
      for line in verb.help.split(separator: "\n") { #expect(line.count <= 100) }
    }
  }
}
