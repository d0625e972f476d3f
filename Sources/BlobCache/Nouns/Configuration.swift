extension BlobCache {
  /// How a directory is opened. The defaults suit a directory on a local disk that only its owner
  /// uses.
  ///
  /// When a directory is opened a second time in a process, the store is shared: the first opener's
  /// clock, verification and modes hold; each instance has its own default lifetime, and
  /// ``onEvent`` of each is called.
  public struct Configuration: Sendable {
    /// What survives a power cut. Fixed when the directory is created; another value later makes
    /// opening throw ``Error/Code/durabilityMismatch``. Default: ``Durability/checkpointed``.
    public var durability: Durability = .checkpointed

    /// How much the directory may hold, for all its processes. Nil, the default: the limits that are
    /// recorded in it. A new directory has none but one: 5 % of its file system, 1 GiB at most, stay
    /// free. See ``Limits``.
    public var limits: Limits?

    /// The lifetime of entries that are stored without one. Default: `.forever`.
    public var defaultLifetime: Lifetime = .forever

    /// When a blob's bytes are compared with its digest. Default: ``Verification/onFirstRead``.
    public var verification: Verification = .onFirstRead

    /// The mode of folders that are made. Default: 0o700.
    public var directoryMode: UInt32 = 0o700

    /// The mode of files that are made. Default: 0o600.
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
    /// In place of the kernel's boot id, for tests.
    package var bootID: String?
    /// In place of what statfs(2) says, for tests; 0: what it says.
    package var fileSystemType: Int64 = 0

    /// The defaults.
    public init() {}
  }

  /// What survives a power cut. (Nothing is lost when a process is killed, either way.)
  public struct Durability: Hashable, Sendable {
    enum Form: Hashable, Sendable { case checkpointed, durable, asRecorded }
    let form: Form

    /// Stores return when every process sees them; a power cut may cost those since the last
    /// ``BlobCache/flush()``.
    public static let checkpointed = Durability(form: .checkpointed)
    /// A store returns when it is on the disk: some 300 µs each, less when many are stored at once.
    public static let durable = Durability(form: .durable)
    /// Whatever the directory was created with.
    package static let asRecorded = Durability(form: .asRecorded)
  }

  /// When a blob's bytes are compared with its digest.
  public struct Verification: Hashable, Sendable {
    enum Form: Hashable, Sendable { case onFirstRead, always, never }
    let form: Form

    /// At the first read of a blob file in a process, and again when the file has changed.
    public static let onFirstRead = Verification(form: .onFirstRead)
    /// At every read: 0.7 µs more at 1 KiB, 145 µs at 256 KiB.
    public static let always = Verification(form: .always)
    /// Only by ``BlobCache/verify(_:repair:progress:)``.
    public static let never = Verification(form: .never)
  }
}
