/// SIEVE: one queue in order of insertion, one bit a key, and a hand that moves from the oldest to the newest, spares
/// each key that was asked for since it last came by, and evicts the first that was not.
///
/// Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi: *SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction
/// Algorithm for Web Caches*, NSDI 2024, algorithm 1. The paper's objects have one size; here as many are evicted as the
/// new one needs.
struct Sieve: Contender {
  private let capacity: Int
  private var queue: Queue
  private var visited: [Bool]
  private var hand: Int?

  init(sizes: [Int], capacity: Int) {
    self.capacity = capacity
    queue = Queue(sizes: sizes)
    visited = Array(repeating: false, count: sizes.count)
  }

  var used: Int { queue.used }

  mutating func request(_ key: Int) -> Bool {
    if queue.contains(key) {
      visited[key] = true
      return true
    }
    let size = queue.sizes[key]
    guard size <= capacity else { return false }
    while queue.used + size > capacity { evict() }
    queue.insert(key)
    visited[key] = false
    return false
  }

  private mutating func evict() {
    var place = hand ?? queue.oldest
    while let key = place, visited[key] {
      visited[key] = false
      place = queue.newer(than: key) ?? queue.oldest
    }
    guard let victim = place else { return }
    hand = queue.newer(than: victim)
    queue.remove(victim)
  }
}
