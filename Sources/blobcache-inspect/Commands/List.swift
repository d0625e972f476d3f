internal import BlobCache

extension ListCommand {
  func run(_ output: Output) async throws -> ExitStatus {
    try await target.reading { cache, _ in
      let now = currentMilliseconds()
      // A whole key where a program may read it; on a terminal, lines that do not wrap.
      let width = target.json ? nil : terminalWidth(1)
      if !target.json { try output.line(Row.header) }
      let entries = cache.entries(withPrefix: prefix, tag: tag)
      if let order = sort.map({ Order(sort: $0, reverse: reverse) }) {
        var top = Top(limit: limit, order: order)
        for try await entry in entries where accepts(entry) { top.insert(entry) }
        for entry in top.sorted() { try write(entry, now: now, width: width, to: output) }
      } else {
        var left = limit ?? .max
        for try await entry in entries where accepts(entry) {
          try write(entry, now: now, width: width, to: output)
          left -= 1
          if left == 0 { break }
        }
      }
      return .fine
    }
  }

  private func accepts(_ entry: BlobCache.Entry) -> Bool {
    (!expiredOnly || entry.isExpired) && (!pinnedOnly || entry.isPinned)
  }

  private func write(
    _ entry: BlobCache.Entry, now: Int64, width: Int?, to output: Output
  ) throws {
    if target.json {
      try output.line(entry.json)
    } else {
      try output.line(Row.text(entry, now: now, width: width))
    }
  }
}

/// The columns have fixed widths, so that the first line need not wait for the last; the key comes last.
enum Row {
  static let header = columns("SIZE", "READS", "STORED", "EXPIRES", "PIN", "KEY")

  /// With the key shortened in its middle where the line would be longer than `width`; nil: never.
  static func text(_ entry: BlobCache.Entry, now: Int64, width: Int? = nil) -> String {
    let front = columns(
      formatted(bytes: entry.size), formatted(hits: entry.hits),
      relative(entry.storedAt.milliseconds, now: now), entry.expiry(now: now),
      entry.isPinned ? "pin" : "", "")
    let key = readable(entry.key)
    return front + (width.map { shortened(key, to: max(20, $0 - front.count)) } ?? key)
  }

  private static func columns(
    _ size: String, _ reads: String, _ stored: String, _ expires: String, _ pin: String,
    _ key: String
  ) -> String {
    let columns = [
      padLeft(size, 10), padLeft(reads, 5), padLeft(stored, 11), padLeft(expires, 11),
      padLeft(pin, 3), key,
    ]
    return columns.joined(separator: "  ")
  }
}

/// Which entry comes first: the largest, the oldest, the most read, the next to expire; by key where they are equal.
struct Order {
  let sort: ListCommand.Sort
  let reverse: Bool

  func precedes(_ left: BlobCache.Entry, _ right: BlobCache.Entry) -> Bool {
    let (a, b) = (rank(left), rank(right))
    if a != b { return reverse ? a > b : a < b }
    return left.key.bytes.lexicographicallyPrecedes(right.key.bytes)
  }

  private func rank(_ entry: BlobCache.Entry) -> Int64 {
    switch sort {
    case .size: -Int64(entry.size)
    case .age: entry.storedAt.milliseconds
    case .hits: -Int64(entry.hits)
    case .expiry: entry.expiresAt?.milliseconds ?? .max
    }
  }
}

/// Keeps the first `limit` entries of an order, and no more than those: a binary heap with the last of them on top.
struct Top {
  let limit: Int?
  let order: Order
  private var heap: [BlobCache.Entry] = []

  init(limit: Int?, order: Order) {
    self.limit = limit
    self.order = order
  }

  mutating func insert(_ entry: BlobCache.Entry) {
    guard let limit else {
      heap.append(entry)
      return
    }
    if heap.count < limit {
      heap.append(entry)
      siftUp()
    } else if let last = heap.first, order.precedes(entry, last) {
      heap[0] = entry
      siftDown()
    }
  }

  func sorted() -> [BlobCache.Entry] { heap.sorted(by: order.precedes) }

  private mutating func siftUp() {
    var child = heap.count - 1
    while child > 0 {
      let parent = (child - 1) / 2
      guard order.precedes(heap[parent], heap[child]) else { return }
      heap.swapAt(parent, child)
      child = parent
    }
  }

  private mutating func siftDown() {
    var parent = 0
    while true {
      var latest = parent
      for child in [2 * parent + 1, 2 * parent + 2] where child < heap.count {
        if order.precedes(heap[latest], heap[child]) { latest = child }
      }
      if latest == parent { return }
      heap.swapAt(parent, latest)
      parent = latest
    }
  }
}
