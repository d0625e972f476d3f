import Glibc
import Testing

/// The locks that lease.c keeps in a directory's LOCK, as a description of its own sees them.
final class LeaseLocks {
  /// A process that holds leases, or asks for one; how often it has given a sign of life.
  struct Sign {
    var number: Int
    var beats: Int
  }

  private static let span = 1 << 17
  private static let beats = 1 << 32
  private static let leases = 1 << 40

  private let file: CInt

  init(of cache: String) throws {
    file = open("\(cache)/LOCK", O_RDWR | O_CLOEXEC)
    try #require(file >= 0)
  }

  deinit { close(file) }

  /// One of the locks that others hold there; `count` 0: to the end of all offsets.
  func first(from start: Int, count: Int) throws -> (start: Int, count: Int)? {
    var lock = flock()
    lock.l_type = Int16(F_WRLCK)
    lock.l_whence = Int16(SEEK_SET)
    lock.l_start = start
    lock.l_len = count
    try #require(fcntl(file, 36, &lock) == 0)  // F_OFD_GETLK, which is not imported
    return lock.l_type == Int16(F_UNLCK) ? nil : (lock.l_start, lock.l_len)
  }

  func signsOfLife() throws -> [Sign] { try signs(Self.beats, Self.leases) }

  /// The kernel gives any one of them, so it is asked again on both sides of that.
  private func signs(_ start: Int, _ end: Int) throws -> [Sign] {
    guard start < end, let found = try first(from: start, count: end - start) else { return [] }
    let sign = Sign(number: (found.start - Self.beats) / Self.span, beats: found.count - 1)
    return try signs(start, found.start) + [sign] + signs(found.start + Self.span, end)
  }
}
