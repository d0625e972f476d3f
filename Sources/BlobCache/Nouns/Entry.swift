#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// What is known of a key: a copy from the moment of the lookup, listing or store that gave it.
  public struct Entry: Hashable, Sendable {
    /// The key.
    public let key: Key
    /// The SHA-256 of the blob.
    public let digest: Digest
    /// How many bytes the blob has.
    public let size: Int
    /// The lifetime that it was stored or renewed with.
    public let lifetime: Lifetime
    /// When it was stored or renewed.
    public let storedAt: Date
    /// When it expires, or for a sliding lifetime would if nobody read it again; nil: never,
    /// also for a span that is too long to reckon with.
    public let expiresAt: Date?
    /// When it was last read, by any process; nil: never.
    public let lastAccess: Date?
    /// How often it was read, by all processes: a measure of use, not a count of calls. Reads within
    /// one tick of the clock count once: some milliseconds, since lookups take the time from the
    /// kernel's coarse clock (with a ``ManualClock`` that stands still, all of them). It ends at 63.
    public let hits: Int
    /// Whether it was expired at the lookup.
    public let isExpired: Bool
    /// For how long after its expiry it is kept, for whoever asks for stale.
    public let staleWindow: Duration
    /// For how long it had been expired at the lookup. Nil: it was fresh; or it was beyond the limit in
    /// age; or the clock has been set back since it was written, so that nobody knows.
    public let expiredFor: Duration?
    /// What was stored with it.
    public let attributes: Attributes
    /// The tags that it was stored with, in ascending order.
    public let tags: [String]
    /// Whether it is kept from eviction and sweeps.
    public let isPinned: Bool
    /// Where its bytes are.
    public let location: Location

    /// Changes with every write of the entry.
    package let generation: UInt64
    /// The first 16 bytes of the key's SHA-256.
    let keyHash: KeyHash

    /// Whether it was expired at the lookup, and within its stale window: a copy that the stale
    /// options of ``FetchPolicy`` and ``BlobCache/blobs(for:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)`` may give.
    public var isStale: Bool {
      guard let expiredFor else { return false }
      return expiredFor < staleWindow
    }

    /// Where a blob's bytes are kept.
    public struct Location: Hashable, Sendable {
      let isFile: Bool
      /// In the index, beside the entry.
      public static let index = Location(isFile: false)
      /// In a file of their own, shared by all entries with the same bytes.
      public static let file = Location(isFile: true)
    }
  }

  /// Names an entry inside the index.
  struct KeyHash: Hashable, Sendable {
    var high: UInt64 = 0
    var low: UInt64 = 0
  }
}

extension BlobCache.Entry.Location: CustomStringConvertible {
  /// `index` or `file`.
  public var description: String { isFile ? "file" : "index" }
}

extension BlobCache.Entry: CustomStringConvertible {
  /// Key, size, place, lifetime, attributes' names and digest.
  public var description: String {
    var text = "Entry(\(key.summary), \(size) bytes, \(location), \(lifetime)"
    if isExpired { text += isStale ? ", stale" : ", expired" }
    if !attributes.isEmpty { text += ", attributes \(attributes)" }
    return text + ", sha256:\(digest))"
  }
}
