/// S3-FIFO: new keys pass a small queue (a tenth of the cache); those asked for more than once there go on to the main
/// queue, the others leave their names in a ghost queue, from which a key that returns goes to the main queue at once.
///
/// J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak: *FIFO queues are all you need for cache eviction*, SOSP 2023,
/// algorithm 1. As in the authors' libCacheSim, sizes count where the paper counts objects, and a key leaves the ghost
/// queue when it is stored again.
struct S3FIFO: Contender {
  private let capacity: Int
  private var small: Queue
  private var main: Queue
  private var ghost: Queue
  /// Hits since insertion, at most 3.
  private var frequency: [UInt8]

  init(sizes: [Int], capacity: Int) {
    self.capacity = capacity
    small = Queue(sizes: sizes)
    main = small
    ghost = small
    frequency = Array(repeating: 0, count: sizes.count)
  }

  var used: Int { small.used + main.used }
  private var smallCapacity: Int { max(1, capacity / 10) }
  private var mainCapacity: Int { capacity - smallCapacity }

  mutating func request(_ key: Int) -> Bool {
    if small.contains(key) || main.contains(key) {
      frequency[key] = min(frequency[key] + 1, 3)
      return true
    }
    let size = small.sizes[key]
    guard size <= capacity else { return false }
    let returns = ghost.contains(key)
    while used + size > capacity {
      if small.used >= smallCapacity || main.isEmpty { evictFromSmall() } else { evictFromMain() }
    }
    frequency[key] = 0
    if returns {
      if ghost.contains(key) { ghost.remove(key) }
      main.insert(key)
    } else {
      small.insert(key)
    }
    return false
  }

  /// Moves keys on to the main queue until one is evicted.
  private mutating func evictFromSmall() {
    while let key = small.removeOldest() {
      guard frequency[key] > 1 else {
        ghost.insert(key)
        while ghost.used > mainCapacity { _ = ghost.removeOldest() }
        return
      }
      while main.used + main.sizes[key] > mainCapacity, !main.isEmpty { evictFromMain() }
      frequency[key] = 0
      main.insert(key)
    }
  }

  private mutating func evictFromMain() {
    while let key = main.removeOldest() {
      guard frequency[key] > 0 else { return }
      frequency[key] -= 1
      main.insert(key)
    }
  }
}
