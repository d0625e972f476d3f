import BlobCache
import Foundation

/// Uses the library as its users do and checks what comes back. Exit status 1 when something is not
/// as promised.
@main
struct Client {
  static func main() async {
    let folder = FileManager.default.temporaryDirectory
      .appendingPathComponent("blobcache-client-\(ProcessInfo.processInfo.processIdentifier)").path
    defer { try? FileManager.default.removeItem(atPath: folder) }
    do {
      try await lookups()
      try await keysOfEveryKind()
      try await storesOfEveryKind(folder)
      try await readThrough()
      try await revalidation()
      try await freshness()
      try await maintenance()
      try await errors(folder)
      try await actors()
      try await values(folder)
      print("client: all as promised (\(languageMode))")
    } catch {
      fail("unexpected error: \(error)")
    }
  }

  #if swift(>=6)
    static let languageMode = "Swift 6 mode"
  #else
    static let languageMode = "Swift 5 mode"
  #endif
}

func fail(_ message: String, line: UInt = #line) -> Never {
  FileHandle.standardError.write(Data("client: line \(line): \(message)\n".utf8))
  exit(1)
}

func check(_ condition: Bool, _ message: String = "not as promised", line: UInt = #line) {
  if !condition { fail(message, line: line) }
}
