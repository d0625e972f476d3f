extension BlobCache {
  /// Where ``BlobCache/fetch(_:lifetime:policy:attributes:loader:)-(Key,_,_,_,_)`` may take a blob from.
  public struct FetchPolicy: Hashable, Sendable {
    enum Form: Hashable, Sendable { case cacheFirst, cacheOnly, reload }
    let form: Form

    /// The fresh entry if there is one, else the loader. The default.
    public static let cacheFirst = FetchPolicy(form: .cacheFirst)

    /// The fresh entry if there is one, else an error with code ``Error/Code/notCached``. The loader
    /// is never run and a load that others wait for is not waited for.
    public static let cacheOnly = FetchPolicy(form: .cacheOnly)

    /// The loader, whatever the cache holds; the entry, fresh or not, is the loader's
    /// ``Load/previous``.
    ///
    /// It never joins a load that began earlier, since that may have asked the origin too early. A
    /// load of the same key that is under way is superseded: its waiters get its result, marked
    /// ``Blob/Source-swift.enum/loadedNotStored(_:)``, and it is not stored. Whoever asks for the
    /// key from now on joins the reload.
    public static let reload = FetchPolicy(form: .reload)
  }
}

extension BlobCache.FetchPolicy: CustomStringConvertible {
  /// The name of the policy, such as `cacheFirst`.
  public var description: String {
    switch form {
    case .cacheFirst: "cacheFirst"
    case .cacheOnly: "cacheOnly"
    case .reload: "reload"
    }
  }
}
