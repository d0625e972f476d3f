/// What the task of a flight holds: its name, and the question whether it may store.
struct FlightTicket<Value: Sendable>: Sendable {
  let flight: FlightID
  let table: FlightTable<Value>

  /// Asks whether the result may be stored, and if so waits until nothing older of the same key is
  /// being committed. Nil means yes. Ask once, right before the commit: from then on the flight
  /// can no longer be superseded, detached or cancelled.
  func barFromStoring() async -> FlightBar? {
    await table.barFromStoring(flight)
  }

  /// Waits for a permit, where loads are limited. Throws `CancellationError` when the flight was
  /// cancelled in the line. Ask once, before the loader.
  func board() async throws {
    guard await table.board(flight) else { throw CancellationError() }
  }

  /// Lets others have the permit while this flight waits for another process.
  func lend() { table.lend(flight) }

  /// Waits for the permit that was lent. Throws `CancellationError` when the flight was cancelled.
  func regain() async throws {
    await table.regain(flight)
    try Task.checkCancellation()
  }

  /// Ends the flight for its waiters and its key when this much time has gone by, unless the task that
  /// is returned is cancelled before. `report` is called if so.
  func limit(
    to span: Duration, _ report: @escaping @Sendable (BlobCache.Error) -> Void
  ) -> Task<Void, Never> {
    // Reckoned from here and not from when the task begins.
    let end = table.clock.reading + span.asWait
    return Task.detached { [table, flight] in
      // Thrown when the loader has ended in time.
      do { try await table.clock.sleep(until: end) } catch { return }
      if table.timeOut(flight) { report(.loadTimedOut) }
    }
  }
}

/// Where a loader's permit comes from; see `LoadPermits`.
protocol PermitLender: Sendable {
  /// The flight's loader begins to wait for another one.
  func lend(_ flight: FlightID)
  /// It has what it waited for. Waits for its permit.
  func regain(_ flight: FlightID) async
}

/// Nothing was begun, since the origin has to be left alone and the caller has something else to give.
struct BackingOff: Swift.Error {
  let cause: any Swift.Error
}
