#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

extension BlobCache {
  /// What went wrong, where, why, and what to do. Neither keys nor blobs' bytes are in its texts.
  ///
  /// Compare ``code`` with the constants of ``Code``; later versions may add codes.
  public struct Error: Swift.Error, Hashable, Sendable {
    /// What kind of trouble it is.
    public let code: Code
    /// What was being done, such as `open` or `rename`.
    public let operation: String
    /// The file or directory that it was done to, where there is one.
    public let path: String?
    /// What is wrong and what to do, one or two sentences.
    public let message: String
    /// The system's or the underlying error's own words, where there are any.
    public let cause: String?

    package init(
      _ code: Code, operation: String, path: String? = nil, message: String, cause: String? = nil
    ) {
      self.code = code
      self.operation = operation
      self.path = path
      self.message = message
      self.cause = cause
    }
  }
}

extension BlobCache.Error: CustomStringConvertible {
  /// One line: message, operation, path, cause. A path over 200 characters is shortened in its
  /// middle; ``path`` has the whole.
  public var description: String {
    var text = "\(message) (\(code.rawValue), in \(operation)"
    if let path { text += " of \(path.isEmpty ? "an empty path" : shortened(path, to: 200))" }
    if let cause { text += ": \(cause)" }
    return text + ")"
  }
}

extension BlobCache.Error: LocalizedError {
  /// The same line, so that `localizedDescription` says it.
  public var errorDescription: String? { description }
}

extension BlobCache.Error {
  /// The kind of an error. Open: a `switch` over codes needs a `default`.
  public struct Code: RawRepresentable, Hashable, Sendable {
    /// The code's name.
    public let rawValue: String

    /// The code with a name.
    public init(rawValue: String) { self.rawValue = rawValue }

