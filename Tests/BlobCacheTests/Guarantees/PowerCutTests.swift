import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 5, by proof: everything that processes do to a directory is recorded; the directory is made anew as a power cut
/// at any moment could have left it (`PowerCut`), and opened after another boot. It must open, serve only right bytes,
/// hold what is promised (`PowerOracle`), take new stores, and be sound.
///
/// The long form: BLOBCACHE_CUTS=5000. A cut that fails names its recording, which is kept, and its seed; with
/// BLOBCACHE_CUT_LOG and BLOBCACHE_CUT_SEED it is made again alone. BLOBCACHE_CUT_SCENARIO: all cuts for those whose
/// name contains it.
@Suite("5. Power cut", .serialized)
struct PowerCutTests {
  let directory = TemporaryDirectory()

  struct Scenario: CustomTestStringConvertible, Sendable {
    var name: String
    var isDurable: Bool
    var evicts = false
    var keys = 20
    /// One list of commands a process, run beside each other, phase by phase; `|` begins a phase.
    var processes: [[String]]
    var options = ""
    /// Of the cuts, how many are this scenario's.
    var share = 1

    var testDescription: String { name }
  }

  static let bootA = "11111111-1111-1111-1111-111111111111"
  static let bootB = "22222222-2222-2222-2222-222222222222"
  static let bootC = "33333333-3333-3333-3333-333333333333"

  static let scenarios = [
    Scenario(
      name: "durable, one process", isDurable: true,
      processes: [
        [
          "recorded 1 50 1 20", "reopen", "recorded 2 30 3 20 clear flush", "reboot",
          "recorded 3 15 1 20",
        ]
      ], share: 2),
    Scenario(
      name: "durable, two processes", isDurable: true,
      processes: [
        ["recorded 11 60 3 20 clear", "reopen", "recorded 12 30 2 20"],
        ["recorded 13 60 3 20 clear", "recorded 14 30 2 20"],
      ], share: 2),
    Scenario(
      name: "durable, at its limit", isDurable: true, evicts: true, keys: 40,
      processes: [["recorded 21 70 2 40"], ["recorded 22 70 2 40"]], options: "limit=1048576"),
    Scenario(
      name: "durable, free pages become holes", isDurable: true,
      processes: [
        [
          "recorded 31 15 1 20", "fill 100 60000", "clear", "recorded 32 40 1 20", "fill 60 60000",
          "clear", "recorded 33 20 1 20",
        ]
      ], options: "limit=16777216 inline=65536"),
    Scenario(
      name: "durable, writers are killed", isDurable: true,
      processes: [
        ["recorded 41 20 1 20", "|", "recorded 42 40 1 20", "|", "recorded 43 40 1 20"],
        ["kill-after rename 4", "killed recorded 44 90 1 20", "|", "|"],
        ["|", "fault before-commit 9 kill", "killed recorded 45 60 1 20", "|"],
      ], share: 2),
    // What one has published, and another one stores again, has a name that nobody has synced.
    Scenario(
      name: "durable, writers are killed before a folder is synced", isDurable: true,
      processes: [
        [
          "recorded 46 8 1 20", "|", "|", "stored 4 50000 9", "stored 6 60 1", "stored 7 60 2",
          "|", "|", "stored 5 50000 8", "stored 6 60 3", "stored 7 60 1", "recorded 47 12 1 20",
        ],
        ["|", "kill-after mkdir 1", "killed stored 3 50000 9", "|", "|", "|"],
        ["|", "|", "|", "kill-after rename 1", "killed stored 3 50000 8", "|"],
      ]),
    Scenario(
      name: "checkpointed, one process", isDurable: false,
      processes: [
        [
          "recorded 51 50 2 20 flush", "reopen", "recorded 52 40 3 20 clear flush", "reboot",
          "recorded 53 30 1 20 flush", "reboot", "recorded 54 15 1 20",
        ]
      ], share: 2),
    Scenario(
      name: "checkpointed, one process, many checkpoints", isDurable: false,
      processes: [
        [
          "recorded 51 50 2 20 flush", "reopen", "recorded 52 40 3 20 clear flush", "reboot",
          "recorded 53 30 1 20 flush", "reboot", "recorded 54 15 1 20",
        ]
      ], options: "every=10", share: 2),
    // What is stored again at once is not trusted yet, so a new file takes the name of one that a checkpoint knows.
    Scenario(
      name: "checkpointed, the same content again", isDurable: false,
      processes: [
        [
          "recorded 58 8 1 20 flush", "stored 4 50000 9", "recorded 59 6 1 20 flush",
          "stored 5 50000 9", "stored 6 50000 9", "recorded 48 6 1 20 flush", "stored 7 50000 9",
        ]
      ]),
    Scenario(
      name: "checkpointed, free pages become holes", isDurable: false, evicts: true,
      processes: [
        [
          "recorded 55 40 2 20 flush", "clear", "recorded 56 60 2 20 flush", "clear",
          "recorded 57 30 2 20 flush",
        ]
      ], options: "limit=16777216 inline=65536 every=20"),
    Scenario(
      name: "checkpointed, two processes at a limit", isDurable: false, evicts: true, keys: 40,
      processes: [
        ["recorded 61 80 3 40 flush", "reopen", "recorded 62 20 1 40"],
        ["recorded 63 80 3 40 clear flush"],
      ], options: "limit=1048576"),
  ]

