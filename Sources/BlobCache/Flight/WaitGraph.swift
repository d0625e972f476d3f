internal import Synchronization

/// Who waits for whom, over all stores of the process.
///
/// The loader of one key may fetch another. When it so waits, directly or through others, for a
/// flight that waits for it, none of them would ever end. Every such wait is an edge here, and the
/// edge that would close a ring is refused: the one call that asks for it gets an error, the others
/// go on.
///
/// Who is calling is known by a task-local, ``caller``, set in the task of each loader and
/// inherited by everything it spawns. That alone would not do: two loaders that ask for each
/// other's key carry different ones, and each looks innocent by itself. Calls from outside of
/// loaders make no edge, since nothing waits for them; so the lock below is touched by nested
/// fetches alone.
struct WaitGraph {
  /// A multiset: the child tasks of one loader may wait for the same flight several times.
  private var edges: [FlightID: [FlightID: Int]] = [:]

  /// The one graph of this process. Locked after a table's lock, never before one.
  static let shared = Mutex(WaitGraph())

  /// A loader, as what it spawns knows it.
  struct Caller: Sendable {
    let flight: FlightID
    /// Where its permit comes from, if loads are limited there.
    let permits: (any PermitLender)?
  }

  /// The loader on whose behalf the current task runs, if it is a loader's.
  @TaskLocal static var caller: Caller?

  /// Its flight.
  static var currentFlight: FlightID? { caller?.flight }

  var isEmpty: Bool { edges.isEmpty }

  /// Notes that `waiting` waits for `target`, unless that would close a ring. Returns whether it
  /// was noted.
  mutating func add(_ waiting: FlightID, waitsFor target: FlightID) -> Bool {
    if reaches(target, waiting) { return false }
    edges[waiting, default: [:]][target, default: 0] += 1
    return true
  }

  /// Takes back one ``add(_:waitsFor:)``.
  mutating func remove(_ waiting: FlightID, waitsFor target: FlightID) {
    guard var targets = edges[waiting], let count = targets[target] else { return }
    targets[target] = count > 1 ? count - 1 : nil
    edges[waiting] = targets.isEmpty ? nil : targets
  }

  /// Whether a loader waits for it. Looks at every edge: for those who poll, not for each call.
  static func isAwaited(_ flight: FlightID) -> Bool {
    shared.withLock { graph in graph.edges.values.contains { $0[flight] != nil } }
  }

  /// Whether `start` is `goal` or waits for it, directly or through others.
  func reaches(_ start: FlightID, _ goal: FlightID) -> Bool {
    if start == goal { return true }
    var seen: Set<FlightID> = [start]
    var pending = [start]
    while let next = pending.popLast() {
      for target in edges[next, default: [:]].keys where seen.insert(target).inserted {
        if target == goal { return true }
        pending.append(target)
      }
    }
    return false
  }
}
