internal import CBlobStore
internal import Synchronization

/// A body that is being written: in memory up to the inline threshold, then in a staging file.
///
/// Full buffers of 256 KiB go to the BlockingPool, in order, so that the producer goes on while
/// they are hashed and written; with four outstanding, `write` waits. So a body of any size takes
/// about 1.5 MiB of memory; 4 MiB of buffers at most are kept for the next ones.
///
/// Where staging fails (a full disk, no descriptor) and `fallsBackToMemory` was asked for, the
/// bytes so far are read back and the rest is kept in memory, 64 MiB at most: what was loaded can
/// still be handed over, though not stored.
///
/// Used by one task at a time. In order: `write`…, `finish`, then `commit` or `unstoredBlob`; or
/// `discard` at any time. Anybody may `abandon` it.
final class StagedBody: @unchecked Sendable {  // one task at a time; others see only what is locked
  static let bufferSize = StageBuffers.size
  static let memoryLimit = 64 << 20

  private let store: Store
  private let fallsBackToMemory: Bool
  /// The entry that it is to be, and what its attributes and tags take, as far as that is known.
  private let key: BlobCache.Key?
  private let besides: Int
  /// How many bytes it will have, where that is known.
  private var expectedSize: Int?
  /// The instance whose loader writes it.
  private let owner: FlightOwner?
  private var buffer: [UInt8] = []
  private var writer: StageWriter?
  /// Why the body is in memory although it is large.
  private var stagingFailure: BlobCache.Error?
  private var finished: (digest: BlobCache.Digest, size: Int)?

  /// What those who abandon it may touch.
  private struct Abandonment {
    var isAbandoned = false
    var stage: Stage?
  }

  private let abandonment = Mutex(Abandonment())

  init(
    store: Store, for key: BlobCache.Key? = nil, besides: Int = 0, fallsBackToMemory: Bool,
    owner: FlightOwner? = nil
  ) {
    self.store = store
    self.key = key
    self.besides = besides
    self.owner = owner
    self.fallsBackToMemory = fallsBackToMemory
  }

  /// Announces how many bytes it will have in all; with another number it is not stored.
  ///
  /// - Throws: what keeps so many from being stored, before anything makes room for them; with
  ///   `fallsBackToMemory`, only if they cannot be kept in memory either.
  func expect(_ size: Int) async throws(BlobCache.Error) {
    guard size >= 0 else {
      throw BlobCache.Error(
        .invalidArgument, operation: "store", path: store.handle.info.path,
        message: "A size is not negative; leave it out where it is not known.",
        cause: "\(size) was given")
    }
    expectedSize = size
    guard stagingFailure == nil, size > store.inlineThreshold else { return }
    if let stage = writer?.stage {
      return try await BlockingPool.shared.attempt { () throws(BlobCache.Error) -> Void in
        try stage.expect(size)
      }
    }
    try await beginStage(announcing: size)
    if size > Self.memoryLimit, let stagingFailure { throw stagingFailure }
  }

  /// Bytes written so far.
  private(set) var count = 0

  func write(_ bytes: some Collection<UInt8>) async throws(BlobCache.Error) {
    if Task.isCancelled { throw endOfTask() }
    count += bytes.count
    do throws(BlobCache.Error) {
      if bytes.withContiguousStorageIfAvailable({ $0.count }) == nil {
        return try await append([UInt8](bytes))
      }
      try await append(bytes)
    } catch {
      // Abandoned in the middle, it is closed, though its cache may not be.
      if error.code == .closed && Task.isCancelled { throw endOfTask() }
      throw error
    }
  }

  private func endOfTask() -> BlobCache.Error {
    if let owner, store.flights.isClosed(owner) { return .closed("write") }
    return .cancelled("write")
  }

  /// In pieces that fill a buffer, since a body in one piece of a gigabyte must not be copied
  /// whole.
  private func append(_ bytes: some Collection<UInt8>) async throws(BlobCache.Error) {
    let total = bytes.count
    var offset = 0
    while offset < total {
      let room = stagingFailure == nil ? Self.bufferSize - buffer.count : total - offset
      let end = min(total, offset + room)
      if stagingFailure == nil, buffer.count + end - offset > Self.bufferSize / 4 { takeBuffer() }
      bytes.withContiguousStorageIfAvailable { source in
        unsafe buffer.append(contentsOf: source[offset..<end])
      }
      offset = end
      if stagingFailure != nil {
        try checkMemory()
      } else if buffer.count == Self.bufferSize {
        try await spill()
      }
    }
    if writer == nil, stagingFailure == nil, buffer.count > store.inlineThreshold,
      buffer.count > Self.bufferSize / 4
    {
      // Begun early enough that the last buffer is not the only one hashed while nobody writes.
      try await beginStage(announcing: nil)
    }
  }

