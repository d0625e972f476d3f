import BlobCache
import Foundation

/// What a process finds in a directory that a power cut left, and whether it can go on with it.
extension Commands {
  /// `powered DIRECTORY BOOT KEYS SEED [durable] [evicts]`: opens with that boot id, looks up all keys, verifies, stores and
  /// removes, closes, opens again, looks and verifies again. `ok OPENED STATE`: milliseconds, and for each key the
  /// digest of the bytes that it has, or `-`. Anything wrong that needs no oracle is an error.
  func afterPowerCut(_ words: [String]) async throws -> String {
    let (path, boot) = (try word(words, 0), try word(words, 1))
    let keys = try number(words, 2) { Int($0) }
    var random = SeededGenerator(seed: try number(words, 3) { UInt64($0) })
    let (isDurable, evicts) = (words.contains("durable"), words.contains("evicts"))
    let start = ContinuousClock.now
    var cache = try openAfter(path, boot, isDurable)
    let opened = (ContinuousClock.now - start) / .milliseconds(1)
    let found = try state(cache, keys)
    if !isDurable {
      // Behind a checkpoint files may be torn or gone, whose rows are there; nothing else may be wrong with it.
      try await expectSound(cache, "after the cut", butFiles: true)
      _ = try await cache.verify(repair: true)
    }
    try await expectSound(cache, "after the cut")
    if isDurable {
      let present = found.count { $0 != "-" }
      let counted = cache.statistics.entries
      guard counted >= present else {
        throw Wrong(description: "\(counted) entries, \(present) were found")
      }
    }

    var expected = found
    try await goOn(cache, &expected, &random)
    try expect(&expected, of: cache, "after new stores", evicts)
    try await cache.close()

    cache = try openAfter(path, boot, isDurable)
    try expect(&expected, of: cache, "opened again", evicts)
    try await expectSound(cache, "opened again")
    let repaired = try await cache.verify(repair: true)
    guard repaired.damagedBlobs == 0 else { throw Wrong(description: "\(repaired)") }
    try await cache.close()
    let structure = try check([path, boot])
    // Files whose rows never reached the disk are found by the sweep, and by a store of the same content.
    guard
      structure == "ok"
        || structure.hasPrefix("found unreferenced_files=") && !structure.dropFirst(6).contains(" ")
    else { throw Wrong(description: "structure: \(structure)") }
    return "ok \(Int(opened)) \(found.joined(separator: ","))"
  }

  private struct Wrong: Error, CustomStringConvertible {
    var description: String
  }

  private func openAfter(_ path: String, _ boot: String, _ isDurable: Bool) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.durability = isDurable ? .durable : .checkpointed
    configuration.bootID = boot
    return try BlobCache(directory: path, configuration: configuration)
  }

  private func state(_ cache: BlobCache, _ keys: Int) throws -> [String] {
    try (0..<keys).map { number in
      guard let blob = try cache.blob(for: PowerWork.name(number)) else { return "-" }
      return BlobCache.Digest(hashing: blob.data).hex
    }
  }

  private func expect(
    _ expected: inout [String], of cache: BlobCache, _ when: String, _ evicts: Bool
  ) throws {
    let found = try state(cache, expected.count)
    for (number, pair) in zip(expected, found).enumerated()
    where pair.0 != pair.1 && !(evicts && pair.1 == "-") {
      throw Wrong(
        description: "\(when): \(PowerWork.name(number)) has \(pair.1) instead of \(pair.0)")
    }
    expected = found
  }

  private func expectSound(
    _ cache: BlobCache, _ when: String, butFiles: Bool = false
  ) async throws {
    var report = try await cache.verify()
    if butFiles { (report.damagedBlobs, report.missingFiles) = (0, 0) }
    report.unreferencedFiles = 0
    guard report.isSound else { throw Wrong(description: "\(when): \(report)") }
  }

  /// New stores, of contents that may lie there torn; a replacement, a removal, a removal by tag.
  private func goOn(
    _ cache: BlobCache, _ expected: inout [String], _ random: inout SeededGenerator
  ) async throws {
    let cleared = Int.random(in: 0..<PowerWork.tags, using: &random)
    try await cache.removeAll(tagged: "t\(cleared)")
    for number in expected.indices where PowerWork.tag(number) == cleared { expected[number] = "-" }
    let removed = Int.random(in: expected.indices, using: &random)
    try await cache.remove(BlobCache.Key(PowerWork.name(removed)))
    expected[removed] = "-"
    for _ in 0..<6 {
      let key = Int.random(in: expected.indices, using: &random)
      let size = PowerWork.sizes.randomElement(using: &random) ?? 0
      let body = PowerWork.body(
        size, UInt64.random(in: 0..<PowerWork.seeds(expected.count), using: &random))
      let entry = try await cache.store(
        body, for: BlobCache.Key(PowerWork.name(key)), tags: ["t\(PowerWork.tag(key))"])
      expected[key] = entry.digest.hex
      guard entry.digest == BlobCache.Digest(hashing: body) else {
        throw Wrong(description: "a store says that its digest is \(entry.digest.hex)")
      }
    }
  }
}
