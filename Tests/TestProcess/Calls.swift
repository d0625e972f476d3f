import BlobCache
import CBlobStore
import FailingCalls
import Foundation

/// What lies in the directory before each operation, and has to be there after it.
private enum CallsWork {
  static let clock = BlobCache.ManualClock(now: Date(timeIntervalSince1970: 1_900_000_000))

  static let bodies: [(key: String, bytes: [UInt8], tags: [String])] = [
    ("inline", seededBytes(count: 300, seed: 1), []),
    ("file", seededBytes(count: 40_000, seed: 2), []),
    ("tagged-inline", seededBytes(count: 500, seed: 3), ["t"]),
    ("tagged-file", seededBytes(count: 30_000, seed: 4), ["t"]),
    ("pinned", seededBytes(count: 20_000, seed: 5), []),
  ]
  static let all = Dictionary(uniqueKeysWithValues: bodies.map { ($0.key, [UInt8]?.none) })
  static let newInline = seededBytes(count: 310, seed: 11)
  static let newFile = seededBytes(count: 41_000, seed: 12)
  static let mapped = seededBytes(count: (2 << 20) + 5, seed: 13)

  struct Wrong: Error, CustomStringConvertible {
    var description: String
  }
}

extension BlobCache.Blob {
  fileprivate func holds(_ bytes: [UInt8]) -> Bool {
    withUnsafeBytes { own in
      bytes.withUnsafeBytes { other in
        guard own.count == other.count else { return false }
        guard let left = own.baseAddress, let right = other.baseAddress else { return true }
        return memcmp(left, right, own.count) == 0
      }
    }
  }
}

/// One verb of the public face, as it is run once with a fault and once without.
private struct CallsOperation {
  /// The keys that it changes, and what they have when it has succeeded; nil: nothing.
  var changes: [String: [UInt8]?] = [:]
  /// Whether those keys are as before when it has thrown.
  var isWhole = true
  /// Whether they may also be as before when it has succeeded.
  var mayKeep = false
  /// It has nothing to throw: a lookup misses, a fetch hands over.
  var neverThrows = false
  var prepare: @Sendable (BlobCache) async throws -> Void = { _ in }
  var run: @Sendable (BlobCache, _ source: String) async throws -> Void
}

extension CallsWork {
  static func expect(_ blob: BlobCache.Blob?, _ bytes: [UInt8]?) throws {
    guard let blob else { return }
    guard let bytes, blob.holds(bytes) else { throw Wrong(description: "wrong bytes") }
  }

  static func bytes(of key: String) -> [UInt8]? { bodies.first { $0.key == key }?.bytes }

  private static func lookup(
    _ key: String, _ look: @escaping @Sendable (BlobCache, BlobCache.Key) throws -> Void
  ) -> CallsOperation {
    CallsOperation(neverThrows: true, run: { cache, _ in try look(cache, BlobCache.Key(key)) })
  }

