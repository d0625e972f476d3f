import Foundation
import Synchronization

/// `descriptors SPARE`: lets this process open exactly SPARE files more.
func limitDescriptors(spare: Int) throws {
  reserve.withLock { reserve in
    while reserve.count < 200 {
      let file = openat(AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC)
      guard file >= 0 else { break }
      reserve.append(file)
    }
  }
  var count: rlim_t = 0
  if spare > 0 {
    let open = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd")
    count = rlim_t((open.compactMap(Int.init).max() ?? 2) + 1 + spare)
  }
  // Zero is exact whatever other threads have open for a moment. It is the only one that has to be.
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

extension Commands {
  /// `limit file|memory BYTES`: the largest file that this process may write, or its address space beyond what it has now.
  func limitResource(_ words: [String]) throws {
    var bytes = try number(words, 1) { rlim_t($0) }
    let kind: __rlimit_resource_t
    switch try word(words, 0) {
    case "file":
      kind = __rlimit_resource_t(RLIMIT_FSIZE.rawValue)
      signal(SIGXFSZ, SIG_IGN)
    case "memory":
      kind = __rlimit_resource_t(RLIMIT_AS.rawValue)
      let pages = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8)
      bytes += (rlim_t(pages.prefix { $0 != " " }) ?? 0) * rlim_t(sysconf(Int32(_SC_PAGESIZE)))
    default: throw UsageError(description: "limit file|memory BYTES")
    }
    var limit = rlimit(rlim_cur: bytes, rlim_max: .max)
    guard setrlimit(kind, &limit) == 0 else {
      throw UsageError(description: "setrlimit: errno \(errno)")
    }
  }
}

/// Files like the one that is asked for below.
private let reserve = Mutex<[Int32]>([])

/// In front of the C library's `open` for every library of this process, by way of InFront.c.
///
/// Each second in which jobs wait, Dispatch opens `/proc/…/stat` to see which of its threads run, and traps when
/// it cannot. That is known and documented, and would end these tests by chance; so it is given a file from the
/// reserve. Whatever else opens a file gets what the kernel says.
@_cdecl("blobcache_open_in_front")
public func openInFront(_ path: UnsafePointer<CChar>, _ flags: Int32, _ mode: mode_t) -> Int32 {
  let file = openat(AT_FDCWD, path, flags, mode)
  guard file < 0, errno == EMFILE, flags & O_CLOEXEC == 0, strncmp(path, "/proc/", 6) == 0 else {
    return file
  }
  return reserve.withLock { $0.popLast() } ?? file
}
