/// What happened; a worker prints it as a line of JSON now and then, the parent adds the workers' up.
struct Tally: Codable {
  var requests = 0
  var latency: [Kind: Histogram] = [:]
  /// Loads that found a copy past its lifetime.
  var expired = 0
  var bytesServed = 0
  /// Blobs whose SHA-256 was compared with their file's.
  var verified = 0
  /// Served, but the store refused the bytes.
  var notStored = 0
  /// Most resident memory of one process, in KiB.
  var residentKiB = 0

  // Any of these fails the run.
  var wrongBytes = 0
  var duplicateLoads = 0
  var errors = 0
  /// The first few, in words.
  var complaints: [String] = []

  /// How a request was answered.
  enum Kind: String, Codable, CodingKeyRepresentable, CaseIterable {
    case memory = "memory hit"
    case index = "index hit"
    case file = "file hit"
    case load
    /// Waited for somebody else's load.
    case join
  }

  var failed: Bool { wrongBytes + duplicateLoads + errors > 0 }
  var hits: Int { count(.memory) + count(.index) + count(.file) }
  func count(_ kind: Kind) -> Int { latency[kind]?.total ?? 0 }

  mutating func add(_ other: Tally) {
    requests += other.requests
    for (kind, histogram) in other.latency { latency[kind, default: Histogram()].add(histogram) }
    expired += other.expired
    bytesServed += other.bytesServed
    verified += other.verified
    notStored += other.notStored
    residentKiB = max(residentKiB, other.residentKiB)
    wrongBytes += other.wrongBytes
    duplicateLoads += other.duplicateLoads
    errors += other.errors
    for text in other.complaints { complain(text) }
  }

  mutating func complain(_ text: String) {
    if complaints.count < 5 { complaints.append(text) }
  }
}
