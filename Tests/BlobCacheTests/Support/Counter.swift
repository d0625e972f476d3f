import Synchronization

/// Counts calls of a loader from any task.
final class Counter: Sendable {
  private let count = Atomic(0)
  var value: Int { count.load(ordering: .sequentiallyConsistent) }
  func increment() { count.add(1, ordering: .sequentiallyConsistent) }
}

/// Collects what several tasks bring.
final class Collected<Element: Sendable>: Sendable {
  private let list = Mutex<[Element]>([])
  var elements: [Element] { list.withLock { $0 } }
  func append(_ element: Element) { list.withLock { $0.append(element) } }
}
