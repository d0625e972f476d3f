extension BlobCache {
  /// Counts of a cache. Those of the directory are over all processes; those of this process since
  /// it was opened.
  ///
  /// ``hits`` and ``misses`` count lookups, not calls. A fetch that misses and then finds what another task or
  /// (with ``Configuration/loadsOncePerMachine``) another process has stored meanwhile is a miss and a hit,
  /// so their sum may be above the number of fetches.
  public struct Statistics: Hashable, Sendable {
    /// Entries in the directory, expired ones included.
    public var entries = 0
    /// Bytes of blobs that are kept in the index.
    public var indexBytes = 0
    /// Blobs that are kept in files of their own.
    public var blobFiles = 0
    /// Bytes of those blobs.
    public var blobBytes = 0
    /// What their files take on the disk, in bytes.
    public var blobAllocatedBytes = 0

    /// Entries that are pinned.
    public var pinnedEntries = 0
    /// What they take of the limit, in bytes; a blob file that several of them share counts once.
    public var pinnedBytes = 0
    /// Bytes that count towards the limit: blob files, index pages in use, staging, quarantine, as far as
    /// was told at the last commit.
    public var usedBytes = 0
    /// Entries that made room for others, by all processes since the slot table was made.
    public var evictions = 0
    /// How long entries had not been read when they were evicted: a moving average.
    public var evictionAge = Duration.zero

    /// Lookups of this process that found a fresh entry, in memory or on the disk.
    public var hits = 0
    /// Of these, the lookups that were answered from memory.
    public var memoryHits = 0
    /// Blobs that this process keeps in memory now.
    public var memoryEntries = 0
    /// Bytes that they take there, some 300 for each blob beside its own included.
    public var memoryBytes = 0
    /// Lookups of this process that did not, those of fetches included: a fetch that joins a loader
    /// which is running was a miss first, so a thousand tasks that fetch one missing key together
    /// are a thousand misses, one of ``loads`` and 999 ``joins``.
    public var misses = 0
    /// Loaders that this process ran.
    public var loads = 0
    /// Loaders of this process that threw.
    public var failedLoads = 0
    /// Fetches of this process that gave an expired copy.
    public var staleHits = 0
    /// Fetches of this process that waited for a loader that was running already.
    public var joins = 0
    /// Entries that this process stored.
    public var stores = 0
    /// Stores of this process that failed, those of what a loader brought included; not those that
    /// were cancelled.
    public var failedStores = 0
    /// Entries that this process removed.
    public var removals = 0
    /// Lookups of this process that met damage.
    public var damaged = 0
    /// Lookups of this process that could not read (no descriptors, an I/O error).
    public var failedLookups = 0

    /// All zero.
    public init() {}
  }

  /// Everything that a directory uses and counts; takes a walk through its folders.
  package struct Census: Sendable {
    package var statistics = Statistics()
    package var expired = 0
    package var indexAllocatedBytes = 0
    /// Free pages, those that are holes in the file included.
    package var indexFreeBytes = 0
    /// Of what the file has allocated, what no page in use takes.
    package var indexSpareBytes = 0
    package var stagingAllocatedBytes = 0
    package var quarantineAllocatedBytes = 0
    package var slotsAllocatedBytes = 0
    package var totalHits = 0
    package var totalMisses = 0
    /// Of the hits, those that a process answered from its memory.
    package var totalMemoryHits = 0
    /// What is free of the file system, and what the limits leave free of it.
    package var diskFree = 0
    package var diskReserve = 0
  }

  /// How a directory was opened.
  package struct DirectoryInfo: Sendable {
    package var path: String
    package var durability: Durability
    package var inlineThreshold: Int
    package var mapSize: Int
    package var unlocked: Bool
    package var indexSetAside: Bool
    package var indexRestored: Bool
    package var slotsRebuilt: Bool
  }
}
