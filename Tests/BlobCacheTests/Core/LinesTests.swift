import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// What a record says of its line, and the index of the number of lines, is outside of every seal. Whatever stands there,
/// entries keep their bytes, it opens, and a repair puts it right for good.
@Suite("Lines of records") struct LinesTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }
  private static let keys = (0..<20).map { "record-\($0)" }

  private func make(limit: Int = 0) throws {
    let store = try CoreStore(path, bytes: limit)
    for key in Self.keys {
      #expect(store.commit([try store.put(key, Array(key.utf8))]) == [BCS_OK])
    }
    #expect(store.commit([try store.remove("record-19")]) == [BCS_OK])
  }

  /// Changes bytes of the index wherever `before` stands; what LMDB does not use any more may have it, too.
  private func patch(after before: [UInt8], _ offset: Int, _ bytes: [UInt8]) throws {
    let file = path + "/index/data.mdb"
    let all = try #require(FileManager.default.contents(atPath: file))
    var count = 0
    var from = all.startIndex
    while let found = all.range(of: Data(before), in: from..<all.endIndex) {
      try overwrite(file, at: found.lowerBound + offset, with: bytes)
      from = found.upperBound
      count += 1
    }
    try #require(count > 0)
  }

  private func patch(slotOf key: String, _ slot: UInt32) throws {
    let bytes = withUnsafeBytes(of: slot.littleEndian, Array.init)
    // The body repeats the key, so this stands nowhere else.
    try patch(after: Array((key + key).utf8), 12 - 112, bytes)
  }

  private func findings(_ store: CoreStore, repair: Bool) throws -> UInt64 {
    var report = bcs_check_report()
    try #require(bcs_check_structure(store.raw, repair, &report, nil, nil) == BCS_OK)
    #expect(!report.damage.found && report.damaged_records == 0)
    return report.wrong_slots + report.wrong_totals + report.wrong_uses + report.wrong_digests
  }

  /// All are there, each with a line of its own.
  private func expectAll(_ store: CoreStore) {
    let slots = Self.keys.dropLast().compactMap { store.record($0)?.slot }
    #expect(slots.count == 19)
    #expect(Set(slots).count == 19)
    #expect(slots.allSatisfy { $0 < 4096 })
  }

  private func expectMended(_ atOpen: Bool) throws {
    let store = try CoreStore(path)
    if atOpen {
      #expect(try findings(store, repair: false) == 0)
    } else {
      #expect(try findings(store, repair: false) > 0)
      #expect(try findings(store, repair: true) > 0)
      #expect(try findings(store, repair: false) == 0)
    }
    expectAll(store)
    for key in Self.keys { #expect(store.commit([try store.put("new " + key, [1])]) == [BCS_OK]) }
    #expect(try findings(store, repair: true) == 0)
    expectAll(store)
  }

  @Test(arguments: [false, true]) func twoRecordsWithOneLine(withoutTable: Bool) throws {
    try make()
    try patch(slotOf: "record-3", 7)
    if withoutTable { try FileManager.default.removeItem(atPath: path + "/slots") }
    try expectMended(withoutTable)
  }

  @Test(arguments: [false, true]) func aRecordWithALineThatIsNotThere(withoutTable: Bool) throws {
    try make()
    try patch(slotOf: "record-3", 0x7FFF_FFFF)
    if withoutTable { try FileManager.default.removeItem(atPath: path + "/slots") }
    try expectMended(withoutTable)
  }

  @Test(arguments: [UInt64(1) << 20, 1 << 40, 3]) func aNumberOfLinesThatIsWrong(_ lines: UInt64)
    throws
  {
    try make()
    // The totals: entries, bodies' bytes, blob files, their bytes, their blocks, and then the number.
    try patch(
      after: Array("totals".utf8), 6 + 40, withUnsafeBytes(of: lines.littleEndian, Array.init))
    // What is more than the table has tells that it is not of this index, so it is made anew.
    try expectMended(lines > 3)
  }

  /// Totals that say too much would make room where there is enough, until nothing is left.
  @Test(arguments: [0, 1, 2, 4, 7, 8, 9, 10, 11])
  func totalsThatCannotBeAreCountedAnew(_ word: Int) throws {
    try make(limit: 64 << 20)
    try patch(
      after: Array("totals".utf8), 6 + 8 * word,
      withUnsafeBytes(of: (UInt64(1) << 30).littleEndian, Array.init))
    let store = try CoreStore(path)
    #expect(try findings(store, repair: false) == 0)
    #expect(store.commit([try store.put("another", [1])]) == [BCS_OK])
    expectAll(store)
    #expect(try findings(store, repair: false) == 0)
  }

  /// The number of the next row of `recent` is one that is there: no store would succeed any more.
  @Test func aNumberThatIsTakenIsNotGivenAgain() throws {
    try make()
    try patch(after: Array("totals".utf8), 6 + 8 * 6, Array(repeating: 0, count: 8))
    let store = try CoreStore(path)
    for key in Self.keys {
      #expect(store.commit([try store.put("new " + key, [1])]) == [BCS_OK])
    }
    #expect(try findings(store, repair: true) == 0)
    expectAll(store)
  }
}
