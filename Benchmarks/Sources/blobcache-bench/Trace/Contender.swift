/// A cache that a trace is replayed through.
protocol Contender {
  /// A request: looks the key up, and takes it in on a miss. Whether it was a hit.
  mutating func request(_ key: Int) async throws -> Bool

  /// What the cache holds now, in the unit of its capacity.
  var used: Int { get }

  /// The replay is over.
  mutating func finish() async throws
}

extension Contender {
  mutating func finish() {}
}

/// Makes a contender of some kind for a trace.
struct Kind: Sendable {
  let name: String
  /// Sizes by key, capacity in their unit.
  let make: @Sendable (_ trace: Trace, _ capacity: Int) async throws -> any Contender

  /// The policies of the literature, in memory.
  static let policies = [
    Kind(name: "LRU") { LRU(sizes: $0.sizes, capacity: $1) },
    Kind(name: "SIEVE") { Sieve(sizes: $0.sizes, capacity: $1) },
    Kind(name: "S3-FIFO") { S3FIFO(sizes: $0.sizes, capacity: $1) },
    Kind(name: "W-TinyLFU") { WTinyLFU(sizes: $0.sizes, capacity: $1) },
  ]
}

/// What came of one replay.
struct Outcome: Sendable {
  var requests = 0
  var requestedBytes = 0
  var hits = 0
  var hitBytes = 0

  var objectRatio: Double { Double(hits) / Double(max(requests, 1)) }
  var byteRatio: Double { Double(hitBytes) / Double(max(requestedBytes, 1)) }

  private mutating func count(size: Int, isHit: Bool) {
    requests += 1
    requestedBytes += size
    guard isHit else { return }
    hits += 1
    hitBytes += size
  }

  static func replaying(_ trace: Trace, through kind: Kind, capacity: Int) async throws -> Outcome {
    var cache = try await kind.make(trace, capacity)
    var outcome = Outcome()
    do {
      for key in trace.requests {
        let isHit = try await cache.request(Int(key))
        outcome.count(size: trace.sizes[Int(key)], isHit: isHit)
      }
      guard cache.used <= capacity else {
        throw Failure("\(kind.name) holds \(cache.used) of \(capacity) on \(trace.name)")
      }
    } catch {
      try? await cache.finish()  // the first error is the one to tell
      throw error
    }
    try await cache.finish()
    return outcome
  }
}
