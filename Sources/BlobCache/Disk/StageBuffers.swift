internal import Synchronization

/// The buffers of bodies that are being written, kept for the next body.
///
/// Fresh ones cost page faults, and a round through malloc that leaves them at the top of whichever
/// arena the thread has.
enum StageBuffers {
  static let size = 256 << 10
  /// So many are kept while nobody wants them: 4 MiB.
  static let most = 16

  private static let spares = Mutex<[[UInt8]]>([])

  /// An empty one with room for `size` bytes.
  static func take() -> [UInt8] {
    if let spare = spares.withLock({ $0.popLast() }) { return spare }
    var buffer: [UInt8] = []
    buffer.reserveCapacity(size)
    return buffer
  }

  /// For the next one who wants one. Whoever gives it must have it alone: a shared array would be copied.
  static func give(_ buffer: consuming [UInt8]) {
    guard buffer.capacity >= size, buffer.capacity < 2 * size else { return }
    buffer.removeAll(keepingCapacity: true)
    let empty = consume buffer
    spares.withLock { if $0.count < most { $0.append(empty) } }
  }
}