  @Test(arguments: scenarios) func whateverIsLost(_ scenario: Scenario) async throws {
    if let again = Machine.cutSeed {
      guard Machine.cutLog.contains(scenario.fileName) else { return }
      let recording = try Recording(Machine.cutLog)
      for complaint in try await tryCuts(scenario, recording, mapped(Machine.cutLog), [again]) {
        Issue.record("\(complaint)")
      }
      return
    }
    if let only = Machine.cutScenario, !scenario.name.contains(only) { return }
    let shares =
      Machine.cutScenario == nil ? Self.scenarios.reduce(0) { $0 + $1.share } : scenario.share
    let count = ((Machine.cuts ?? 220) * scenario.share + shares - 1) / shares
    let recorded = try await record(scenario)
    let seed = Machine.cuts == nil ? 0 : UInt64.random(in: 0..<1 << 40)
    let (recording, contents) = (recorded.recording, recorded.mapped)
    let seeds = (0..<UInt64(count)).map { seed &+ $0 }
    for complaint in try await tryCuts(scenario, recording, contents, seeds) {
      Issue.record("\(complaint)")
    }
    print("power cut: \(scenario.name): \(count) cuts in \(recording.events.count) events")
  }

  /// The proof can fail: without the syncs of blob files, of their folders, or of the index's pages stores are lost.
  @Test(arguments: ["staging/", "blobs/", "index/data.mdb"])
  func aStoreThatForgetsASyncIsFound(_ path: String) async throws {
    guard Machine.cutSeed == nil else { return }
    let scenario = Scenario(
      name: "without syncs of \(path.dropLast())", isDurable: true,
      processes: [["recorded 71 60 1 20"]])
    let recorded = try await record(scenario, ["BLOBCACHE_RECORD_SKIP": path])
    let complaints = try await tryCuts(
      scenario, recorded.recording, recorded.mapped, Array(0..<60), enough: 1)
    #expect(!complaints.isEmpty)
  }

  /// The power fails again while a process mends what the first cut left, or works on with it.
  @Test(arguments: [true, false]) func itFailsAgain(isDurable: Bool) async throws {
    let mode = isDurable ? "durable" : "checkpointed"
    if let again = Machine.cutSeed {
      guard Machine.cutLog.contains("power-cut-\(mode)-failed-again") else { return }
      let recording = try Recording(Machine.cutLog)
      let scenario = Scenario(name: "\(mode), failed again", isDurable: isDurable, processes: [])
      let contents = mapped(Machine.cutLog)
      for complaint in try await tryCuts(
        scenario, recording, contents, [again], from: recording.beginning)
      {
        Issue.record("\(complaint)")
      }
      return
    }
    let first = Scenario(
      name: "\(mode), before the first cut", isDurable: isDurable,
      processes: [["recorded 81 60 2 20 flush"]])
    let recorded = try await record(first)
    let rounds = max(3, (Machine.cuts ?? 0) / 100)
    let base = Machine.cuts == nil ? 0 : UInt64.random(in: 0..<1 << 40)
    var events = 0
    for round in 0..<UInt64(rounds) {
      let path = directory.path("again-\(round)")
      var random = SeededGenerator(seed: (base &+ round) &* 0x9E37_79B9_7F4A_7C15)
      let count = recorded.recording.events.count
      let at = Int.random(in: count / 4...count, using: &random)
      var cut = PowerCut(recorded.recording, at: at, seed: random.next())
      try cut.rebuild(path, mapped: recorded.mapped)
      let again = Scenario(
        name: "\(mode), failed again \(round)", isDurable: isDurable,
        processes: [["recorded \(90 + round) 16 2 20 flush", "reopen", "recorded 82 6 1 20"]])
      let start = try recorded.recording.continuation(at: at, in: path)
      let (recording, mapped) = try await record(again, at: path, after: start, boot: Self.bootC)
      let begun = recording.beginning
      let seeds = (0..<UInt64(Machine.cuts == nil ? 7 : 25)).map { base &+ round &* 1000 &+ $0 }
      for complaint in try await tryCuts(again, recording, mapped, seeds, from: begun) {
        Issue.record("\(cut.description), and again: \(complaint)")
      }
      events += recording.events.count - begun
      try FileManager.default.removeItem(atPath: path)
    }
    print(
      "power cut: \(mode), failed again: \(rounds) times \(Machine.cuts == nil ? 7 : 25) cuts in \(events) events"
    )
  }

