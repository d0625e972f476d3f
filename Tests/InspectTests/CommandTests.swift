import BlobCache
import Foundation
import Testing

@testable import blobcache_inspect

/// SHA-256 of `hello` and an end of line.
private let helloDigest = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
private let hello = Array("hello\n".utf8)

/// Runs of the real program, whole output compared.
@Suite struct CommandTests {
  let playground: Playground

  init() throws { playground = try Playground() }

  private func run(_ verb: String, _ words: String..., input: [UInt8] = []) throws -> Run {
    let words = [verb, playground.cache] + words
    return try playground.run(words.map { Array($0.utf8) }, input: input)
  }

  private func entryLine(
    key: String, size: Int = 6, digest: String = helloDigest, lifetime: String = "forever",
    seconds: String = "null", atMost: String = "null", expires: String = "null",
    expired: Bool = false, stale: Bool = false, pinned: Bool = false, tags: String = "[]",
    attributes: String = "{}"
  ) -> String {
    #"{\#(key),"digest":"\#(digest)","size":\#(size),"location":"index","storedAt":TIME,"#
      + #""lastAccess":null,"hits":0,"lifetime":"\#(lifetime)","lifetimeSeconds":\#(seconds),"#
      + #""atMostSeconds":\#(atMost),"expiresAt":\#(expires),"expired":\#(expired),"#
      + #""stale":\#(stale),"staleWindowSeconds":86400,"pinned":\#(pinned),"tags":\#(tags),"attributes":\#(attributes)}"#
      + "\n"
  }

  // MARK: Words

