extension BlobCache {
  /// Takes the bytes of a blob that is stored piece by piece; see
  /// ``BlobCache/store(for:lifetime:staleWindow:attributes:tags:expecting:expectingSize:body:)-(Key,_,_,_,_,_,_,_)``.
  public struct Body: ~Copyable, Sendable {
    let staged: StagedBody

    /// Bytes written so far.
    public var count: Int { staged.count }

    /// Announces how many bytes the blob will have in all; another number is not stored. As `expectingSize:`, for
    /// those who learn it late.
    ///
    /// An announced blob may take all of the directory's limit in bytes. Without an announcement it is
    /// refused beyond half of it, so that at least about half of what is there stays.
    ///
    /// - Throws: ``Error`` with code ``Error/Code/tooLarge`` or ``Error/Code/pinsTooLarge``, before anything makes
    ///   room for it; ``Error/Code/invalidArgument`` for a negative size; or it could not be staged.
    public mutating func expect(size: Int) async throws(Error) {
      try await staged.expect(size)
    }

    /// Adds bytes. Waits while the disk is behind, so that a body of any size takes little memory.
    ///
    /// - Throws: ``Error``: the task was cancelled, the bytes could not be written, or they are more than fits
    ///   (``Error/Code/tooLarge``).
    public mutating func write(_ bytes: some Collection<UInt8>) async throws(Error) {
      try await staged.write(bytes)
    }
  }
}