  static let operations: [String: CallsOperation] = [
    "store-inline": CallsOperation(
      changes: ["inline": newInline],
      run: { cache, _ in try await cache.store(newInline, for: "inline") }),
    "store-file": CallsOperation(
      changes: ["file": newFile],
      run: { cache, _ in try await cache.store(newFile, for: "file", tags: ["u"]) }),
    "store-contents": CallsOperation(
      changes: ["file": newFile],
      run: { cache, source in try await cache.store(contentsOf: source, for: "file") }),
    "store-stream": CallsOperation(
      changes: ["file": newFile],
      run: { cache, _ in
        try await cache.store(for: "file") { body in
          try await body.write(newFile[..<15_000])
          try await body.write(newFile[15_000...])
        }
      }),
    "store-all": CallsOperation(
      changes: ["inline": newInline, "file": newFile], isWhole: false,
      run: { cache, _ in
        _ = try await cache.storeAll([
          BlobCache.Item(key: "inline", bytes: newInline),
          BlobCache.Item(key: "file", bytes: newFile),
        ])
      }),
    "blob-inline": lookup("inline") { try expect($0.blob(for: $1), bytes(of: "inline")) },
    "blob-file": lookup("file") { try expect($0.blob(for: $1), bytes(of: "file")) },
    "blob-mapped": CallsOperation(
      neverThrows: true,
      prepare: { cache in
        if try cache.contains("mapped") { return }
        try await cache.store(mapped, for: "mapped")
      },
      run: { cache, _ in try expect(cache.blob(for: "mapped"), mapped) }),
    "with-bytes": lookup("file") { cache, key in
      _ = try cache.withBytes(for: key) { span in
        guard span.withUnsafeBytes({ $0.elementsEqual(bytes(of: "file") ?? []) }) else {
          throw Wrong(description: "wrong bytes")
        }
      }
    },
    "entry": lookup("file") { _ = try $0.entry(for: $1) },
    "contains": lookup("file") { _ = try $0.contains($1) },
    "fetch-inline": fetch(newInline, neverThrows: true),
    "fetch-file": fetch(newFile, neverThrows: false),
    "fetch-hit": CallsOperation(
      neverThrows: true,
      run: { cache, _ in
        let blob = try await cache.fetch("file") { load in
          try await load.write(bytes(of: "file") ?? [])
          return .complete
        }
        try expect(blob, bytes(of: "file"))
      }),
    "remove": CallsOperation(
      changes: ["file": nil], isWhole: false,
      run: { cache, _ in try await cache.remove("file") }),
    "remove-all": CallsOperation(
      changes: all, isWhole: false, run: { cache, _ in try await cache.removeAll() }),
    "remove-tagged": CallsOperation(
      changes: ["tagged-inline": nil, "tagged-file": nil], isWhole: false,
      run: { cache, _ in _ = try await cache.removeAll(tagged: "t") }),
    "remove-prefix": CallsOperation(
      changes: ["tagged-inline": nil, "tagged-file": nil], isWhole: false,
      run: { cache, _ in _ = try await cache.removeAll(withPrefix: BlobCache.Key("tagged-")) }),
    "renew": CallsOperation(
      run: { cache, _ in
        try await cache.renew("file", lifetime: .expires(after: .seconds(1_000_000)))
      }),
    "pin": CallsOperation(run: { cache, _ in try await cache.pin("file") }),
    "unpin": CallsOperation(run: { cache, _ in try await cache.unpin("pinned") }),
    "trim": CallsOperation(
      changes: all, isWhole: false, mayKeep: true,
      run: { cache, _ in _ = try await cache.trim(to: .init(entries: 2)) }),
    "sweep": CallsOperation(
      prepare: { cache in
        try await cache.store(
          seededBytes(count: 25_000, seed: 6), for: "over", lifetime: .expires(after: .seconds(1)),
          staleWindow: .zero)
        clock.advance(by: .seconds(10))
      },
      run: { cache, _ in
        _ = try await cache.sweep()
      }),
    "verify": CallsOperation(run: { cache, _ in _ = try await cache.verify() }),
    "verify-repair": CallsOperation(
      run: { cache, _ in _ = try await cache.verify(repair: true) }),
    "flush": CallsOperation(
      prepare: { cache in try await cache.store(newFile, for: "another") },
      run: { cache, _ in try await cache.flush() }),
    "list": CallsOperation(
      run: { cache, _ in
        let count = try await cache.entries(withPrefix: nil).reduce(0) { n, _ in n + 1 }
        guard count >= bodies.count else { throw Wrong(description: "\(count) are listed") }
      }),
    "statistics": CallsOperation(
      neverThrows: true, run: { cache, _ in _ = cache.statistics.entries }),
  ]

