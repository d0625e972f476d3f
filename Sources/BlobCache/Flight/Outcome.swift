extension BlobCache {
  /// What a loader has achieved: the value that it returns to
  /// ``BlobCache/fetch(_:lifetime:staleWindow:policy:attributes:tags:loader:)-(Key,_,_,_,_,_,_)``.
  public struct Outcome: Sendable {
    enum Form: Sendable { case complete, unchanged, doNotStore }
    let form: Form
    var lifetime: Lifetime?
    var staleWindow: Duration?
    var attributes: Attributes?
    var tags: [String]?

    /// What was written is the whole blob: store it with the lifetime, attributes and tags that were
    /// given to `fetch`. A loader that wrote nothing stores an empty blob.
    public static let complete = Outcome(form: .complete)

    /// ``complete``, with a lifetime and attributes that only the loader knows.
    ///
    /// - Parameters:
    ///   - lifetime: in place of the one given to `fetch`; nil: that one.
    ///   - staleWindow: for how long after that it is kept, in place of the one given to `fetch`; nil:
    ///     that one.
    ///   - attributes: in place of those given to `fetch`; nil: those.
    ///   - tags: in place of those given to `fetch`; nil: those.
    public static func complete(
      lifetime: Lifetime? = nil, staleWindow: Duration? = nil, attributes: Attributes? = nil,
      tags: [String]? = nil
    ) -> Outcome {
      Outcome(
        form: .complete, lifetime: lifetime, staleWindow: staleWindow, attributes: attributes,
        tags: tags)
    }

    /// The bytes of ``Load/previous`` are still right: keep them, their attributes and tags, and let them
    /// be fresh anew for the lifetime that was given to `fetch`.
    ///
    /// The loader must have written nothing and ``Load/previous`` must not be nil; otherwise `fetch`
    /// throws ``Error/Code/invalidArgument``. If the entry has been removed meanwhile, the bytes at
    /// hand are stored again.
    public static let unchanged = Outcome(form: .unchanged)

    /// ``unchanged``, with a lifetime and attributes that only the loader knows.
    ///
    /// - Parameters:
    ///   - lifetime: in place of the one given to `fetch`; nil: that one.
    ///   - staleWindow: for how long after that it is kept, in place of the one given to `fetch`; nil:
    ///     that one, and if there is none, as it was.
    ///   - attributes: in place of those that are stored; nil: those stay.
    ///   - tags: in place of those that are stored; nil: those stay.
    public static func unchanged(
      lifetime: Lifetime? = nil, staleWindow: Duration? = nil, attributes: Attributes? = nil,
      tags: [String]? = nil
    ) -> Outcome {
      Outcome(
        form: .unchanged, lifetime: lifetime, staleWindow: staleWindow, attributes: attributes,
        tags: tags)
    }

    /// What was written goes to those who wait and nowhere else. An entry that is there stays. The
    /// blob's source is ``Blob/Source-swift.enum/loadedNotStored(_:)`` with ``Error/Code/declined``.
    public static let doNotStore = Outcome(form: .doNotStore)
  }
}
