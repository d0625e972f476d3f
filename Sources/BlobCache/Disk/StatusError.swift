internal import CBlobStore

// The one place where a C status becomes a BlobCache.Error, with words that say what to do.

extension bcs_status {
  /// The error of the last failing call on this thread: call it right after that call.
  func lastError(_ operation: String) -> BlobCache.Error {
    var error = bcs_error()
    unsafe bcs_last_error(&error)
    // A status without a report (or with one of an earlier call) stands for itself.
    guard error.status == self else { return BlobCache.Error(self, operation: operation) }
    return BlobCache.Error(error, status: self, operation: operation)
  }
}

extension BlobCache.Error {
  init(_ report: bcs_error, status: bcs_status, operation: String) {
    var report = report
    let step = unsafe withUnsafeBytes(of: &report.operation) { unsafe text(of: $0) }
    let path = unsafe withUnsafeBytes(of: &report.path) { unsafe text(of: $0) }
    let cause = unsafe withUnsafeBytes(of: &report.cause) { unsafe text(of: $0) }
    self.init(
      status, operation: step.isEmpty ? operation : step, path: path.isEmpty ? nil : path,
      cause: cause.isEmpty ? nil : cause)
  }

  init(_ status: bcs_status, operation: String, path: String? = nil, cause: String? = nil) {
    let (code, advice) = Self.meaning(of: status)
    self.init(code, operation: operation, path: path, message: advice, cause: cause)
  }

  private static func meaning(of status: bcs_status) -> (code: Code, advice: String) {
    switch status {
    case BCS_CLOSED: (.closed, "The cache is closed; open the directory again.")
    case BCS_FORKED:
      (.forked, "The process was forked after the cache was opened; open it again in the child.")
    case BCS_INVALID: (.invalidArgument, "An argument is out of range.")
    case BCS_KEY_TOO_LONG:
      (.keyTooLong, "A key has more than 65,536 bytes; use a digest of it as the key.")
    case BCS_ATTRIBUTES_TOO_LARGE:
      (
        .attributesTooLarge,
        "The attributes take more than 65,536 bytes; put large ones into a blob of their own."
      )
    case BCS_TAGS_TOO_LARGE:
      (.tagsTooLarge, "The tags take more than 65,536 bytes; use fewer or shorter ones.")
    case BCS_TOO_LARGE:
      (
        .tooLarge,
        "The blob is larger than the directory's limit; nothing was stored. Raise the limit."
      )
    case BCS_PINS_TOO_LARGE:
      (
        .pinsTooLarge,
        "What is pinned leaves no room for it below the directory's limit; unpin some, or raise it."
      )
    case BCS_NOT_A_CACHE:
      (
        .notACache,
        "The directory holds something else and was left alone; name an empty or absent one."
      )
    case BCS_VERSION:
      (
        .formatVersion,
        "The directory has the format of another version; use that version or another directory."
      )
    case BCS_DURABILITY:
      (
        .durabilityMismatch,
        "The directory was created with another durability; open it with that one, or make a new one."
      )
    case BCS_NETWORK_FS:
      (
        .networkFileSystem,
        "The directory is on a network file system, where locks may fail; use a local disk,"
          + " or set allowsNetworkFileSystem if one machine alone uses it."
      )
    case BCS_SYMLINK:
      (
        .symbolicLink,
        "A symbolic link stands where a folder or file of the cache should be; remove the link."
      )
    case BCS_NOT_OURS:
      (
        .permission,
        "The directory belongs to another user, or others may write in it; use one of your own."
      )
    case BCS_NOT_DIRECTORY:
      (.notADirectory, "A file stands where a folder should be; move it away or use another path.")
    case BCS_OTHER_NAMESPACE:
      (
        .otherNamespace,
        "A process of another pid namespace uses the directory; share the namespace, or use one"
          + " directory for each container."
      )
    case BCS_IN_USE:
      (
        .busy,
        "A live process uses the directory, and it cannot be read beside it; stop that process,"
          + " or give write access to the lock files."
      )
    case BCS_BUSY: (.busy, "Another process holds the lock; try again later.")
    case BCS_READ_ONLY: (.readOnly, "The cache was opened for reading only.")
    case BCS_NO_SPACE: (.noSpace, "No space is left; free some on this disk, or raise the quota.")
    case BCS_NO_DESCRIPTORS:
      (.tooManyFiles, "No file descriptor is left; raise the limit (ulimit -n) or close some.")
    case BCS_NO_MEMORY: (.noMemory, "No memory is left.")
    case BCS_PERMISSION:
      (.permission, "Permission was denied; check the owner and the modes of the directory.")
    case BCS_NOT_FOUND: (.notFound, "The file or directory does not exist.")
    case BCS_IO: (.io, "Reading or writing failed; check the disk and the system's log.")
    case BCS_CORRUPT:
      (
        .corrupt,
        "The index is damaged; close every user of the directory and open it for writing, or run"
          + " blobcache-inspect verify --repair: it is set aside then, and the blobs are kept."
      )
    case BCS_DAMAGED: (.corrupt, "Stored bytes do not match their digest.")
    case BCS_STALE_WRITE:
      (.superseded, "The entry was removed or replaced in the meantime; it was left alone.")
    case BCS_NEED_BODY: (.busy, "A blob file went away while it was being shared; store it again.")
    case BCS_INDEX: (.underlying, "The index refused an operation.")
    case BCS_CRYPTO: (.underlying, "The digest library refused an operation.")
    default: (.underlying, "The store answered with a status that is not known here.")
    }
  }
}

/// The text up to the first zero.
private func text(of buffer: UnsafeRawBufferPointer) -> String {
  unsafe String(decoding: buffer.prefix { $0 != 0 }, as: UTF8.self)
}

extension bcs_info {
  var pathText: String {
    var copy = self
    return unsafe withUnsafeBytes(of: &copy.path) { unsafe text(of: $0) }
  }
}

extension bcs_page_damage {
  /// The page and what is wrong with it; nil when nothing was found.
  var text: String? {
    guard found else { return nil }
    var copy = self
    let cause = unsafe withUnsafeBytes(of: &copy.cause) {
      unsafe String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self)
    }
    return "page \(page) of index/data.mdb: \(cause)"
  }
}
