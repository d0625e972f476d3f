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
  /// For system calls made from Swift.
  init(errno code: CInt, operation: String, path: String) {
    self.init(
      bcs_status_of_errno(code), operation: operation, path: path, cause: systemMessage(code))
  }

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
    case BCS_INVALID:
      (.invalidArgument, "An argument is out of range, or a call came out of order; see the cause.")
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
        "The blob is larger than the room in the directory's limit in bytes, which is the limit less"
          + " 128 KiB for the index; nothing was stored. Raise the limit."
      )
    case BCS_UNANNOUNCED:
      (
        .tooLarge,
        "The blob takes more than half of the directory's limit in bytes, and its size was not known;"
          + " nothing was stored. Announce its size beforehand (expectingSize:, expect(size:)), or"
          + " raise the limit."
      )
    case BCS_PINS_TOO_LARGE:
      (
        .pinsTooLarge,
        "What is pinned leaves no room for it below the directory's limit in bytes or in entries; unpin"
          + " some, or raise that limit."
      )
    case BCS_NOT_A_CACHE:
      (
        .notACache,
        "The directory is no cache, and was left alone; name an empty or absent one, or put back the"
          + " file FORMAT of one that was: two lines, `blobcache 1` and `durability checkpointed` or `durable`."
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
        "A link stands in the way, and none is followed; remove it, or name what it points to."
      )
    case BCS_SOURCE_LINK:
      (
        .symbolicLink,
        "The file to store is a symbolic link, which is not followed; name the file it points to."
      )
    case BCS_SOURCE_KIND:
      (.invalidArgument, "Only a regular file can be stored; name one, or stream the bytes.")
    case BCS_NOT_OURS:
      (
        .permission,
        "The directory belongs to another user, or others may write in it; use one of your own."
      )
    case BCS_NOT_DIRECTORY:
      (.notADirectory, "A file stands where a folder should be; move it away or use another path.")
    case BCS_IS_DIRECTORY:
      (.isADirectory, "A folder stands where a file should be; move it away or use another path.")
    case BCS_PATH_TOO_LONG:
      (.invalidArgument, "The path, or a name in it, is longer than the system allows; shorten it.")
    case BCS_OTHER_NAMESPACE:
      (
        .otherNamespace,
        "A process of another pid namespace uses the directory; share the namespace, or use one"
          + " directory for each container."
      )
    case BCS_GONE:
      (
        .notFound,
        "The directory was removed or renamed while it was open; close it in this process, and open"
          + " it again."
      )
    case BCS_IN_USE:
      (
        .busy,
        "A live process uses the directory, and it cannot be read beside it; stop that process,"
          + " or give write access to the lock files."
      )
    case BCS_BUSY: (.busy, "Another process holds the lock; try again later.")
    case BCS_HELD:
      (
        .busy,
        "A process stands still in a lookup, and the index would outgrow its bound beside it; nothing"
          + " was stored. Continue or end the process that the cause names."
      )
    case BCS_READ_ONLY:
      (.readOnly, "The cache was opened for reading only; open it for writing to change it.")
    case BCS_READ_ONLY_FS:
      (
        .readOnly,
        "The file system is mounted read-only; mount it for writing, or use another directory."
      )
    case BCS_NO_SPACE:
      (
        .noSpace,
        "No space is left; free some on this disk, or raise the quota, or the limit on the size of files if it is that."
      )
    case BCS_NO_DESCRIPTORS:
      (.tooManyFiles, "No file descriptor is left; raise the limit (ulimit -n) or close some.")
    case BCS_NO_MEMORY: (.noMemory, "No memory is left; free some, or raise the limit.")
    case BCS_PERMISSION:
      (
        .permission,
        "Permission was denied; check owner and modes, also of the folders on the way to it."
      )
    case BCS_NOT_FOUND: (.notFound, "The file or directory does not exist; check the path.")
    case BCS_IO: (.io, "Reading or writing failed; check the disk and the system's log.")
    case BCS_CORRUPT:
      (
        .corrupt,
        "The index is damaged; close every user of the directory and open it for writing, or run"
          + " blobcache-inspect verify --repair: it is set aside then, and the blobs are kept."
      )
    case BCS_OTHER_BOOT:
      (
        .corrupt,
        "The machine was started anew since the directory was used, and its index may be torn; open it"
          + " for writing, or run blobcache-inspect verify --repair: a new index is begun, and the"
          + " blobs are kept."
      )
    case BCS_INCOMPLETE:
      (
        .corrupt,
        "A part of the cache is missing or empty; open the directory for writing, or run"
          + " blobcache-inspect verify --repair: it is made anew, and what is left is kept."
      )
    case BCS_DAMAGED:
      (.corrupt, "Stored bytes do not match their digest; they are taken out, load them again.")
    case BCS_STALE_WRITE:
      (.superseded, "The entry was removed or replaced in the meantime; it was left alone.")
    case BCS_NEED_BODY: (.busy, "A blob file went away while it was being shared; store it again.")
    case BCS_INDEX:
      (.underlying, "The index refused an operation; see the cause, and open the directory again.")
    case BCS_CRYPTO:
      (.underlying, "OpenSSL refused to make a digest; check its installation and configuration.")
    default:
      (.underlying, "The store answered with a status that is not known here: a bug of BlobCache.")
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
