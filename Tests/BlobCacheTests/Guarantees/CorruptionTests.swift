import BlobCache
import Foundation
import Testing

@testable import blobcache_test_process

/// Promises 1 and 9, at random: any byte, sector or page of any file of a directory is flipped, zeroed, torn, cut off,
/// replaced or taken away while nobody has it open. Second processes open what is left, on the same boot and after
/// another one. What must hold:
///
///  1. A lookup gives the right bytes, or nothing, or an error.
///  2. It opens, and no entry is lost but what stood in the damaged place (`mayLose`). Without its FORMAT it is refused,
///     untouched: put back, everything is there.
///  3. Nothing crashes, with one exception: on the same boot, LMDB over a damaged page of the index. Those are counted,
///     and verify in another process finds the page.
///  4. `verify` does not crash. After its repair nothing is wrong, the cache takes stores, and blob files that were whole
///     are the same files.
///
/// The long form: BLOBCACHE_CORRUPTIONS=5000. A failure names its seed: BLOBCACHE_CORRUPTION_SEED makes it again alone.
@Suite("1, 9. Corruption", .serialized)
struct CorruptionTests {
  private let directory = TemporaryDirectory()

  private static let boot = "11111111-1111-1111-1111-111111111111"
  private static let nextBoot = "22222222-2222-2222-2222-222222222222"

  /// How the directory was left, and what comes next.
  struct Scenario: CustomTestStringConvertible, Sendable {
    var name: String
    var isDurable = false
    var isKilled = false
    var isSameBoot: Bool
    var testDescription: String { name }
  }

  static let scenarios = [
    Scenario(name: "closed, the same boot", isSameBoot: true),
    Scenario(name: "killed, the same boot", isKilled: true, isSameBoot: true),
    Scenario(name: "killed, another boot", isKilled: true, isSameBoot: false),
    Scenario(name: "durable, closed, the same boot", isDurable: true, isSameBoot: true),
    Scenario(
      name: "durable, killed, another boot", isDurable: true, isKilled: true, isSameBoot: false),
  ]

  @Test(arguments: scenarios) func whateverIsDamaged(_ scenario: Scenario) async throws {
    let original = try await makeCache("original", scenario)
    let other = try await makeOther(scenario)
    let count = ((Machine.corruptions ?? 150) + Self.scenarios.count - 1) / Self.scenarios.count
    let base = Machine.corruptions == nil ? 0 : UInt64.random(in: 0..<1 << 40)
    let seeds = Machine.corruptionSeed.map { [$0] } ?? (0..<UInt64(count)).map { base &+ $0 }
    var campaign = Campaign(scenario: scenario, original: original, other: other)
    for seed in seeds where campaign.complaints.count < 5 {
      try await campaign.run(seed, in: directory)
    }
    for complaint in campaign.complaints { Issue.record("\(scenario.name): \(complaint)") }
    print("corruption: \(scenario.name): \(campaign.summary)")
  }

  /// The proof can fail: a wrong byte that verification is not asked to look for is complained of.
  @Test func aWrongByteIsFound() async throws {
    let scenario = Self.scenarios[0]
    let original = try await makeCache("original", scenario)
    let campaign = Campaign(scenario: scenario, original: original, other: original)
    let right = DamageWork.items.map { BlobCache.Digest(hashing: $0.body).hex }
    var wrong = right
    wrong[3] = right[4]
    let loses = Damage(seed: 0, target: .slots)
    #expect(campaign.complaint(aboutState: right, loses) == nil)
    #expect(campaign.complaint(aboutState: wrong, loses) != nil)
    wrong[3] = "-"
    #expect(campaign.complaint(aboutState: wrong, loses) != nil)
    wrong[3] = "!io"
    #expect(campaign.complaint(aboutState: wrong, loses) != nil)
    #expect(campaign.complaint(aboutState: wrong, Damage(seed: 0, target: .index)) == nil)
  }

  // MARK: Making caches

