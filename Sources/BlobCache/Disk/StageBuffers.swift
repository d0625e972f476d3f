internal import Synchronization

/// The buffers of bodies that are being written, kept for the next body.
///
/// Freed, a buffer of this size stays in the arena of the thread that made it (mallopt(3), M_MMAP_THRESHOLD is raised by
/// what is freed). Bodies are written by whichever thread is there, so in the end each arena would keep the most that it
/// ever held: 80 MiB where 4 are in use, in ten minutes of a busy service. Fresh ones cost page faults, too.
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
