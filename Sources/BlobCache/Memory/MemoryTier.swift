extension BlobCache {
  /// What a process keeps in memory of what it has read, so that reading it again asks neither the
  /// index nor a file.
  ///
  ///     configuration.memory = .init(bytes: 256 << 20)
  ///     configuration.memory = .off
  ///
  /// It never shows anything but the newest: a store or removal in any process is seen by the next
  /// lookup here. A hit is a ``Blob`` of the same bytes, without a copy; it keeps nothing in memory
  /// but itself.
  ///
  /// Not kept are blobs that take more than a 64th of ``bytes`` (in a tier below 4 MiB: more than
  /// 64 KiB or a quarter of it), files that are mapped (1.5 MiB and more) and, once the tier is full, what is read for
  /// the first time: so a walk through everything does not drive out what is in use. With
  /// ``Verification/always`` nothing is.
  public struct MemoryTier: Hashable, Sendable {
    /// How many bytes it takes at most: bodies, keys and attributes, and 360 bytes for each blob.
    public var bytes: Int

    /// How many blobs it keeps at most.
    public var entries: Int

    /// A tier with these bounds; zero of either is none at all.
    ///
    /// - Parameters:
    ///   - bytes: at most so many. Default: 64 MiB. It is what a small service or an application can
    ///     spare without being asked, holds some 50,000 blobs of 1 KiB, and is above the second-level
    ///     caches of today's processors, below which there is little to gain.
    ///   - entries: at most so many blobs. Default: 100,000.
    public init(bytes: Int = 64 << 20, entries: Int = 100_000) {
      self.bytes = bytes
      self.entries = entries
    }

    /// Nothing is kept: every lookup asks the index.
    public static let off = MemoryTier(bytes: 0, entries: 0)

    /// Throws for bounds that mean nothing.
    func check() throws(Error) {
      guard bytes < 0 || entries < 0 else { return }
      throw Error(
        .invalidArgument, operation: "open",
        message: """
          The bounds of `Configuration.memory` are negative (bytes: \(bytes), entries: \(entries)). \
          Give bounds of zero or more, or `.off`.
          """)
    }
  }
}