  /// What is larger than the memory it may take is staged, and there is nothing to hand over when that cannot be read.
  private static func fetch(_ bytes: [UInt8], neverThrows: Bool) -> CallsOperation {
    CallsOperation(
      neverThrows: neverThrows,
      prepare: { cache in try await cache.remove("fetched") },
      run: { cache, _ in
        let blob = try await cache.fetch("fetched") { load in
          try await load.write(bytes)
          return .complete
        }
        try expect(blob, bytes)
      })
  }

  static let lifecycle = ["open-new", "open", "close"]
}

/// The injections of one operation and one fault.
private struct CallsRun {
  let folder: String
  let name: String
  let fault: Int32
  let goesOn: Bool
  let isDurable: Bool
  var injected = [Int](repeating: 0, count: Int(FAILING_CALL_COUNT.rawValue))
  var wrong: [String] = []
  /// A sync has failed, which is final for what it covered until the directory is opened again.
  private var lostSync = false
  /// Something could not be unlinked.
  private var keptFiles = false

  var directory: String { folder + "/cache" }
  var source: String { folder + "/source" }

  init(folder: String, name: String, fault: Int32, goesOn: Bool, isDurable: Bool) {
    (self.folder, self.name, self.fault) = (folder, name, fault)
    (self.goesOn, self.isDurable) = (goesOn, isDurable)
  }

