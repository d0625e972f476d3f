extension BlobCache {
  /// What a sweep removed.
  public struct SweepReport: Hashable, Sendable {
    /// Entries that had expired and whose stale window was over, or that were older than the limit.
    public var expired = 0
    /// Blob files that no entry used.
    public var unreferencedFiles = 0
    /// Entries whose blob file a power cut has taken back; looked for once after it.
    public var missingFiles = 0
    /// Bodies that processes which are gone had not finished.
    public var deadStagingFiles = 0
    /// Damaged files that exceeded what is kept for the operator.
    public var quarantinedFiles = 0

    /// Nothing removed.
    public init() {}
  }
}
