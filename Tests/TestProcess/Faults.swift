import BlobCache
import CBlobStore
import Foundation
import Recorder
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

private final class ForkStorm: Sendable {
  let isOver = Atomic<Bool>(false)
  let wrong = Atomic<Int>(0)
}

private let fault = Mutex<Fault?>(nil)

/// Set when a file is about to be opened: `close-reading`.
private let isReading = Atomic<Bool>(false)

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
          if reached.signal == SIGKILL { recorder_hold() }
          // To this thread, which then goes no instruction further; kill(2) may pick another one.
          if reached.signal != 0 { raise(reached.signal) }
          return reached.code
        }
      }, nil)
  }

  /// `check DIRECTORY [BOOT]`: opens below the library and walks the index and the folders without repairing.
  /// Only in a process that has not opened the directory otherwise.
  func check(_ words: [String]) throws -> String {
    var options = bcs_options()
    options.durability = BCS_AS_RECORDED
    var store: OpaquePointer?
    guard let directory = words.first else { throw UsageError(description: "check DIRECTORY") }
    let status = (words.count > 1 ? words[1] : nil).withCString {
      options.boot_id = $0
      return bcs_open(directory, &options, &store)
    }
    guard status == BCS_OK, let store else { return cError("open") }
    defer { bcs_close(store) }
    var more = true
    while more {
      guard bcs_sweep_trash(store, 1000, &more) == BCS_OK else { return cError("sweep") }
    }
    var report = bcs_check_report()
    guard bcs_check_structure(store, false, &report, nil, nil) == BCS_OK else {
      return cError("check")
    }
    // The walk leaves out files of the last two seconds, which may belong to others' commits; the counts leave out none.
    var counters = bcs_counters()
    guard bcs_count(store, &counters) == BCS_OK else { return cError("count") }
    let files = Self.blobFiles(directory)
    if files + report.missing_files > counters.blob_files + report.unreferenced_files {
      report.unreferenced_files = files + report.missing_files - counters.blob_files
    }
    let findings = [
      "unreferenced_files": report.unreferenced_files, "missing_files": report.missing_files,
      "foreign_names": report.foreign_names, "dead_staging": report.dead_staging,
      "damaged_records": report.damaged_records, "wrong_totals": report.wrong_totals,
      "wrong_uses": report.wrong_uses,
      "wrong_slots": report.wrong_slots, "wrong_digests": report.wrong_digests,
      "damaged_page": report.damage.found ? report.damage.page : 0,
    ].filter { $0.value != 0 }
    guard !findings.isEmpty else { return "ok" }
    return "found " + findings.map { "\($0.key)=\($0.value)" }.sorted().joined(separator: " ")
  }

  private static func blobFiles(_ directory: String) -> UInt64 {
    let names = FileManager.default.enumerator(atPath: directory + "/blobs")
    let digests = (names?.allObjects ?? []).compactMap { $0 as? String }.filter { name in
      name.utf8.count == 67 && name.dropFirst(3).allSatisfy { $0.isHexDigit && !$0.isUppercase }
    }
    return UInt64(digests.count)
  }

  func cError(_ what: String) -> String {
    var error = bcs_error()
    bcs_last_error(&error)
    let cause = withUnsafeBytes(of: error.cause) { bytes in
      String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }
    return "error \(what) \(String(cString: bcs_status_name(error.status))) \(cause)"
  }

  /// `close-reading KEY`: closes while another thread is about to open the key's file, and tells what that one got.
  func closeWhileReading(_ words: [String]) async throws -> String {
    let cache = try opened()
    let key = BlobCache.Key(words.first ?? "")
    bcs_set_fault_hook(
      { step, _ in
        if let step, strcmp(step, "blob-open") == 0 {
          isReading.store(true, ordering: .sequentiallyConsistent)
          usleep(100_000)
        }
        return 0
      }, nil)
    defer { bcs_set_fault_hook(nil, nil) }
    async let answer = withCheckedContinuation {
      (continuation: CheckedContinuation<String, Never>) in
      DispatchQueue(label: "reader").async {
        do throws(BlobCache.Error) {
          let blob = try cache.blob(for: key)
          continuation.resume(returning: blob.map { "hit \($0.count)" } ?? "miss")
        } catch {
          continuation.resume(returning: "error \(error.code)")
        }
      }
    }
    while !isReading.load(ordering: .sequentiallyConsistent) {
      try await Task.sleep(for: .milliseconds(1))
    }
    try await cache.close()
    return await answer
  }

  /// `forks COUNT DIRECTORY`: forks while other threads open, use and close a cache there without pause. Tells in how
  /// many of the children a descriptor of LOCK is left, which would keep locks when all others are gone.
  func forks(_ words: [String]) throws -> String {
    typealias Fork = @convention(c) () -> pid_t
    guard words.count == 2, let count = Int(words[0]), let symbol = dlsym(nil, "fork") else {
      throw UsageError(description: "forks COUNT DIRECTORY")
    }
    let fork = unsafeBitCast(symbol, to: Fork.self)
    let directory = words[1]
    let isOver = Atomic<Bool>(false)
    let opens = Atomic<Int>(0)
    let threads = DispatchGroup()
    // The moment in which the descriptor is there and nobody knows it yet, made longer.
    bcs_set_fault_hook(
      { step, _ in
        if let step, strcmp(step, "lock-opened") == 0 { usleep(500) }
        return 0
      }, nil)
    for index in 0..<2 {
      DispatchQueue(label: "opener \(index)").async(group: threads) {
        var options = bcs_options()
        options.create = true
        while !isOver.load(ordering: .relaxed) {
          var store: OpaquePointer?
          guard bcs_open(directory, &options, &store) == BCS_OK else { continue }
          bcs_close(store)
          opens.add(1, ordering: .relaxed)
        }
      }
    }
    // A child of a process with many threads does as little as it can: no Swift object is made in it.
    let names = (0..<256).map { strdup("/proc/self/fd/\($0)") }
    let target = UnsafeMutablePointer<CChar>.allocate(capacity: 4096)
    defer { target.deallocate() }
    var kept = 0
    for _ in 0..<count {
      let child = fork()
      if child == 0 {
        for name in names {
          let length = readlink(name!, target, 4096)  // made by strdup above
          if length > 5, memcmp(target + length - 5, "/LOCK", 5) == 0 { _exit(1) }
        }
        _exit(0)
      }
      var status: Int32 = 0
      if waitpid(child, &status, 0) != child || status != 0 { kept += 1 }
    }
    isOver.store(true, ordering: .relaxed)
    threads.wait()
    for name in names { free(name) }
    return opens.load(ordering: .relaxed) > 0 ? "ok kept=\(kept)" : "error nothing was opened"
  }

  /// `fork-storm COUNT`: forks while tasks store, remove and look up. `ok forked=N wrong=N`: how many children were told
  /// that they are one, and how many lookups of the parent found something else than was stored.
  func forkStorm(_ words: [String]) async throws -> String {
    typealias Fork = @convention(c) () -> pid_t
    guard let count = words.first.flatMap(Int.init), let symbol = dlsym(nil, "fork") else {
      throw UsageError(description: "fork-storm COUNT")
    }
    let (cache, fork) = (try opened(), unsafeBitCast(symbol, to: Fork.self))
    let shared = ForkStorm()
    // An error of the kind that the child will throw is made here first: a child of a process with many threads should
    // need no lock of the runtime.
    let long = BlobCache.Key(String(repeating: "k", count: 70_000))
    do { _ = try cache.blob(for: long) } catch { _ = error.code == .forked }
    var told = 0
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<4 {
        group.addTask {
          let bytes = seededBytes(count: task % 2 == 0 ? 300 : 40_000, seed: UInt64(task))
          while !shared.isOver.load(ordering: .relaxed) {
            try await cache.store(bytes, for: BlobCache.Key("fork-\(task)"))
            let found = try cache.blob(for: BlobCache.Key("fork-\(task)"))
            if found?.data != Data(bytes) { shared.wrong.add(1, ordering: .relaxed) }
            if task == 3 { try await cache.remove("fork-3") }
          }
        }
      }
      for _ in 0..<count {
        await Task.yield()
        let child = fork()
        if child == 0 {
          alarm(20)  // one that hangs is not told anything
          do throws(BlobCache.Error) {
            _ = try cache.blob(for: "fork-0")
            _exit(1)
          } catch {
            _exit(error.code == .forked ? 0 : 2)
          }
        }
        var status: Int32 = 0
        if waitpid(child, &status, 0) == child, status == 0 { told += 1 }
      }
      shared.isOver.store(true, ordering: .relaxed)
      try await group.waitForAll()
    }
    return "ok forked=\(told) wrong=\(shared.wrong.load(ordering: .relaxed))"
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

extension String? {
  fileprivate func withCString<R>(_ body: (UnsafePointer<CChar>?) -> R) -> R {
    guard let self else { return body(nil) }
    return self.withCString { body($0) }
  }
}
