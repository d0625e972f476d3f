/// Evicts what was not asked for the longest.
struct LRU: Contender {
  private let capacity: Int
  private var queue: Queue

  init(sizes: [Int], capacity: Int) {
    self.capacity = capacity
    queue = Queue(sizes: sizes)
  }

  var used: Int { queue.used }

  mutating func request(_ key: Int) -> Bool {
    if queue.contains(key) {
      queue.renew(key)
      return true
    }
    let size = queue.sizes[key]
    guard size <= capacity else { return false }
    while queue.used + size > capacity { _ = queue.removeOldest() }
    queue.insert(key)
    return false
  }
}
