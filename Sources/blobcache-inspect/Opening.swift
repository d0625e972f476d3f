internal import BlobCache
internal import Synchronization

extension Target {
  /// Opens the directory so that nothing in it changes, not even an access time, and closes it after `body`.
  func reading<R>(_ body: (BlobCache, Troubles) async throws -> R) async throws -> R {
    var configuration = BlobCache.Configuration()
    configuration.readOnly = true
    return try await using(configuration) { cache, troubles in
      if cache.info.unlocked {
        Output.complain(
          "note: \(quoted(directory.utf8)) cannot be written here; reading it without locks")
      }
      return try await body(cache, troubles)
    }
  }

  /// Opens the directory for changes; only `put` makes one.
  func writing<R>(creating: Bool = false, _ body: (BlobCache) async throws -> R) async throws -> R {
    var configuration = BlobCache.Configuration()
    configuration.createsDirectory = creating
    configuration.sweepInterval = nil
    return try await using(configuration) { cache, _ in try await body(cache) }
  }

  private func using<R>(
    _ configuration: BlobCache.Configuration,
    _ body: (BlobCache, Troubles) async throws -> R
  ) async throws -> R {
    let troubles = Troubles()
    var configuration = configuration
    configuration.createsDirectory = configuration.createsDirectory && !configuration.readOnly
    configuration.durability = .asRecorded
    configuration.usesRecordedModes = true
    configuration.onEvent = { troubles.note($0) }
    let cache = try await BlobCache.open(directory, configuration: configuration)
    do {
      let result = try await body(cache, troubles)
      try await cache.close()
      return result
    } catch {
      // The first error is the one to tell.
      do { try await cache.close() } catch {}
      throw error
    }
  }
}

/// Why lookups missed, where it was not that there was nothing: the library makes damage a miss and tells it here.
final class Troubles: Sendable {
  private let last = Mutex<BlobCache.Event?>(nil)

  func note(_ event: BlobCache.Event) {
    guard event.kind == .damaged || event.kind == .lookupFailed else { return }
    last.withLock { $0 = event }
  }

  /// The failure of a lookup that found nothing.
  func absence(of subject: Subject) -> Failure {
    let event = last.withLock { $0 }
    switch event?.kind {
    case .damaged:
      return Failure(
        "the bytes of \(subject.words) are damaged; verify --repair takes them out", status: .found)
    case .lookupFailed:
      let error = (event?.error).map { escaped("\($0)") } ?? "unknown"
      return Failure("cannot read \(subject.words): \(error)")
    default: return Failure("not in the cache: \(subject.words)", status: .found)
    }
  }
}

extension Subject {
  /// For messages.
  var words: String {
    switch self {
    case .key(let key): quoted(key.bytes)
    case .digest(let digest): "sha256:\(digest.hex)"
    }
  }
}
