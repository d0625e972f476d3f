import BlobCache
import CBlobStore
import Foundation
import Recorder

struct UsageError: Error, CustomStringConvertible {
  var description: String
}

/// The state of the process between two lines.
struct Commands {
  private var cache: BlobCache?
  private let clock = BlobCache.ManualClock(now: Date(timeIntervalSince1970: 1_900_000_000))
  private var held: [BlobCache.Blob] = []

  mutating func run(_ verb: String, _ words: [String]) async throws -> String {
    switch verb {
    case "open": try open(words)
    case "close":
      try await opened().close()
      cache = nil
    case "store": return try await store(words)
    case "stream": return try await stream(words)
    case "move": return try await move(words)
    case "flood": return try await flood(words)
    case "get": return try get(words)
    case "expired": return try expired(words)
    case "hold": return try hold(words)
    case "bounds": return try await bounds(words)
    case "hold-many": return try await holdMany(words)
    case "held": return "ok " + held.map { $0.digest.hex }.joined(separator: " ")
    case "fetch": return try await fetch(words)
    case "remove": return "ok \(try await opened().remove(key(words)))"
    case "clear": try await opened().removeAll()
    case "flush": try await opened().flush()
    case "verify": return try await verify(words)
    case "list":
      return "ok \(try await opened().entries(withPrefix: nil).reduce(0) { n, _ in n + 1 })"
    case "mixed": return try await mixed(words)
    case "storm": return try await storm(words)
    case "hog": return try await hog(words)
    case "hog-core": return try hogCore(words)
    case "stand-in-table": try standInTable(words)
    case "turns": return try await turns(words)
    case "history": return try await history(words)
    case "sweep": try await opened().sweep()
    case "statistics": return "ok entries=\(try opened().statistics.entries)"
    case "fill": return try await fill(words)
    case "random": try await randomWork(on: opened(), words)
    case "clock": clock.set(to: Date(timeIntervalSince1970: try number(words, 0, Double.init)))
    case "umask": umask(try number(words, 0) { mode_t($0, radix: 8) })
    case "limit": try limitResource(words)
    case "descriptors": try limitDescriptors(spare: number(words, 0) { Int($0) })
    case "fault": try injectFault(words)
    case "chronicle": return try await chronicle(words)
    case "renew":
      let renewed = try await opened().renew(key(words), lifetime: lifetime(words, 1) ?? .forever)
      return renewed ? "ok" : "miss"
    case "check": return try check(words)
    case "batch": return try clearAndStore(words)
    case "lookups": return try lookupsAtOnce(words)
    case "close-reading": return try await closeWhileReading(words)
    case "fork-storm": return try await forkStorm(words)
    case "forks": return try forks(words)
    case "flip": return try await flip(words)
    case "herd": return try await herd(words)
    case "nest": return try await nest(words)
    case "fork": return try forkedLookup(words)
    case "mark": recorder_mark(words.joined(separator: " "))
    case "kill-after": try killAfter(words)
    case "stored": try await storeRecorded(words)
    case "recorded": try await recordedWork(words)
    case "calls": return try await calls(words)
    case "call-names": return callNames()
    case "powered": return try await afterPowerCut(words)
    case "damage-fill": try await fillForDamage(words)
    case "damage-open": return try openAndLook(words)
    case "damage-use": return try await surveyOpen()
    case "survey": return try await survey(words)
    case "mend": return try await mend(words)
    default: throw UsageError(description: "unknown command \(verb)")
    }
    return "ok"
  }

  mutating func keep(_ cache: BlobCache) { self.cache = cache }

  // MARK: Words

  func opened() throws -> BlobCache {
    guard let cache else { throw UsageError(description: "open a directory first") }
    return cache
  }

  func word(_ words: [String], _ index: Int) throws -> String {
    guard index < words.count else { throw UsageError(description: "missing word \(index + 1)") }
    return words[index]
  }

  func number<N>(_ words: [String], _ index: Int, _ read: (String) -> N?) throws -> N {
    guard let number = read(try word(words, index)) else {
      throw UsageError(description: "not a number: \(words[index])")
    }
    return number
  }

