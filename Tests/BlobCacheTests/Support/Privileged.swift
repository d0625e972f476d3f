import Foundation
import Glibc

/// What some tests need of the machine; each is told as the reason when a test is skipped.
enum Machine {
  static let isRoot = geteuid() == 0
  static func has(_ command: String) -> Bool {
    let path = ProcessInfo.processInfo.environment["PATH"] ?? "/usr/bin:/bin"
    let folders = path.split(separator: ":").map(String.init) + ["/usr/sbin", "/sbin"]
    return folders.contains { access("\($0)/\(command)", X_OK) == 0 }
  }

  /// A loop mount needs root, the tools, and a kernel (or container) that lets root mount.
  static let canMount: Bool = {
    guard isRoot, has("mount"), has("mkfs.ext4") else { return false }
    return (try? SmallFileSystem(mebibytes: 8)) != nil
  }()

  static let canUnsharePids = isRoot && has("unshare") && run("unshare", "--pid", "--fork", "true")

  /// Runs what follows as a user who owns nothing.
  static let asNobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

  /// Root may have built where nobody else can read.
  static let canBecomeNobody =
    isRoot && has("setpriv")
    && run(asNobody + ["test", "-x", SecondProcess.executable])

  /// strace may be there and ptrace forbidden.
  static let canTrace = has("strace") && run("strace", "-o", "/dev/null", "true")

  /// The number of kills of the long form, from BLOBCACHE_KILLS; nil in the short form.
  static let kills = ProcessInfo.processInfo.environment["BLOBCACHE_KILLS"].flatMap(Int.init)
  /// Of the moments at which processes are killed, and the one weather in which they are.
  static let killWeather = ProcessInfo.processInfo.environment["BLOBCACHE_KILL_WEATHER"]
  static let killSeed = ProcessInfo.processInfo.environment["BLOBCACHE_KILL_SEED"].flatMap(
    UInt64.init)

  /// The number of power cuts of the long form, from BLOBCACHE_CUTS; nil in the short form.
  static let cuts = ProcessInfo.processInfo.environment["BLOBCACHE_CUTS"].flatMap(Int.init)

  /// One cut alone, as the failure named it.
  static let cutSeed = ProcessInfo.processInfo.environment["BLOBCACHE_CUT_SEED"].flatMap(
    UInt64.init)
  static let cutScenario = ProcessInfo.processInfo.environment["BLOBCACHE_CUT_SCENARIO"]
  static let cutLog = ProcessInfo.processInfo.environment["BLOBCACHE_CUT_LOG"] ?? ""

  /// The number of corruptions of the long form, from BLOBCACHE_CORRUPTIONS; nil in the short form. One alone, as its
  /// failure named it.
  static let corruptions = ProcessInfo.processInfo.environment["BLOBCACHE_CORRUPTIONS"].flatMap(
    Int.init)
  static let corruptionSeed = ProcessInfo.processInfo.environment["BLOBCACHE_CORRUPTION_SEED"]
    .flatMap(UInt64.init)

  /// Runs a command to its end; whether it said success.
  @discardableResult
  static func run(_ words: String...) -> Bool { run(words) }

  static func run(_ words: [String]) -> Bool {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
    process.arguments = words
    process.standardOutput = FileHandle.nullDevice
    process.standardError = FileHandle.nullDevice
    do {
      try process.run()
    } catch {
      return false
    }
    process.waitUntilExit()
    return process.terminationStatus == 0
  }
}

/// A real ext4 of a few MiB on a loop device: a disk that can be filled.
final class SmallFileSystem: Sendable {
  let path: String
  private let folder: TemporaryDirectory

  init(mebibytes: Int) throws {
    folder = TemporaryDirectory()
    let image = folder.path("image")
    path = folder.path("mount")
    guard mkdir(path, 0o700) == 0,
      Machine.run("truncate", "-s", "\(mebibytes)M", image),
      Machine.run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image),
      Machine.run("mount", "-o", "loop", image, path)
    else { throw SecondProcess.Failure(description: "cannot mount a small file system") }
  }

  /// A file system in memory with so many files and folders at most.
  init(inodes: Int) throws {
    folder = TemporaryDirectory()
    path = folder.path("mount")
    let options = "size=64m,mode=0700,nr_inodes=\(inodes)"
    guard mkdir(path, 0o700) == 0, Machine.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", path)
    else { throw SecondProcess.Failure(description: "cannot mount a file system in memory") }
  }

  deinit { Machine.run("umount", "-l", path) }

  /// Fills it, and what becomes free when blocks that were only promised are given, too.
  func fillToTheLast() {
    for _ in 0..<2 {
      fill()
      Machine.run("sync", "-f", path)
    }
    fill()
  }

  /// Writes a file until the disk has no block left.
  func fill(_ name: String = "filler") {
    let file = open("\(path)/\(name)", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0o600)
    let block = [UInt8](repeating: 0xFF, count: 1 << 16)
    while write(file, block, block.count) > 0 {}
    while write(file, block, 1) > 0 {}
    close(file)
  }
}
