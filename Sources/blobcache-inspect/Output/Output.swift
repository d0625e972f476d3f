/// Standard output, collected into large writes; and one line for standard error.
final class Output {
  private var buffer: [UInt8] = []
  private static let capacity = 1 << 16

  init() { buffer.reserveCapacity(Self.capacity + 4_096) }

  func line(_ text: String) throws {
    buffer.append(contentsOf: text.utf8)
    buffer.append(UInt8(ascii: "\n"))
    if buffer.count >= Self.capacity { try flush() }
  }

  func line(_ value: JSON) throws { try line(value.text) }

  func flush() throws {
    defer { buffer.removeAll(keepingCapacity: true) }
    try unsafe buffer.withUnsafeBytes { try unsafe writeAll($0, to: 1) }
  }

  /// Bytes as they are, behind what was written before.
  func raw(_ bytes: UnsafeRawBufferPointer) throws {
    try flush()
    try unsafe writeAll(bytes, to: 1)
  }

  /// A remark or an error: the program's name and one line.
  static func complain(_ message: String) {
    standardError("blobcache-inspect: \(message)\n")
  }

  static func standardError(_ text: String) {
    do {
      try unsafe Array(text.utf8).withUnsafeBytes { try unsafe writeAll($0, to: 2) }
    } catch {
      // Nobody is left to be told.
    }
  }
}