  @Test func wrongWords() throws {
    #expect(try playground.run() == usage("no command was given"))
    #expect(try playground.run("frob") == usage("unknown command 'frob'"))
    #expect(try playground.run("stats") == usage("stats needs a directory"))
    #expect(
      try run("put", "k", "--ttl", "soon")
        == usage("--ttl takes a duration such as 20s, 5m, 1h30m or 7d, not 'soon'"))
    // A lifetime that is over, or none: nothing is touched, not even a directory made.
    for word in ["-1s", "-0.5h", "nan", "inf", "1e3s"] {
      for option in ["--ttl", "--sliding"] {
        let complaint = usage(
          "\(option) takes a duration such as 20s, 5m, 1h30m or 7d, not '\(word)'")
        #expect(try run("put", "k", "\(option)=\(word)") == complaint)
        #expect(try run("renew", "k", "\(option)=\(word)") == complaint)
      }
    }
    for word in ["0s", "0ms", "0.0d", "0.4ms"] {
      for verb in ["put", "renew"] {
        #expect(try run(verb, "k", "--ttl", word) == usage("--ttl is at least 1ms, not '\(word)'"))
        #expect(
          try run(verb, "k", "--sliding", word) == usage("--sliding is at least 1ms, not '\(word)'")
        )
        #expect(
          try run(verb, "k", "--sliding=1s", "--at-most", word)
            == usage("--at-most is at least 1ms, not '\(word)'"))
      }
    }
    #expect(
      try run("cat", "sha256:12")
        == usage(
          "a digest is 64 hexadecimal digits; a key that begins with sha256: goes after --key"))
    #expect(
      try playground.run([Array("stats".utf8), [0xFF]])
        == usage("the directory's path must be UTF-8 and not empty: '\\xff'"))
    // Wrong words make nothing.
    #expect(!FileManager.default.fileExists(atPath: playground.cache))
  }

  @Test func helpAndVersion() throws {
    #expect(
      try playground.run("version") == printed("blobcache-inspect 0.1.0 (directory format 1)"))
    #expect(try playground.run("--version") == playground.run("version"))
    #expect(try playground.run("--help") == playground.run("help"))
    #expect(try playground.run("cat", "--help") == playground.run("help", "cat"))
    #expect(try playground.run("help", "cat") == printed(Verb.cat.help))
    let overview = try playground.run("help")
    #expect(overview.status == 0)
    for verb in Verb.allCases { #expect(overview.text.contains("\n  \(verb.rawValue)")) }
  }

  // MARK: Directories

  @Test(arguments: [
    ["stats"], ["list"], ["show", "k"], ["cat", "k"], ["verify"], ["verify", "--repair"],
    ["remove", "k"], ["renew", "k", "--forever"], ["clear", "--yes"], ["pin", "k"], ["unpin", "k"],
    ["trim"], ["trim", "--dry-run"], ["sweep"],
  ])
  func missingDirectory(words: [String]) throws {
    let words = [words[0], playground.cache] + words.dropFirst()
    let run = try playground.run(words.map { Array($0.utf8) })
    #expect(
      run
        == failed(
          2,
          "cannot open '\(playground.cache)': The file or directory does not exist; "
            + "check the path. "
            + "(No such file or directory)"))
    #expect(!FileManager.default.fileExists(atPath: playground.cache))
  }

  @Test func whatIsNoCache() throws {
    let file = try playground.file("cache", hello)
    for verb in ["stats", "list", "verify"] {
      let run = try run(verb)
      #expect(run.status == 2)
      #expect(run.output == [])
      #expect(run.complaint.hasPrefix("blobcache-inspect: cannot open '\(file)': A file stands"))
      #expect(run.complaint.count(where: \.isNewline) == 1)
    }
    #expect(try run("put", "k").status == 2)
    #expect(try Data(contentsOf: URL(fileURLWithPath: file)) == Data(hello))

    // An empty folder, and one of somebody else's files: reading makes neither a cache.
    let folder = playground.folder + "/folder"
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: false)
    #expect(try playground.run("stats", folder).status == 2)
    #expect(try FileManager.default.contentsOfDirectory(atPath: folder) == [])
    try playground.file("folder/mine", hello)
    for words in [["stats", folder], ["put", folder, "k"], ["clear", folder, "--yes"]] {
      let run = try playground.run(words.map { Array($0.utf8) })
      #expect(run.status == 2)
      #expect(run.complaint.hasPrefix("blobcache-inspect: cannot open '\(folder)': "))
    }
    #expect(try FileManager.default.contentsOfDirectory(atPath: folder) == ["mine"])
  }

  @Test func aCacheThatLostItsFormatIsNotMadeAnew() throws {
    #expect(try run("put", "k", input: hello).status == 0)
    try FileManager.default.removeItem(atPath: playground.cache + "/FORMAT")
    let before = try playground.picture()
    for run in [try run("list"), try run("put", "q", input: hello), try run("clear", "--yes")] {
      #expect(run.status == 2)
      #expect(run.output == [])
      #expect(
        run.complaint.hasPrefix("blobcache-inspect: cannot open '\(playground.cache)': The dir"))
      #expect(run.complaint.contains("no FORMAT"))
    }
    #expect(try playground.picture() == before)
  }

  /// The tool has no option for modes: it keeps to those of the directory.
  @Test func aDirectoryThatAGroupSharesKeepsItsModes() async throws {
    var configuration = BlobCache.Configuration()
    configuration.directoryMode = 0o2770
    configuration.fileMode = 0o660
    let cache = try BlobCache(directory: playground.cache, configuration: configuration)
    try await cache.store(hello, for: "k")
    try await cache.close()
    let large = try playground.file("large", [UInt8](repeating: 9, count: 100_000))
    #expect(try run("put", "large", large).status == 0)
    #expect(try run("verify", "--repair").status == 0)
    #expect(try run("renew", "k", "--ttl=1h").status == 0)
    for name in try FileManager.default.subpathsOfDirectory(atPath: playground.cache) + ["."] {
      var info = stat()
      try #require(lstat(playground.cache + "/" + name, &info) == 0)
      let isFolder = info.st_mode & S_IFMT == S_IFDIR
      #expect(info.st_mode & 0o7777 == (isFolder ? 0o2770 : 0o660), "\(name)")
    }
    // Where FORMAT does not say so, it is an accident, and refused.
    try #require(chmod(playground.cache + "/FORMAT", 0o600) == 0)
    let refused = try run("put", "q", input: hello)
    #expect(refused.status == 2)
    #expect(refused.complaint.contains("others may write in it"))
  }

  // MARK: Entries

  @Test func putAndCat() throws {
    #expect(
      try run("put", "k", input: hello)
        == printed("stored 6 B as sha256:\(helloDigest), forever"))
    #expect(try run("cat", "k") == printed("hello"))
    #expect(try run("cat", "--key=k") == printed("hello"))
    #expect(try run("cat", "sha256:\(helloDigest)") == printed("hello"))
    #expect(try run("cat", "--digest", helloDigest.uppercased()) == printed("hello"))
    #expect(try run("cat", "q") == failed(1, "not in the cache: 'q'"))
    let zeros = String(repeating: "0", count: 64)
    #expect(try run("cat", "sha256:\(zeros)") == failed(1, "not in the cache: sha256:\(zeros)"))

    // Replaced; from a file; empty; larger than the index takes.
    let large = (0..<300_000).map { UInt8(truncatingIfNeeded: $0 &* 7 ^ ($0 >> 8)) }
    #expect(try run("put", "k", playground.file("large", large)).status == 0)
    #expect(try run("cat", "k").output == large)
    #expect(try run("put", "k", "-").status == 0)
    #expect(try run("cat", "k") == Run(status: 0, output: [], complaint: ""))
  }

  @Test func whatCannotBeReadIsNotStored() throws {
    let missing = playground.folder + "/missing"
    #expect(
      try run("put", "k", missing)
        == failed(2, "cannot open '\(missing)': No such file or directory"))
    #expect(
      try run("put", "k", playground.folder)
        == failed(2, "cannot read '\(playground.folder)': Is a directory"))
    #expect(!FileManager.default.fileExists(atPath: playground.cache))
  }

  @Test func keysAreBytes() throws {
    let keys: [[UInt8]] = [
      [], [0xFF, 0x01, 0x0A], Array("é".utf8), Array("e\u{301}".utf8), Array("a b'\"\\".utf8),
      Array("--json".utf8), Array("sha256:12".utf8), Array("\u{1B}[31m".utf8),
    ]
    let cache = Array(playground.cache.utf8)
    for (index, key) in keys.enumerated() {
      let run = try playground.run(
        [Array("put".utf8), cache, Array("--key".utf8), key], input: [UInt8(index)])
      #expect(run.status == 0)
      #expect(run.complaint == "")
    }
    for (index, key) in keys.enumerated() {
      #expect(
        try playground.run([Array("cat".utf8), cache, Array("--key=".utf8) + key]).output
          == [UInt8(index)])
      if !key.starts(with: Array("sha256:".utf8)) {
        #expect(
          try playground.run([Array("cat".utf8), Array("--".utf8), cache, key]).output
            == [UInt8(index)])
      }
    }
    let lines = try run("list").text.split(separator: "\n").dropFirst()
    let shown = Set(lines.map { String($0.dropFirst(50)) })
    #expect(
      shown == [
        "(empty)", "\\xff\\x01\\n", "é", "e\u{301}", "a b'\"\\\\", "--json", "sha256:12",
        "\\x1b[31m",
      ])
    let json = try run("list", "--json").text.split(separator: "\n").map { line in
      String(line.prefix { $0 != "," })
    }
    #expect(
      Set(json.map { Array($0.utf8) })
        == Set(
          [
            #"{"key":"""#, #"{"keyBase64":"/wEK""#, #"{"key":"é""#, "{\"key\":\"e\u{301}\"",
            #"{"key":"a b'\"\\""#, #"{"key":"--json""#, #"{"key":"sha256:12""#,
            #"{"key":"\u001b[31m""#,
          ].map { Array($0.utf8) }))
    let remove = [Array("remove".utf8), cache, Array("--".utf8), keys[1], keys[5], keys[0]]
    #expect(try playground.run(remove) == printed("removed 3 entries"))
  }

  @Test func jsonFields() throws {
    #expect(
      try run("put", "k", "--json", input: hello).timeless == entryLine(key: #""key":"k""#))
    #expect(try run("show", "k", "--json").timeless == entryLine(key: #""key":"k""#))
    #expect(try run("list", "--json").timeless == entryLine(key: #""key":"k""#))
    #expect(
      try run(
        "put", "k", "--json", "--sliding=20s", "--at-most=1h", "--attribute", "a=\"x\"",
        input: hello
      ).timeless
        == entryLine(
          key: #""key":"k""#, lifetime: "sliding", seconds: "20", atMost: "3600", expires: "TIME",
          attributes: #"{"a":"\"x\""}"#))
    #expect(
      try run("renew", "k", "--json", "--ttl=1500ms").timeless
        == entryLine(
          key: #""key":"k""#, lifetime: "expires", seconds: "1.5", expires: "TIME",
          attributes: #"{"a":"\"x\""}"#))
    let binary = ["put", playground.cache, "k", "--json", "--attribute"].map { Array($0.utf8) }
    #expect(
      try playground.run(binary + [Array("b=".utf8) + [0xFF]], input: hello).timeless
        == entryLine(key: #""key":"k""#, attributes: #"{},"attributesBase64":{"b":"/w=="}"#))
    #expect(
      try run("remove", "k", "q", "--json")
        == Run(
          status: 1, output: Array("{\"removed\":1,\"absent\":1}\n".utf8),
          complaint: complaint("not in the cache: 'q'")))
    #expect(try run("clear", "--yes", "--json") == printed(#"{"removed":0}"#))
    #expect(
      try run("verify", "--json")
        == printed(
          #"{"sound":true,"repaired":false,"indexDamage":null,"indexSetAside":false,"indexInUse":false,"#
            + #""checkedBlobs":0,"damagedBlobs":0,"damagedKeys":[],"#
            + #""missingFiles":0,"unreferencedFiles":0,"unreferencedBytes":0,"deadStagingFiles":0,"#
            + #""wrongTotals":0,"wrongUseCounts":0,"wrongSlots":0,"wrongDigestRows":0,"#
            + #""wrongTagRows":0,"foreignNames":0}"#))
    #expect(try run("list", "--json") == Run(status: 0, output: [], complaint: ""))
  }

  @Test func stats() throws {
    _ = try run("put", "k", input: hello)
    _ = try run("put", "old", "--ttl=1ms", input: hello)
    _ = try run("put", "large", playground.file("large", [UInt8](repeating: 9, count: 100_000)))
    let json = try run("stats", "--json")
    let fields = try #require(
      try JSONSerialization.jsonObject(with: Data(json.output)) as? [String: Any])
    #expect(
      Set(fields.keys) == [
        "directory", "durability", "inlineThreshold", "entries", "expired", "indexBlobBytes",
        "blobFiles", "blobFileBytes", "allocatedBytes", "blobFileAllocatedBytes",
        "indexAllocatedBytes", "indexFreeBytes", "slotsAllocatedBytes", "stagingAllocatedBytes",
        "quarantineAllocatedBytes", "hits", "memoryHits", "misses", "hitRatio", "locked",
        "pinnedEntries", "pinnedBytes", "usedBytes", "limitBytes", "limitEntries",
        "limitAgeSeconds", "bytesFullness", "entriesFullness", "freeDiskLimitBytes",
        "freeDiskLimitIsAutomatic", "freeDiskBytes", "evictions", "evictionAgeSeconds",
      ])
    #expect(fields["entries"] as? Int == 3)
    #expect(fields["expired"] as? Int == 1)
    #expect(fields["indexBlobBytes"] as? Int == 12)
    #expect(fields["blobFiles"] as? Int == 1)
    #expect(fields["blobFileBytes"] as? Int == 100_000)
    #expect(fields["durability"] as? String == "checkpointed")
    #expect(fields["hitRatio"] is NSNull)
    #expect(fields["limitBytes"] is NSNull)
    #expect(fields["evictionAgeSeconds"] is NSNull)
    #expect(fields["freeDiskLimitIsAutomatic"] as? Bool == true)
    #expect((fields["freeDiskLimitBytes"] as? Int ?? 0) > 0)
    let text = try run("stats")
    #expect(text.status == 0)
    #expect(text.text.contains("\nentries       3, of which 1 expired\n"))
    #expect(text.text.contains("\nblobs         12 B in the index, 97.7 KiB in 1 file\n"))
    #expect(text.text.contains("\npinned        none\n"))
    #expect(text.text.contains("\n  limit       none\n"))
    #expect(text.text.contains(" (automatic: 5 % of the file system, 1 GiB at most); "))
  }

  private func object(_ run: Run) throws -> [String: Any] {
    try #require(try JSONSerialization.jsonObject(with: Data(run.output)) as? [String: Any])
  }

  @Test func pinsAndTags() throws {
    #expect(
      try run("put", "k", "--tag=b", "--tag", "a", "--pin", "--json", input: hello).timeless
        == entryLine(key: #""key":"k""#, pinned: true, tags: #"["a","b"]"#))
    #expect(
      try run("put", "q", "--tag=a", "--pin", input: hello)
        == printed("stored 6 B as sha256:\(helloDigest), forever, pinned"))
    #expect(try run("put", "z", "--tag=\u{1B}", input: hello).status == 0)
    #expect(try run("unpin", "q") == printed("unpinned"))
    #expect(
      try run("unpin", "q", "--json").timeless
        == entryLine(key: #""key":"q""#, tags: #"["a"]"#))
    #expect(
      try run("pin", "z")
        == printed("pinned: it stays until it is unpinned or removed, and expires as before"))
    #expect(try run("pin", "nothing") == failed(1, "not in the cache: 'nothing'"))
    #expect(try run("unpin", "nothing") == failed(1, "not in the cache: 'nothing'"))
    #expect(
      try run("list", "--json", "--tag=b").timeless
        == entryLine(
          key: #""key":"k""#, pinned: true, tags: #"["a","b"]"#))
    #expect(try run("list", "--tag=a").text.split(separator: "\n").count == 3)
    #expect(try run("list", "--tag=a", "--prefix=q").text.split(separator: "\n").count == 2)
    #expect(try run("list", "--tag=none").text.split(separator: "\n").count == 1)
    let pinned = try run("list", "--pinned").text.split(separator: "\n").dropFirst()
    #expect(Set(pinned.map { $0.suffix(6) }) == ["pin  k", "pin  z"])
    let shown = try run("show", "z").text
    #expect(shown.contains("\npinned     kept from eviction and sweeps\n\ntag        \\x1b\n"))
    let fields = try object(run("stats", "--json"))
    #expect(fields["pinnedEntries"] as? Int == 2)
    #expect(try run("stats").text.contains("\npinned        2 entries, "))
    #expect(try run("remove", "--tag=a") == printed("removed 2 entries"))
    #expect(try run("list", "--json").text.split(separator: "\n").count == 1)
  }

  @Test func removeBySelection() throws {
    for (key, size, ttl) in [("a/1", 30, "1h"), ("a/2", 10, "1ms"), ("b/1", 2_000, "1ms")] {
      let bytes = [UInt8](repeating: 1, count: size)
      #expect(try run("put", key, "--ttl", ttl, "--tag=t", input: bytes).status == 0)
    }
    #expect(try run("remove", "--older=1d") == printed("removed 0 entries"))
    #expect(try run("remove", "--larger=2kB", "--tag=t") == printed("removed 0 entries"))
    #expect(try run("remove", "--expired", "--prefix=a/") == printed("removed 1 entry"))
    #expect(
      try run("remove", "--larger=1kB", "--json") == printed(#"{"removed":1,"absent":0}"#))
    #expect(try run("remove", "--tag=other", "--older=0s") == printed("removed 0 entries"))
    #expect(try run("remove", "--tag=t", "--older=0s") == printed("removed 1 entry"))
  }

  @Test func trimGoesToLimitsOnceOrForGood() throws {
    for index in 0..<20 { #expect(try run("put", "\(index)", input: hello).status == 0) }
    let before = try playground.picture()
    var fields = try object(run("trim", "--entries=15", "--age=1d", "--dry-run", "--json"))
    #expect(fields["entries"] as? Int == 20)
    #expect(fields["excessEntries"] as? Int == 5)
    #expect(fields["agedEntries"] as? Int == 0)
    #expect(fields["limitAgeSeconds"] as? Int == 86_400)
    #expect(fields["limitBytes"] is NSNull)
    #expect(fields["aboutEntries"] as? Int == 5)
    let dry = try run("trim", "--entries=15", "--age=1d", "--dry-run").text
    #expect(dry.contains("\nentries   20 of 15: 5 too many\nage       0 older than 1d\n"))
    #expect(dry.contains("\nwould go  about 5 entries, "))
    #expect(try run("trim", "--dry-run").text.hasSuffix("would go  nothing\n"))
    #expect(try playground.picture() == before)

    #expect(try run("trim").text.hasPrefix("evicted 0 entries; 20 entries and "))
    #expect(try run("trim", "--entries=15").text.hasPrefix("evicted 5 entries; 15 entries and "))
    #expect(try object(run("stats", "--json"))["limitEntries"] is NSNull)
    fields = try object(run("trim", "--entries=10", "--bytes=1GiB", "--record", "--json"))
    #expect(fields["evicted"] as? Int == 5)
    #expect(fields["entries"] as? Int == 10)
    #expect(fields["withinLimits"] as? Bool == true)
    #expect(fields["recorded"] as? Bool == true)
    // The others stay as they are.
    #expect(
      try run("trim", "--age=7d", "--record").text.hasSuffix(
        "recorded as the directory's limits\n"))
    #expect(try run("put", "new", input: hello).status == 0)
    fields = try object(run("stats", "--json"))
    #expect(fields["entries"] as? Int == 10)
    #expect(fields["limitEntries"] as? Int == 10)
    #expect(fields["limitBytes"] as? Int == 1 << 30)
    #expect(fields["limitAgeSeconds"] as? Int == 604_800)
    #expect(fields["entriesFullness"] as? Int == 1)
    #expect(fields["evictions"] as? Int == 11)
    #expect(fields["freeDiskLimitIsAutomatic"] as? Bool == true)
    let text = try run("stats").text
    #expect(text.contains("\n  entries     10, 100.0 % full\n  age         7d\n"))
    #expect(try run("trim", "--entries=none", "--record").status == 0)
    #expect(try object(run("stats", "--json"))["limitEntries"] is NSNull)

    let wrong = try run("trim", "--bytes=1kB")
    #expect(wrong.status == 2)
    #expect(
      wrong.complaint
        == complaint(
          "cannot trim '\(playground.cache)': A limit in bytes is at least 1 MiB (1,048,576); "
            + "leave it out for none. (1000 was given)"))
    #expect(try run("trim", "--bytes=1kB", "--dry-run") == wrong)
  }

  @Test func whatIsPinnedKeepsATrimFromItsLimits() throws {
    for key in ["a", "b", "c"] {
      #expect(try run("put", key, "--pin", input: hello).status == 0)
    }
    #expect(try run("put", "d", input: hello).status == 0)
    let run = try run("trim", "--entries=2")
    #expect(run.status == 1)
    #expect(run.text.hasPrefix("evicted 1 entry; 3 entries and "))
    #expect(
      run.complaint
        == complaint("still 1 entry above the limits: 3 entries of 357 B are pinned"))
    let fields = try object(self.run("trim", "--entries=2", "--json"))
    #expect(fields["withinLimits"] as? Bool == false)
    #expect(fields["excessEntries"] as? Int == 1)
    #expect(fields["pinnedEntries"] as? Int == 3)
  }

  @Test func aTrimBesideAServiceThatStoresEndsWell() async throws {
    let cache = try BlobCache(directory: playground.cache)
    let service = Task {
      var number = 0
      while !Task.isCancelled {
        number += 1
        try await cache.store(hello, for: .init("key-\(number)"))
      }
    }
    for _ in 0..<5 {
      let run = try run("trim", "--entries=1")
      #expect(run.status == 0)
      #expect(run.complaint == "")
    }
    service.cancel()
    _ = await service.result
    try await cache.close()
  }

  @Test func standardInputThatIsAFileIsKnownToBeTooLargeBeforehand() throws {
    #expect(try run("put", "k", input: hello).status == 0)
    #expect(try run("trim", "--bytes=2MiB", "--record").status == 0)
    for key in 0..<12 {
      let bytes = [UInt8](repeating: UInt8(key), count: 100_000)
      #expect(try run("put", "key-\(key)", input: bytes).status == 0)
    }
    let refused = try run("put", "large", "-", input: [UInt8](repeating: 1, count: 3_000_000))
    #expect(refused.status == 2)
    #expect(refused.complaint.contains("room for 1966080"))
    #expect(try object(run("stats", "--json"))["entries"] as? Int == 13)
    let most = [UInt8](repeating: 2, count: 1_900_000)
    #expect(try run("put", "large", "-", input: most).status == 0)
    #expect(try run("cat", "large").output == most)
  }

  @Test func whatIsFreeOfTheIndexIsPartOfIt() async throws {
    var configuration = BlobCache.Configuration()
    configuration.limits = .bytes(64 << 20)
    let cache = try BlobCache(directory: playground.cache, configuration: configuration)
    let body = [UInt8](repeating: 1, count: 1_000)
    try await cache.storeAll((0..<12_000).map { .init(key: .init("\($0)"), bytes: body) })
    try await cache.removeAll()
    try await cache.store(body, for: "k")
    try await cache.sweep()
    let fields = try object(run("stats", "--json"))
    let free = try #require(fields["indexFreeBytes"] as? Int)
    #expect(try #require(fields["indexAllocatedBytes"] as? Int) >= free)
    try await cache.close()
  }

  @Test func trimByAge() async throws {
    let clock = BlobCache.ManualClock(now: Date(timeIntervalSinceNow: -7_200))
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache(directory: playground.cache, configuration: configuration)
    for key in ["old", "kept"] { try await cache.store(hello, for: .init(key)) }
    try await cache.pin("kept")
    try await cache.close()
    #expect(try run("put", "new", input: hello).status == 0)
    let dry = try run("trim", "--age=1h", "--dry-run").text
    #expect(dry.contains("\nage       1 older than 1h\nwould go  about 1 entry, "))
    #expect(try run("trim", "--age=1h").text.hasPrefix("evicted 1 entry; 2 entries and "))
    #expect(try run("cat", "old").status == 1)
    #expect(try run("cat", "kept") == printed("hello"))
  }

  @Test func sweep() async throws {
    let clock = BlobCache.ManualClock(now: Date(timeIntervalSinceNow: -200_000))
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache(directory: playground.cache, configuration: configuration)
    try await cache.store(hello, for: "gone", lifetime: .expires(after: .seconds(1)))
    try await cache.close()
    #expect(try run("put", "stale", "--ttl=1ms", input: hello).status == 0)
    #expect(try run("put", "q", input: hello).status == 0)
    #expect(try run("sweep") == printed("removed 1 entry whose time was over"))
    #expect(try run("sweep") == printed("nothing to remove"))
    #expect(
      try run("sweep", "--json")
        == printed(
          #"{"expired":0,"unreferencedFiles":0,"missingFiles":0,"deadStagingFiles":0,"quarantinedFiles":0}"#
        ))
    #expect(try run("list", "--expired").text.hasSuffix("  stale\n"))
    #expect(try run("cat", "q") == printed("hello"))
  }

  @Test func aKeyWithANulByte() throws {
    #expect(try run("put", "--key-base64=YQBi", input: hello).status == 0)
    #expect(try run("cat", "--key-base64", "YQBi") == printed("hello"))
    #expect(try run("list", "--json").text.hasPrefix(#"{"key":"a\u0000b","#))
    #expect(try run("pin", "--key-base64", "YQBi").status == 0)
    #expect(
      try run("renew", "--key-base64", "YQBi", "--ttl=2h") == printed("renewed: 2h, expires in 2h"))
    #expect(try run("remove", "--key-base64=YQBi") == printed("removed 1 entry"))
  }

  @Test func show() throws {
    _ = try run("put", "k\n", "--ttl=1ms", "--attribute", "a=b\u{1B}", input: hello)
    let shown = try run("show", "k\n")
    let general = shown.text
      .replacing(/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC/, with: "TIME")
      .replacing(/\([0-9.]+m?s ago\)/, with: "(AGO)")
    #expect(
      general == """
        key        k\\n
        digest     sha256:\(helloDigest)
        size       6 B
        kept in    the index

        stored     TIME (AGO)
        last read  never
        reads      0
        lifetime   1ms
        expired    TIME (AGO)
        stale for  1d after that; it is stale now

        attribute  a = b\\x1b

        """)
    #expect(try run("show", "q") == failed(1, "not in the cache: 'q'"))
    #expect(try run("show", "q", "--json") == failed(1, "not in the cache: 'q'"))
    let cat = try run("cat", "k\n")
    #expect(cat.status == 1)
    #expect(cat.output == [])
    #expect(cat.complaint.hasPrefix("blobcache-inspect: expired "))
    #expect(cat.complaint.hasSuffix(" ago: 'k\\n'; renew makes it fresh\n"))
    #expect(try run("renew", "k\n", "--forever") == printed("renewed: forever, expires never"))
    #expect(try run("cat", "k\n") == printed("hello"))
    #expect(try run("renew", "q", "--forever") == failed(1, "not in the cache: 'q'"))
  }

  @Test func listFiltersSortsAndLimits() throws {
    for (key, size, ttl) in [("a/1", 30, "1h"), ("a/2", 10, "1ms"), ("b/1", 20, "1d")] {
      let bytes = [UInt8](repeating: 1, count: size)
      #expect(try run("put", key, "--ttl", ttl, input: bytes).status == 0)
    }
    _ = try run("put", "b/2", input: [])
    func keys(_ words: String...) throws -> [String] {
      let words = ["list", playground.cache] + words
      let run = try playground.run(words.map { Array($0.utf8) })
      #expect(run.status == 0)
      #expect(run.complaint == "")
      return run.text.split(separator: "\n").dropFirst().compactMap {
        $0.split(separator: " ").last.map(String.init)
      }
    }
    #expect(Set(try keys()) == ["a/1", "a/2", "b/1", "b/2"])
    #expect(Set(try keys("--prefix", "a/")) == ["a/1", "a/2"])
    #expect(try keys("--prefix", "c").isEmpty)
    #expect(try keys("--expired") == ["a/2"])
    #expect(try keys("--sort=size") == ["a/1", "b/1", "a/2", "b/2"])
    #expect(try keys("--sort=size", "--reverse") == ["b/2", "a/2", "b/1", "a/1"])
    #expect(try keys("--sort=size", "--limit=2") == ["a/1", "b/1"])
    #expect(try keys("--sort=expiry") == ["a/2", "a/1", "b/1", "b/2"])
    #expect(try keys("--sort=hits") == ["a/1", "a/2", "b/1", "b/2"])
    #expect(try keys("--sort=age").count == 4)
    #expect(try keys("--limit=3").count == 3)
    #expect(try run("list", "--sort=size", "--limit=1", "--expired").text.contains("a/2"))
    #expect(
      try run("remove", "--prefix", "a/") == printed("removed 2 entries"))
    #expect(Set(try keys()) == ["b/1", "b/2"])
  }

  @Test func removeTwice() throws {
    _ = try run("put", "k", input: hello)
    #expect(try run("remove", "k") == printed("removed 1 entry"))
    #expect(
      try run("remove", "k", "k")
        == Run(
          status: 1, output: Array("removed 0 entries\n".utf8),
          complaint: complaint("not in the cache: 'k'", "not in the cache: 'k'")))
  }

  @Test func clearWantsYes() throws {
    _ = try run("put", "k", input: hello)
    #expect(
      try run("clear")
        == failed(2, "clear removes every entry; say --yes to do it where nobody can be asked"))
    #expect(try run("cat", "k").status == 0)
    #expect(try run("clear", "--yes") == printed("removed 1 entry"))
    #expect(try run("cat", "k").status == 1)
  }

  // MARK: Damage

  @Test func verifyFindsAndRepairs() throws {
    let large = [UInt8](repeating: 9, count: 100_000)
    #expect(try run("put", "good", input: hello).status == 0)
    #expect(try run("put", "bad\n", playground.file("large", large)).status == 0)
    let digest = try BlobCache.Digest(hex: Self.digest(of: run("show", "bad\n")))
    let path = "\(playground.cache)/blobs/\(digest.hex.prefix(2))/\(digest.hex)"
    let file = try #require(FileHandle(forUpdatingAtPath: path))
    try file.seek(toOffset: 50_000)
    try file.write(contentsOf: Data([8]))
    try file.close()

    let found = Run(
      status: 1,
      output: Array(
        "damaged: bad\\n\nproblems found: 2 blobs checked; --repair puts them right\n".utf8),
      complaint: "")
    #expect(try run("verify") == found)
    #expect(try run("verify") == found)
    #expect(
      try run("cat", "bad\n")
        == failed(1, "the bytes of 'bad\\n' are damaged; verify --repair takes them out"))
    #expect(
      try run("verify", "--repair")
        == printed("damaged: bad\\n", "repaired: 2 blobs checked", status: 1))
    #expect(try run("verify") == printed("sound: 1 blob checked"))
    #expect(try run("cat", "bad\n") == failed(1, "not in the cache: 'bad\\n'"))
    #expect(try run("cat", "good") == printed("hello"))
  }

  @Test func aDamagedIndexIsSetAsideByRepair() throws {
    let large = [UInt8](repeating: 9, count: 100_000)
    #expect(try run("put", "large", playground.file("large", large)).status == 0)
    let path = "\(playground.cache)/index/data.mdb"
    let file = try #require(FileHandle(forUpdatingAtPath: path))
    try file.write(contentsOf: Data(count: 4096))
    try file.close()

    for words in [["list"], ["stats"], ["cat", "large"], ["trim", "--dry-run"]] {
      let run = try playground.run(words[0], [playground.cache] + words.dropFirst())
      #expect(run.status == 2)
      #expect(run.complaint.contains("verify --repair"), "\(run.complaint)")
      #expect(run.complaint.contains("page 0"), "\(run.complaint)")
    }
    let found = try run("verify")
    #expect(found.status == 1)
    #expect(found.complaint == "")
    #expect(found.text.hasPrefix("cannot be read: \(path): page 0: "))
    #expect(found.text.contains("verify --repair"))
    let json = try run("verify", "--json")
    #expect(json.status == 1)
    let fields = try object(json)
    #expect(fields["sound"] as? Bool == false)
    #expect((fields["indexDamage"] as? String)?.hasPrefix("\(path): page 0: ") == true)
    let kept = "1 blob file without an entry (97.7 KiB, kept for being stored again)"
    let aside = "index set aside in the folder quarantine; the cache is empty"
    let repaired = try run("verify", "--repair")
    #expect(repaired == printed(aside, kept, "repaired: 0 blobs checked", status: 1))
    #expect(try run("put", "large", playground.file("large", large)).status == 0)
    #expect(try run("verify") == printed("sound: 1 blob checked"))
  }

  /// Reading tells what is missing and how to mend it, and a repair mends it.
  @Test(arguments: ["blobs", "staging", "quarantine", "index", "index/data.mdb", "LOCK", "empty"])
  func missingPartsAreToldAndMended(name: String) throws {
    #expect(try run("put", "k", input: hello).status == 0)
    let path = "\(playground.cache)/\(name == "empty" ? "index/data.mdb" : name)"
    try FileManager.default.removeItem(atPath: path)
    if name == "empty" { try playground.file("cache/index/data.mdb", []) }
    for words in [["list"], ["stats", "--json"], ["cat", "k"]] {
      let run = try playground.run(words[0], [playground.cache] + words.dropFirst())
      #expect(run.status == 2)
      #expect(run.output == [])
      #expect(
        run.complaint
          == complaint(
            "cannot \(path.hasSuffix("mdb") ? "open index" : "open") '\(path)': A part of the cache "
              + "is missing or empty; open the directory for writing, or run blobcache-inspect "
              + "verify --repair: it is made anew, and what is left is kept. "
              + "(it is \(name == "empty" ? "empty" : "missing"))"))
    }
    let json = try run("verify", "--json")
    #expect(json.status == 1)
    let damage = "\(path): it is \(name == "empty" ? "empty" : "missing")"
    #expect(try object(json)["indexDamage"] as? String == damage)
    #expect(try run("verify").text.hasPrefix("cannot be read: \(damage)\nnothing else was"))
    #expect(try run("verify", "--repair").status <= 1)
    #expect(try run("verify").status == 0)
    #expect(try run("put", "k", input: hello).status == 0)
    #expect(try run("cat", "k") == printed("hello"))
  }

  /// After another boot.
  @Test func anIndexOfAnotherBootIsTold() async throws {
    var configuration = BlobCache.Configuration()
    configuration.bootID = "00000000-0000-0000-0000-000000000001"
    let cache = try BlobCache(directory: playground.cache, configuration: configuration)
    try await cache.store(hello, for: "k")
    try await cache.close()
    let list = try run("list")
    #expect(list.status == 2)
    #expect(list.complaint.contains("The machine was started anew"))
    #expect(!list.complaint.contains("damaged"))
    #expect(try run("verify").status == 1)
    // Whoever writes goes on from the last checkpoint.
    #expect(try run("verify", "--repair") == printed("sound: 1 blob checked"))
    #expect(try run("cat", "k") == printed("hello"))
  }

  private static func digest(of shown: Run) -> String {
    shown.text.firstMatch(of: /sha256:([0-9a-f]{64})/).map { String($0.1) } ?? ""
  }

  // MARK: Beside others

  @Test func brokenPipeIsSuccess() throws {
    _ = try run("put", "large", playground.file("large", [UInt8](repeating: 1, count: 1 << 20)))
    for words in [["cat", "large"], ["list"], ["stats"], ["show", "large", "--json"], ["verify"]] {
      let run = try playground.runIntoBrokenPipe(words[0], [playground.cache] + words.dropFirst())
      #expect(run == Run(status: 0, output: [], complaint: ""))
    }
    // What was asked for is done all the same.
    #expect(try playground.runIntoBrokenPipe("remove", [playground.cache, "large"]).status == 0)
    #expect(try run("cat", "large").status == 1)
  }

  @Test func liveDirectory() async throws {
    // Stored an hour ago and read half an hour later: an access right after a store is not written.
    let clock = BlobCache.ManualClock(now: Date(timeIntervalSinceNow: -3_600))
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    let cache = try BlobCache(directory: playground.cache, configuration: configuration)
    try await cache.store(hello, for: "k", lifetime: .sliding(.seconds(7_200)))
    clock.advance(by: .seconds(1_800))
    _ = try cache.blob(for: "k")
    _ = try cache.blob(for: "nothing")
    #expect(try run("cat", "k") == printed("hello"))
    let before = try #require(try cache.entry(for: "k"))
    #expect(before.hits == 1)
    for words in [["list"], ["show", "k"], ["stats"], ["verify"], ["cat", "k"]] {
      #expect(try playground.run(words[0], [playground.cache] + words.dropFirst()).status == 0)
    }
    // None of it was an access.
    let after = try #require(try cache.entry(for: "k"))
    #expect(after.hits == 1)
    #expect(after.lastAccess == before.lastAccess)
    #expect(
      try run("stats").text.contains(
        "\nhits          1 (50.0 % of lookups)\n  in memory   0\nmisses        1\n"))
    for _ in 0..<3 { #expect(try cache.blob(for: "k") != nil) }
    #expect(cache.statistics.memoryHits == 3)
    let fields = try object(run("stats", "--json"))
    #expect(fields["hits"] as? Int == 4)
    #expect(fields["memoryHits"] as? Int == 3)

    #expect(try run("put", "new", input: hello).status == 0)
    #expect(try cache.blob(for: "new")?.data == Data(hello))
    #expect(try run("remove", "k") == printed("removed 1 entry"))
    #expect(try cache.blob(for: "k") == nil)
    try await cache.close()
  }

  @Test func readingChangesNothing() throws {
    _ = try run("put", "k", input: hello)
    _ = try run("put", "large", playground.file("large", [UInt8](repeating: 1, count: 1 << 20)))
    let before = try playground.picture()
    for words in [
      ["stats"], ["list"], ["list", "--sort", "size", "--json"], ["show", "k"], ["cat", "large"],
      ["cat", "nothing"], ["verify"],
    ] {
      _ = try playground.run(words[0], [playground.cache] + words.dropFirst())
      let after = try playground.picture()
      #expect(after == before)
    }
  }
}

extension Playground {
  func run(_ verb: String, _ words: [String]) throws -> Run {
    try run(([verb] + words).map { Array($0.utf8) })
  }

  func runIntoBrokenPipe(_ verb: String, _ words: [String]) throws -> Run {
    try runIntoBrokenPipe([verb] + words)
  }
}
