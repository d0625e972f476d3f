/// Small traces whose results were worked out by hand from the papers, and what must hold on any trace.
enum SelfCheck {
  private struct Example {
    let policy: String
    let capacity: Int
    let keys: String
    /// A letter a request: `h` hit, `m` miss.
    let results: String
  }

  private static let examples = [
    Example(policy: "LRU", capacity: 2, keys: "ABACAB", results: "mmhmhm"),
    Example(policy: "LRU", capacity: 3, keys: "ABACDEFA", results: "mmhmmmmm"),
    // The hand spares A once, and is past it when C, D and E come.
    Example(policy: "SIEVE", capacity: 3, keys: "ABACDEFA", results: "mmhmmmmh"),
    // A goes on to the main queue; B and C return from the ghosts into it; F makes main evict B, which is not a ghost.
    Example(
      policy: "S3-FIFO", capacity: 4, keys: "ABCDAAEBACFFFGACB", results: "mmmmhhmmhmmhhmhhm"),
    // Window of one, main of three: D is refused at its first request, and replaces A after its third.
    Example(policy: "W-TinyLFU", capacity: 4, keys: "ABCDEDDFDABC", results: "mmmmmmhmhmhh"),
  ]

  static func run() async throws {
    for example in examples { try await check(example) }
    for sized in [false, true] {
      let trace = Trace.synthetic(requests: 5_000, sized: sized)
      for kind in Kind.policies {
        for percent in [0.1, 1, 10] { try await checkBound(kind, trace, percent: percent) }
      }
    }
    try checkParser()
  }

  private static func check(_ example: Example) async throws {
    var trace = Trace(name: example.keys)
    for letter in example.keys.utf8 { trace.append(key: UInt64(letter), size: 1) }
    for kind in Kind.policies where kind.name == example.policy {
      var cache = try await kind.make(trace, example.capacity)
      var results = ""
      for key in trace.requests { results += try await cache.request(Int(key)) ? "h" : "m" }
      guard results == example.results else {
        throw Failure(
          "\(kind.name) of \(example.capacity) on \(example.keys): \(results), "
            + "not \(example.results)")
      }
    }
  }

  /// Never more than the capacity, and a key that was a hit is there.
  private static func checkBound(_ kind: Kind, _ trace: Trace, percent: Double) async throws {
    let capacity = trace.capacity(percent: percent)
    var cache = try await kind.make(trace, capacity)
    var hits = 0
    for key in trace.requests {
      if try await cache.request(Int(key)) { hits += 1 }
      guard cache.used <= capacity else {
        throw Failure("\(kind.name) holds \(cache.used) of \(capacity) on \(trace.name)")
      }
    }
    guard hits <= trace.requests.count - trace.sizes.count else {
      throw Failure("\(kind.name): more hits than repeated requests on \(trace.name)")
    }
  }

  private static func checkParser() throws {
    let trace = try TraceFile.parse(Array("7 100\n9\t3\r\n\n7 5\n".utf8), name: "good")
    guard trace.requests == [0, 1, 0], trace.sizes == [100, 3], trace.footprint == 103 else {
      throw Failure("a good trace was read wrongly")
    }
    for text in ["", "a 1", "1 0", "1 2 3", "-1 1", "99999999999999999999 1"] {
      // Refusal is what is checked, whatever its words.
      if (try? TraceFile.parse(Array(text.utf8), name: "bad")) != nil {
        throw Failure("a bad trace was read: \(text)")
      }
    }
  }
}
