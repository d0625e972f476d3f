import BlobCache
import CBlobStore
import Foundation
import Synchronization

/// What the fault hook of the C core does in this process. One at a time, set before the work begins.
private struct Fault: Sendable {
  var step: String
  /// Which time the step is reached, counted from 1.
  var countdown: Int
  /// Sent to the process itself: SIGKILL as `kill -9` at that instruction, SIGSTOP to stand still.
  var signal: Int32
  /// The errno that the step fails with, when it goes on.
  var code: Int32
}

private let fault = Mutex<Fault?>(nil)

extension Commands {
  /// `fault STEP COUNT kill|stop|ERRNO`; `fault none` takes it away.
  func injectFault(_ words: [String]) throws {
    guard words.count == 3, let count = Int(words[1]) else {
      fault.withLock { $0 = nil }
      return bcs_set_fault_hook(nil, nil)
    }
    let signals: [String: Int32] = ["kill": SIGKILL, "stop": SIGSTOP]
    let code = Int32(words[2]) ?? 0
    fault.withLock {
      $0 = Fault(step: words[0], countdown: count, signal: signals[words[2]] ?? 0, code: code)
    }
    bcs_set_fault_hook(
      { step, _ in
        guard let step else { return 0 }
        return fault.withLock { fault in
          guard fault?.step == String(cString: step) else { return 0 }
          fault?.countdown -= 1
          guard let reached = fault, reached.countdown == 0 else { return 0 }
          // To this thread, which then goes no instruction further; kill(2) may pick another one.
          if reached.signal != 0 { raise(reached.signal) }
          return reached.code
        }
      }, nil)
  }

  /// `descriptors SPARE`: lets this process open exactly SPARE files more.
  func limitDescriptors(spare: Int) throws {
    let open = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd")
    let count = rlim_t((open.compactMap(Int.init).max() ?? 2) + 1 + spare)
    var limit = rlimit(rlim_cur: count, rlim_max: count)
    guard setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else {
      throw UsageError(description: "setrlimit: errno \(errno)")
    }
    // The numbers that are free below the limit, gaps among them.
    var taken: [Int32] = []
    while true {
      let file = dup(0)
      guard file >= 0 else { break }
      taken.append(file)
    }
    for file in taken.suffix(spare) { close(file) }
  }

  /// `check DIRECTORY`: opens below the library and walks the index and the folders without repairing.
  /// Only in a process that has not opened the directory otherwise.
  func check(_ words: [String]) throws -> String {
    var options = bcs_options()
    options.durability = BCS_AS_RECORDED
    var store: OpaquePointer?
    guard let directory = words.first else { throw UsageError(description: "check DIRECTORY") }
    guard bcs_open(directory, &options, &store) == BCS_OK, let store else { return cError("open") }
    defer { bcs_close(store) }
    var more = true
    while more {
      guard bcs_sweep_trash(store, 1000, &more) == BCS_OK else { return cError("sweep") }
    }
    var report = bcs_check_report()
    guard bcs_check_structure(store, false, &report, nil, nil) == BCS_OK else {
      return cError("check")
    }
    let findings = [
      "unreferenced_files": report.unreferenced_files, "missing_files": report.missing_files,
      "foreign_names": report.foreign_names, "dead_staging": report.dead_staging,
      "wrong_totals": report.wrong_totals, "wrong_uses": report.wrong_uses,
      "wrong_slots": report.wrong_slots, "wrong_digests": report.wrong_digests,
      "damaged_page": report.damage.found ? report.damage.page : 0,
    ].filter { $0.value != 0 }
    guard !findings.isEmpty else { return "ok" }
    return "found " + findings.map { "\($0.key)=\($0.value)" }.sorted().joined(separator: " ")
  }

  private func cError(_ what: String) -> String {
    var error = bcs_error()
    bcs_last_error(&error)
    let cause = withUnsafeBytes(of: error.cause) { bytes in
      String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }
    return "error \(what) \(String(cString: bcs_status_name(error.status))) \(cause)"
  }

  /// `fork KEY`: forks, looks the key up in the child and tells what happened there. Swift marks
  /// `fork` as unavailable; code of other languages in the same process may call it all the same.
  func forkedLookup(_ words: [String]) throws -> String {
    typealias Fork = @convention(c) () -> pid_t
    guard let symbol = dlsym(nil, "fork") else { throw UsageError(description: "no fork") }
    let fork = unsafeBitCast(symbol, to: Fork.self)
    let key = BlobCache.Key(words.first ?? "")
    let cache = try opened()
    let child = fork()
    if child == 0 {
      do {
        _ = try cache.blob(for: key)
        _exit(10)
      } catch {
        _exit(error.code == .forked ? 20 : 30)
      }
    }
    var status: Int32 = 0
    guard waitpid(child, &status, 0) == child else { return "error wait" }
    switch status {
    case 20 << 8: return "forked"
    case 10 << 8: return "answered"
    default: return "status \(status)"
    }
  }
}