    /// The cache was closed. Open it again.
    public static let closed = Code(rawValue: "closed")
    /// The process was forked since the cache was opened. Open it again in the child.
    public static let forked = Code(rawValue: "forked")
    /// A key is longer than ``BlobCache/Key/maximumByteCount``.
    public static let keyTooLong = Code(rawValue: "keyTooLong")
    /// The attributes of an entry are larger than ``BlobCache/Attributes/maximumByteCount``.
    public static let attributesTooLarge = Code(rawValue: "attributesTooLarge")
    /// The tags of an entry take more than 65,536 bytes, each with two for its length; or a tag to look for
    /// is so long that no entry can have it.
    public static let tagsTooLarge = Code(rawValue: "tagsTooLarge")
    /// The blob is larger than the directory's limit in bytes has room for, which is the limit less 128 KiB
    /// for the index; or larger than half of that (of what pins leave of it) without its size having
    /// been announced. What had made room for it by then is gone: at most about half of what was
    /// there, and nothing where the size was known.
    public static let tooLarge = Code(rawValue: "tooLarge")
    /// What is pinned leaves no room for it below the directory's limit in bytes or in entries. Pins may take
    /// seven eighths of the one, and all but one of the other. Nothing made room for it.
    public static let pinsTooLarge = Code(rawValue: "pinsTooLarge")
    /// `.cacheOnly`, and the key is not in the cache.
    public static let notCached = Code(rawValue: "notCached")
    /// The directory holds something else. Nothing in it was touched.
    public static let notACache = Code(rawValue: "notACache")
    /// The directory has a format of another version of this library.
    public static let formatVersion = Code(rawValue: "formatVersion")
    /// The directory was created with another durability.
    public static let durabilityMismatch = Code(rawValue: "durabilityMismatch")
    /// The directory is on a network file system.
    public static let networkFileSystem = Code(rawValue: "networkFileSystem")
    /// The system refused access, or the directory belongs to somebody else.
    public static let permission = Code(rawValue: "permission")
    /// A symbolic link stands where a folder or file of the cache should be, or one of its files has a second name (a hard
    /// link), through which something outside would be changed.
    public static let symbolicLink = Code(rawValue: "symbolicLink")
    /// The disk or a quota is full.
    public static let noSpace = Code(rawValue: "noSpace")
    /// The process or the system has no file descriptor left.
    public static let tooManyFiles = Code(rawValue: "tooManyFiles")
    /// No memory is left.
    public static let noMemory = Code(rawValue: "noMemory")
    /// Reading or writing failed.
    public static let io = Code(rawValue: "io")
    /// The index or a blob is damaged, or a part of the directory is missing.
    public static let corrupt = Code(rawValue: "corrupt")
    /// Somebody else uses what is needed; try again later.
    public static let busy = Code(rawValue: "busy")
    /// A process of another pid namespace (another container) uses the directory.
    public static let otherNamespace = Code(rawValue: "otherNamespace")
    /// The bytes do not have the digest that was expected. Nothing was stored.
    public static let digestMismatch = Code(rawValue: "digestMismatch")
    /// The bytes do not have the count that was expected. Nothing was stored.
    public static let sizeMismatch = Code(rawValue: "sizeMismatch")
    /// A digest is not 64 hexadecimal digits.
    public static let invalidDigest = Code(rawValue: "invalidDigest")
    /// The task was cancelled before anything was stored.
    public static let cancelled = Code(rawValue: "cancelled")
    /// A loader waits, directly or through others, for its own result.
    public static let cycle = Code(rawValue: "cycle")
    /// A load of the key failed so recently that the origin was not asked again: see
    /// ``BlobCache/Configuration/negativeLifetime``. ``cause`` tells of that failure.
    public static let recentlyFailed = Code(rawValue: "recentlyFailed")
    /// The loader did not end within ``BlobCache/Configuration/loadTimeLimit``.
    public static let loadTimedOut = Code(rawValue: "loadTimedOut")
    /// As many fetches as ``BlobCache/Configuration/maximumWaiters`` allows wait for the load already.
    public static let tooManyWaiters = Code(rawValue: "tooManyWaiters")
    /// The loader ended with `.doNotStore`: the cause of ``Blob/Source-swift.enum/loadedNotStored(_:)``.
    public static let declined = Code(rawValue: "declined")
    /// The entry was removed or replaced while its bytes were on the way; they were not stored.
    public static let superseded = Code(rawValue: "superseded")
    /// An argument is out of range.
    public static let invalidArgument = Code(rawValue: "invalidArgument")
    /// The cache was opened for reading only, or its file system is read-only.
    public static let readOnly = Code(rawValue: "readOnly")
    /// The directory or file does not exist.
    public static let notFound = Code(rawValue: "notFound")
    /// A file stands where a folder should be.
    public static let notADirectory = Code(rawValue: "notADirectory")
    /// A folder stands where a file should be.
    public static let isADirectory = Code(rawValue: "isADirectory")
    /// The database or digest library refused an operation for a reason of its own, given in
    /// ``cause``.
    public static let underlying = Code(rawValue: "underlying")
  }
}

extension BlobCache.Error.Code: CustomStringConvertible {
  /// The code's name.
  public var description: String { rawValue }
}

extension BlobCache.Error {
  static func cancelled(_ operation: String) -> Self {
    Self(.cancelled, operation: operation, message: "The task was cancelled; nothing was stored.")
  }

  /// An empty path names nothing. C ends a path at its first NUL, so one that has a NUL in it would
  /// mean another file.
  static func checkPath(_ path: String, _ operation: String) throws(Self) {
    guard !path.isEmpty else {
      throw Self(
        .invalidArgument, operation: operation, path: path,
        message: "The path is empty; name a file or a directory. Nothing was done.")
    }
    guard path.utf8.contains(0) else { return }
    throw Self(
      .invalidArgument, operation: operation,
      message: "A path must not contain a NUL character; nothing was done.")
  }

  static func closed(_ operation: String, path: String? = nil) -> Self {
    Self(
      .closed, operation: operation, path: path,
      message: "The cache is closed; open the directory again.")
  }
}
