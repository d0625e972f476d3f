import CBlobStore
import Foundation
import Testing

@testable import blobcache_test_process

/// An index file page by page, for tests that damage one of them. Offsets are those of LMDB 0.9, as pages.c tells them.
struct IndexFile {
  static let pageSize = 4096
  let path: String

  init(of cache: String) { path = cache + "/index/data.mdb" }

  enum Kind: String, CaseIterable {
    case meta, freeList, mainRoot, branch, leaf, overflow
  }

  enum Damage: String, CaseIterable {
    case garbage, zeroes, flip, torn, truncation
  }

  private func bytes() throws -> [UInt8] {
    [UInt8](try #require(FileManager.default.contents(atPath: path)))
  }

  private func word(_ bytes: [UInt8], _ offset: Int) -> Int {
    bytes[offset..<offset + 8].reversed().reduce(0) { $0 << 8 | Int($1) }
  }

  private func newestMeta(_ bytes: [UInt8]) -> Int {
    word(bytes, 144) >= word(bytes, Self.pageSize + 144) ? 0 : Self.pageSize
  }

  /// The last page that the newest meta page names.
  var lastPage: Int {
    get throws {
      let bytes = try bytes()
      return word(bytes, newestMeta(bytes) + 136)
    }
  }

  /// What the newest meta page is of.
  var lastTransaction: Int {
    get throws {
      let bytes = try bytes()
      return word(bytes, newestMeta(bytes) + 144)
    }
  }

  var pageCount: Int {
    get throws { try bytes().count / Self.pageSize }
  }

  /// Pages of a kind, those that are free among them.
  func pages(_ kind: Kind) throws -> [Int] {
    let bytes = try bytes()
    let meta = newestMeta(bytes)
    switch kind {
    case .freeList: return [word(bytes, meta + 80)].filter { $0 > 0 }
    case .mainRoot: return [word(bytes, meta + 128)]
    default: break
    }
    let flags: [Kind: UInt8] = [.meta: 8, .branch: 1, .leaf: 2, .overflow: 4]
    return (0..<bytes.count / Self.pageSize).filter { page in
      word(bytes, page * Self.pageSize) == page
        && bytes[page * Self.pageSize + 10] == flags[kind]
    }
  }

  func apply(_ damage: Damage, to page: Int, seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    let start = page * Self.pageSize
    switch damage {
    case .garbage:
      try overwrite(path, at: start, with: seededBytes(count: Self.pageSize, seed: seed))
    case .zeroes:
      try overwrite(path, at: start, with: [UInt8](repeating: 0, count: Self.pageSize))
    case .flip:
      // In the head and the offsets, where it leads astray.
      try flipByte(of: path, at: start + Int.random(in: 0..<64, using: &random))
    case .torn:
      let bytes = try bytes()
      let other = Int.random(in: 2..<(bytes.count / Self.pageSize), using: &random)
      let half = other * Self.pageSize + Self.pageSize / 2
      try overwrite(
        path, at: start + Self.pageSize / 2, with: Array(bytes[half..<half + Self.pageSize / 2]))
    case .truncation:
      try #require(
        truncate(path, start + Int.random(in: 0..<Self.pageSize, using: &random)) == 0)
    }
  }

  /// Gives one of the trees flags, as if it had been made with them.
  func setFlags(_ flags: UInt8, ofTree name: String) throws {
    let bytes = try bytes()
    let start = word(bytes, newestMeta(bytes) + 128) * Self.pageSize
    let root = Data(bytes[start..<start + Self.pageSize])
    let key = try #require(root.range(of: Data([UInt8(name.utf8.count), 0]) + Data(name.utf8)))
    try overwrite(path, at: start + key.upperBound + 4, with: [flags, 0])
  }

  /// What is wrong with it, by all pages or by those that are looked at when a directory is opened.
  func damage(all: Bool) throws -> String? {
    var found = bcs_page_damage()
    let status = bcs_check_file(path, all, &found)
    try #require(status == BCS_OK, "\(path)")
    guard found.found else { return nil }
    let cause = withUnsafeBytes(of: found.cause) { bytes in
      String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }
    return "page \(found.page): \(cause)"
  }
}
