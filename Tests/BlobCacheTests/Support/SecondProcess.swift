import Foundation
import Glibc
import Synchronization
import Testing

/// A running `blobcache-test-process`: a real second process over a cache directory, driven by lines.
/// Killed, if it still runs, when the last reference goes.
final class SecondProcess: Sendable {
  let pid: pid_t
  private let socket: Int32
  /// A file without a name that takes its standard error.
  private let errors: Int32
  private let queue = DispatchQueue(label: "second process")
  private let state = Mutex(State())

  private struct State {
    var unread: [UInt8] = []
    var status: Int32?
  }

  struct Failure: Error, CustomStringConvertible {
    var description: String
  }

  /// Longest wait for a line, unless told otherwise: far above anything but a hang.
  static let patience = Duration.seconds(60)

  /// The built executables lie beside the test bundle.
  static let executable: String = {
    let bundle = try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe")
    let own = URL(fileURLWithPath: CommandLine.arguments[0])
    let folders = [own, URL(fileURLWithPath: bundle ?? "/")].map { $0.deletingLastPathComponent() }
    let paths = folders.map { $0.appendingPathComponent("blobcache-test-process").path }
    return paths.first { access($0, X_OK) == 0 } ?? "blobcache-test-process"
  }()

  /// Starts it, below `wrapper` (a command and its arguments) when one is given.
  init(
    wrapper: [String] = [], arguments more: [String] = [], environment: [String: String] = [:]
  ) throws {
    // One socket pair for both directions: made close-on-exec in one step, so that no process which
    // another test starts at the same moment keeps an end of it open.
    var ends: [Int32] = [0, 0]
    let kind = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, kind, 0, &ends) == 0 else {
      throw Failure(description: "socketpair: errno \(errno)")
    }
    let errors = Self.nameless()
    let words = wrapper + [Self.executable] + more
    var variables = ProcessInfo.processInfo.environment
    variables["SWIFT_BACKTRACE"] = "enable=no"
    variables.merge(environment) { $1 }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0)
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1)
    if errors >= 0 { posix_spawn_file_actions_adddup2(&actions, errors, 2) }
    var arguments = words.map { strdup($0) } + [nil]
    var settings = variables.map { strdup("\($0.key)=\($0.value)") } + [nil]
    var child: pid_t = 0
    let status = posix_spawnp(&child, words[0], &actions, nil, &arguments, &settings)
    for word in arguments + settings { free(word) }
    posix_spawn_file_actions_destroy(&actions)
    close(ends[1])
    guard status == 0 else {
      close(ends[0])
      close(errors)
      throw Failure(description: "\(words[0]): errno \(status)")
    }
    (pid, socket, self.errors) = (child, ends[0], errors)
  }

  /// A new file that nobody can find; negative when there is none to be had.
  private static func nameless() -> Int32 {
    var path = Array("\(FileManager.default.temporaryDirectory.path)/blobcache-XXXXXX".utf8CString)
    let file = mkstemp(&path)
    if file < 0 { return file }
    unlink(path)
    _ = fcntl(file, F_SETFD, FD_CLOEXEC)
    return file
  }

  deinit {
    kill()
    close(socket)
    close(errors)
  }

  /// Starts one that has `directory` open.
  static func over(
    _ directory: String, _ options: String = "", wrapper: [String] = [],
    environment: [String: String] = [:]
  ) async throws -> SecondProcess {
    let process = try SecondProcess(wrapper: wrapper, environment: environment)
    let opened = try await process.call("open \(directory) \(options)")
    guard opened == "ok" else { throw Failure(description: opened) }
    return process
  }

  /// Sends a command and gives the answer.
  func call(_ line: String) async throws -> String {
    try send(line)
    return try await nextLine()
  }

  func send(_ line: String) throws {
    let bytes = Array((line + "\n").utf8)
    guard Glibc.send(socket, bytes, bytes.count, Int32(MSG_NOSIGNAL)) == bytes.count else {
      if errno == EPIPE { throw ended() }
      throw Failure(description: "process \(pid) takes no command: errno \(errno)")
    }
  }

  /// The next line; throws when the process has ended, or is silent for so long.
  func nextLine(patience: Duration = patience) async throws -> String {
    try await withCheckedThrowingContinuation { continuation in
      queue.async {
        let line = Result { () throws -> String in
          guard let line = try self.blockingLine(patience) else { throw self.ended() }
          return line
        }
        continuation.resume(with: line)
      }
    }
  }

  /// What was written and not read yet, to the end: after `kill()` or `exit`.
  func remainingLines() throws -> [String] {
    var lines: [String] = []
    while let line = try blockingLine() { lines.append(line) }
    return lines
  }

  private func blockingLine(_ patience: Duration = patience) throws -> String? {
    var chunk = [UInt8](repeating: 0, count: 1 << 16)
    while true {
      let line = state.withLock { state -> String? in
        guard let end = state.unread.firstIndex(of: UInt8(ascii: "\n")) else { return nil }
        defer { state.unread.removeFirst(end + 1) }
        return String(decoding: state.unread[..<end], as: UTF8.self)
      }
      if let line { return line }
      var waiting = pollfd(fd: socket, events: Int16(POLLIN), revents: 0)
      guard poll(&waiting, 1, Int32(patience.components.seconds) * 1000) > 0 else {
        throw Failure(description: "process \(pid) says nothing for \(patience)")
      }
      let count = read(socket, &chunk, chunk.count)
      guard count > 0 else { return nil }
      state.withLock { $0.unread += chunk[..<count] }
    }
  }

  /// It has closed its end, so it is ending or has ended: how, and what it said about that.
  private func ended() -> Failure {
    let status = state.withLock { state in
      let status = state.status ?? Self.reap(pid)
      state.status = status
      return status
    }
    let signal = status & 0x7f  // waitpid(2)
    let how = signal != 0 ? "by signal \(signal)" : "with status \(status >> 8)"
    return Failure(description: "process \(pid) has ended \(how), saying: \(standardError)")
  }

  /// What it has written to its standard error so far.
  var standardError: String {
    var bytes = [UInt8](repeating: 0, count: 1 << 16)
    let count = pread(errors, &bytes, bytes.count, 0)
    return String(decoding: bytes.prefix(max(count, 0)), as: UTF8.self)
  }

  /// `kill -9`, and waits until it is gone.
  func kill() {
    state.withLock { state in
      guard state.status == nil else { return }
      Glibc.kill(pid, SIGKILL)
      state.status = Self.reap(pid)
    }
  }

  /// Ends it in order; the exit status as `waitpid` gives it.
  @discardableResult
  func end() async throws -> Int32 {
    try? send("exit")  // It may have ended already, which the status tells.
    return await status()
  }

  /// Waits until it has ended.
  func status() async -> Int32 {
    await withCheckedContinuation { continuation in
      queue.async {
        let status = self.state.withLock { state -> Int32 in
          let status = state.status ?? Self.reap(self.pid)
          state.status = status
          return status
        }
        continuation.resume(returning: status)
      }
    }
  }

  /// Waits until it has stopped itself (`fault STEP COUNT stop`), by polling its state.
  func untilStopped() async throws {
    try await eventually("process \(pid) reaches the step") { try isStopped }
  }

  /// Whether it stands still.
  var isStopped: Bool {
    get throws {
      let line = try String(contentsOfFile: "/proc/\(pid)/stat", encoding: .utf8)
      // The state is the word after the name, which is in parentheses (proc(5)).
      return line.split(separator: ")").last?.hasPrefix(" T") == true
    }
  }

  private var hasLine: Bool {
    if state.withLock({ $0.unread.contains(UInt8(ascii: "\n")) }) { return true }
    var waiting = pollfd(fd: socket, events: Int16(POLLIN), revents: 0)
    return poll(&waiting, 1, 0) > 0
  }

  /// The next line, or nil when it has stopped itself before that.
  func nextLineOrStop() async throws -> String? {
    var stopped = false
    try await eventually("process \(pid) answers or reaches the step") {
      stopped = try isStopped
      return stopped || hasLine
    }
    return stopped ? nil : try await nextLine()
  }

  private static func reap(_ pid: pid_t) -> Int32 {
    var status: Int32 = 0
    while waitpid(pid, &status, 0) < 0 && errno == EINTR {}
    return status
  }
}

/// What a walk over the closed or live directory finds, from a process of its own: `ok` when nothing
/// is unreferenced, missing, left in staging or miscounted.
func structureOf(_ directory: String) async throws -> String {
  let process = try SecondProcess()
  let found = try await process.call("check \(directory)")
  try await process.end()
  return found
}
