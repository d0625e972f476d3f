import BlobCache
import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// Promise 9, deeper: garbage in any page of the index. LMDB trusts its pages, so they are looked at before it follows
/// them: some when a directory is opened, all by verify. In a second process, since a crash would end the tests.
@Suite("9. Garbage in the index's pages")
struct GarbageInPagesTests {
  private let directory = TemporaryDirectory()
  private static let blob = BlobCache.Digest(hashing: seededBytes(count: 100_000, seed: 1))

  /// A cache with pages of every kind: records in leaves, in runs of pages, equal contents, free pages.
  private func makeCache(_ name: String = "cache") async throws -> String {
    let path = directory.path(name)
    let process = try await SecondProcess.over(path)
    #expect(try await process.call("store large 100000 1") == "ok \(Self.blob.hex)")
    #expect(try await process.call("fill 400 300") == "ok 400")
    let stores =
      (0..<300).map { "store equal-\($0) 500 7" } + (0..<30).map { "store wide-\($0) 9000 \($0)" }
    for answer in try await answers(of: process, stores) { #expect(answer.hasPrefix("ok")) }
    for index in 0..<20 { #expect(try await process.call("remove wide-\(index)") == "ok true") }
    // Writes the rows by content, which wait in `recent` otherwise.
    #expect(try await process.call("verify repair structure") == "sound unreferenced=0")
    try await process.end()
    return path
  }

  /// Some commands at a time: a socket takes no more before it blocks.
  private func answers(of process: SecondProcess, _ commands: [String]) async throws -> [String] {
    var answers: [String] = []
    for start in stride(from: 0, to: commands.count, by: 50) {
      let some = commands[start..<min(start + 50, commands.count)]
      for command in some { try process.send(command) }
      for _ in some { answers.append(try await process.nextLine()) }
    }
    return answers
  }

  /// Looks everything up and stores: hits with the right bytes, or misses.
  private func use(_ process: SecondProcess, _ context: Comment) async throws {
    let expected =
      (0..<400).map { ("fill-\($0)", 300, UInt64($0)) }
      + (0..<300).map { ("equal-\($0)", 500, 7) }
      + (20..<30).map { ("wide-\($0)", 9000, UInt64($0)) }
    let digests = expected.map {
      BlobCache.Digest(hashing: seededBytes(count: $0.1, seed: $0.2)).hex
    }
    let got = try await answers(of: process, expected.map { "get \($0.0)" })
    for (index, answer) in got.enumerated() {
      let hit = "hit \(expected[index].1) \(digests[index]) \(digests[index])"
      #expect(answer == "miss" || answer == hit, context)
    }
    let stored = try await answers(
      of: process, expected.prefix(100).map { "store \($0.0) \($0.1) \($0.2)" })
    #expect(stored == digests.prefix(100).map { "ok \($0)" }, context)
    #expect(try await process.call("store again 100000 1") == "ok \(Self.blob.hex)", context)
    #expect(try await process.call("get again").hasPrefix("hit 100000 "), context)
  }

  @Test(arguments: IndexFile.Kind.allCases, IndexFile.Damage.allCases)
  func damageOfAPageIsFoundAtOpenOrByVerify(
    kind: IndexFile.Kind, damage: IndexFile.Damage
  ) async throws {
    let original = try await makeCache("original")
    let pages = try IndexFile(of: original).pages(kind)
    try #require(!pages.isEmpty)
    for seed in 0..<3 as Range<UInt64> {
      var random = SeededGenerator(seed: seed)
      let page = try #require(pages.randomElement(using: &random))
      let path = directory.path("\(seed)")
      try FileManager.default.copyItem(atPath: original, toPath: path)
      let file = IndexFile(of: path)
      try file.apply(damage, to: page, seed: seed)
      let atOpen = try file.damage(all: false)
      let all = try file.damage(all: true)
      #expect(atOpen == nil || all != nil)
      let context: Comment = "page \(page), seed \(seed): \(atOpen ?? "-") / \(all ?? "-")"

      let process = try SecondProcess()
      try #require(try await process.call("open \(path)") == "ok", context)
      let aside = CacheFolder(path).quarantined.contains { $0.hasPrefix("index.") }
      #expect(aside == (atOpen != nil), context)
      if atOpen == nil && all != nil {
        #expect(try await process.call("verify look") == "found damage unreferenced=0", context)
        #expect(
          try await process.call("verify repair") == "found damage aside repaired unreferenced=1",
          context)
      }
      let file2 = CacheFolder(path).blobFile(Self.blob)
      let inode = fileStatus(file2)?.st_ino
      #expect(inode != nil, context)
      try await use(process, context)
      #expect(fileStatus(file2)?.st_ino == inode, context)
      let verified = try await process.call("verify repair")
      #expect(verified.hasPrefix("sound") || verified.contains(" repaired "), context)
      #expect(try await process.call("verify look") == "sound unreferenced=0", context)
      #expect(try await process.end() == 0, context)
    }
  }

  /// A leaf that open does not look at: neither the first nor the last of its tree.
  private func damagedInTheMiddle() async throws -> String {
    let path = try await makeCache()
    let file = IndexFile(of: path)
    for page in try file.pages(.leaf) {
      let kept = try #require(FileManager.default.contents(atPath: file.path))
      try file.apply(.zeroes, to: page, seed: 1)
      if try file.damage(all: true) != nil, try file.damage(all: false) == nil { return path }
      try overwrite(file.path, at: 0, with: [UInt8](kept))
    }
    Issue.record("no leaf in the middle")
    return path
  }

  @Test func anIndexThatOthersHaveOpenIsNotSetAside() async throws {
    let path = try await damagedInTheMiddle()
    let other = try await SecondProcess.over(path)
    let process = try await SecondProcess.over(path)
    #expect(try await process.call("verify look") == "found damage unreferenced=0")
    #expect(try await process.call("verify repair") == "found damage inUse unreferenced=0")
    #expect(try await other.end() == 0)
    #expect(
      try await process.call("verify repair") == "found damage aside repaired unreferenced=1")
    let next = try await SecondProcess.over(path)  // the directory is shared again
    #expect(try await process.call("store key 100 1").hasPrefix("ok"))
    #expect(try await next.call("get key").hasPrefix("hit 100 "))
    #expect(try await next.end() == 0)
    #expect(try await process.end() == 0)
  }

