/// W-TinyLFU: new keys pass a small LRU window; what leaves it gets into the main cache (segmented LRU) only if it was
/// asked for more often, by an approximate count that ages, than what the main cache would evict for it.
///
/// G. Einziger, R. Friedman, B. Manes: *TinyLFU: A Highly Efficient Cache Admission Policy*, ACM Transactions on Storage
/// 13(4), 2017: window 1 %, protected segment 80 % of the rest (section 4), counts halved after a sample (section 3.3).
/// The paper's objects have one size; with sizes, a candidate must win against each victim in turn, as in Caffeine, the
/// authors' implementation. Without the paper's optional doorkeeper, like Caffeine.
struct WTinyLFU: Contender {
  private let windowCapacity: Int
  private let mainCapacity: Int
  private var window: Queue
  private var probation: Queue
  private var protected: Queue
  private var sketch: FrequencySketch

  init(sizes: [Int], capacity: Int) {
    windowCapacity = max(1, capacity / 100)
    mainCapacity = capacity - windowCapacity
    window = Queue(sizes: sizes)
    probation = window
    protected = window
    let meanSize = Double(sizes.reduce(0, +)) / Double(max(sizes.count, 1))
    sketch = FrequencySketch(entries: max(1, Int(Double(capacity) / meanSize)))
  }

  var used: Int { window.used + probation.used + protected.used }

  mutating func request(_ key: Int) -> Bool {
    sketch.add(key)
    if window.contains(key) {
      window.renew(key)
      return true
    }
    if protected.contains(key) {
      protected.renew(key)
      return true
    }
    if probation.contains(key) {
      promote(key)
      return true
    }
    guard window.sizes[key] <= windowCapacity else {
      admit(key)
      return false
    }
    window.insert(key)
    while window.used > windowCapacity, let candidate = window.removeOldest() { admit(candidate) }
    return false
  }

  private mutating func promote(_ key: Int) {
    probation.remove(key)
    protected.insert(key)
    while protected.used > mainCapacity * 8 / 10, let key = protected.removeOldest() {
      probation.insert(key)
    }
  }

  private mutating func admit(_ candidate: Int) {
    let size = window.sizes[candidate]
    guard size <= mainCapacity else { return }
    while probation.used + protected.used + size > mainCapacity {
      guard let victim = probation.oldest ?? protected.oldest,
        sketch.count(candidate) > sketch.count(victim)
      else { return }
      if probation.contains(victim) { probation.remove(victim) } else { protected.remove(victim) }
    }
    probation.insert(candidate)
  }
}

/// A count-min sketch: four rows of at least four counters an entry, which go up to 15; all are halved after ten
/// additions an entry (Caffeine's sizes).
private struct FrequencySketch {
  private let width: Int
  private let sample: Int
  private var additions = 0
  private var rows: [[UInt8]]

  init(entries: Int) {
    var width = 16
    while width < 4 * entries { width *= 2 }
    self.width = width
    sample = 10 * entries
    rows = Array(repeating: Array(repeating: 0, count: width), count: 4)
  }

  func count(_ key: Int) -> UInt8 {
    var hashes = SeededGenerator(UInt64(key))
    var least: UInt8 = 15
    for row in rows.indices { least = min(least, rows[row][place(hashes.next())]) }
    return least
  }

  mutating func add(_ key: Int) {
    var hashes = SeededGenerator(UInt64(key))
    for row in rows.indices {
      let place = place(hashes.next())
      rows[row][place] = min(rows[row][place] + 1, 15)
    }
    additions += 1
    guard additions >= sample else { return }
    for row in rows.indices { for place in 0..<width { rows[row][place] /= 2 } }
    additions /= 2
  }

  private func place(_ hash: UInt64) -> Int { Int(hash >> 32) & (width - 1) }
}
