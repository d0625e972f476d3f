import BlobCache
import Foundation

extension Kind {
  /// The real store, in a folder of its own that is removed at the end.
  static let store = Kind(name: "BlobCache") { trace, capacity in
    try await StoreContender(trace, capacity: capacity)
  }
}

/// A trace through a directory on the disk, with lookups and stores as a service makes them. Its clock stands still but
/// for a millisecond with each request.
///
/// A trace without sizes runs against the store's own limit on entries. For one with sizes the policies' capacity is in
/// payload, while the store's limit on bytes counts what is allocated: pages and blocks, twice the payload for small
/// bodies. A comparison at equal allocation would measure that overhead and not the choice of victims. So the store runs
/// without a limit on bytes, and whenever a body does not fit into the *payload* that is left, it is trimmed by as many
/// allocated bytes as are missing, again until the body fits. A body's allocation is never below its size, so no step
/// evicts more than is needed, but for the last victim. The victims are the store's choice, by what they allocate.
private struct StoreContender: Contender {
  private let folder: String
  private let cache: BlobCache
  private let clock = BlobCache.ManualClock()
  private let trace: Trace
  private let capacity: Int

  init(_ trace: Trace, capacity: Int) async throws {
    self.trace = trace
    self.capacity = capacity
    folder = try makeFolder("trace")
    var configuration = BlobCache.Configuration()
    configuration.clock = clock.clock
    configuration.memory = .off
    configuration.limits = trace.isSized ? BlobCache.Limits.unlimited : .entries(capacity)
    do {
      cache = try await BlobCache.open(folder, configuration: configuration)
    } catch {
      removeFolder(folder)
      throw error
    }
  }

  var used: Int {
    let statistics = cache.statistics
    return trace.isSized ? statistics.indexBytes + statistics.blobBytes : statistics.entries
  }

  func request(_ number: Int) async throws -> Bool {
    clock.advance(by: .milliseconds(1))
    let size = trace.sizes[number]
    if let blob = try cache.blob(for: key(number)) {
      guard blob.count == size else { throw Failure("key \(number) has \(blob.count) bytes") }
      return true
    }
    guard size <= capacity else { return false }
    if trace.isSized { try await makeRoom(for: size) }
    try await cache.store(body(number, size), for: key(number))
    return false
  }

  private func makeRoom(for size: Int) async throws {
    var vain = 0
    while true {
      let missing = used + size - capacity
      guard missing > 0 else { return }
      let target = cache.statistics.usedBytes - missing
      // None: what the last store had reserved for staging was given back in between.
      if try await cache.trim(to: .bytes(target)) == 0 { vain += 1 }
      guard vain < 100 else { throw Failure("trims by \(missing) bytes evict nothing") }
    }
  }

  func finish() async throws {
    defer { removeFolder(folder) }
    try await cache.close()
  }
}
