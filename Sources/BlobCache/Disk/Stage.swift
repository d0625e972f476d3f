internal import CBlobStore
internal import Dispatch
internal import Synchronization

/// Owns a C stage: a body on its way into a file. Every call blocks, so they are made on the
/// BlockingPool.
///
/// A stage may outlive its store (a slow loader holds one while the last instance closes): the
/// store's shutdown frees what is left, and calls that come later throw `.closed`.
final class Stage: Sendable {
  private let slot: StageSlot
  private let handle: StoreHandle

  private init(_ handle: StoreHandle, _ slot: StageSlot) {
    self.handle = handle
    self.slot = slot
  }

  deinit { free() }

  /// From any thread; later calls throw `.closed`.
  func free() {
    slot.free()
    forgetIfFreed()
  }

  /// Only then, by whoever freed it: a shutdown waits for what it finds in the list, and for nothing else.
  private func forgetIfFreed() {
    if slot.isReleased { handle.stages.remove(slot) }
  }

  static func begin(_ handle: StoreHandle) throws(BlobCache.Error) -> Stage {
    let slot = try unsafe handle.use("stage") { store throws(BlobCache.Error) -> StageSlot in
      var begun: OpaquePointer?
      let status = unsafe bcs_stage_begin(store, &begun)
      guard status == BCS_OK, let begun = unsafe begun else { throw status.lastError("stage") }
      let slot = unsafe StageSlot(begun)
      // At once, so that the shutdown finds it, or has been.
      guard handle.stages.insert(slot) else {
        slot.free()
        throw .closed("stage")
      }
      return slot
    }
    return Stage(handle, slot)
  }

  private func use<R>(
    _ operation: String, _ body: (OpaquePointer) throws(BlobCache.Error) -> R
  ) throws(BlobCache.Error) -> R {
    defer { forgetIfFreed() }
    return try unsafe slot.use(operation, body)
  }

  /// Which entry it is to be, and what its attributes and tags take: what fits depends on both.
  func belongs(to key: BlobCache.Key, besides count: Int) throws(BlobCache.Error) {
    try unsafe use("stage") { stage throws(BlobCache.Error) in
      let status = unsafe key.withUnsafeBytes { key in
        unsafe bcs_stage_for(stage, key.baseAddress, key.count, count)
      }
      guard status == BCS_OK else { throw status.lastError("store") }
    }
  }

  /// Announces how large the body will be, and refuses what does not fit.
  func expect(_ size: Int) throws(BlobCache.Error) {
    try unsafe use("stage") { stage throws(BlobCache.Error) in
      let status = unsafe bcs_stage_expect(stage, UInt64(clamping: size))
      guard status == BCS_OK else { throw status.lastError("store") }
    }
  }

  func write(_ bytes: UnsafeRawBufferPointer) throws(BlobCache.Error) {
    try unsafe use("stage") { stage throws(BlobCache.Error) in
      let status = unsafe bcs_stage_write(stage, bytes.baseAddress, bytes.count)
      guard status == BCS_OK else { throw status.lastError("stage") }
    }
  }

  /// The two halves of `write`, which two threads may do at one time, each in the order of the bytes.
  func append(_ bytes: UnsafeRawBufferPointer) throws(BlobCache.Error) {
    try unsafe use("stage") { stage throws(BlobCache.Error) in
      let status = unsafe bcs_stage_append(stage, bytes.baseAddress, bytes.count)
      guard status == BCS_OK else { throw status.lastError("stage") }
    }
  }

  func hash(_ bytes: UnsafeRawBufferPointer) throws(BlobCache.Error) {
    try unsafe use("stage") { stage throws(BlobCache.Error) in
      let status = unsafe bcs_stage_hash(stage, bytes.baseAddress, bytes.count)
      guard status == BCS_OK else { throw status.lastError("stage") }
    }
  }

  /// Copies (or reflinks) a regular file.
  func copy(file path: String) throws(BlobCache.Error) {
    try unsafe use("stage") { stage throws(BlobCache.Error) in
      let status = unsafe bcs_stage_file(stage, path)
      guard status == BCS_OK else { throw status.lastError("stage") }
    }
  }

  func finish() throws(BlobCache.Error) -> (digest: BlobCache.Digest, size: Int) {
    try unsafe use("stage") {
      stage throws(BlobCache.Error) -> (digest: BlobCache.Digest, size: Int) in
      var size: UInt64 = 0
      var status = BCS_OK
      let digest = unsafe BlobCache.Digest(uninitialized: { out in
        status = unsafe bcs_stage_finish(
          stage, out.baseAddress?.assumingMemoryBound(to: UInt8.self), &size)
      })
      guard status == BCS_OK else { throw status.lastError("stage") }
      return (digest, Int(clamping: size))
    }
  }

