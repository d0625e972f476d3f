// How many loaders run at once, as a value.
//
// A flight *boards* before it runs its loader: it gets a permit, or stands in the line. It gives the
// permit back when it ends.
//
// ## Why a loader that waits lends its permit
//
// A loader may fetch other keys. With one permit, A's loader would hold it and wait for B, which stands
// in the line for it: for ever. Exempting B would let a loader that fetches a hundred keys run a hundred
// loaders. So a loader that waits for another flight lends its permit meanwhile, and asks for it back
// before it goes on, ahead of the line. Whoever holds a permit therefore waits for no flight (1), so
// it comes to its end by itself, and then the next one has its turn.
//
// ## Invariants
//
//  1. A flight that waits for another holds no permit.
//  2. At most `maximum` flights hold one.
//  3. Nobody stands in the line while a permit is free.
//  4. Who returns goes before who is new; otherwise first come, first served.

/// See the head of this file.
struct LoadPermits: Sendable {
  let maximum: Int?
  private(set) var holders: Set<FlightID> = []
  /// For how many flights the loader of one waits: it may have several tasks.
  private var waits: [FlightID: Int] = [:]
  private var returning = Line()
  private var line = Line()

  init(maximum: Int? = nil) { self.maximum = maximum }

  var lineCount: Int { returning.count + line.count }

  /// Asks for a permit before the loader runs. False: it stands in the line.
  mutating func board(_ flight: FlightID) -> Bool {
    if hasRoom {
      hold(flight)
      return true
    }
    line.append(flight)
    return false
  }

  /// The flight's loader begins to wait for another flight. Gives those that get a permit by it.
  mutating func lend(_ flight: FlightID) -> [FlightID] {
    guard maximum != nil else { return [] }
    waits[flight, default: 0] += 1
    holders.remove(flight)
    return admit()
  }

  /// The flight's loader has what it waited for. False: it stands in the line to go on.
  mutating func regain(_ flight: FlightID) -> Bool {
    guard let count = waits[flight] else { return true }
    waits[flight] = count > 1 ? count - 1 : nil
    // With another of its tasks still waiting, it can hold none (1).
    if count > 1 || holders.contains(flight) { return true }
    if hasRoom {
      hold(flight)
      return true
    }
    returning.append(flight)
    return false
  }

  /// The flight is cancelled. True: it stood in the line, and does no more.
  mutating func leaveLine(_ flight: FlightID) -> Bool {
    let wasNew = line.remove(flight)
    return returning.remove(flight) || wasNew
  }

  /// The flight has ended. Gives those that get a permit by it.
  mutating func end(_ flight: FlightID) -> [FlightID] {
    guard maximum != nil else { return [] }
    holders.remove(flight)
    waits[flight] = nil
    _ = leaveLine(flight)
    return admit()
  }

  private var hasRoom: Bool { maximum.map { holders.count < $0 } ?? true }

  private mutating func hold(_ flight: FlightID) {
    if maximum != nil { holders.insert(flight) }
  }

  private mutating func admit() -> [FlightID] {
    var admitted: [FlightID] = []
    while hasRoom, let next = returning.popFirst() ?? line.popFirst() {
      // One of its tasks goes on while another has begun to wait anew: it holds none then (1).
      if waits[next] == nil { hold(next) }
      admitted.append(next)
    }
    return admitted
  }
}

extension LoadPermits {
  /// First in, first out, each at most once, and quick to leave from the middle.
  private struct Line: Sendable {
    /// Those who stand here, with the numbers of their places.
    private var places: [FlightID: UInt64] = [:]
    /// The line; places that were left are still in it.
    private var order: [(flight: FlightID, place: UInt64)] = []
    private var head = 0
    private var last: UInt64 = 0

    var count: Int { places.count }

    mutating func append(_ flight: FlightID) {
      if places[flight] != nil { return }
      last += 1
      places[flight] = last
      order.append((flight, last))
      // Places that were left are swept away when they are more than the others.
      guard order.count > 2 * places.count + 64 else { return }
      order = order[head...].filter { places[$0.flight] == $0.place }
      head = 0
    }

    mutating func remove(_ flight: FlightID) -> Bool { places.removeValue(forKey: flight) != nil }

    mutating func popFirst() -> FlightID? {
      while head < order.count {
        let first = order[head]
        head += 1
        if places[first.flight] == first.place {
          places[first.flight] = nil
          return first.flight
        }
      }
      order.removeAll()
      head = 0
      return nil
    }
  }
}
