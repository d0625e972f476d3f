import BlobCache
import Foundation

extension Commands {
  /// `mixed COUNT SEED`: operations of every kind on some thousands of keys, several at once.
  func mixed(_ words: [String]) async throws -> String {
    let count = try number(words, 0) { Int($0) }
    let seed = try number(words, 1) { UInt64($0) }
    try await mixedWork(on: opened(), count: count, seed: seed)
    return "ok \(count)"
  }
}

/// Stores of inline bodies and of files, streamed and shared ones, with tags, lifetimes and pins;
/// replacements, renewals, removals one by one and by tag, lookups. What they answer is not looked at.
func mixedWork(on cache: BlobCache, count: Int, seed: UInt64) async throws {
  try await withThrowingTaskGroup(of: Void.self) { group in
    for task in 0..<8 {
      group.addTask {
        var random = SeededGenerator(seed: seed &+ UInt64(task) &* 7919)
        for _ in 0..<count / 8 { try await mixedStep(on: cache, random: &random) }
      }
    }
    try await group.waitForAll()
  }
}

private func mixedStep(on cache: BlobCache, random: inout SeededGenerator) async throws {
  let number = Int.random(in: 0..<4000, using: &random)
  let key = BlobCache.Key("mixed-\(number)")
  let sizes = [0, 60, 700, 3000, 9000, 20_000, 50_000, 120_000]
  let size = sizes.randomElement(using: &random) ?? 0
  // Few seeds, so that contents are shared by keys.
  let bytes = seededBytes(count: size, seed: UInt64.random(in: 0..<500, using: &random))
  switch Int.random(in: 0..<40, using: &random) {
  case 0..<14:
    try await cache.store(bytes, for: key, tags: ["group-\(number % 40)", "all"])
  case 14..<20:
    try await cache.store(bytes, for: key, lifetime: .expires(after: .seconds(1 + number % 60)))
  case 20..<24:
    try await cache.store(for: key) { body in
      try await body.write(bytes.prefix(size / 2))
      try await body.write(bytes.dropFirst(size / 2))
    }
  case 24..<28: try await cache.remove(key)
  case 28..<30: try await cache.renew(key, lifetime: .sliding(.seconds(100)))
  case 30:
    if number < 50, try cache.contains(key) { _ = try? await cache.pin(key) }
  case 31: _ = try? await cache.unpin(key)
  case 32:
    if number % 100 == 0 { try await cache.removeAll(tagged: "group-\(number % 40)") }
  default: _ = try cache.blob(for: key)
  }
}
