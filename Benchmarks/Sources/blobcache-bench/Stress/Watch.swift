import BlobCache
import CBaseline
import Foundation
import Synchronization

/// Looks at the directory while the workers use it, from a process that does nothing else: what its statistics say,
/// what a walk of its allocated blocks finds, and how much memory each worker has. Both figures must be within the
/// bound at every look.
final class Watch: Sendable {
  struct Look: Sendable {
    var seconds: Double
    /// `statistics.usedBytes`.
    var used: Int
    /// Allocated blocks of the directory and all below.
    var walked: Int
    /// Of these, the index's file, its free pages included.
    var index: Int
    /// Of these, blob files, those included that the next batch unlinks.
    var blobs: Int
    /// What counts towards the limit, less the bodies in the index.
    var blobsCounted: Int
    var evictions: Int
    var evictionAge: Duration
    /// Of each worker, in bytes; 0 when it has ended.
    var resident: [Int]
  }

  private struct State {
    var looks: [Look] = []
    var processes: [Int32] = []
    var stops = false
    var violations: [String] = []
  }

  static let interval = 0.2  // seconds between two looks

  let bound: Bound?
  private let cache: BlobCache
  private let directory: String
  private let start = ContinuousClock.now
  private let state = Mutex(State())
  private let ended = DispatchSemaphore(value: 0)

  /// Opens the directory and records the limit in it; workers find it there.
  init(directory: String, limit: Int?) throws {
    var configuration = BlobCache.Configuration.withoutMemory
    configuration.limits = BlobCache.Limits(bytes: limit)
    configuration.sweepInterval = nil
    cache = try BlobCache(directory: directory, configuration: configuration)
    self.directory = directory
    bound = limit.map(Bound.init(limit:))
  }

  var looks: [Look] { state.withLock { $0.looks } }
  /// In words; empty when the bound held.
  var violations: [String] { state.withLock { $0.violations } }

  func begin(processes: [Int32]) {
    state.withLock { $0.processes = processes }
    Thread.detachNewThread { [self] in  // a walk blocks
      while !state.withLock(\.stops) {
        look()
        Thread.sleep(forTimeInterval: Self.interval)
      }
      ended.signal()
    }
  }

  /// Looks for a last time, after the workers have ended.
  func end() async throws {
    state.withLock { $0.stops = true }
    await withCheckedContinuation { continuation in
      Thread.detachNewThread { [self] in
        ended.wait()
        look()
        continuation.resume()
      }
    }
    try await cache.close()
  }

  private func look() {
    let processes = state.withLock(\.processes)
    do {
      var look = try measure(processes)
      // Neither figure is a snapshot: a body that is published or replaced meanwhile may be counted twice. What is
      // above the bound is therefore looked at again at once, and counts if it is still there at the fifth look.
      for _ in 0..<4 {
        guard let bound, bound.violation(of: look) != nil else { break }
        look = try measure(processes)
      }
      let violation = bound?.violation(of: look)
      state.withLock { [look] state in
        state.looks.append(look)
        if let violation { state.violations.append(violation) }
      }
    } catch {
      state.withLock { $0.violations.append("the directory could not be walked: \(error)") }
    }
  }

  private func measure(_ processes: [Int32]) throws -> Look {
    let counted = cache.statistics
    let walked = try allocated("")
    let index = try allocated("index/data.mdb")
    // Of a walk beside writers only the counts before and after it tell something. Files that are published and not yet
    // committed count as staged, and those that are removed and not yet unlinked count, too: for as long as their process
    // waits for a processor. So all that counts, but for blobs in the index, is what the files must be within.
    let before = cache.statistics
    let blobs = try allocated("blobs")
    let after = cache.statistics
    return Look(
      seconds: (ContinuousClock.now - start).seconds, used: counted.usedBytes, walked: walked,
      index: index, blobs: blobs,
      blobsCounted: max(
        before.usedBytes - before.indexBytes, after.usedBytes - after.indexBytes),
      evictions: counted.evictions,
      evictionAge: counted.evictionAge, resident: processes.map(residentBytes))
  }

  private func allocated(_ name: String) throws -> Int {
    var bytes: UInt64 = 0
    try check(unsafe cb_tree_allocated("\(directory)/\(name)", &bytes), "walk of \(name)")
    return Int(bytes)
  }
}

/// What the directory may take.
///
/// The limit counts pages of the index that are in use, and a walk sees its file, free pages included, up to four times
/// their allowance. So what is used bounds the index in use, the walk its file and all else; and the blob files that it
/// finds must be those that are counted.
struct Bound: Sendable {
  /// As recorded in the directory.
  let limit: Int
  /// One write batch: a commit keeps to the limit to within what it brings itself. Each client has at most one store
  /// under way, and a body brings a piece at a time, for which room is made.
  let batch = Worker.clients * Origin.piece
  /// What a walk finds and the limit does not count: 256 folders of a block or two, `FORMAT`, `LOCK`, `lock.mdb` and
  /// the ballast, about 2 MiB (Guarantees, 6).
  let overhead = 9 << 18
  /// Free pages of the index, while a checkpoint, or a reader that has no share of the processor, keeps them.
  var free: Int { max(16 << 20, limit / 2) }

  var used: Int { limit + batch }
  var walked: Int { limit + batch + overhead }

  func violation(of look: Watch.Look) -> String? {
    let at = String(format: "%.1f s: ", look.seconds)
    if look.used > used {
      return at + "\(grouped(look.used)) bytes are used; limit \(grouped(limit)) and a batch of "
        + "\(grouped(batch)) are \(grouped(used))"
    }
    if look.walked - look.index > walked {
      return at + "\(grouped(look.walked - look.index)) bytes are allocated outside the index's "
        + "file; limit, batch and overhead are \(grouped(walked))"
    }
    if look.index > limit + batch + free {
      return at
        + "\(grouped(look.index)) bytes are allocated to the index's file; limit, batch and "
        + "free pages are \(grouped(limit + batch + free))"
    }
    if look.blobs > look.blobsCounted + batch + overhead {
      return at + "\(grouped(look.blobs)) bytes of blob files are allocated; counted, batch and "
        + "overhead are \(grouped(look.blobsCounted + batch + overhead))"
    }
    return nil
  }
}

/// The second figure of proc_pid_statm(5), in pages; 0 for a process that has ended.
private func residentBytes(_ process: Int32) -> Int {
  guard let line = FileManager.default.contents(atPath: "/proc/\(process)/statm") else { return 0 }
  let words = String(decoding: line, as: UTF8.self).split(separator: " ")
  return (words.count > 1 ? Int(words[1]) ?? 0 : 0) * Int(sysconf(Int32(_SC_PAGESIZE)))
}
