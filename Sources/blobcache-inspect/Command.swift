internal import BlobCache

/// What the words ask for.
enum Command: Equatable {
  case help(Verb?)
  case version
  case stats(StatsCommand)
  case list(ListCommand)
  case show(ShowCommand)
  case cat(CatCommand)
  case verify(VerifyCommand)
  case put(PutCommand)
  case remove(RemoveCommand)
  case renew(RenewCommand)
  case pin(PinCommand)
  case trim(TrimCommand)
  case sweep(SweepCommand)
  case clear(ClearCommand)
}

/// The first word.
enum Verb: String, CaseIterable {
  case stats, list, show, cat, verify, put, remove, renew, pin, unpin, trim, sweep, clear, help
  case version

  /// What it understands besides `--help`.
  var options: Set<Option> {
    switch self {
    case .stats: [.json]
    case .list: [.json, .prefix, .tag, .expired, .pinned, .sort, .reverse, .limit]
    case .show: [.json, .digest, .key, .keyBase64]
    case .cat: [.digest, .key, .keyBase64]
    case .verify: [.json, .repair]
    case .put:
      [
        .json, .key, .keyBase64, .ttl, .sliding, .atMost, .forever, .attribute, .tag, .pin,
      ]
    case .remove: [.json, .key, .keyBase64, .prefix, .tag, .expired, .larger, .older]
    case .renew: [.json, .key, .keyBase64, .ttl, .sliding, .atMost, .forever]
    case .pin, .unpin: [.json, .key, .keyBase64]
    case .trim: [.json, .bytes, .entries, .age, .dryRun, .record]
    case .sweep: [.json]
    case .clear: [.json, .yes]
    case .help, .version: []
    }
  }
}

/// What most commands begin with.
struct Target: Equatable {
  let directory: String
  /// Output for programs.
  let json: Bool
}

/// An entry by its key, or by its content.
enum Subject: Equatable {
  case key(BlobCache.Key)
  case digest(BlobCache.Digest)
}

struct StatsCommand: Equatable {
  let target: Target
}

struct ListCommand: Equatable {
  enum Sort: String, CaseIterable {
    case size, age, hits, expiry
  }

  let target: Target
  var prefix: BlobCache.Key?
  var tag: String?
  var expiredOnly = false
  var pinnedOnly = false
  var sort: Sort?
  var reverse = false
  var limit: Int?
}

struct ShowCommand: Equatable {
  let target: Target
  let subject: Subject
}

struct CatCommand: Equatable {
  let target: Target
  let subject: Subject
}

struct VerifyCommand: Equatable {
  let target: Target
  var repair = false
}

struct PutCommand: Equatable {
  enum Source: Equatable {
    case standardInput
    /// A path, as the bytes that it was given in.
    case file([UInt8])
  }

  let target: Target
  let key: BlobCache.Key
  var source: Source = .standardInput
  var lifetime: BlobCache.Lifetime?
  var attributes: BlobCache.Attributes = [:]
  var tags: [String] = []
  var pins = false
}

struct RemoveCommand: Equatable {
  enum Which: Equatable {
    case keys([BlobCache.Key])
    case matching(BlobCache.Selection)
  }

  let target: Target
  let which: Which
}

struct RenewCommand: Equatable {
  let target: Target
  let key: BlobCache.Key
  let lifetime: BlobCache.Lifetime
}

struct PinCommand: Equatable {
  let target: Target
  let key: BlobCache.Key
  /// Pins, or lets go.
  let pins: Bool
}

struct TrimCommand: Equatable {
  /// `none`, or how much.
  enum Bound<Value: Equatable>: Equatable {
    case unlimited
    case most(Value)
  }

  let target: Target
  /// Nil: as recorded.
  var bytes: Bound<Int>?
  var entries: Bound<Int>?
  var age: Bound<Duration>?
  var isDryRun = false
  var records = false
}

struct SweepCommand: Equatable {
  let target: Target
}

struct ClearCommand: Equatable {
  let target: Target
  var confirmed = false
}
