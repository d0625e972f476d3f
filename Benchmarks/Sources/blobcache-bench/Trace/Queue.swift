/// A doubly linked list of keys, from the newest to the oldest; each key is in it at most once.
struct Queue {
  private static let none: Int32 = -1
  private static let absent: Int32 = -2

  let sizes: [Int]
  /// The sizes of what is in it, summed.
  private(set) var used = 0
  private var newerThan: [Int32]
  private var olderThan: [Int32]
  private var first = none
  private var last = none

  init(sizes: [Int]) {
    self.sizes = sizes
    newerThan = Array(repeating: Self.absent, count: sizes.count)
    olderThan = newerThan
  }

  var oldest: Int? { last == Self.none ? nil : Int(last) }
  var isEmpty: Bool { last == Self.none }

  func contains(_ key: Int) -> Bool { newerThan[key] != Self.absent }

  func newer(than key: Int) -> Int? {
    newerThan[key] == Self.none ? nil : Int(newerThan[key])
  }

  /// Puts a key that is not in it at the newest end.
  mutating func insert(_ key: Int) {
    newerThan[key] = Self.none
    olderThan[key] = first
    if first == Self.none { last = Int32(key) } else { newerThan[Int(first)] = Int32(key) }
    first = Int32(key)
    used += sizes[key]
  }

  mutating func remove(_ key: Int) {
    let (newer, older) = (newerThan[key], olderThan[key])
    if newer == Self.none { first = older } else { olderThan[Int(newer)] = older }
    if older == Self.none { last = newer } else { newerThan[Int(older)] = newer }
    newerThan[key] = Self.absent
    used -= sizes[key]
  }

  mutating func removeOldest() -> Int? {
    guard let key = oldest else { return nil }
    remove(key)
    return key
  }

  /// Makes a key that is in it the newest.
  mutating func renew(_ key: Int) {
    guard first != Int32(key) else { return }
    remove(key)
    insert(key)
  }
}
