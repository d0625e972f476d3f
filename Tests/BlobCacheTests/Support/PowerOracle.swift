import Foundation
import Synchronization
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// What must, and what may, be found after a power cut: from the marks of a recording, which tell when each operation
/// began and when it had returned.
struct PowerOracle {
  /// Whether a `.checkpointed` directory goes back to its last checkpoint. Until it does, its index begins anew after
  /// another boot, and nothing is promised but that no wrong byte is served.
  static let hasCheckpoints = true

  enum Effect: Equatable {
    case store(size: Int, seed: UInt64)
    case removal
  }

  private struct Operation {
    var effect: Effect
    /// On which keys.
    var keys: Set<Int>
    var begun: Int
    /// `Int.max`: it never returned, or what it did was lost with everything behind a checkpoint.
    var returned = Int.max
    var hasReturned = Int.max
  }

  private let isDurable: Bool
  /// At a limit everything may be gone.
  private let evicts: Bool
  private let keys: Int
  private var operations: [Operation] = []
  /// Flushes and closes: begun, returned.
  private var checkpoints: [(begun: Int, returned: Int)] = []
  /// Machines went down in order here.
  private var reboots: [Int] = []

  init(_ recording: Recording, keys: Int, isDurable: Bool, evicts: Bool) throws {
    (self.keys, self.isDurable, self.evicts) = (keys, isDurable, evicts)
    var open: [String: (at: Int, words: [String])] = [:]
    var numbers: [String: Int] = [:]
    for (at, text) in recording.marks {
      let words = text.split(separator: " ").map(String.init)
      switch words[0] {
      case "begin":
        open[words[1]] = (at, words)
        if let operation = try operation(words, at) {
          numbers[words[1]] = operations.count
          operations.append(operation)
        }
      case "done":
        guard let begun = open.removeValue(forKey: words[1]) else { throw unknown(text) }
        if let number = numbers[words[1]] {
          (operations[number].returned, operations[number].hasReturned) = (at, at)
        } else {
          checkpoints.append((begun.at, at))
        }
      case "reboot": reboots.append(at)
      default: throw unknown(text)
      }
    }
  }

  private func unknown(_ text: String) -> SecondProcess.Failure {
    SecondProcess.Failure(description: "unknown mark: \(text)")
  }

  private func operation(_ words: [String], _ at: Int) throws -> Operation? {
    let all = Set(0..<keys)
    switch words[2] {
    case "store":
      let effect = Effect.store(size: Int(words[4]) ?? -1, seed: UInt64(words[5]) ?? 0)
      return Operation(effect: effect, keys: [try key(words[3])], begun: at)
    case "remove": return Operation(effect: .removal, keys: [try key(words[3])], begun: at)
    case "tag":
      let tagged = all.filter { "\(PowerWork.tag($0))" == words[3] }
      return Operation(effect: .removal, keys: tagged, begun: at)
    case "clear": return Operation(effect: .removal, keys: all, begun: at)
    case "flush", "close": return nil
    default: throw unknown(words.joined(separator: " "))
    }
  }

  private func key(_ word: String) throws -> Int {
    guard word.hasPrefix("k"), let number = Int(word.dropFirst()) else { throw unknown(word) }
    return number
  }

  /// What is wrong with what was found, a digest or `-` for each key, after a cut before event `cut`; nil: nothing.
  func complaint(_ found: [String], cut: Int) -> String? {
    guard found.count == keys else { return "\(found.count) keys of \(keys) were looked up" }
    let promised = promised(cut)
    for key in 0..<keys {
      let allowed = allowed(key, cut: cut, promised: promised)
      if !allowed.contains(found[key]) {
        return """
          k\(key) has \(found[key].prefix(12)), allowed: \
          \(allowed.map { String($0.prefix(12)) }.sorted()), history: \(history(key, cut))
          """
      }
    }
    return nil
  }

  /// How many keys must be there.
  func promisedCount(cut: Int) -> Int {
    let promised = promised(cut)
    return (0..<keys).count { !allowed($0, cut: cut, promised: promised).contains("-") }
  }

  /// What had returned before this is promised.
  private func promised(_ cut: Int) -> Int {
    if isDurable { return cut }
    guard Self.hasCheckpoints else { return -1 }
    return checkpoints.last { $0.returned < cut }?.begun ?? -1
  }

  private func allowed(_ key: Int, cut: Int, promised: Int) -> Set<String> {
    var done = operations.filter { $0.keys.contains(key) && $0.begun < cut }
    if !isDurable {
      // A boot in between went back to the checkpoint before it: what came behind that may be there or not.
      for reboot in reboots where reboot < cut {
        let kept = Self.hasCheckpoints ? checkpoints.last { $0.returned < reboot }?.begun ?? -1 : -1
        for index in done.indices where done[index].begun < reboot && done[index].returned >= kept {
          done[index].returned = .max
        }
      }
    }
    // The last word is an operation's if none that had returned before the promise began after it had returned.
    let settled = done.filter { $0.returned < promised }
    let lastBegun = settled.map(\.begun).max() ?? -1
    var allowed: Set<String> = []
    for operation in done where operation.returned > lastBegun {
      switch operation.effect {
      case .store(let size, let seed): allowed.insert(Self.digest(size, seed))
      case .removal: allowed.insert("-")
      }
    }
    // Nothing has happened to it for sure; or it goes with what was evicted, removed or replaced since.
    let isTouched = !isDurable && done.contains { $0.returned >= promised }
    if settled.isEmpty || evicts || isTouched { allowed.insert("-") }
    return allowed
  }

  private func history(_ key: Int, _ cut: Int) -> String {
    operations.filter { $0.keys.contains(key) && $0.begun < cut }.suffix(6).map { operation in
      let end = operation.hasReturned == .max ? "…" : "\(operation.hasReturned)"
      switch operation.effect {
      case .store(let size, let seed):
        return "\(operation.begun)-\(end) \(Self.digest(size, seed).prefix(12)) (\(size) bytes)"
      case .removal: return "\(operation.begun)-\(end) removal"
      }
    }.joined(separator: ", ")
  }

  private static func digest(_ size: Int, _ seed: UInt64) -> String {
    digests.withLock { digests in
      if let made = digests["\(size) \(seed)"] { return made }
      let made = BlobCache.Digest(hashing: PowerWork.body(size, seed)).hex
      digests["\(size) \(seed)"] = made
      return made
    }
  }
}

private let digests = Mutex<[String: String]>([:])
