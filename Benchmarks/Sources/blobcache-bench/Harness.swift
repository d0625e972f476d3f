import CBaseline
import Foundation

/// One row's samples: what was measured on each side, round by round, both sides in the same run.
struct Samples {
  var ours: [Double] = []
  var baseline: [Double] = []
}

extension Samples {
  /// Runs both sides in turn, so that a disturbance of the machine falls on both; the order alternates, and a first
  /// round is thrown away. Each closure gives a rate: larger is better.
  static func interleaved(
    rounds: Int, ours: (Int) async throws -> Double, baseline: (Int) async throws -> Double
  ) async throws -> Samples {
    var samples = Samples()
    for round in 0...rounds {
      var (a, b) = (0.0, 0.0)
      if round.isMultiple(of: 2) { a = try await ours(round) }
      b = try await baseline(round)
      if !round.isMultiple(of: 2) { a = try await ours(round) }
      if round > 0 {
        samples.ours.append(a)
        samples.baseline.append(b)
      }
    }
    return samples
  }
}

extension [Double] {
  var median: Double {
    guard !isEmpty else { return .nan }
    let sorted = sorted()
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2
  }
}

/// Operations a second of `count` operations done by `body`.
func rate(_ count: Int, _ body: () async throws -> Void) async rethrows -> Double {
  let start = ContinuousClock.now
  try await body()
  return Double(count) / (ContinuousClock.now - start).seconds
}

func seconds(_ body: () throws -> Void) rethrows -> Double {
  try ContinuousClock().measure(body).seconds
}

extension Duration {
  var seconds: Double {
    Double(components.seconds) + Double(components.attoseconds) * 1e-18
  }
  var nanoseconds: Int { Int(seconds * 1e9) }
}

/// Reproducible choices (splitmix64, the generator of `cb_fill`).
struct SeededGenerator: RandomNumberGenerator {
  private var state: UInt64
  init(_ seed: UInt64) { state = seed }
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var word = state
    word = (word ^ (word >> 30)) &* 0xBF58_476D_1CE4_E5B9
    word = (word ^ (word >> 27)) &* 0x94D0_49BB_1331_11EB
    return word ^ (word >> 31)
  }
}

/// Incompressible bytes, the same for the same seed.
func body(_ seed: Int, _ count: Int) -> [UInt8] {
  unsafe [UInt8](unsafeUninitializedCapacity: count) { buffer, filled in
    if let base = buffer.baseAddress { unsafe cb_fill(UInt64(seed), base, count) }
    filled = count
  }
}

/// Throws what a C baseline gave unless it is 0.
func check(_ code: CInt, _ operation: String = #function) throws {
  guard code != 0 else { return }
  throw Failure("\(operation): \(unsafe String(cString: cb_error_text(code)))")
}

struct Failure: Swift.Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

/// A fresh folder below TMPDIR, removed when `body` has ended.
func withFolder<T>(_ name: String, _ body: (String) async throws -> T) async throws -> T {
  let folder = try makeFolder(name)
  defer { removeFolder(folder) }
  return try await body(folder)
}

func makeFolder(_ name: String) throws -> String {
  let folder = FileManager.default.temporaryDirectory
    .appendingPathComponent("blobcache-bench-\(name)-\(UUID().uuidString.prefix(8))").path
  try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
  return folder
}

func removeFolder(_ folder: String) {
  _ = unsafe cb_tree_remove(folder)  // best effort: the folder is below TMPDIR and ours
}
