import BlobCache
import Foundation

/// What the caches hold that are damaged, known to the process that fills one, to those that open it again, and to the
/// test that judges.
enum DamageWork {
  struct Item: Sendable {
    var key: String
    var size: Int
    var seed: UInt64
    /// Stored after the last checkpoint, where the cache has one.
    var isLate = false

    var body: [UInt8] { seededBytes(count: size, seed: seed) }
    var isFile: Bool { size > 16_384 }
  }

  /// Bodies in leaves, in runs of pages and in files; equal contents under several keys.
  static let items: [Item] = {
    let small = (0..<120).map { Item(key: "small-\($0)", size: 300, seed: UInt64($0)) }
    let equal = (0..<20).map { Item(key: "equal-\($0)", size: 500, seed: 7) }
    let wide = (0..<8).map { Item(key: "wide-\($0)", size: 9000, seed: UInt64($0)) }
    let files = (0..<8).map { Item(key: "file-\($0)", size: 20_000 + $0 * 7000, seed: UInt64($0)) }
    let shared = (0..<2).map { Item(key: "shared-\($0)", size: 20_000, seed: 0) }
    let late = (0..<12).map {
      Item(key: "late-\($0)", size: $0 % 3 == 0 ? 30_000 : 400, seed: UInt64(50 + $0), isLate: true)
    }
    return small + equal + wide + files + shared + late
  }()

  /// Another cache has other contents under the same keys.
  static let otherSeed: UInt64 = 1_000_000
}

extension Commands {
  /// `damage-fill early|late|other`: stores what is to be damaged, in batches; tags, removals and free pages among it.
  func fillForDamage(_ words: [String]) async throws {
    let cache = try opened()
    let part = try word(words, 0)
    let shift = part == "other" ? DamageWork.otherSeed : 0
    if part != "late" {
      for index in 0..<30 {
        try await cache.store(
          seededBytes(count: 3000, seed: UInt64(index)), for: BlobCache.Key("gone-\(index)"))
      }
    }
    for (number, item) in DamageWork.items.enumerated() where item.isLate == (part == "late") {
      try await cache.store(
        seededBytes(count: item.size, seed: item.seed + shift), for: BlobCache.Key(item.key),
        tags: number % 7 == 0 ? ["seventh"] : [])
    }
    if part != "late" {
      try await cache.removeAll(matching: BlobCache.Selection(prefix: "gone-"))
      _ = try await cache.verify(repair: true)
      try await cache.flush()
    }
  }

  /// `survey DIRECTORY BOOT [durable] [use]`: opens, looks everything up, by key and by content; with `use` stores and
  /// removes some other keys, too; closes. `ok STATE`: for each key the digest of the bytes that it has, `-`, or `!CODE`.
  func survey(_ words: [String]) async throws -> String {
    let cache = try openDamaged(words)
    let found = state(cache)
    if words.contains("use") { try await useDamaged(cache) }
    try await cache.close()
    return "ok \(found.joined(separator: ","))"
  }

  /// `damage-open DIRECTORY BOOT [durable] [always]`: opens, looks everything up, and stays open. Words as of `survey`.
  mutating func openAndLook(_ words: [String]) throws -> String {
    let cache = try openDamaged(words)
    keep(cache)
    return "ok \(state(cache).joined(separator: ","))"
  }

  /// `damage-use`: what `survey` does with an open cache.
  func surveyOpen() async throws -> String {
    let found = state(try opened())
    try await useDamaged(opened())
    return "ok \(found.joined(separator: ","))"
  }

  private func useDamaged(_ cache: BlobCache) async throws {
    for index in 0..<6 {
      let key = BlobCache.Key("new-\(index)")
      do {
        let bytes = seededBytes(count: index % 2 == 0 ? 700 : 25_000, seed: UInt64(index))
        try await cache.store(bytes, for: key)
        if let blob = try cache.blob(for: key), blob.data != Data(bytes) {
          throw UsageError(description: "\(key) has wrong bytes")
        }
        if index < 3 { try await cache.remove(key) }
      } catch is BlobCache.Error {
        continue  // A damaged index may refuse.
      }
    }
  }

  /// `mend DIRECTORY BOOT [durable]`: opens, verifies, repairs, verifies; stores everything anew; repairs what is left
  /// and verifies; opens again and looks. `ok LOOKED REPAIRED STATE`: what the first two said, the words joined by `+`,
  /// and what was found between repair and stores. Anything that must not be is an error.
  func mend(_ words: [String]) async throws -> String {
    var cache = try openDamaged(words)
    let looked = try await verdict(cache, repair: false)
    let repaired = try await verdict(cache, repair: true)
    try await expectSound(cache, "after repair", butFiles: true)
    let found = state(cache)
    for item in DamageWork.items { try await cache.store(item.body, for: BlobCache.Key(item.key)) }
    try expectEverything(cache, "stored anew")
    _ = try await cache.verify(repair: true)
    try await expectSound(cache, "after stores and repair")
    try await cache.close()
    cache = try openDamaged(words)
    try expectEverything(cache, "opened again")
    try await expectSound(cache, "opened again")
    guard cache.statistics.entries >= DamageWork.items.count else {
      throw Wrong(description: "only \(cache.statistics.entries) entries are counted")
    }
    try await cache.close()
    return "ok \(looked) \(repaired) \(found.joined(separator: ","))"
  }

  private struct Wrong: Error, CustomStringConvertible {
    var description: String
  }

  /// Nothing happens in it unasked.
  private func openDamaged(_ words: [String]) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.durability = words.contains("durable") ? .durable : .checkpointed
    configuration.bootID = try word(words, 1)
    configuration.sweepInterval = nil
    if words.contains("always") { configuration.verification = .always }
    return try BlobCache(directory: try word(words, 0), configuration: configuration)
  }

  private func state(_ cache: BlobCache) -> [String] {
    DamageWork.items.map { item in
      do throws(BlobCache.Error) {
        guard let blob = try cache.blob(for: BlobCache.Key(item.key)) else { return "-" }
        let digest = BlobCache.Digest(hashing: blob.data)
        if let other = try cache.blob(withDigest: digest), other.data != blob.data {
          return "two contents for \(digest.hex)"
        }
        return digest.hex
      } catch {
        return "!\(error.code)"
      }
    }
  }

  private func expectEverything(_ cache: BlobCache, _ when: String) throws {
    for item in DamageWork.items {
      guard let blob = try cache.blob(for: BlobCache.Key(item.key)), blob.data == Data(item.body)
      else { throw Wrong(description: "\(when): \(item.key) is not there") }
    }
  }

  private func expectSound(
    _ cache: BlobCache, _ when: String, butFiles: Bool = false
  ) async throws {
    var report = try await cache.verify()
    if butFiles { report.unreferencedFiles = 0 }
    guard report.isSound, report.unreferencedFiles == 0 else {
      throw Wrong(description: "\(when): \(report)")
    }
  }

  private func verdict(_ cache: BlobCache, repair: Bool) async throws -> String {
    let report = try await cache.verify(repair: repair)
    var words = [report.isSound ? "sound" : "found"]
    if report.indexDamage != nil { words.append("damage") }
    if report.isIndexSetAside { words.append("aside") }
    return words.joined(separator: "+")
  }
}