  @Test func theRepairThatSetsTheIndexAsideKeepsTheBlobsAndTheNextOneDoesNot() async throws {
    let path = try await damagedInTheMiddle()
    let file = CacheFolder(path).blobFile(Self.blob)
    let inode = try #require(fileStatus(file)).st_ino
    let process = try await SecondProcess.over(path)
    #expect(
      try await process.call("verify repair structure")
        == "found damage aside repaired unreferenced=1")
    #expect(try await process.call("store again 100000 1") == "ok \(Self.blob.hex)")
    #expect(fileStatus(file)?.st_ino == inode)
    #expect(try await process.call("remove again") == "ok true")
    try await process.end()

    try IndexFile(of: path).apply(.garbage, to: 0, seed: 1)
    try Data(count: 10).write(to: URL(fileURLWithPath: file))  // what the removal took away
    let second = try await SecondProcess.over(path)
    #expect(try await second.call("verify repair") == "found aside repaired unreferenced=1")
    #expect(fileStatus(file) != nil)
    #expect(try await second.call("verify repair") == "found repaired unreferenced=1")
    #expect(fileStatus(file) == nil)
    #expect(try await second.end() == 0)
  }

  /// The tasks of the repairing process go on: lookups and stores wait for the moment of the change.
  @Test func repairSetsTheIndexAsideBesideLookupsAndStoresOfItsProcess() async throws {
    let path = try await makeCache()
    let file = IndexFile(of: path)
    // The number in the head of a run is not looked at by lookups.
    for page in try file.pages(.overflow) where try file.damage(all: true) == nil {
      try flipByte(of: file.path, at: page * IndexFile.pageSize)
    }
    let cache = try BlobCache(directory: path)
    let bytes = seededBytes(count: 300, seed: 3)
    let report = try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<4 {
        group.addTask {
          for index in 0..<200 {
            let key = BlobCache.Key("fill-\(index)")
            let expected = seededBytes(count: 300, seed: UInt64(index))
            if let blob = try cache.blob(for: key) { #expect(blob.holds(expected)) }
            try await cache.store(bytes, for: BlobCache.Key("new-\(task)-\(index)"))
          }
        }
      }
      let report = try await cache.verify(repair: true)
      try await group.waitForAll()
      return report
    }
    #expect(report.indexDamage != nil && report.isIndexSetAside && report.isRepaired)
    try await cache.store(bytes, for: "after")
    #expect(try #require(try cache.blob(for: "after")).holds(bytes))
    #expect(try cache.blob(for: "fill-1") == nil)
    try await cache.close()
    #expect(try file.damage(all: true) == nil)
  }
}
