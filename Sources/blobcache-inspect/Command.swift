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
  case clear(ClearCommand)
}

/// The first word.
enum Verb: String, CaseIterable {
  case stats, list, show, cat, verify, put, remove, renew, clear, help, version

  /// What it understands besides `--help`.
  var options: Set<Option> {
    switch self {
    case .stats: [.json]
    case .list: [.json, .prefix, .expired, .sort, .reverse, .limit]
    case .show: [.json, .digest, .key]
    case .cat: [.digest, .key]
    case .verify: [.json, .repair]
    case .put: [.json, .key, .ttl, .sliding, .atMost, .forever, .attribute]
    case .remove: [.json, .key, .prefix]
    case .renew: [.json, .key, .ttl, .sliding, .atMost, .forever]
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
  var expiredOnly = false
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
}

struct RemoveCommand: Equatable {
  enum Which: Equatable {
    case keys([BlobCache.Key])
    case prefix(BlobCache.Key)
  }

  let target: Target
  let which: Which
}

struct RenewCommand: Equatable {
  let target: Target
  let key: BlobCache.Key
  let lifetime: BlobCache.Lifetime
}

struct ClearCommand: Equatable {
  let target: Target
  var confirmed = false
}