  func key(_ words: [String]) throws -> BlobCache.Key {
    BlobCache.Key(try word(words, 0))
  }

  /// Words 1 and 2: size and seed.
  func body(_ words: [String]) throws -> [UInt8] {
    try seededBytes(count: number(words, 1) { Int($0) }, seed: number(words, 2) { UInt64($0) })
  }

  /// `forever`, `expires:SECONDS`, `sliding:SECONDS` or `sliding:SECONDS:ATMOST`.
  private func lifetime(_ words: [String], _ index: Int) throws -> BlobCache.Lifetime? {
    guard index < words.count else { return nil }
    let parts = words[index].split(separator: ":")
    let spans = parts.dropFirst().map { Duration.milliseconds(Int64((Double($0) ?? 0) * 1000)) }
    switch (parts.first, spans.count) {
    case ("forever", 0): return .forever
    case ("expires", 1): return .expires(after: spans[0])
    case ("sliding", 1): return .sliding(spans[0])
    case ("sliding", 2): return .sliding(spans[0], atMost: spans[1])
    default: throw UsageError(description: "not a lifetime: \(words[index])")
    }
  }

  // MARK: Commands

  /// `open DIRECTORY [once] [lease=SECONDS] [durable] [always] [memory=BYTES] [clock] [network] [group] [copy] [type=HEX] [boot=ID] [map=BYTES] [inline=BYTES] [sweep=MILLISECONDS] [limit=BYTES] [every=MILLISECONDS]`
  private mutating func open(_ words: [String]) throws {
    var configuration = BlobCache.Configuration()
    for option in words.dropFirst() {
      let parts = option.split(separator: "=", maxSplits: 1).map(String.init)
      switch parts[0] {
      case "once": configuration.loadsOncePerMachine = true
      case "lease": configuration.leaseTime = .seconds(try number(parts, 1) { Int($0) })
      case "durable": configuration.durability = .durable
      case "memory": configuration.memory = .init(bytes: try number(parts, 1) { Int($0) })
      case "always": configuration.verification = .always
      case "clock": configuration.clock = clock.clock
      case "group": (configuration.directoryMode, configuration.fileMode) = (0o2770, 0o660)
      case "copy": configuration.mapping = .copy
      case "network": configuration.allowsNetworkFileSystem = true
      case "type": configuration.fileSystemType = try number(parts, 1) { Int64($0, radix: 16) }
      case "boot": configuration.bootID = parts[1]
      case "map": configuration.initialMapSize = try number(parts, 1) { UInt64($0) }
      case "sweep":
        configuration.sweepInterval = .milliseconds(try number(parts, 1) { Int($0) })
      case "every":
        configuration.durability = .checkpointed(
          every: .milliseconds(try number(parts, 1) { Int($0) }))
      case "limit": configuration.limits = .init(bytes: try number(parts, 1) { Int($0) })
      case "inline": configuration.inlineThreshold = try number(parts, 1) { UInt32($0) }
      default: throw UsageError(description: "unknown option \(option)")
      }
    }
    cache = try BlobCache(directory: try word(words, 0), configuration: configuration)
  }

  /// `store KEY SIZE SEED [LIFETIME]`: answers after the store has returned.
  private func store(_ words: [String]) async throws -> String {
    let entry = try await opened().store(
      body(words), for: key(words), lifetime: lifetime(words, 3))
    return "ok \(entry.digest.hex)"
  }

  /// `stream KEY SIZE SEED CHUNK`: a streaming store in pieces of CHUNK bytes, yielding between them.
  private func stream(_ words: [String]) async throws -> String {
    let bytes = try body(words)
    let chunk = try number(words, 3) { Int($0) }
    let entry = try await opened().store(for: key(words)) { body in
      var rest = bytes[...]
      while !rest.isEmpty {
        try await body.write(rest.prefix(chunk))
        rest = rest.dropFirst(chunk)
        await Task.yield()
      }
    }
    return "ok \(entry.digest.hex)"
  }