  // MARK: Cutting

  /// What is wrong after the cuts of these seeds; no more than `enough`.
  private func tryCuts(
    _ scenario: Scenario, _ recording: Recording, _ mapped: [String: [UInt8]], _ seeds: [UInt64],
    from first: Int = 0, enough: Int = 5
  ) async throws -> [String] {
    let oracle = try PowerOracle(
      recording, keys: scenario.keys, isDurable: scenario.isDurable, evicts: scenario.evicts)
    var process = try SecondProcess(environment: ["BLOBCACHE_NO_SYNC": "1"])
    var complaints: [String] = []
    let answers = recording.marks.filter { $0.text.hasPrefix("done") && $0.at >= first }.map {
      $0.at + 1
    }
    for seed in seeds where complaints.count < enough {
      let path = directory.path("cut-\(seed)")
      var random = SeededGenerator(seed: seed &* 0x9E37_79B9_7F4A_7C15)
      // Any moment, or one at which something has just been promised.
      let at =
        answers.randomElement(using: &random).flatMap { Bool.random(using: &random) ? $0 : nil }
        ?? Int.random(in: first...recording.events.count, using: &random)
      var cut = PowerCut(recording, at: at, seed: random.next())
      try cut.rebuild(path, mapped: mapped)
      var complaint: String?
      do {
        let mode = "\(scenario.isDurable ? "durable" : "") \(scenario.evicts ? "evicts" : "")"
        let answer = try await process.call(
          "powered \(path) \(Self.bootB) \(scenario.keys) \(seed) \(mode)")
        complaint = judge(answer, oracle, at)
      } catch {
        // It crashed, or hangs.
        complaint = "\(error)"
        process.kill()
        process = try SecondProcess(environment: ["BLOBCACHE_NO_SYNC": "1"])
      }
      if let complaint {
        let kept = enough > 1 ? keep(recording) : ""
        complaints.append(
          """
          \(scenario.name): \(cut.description): \(complaint)
          BLOBCACHE_CUT_LOG=\(kept) BLOBCACHE_CUT_SEED=\(seed)
          """)
      }
      if Machine.cutSeed == nil {
        // Not there when its own name was lost and it could not be opened.
        try? FileManager.default.removeItem(atPath: path)
      } else {
        // To be looked at; what was done to it since the cut is in it.
        print("made again at \(path)")
      }
    }
    try await process.end()
    return complaints
  }

  /// Milliseconds that opening may take, whatever else the machine does: far above what it takes, far below a hang.
  private static let patience = 20_000

  private func judge(_ answer: String, _ oracle: PowerOracle, _ at: Int) -> String? {
    let words = answer.split(separator: " ").map(String.init)
    guard words.count == 3, words[0] == "ok", let opened = Int(words[1]) else { return answer }
    if opened > Self.patience { return "opening took \(opened) ms" }
    return oracle.complaint(words[2].split(separator: ",").map(String.init), cut: at)
  }

  /// Copies the recording to where it outlives the test.
  private func keep(_ recording: Recording) -> String {
    let name = URL(fileURLWithPath: recording.path).lastPathComponent
    let folder = ProcessInfo.processInfo.environment["TMPDIR"] ?? "/tmp"
    let kept = "\(folder)/\(name).\(getpid())"
    if recording.path == Machine.cutLog { return recording.path }
    for suffix in ["", ".slots", ".index-lock.mdb"] {
      // There already after the first failure.
      try? FileManager.default.copyItem(atPath: recording.path + suffix, toPath: kept + suffix)
    }
    return kept
  }
}