  private func open() throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.memory = .init(bytes: 0)
    configuration.sweepInterval = nil
    configuration.durability = isDurable ? .durable : .checkpointed(every: .seconds(3600))
    // Nothing is evicted for a full disk: what goes is lost.
    configuration.limits = .unlimited
    configuration.clock = CallsWork.clock.clock
    return try BlobCache(directory: directory, configuration: configuration)
  }

  private func fill(_ cache: BlobCache) async throws {
    for body in CallsWork.bodies {
      if let blob = try cache.blob(for: BlobCache.Key(body.key)),
        blob.holds(body.bytes)
      {
        continue
      }
      try await cache.store(body.bytes, for: BlobCache.Key(body.key), tags: body.tags)
    }
    try await cache.pin("pinned")
    try await cache.unpin("file")
  }

  private mutating func complain(_ nth: Int, _ text: String) {
    let line = "\(name) \(Self.name(fault)) \(goesOn ? "from" : "only") \(nth): \(text)"
    if wrong.count < 12 { wrong.append(line) } else if wrong.count == 12 { wrong.append("…") }
  }

  static func name(_ fault: Int32) -> String {
    failing_fault_name(fault).map { String(cString: $0) } ?? "?"
  }

  /// The codes that an error may have whose cause is that fault.
  private static func codes(_ fault: Int32) -> Set<BlobCache.Error.Code> {
    switch name(fault) {
    case "NOSPC", "DQUOT": [.noSpace]
    case "MFILE", "NFILE": [.tooManyFiles]
    case "IO": [.io]
    case "ACCES": [.permission]
    case "ROFS": [.readOnly]
    case "NOMEM": [.noMemory]
    // LMDB does not go on with a write that wrote less, nor with one that was interrupted.
    case "SHORT", "INTR": [.io, .noSpace]
    default: [.underlying, .noMemory, .noSpace, .io, .permission, .corrupt]
    }
  }

  /// Runs the body with the `nth` call failing; whether any did.
  private mutating func withFault(
    _ nth: Int, neverThrows: Bool, _ body: () async throws -> Void
  ) async -> (isReached: Bool, succeeded: Bool) {
    var succeeded = true
    var counts = [Int](repeating: 0, count: injected.count)
    var failure: (any Error)?
    failing_arm(fault, nth, goesOn)
    do { try await body() } catch { failure = error }
    let all = failing_disarm(&counts)
    for index in counts.indices { injected[index] += counts[index] }
    keptFiles = counts[Int(FAILING_UNLINK.rawValue)] > 0
    lostSync = counts[Int(FAILING_SYNC.rawValue)] > 0
    if let failure {
      succeeded = false
      let error = failure as? BlobCache.Error
      if neverThrows || error == nil || !Self.codes(fault).contains(error?.code ?? .closed) {
        complain(nth, "\(Self.described(counts)): throws \(failure)")
      }
    }
    return (all > 0, succeeded)
  }

  private static func described(_ counts: [Int]) -> String {
    counts.indices.filter { counts[$0] > 0 }
      .map { "\(String(cString: failing_call_name(Int32($0))))=\(counts[$0])" }
      .joined(separator: ",")
  }

  var summary: String { Self.described(injected) }

  private mutating func expectKeys(
    _ cache: BlobCache, _ nth: Int, _ operation: CallsOperation, succeeded: Bool, _ when: String
  ) {
    for body in CallsWork.bodies {
      do {
        let found = try cache.blob(for: BlobCache.Key(body.key)).map { Array($0.data) }
        var allowed: [[UInt8]?] = [body.bytes]
        if let changed = operation.changes[body.key] {
          if succeeded {
            allowed = operation.mayKeep ? [body.bytes, changed] : [changed]
          } else if !operation.isWhole {
            allowed.append(changed)
          }
        }
        if !allowed.contains(found) {
          complain(
            nth, "\(when): \(body.key) has \(found.map { "\($0.count) bytes" } ?? "nothing")")
        }
      } catch {
        complain(nth, "\(when): \(body.key) throws \(error)")
      }
    }
  }

  /// What is left behind when the directory is closed.
  private mutating func expectNothingLeft(_ nth: Int) throws {
    for file in try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd") {
      let target = try? FileManager.default.destinationOfSymbolicLink(
        atPath: "/proc/self/fd/" + file)
      if let target, target.hasPrefix(folder + "/cache") {
        complain(nth, "a descriptor is left: \(target)")
      }
    }
    let maps = try String(contentsOfFile: "/proc/self/maps", encoding: .utf8)
    for line in maps.split(separator: "\n") where line.contains(folder) {
      complain(nth, "a mapping is left: \(line)")
    }
    // What could not be unlinked goes when its process has ended: until then it looks like work that is going on.
    for name in try FileManager.default.contentsOfDirectory(atPath: directory + "/staging") {
      if !keptFiles { complain(nth, "left in staging: \(name)") }
      try FileManager.default.removeItem(atPath: directory + "/staging/" + name)
    }
    let structure = try Commands().check([directory])
    if structure != "ok" { complain(nth, "check: \(structure)") }
  }

  /// Of the core and of LMDB, over many injections; some are freed by a thread that is about to end.
  mutating func expectNoAllocationsLeft(since live: Int, mark: Int) {
    for _ in 0..<200 where failing_live_allocations() > live { usleep(10_000) }
    let left = failing_live_allocations() - live
    guard left > 0 else { return }
    var text = [UInt8](repeating: 0, count: 600)
    text.withUnsafeMutableBytes { bytes in
      failing_describe_allocations(mark, bytes.baseAddress, bytes.count)
    }
    let callers = String(decoding: text.prefix { $0 != 0 }, as: UTF8.self)
    wrong.append("\(name): \(left) allocations are left, by \(callers)")
  }

  private mutating func once(_ nth: Int) async throws -> Bool {
    let nothing = CallsOperation(run: { _, _ in })
    // An index of which LMDB says that its pages are bad is set aside.
    var after = nothing
    if Self.name(fault) == "CALL" { (after.changes, after.mayKeep) = (CallsWork.all, true) }
    if name == "open-new" || name == "open" {
      if name == "open-new" {
        try? FileManager.default.removeItem(atPath: directory)  // there is none the first time
      } else {
        let before = try open()
        try await fill(before)
        try await before.close()
      }
      let here = self
      var opened: BlobCache?
      let result = await withFault(nth, neverThrows: false) { opened = try here.open() }
      if let opened {
        if name == "open" { expectKeys(opened, nth, after, succeeded: true, "opened") }
        try await opened.close()
      }
      let again = try open()
      if name == "open" { expectKeys(again, nth, after, succeeded: true, "opened again") }
      try await fill(again)
      expectKeys(again, nth, nothing, succeeded: true, "filled")
      try await again.close()
      return result.isReached
    }
    let cache = try open()
    try await fill(cache)
    // A file that the last round made, and nobody needs now, would be used again where this one is to make it.
    _ = try await cache.sweep()
    if name == "close" {
      try await cache.store(CallsWork.newFile, for: "another")
      let result = await withFault(nth, neverThrows: false) { try await cache.close() }
      let again = try open()
      expectKeys(again, nth, nothing, succeeded: true, "opened again")
      try await again.close()
      return result.isReached
    }
    guard let operation = CallsWork.operations[name] else {
      throw UsageError(description: "unknown operation \(name)")
    }
    try await operation.prepare(cache)
    let path = source
    let result = await withFault(nth, neverThrows: operation.neverThrows) {
      try await operation.run(cache, path)
    }
    expectKeys(cache, nth, operation, succeeded: result.succeeded, "after it")
    do {
      try await operation.prepare(cache)
      try await operation.run(cache, path)
      expectKeys(cache, nth, operation, succeeded: true, "after the next")
    } catch {
      let isFinal = lostSync && "\(error)".contains("an earlier sync failed")
      if !isFinal { complain(nth, "the next one throws \(error)") }
    }
    try await cache.close()
    return result.isReached
  }

  /// n = first, first + step, … until nothing failed.
  mutating func run(first: Int, step: Int) async throws {
    var nth = first
    while wrong.count < 12 {
      _ = lseek(2, 0, SEEK_SET)
      FileHandle.standardError.write(
        Data("\(name) \(Self.name(fault)) \(goesOn ? "from" : "only") \(nth)      \n".utf8))
      do {
        let isReached = try await once(nth)
        try expectNothingLeft(nth)
        if !isReached { break }
      } catch {
        complain(nth, "without a fault: \(error)")
        try? FileManager.default.removeItem(atPath: directory)
      }
      nth += step
    }
  }
}

