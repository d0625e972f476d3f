extension BlobCache {
  /// Something that happened off the path of a hit, for logs, metrics and traces; see
  /// ``Configuration/onEvent``.
  ///
  /// Compare ``kind`` with the constants of ``Kind``; later versions may add kinds.
  public struct Event: Sendable {
    /// What happened.
    public let kind: Kind
    /// The entry that it concerns, where there is one.
    public var key: Key?
    /// How long it took, where that is known.
    public var duration: Duration?
    /// How many bytes it concerns, where that is known.
    public var size: Int?
    /// What a sweep removed.
    public var swept: SweepReport?
    /// Why, for failures.
    public var error: (any Swift.Error)?

    init(
      _ kind: Kind, key: Key? = nil, duration: Duration? = nil, size: Int? = nil,
      error: (any Swift.Error)? = nil
    ) {
      self.kind = kind
      self.key = key
      self.duration = duration
      self.size = size
      self.error = error
    }

    /// The kind of an event. Open: a `switch` over kinds needs a `default`.
    public struct Kind: RawRepresentable, Hashable, Sendable {
      /// The kind's name.
      public let rawValue: String

      /// The kind with a name.
      public init(rawValue: String) { self.rawValue = rawValue }

      /// A loader ended well; `duration` and `size` are known.
      public static let loaded = Kind(rawValue: "loaded")
      /// A loader threw.
      public static let loadFailed = Kind(rawValue: "loadFailed")
      /// What was loaded could not be stored; its bytes were handed over all the same.
      public static let storeFailed = Kind(rawValue: "storeFailed")
      /// A lookup met damaged or missing bytes; it was a miss, and the entry is being removed.
      public static let damaged = Kind(rawValue: "damaged")
      /// A lookup could not read (no descriptors, an I/O error) and was a miss; the entry stays.
      public static let lookupFailed = Kind(rawValue: "lookupFailed")
      /// A sweep removed something; `swept` says what.
      public static let swept = Kind(rawValue: "swept")
      /// Eviction has ended above the limits, since what is pinned (or in quarantine, or being stored) takes
      /// more: at an opening that gives limits, or in a `trim`. `error` has the code
      /// ``Error/Code/pinsTooLarge``, and says by how much.
      public static let limitsNotMet = Kind(rawValue: "limitsNotMet")
      /// The opening found the index damaged, or torn by a power cut, and began a new one: no entry is there any more. The old
      /// one is in `quarantine`, the blob files are kept, and the same content stored again takes no new file. `error` has
      /// the code ``Error/Code/corrupt``.
      public static let indexSetAside = Kind(rawValue: "indexSetAside")
      /// The opening was the first one after the machine stopped, and took the index back to its last checkpoint: what was
      /// stored since is not there.
      public static let indexRestored = Kind(rawValue: "indexRestored")
      /// Work in the background failed: a checkpoint, a sweep, an unlink, what `close()` leaves on the disk. `error` says what.
      public static let backgroundError = Kind(rawValue: "backgroundError")
    }
  }
}

extension BlobCache.Event {
  static func loaded(key: BlobCache.Key, duration: Duration, size: Int) -> Self {
    Self(.loaded, key: key, duration: duration, size: size)
  }

  static func loadFailed(
    key: BlobCache.Key, duration: Duration, error: any Swift.Error
  ) -> Self {
    Self(.loadFailed, key: key, duration: duration, error: error)
  }

  static func storeFailed(key: BlobCache.Key, error: any Swift.Error) -> Self {
    Self(.storeFailed, key: key, error: error)
  }

  static func damaged(key: BlobCache.Key?, error: any Swift.Error) -> Self {
    Self(.damaged, key: key, error: error)
  }

  static func lookupFailed(key: BlobCache.Key?, error: any Swift.Error) -> Self {
    Self(.lookupFailed, key: key, error: error)
  }

  static func swept(_ report: BlobCache.SweepReport) -> Self {
    var event = Self(.swept)
    event.swept = report
    return event
  }

  static func indexSetAside(_ error: BlobCache.Error) -> Self {
    Self(.indexSetAside, error: error)
  }

  static func limitsNotMet(_ error: BlobCache.Error) -> Self {
    Self(.limitsNotMet, error: error)
  }

  static func backgroundError(_ error: any Swift.Error) -> Self {
    Self(.backgroundError, error: error)
  }
}

extension BlobCache.Event: CustomStringConvertible {
  /// One line: kind, key, size, duration, error, those that are known.
  public var description: String {
    var text = kind.rawValue
    if let key { text += " \(key.summary)" }
    if let size { text += ", \(size) bytes" }
    if let duration { text += ", \(duration)" }
    if let swept {
      text +=
        ", \(swept.expired) expired, \(swept.unreferencedFiles) unreferenced,"
        + " \(swept.missingFiles) missing, \(swept.deadStagingFiles) staged, \(swept.quarantinedFiles) quarantined"
    }
    if let error { text += ": \(error)" }
    return text
  }
}

extension BlobCache.Event.Kind: CustomStringConvertible {
  /// The kind's name.
  public var description: String { rawValue }
}
