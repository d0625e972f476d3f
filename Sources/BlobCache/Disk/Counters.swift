internal import Synchronization

/// A number that any thread may raise.
struct Counter: ~Copyable, Sendable {
  private let value = Atomic<Int>(0)

  var count: Int { value.load(ordering: .relaxed) }

  func add(_ amount: Int = 1) { value.wrappingAdd(amount, ordering: .relaxed) }
}

/// What a store counts off the path of a hit (hits and misses are counted in C).
final class StoreCounters: Sendable {
  let failedLoads = Counter()
  let staleHits = Counter()
  let stores = Counter()
  let failedStores = Counter()
  let removals = Counter()
  let damaged = Counter()
  let failedLookups = Counter()
}
