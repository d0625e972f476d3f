import BlobCache
import Foundation
import Glibc

/// Loads that others can count and hold: each loader adds a line to a file, and goes on when a file beside it
/// appears, its name with `.go`.
struct LoadLog: Sendable {
  let path: String

  /// How many loaders have begun, of all processes.
  var count: Int {
    (FileManager.default.contents(atPath: path) ?? Data()).count { $0 == UInt8(ascii: "\n") }
  }

  func note() throws {
    // One write of a file opened for appending is one piece, whoever else writes (write(2)).
    let file = Glibc.open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0o600)
    let line = Array("\(getpid())\n".utf8)
    guard file >= 0, write(file, line, line.count) == line.count else {
      throw UsageError(description: "cannot write \(path): errno \(errno)")
    }
    close(file)
  }

  func open() throws {
    try Data().write(to: URL(fileURLWithPath: path + ".go"))
  }

  func wait() async throws {
    while access(path + ".go", F_OK) != 0 { try await Task.sleep(for: .milliseconds(2)) }
  }
}

struct OriginIsDown: Error {}

extension Commands {
  /// `herd KEY SIZE SEED TASKS LOG [reload|stale|fail]`: so many tasks fetch one key. The loader writes half, notes
  /// itself, waits, and writes the rest, or fails. `ok` and the digests that they got, each once.
  func herd(_ words: [String]) async throws -> String {
    let cache = try opened()
    let (key, bytes) = (try key(words), try body(words))
    let tasks = try number(words, 3) { Int($0) }
    let log = LoadLog(path: try word(words, 4))
    let how = words.count > 5 ? words[5] : ""
    let policy: BlobCache.FetchPolicy =
      switch how {
      case "reload": .reload
      case "stale": .staleWhileRevalidate(for: .seconds(3600))
      default: .cacheFirst
      }
    let digests = try await withThrowingTaskGroup(of: String.self) { group in
      for _ in 0..<tasks {
        group.addTask {
          try await cache.fetch(key, policy: policy) { load in
            try await load.write(bytes.prefix(bytes.count / 2))
            try log.note()
            try await log.wait()
            if how == "fail" { throw OriginIsDown() }
            try await load.write(bytes.suffix(from: bytes.count / 2))
            return .complete
          }.digest.hex
        }
      }
      return try await group.reduce(into: Set<String>()) { $0.insert($1) }
    }
    return "ok " + digests.sorted().joined(separator: " ")
  }

  /// `nest OUTER INNER LOG`: the loader of one key notes itself, waits, and fetches another key.
  func nest(_ words: [String]) async throws -> String {
    let cache = try opened()
    let (outer, inner) = (try key(words), BlobCache.Key(try word(words, 1)))
    let log = LoadLog(path: try word(words, 2))
    _ = try await cache.fetch(outer) { load in
      try log.note()
      try await log.wait()
      let part = try await cache.fetch(inner) { load in
        try await load.write("inner".utf8)
        return .complete
      }
      try await load.write(part.data)
      return .complete
    }
    return "ok"
  }
}
