import Foundation
import Testing

@testable import blobcache_test_process

/// Promise 9: each call to the kernel, of LMDB and of OpenSSL on the way of each verb fails once, and from then on, with
/// each fault that it can have (`FailingCalls.h`).
///
/// After each: the verb has thrown an error that names the cause, or has succeeded; what was there before is there with its
/// bytes; the same verb then succeeds; closed, the directory passes the structure check, and no descriptor, mapping,
/// staged file or allocation is left (`Calls.swift`). The short form takes every so many-th call; BLOBCACHE_CALLS=all
/// takes all, and prints how many faults there were.
@Suite("9. Calls fail")
struct CallsFailTests {
  private static let isLong = ProcessInfo.processInfo.environment["BLOBCACHE_CALLS"] == "all"

  private static let verbs = [
    "open-new", "open", "close", "blob-file", "blob-inline", "blob-mapped", "contains", "entry",
    "fetch-file", "fetch-hit", "fetch-inline", "flush", "list", "pin", "remove", "remove-all",
    "remove-prefix", "remove-tagged", "renew", "statistics", "store-all", "store-contents",
    "store-file", "store-inline", "store-stream", "sweep", "trim", "unpin", "verify",
    "verify-repair", "with-bytes",
  ]
  private static let faults = [
    "NOSPC", "DQUOT", "MFILE", "NFILE", "IO", "INTR", "ACCES", "ROFS", "NOMEM", "SHORT", "CALL",
  ]
  private static let seed: UInt64 = {
    let text = ProcessInfo.processInfo.environment["BLOBCACHE_SEED"]
    return text.flatMap(UInt64.init) ?? UInt64.random(in: 0..<1_000_000)
  }()

  private struct Round {
    var fault: String
    var form: String
    var first = 1
    var step = 1
    var durable = false
  }

  private static func rounds(of verb: String) -> [Round] {
    var random = SeededGenerator(seed: seed &+ UInt64(verb.utf8.reduce(0) { $0 &* 31 &+ Int($1) }))
    if isLong {
      return faults.flatMap { fault in
        ["only", "from"].flatMap { form in
          [false, true].map { Round(fault: fault, form: form, durable: $0) }
        }
      }
    }
    // Two faults in one form each, and of their calls every seventh: about 1,000 injections in all.
    return faults.shuffled(using: &random).prefix(2).map { fault in
      Round(
        fault: fault, form: Bool.random(using: &random) ? "only" : "from",
        first: Int.random(in: 1...7, using: &random), step: 7,
        durable: Bool.random(using: &random))
    }
  }

  @Test(arguments: verbs)
  func eachCallOfAVerbFails(verb: String) async throws {
    let directory = TemporaryDirectory()
    var injected: [String: Int] = [:]
    for round in Self.rounds(of: verb) {
      let folder = directory.path("\(round.fault)-\(round.form)-\(round.durable)")
      try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
      let command =
        "calls \(folder) \(verb) \(round.fault) \(round.form) \(round.first) \(round.step)"
        + (round.durable ? " durable" : "")
      // Syncs that nobody needs afterwards would be most of the time.
      let process = try SecondProcess(environment: ["BLOBCACHE_NO_SYNC": "1"])
      let answer: String
      do {
        try process.send(command)
        answer = try await process.nextLine(patience: .seconds(120))
      } catch {
        let last = process.standardError.split(separator: "\n").last ?? ""
        Issue.record("seed \(Self.seed): \(command): \(error); the last was \(last)")
        continue
      }
      try await process.end()
      let parts = answer.split(separator: "|").map { $0.trimmingCharacters(in: .whitespaces) }
      #expect(
        parts.count == 1 && answer.hasPrefix("ok"), "seed \(Self.seed): \(command): \(answer)")
      for count in parts[0].split(whereSeparator: { $0 == " " || $0 == "," }).dropFirst() {
        let pair = count.split(separator: "=")
        injected[String(pair[0]), default: 0] += Int(pair[1]) ?? 0
      }
      try FileManager.default.removeItem(atPath: folder)
    }
    guard Self.isLong else { return }
    let text = injected.sorted { $0.value > $1.value }.map { "\($0.key)=\($0.value)" }
    print("calls \(verb): \(injected.values.reduce(0, +)) faults:", text.joined(separator: " "))
    #expect(verb == "statistics" || !injected.isEmpty)
  }

  /// A suite whose faults never strike would pass.
  @Test func aStoreAndALookupMeetFaults() async throws {
    let directory = TemporaryDirectory()
    let process = try SecondProcess(environment: ["BLOBCACHE_NO_SYNC": "1"])
    for (verb, calls) in [
      ("store-file", ["create", "write", "rename"]), ("blob-file", ["open", "pread"]),
    ] {
      let answer = try await process.call("calls \(directory.path) \(verb) IO only 1 1")
      for call in calls { #expect(answer.contains("\(call)="), "\(verb): \(answer)") }
    }
    let names = try await process.call("call-names").split(separator: "/").map {
      $0.split(separator: " ").map(String.init)
    }
    #expect(names.first.map(Set.init) == Set(Self.verbs))
    #expect(names.last == Self.faults)
    try await process.end()
  }
}