  /// What was a small body becomes one that is written by buffers.
  private func takeBuffer() {
    guard buffer.capacity < Self.bufferSize else { return }
    let small = buffer
    buffer = StageBuffers.take()
    buffer.append(contentsOf: small)
  }

  private func checkMemory() throws(BlobCache.Error) {
    if buffer.count > Self.memoryLimit, let stagingFailure { throw stagingFailure }
  }

  private func beginStage(announcing size: Int?) async throws(BlobCache.Error) {
    guard writer == nil else { return }
    let handle = store.handle
    let key = key
    let besides = besides
    do throws(BlobCache.Error) {
      let stage = try await BlockingPool.shared.attempt { () throws(BlobCache.Error) -> Stage in
        let stage = try Stage.begin(handle)
        if let key { try stage.belongs(to: key, besides: besides) }
        if let size { try stage.expect(size) }
        return stage
      }
      let isAbandoned = abandonment.withLock { state in
        state.stage = stage
        return state.isAbandoned
      }
      if isAbandoned { stage.free() }
      writer = StageWriter(stage)
    } catch {
      try fallBack(error)
    }
  }

  /// Hands the full buffer to the pool.
  private func spill() async throws(BlobCache.Error) {
    try await beginStage(announcing: nil)
    guard let writer else { return }
    let full = buffer
    buffer = StageBuffers.take()
    do throws(BlobCache.Error) {
      try await writer.write(full)
    } catch {
      try await fallBack(from: writer, error)
    }
  }

  private func fallBack(_ error: BlobCache.Error) throws(BlobCache.Error) {
    guard fallsBackToMemory, error.code != .closed, error.code != .forked else { throw error }
    stagingFailure = error
  }

  private func fallBack(
    from writer: StageWriter, _ error: BlobCache.Error
  ) async throws(BlobCache.Error) {
    try fallBack(error)
    let tail = buffer
    let (written, unwritten) = writer.stop()
    guard count <= Self.memoryLimit + Self.bufferSize else { throw error }
    let stage = writer.stage
    buffer = try await BlockingPool.shared.attempt { () throws(BlobCache.Error) -> [UInt8] in
      try stage.read(count: written)
    }
    for piece in unwritten { buffer.append(contentsOf: piece) }
    buffer.append(contentsOf: tail)
    self.writer = nil
    abandonment.withLock { $0.stage = nil }
    try checkMemory()
  }

  /// Ends the body and compares it with what is expected of it.
  func finish(
    expecting digest: BlobCache.Digest? = nil, size: Int? = nil
  ) async throws(BlobCache.Error) {
    if writer == nil, stagingFailure == nil, buffer.count > store.inlineThreshold {
      try await beginStage(announcing: buffer.count)
    }
    if let writer {
      do throws(BlobCache.Error) {
        if !buffer.isEmpty {
          let last = buffer
          buffer = []
          try await writer.write(last)
        }
        try await writer.drain()
        let stage = writer.stage
        finished = try await BlockingPool.shared.attempt {
          () throws(BlobCache.Error) -> (digest: BlobCache.Digest, size: Int) in
          try stage.finish()
        }
      } catch {
        try await fallBack(from: writer, error)
      }
    }
    let result: (digest: BlobCache.Digest, size: Int)
    if let finished {
      result = finished
    } else if buffer.count <= Self.bufferSize / 4 {
      result = (BlobCache.Digest(hashing: buffer), buffer.count)
    } else {
      let bytes = buffer
      result = await BlockingPool.shared.run { (BlobCache.Digest(hashing: bytes), bytes.count) }
    }
    finished = result
    if let size = size ?? expectedSize, result.size != size {
      throw BlobCache.Error(
        .sizeMismatch, operation: "store", path: store.handle.info.path,
        message: "The body does not have the size that was expected; nothing was stored."
          + " Bring it again, or correct the size.",
        cause: "\(result.size) bytes, expected \(size)")
    }
    if let digest { try store.check(result.digest, digest) }
  }

  /// Stores the finished body; returns when every process sees it.
  func commitEntry(
    key: BlobCache.Key, lifetime: Freshness, attributes: BlobCache.Attributes, tags: [String]
  ) async throws(BlobCache.Error) -> BlobCache.Entry {
    let spec = try EntrySpec(
      key: key, lifetime: lifetime, attributes: attributes, tags: tags, now: store.now)
    return try await commit(spec).entry(now: spec.now)
  }