  /// Reads back the first `count` bytes of what was written.
  func read(count: Int) throws(BlobCache.Error) -> [UInt8] {
    try unsafe use("stage") { stage throws(BlobCache.Error) -> [UInt8] in
      var failure: BlobCache.Error?
      let bytes = unsafe [UInt8](unsafeUninitializedCapacity: count) { buffer, filled in
        while filled < count {
          var got = 0
          let status = unsafe bcs_stage_read(
            stage, UInt64(filled), buffer.baseAddress.map { unsafe $0 + filled }, count - filled,
            &got)
          if status != BCS_OK { failure = status.lastError("stage") }
          if status != BCS_OK || got == 0 { return }
          filled += got
        }
      }
      if let failure { throw failure }
      guard bytes.count == count else {
        throw BlobCache.Error(BCS_IO, operation: "read", cause: "a staged file is too short")
      }
      return bytes
    }
  }

  /// The finished body, valid after the stage is freed; it belongs to the caller.
  func body() throws(BlobCache.Error) -> OwnedBody {
    try unsafe use("stage") { stage throws(BlobCache.Error) -> OwnedBody in
      var body = unsafe bcs_body()
      let status = unsafe bcs_stage_body(stage, &body)
      guard status == BCS_OK else { throw status.lastError("stage") }
      unsafe body.owned = true
      return unsafe OwnedBody(body)
    }
  }

  /// A write that publishes the finished stage.
  func prepare(
    _ maker: (OpaquePointer, OpaquePointer, inout OpaquePointer?) -> bcs_status
  ) throws(BlobCache.Error) -> PreparedWrite? {
    try unsafe use("store") { stage throws(BlobCache.Error) -> PreparedWrite? in
      try unsafe PreparedWrite.make(handle, "store", stage: self) { store, out in
        unsafe maker(store, stage, &out)
      }
    }
  }
}

/// A body taken over from C, until a BlobStorage takes it.
@safe final class OwnedBody: @unchecked Sendable {  // read-only until its one user takes it
  private var body: bcs_body

  init(_ body: bcs_body) { unsafe self.body = body }

  deinit {
    if unsafe body.owned { unsafe bcs_release_body(&body) }
  }

  func take() -> bcs_body {
    defer { unsafe body.owned = false }
    return unsafe body
  }
}

/// A C stage until somebody frees it: its Stage, or the store's shutdown. Who frees it while it is in
/// use leaves that to the last user.
@safe final class StageSlot: @unchecked Sendable {  // freed when nobody uses it, under the lock
  private struct State {
    var users = 0
    /// Nobody may begin to use it.
    var isFreed = false
    /// Its file is gone.
    var isReleased = false
  }

  private let state = Mutex(State())
  private let pointer: OpaquePointer
  /// Left when it is freed, which whoever uses it may have to do.
  private let freed = DispatchGroup()

  init(_ pointer: OpaquePointer) {
    unsafe self.pointer = pointer
    freed.enter()
  }

  private func release() {
    unsafe bcs_stage_free(pointer)
    state.withLock { $0.isReleased = true }
    freed.leave()
  }

  var isReleased: Bool { state.withLock { $0.isReleased } }

  /// Blocks for as long as a call takes that is inside.
  func waitUntilFreed() { freed.wait() }

  func use<R>(
    _ operation: String, _ body: (OpaquePointer) throws(BlobCache.Error) -> R
  ) throws(BlobCache.Error) -> R {
    let entered = state.withLock { state in
      if state.isFreed { return false }
      state.users += 1
      return true
    }
    guard entered else { throw .closed(operation) }
    defer {
      let mustFree = state.withLock { state in
        state.users -= 1
        return state.isFreed && state.users == 0
      }
      if mustFree { release() }
    }
    return try unsafe body(pointer)
  }

  func free() {
    let mustFree = state.withLock { state in
      if state.isFreed { return false }
      state.isFreed = true
      return state.users == 0
    }
    if mustFree { release() }
  }
}

/// The stages of a store that are not freed, for its shutdown.
final class StageList: Sendable {
  private struct State {
    var slots: [ObjectIdentifier: StageSlot] = [:]
    var isClosed = false
  }

  private let state = Mutex(State())

  /// False after the shutdown: its file would stay.
  func insert(_ slot: StageSlot) -> Bool {
    state.withLock { state in
      if state.isClosed { return false }
      state.slots[ObjectIdentifier(slot)] = slot
      return true
    }
  }

  func remove(_ slot: StageSlot) {
    _ = state.withLock { $0.slots.removeValue(forKey: ObjectIdentifier(slot)) }
  }

  /// Their files are gone when it returns; none comes later.
  func freeAll() {
    let slots = state.withLock { state in
      state.isClosed = true
      return Array(state.slots.values)
    }
    for slot in slots { slot.free() }
    for slot in slots { slot.waitUntilFreed() }
  }
}
