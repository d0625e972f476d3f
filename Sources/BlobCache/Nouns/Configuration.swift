extension BlobCache {
  /// How a directory is opened. The defaults suit a directory on a local disk that only its owner
  /// uses.
  ///
  /// When a directory is opened a second time in a process, the store is shared: the first opener's
  /// clock, memory, verification, mapping and modes hold; each instance has its own default lifetime, and
  /// ``onEvent`` of each is called.
  public struct Configuration: Sendable {
    /// What survives a power cut. Fixed when the directory is created; another value later makes
    /// opening throw ``Error/Code/durabilityMismatch``. Default: ``Durability/checkpointed``.
    public var durability: Durability = .checkpointed

    /// How much the directory may hold, for all its processes. They are recorded in it in place of all that
    /// were, also of other kinds: the last opener's hold. Nil, the default: the limits that are recorded in
    /// it. A new directory has none but one: 5 % of its file system, 1 GiB at most, stay
    /// free. See ``Limits``.
    public var limits: Limits?

    /// How often expired entries and debris are removed in the background, give or take a quarter;
    /// nil: only by ``BlobCache/sweep()``. One process of a directory does it at a time, in short
    /// steps. Default: a minute. The first opener's holds.
    public var sweepInterval: Duration? = .seconds(60)

    /// The lifetime of entries that are stored without one. Default: `.forever`. Opening throws
    /// ``Error/Code/invalidArgument`` for one that is over as it begins, and so do stores and loads once a moment
    /// given here has come.
    public var defaultLifetime: Lifetime = .forever

    /// For how long after their expiry entries are kept that are stored without a stale window: so
    /// that there is something to revalidate, and something to give when the origin is down. Such an
    /// entry is a miss all the same, unless a policy asks for stale; see ``FetchPolicy``. When a limit
    /// wants room, entries in their stale window go before every fresh one. Default: a day, which
    /// outlives a night without the origin. Zero: what has expired is swept with the next sweep.
    public var defaultStaleWindow: Duration = .seconds(86_400)

    /// The largest part of its span by which an entry's life is shortened at random, so that what is
    /// stored together does not expire together: with 0.1, `.expires(after: .seconds(60))` lives 54 to
    /// 60 s. It concerns `.expires(after:)` and the `atMost` of `.sliding`, the latter by 49 days at most; a
    /// millisecond is left in any case. ``Entry/lifetime`` stays what was asked for, ``Entry/expiresAt`` tells
    /// when it is. From 0 to 1. Default: 0.
    public var lifetimeJitter = 0.0

    /// For how long a failed load is remembered: until then, a fetch of the key throws
    /// ``Error/Code/recentlyFailed`` with the failure as its cause, and the origin is not asked. A
    /// `.reload`, a store, a renewal or a removal of the key by this process ends it earlier. It is kept
    /// in the memory of this process, for the 8,192 keys that failed last (and 4 MiB of keys). See
    /// ``FetchPolicy/rememberingFailures(for:)-swift.method`` for one fetch. Mistakes of the loader (a wait for
    /// its own result, an outcome that does not fit, a closed cache) are not remembered. Default: zero, the
    /// next fetch asks again.
    public var negativeLifetime: Duration = .zero

    /// How long a loader may take. One that has not ended by then is cancelled; those who wait for it
    /// get ``Error/Code/loadTimedOut``, and the key is free, whether the loader heeds its cancellation or
    /// not: what it brings later is dropped. Above zero. See ``FetchPolicy/loadTimeLimit(_:)-swift.method``
    /// for one fetch. Default: nil, no limit.
    public var loadTimeLimit: Duration?

    /// How many fetches may wait for one load; those that would be more throw
    /// ``Error/Code/tooManyWaiters`` at once. Default: nil, no limit.
    public var maximumWaiters: Int?

    /// How many loaders run at once; others stand in a line, first come, first served, in which their
    /// time limit does not run. A loader that waits for another fetch does not count meanwhile, and
    /// comes before the line when it goes on, so loaders that fetch cannot block one another. The first
    /// opener's holds. Default: nil, no limit.
    public var maximumConcurrentLoads: Int?

    /// Whether a missing key is loaded once among all processes of the directory that have this set, and
    /// not once in each. Default: false.
    ///
    /// Who loads a key holds a lease on it, a lock that the kernel gives up when the process dies. Others
    /// wait, looking for the entry at most a tenth of a second apart, and take what was stored. It is
    /// advice, and nothing is wrong when two load all the same: when the loader fails, when its result is
    /// not stored, or when its process dies, the next of those who wait loads, one after another, so a
    /// failing origin is asked once by each process that waits. A `.reload` waits for no other
    /// process. A ``loadTimeLimit`` begins with the loader, not with the wait;
    /// ``maximumConcurrentLoads`` counts nobody who waits so.
    public var loadsOncePerMachine = false

    /// With ``loadsOncePerMachine``: how long a process that loads may give no sign of life, which it
    /// gives four times a second, however long its loader takes. After that (it is stopped, or the
    /// machine is out of breath) one of those who wait loads in its place. Also the longest wait of a
    /// fetch that is made inside a loader, so that loaders of two processes cannot wait for each other
    /// for ever. Reckoned in real time, whatever the ``clock``. At least a second; the same in all
    /// processes. Default: 30 s.
    public var leaseTime: Duration = .seconds(30)

    /// When a blob's bytes are compared with its digest. Default: ``Verification/onFirstRead``.
    public var verification: Verification = .onFirstRead

    /// Whether large blobs are mappings of their files. Default: ``Mapping/automatic``.
    public var mapping: Mapping = .automatic

    /// What is kept in the memory of this process above the index, shared by all instances of the
    /// directory. Default: 64 MiB; see ``MemoryTier``.
    public var memory = MemoryTier()

    /// The mode of folders that are made, whatever the umask. Default: 0o700.
    ///
    /// The owner must be able to read, write and search, so 0o700 is the least; 0o2770 lets a group
    /// share the directory, whose files then belong to that group. Opening throws
    /// ``Error/Code/invalidArgument`` for anything else than permissions and the set-group-id bit.
    public var directoryMode: UInt32 = 0o700

    /// The mode of files that are made, whatever the umask. Default: 0o600.
    ///
    /// The owner must be able to read and write, so 0o600 is the least, and 0o666 the most. A group
    /// that shares the directory needs 0o660: who only reads writes access times too. Opening throws
    /// ``Error/Code/invalidArgument`` for anything else.
    public var fileMode: UInt32 = 0o600

    /// Whether a directory on a network file system is accepted, where locks and shared memory may
    /// fail silently. Default: false.
    public var allowsNetworkFileSystem = false

    /// Where the time comes from. Default: the machine's clock.
    public var clock: Clock = .system

    /// Called for loads, failures, damage and background errors, never on the path of a hit; from
    /// any thread, so it must be quick and must not wait for the cache. Default: nil.
    public var onEvent: (@Sendable (Event) -> Void)?

    /// Nothing is written, not even an access time; the directory must exist.
    package var readOnly = false
    /// Whether a directory that is absent or empty becomes a cache.
    package var createsDirectory = true
    /// Bodies up to this many bytes stand in the index; 0: the measured default.
    package var inlineThreshold: UInt32 = 0
    /// Address space for the index at first; 0: the default.
    package var initialMapSize: UInt64 = 0
    /// The modes of a directory that is there hold in place of those above.
    package var usesRecordedModes = false
    /// In place of the kernel's boot id, for tests.
    package var bootID: String?
    /// In place of what statfs(2) says, for tests; 0: what it says.
    package var fileSystemType: Int64 = 0

    /// The defaults.
    public init() {}
  }

  /// What survives a power cut. (Nothing is lost when a process is killed, either way.)
  public struct Durability: Hashable, Sendable {
    enum Form: Hashable, Sendable {
      case checkpointed(Duration?)
      case durable, asRecorded
    }
    let form: Form

    /// ``checkpointed(every:)`` 5 seconds.
    public static let checkpointed = Durability(form: .checkpointed(.seconds(5)))
    /// Stores return when every process sees them. A power cut costs those since the last checkpoint,
    /// and what was removed, replaced or evicted since.
    ///
    /// A checkpoint is made every `interval` in which something was stored or removed, by one of the
    /// processes that have the directory open, by ``BlobCache/flush()`` and ``BlobCache/close()``, and
    /// earlier where the pages that it keeps would make the index outgrow its bound. It syncs files and
    /// index to the disk while others go on.
    ///
    /// - Parameter interval: At least 10 ms. Nil: only by ``BlobCache/flush()`` and
    ///   ``BlobCache/close()``, or where the index asks for one. Each process has its own; the shortest counts.
    public static func checkpointed(every interval: Duration?) -> Durability {
      Durability(form: .checkpointed(interval))
    }
    /// A store returns when it is on the disk: some 300 µs each, less when many are stored at once.
    public static let durable = Durability(form: .durable)
    /// Whatever the directory was created with.
    package static let asRecorded = Durability(form: .asRecorded)

    /// Between checkpoints.
    var interval: Duration? {
      switch form {
      case .checkpointed(let interval): interval
      case .asRecorded: .seconds(5)
      case .durable: nil
      }
    }
  }

  /// When a blob's bytes are compared with its digest.
  public struct Verification: Hashable, Sendable {
    enum Form: Hashable, Sendable { case onFirstRead, always, never }
    let form: Form

    /// At the first read of a blob file in a process, and again when the file has changed.
    public static let onFirstRead = Verification(form: .onFirstRead)
    /// At every read: 0.7 µs more at 1 KiB, 145 µs at 256 KiB. Nothing is kept in memory then.
    public static let always = Verification(form: .always)
    /// Only by ``BlobCache/verify(_:repair:progress:)``.
    public static let never = Verification(form: .never)
  }

  /// Where the bytes of a large blob stand while it is held.
  public struct Mapping: Hashable, Sendable {
    enum Form: Hashable, Sendable { case automatic, copy }
    let form: Form

    /// Blobs of 1.5 MiB and more are mappings of their files (mmap(2)), which no copy takes memory for. Nothing of this library
    /// ever shortens or rewrites a published file. A stranger who does so changes bytes that are held, and whoever reads those
    /// beyond a file's new end gets SIGBUS from the kernel.
    public static let automatic = Mapping(form: .automatic)
    /// Blobs of any size are copies: for directories in which strangers can write, and disks that fail. A file that was
    /// changed is found by its digest before its bytes are given, and is a miss.
    public static let copy = Mapping(form: .copy)
  }
}