  /// `move KEY PATH`: stores a file, which is removed when that is done.
  private func move(_ words: [String]) async throws -> String {
    let entry = try await opened().store(
      contentsOf: word(words, 1), for: key(words), mode: .moving)
    return "ok \(entry.digest.hex)"
  }

  /// `flood KEY MEBIBYTES`: streams that much, a MiB at a time; the most resident memory, in KiB.
  private func flood(_ words: [String]) async throws -> String {
    let count = try number(words, 1) { Int($0) }
    let piece = seededBytes(count: 1 << 20, seed: 1)
    try await opened().store(for: key(words)) { body in
      for _ in 0..<count { try await body.write(piece) }
    }
    let status = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
    let line = status.split(separator: "\n").first { $0.hasPrefix("VmHWM:") }
    return "ok \(line?.filter(\.isNumber) ?? "?")"
  }

  /// `get KEY`: `hit SIZE DIGEST SHA256-OF-THE-BYTES` or `miss`.
  private func get(_ words: [String]) throws -> String {
    guard let blob = try opened().blob(for: key(words)) else { return "miss" }
    return "hit \(blob.count) \(blob.digest.hex) \(BlobCache.Digest(hashing: blob.data).hex)"
  }

  /// `expired KEY`: what the metadata says, which is not an access.
  private func expired(_ words: [String]) throws -> String {
    guard let entry = try opened().entry(for: key(words)) else { return "miss" }
    return "ok \(entry.isExpired)"
  }

  private mutating func hold(_ words: [String]) throws -> String {
    guard let blob = try opened().blob(for: key(words)) else { return "miss" }
    held.append(blob)
    return "ok"
  }

  /// `verify look|repair [structure]`: what it says of the index, and `unreferenced=N`.
  private func verify(_ words: [String]) async throws -> String {
    let scope: BlobCache.VerifyScope = words.contains("structure") ? .structure : .everything
    let report = try await opened().verify(scope, repair: words.first == "repair")
    var answer = report.isSound ? "sound" : "found"
    if report.indexDamage != nil { answer += " damage" }
    if report.isIndexSetAside { answer += " aside" }
    if report.isIndexInUse { answer += " inUse" }
    if report.isRepaired { answer += " repaired" }
    return answer + " unreferenced=\(report.unreferencedFiles)"
  }

  /// `fetch KEY SIZE SEED`: reads through; the loader's body is the seeded one.
  private func fetch(_ words: [String]) async throws -> String {
    let bytes = try body(words)
    let blob = try await opened().fetch(key(words)) { load in
      try await load.write(bytes)
      return .complete
    }
    let digest = BlobCache.Digest(hashing: blob.data).hex
    switch blob.source {
    case .index, .file, .memory: return "hit \(blob.count) \(digest)"
    case .loadedNotStored(let error):
      return "loadedNotStored \(blob.count) \(digest) \(error.code)"
    default: return "loaded \(blob.count) \(digest)"
    }
  }

  /// `fill COUNT SIZE`: keys fill-0 … with seeds 0 …, in one process's own pace.
  private func fill(_ words: [String]) async throws -> String {
    let count = try number(words, 0) { Int($0) }
    let size = try number(words, 1) { Int($0) }
    for index in 0..<count {
      try await opened().store(
        seededBytes(count: size, seed: UInt64(index)), for: BlobCache.Key("fill-\(index)"))
    }
    return "ok \(count)"
  }

  /// `flip COUNT SIZE`: two keys, each with one of two contents (seeds 0 and 1) by turns.
  private func flip(_ words: [String]) async throws -> String {
    let count = try number(words, 0) { Int($0) }
    let size = try number(words, 1) { Int($0) }
    let contents = [seededBytes(count: size, seed: 0), seededBytes(count: size, seed: 1)]
    for index in 0..<count {
      try await opened().store(
        contents[(index / 2 + index) % 2], for: BlobCache.Key("flip-\(index % 2)"))
    }
    return "ok \(count)"
  }
}
