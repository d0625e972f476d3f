import Foundation
import Testing

#if canImport(Glibc)
  import Glibc
#else
  import Darwin
#endif

/// What a run of the real program gave.
struct Run: Equatable {
  var status: Int32
  var output: [UInt8]
  var complaint: String

  var text: String { String(decoding: output, as: UTF8.self) }

  /// Moments in JSON replaced by `TIME`, so that whole output can be compared.
  var timeless: String {
    text.replacing(/"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"/, with: "TIME")
  }
}

/// A fresh folder with the real program beside it; removed with its owner.
final class Playground {
  let folder: String
  /// A cache directory that nothing has made yet.
  var cache: String { folder + "/cache" }

  static let tool = URL(fileURLWithPath: CommandLine.arguments[0])
    .deletingLastPathComponent().appendingPathComponent("blobcache-inspect").path

  init() throws {
    folder =
      FileManager.default.temporaryDirectory
      .appendingPathComponent("inspect-" + UUID().uuidString).path
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
  }

  deinit {
    do {
      try FileManager.default.removeItem(atPath: folder)
    } catch {
      Issue.record("left behind: \(folder): \(error)")
    }
  }

  @discardableResult
  func file(_ name: String, _ bytes: [UInt8]) throws -> String {
    let path = folder + "/" + name
    try Data(bytes).write(to: URL(fileURLWithPath: path))
    return path
  }

  func run(_ words: String..., input: [UInt8] = []) throws -> Run {
    try run(words.map { Array($0.utf8) }, input: input)
  }

  /// Files stand in for pipes: nothing can fill up, and standard input is no terminal.
  func run(_ words: [[UInt8]], input: [UInt8] = []) throws -> Run {
    let input = try file("stdin", input)
    let output = folder + "/stdout"
    let descriptor = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    defer { close(descriptor) }
    var run = try spawn(words, input: input, output: descriptor)
    run.output = [UInt8](try Data(contentsOf: URL(fileURLWithPath: output)))
    return run
  }

  /// Standard output is a pipe that nobody reads.
  func runIntoBrokenPipe(_ words: [String]) throws -> Run {
    var ends: [Int32] = [0, 0]
    try #require(pipe(&ends) == 0)
    close(ends[0])
    defer { close(ends[1]) }
    return try spawn(words.map { Array($0.utf8) }, input: "/dev/null", output: ends[1])
  }

  private func spawn(_ words: [[UInt8]], input: String, output: Int32) throws -> Run {
    let complaint = folder + "/stderr"
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 0, input, O_RDONLY, 0)
    posix_spawn_file_actions_adddup2(&actions, output, 1)
    posix_spawn_file_actions_addopen(&actions, 2, complaint, O_WRONLY | O_CREAT | O_TRUNC, 0o600)

    // Raw bytes: Foundation's Process knows strings only.
    var arguments: [UnsafeMutablePointer<CChar>?] = ([Array(Self.tool.utf8)] + words).map { word in
      let copy = UnsafeMutablePointer<CChar>.allocate(capacity: word.count + 1)
      for (index, byte) in word.enumerated() { copy[index] = CChar(bitPattern: byte) }
      copy[word.count] = 0
      return copy
    }
    defer { for case let word? in arguments { word.deallocate() } }
    arguments.append(nil)

    var child: pid_t = 0
    let failure = posix_spawn(&child, Self.tool, &actions, nil, arguments, environ)
    try #require(failure == 0, "cannot run \(Self.tool)")
    var status: Int32 = 0
    while waitpid(child, &status, 0) < 0 { try #require(errno == EINTR) }
    let exited = status & 0x7F == 0
    return Run(
      status: exited ? (status >> 8) & 0xFF : -(status & 0x7F), output: [],
      complaint: try String(contentsOfFile: complaint, encoding: .utf8))
  }

  /// Every name below the cache directory, with the mode, size, time of change and inode of each.
  /// Without LMDB's table of readers: a reader that did not enter itself there would have the pages
  /// that it looks at reused by a live writer.
  func picture() throws -> [String: String] {
    var out: [String: String] = [:]
    for name in try FileManager.default.subpathsOfDirectory(atPath: cache) + ["."]
    where name != "index/lock.mdb" {
      var info = stat()
      try #require(lstat(cache + "/" + name, &info) == 0)
      out[name] =
        "\(info.st_mode) \(info.st_size) \(info.st_mtim.tv_sec).\(info.st_mtim.tv_nsec) "
        + "\(info.st_ino)"
    }
    return out
  }
}

/// `blobcache-inspect: …` and the end of the line.
func complaint(_ lines: String...) -> String {
  lines.map { "blobcache-inspect: \($0)\n" }.joined()
}

func usage(_ message: String) -> Run {
  Run(
    status: 2, output: [], complaint: complaint(message + "; see blobcache-inspect help"))
}

func failed(_ status: Int32, _ message: String) -> Run {
  Run(status: status, output: [], complaint: complaint(message))
}

func printed(_ lines: String..., status: Int32 = 0) -> Run {
  Run(status: status, output: Array((lines.joined(separator: "\n") + "\n").utf8), complaint: "")
}
