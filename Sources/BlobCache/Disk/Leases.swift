internal import CBlobStore
internal import Synchronization

/// The leases that this process holds in one directory: what it tells the other processes about the
/// keys that it loads. See lease.c for what they are; ``LeaseWatch`` decides who waits for how long.
///
/// While it holds any, it gives a sign of life every ``beat``. Flights of one process share a lease:
/// who comes first among them is the flight table's business.
final class Leases: Sendable {
  /// How often a holder gives a sign. Four of them fit the shortest lease time that is allowed.
  static let beat = Duration.milliseconds(250)

  /// Levels of a lease, see ``take(_:level:)``.
  static let levels = Int(BCS_LEASE_LEVELS)

  /// Another process, as far as it can be known, and its last sign.
  struct Holder: Equatable, Sendable {
    var number: UInt32
    var beats: UInt32
  }

  enum Attempt: Sendable {
    case taken(Lease)
    case held(by: Holder)
    /// No locks are left, or the store is closed: who loads does without.
    case unavailable
  }

  struct Name: Hashable, Sendable {
    fileprivate var lease: UInt64
    fileprivate var level: UInt32
  }

  private struct State {
    /// Of this process among the holders; 0: none.
    var number: UInt32 = 0
    var beats: UInt32 = 0
    var lastBeat = SuspendingClock.now
    /// Between two signs, since the number was taken.
    var longestGap = Duration.zero
    var held: [Name: Int] = [:]
    var beating: Task<Void, Never>?
  }

  private let handle: StoreHandle
  private let state = Mutex(State())

  init(handle: StoreHandle) { self.handle = handle }

  /// How many are held.
  var count: Int { state.withLock { $0.held.count } }

  /// Takes the lease of a key, or says who has it. Does not wait.
  ///
  /// - Parameter level: 0, or above that of a holder that gave no sign for too long.
  func take(_ key: BlobCache.Key, level: Int) -> Attempt {
    var lease: UInt64 = 0
    let status = unsafe key.withUnsafeBytes { bytes in
      unsafe bcs_lease_of(bytes.baseAddress, bytes.count, &lease)
    }
    guard status == BCS_OK else { return .unavailable }
    return state.withLock { state in
      for own in 0..<UInt32(Self.levels) {
        let name = Name(lease: lease, level: own)
        guard let count = state.held[name] else { continue }
        state.held[name] = count + 1
        return .taken(Lease(name, in: self))
      }
      guard join(&state) else { return .unavailable }
      let name = Name(lease: lease, level: UInt32(level))
      var holder = Holder(number: 0, beats: 0)
      let status = unsafe bcs_lease_take(
        handle.pointer, lease, name.level, state.number, &holder.number, &holder.beats)
      switch status {
      case BCS_OK:
        state.held[name] = 1
        return .taken(Lease(name, in: self))
      case BCS_BUSY: return .held(by: holder)
      default: return .unavailable
      }
    }
  }

  /// Gives no more signs. The store's end gives everything up.
  func stop() { state.withLock { $0.beating.take() }?.cancel() }

  fileprivate func release(_ name: Name) {
    state.withLock { state in
      guard let count = state.held[name] else { return }
      state.held[name] = count > 1 ? count - 1 : nil
      if count == 1 { unsafe bcs_lease_release(handle.pointer, name.lease, name.level) }
    }
  }

  /// How long this process was silent at most since it held leases.
  fileprivate var longestSilence: Duration {
    state.withLock { max($0.longestGap, SuspendingClock.now - $0.lastBeat) }
  }

  private func join(_ state: inout State) -> Bool {
    if state.number != 0 { return true }
    var number: UInt32 = 0
    guard unsafe bcs_lease_join(handle.pointer, &number) == BCS_OK else { return false }
    state.number = number
    state.beats = 0
    state.lastBeat = .now
    state.longestGap = .zero
    state.beating = Task.detached(priority: .high) { [self] in
      repeat {
        do { try await Task.sleep(for: Self.beat) } catch { return }
      } while giveSign()
    }
    return true
  }

  /// False: there is nothing to tell any more.
  private func giveSign() -> Bool {
    state.withLock { state in
      if state.held.isEmpty {
        unsafe bcs_lease_leave(handle.pointer, state.number)
        state.number = 0
        state.beating = nil
        return false
      }
      let now = SuspendingClock.now
      state.longestGap = max(state.longestGap, now - state.lastBeat)
      state.lastBeat = now
      state.beats &+= 1
      // A sign that cannot be given is a missing sign: others load too.
      _ = unsafe bcs_lease_beat(handle.pointer, state.number, state.beats)
      return true
    }
  }
}

/// A lease of this process, until it is released.
final class Lease: Sendable {
  private let name: Leases.Name
  private let leases: Leases
  private let isReleased = Atomic<Bool>(false)

  fileprivate init(_ name: Leases.Name, in leases: Leases) {
    self.name = name
    self.leases = leases
  }

  deinit { release() }

  /// From any thread, any number of times.
  func release() {
    if isReleased.exchange(true, ordering: .acquiringAndReleasing) { return }
    leases.release(name)
  }

  /// Whether others may have taken this process for dead meanwhile, and loaded the key themselves.
  func mayBeOvertaken(after patience: Duration) -> Bool { leases.longestSilence >= patience }
}
