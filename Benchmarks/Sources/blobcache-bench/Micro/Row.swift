import Foundation

/// One row of the speed table: what is measured, against what, and what it must reach.
struct Row: Sendable {
  let name: String
  let against: String
  let unit: Unit
  /// The least ratio.
  let target: Double
  let measure: @Sendable (Bench) async throws -> Samples

  enum Unit: Sendable {
    /// A second, larger is better: the ratio is ours ÷ baseline.
    case operations, bytes
    /// Smaller is better, and the baseline is a bound: the ratio is bound ÷ measured.
    case microseconds, milliseconds

    var isRate: Bool { self == .operations || self == .bytes }

    func text(_ value: Double) -> String {
      switch self {
      case .operations where value >= 1e5: String(format: "%.2f M/s", value / 1e6)
      case .operations: String(format: "%.0f /s", value)
      case .bytes: String(format: "%.2f GB/s", value / 1e9)
      case .microseconds: String(format: "%.3f µs", value)
      case .milliseconds: String(format: "%.2f ms", value)
      }
    }
  }

  static func all(_ scale: Scale) -> [Row] {
    [
      Row(
        name: "withBytes 1 KiB", against: "LMDB: renew, mdb_get, every byte summed, reset",
        unit: .operations, target: 0.6, measure: Lookups.withBytes),
      Row(
        name: "blob 1 KiB", against: "the same", unit: .operations, target: 0.45,
        measure: Lookups.blob),
      Row(
        name: "miss", against: "LMDB: renew, mdb_get of a key that is not there, reset",
        unit: .operations, target: 0.35, measure: Lookups.miss),
      Row(
        name: "blob 256 KiB", against: "the better of open+read and open+mmap, every byte summed",
        unit: .operations, target: 0.9
      ) { try await LargeLookups.blob($0, size: 256 << 10, count: 128) },
      Row(
        name: "blob 16 MiB", against: "the same", unit: .operations, target: 0.9
      ) { try await LargeLookups.blob($0, size: 16 << 20, count: 8) },
      Row(
        name: "store 1 KiB, 64 tasks", against: "LMDB in batches of 1,000, NOSYNC, no hashing",
        unit: .operations, target: 0.5, measure: Stores.manyTasks),
      Row(
        name: "store 1 KiB, one task", against: "LMDB, one transaction an operation, NOSYNC",
        unit: .operations, target: 0.3, measure: Stores.oneTask),
      Row(
        name: "store 16 MiB, streamed", against: "SHA-256 alone, the same pieces of 64 KiB",
        unit: .bytes, target: 0.65, measure: Stores.streamed),
      Row(
        name: "fetch hit, over blob", against: "a bound: 1 µs more than blob(for:)",
        unit: .microseconds, target: 1, measure: Fetches.hit),
      Row(
        name: "10,000 waiters, served after load", against: "a bound: 100 ms, with one load",
        unit: .milliseconds, target: 1, measure: Fetches.waiters),
      Row(
        name: "open, 10 k entries", against: "a bound", unit: .milliseconds, target: 1
      ) { try await Opens.open($0, entries: 10_000) },
      Row(
        name: "open, \(scale.entriesToOpen == 1_000_000 ? "1 M" : "50 k") entries",
        against: "a bound",
        unit: .milliseconds, target: 1
      ) { try await Opens.open($0, entries: scale.entriesToOpen) },
      Row(
        name: "two threads of withBytes", against: "one thread", unit: .operations, target: 1.7,
        measure: Lookups.twoThreads),
      Row(
        name: "memory hit, uniform 100 k", against: MemoryHits.dictionary, unit: .operations,
        target: 0.9
      ) { try await MemoryHits.hits($0, .uniform) },
      Row(
        name: "memory hit as blob, uniform 100 k", against: MemoryHits.dictionary,
        unit: .operations, target: 0.9
      ) { try await MemoryHits.hits($0, .uniform, asBlob: true) },
      Row(
        name: "memory hit, zipf \(scale.entriesToOpen == 1_000_000 ? "1 M" : "50 k")",
        against: MemoryHits.dictionary, unit: .operations, target: 0.9
      ) { try await MemoryHits.hits($0, .zipf) },
      Row(
        name: "two threads of memory hits", against: "one thread", unit: .operations, target: 1.7,
        measure: MemoryHits.twoThreads),
    ] + AtLimit.rows(scale)
  }
}

/// How much data and how many rounds.
struct Scale: Sendable {
  let entries: Int
  let lookups: Int
  let stores: Int
  let largeStores: Int
  let entriesToOpen: Int
  let rounds: Int

  static let full = Scale(
    entries: 100_000, lookups: 50_000, stores: 16_000, largeStores: 4, entriesToOpen: 1_000_000,
    rounds: 7)
  static let quick = Scale(
    entries: 20_000, lookups: 20_000, stores: 4_000, largeStores: 3, entriesToOpen: 50_000,
    rounds: 3)
}
