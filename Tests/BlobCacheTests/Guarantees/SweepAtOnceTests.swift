import Foundation
import Glibc
import Testing

@testable import BlobCache

/// A sweep that somebody asks for runs beside services that sweep in the background.
@Suite(.timeLimit(.minutes(3))) struct SweepAtOnceTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  private func open(_ interval: Duration? = nil) throws -> BlobCache {
    var configuration = BlobCache.Configuration()
    configuration.sweepInterval = interval
    configuration.defaultStaleWindow = .zero
    return try BlobCache(directory: path, configuration: configuration)
  }

  /// Byte 5 of LOCK, as another process sees and takes it.
  private final class SweepLock {
    private let file: CInt

    init(of cache: String) throws {
      file = Glibc.open("\(cache)/LOCK", O_RDWR | O_CLOEXEC)
      try #require(file >= 0)
    }

    deinit { close(file) }

    private func control(_ command: CInt, _ type: CInt) -> (result: CInt, lock: flock) {
      var lock = flock()
      lock.l_type = Int16(type)
      lock.l_whence = Int16(SEEK_SET)
      (lock.l_start, lock.l_len) = (5, 1)
      return (fcntl(file, command, &lock), lock)
    }

    var isHeldByOther: Bool { control(36, F_WRLCK).lock.l_type != Int16(F_UNLCK) }  // F_OFD_GETLK
    func take() { #expect(control(37, F_WRLCK).result == 0) }  // F_OFD_SETLK
    func give() { #expect(control(37, F_UNLCK).result == 0) }
  }

  /// 256 folders with a pause after each are five seconds at least.
  @Test func aSweepInTheBackgroundOfAnotherProcessMakesWay() async throws {
    let cache = try open()
    let other = try await SecondProcess.over(path, "sweep=1")
    let lock = try SweepLock(of: path)
    for round in 0..<3 {
      try await cache.store(
        [1], for: BlobCache.Key("\(round)"), lifetime: .expires(after: .milliseconds(1)))
      try await eventually("the other one sweeps") { lock.isHeldByOther }
      _ = try await cache.store.sweeper.sweep(cache.store, patience: .seconds(4)) {}
      #expect(cache.statistics.entries == 0)
    }
    try await other.end()
    try await cache.close()
    #expect(try await structureOf(path) == "ok")
  }

  @Test func aSweepInTheBackgroundOfThisProcessMakesWay() async throws {
    let cache = try open(.milliseconds(1))
    let lock = try SweepLock(of: path)
    for _ in 0..<3 {
      try await eventually("it sweeps") { lock.isHeldByOther }
      _ = try await cache.store.sweeper.sweep(cache.store, patience: .seconds(4)) {}
    }
    try await cache.close()
  }

  @Test func whoeverAsksForASweepGetsOne() async throws {
    let cache = try open()
    let sibling = try open()
    let other = try await SecondProcess.over(path, "sweep=1")
    try await withThrowingTaskGroup(of: Void.self) { group in
      for index in 0..<12 {
        group.addTask { try await (index.isMultiple(of: 2) ? cache : sibling).sweep() }
      }
      try await group.waitForAll()
    }
    try await other.end()
    let lock = try SweepLock(of: path)
    #expect(!lock.isHeldByOther)
    try await sibling.close()
    try await cache.close()
  }

  @Test func aSweepThatDoesNotEndIsAnErrorThatSaysSo() async throws {
    let cache = try open()
    let lock = try SweepLock(of: path)
    lock.take()
    let error = try await errorOf {
      _ = try await cache.store.sweeper.sweep(cache.store, patience: .milliseconds(30)) {}
    }
    #expect(error.code == .busy && error.path == cache.directory && error.operation == "sweep")
    #expect(error.message.hasPrefix("A sweep is running already"))
    let waiting = Task { try await cache.sweep() }
    lock.give()
    _ = try await waiting.value
    try await cache.close()
  }

  @Test func whoWaitsForASweepCanBeCancelledAndClosed() async throws {
    let cache = try open()
    let lock = try SweepLock(of: path)
    lock.take()
    let cancelled = Task { try await errorOf { try await cache.sweep() } }
    let closed = Task { try await errorOf { try await cache.sweep() } }
    cancelled.cancel()
    #expect(try await cancelled.value.code == .cancelled)
    try await cache.close()
    #expect(try await closed.value.code == .closed)
  }
}
