internal import Synchronization

#if canImport(Glibc)
  internal import Glibc
#elseif canImport(Musl)
  internal import Musl
#else
  internal import Darwin
#endif

/// Lets calls into a store until it closes, and then waits until all have left.
///
/// Every lookup passes, so the count of those inside is spread over lines of the processor's cache
/// by thread: two threads that count on the same line would cost each other more than a lookup's
/// own work.
final class Gate: Sendable {
  private struct Line: ~Copyable, Sendable {
    let count = Atomic<Int>(0)
    // 128 bytes, since processors fetch lines in pairs.
    private let padding: InlineArray<15, Int> = InlineArray(repeating: 0)
  }

  private static let lines = 16
  private let inside = InlineArray<16, Line> { _ in Line() }
  private let closed = Atomic<Bool>(false)

  /// The line that a call counted on; give it back to `leave`.
  typealias Token = Int

  /// False when the gate is closed.
  var isOpen: Bool { !closed.load(ordering: .relaxed) }

  /// Nil when the gate is closed.
  @inline(__always)
  func enter() -> Token? {
    // Thread descriptors are far apart and aligned, so the product's high bits differ by thread.
    #if canImport(Darwin)
      let thread = unsafe UInt(bitPattern: pthread_self())
    #else
      let thread = UInt(pthread_self())
    #endif
    let token = Int((thread &* 0x9E37_79B9_7F4A_7C15) >> 60)
    // Sequentially consistent on both sides: either the closer sees this count, or this sees
    // closed.
    inside[token].count.wrappingAdd(1, ordering: .sequentiallyConsistent)
    if closed.load(ordering: .sequentiallyConsistent) {
      leave(token)
      return nil
    }
    return token
  }

  @inline(__always)
  func leave(_ token: Token) {
    inside[token].count.wrappingSubtract(1, ordering: .releasing)
  }

  /// Lets nobody in any more.
  func close() { closed.store(true, ordering: .sequentiallyConsistent) }

  /// Blocks until all have left. Calls are short or bounded by the disk, so looking every 100 µs is
  /// enough.
  func waitUntilEmpty() {
    while true {
      var sum = 0
      for index in 0..<Self.lines {
        sum += inside[index].count.load(ordering: .sequentiallyConsistent)
      }
      if sum == 0 { return }
      usleep(100)
    }
  }
}
