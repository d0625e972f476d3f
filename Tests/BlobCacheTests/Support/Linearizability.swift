/// Whether what was seen of one key could have been seen of one that is changed and read at single moments, each between
/// the begin and the return of its operation.
///
/// The search of Wing and Gong (1993) in the form of Lowe (2017): operations are taken one after another in an order that
/// their times allow; where none can follow, the last one is taken back. States that were met before, which operations
/// were taken and what the key then held, are not entered again. Linearizability is local (Herlihy and Wing 1990), so
/// each key is looked at alone.
struct KeyHistory {
  enum Kind { case write, read }

  struct Operation {
    var kind: Kind
    /// Written or found; 0: nothing.
    var value: UInt64
    var began: UInt64
    /// Nil: it never returned. A write may then have happened at any later moment, or never.
    var returned: UInt64?
  }

  let operations: [Operation]

  /// Reads that never returned tell nothing.
  init(_ operations: [Operation]) {
    self.operations = operations.filter { $0.kind == .write || $0.returned != nil }
  }

  // MARK: The search

  /// An event: the begin of an operation or its return. `partner`: of a begin, the place of its return.
  private struct Event {
    var operation: Int
    var isBegin: Bool
    var partner = -1
    var next = -1
    var previous = -1
  }

  private struct Met: Hashable {
    var taken: [UInt64]
    var value: UInt64
  }

  var isLinearizable: Bool {
    var list = EventList(operations)
    var taken = [UInt64](repeating: 0, count: (operations.count + 63) / 64)
    var left = operations.count { $0.returned != nil }
    var value: UInt64 = 0
    var met: Set<Met> = []
    var stack: [(event: Int, value: UInt64)] = []
    var at = list.first
    while left > 0 {
      let event = list[at]
      guard event.isBegin else {
        // Its operation should have been taken before it returned: one before it was taken too early.
        guard let last = stack.popLast() else { return false }
        let operation = list[last.event].operation
        value = last.value
        taken[operation / 64] &= ~(1 << UInt64(operation % 64))
        if operations[operation].returned != nil { left += 1 }
        list.putBack(last.event)
        at = list[last.event].next
        continue
      }
      let operation = operations[event.operation]
      let after = operation.value
      let mayBeNext = operation.kind == .write || operation.value == value
      var tried = taken
      tried[event.operation / 64] |= 1 << UInt64(event.operation % 64)
      if mayBeNext, met.insert(Met(taken: tried, value: after)).inserted {
        stack.append((at, value))
        (taken, value) = (tried, after)
        if operation.returned != nil { left -= 1 }
        list.take(at)
        at = list.first
      } else {
        at = event.next
      }
      // Behind the last return there are only writes that never returned: they need not be taken.
      if at < 0 && left > 0 { preconditionFailure("a return is missing") }
    }
    return true
  }

  /// Begins and returns in the order of time, linked; at one moment begins come first, which allows more.
  private struct EventList {
    private var events: [Event] = []
    private(set) var first = -1

    subscript(_ index: Int) -> Event { events[index] }

    init(_ operations: [Operation]) {
      var order: [(time: UInt64, isReturn: Int, operation: Int)] = []
      for (index, operation) in operations.enumerated() {
        order.append((operation.began, 0, index))
        if let returned = operation.returned { order.append((returned, 1, index)) }
      }
      order.sort { ($0.time, $0.isReturn) < ($1.time, $1.isReturn) }
      var begins: [Int: Int] = [:]
      for (index, item) in order.enumerated() {
        events.append(Event(operation: item.operation, isBegin: item.isReturn == 0))
        if item.isReturn == 0 {
          begins[item.operation] = index
        } else if let begin = begins[item.operation] {
          events[begin].partner = index
        }
        events[index].previous = index - 1
        events[index].next = index + 1 < order.count ? index + 1 : -1
      }
      first = order.isEmpty ? -1 : 0
    }

    private mutating func unlink(_ index: Int) {
      let (previous, next) = (events[index].previous, events[index].next)
      if previous >= 0 { events[previous].next = next } else { first = next }
      if next >= 0 { events[next].previous = previous }
    }

    private mutating func link(_ index: Int) {
      let (previous, next) = (events[index].previous, events[index].next)
      if previous >= 0 { events[previous].next = index } else { first = index }
      if next >= 0 { events[next].previous = index }
    }

    mutating func take(_ begin: Int) {
      unlink(begin)
      if events[begin].partner >= 0 { unlink(events[begin].partner) }
    }

    /// In the reverse order of `take`.
    mutating func putBack(_ begin: Int) {
      if events[begin].partner >= 0 { link(events[begin].partner) }
      link(begin)
    }
  }
}
