import Foundation

/// A fresh folder that is removed, with all in it, when the last reference goes.
final class TemporaryDirectory: Sendable {
  let path: String

  init(below parent: String? = nil) {
    let base = parent ?? ProcessInfo.processInfo.environment["TMPDIR"] ?? "/tmp"
    path = "\(base)/blobcache-tests.\(UUID().uuidString.lowercased())"
    guard mkdir(path, 0o700) == 0 else { fatalError("mkdir \(path): errno \(errno)") }
  }

  // A test that leaves something which cannot be removed has failed for a better reason already.
  deinit { try? FileManager.default.removeItem(atPath: path) }

  /// A path inside; nothing is made.
  func path(_ name: String) -> String { "\(path)/\(name)" }
}
