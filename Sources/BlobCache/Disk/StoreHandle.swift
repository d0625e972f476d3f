internal import CBlobStore

/// Owns the C handle: opens it, lets calls in while it is open, closes it once, when nobody is
/// inside.
@safe final class StoreHandle: @unchecked Sendable {
  // Sendable: C allows any thread, and calls on a shut store.
  private let raw: OpaquePointer
  let stages = StageList()
  let info: BlobCache.DirectoryInfo
  let identity: StoreIdentity

  init(directory: String, configuration: BlobCache.Configuration) throws(BlobCache.Error) {
    try configuration.checkModes(for: directory)
    var options = unsafe bcs_options()
    switch configuration.durability.form {
    case .checkpointed: unsafe options.durability = BCS_CHECKPOINTED
    case .durable: unsafe options.durability = BCS_DURABLE
    case .asRecorded: unsafe options.durability = BCS_AS_RECORDED
    }
    switch configuration.verification.form {
    case .onFirstRead: unsafe options.verification = BCS_VERIFY_FIRST_READ
    case .always: unsafe options.verification = BCS_VERIFY_ALWAYS
    case .never: unsafe options.verification = BCS_VERIFY_NEVER
    }
    unsafe options.copies_bodies = configuration.mapping == .copy
    unsafe options.read_only = configuration.readOnly
    unsafe options.create = configuration.createsDirectory && !configuration.readOnly
    unsafe options.allow_network_fs = configuration.allowsNetworkFileSystem
    unsafe options.recorded_modes = configuration.usesRecordedModes
    unsafe options.directory_mode = configuration.directoryMode
    unsafe options.file_mode = configuration.fileMode
    unsafe options.inline_threshold = configuration.inlineThreshold
    unsafe options.initial_map_size = configuration.initialMapSize
    unsafe options.file_system_type = configuration.fileSystemType

    var opened: OpaquePointer?
    var status: bcs_status
    if let bootID = configuration.bootID {
      status = unsafe bootID.withCString { text in
        unsafe options.boot_id = text
        return unsafe bcs_open(directory, &options, &opened)
      }
    } else {
      status = unsafe bcs_open(directory, &options, &opened)
    }
    guard status == BCS_OK, let opened = unsafe opened else { throw status.lastError("open") }
    unsafe raw = opened
    var info = bcs_info()
    unsafe bcs_get_info(opened, &info)
    identity = StoreIdentity(device: info.device, inode: info.inode)
    self.info = BlobCache.DirectoryInfo(
      path: info.pathText,
      durability: info.durability == BCS_DURABLE ? .durable : .checkpointed,
      inlineThreshold: Int(info.inline_threshold), mapSize: Int(clamping: info.map_size),
      unlocked: info.unlocked, indexSetAside: info.index_set_aside,
      indexRestored: info.index_restored, slotsRebuilt: info.slots_rebuilt)
  }

  deinit { unsafe bcs_close(raw) }

  /// Calls into C.
  @inline(__always)
  func use<R>(
    _ operation: StaticString, _ body: (OpaquePointer) throws(BlobCache.Error) -> R
  ) throws(BlobCache.Error) -> R {
    try unsafe body(raw)
  }

  /// For callers that keep this object alive while they use it.
  var pointer: OpaquePointer { unsafe raw }

  /// Blocks until the calls that run have ended, and gives everything up but the memory of the handle.
  func shut() { unsafe bcs_shut(raw) }
}

/// A directory is known by these, so that a second path to it (a symbolic link) is the same one.
struct StoreIdentity: Hashable, Sendable {
  var device: UInt64
  var inode: UInt64

  init(device: UInt64, inode: UInt64) {
    self.device = device
    self.inode = inode
  }

  /// Nil when the directory is absent or cannot be looked at; opening then says why.
  init?(of directory: String) {
    var device: UInt64 = 0
    var inode: UInt64 = 0
    guard unsafe bcs_identify(directory, &device, &inode) == BCS_OK else { return nil }
    self.init(device: device, inode: inode)
  }
}
