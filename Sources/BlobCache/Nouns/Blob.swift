#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// Bytes that were found or loaded, and what is known of them.
  ///
  /// The bytes never change, and stay valid as long as a copy of the `Blob` is held: after the
  /// entry was removed or replaced, and after the cache was closed. A large blob is the mapped
  /// file; it costs memory only as it is read.
  public struct Blob: @unchecked Sendable {
    // Unchecked, since a ManagedBuffer is not Sendable; this one is immutable once made.
    let storage: BlobStorage
    /// The last access and the hits before the lookup, which the storage of a blob that is kept in
    /// memory does not know.
    let access: Int64
    let hits: UInt32

    /// Where the bytes came from.
    public let source: Source

    /// Why an expired copy is given, where it is given because a load failed: what the loader threw,
    /// or an ``Error`` of the cache. Nil otherwise.
    public let staleCause: (any Swift.Error)?

    @inline(__always)
    init(storage: BlobStorage, source: Source) {
      self.init(
        storage: storage, source: source, access: storage.header.access, hits: storage.header.hits)
    }

    @inline(__always)
    init(
      storage: BlobStorage, source: Source, access: Int64, hits: UInt32,
      staleCause: (any Swift.Error)? = nil
    ) {
      self.storage = storage
      self.source = source
      self.access = access
      self.hits = hits
      self.staleCause = staleCause
    }

    /// Where the bytes of a blob came from.
    public enum Source: Hashable, Sendable {
      /// From the index.
      case index
      /// From a file.
      case file
      /// A loader brought them, and they were stored.
      case loaded
      /// From memory: kept there since an earlier lookup, and the newest all the same.
      case memory
      /// An expired copy, by a policy that allows it; or, where a `.reload` failed, whatever copy is at
      /// hand. ``Blob/staleCause`` tells which failure made it so, if one did.
      case stale
      /// A loader brought them, and they could not be stored, for this reason.
      case loadedNotStored(Error)
    }

    /// How many bytes there are.
    public var count: Int { storage.header.count }

    /// The SHA-256 of the bytes.
    public var digest: Digest { storage.header.digest }

    /// The bytes, without a copy. Bind the blob to a name first: the span cannot outlive it.
    ///
    ///     let blob = try await cache.fetch(key) { … }
    ///     let sum = blob.bytes.withUnsafeBytes { $0.reduce(0) { $0 &+ Int($1) } }
    public var bytes: RawSpan {
      @_lifetime(borrow self)
      get {
        let span = unsafe RawSpan(_unsafeBytes: storage.bytes)
        return unsafe _overrideLifetime(span, borrowing: self)
      }
    }

    /// Calls `body` with the bytes, without a copy. The pointer is valid only during the call.
    public func withUnsafeBytes<R, E: Swift.Error>(
      _ body: (UnsafeRawBufferPointer) throws(E) -> R
    ) throws(E) -> R {
      defer { extendLifetime(self) }
      return try unsafe body(storage.bytes)
    }

    /// A copy of the bytes, the caller's to do with as it likes.
    public var data: Data { unsafe withUnsafeBytes { unsafe Data($0) } }

    /// The entry as the lookup found it.
    public var entry: Entry { storage.entry(access: access, hits: hits) }

    /// What was stored with the blob.
    public var attributes: Attributes { storage.attributes }

    /// Writes the bytes to a file, which is replaced as a whole: a reader of `path` sees the old
    /// one or all of the new. Blocks while it writes.
    ///
    /// - Parameters:
    ///   - path: where; its folder must exist.
    ///   - mode: the file's mode. Default: 0o644.
    /// - Throws: ``Error`` with the path and the system's reason; nothing is left behind.
    public func write(to path: String, mode: UInt32 = 0o644) throws(Error) {
      try Error.checkPath(path, "write")
      try unsafe withUnsafeBytes { bytes throws(Error) in
        try unsafe SystemFile.replace(path, with: bytes, mode: mode)
      }
    }

    /// Calls `body` with a descriptor open for reading at offset 0, such as for `sendfile(2)`. It
    /// is closed after.
    ///
    /// It is an unnamed copy of the bytes in the temporary folder: the blob's own file may be gone
    /// by now.
    ///
    /// - Throws: what `body` throws; ``Error`` if no descriptor or no space is left.
    public func withFileDescriptor<R>(_ body: (CInt) throws -> R) throws -> R {
      let file = try unsafe withUnsafeBytes { bytes throws(Error) -> SystemFile in
        try unsafe SystemFile.unnamed(bytes)
      }
      return try body(file.descriptor)
    }
  }
}

extension BlobCache.Blob: CustomStringConvertible {
  /// Key, size, digest and source, never the bytes.
  public var description: String {
    "Blob(\(entry.key.summary), \(count) bytes, \(source.name), sha256:\(digest))"
  }
}

extension BlobCache.Blob.Source {
  fileprivate var name: String {
    switch self {
    case .index: "index"
    case .file: "file"
    case .loaded: "loaded"
    case .memory: "memory"
    case .stale: "stale"
    case .loadedNotStored(let error): "loaded, not stored: \(error.code)"
    }
  }
}
