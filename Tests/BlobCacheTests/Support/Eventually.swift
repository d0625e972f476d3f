/// Polls for what another process or a thread of the cache brings about, half a minute at most.
func eventually(_ what: String, _ condition: () async throws -> Bool) async throws {
  let end = ContinuousClock.now + .seconds(30)
  while try await !condition() {
    guard ContinuousClock.now < end else { throw NeverHappened(description: what) }
    try await Task.sleep(for: .milliseconds(1))
  }
}

struct NeverHappened: Error, CustomStringConvertible {
  var description: String
}
