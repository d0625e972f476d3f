internal import CBlobStore

/// Owns a C write from its preparation to its result.
///
/// It belongs to one thread at a time: whoever prepared it, then the queue, then again whoever
/// prepared it.
@safe final class PreparedWrite: @unchecked Sendable {  // handed on, never used by two at once
  private let raw: OpaquePointer
  /// Kept alive as long as the write: its memory is C's.
  private let handle: StoreHandle
  /// Borrowed by the write: kept alive until the write is freed.
  private let stage: Stage?
  /// Set by whoever committed the batch, when that failed as a whole.
  var batchFailure: BlobCache.Error?

  private init(
    raw: OpaquePointer, handle: StoreHandle, stage: Stage?
  ) {
    unsafe self.raw = raw
    self.handle = handle
    self.stage = stage
  }

  deinit { unsafe bcs_write_free(raw) }

  /// What a C maker makes; nil when it answers BCS_MISS.
  static func make(
    _ handle: StoreHandle, _ operation: String, stage: Stage? = nil,
    _ maker: (OpaquePointer, inout OpaquePointer?) -> bcs_status
  ) throws(BlobCache.Error) -> PreparedWrite? {
    var raw: OpaquePointer?
    let status = unsafe maker(handle.pointer, &raw)
    guard status == BCS_OK, let raw = unsafe raw else {
      let error = status.lastError(operation)
      if status == BCS_MISS { return nil }
      throw error
    }
    return unsafe PreparedWrite(raw: raw, handle: handle, stage: stage)
  }

  /// For the call that commits.
  var pointer: OpaquePointer { unsafe raw }

  /// The status after the commit; throws what is neither OK nor one of the answers that callers
  /// handle.
  func outcome(_ operation: String) throws(BlobCache.Error) -> bcs_status {
    if let batchFailure { throw batchFailure }
    var report = bcs_error()
    let status = unsafe bcs_write_result(raw, &report)
    switch status {
    case BCS_OK, BCS_MISS, BCS_STALE_WRITE, BCS_NEED_BODY: return status
    default: throw BlobCache.Error(report, status: status, operation: operation)
    }
  }

  /// The entry as it was committed.
  func entry(now: Int64) -> BlobCache.Entry {
    var record = unsafe bcs_record()
    unsafe bcs_write_record(raw, &record)
    return unsafe BlobCache.Entry(record, now: now)
  }

  /// The entry as it was committed, with its body: an owned one, or else a copy of `inline`.
  func storage(
    body: bcs_body, inline: UnsafeBufferPointer<UInt8>, now: Int64
  ) -> BlobStorage {
    var record = unsafe bcs_record()
    unsafe bcs_write_record(raw, &record)
    // A loader may bring what has expired.
    let expiredFor = unsafe spanSinceExpiry(&record, now: now) ?? -1
    return unsafe BlobStorage.make(&record, expiredFor: expiredFor, body: body, inline: inline)
  }
}