extension Commands {
  /// `calls FOLDER OPERATION FAULT only|from FIRST STEP [durable]`: in a directory below the folder, the operation again and
  /// again, with its FIRST call failing that can have the fault, then its FIRST + STEPth … until it has none that number.
  /// `ok COUNTS-BY-CALL`, or `wrong COUNTS-BY-CALL | WHAT | …`.
  func calls(_ words: [String]) async throws -> String {
    guard failing_calls_work() else { return "error nothing can fail in this build" }
    var fault: Int32 = 0
    while let name = failing_fault_name(fault), String(cString: name) != words[2] { fault += 1 }
    guard failing_fault_name(fault) != nil else {
      throw UsageError(description: "unknown fault \(words[2])")
    }
    let folder = try word(words, 0)
    try Data(CallsWork.newFile).write(to: URL(fileURLWithPath: folder + "/source"))
    var run = CallsRun(
      folder: folder, name: words[1], fault: fault, goesOn: try word(words, 3) == "from",
      isDurable: words.contains("durable"))
    // What is made once in a process is made; and there is something to open.
    try await run.run(first: .max, step: 1)
    let (live, mark) = (failing_live_allocations(), failing_allocation_mark())
    try await run.run(
      first: try number(words, 4) { Int($0) }, step: try number(words, 5) { Int($0) })
    run.expectNoAllocationsLeft(since: live, mark: mark)
    return ([(run.wrong.isEmpty ? "ok " : "wrong ") + run.summary] + run.wrong)
      .joined(separator: " | ")
  }

  /// `call-names`: the operations, then `/`, then the faults.
  func callNames() -> String {
    var faults: [String] = []
    while let name = failing_fault_name(Int32(faults.count)) {
      faults.append(String(cString: name))
    }
    let operations = CallsWork.lifecycle + CallsWork.operations.keys.sorted()
    return (operations + ["/"] + faults).joined(separator: " ")
  }
}