  /// As above, and gives the blob.
  func commit(
    key: BlobCache.Key, lifetime: Freshness, attributes: BlobCache.Attributes, tags: [String] = []
  ) async throws(BlobCache.Error) -> BlobCache.Blob {
    let spec = try EntrySpec(
      key: key, lifetime: lifetime, attributes: attributes, tags: tags, now: store.now)
    // The body first: after the commit, the staging file belongs to the store.
    let body = try await stagedBody()
    let write = try await commit(spec)
    let storage = unsafe buffer.withUnsafeBufferPointer { bytes in
      unsafe write.storage(
        body: body?.take() ?? bcs_body(),
        inline: body == nil ? bytes : .init(start: nil, count: 0), now: spec.now)
    }
    return BlobCache.Blob(storage: storage, source: .loaded)
  }

  private func commit(_ spec: EntrySpec) async throws(BlobCache.Error) -> PreparedWrite {
    if let stagingFailure { throw stagingFailure }
    guard let finished else { throw BlobCache.Error(BCS_INVALID, operation: "store") }
    let cost = spec.cost + buffer.count
    try await store.queue.admit(cost)
    defer { store.queue.release(cost) }
    let write: PreparedWrite
    if let stage = writer?.stage {
      let store = store
      write = try await BlockingPool.shared.attempt {
        () throws(BlobCache.Error) -> PreparedWrite in try store.prepareStaged(spec, stage)
      }
    } else {
      write = try Result { () throws(BlobCache.Error) -> PreparedWrite in
        try store.prepareInline(spec, buffer, known: finished.digest)
      }.get()
    }
    try await store.commit(write, inPlace: writer == nil)
    return write
  }

  private func stagedBody() async throws(BlobCache.Error) -> OwnedBody? {
    guard let stage = writer?.stage else { return nil }
    return try await BlockingPool.shared.attempt { () throws(BlobCache.Error) -> OwnedBody in
      try stage.body()
    }
  }

  /// The finished body as a blob that is not in the store.
  func unstoredBlob(
    key: BlobCache.Key, lifetime: Freshness, attributes: BlobCache.Attributes,
    tags: [String] = [], cause: BlobCache.Error
  ) async throws(BlobCache.Error) -> BlobCache.Blob {
    guard let finished else { throw BlobCache.Error(BCS_INVALID, operation: "store") }
    // Attributes or tags that are too large are a reason not to store; the bytes are handed over without.
    let (encoded, encodedTags): ([UInt8], [UInt8])
    do throws(BlobCache.Error) { encoded = try attributes.encoded() } catch { encoded = [] }
    do throws(BlobCache.Error) {
      encodedTags = try TagCoding.encode(tags)
    } catch {
      encodedTags = []
    }
    let body = try await stagedBody()
    let now = store.now
    let storage = unsafe key.withUnsafeBytes { key in
      unsafe encoded.withUnsafeBufferPointer { attributes in
        unsafe encodedTags.withUnsafeBufferPointer { tags in
          unsafe buffer.withUnsafeBufferPointer { bytes in
            var record = unsafe bcs_record()
            unsafe withUnsafeMutableBytes(of: &record.digest) { out in
              unsafe finished.digest.withUnsafeBytes { unsafe out.copyMemory(from: $0) }
            }
            unsafe record.size = UInt64(finished.size)
            unsafe record.lifetime = lifetime.stored(at: now)
            unsafe record.stale_ms = lifetime.staleWindow
            unsafe record.written_ms = now
            unsafe record.access_ms = now
            unsafe record.key = key.baseAddress?.assumingMemoryBound(to: UInt8.self)
            unsafe record.key_count = key.count
            unsafe record.attributes = attributes.baseAddress
            unsafe record.attributes_count = attributes.count
            unsafe record.tags = tags.baseAddress
            unsafe record.tags_count = tags.count
            let expiredFor = unsafe spanSinceExpiry(&record, now: now) ?? -1
            return unsafe BlobStorage.make(
              &record, expiredFor: expiredFor, body: body?.take() ?? bcs_body(),
              inline: body == nil ? bytes : .init(start: nil, count: 0))
          }
        }
      }
    }
    return BlobCache.Blob(storage: storage, source: .loadedNotStored(cause))
  }

  /// Throws the bytes away.
  func discard() {
    buffer = []
    writer = nil
    finished = nil
    abandonment.withLock { $0.stage = nil }
  }

  /// Gives up the file that is being written, from any thread: whoever writes on finds it closed.
  /// Nobody waits for the bytes any more, and who writes them may never end.
  func abandon() {
    let stage = abandonment.withLock { state in
      state.isAbandoned = true
      return state.stage.take()
    }
    stage?.free()
  }
}

extension Store {
  /// A body in an array whose digest is known.
  func prepareInline(
    _ spec: EntrySpec, _ bytes: [UInt8], known digest: BlobCache.Digest
  ) throws(BlobCache.Error) -> PreparedWrite {
    try unsafe bytes.withUnsafeBufferPointer { buffer throws(BlobCache.Error) -> PreparedWrite in
      try unsafe prepareInline(spec, buffer, digest: digest)
    }
  }
}
