/// One load among all processes of a directory: see lease.c and ``LeaseWatch``.
extension FlightWork {
  enum Admission {
    case taken(Lease)
    case found(BlobCache.Blob)
    case none
  }

  /// Takes the key's lease, and waits until it is free or has become needless.
  ///
  /// The flight has its permit: a lease that is held while one stands in that line would keep other
  /// processes from a load that nobody makes. While it waits here, others have the permit.
  func lease(
    _ ticket: FlightTicket<BlobCache.Blob>, patience: Duration
  ) async throws -> Admission {
    var watch = LeaseWatch(patience: patience)
    switch store.leases.take(key, level: watch.level) {
    case .taken(let lease): return .taken(lease)
    case .unavailable: return .none
    // It never joins what began before it.
    case .held: if mode == .reload { return .none }
    }
    ticket.lend()
    let admission = try await waitForLease(ticket, &watch)
    if case .found = admission { return admission }
    try await ticket.regain()
    return admission
  }

  private func waitForLease(
    _ ticket: FlightTicket<BlobCache.Blob>, _ watch: inout LeaseWatch
  ) async throws -> Admission {
    var lastLook = SuspendingClock.now
    while true {
      switch store.leases.take(key, level: watch.level) {
      case .taken(let lease): return .taken(lease)
      case .unavailable: return .none
      case .held(let holder):
        let now = SuspendingClock.now
        let decision = watch.see(
          holder, after: now - lastLook, isNested: WaitGraph.isAwaited(ticket.flight))
        lastLook = now
        if decision == .passBy { continue }
        if decision == .goOn { return .none }
      }
      try await Task.sleep(for: watch.pause(chance: .random(in: 0..<1)))
      // First at the metadata: the old copy of a large blob is not read and hashed ten times a second.
      if let entry = try store.entry(of: key),
        suffices(entry.generation, isExpired: entry.isExpired),
        let previous = try await store.peek(key), suffices(previous)
      {
        return .found(try accessed(previous))
      }
    }
  }

  /// What others have stored while this process stood still: it is newer than what was loaded here, so
  /// that is not stored over it.
  func overtaking(
    _ lease: Lease?, _ outcome: BlobCache.Outcome, previous: BlobCache.Blob?
  ) async throws -> BlobCache.Blob? {
    guard let lease, let leaseTime, outcome.form == .complete,
      lease.mayBeOvertaken(after: leaseTime), let there = try await store.peek(key),
      there.storage.header.expiredFor < 0,
      there.storage.generation != previous?.storage.generation
    else { return nil }
    return there
  }
}