  private func makeCache(_ name: String, _ scenario: Scenario) async throws -> String {
    let path = directory.path(name)
    let options = "boot=\(Self.boot)\(scenario.isDurable ? " durable" : "")"
    let process = try await SecondProcess.over(path, options, environment: Campaign.environment)
    #expect(try await process.call("damage-fill early") == "ok")
    if !scenario.isKilled { #expect(try await process.call("damage-fill late") == "ok") }
    if !scenario.isKilled { #expect(try await process.call("flush") == "ok") }
    if scenario.isKilled {
      #expect(try await process.call("damage-fill late") == "ok")
      process.kill()
    } else {
      #expect(try await process.call("close") == "ok")
      #expect(try await process.end() == 0)
    }
    return path
  }

  private func makeOther(_ scenario: Scenario) async throws -> String {
    let path = directory.path("other")
    let options = "boot=\(Self.boot)\(scenario.isDurable ? " durable" : "")"
    let process = try await SecondProcess.over(path, options, environment: Campaign.environment)
    #expect(try await process.call("damage-fill other") == "ok")
    #expect(try await process.call("close") == "ok")
    try await process.end()
    return path
  }

  // MARK: Damaging them

  struct Campaign {
    static let environment = ["BLOBCACHE_NO_SYNC": "1"]
    let scenario: Scenario
    let original: String
    let other: String
    var complaints: [String] = []
    private var tried = 0
    private var untouched = 0
    private var lost = 0
    private var crashed = 0
    private var setAside = 0
    private var repaired = 0
    private var surveyor: SecondProcess?
    private var mender: SecondProcess?
    private let digests = DamageWork.items.map { BlobCache.Digest(hashing: $0.body) }

    init(scenario: Scenario, original: String, other: String) {
      (self.scenario, self.original, self.other) = (scenario, original, other)
    }

    var summary: String {
      """
      \(tried) tried, \(untouched) with no entry lost, \(lost) with some, \(setAside) indexes set aside, \
      \(repaired) repaired, \(crashed) crashes in LMDB, \(complaints.count) failures
      """
    }

    mutating func run(_ seed: UInt64, in directory: TemporaryDirectory) async throws {
      let path = directory.path("damaged")
      try #require(Machine.run("cp", "-a", "--sparse=always", original, path))
      var damage = Damage(seed: seed)
      try damage.apply(to: path, swappedWith: other)
      tried += 1
      let before = inodes(path)
      do {
        if let complaint = try await judge(path, damage, seed, before) {
          complaints.append("\(damage), BLOBCACHE_CORRUPTION_SEED=\(seed): \(complaint)")
        }
      } catch {
        complaints.append("\(damage), BLOBCACHE_CORRUPTION_SEED=\(seed): \(error)")
        (surveyor, mender) = (nil, nil)
      }
      if Machine.corruptionSeed == nil {
        try FileManager.default.removeItem(atPath: path)
      } else {
        try FileManager.default.moveItem(atPath: path, toPath: path + ".\(seed).kept")
      }
    }

    private mutating func judge(
      _ path: String, _ damage: Damage, _ seed: UInt64, _ before: [String: [Int]]
    ) async throws -> String? {
      let boot = scenario.isSameBoot ? CorruptionTests.boot : CorruptionTests.nextBoot
      let mode = scenario.isDurable ? " durable" : ""
      var isCrashed = false
      var found: [String]?
      do {
        let process = try surveyor ?? SecondProcess(environment: Self.environment)
        surveyor = process
        let use = seed % 2 == 0 ? " use" : ""
        let answer = try await process.call("survey \(path) \(boot)\(mode)\(use)")
        if damage.target == .format && answer.hasPrefix("error") {
          return try await complaint(aboutFormatOf: path, boot + mode, answer)
        }
        guard answer.hasPrefix("ok ") else { return "survey: \(answer)" }
        let state = answer.dropFirst(3).split(separator: ",").map(String.init)
        if let complaint = complaint(aboutState: state, damage) { return complaint }
        if state == digests.map(\.hex) { untouched += 1 } else { lost += 1 }
        found = state
      } catch let failure as SecondProcess.Failure {
        surveyor = nil
        guard scenario.isSameBoot, damage.target == .index,
          failure.description.contains("by signal")
        else {
          throw failure
        }
        isCrashed = true
        crashed += 1
      }
      let process = try mender ?? SecondProcess(environment: Self.environment)
      mender = process
      // What the first process left behind is of this boot.
      let answer = try await process.call("mend \(path) \(boot)\(mode)")
      let words = answer.split(separator: " ").map(String.init)
      guard words.count == 4, words[0] == "ok" else { return "mend: \(answer)" }
      let isAside = CacheFolder(path).quarantined.contains {
        $0.hasPrefix("index.") && $0 != "index.1"
      }
      if isCrashed && !words[1].contains("damage") && !isAside {
        return "it crashed, and verify found \(words[1])"
      }
      if isAside { setAside += 1 }
      if words[1] != "sound" { repaired += 1 }
      let state = words[3].split(separator: ",").map(String.init)
      if let complaint = complaint(aboutState: state, damage, isMended: true) {
        return "mended: \(complaint)"
      }
      if let found, !words[2].contains("aside"), !isAside,
        let lost = state.indices.first(where: { state[$0] == "-" && found[$0] == digests[$0].hex })
      {
        return "the repair lost \(DamageWork.items[lost].key), which had been found"
      }
      return complaint(aboutFilesIn: path, before, state, damage, isAside)
    }

    /// It is refused, and nothing was done to it.
    private func complaint(
      aboutFormatOf path: String, _ boot: String, _ answer: String
    ) async throws -> String? {
      let codes = ["notACache", "formatVersion", "durabilityMismatch"]
      guard codes.contains(where: { answer.hasPrefix("error \($0)") }) else {
        return "survey: \(answer)"
      }
      try Data("blobcache 1\ndurability \(scenario.isDurable ? "durable" : "checkpointed")\n".utf8)
        .write(to: URL(fileURLWithPath: path + "/FORMAT"))
      let process = try SecondProcess(environment: Self.environment)
      let again = try await process.call("survey \(path) \(boot)")
      try await process.end()
      let state = again.dropFirst(3).split(separator: ",").map(String.init)
      return complaint(aboutState: state, Damage(seed: 0, target: .lock)).map {
        "FORMAT put back: \($0)"
      }
    }

    /// What may be lost, by the file that was damaged.
    private func mayLose(_ item: DamageWork.Item, _ damage: Damage) -> Bool {
      let afterCheckpoint = item.isLate && scenario.isKilled && !scenario.isDurable
      let goesBack = !scenario.isSameBoot || damage.target == .lock
      if afterCheckpoint && goesBack { return true }
      switch damage.target {
      case .index: return true
      case .checkpoint: return !scenario.isSameBoot && !scenario.isDurable
      case .blob: return damage.path.hasSuffix(BlobCache.Digest(hashing: item.body).hex)
      case .readers, .ballast, .slots, .lock, .format, .staging, .quarantine: return false
      }
    }

    func complaint(aboutState state: [String], _ damage: Damage, isMended: Bool = false) -> String?
    {
      guard state.count == digests.count else {
        return "\(state.count) keys were looked up: \(state.first ?? "")"
      }
      for (number, item) in DamageWork.items.enumerated() where state[number] != digests[number].hex
      {
        let found = state[number]
        if found != "-" && !found.hasPrefix("!") { return "\(item.key) has \(found)" }
        if isMended && found != "-" { return "\(item.key) is \(found)" }
        if !mayLose(item, damage) { return "\(item.key) is lost: \(found)" }
      }
      return nil
    }

    /// With the time of its last write: numbers of inodes are used again.
    private func inodes(_ path: String) -> [String: [Int]] {
      let folder = CacheFolder(path)
      var found: [String: [Int]] = [:]
      for digest in digests {
        let file = folder.blobFile(digest)
        guard let status = fileStatus(file), let data = FileManager.default.contents(atPath: file),
          BlobCache.Digest(hashing: data) == digest
        else { continue }
        found[digest.hex] = [Int(status.st_ino), status.st_mtim.tv_sec, status.st_mtim.tv_nsec]
      }
      return found
    }

    /// Whole files of entries that are there, and all of them where the index was begun anew.
    private func complaint(
      aboutFilesIn path: String, _ before: [String: [Int]], _ state: [String], _ damage: Damage,
      _ isAside: Bool
    ) -> String? {
      let after = inodes(path)
      for (number, item) in DamageWork.items.enumerated() where item.isFile {
        let digest = digests[number].hex
        guard let inode = before[digest], isAside || state[number] == digest else { continue }
        if after[digest] != inode { return "the whole file of \(item.key) was replaced" }
      }
      return nil
    }
  }
}
