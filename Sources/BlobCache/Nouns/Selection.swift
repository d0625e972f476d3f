extension BlobCache {
  /// Which entries a removal takes: those that meet all that is set. Nothing set: all entries.
  public struct Selection: Hashable, Sendable {
    /// Entries whose keys begin with it.
    public var prefix: Key?
    /// Entries that were stored with this tag: found without looking at others.
    public var tag: String?
    /// Entries whose blobs have more bytes.
    public var largerThan: Int?
    /// Entries that were stored or renewed longer ago.
    public var olderThan: Duration?
    /// Expired entries only.
    public var expiredOnly: Bool
    /// Not pinned ones.
    var sparesPinned = false

    /// A selection by any combination.
    public init(
      prefix: Key? = nil, tag: String? = nil, largerThan: Int? = nil, olderThan: Duration? = nil,
      expiredOnly: Bool = false
    ) {
      self.prefix = prefix
      self.tag = tag
      self.largerThan = largerThan
      self.olderThan = olderThan
      self.expiredOnly = expiredOnly
    }

    init(olderThan age: Duration, sparesPinned: Bool) {
      self.init(olderThan: age)
      self.sparesPinned = sparesPinned
    }

    /// Expired entries, those within their stale window and pinned ones included. (``BlobCache/sweep()``
    /// takes neither.)
    public static let expired = Selection(expiredOnly: true)
    /// Entries that were stored with a tag.
    public static func tagged(_ tag: String) -> Selection { Selection(tag: tag) }
    /// Entries whose blobs have more than so many bytes.
    public static func larger(than bytes: Int) -> Selection { Selection(largerThan: bytes) }
    /// Entries that were stored or renewed longer ago than this.
    public static func older(than age: Duration) -> Selection { Selection(olderThan: age) }
  }
}

extension BlobCache.Selection {
  /// Whether an entry is taken, its prefix and tag aside.
  func takes(_ entry: BlobCache.Entry, now: Int64) -> Bool {
    if sparesPinned && entry.isPinned { return false }
    if let largerThan, entry.size <= largerThan { return false }
    if let olderThan,
      now.clampedDifference(entry.storedAt.millisecondsSince1970) <= olderThan.milliseconds
    {
      return false
    }
    return !expiredOnly || entry.isExpired
  }

  func check(_ operation: String) throws(BlobCache.Error) {
    try prefix?.checkLength(operation)
    if let tag { try TagCoding.check(tag, operation) }
    if (largerThan ?? 0) < 0 || (olderThan ?? .zero) < .zero {
      throw BlobCache.Error(
        .invalidArgument, operation: operation,
        message: "A size or an age to select by is not negative; nothing was removed.")
    }
  }
}