extension BlobCache.Durability: CustomStringConvertible {
  /// `checkpointed` or `durable`.
  public var description: String {
    switch form {
    case .checkpointed: "checkpointed"
    case .durable: "durable"
    case .asRecorded: "as recorded"
    }
  }
}

extension BlobCache.Configuration {
  /// Modes with which the directory could not be used by who makes it, or that are no modes of
  /// files and folders that hold data.
  func checkModes(for directory: String) throws(BlobCache.Error) {
    if directoryMode & 0o700 != 0o700 || directoryMode & ~0o2777 != 0 {
      throw Self.invalidMode(
        "directoryMode", directoryMode, "0o700 is the least, 0o2770 is for a group", directory)
    }
    if fileMode & 0o600 != 0o600 || fileMode & ~0o666 != 0 {
      throw Self.invalidMode("fileMode", fileMode, "from 0o600 up to 0o666", directory)
    }
  }

  /// Spans, shares and counts that mean nothing.
  func checkFreshness() throws(BlobCache.Error) {
    func check<V>(_ value: V, _ isValid: Bool, _ message: String) throws(BlobCache.Error) {
      if isValid { return }
      throw BlobCache.Error(
        .invalidArgument, operation: "open", message: message, cause: "\(value) was given")
    }
    // A moment is compared with the clock by those who use it: another opener's may hold.
    if case .checkpointed(let interval?) = durability.form, interval < .milliseconds(10) {
      throw BlobCache.Error(
        .invalidArgument, operation: "open",
        message: "An interval between checkpoints is at least 10 ms, not \(interval).")
    }
    try defaultLifetime.check("open", now: .min, ofConfiguration: true)
    try check(
      defaultStaleWindow, defaultStaleWindow >= .zero,
      "The configuration's defaultStaleWindow is negative; zero is none.")
    try check(
      lifetimeJitter, lifetimeJitter >= 0 && lifetimeJitter <= 1,
      "The configuration's lifetimeJitter is a part of a lifetime, from 0 to 1.")
    try check(
      negativeLifetime, negativeLifetime >= .zero,
      "The configuration's negativeLifetime is negative; zero is none.")
    try check(
      loadTimeLimit ?? .seconds(1), loadTimeLimit ?? .seconds(1) > .zero,
      "The configuration's loadTimeLimit is not positive; nil is none.")
    try check(
      maximumWaiters ?? 1, maximumWaiters ?? 1 > 0,
      "The configuration's maximumWaiters is at least 1; nil is none.")
    try check(
      maximumConcurrentLoads ?? 1, maximumConcurrentLoads ?? 1 > 0,
      "The configuration's maximumConcurrentLoads is at least 1; nil is none.")
    try check(
      sweepInterval ?? .seconds(1), sweepInterval ?? .seconds(1) > .zero,
      "The configuration's sweepInterval is not positive; nil is none.")
    try check(
      leaseTime, leaseTime >= .seconds(1), "The configuration's leaseTime is at least a second.")
  }

  private static func invalidMode(
    _ name: String, _ mode: UInt32, _ choices: String, _ directory: String
  ) -> BlobCache.Error {
    BlobCache.Error(
      .invalidArgument, operation: "open", path: directory,
      message: "The configuration's \(name) cannot be used; choose another (\(choices)).",
      cause: "it is 0o\(String(mode, radix: 8))")
  }
}
