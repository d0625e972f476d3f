extension BlobCache {
  /// How much a directory may hold, for all its processes together. Nil: no limit of that kind, but
  /// see ``minimumFreeDisk``.
  ///
  /// Limits are recorded in the directory: those given last hold, for everybody, until others are
  /// given. They replace all of the earlier ones: `.entries(100)` ends a limit in bytes. Every commit keeps to them, to within what that batch itself brought; the entries that
  /// are worth least make room. Expired ones go first, pinned ones never. Limits below what is there
  /// already are met at once, in the background.
  public struct Limits: Hashable, Sendable {
    /// Bytes on the disk: blob files by their blocks, the index by its pages in use, staged bodies and
    /// quarantine; not the slot table, some 64 bytes an entry. At least 1 MiB. Free pages inside the
    /// index's file, which are used before it grows, are not counted: a directory that is let alone
    /// keeps 4 MiB or a sixteenth of the limit of them, one under load up to a quarter, or 4 MiB, until
    /// the next checkpoint.
    public var bytes: Int?
    /// Entries, expired ones included.
    public var entries: Int?
    /// An entry that was stored or renewed longer ago has expired, whatever its lifetime, and is not
    /// kept as stale either.
    public var age: Duration?
    /// Bytes of the file system that are left free for others. Blob files make room for it; the
    /// index's file gives back free pages only. As much as the file system has is an error. Nil: 5 % of
    /// the file system, 1 GiB at most; 0: none.
    public var minimumFreeDisk: Int?

    /// Any combination of limits.
    public init(
      bytes: Int? = nil, entries: Int? = nil, age: Duration? = nil, minimumFreeDisk: Int? = nil
    ) {
      self.bytes = bytes
      self.entries = entries
      self.age = age
      self.minimumFreeDisk = minimumFreeDisk
    }

    /// No limit but the disk, all of it.
    public static let unlimited = Limits(minimumFreeDisk: 0)
    /// A limit in bytes alone.
    public static func bytes(_ bytes: Int) -> Limits { Limits(bytes: bytes) }
    /// A limit in entries alone.
    public static func entries(_ entries: Int) -> Limits { Limits(entries: entries) }
    /// A limit in age alone.
    public static func age(_ age: Duration) -> Limits { Limits(age: age) }
  }
}

extension BlobCache.Limits: CustomStringConvertible {
  /// The limits in words, such as `Limits(at most 1048576 bytes, 5 % of the disk free, 1 GiB at most)`.
  public var description: String {
    var parts: [String] = []
    if let bytes { parts.append("at most \(bytes) bytes") }
    if let entries { parts.append("at most \(entries) entries") }
    if let age { parts.append("no older than \(age)") }
    switch minimumFreeDisk {
    case nil: parts.append("5 % of the disk free, 1 GiB at most")
    case 0?: break
    case let free?: parts.append("\(free) bytes of the disk free")
    }
    return "Limits(\(parts.isEmpty ? "none" : parts.joined(separator: ", ")))"
  }
}
