import BlobCache
import CBlobStore
import Foundation
import Glibc

extension Commands {
  /// `hog TASKS`: so many tasks store without a pause, until the process is killed.
  func hog(_ words: [String]) async throws -> String {
    let (cache, tasks) = (try opened(), try number(words, 0) { Int($0) })
    answer("ok")
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<tasks {
        group.addTask {
          let key = BlobCache.Key("hog-\(getpid())-\(task)")
          let bytes = seededBytes(count: 500, seed: UInt64(task))
          while true { try await cache.store(bytes, for: key) }
        }
      }
      try await group.waitForAll()
    }
    return "ok"
  }

  /// `hog-core DIRECTORY`: commits one prepared write after another through the C core, so that between two of them the lock
  /// is free for an instruction or two, in which nobody who has to wake up first can take it.
  func hogCore(_ words: [String]) throws -> String {
    guard let store = coreStore(try word(words, 0)) else { return cError("open") }
    answer("ok")
    while true {
      let writes = (0..<500).map { coreWrite(store, "core-\(getpid())-\($0)") }
      for write in writes {
        guard let write, bcs_commit(store, [write], 1, false) == BCS_OK else {
          return cError("commit")
        }
        bcs_write_free(write)
      }
    }
  }

  /// `turns COUNT DIRECTORY [core]`: single stores, one after another, each in the middle of what others do. `ok FEW MOST
  /// MILLISECONDS`: how many transactions were committed, by anybody, from the begin of one to its return, its own among
  /// them; and the longest wait. FEW: of a tenth of them at least, since on a loaded machine a process may wait for a processor in the
  /// middle, while others store; where nobody keeps to the line, it is many. Through the C core it stands in line at once, instead of after a hop to a thread.
  func turns(_ words: [String]) async throws -> String {
    let (count, directory) = (try number(words, 0) { Int($0) }, try word(words, 1))
    let core = words.count > 2 ? coreStore(directory) : nil
    let file = Glibc.open("\(directory)/index/data.mdb", O_RDONLY | O_CLOEXEC)
    guard file >= 0 else { throw UsageError(description: "errno \(errno)") }
    defer { close(file) }
    var (commits, longest) = ([UInt64](), UInt64(0))
    for number in 0..<count {
      let write = core.flatMap { coreWrite($0, "single") }
      let last = lastTransaction(file)
      while lastTransaction(file) < last + 3 { await Task.yield() }
      let (before, start) = (lastTransaction(file), monotonicNanoseconds())
      if let core, let write {
        guard bcs_commit(core, [write], 1, false) == BCS_OK else { return cError("commit") }
      } else {
        try await opened().store([UInt8(truncatingIfNeeded: number)], for: "single")
      }
      commits.append(lastTransaction(file) - before)
      longest = max(longest, monotonicNanoseconds() - start)
      if let write { bcs_write_free(write) }
    }
    commits.sort()
    return "ok \(commits[count / 10]) \(commits[count - 1]) \(longest / 1_000_000)"
  }

  /// Of the newer one of LMDB's two meta pages.
  private func lastTransaction(_ file: Int32) -> UInt64 {
    var numbers: [UInt64] = [0, 0]
    for page in 0..<2 { pread(file, &numbers[page], 8, off_t(page * 4096 + 144)) }
    return max(numbers[0], numbers[1])
  }
}
