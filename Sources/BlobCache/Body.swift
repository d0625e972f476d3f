extension BlobCache {
  /// Takes the bytes of a blob that is stored piece by piece; see
  /// ``BlobCache/store(for:lifetime:staleWindow:attributes:tags:expecting:expectingSize:body:)-(Key,_,_,_,_,_,_,_)``.
  public struct Body: ~Copyable, Sendable {
    let staged: StagedBody

    /// Bytes written so far.
    public var count: Int { staged.count }

    /// Adds bytes. Waits while the disk is behind, so that a body of any size takes little memory.
    ///
    /// - Throws: ``Error``: the task was cancelled, or the bytes could not be written.
    public mutating func write(_ bytes: some Collection<UInt8>) async throws(Error) {
      try await staged.write(bytes)
    }
  }
}
