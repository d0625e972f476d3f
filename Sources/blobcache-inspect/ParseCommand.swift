internal import BlobCache

extension Command {
  /// The command that the raw words (without the program's name) ask for. Touches nothing outside.
  init(parsing raw: [[UInt8]]) throws(UsageError) {
    let arguments = try Arguments(raw)
    var words = arguments.words[...]
    let given = arguments.options.map(\.option)
    guard let word = words.popFirst() else {
      if given.contains(.help) {
        self = .help(nil)
      } else if given.contains(.version) {
        self = .version
      } else {
        throw UsageError("no command was given")
      }
      return
    }
    let verb = try Verb(parsing: word)
    if given.contains(.help) {
      self = .help(verb)
      return
    }
    for option in given where !verb.options.contains(option) {
      throw UsageError("\(verb.rawValue) has no option \(option)")
    }
    var reader = Reader(verb: verb, words: words, options: arguments.options)
    self = try reader.command()
    try reader.finish()
  }
}

extension Verb {
  init(parsing word: [UInt8]) throws(UsageError) {
    guard let text = String(validating: word, as: UTF8.self), let verb = Verb(rawValue: text) else {
      throw UsageError("unknown command \(quoted(word))")
    }
    self = verb
  }
}

/// Takes words and options away as the command asks for them; what is left over is an error.
private struct Reader {
  let verb: Verb
  var words: ArraySlice<[UInt8]>
  var options: [Arguments.Given]

  mutating func command() throws(UsageError) -> Command {
    switch verb {
    case .help:
      guard let word = words.popFirst() else { return .help(nil) }
      return .help(try Verb(parsing: word))
    case .version: return .version
    case .stats: return .stats(StatsCommand(target: try target()))
    case .list: return .list(try list())
    case .show: return .show(ShowCommand(target: try target(), subject: try subject()))
    case .cat: return .cat(CatCommand(target: try target(), subject: try subject()))
    case .verify:
      return .verify(VerifyCommand(target: try target(), repair: try flag(.repair)))
    case .put: return .put(try put())
    case .remove: return .remove(try remove())
    case .renew: return .renew(try renew())
    case .pin, .unpin:
      return .pin(PinCommand(target: try target(), key: try key(), pins: verb == .pin))
    case .trim: return .trim(try trim())
    case .sweep: return .sweep(SweepCommand(target: try target()))
    case .clear: return .clear(ClearCommand(target: try target(), confirmed: try flag(.yes)))
    }
  }

  mutating func finish() throws(UsageError) {
    if let word = words.first { throw UsageError("one word too many: \(quoted(word))") }
  }

  // MARK: Commands with options of their own

  private mutating func list() throws(UsageError) -> ListCommand {
    var command = ListCommand(target: try target())
    command.prefix = try value(.prefix).map(checkedKey)
    command.tag = try value(.tag).map(parseTag)
    command.expiredOnly = try flag(.expired)
    command.pinnedOnly = try flag(.pinned)
    command.sort = try value(.sort).map(parseSort)
    command.reverse = try flag(.reverse)
    command.limit = try value(.limit).map { word throws(UsageError) in
      try parseCount(word, for: .limit)
    }
    if command.reverse && command.sort == nil { throw UsageError("--reverse needs --sort") }
    return command
  }

  private mutating func put() throws(UsageError) -> PutCommand {
    var command = PutCommand(target: try target(), key: try key())
    if let word = words.popFirst() {
      guard !word.isEmpty else { throw UsageError("the file to put has an empty name") }
      command.source = word == [UInt8(ascii: "-")] ? .standardInput : .file(word)
    }
    command.lifetime = try lifetime()
    for pair in values(.attribute) {
      let (name, value) = try parseAttribute(pair)
      guard command.attributes[name] == nil else {
        throw UsageError("attribute \(quoted(name.utf8)) was given twice")
      }
      command.attributes[name] = value
    }
    command.tags = try values(.tag).map(parseTag)
    command.pins = try flag(.pin)
    return command
  }

  private mutating func remove() throws(UsageError) -> RemoveCommand {
    let target = try target()
    let selection = try selection()
    var keys = try values(.key).map(checkedKey)
    keys += try values(.keyBase64).map(parseBase64Key)
    while let word = words.popFirst() { keys.append(try parseKey(word)) }
    switch (selection == BlobCache.Selection(), keys.isEmpty) {
    case (false, true): return RemoveCommand(target: target, which: .matching(selection))
    case (true, false): return RemoveCommand(target: target, which: .keys(keys))
    case (true, true):
      throw UsageError("remove needs a key, --prefix, --tag, --expired, --larger or --older")
    case (false, false):
      throw UsageError("remove takes keys, or options that choose entries, not both")
    }
  }

  private mutating func selection() throws(UsageError) -> BlobCache.Selection {
    var selection = BlobCache.Selection()
    if let prefix = try value(.prefix) {
      guard !prefix.isEmpty else {
        throw UsageError("--prefix is empty, which means every entry; that is what clear does")
      }
      selection.prefix = try checkedKey(prefix)
    }
    selection.tag = try value(.tag).map(parseTag)
    if let size = try value(.larger) { selection.largerThan = try parseSize(size, for: .larger) }
    if let age = try value(.older) { selection.olderThan = try parseDuration(age, for: .older) }
    selection.expiredOnly = try flag(.expired)
    return selection
  }

  private mutating func trim() throws(UsageError) -> TrimCommand {
    var command = TrimCommand(target: try target())
    command.bytes = try bound(.bytes, parseSize)
    command.entries = try bound(.entries, parseCount)
    command.age = try bound(.age, parseDuration)
    command.isDryRun = try flag(.dryRun)
    command.records = try flag(.record)
    let isGiven = command.bytes != nil || command.entries != nil || command.age != nil
    if command.records && !isGiven {
      throw UsageError("--record needs --bytes, --entries or --age")
    }
    if command.records && command.isDryRun {
      throw UsageError("--dry-run changes nothing, so it cannot --record")
    }
    if !command.records {
      if command.bytes == .unlimited || command.entries == .unlimited || command.age == .unlimited {
        throw UsageError("none takes a limit away, which needs --record")
      }
    }
    return command
  }

  private mutating func bound<V>(
    _ option: Option, _ parse: ([UInt8], Option) throws(UsageError) -> V
  ) throws(UsageError) -> TrimCommand.Bound<V>? {
    guard let word = try value(option) else { return nil }
    return word == Array("none".utf8) ? .unlimited : .most(try parse(word, option))
  }

  private mutating func renew() throws(UsageError) -> RenewCommand {
    let target = try target()
    let key = try key()
    guard let lifetime = try lifetime() else {
      throw UsageError("renew needs --ttl, --sliding or --forever")
    }
    return RenewCommand(target: target, key: key, lifetime: lifetime)
  }

  // MARK: Parts

  private mutating func target() throws(UsageError) -> Target {
    guard let word = words.popFirst() else {
      throw UsageError("\(verb.rawValue) needs a directory")
    }
    guard let directory = String(validating: word, as: UTF8.self), !word.isEmpty else {
      throw UsageError("the directory's path must be UTF-8 and not empty: \(quoted(word))")
    }
    return Target(directory: directory, json: try flag(.json))
  }

  private mutating func key() throws(UsageError) -> BlobCache.Key {
    if let key = try keyOption() { return key }
    guard let word = words.popFirst() else { throw UsageError("\(verb.rawValue) needs a key") }
    return try parseKey(word)
  }

  private mutating func keyOption() throws(UsageError) -> BlobCache.Key? {
    let key = try value(.key)
    let base64 = try value(.keyBase64)
    guard key == nil || base64 == nil else {
      throw UsageError("--key and --key-base64 exclude each other")
    }
    if let base64 { return try parseBase64Key(base64) }
    return try key.map(checkedKey)
  }

  private mutating func subject() throws(UsageError) -> Subject {
    let key = try keyOption()
    let digest = try value(.digest)
    switch (key, digest) {
    case (let key?, nil): return .key(key)
    case (nil, let digest?): return .digest(try parseDigest(digest))
    case (_?, _?): throw UsageError("\(verb.rawValue) takes --key or --digest, not both")
    case (nil, nil):
      guard let word = words.popFirst() else {
        throw UsageError("\(verb.rawValue) needs a key or a digest")
      }
      return try parseSubject(word)
    }
  }

  private mutating func lifetime() throws(UsageError) -> BlobCache.Lifetime? {
    let ttl = try value(.ttl)
    let sliding = try value(.sliding)
    let atMost = try value(.atMost)
    let forever = try flag(.forever)
    guard [ttl != nil, sliding != nil, forever].count(where: \.self) <= 1 else {
      throw UsageError("--ttl, --sliding and --forever exclude each other")
    }
    guard atMost == nil || sliding != nil else { throw UsageError("--at-most needs --sliding") }
    if let ttl { return .expires(after: try parseSpan(ttl, for: .ttl)) }
    if let sliding {
      let most: Duration? =
        if let atMost { try parseSpan(atMost, for: .atMost) } else { nil }
      return .sliding(try parseSpan(sliding, for: .sliding), atMost: most)
    }
    return forever ? .forever : nil
  }

  // MARK: Options

  private mutating func values(_ option: Option) -> [[UInt8]] {
    let found = options.filter { $0.option == option }.compactMap(\.value)
    options.removeAll { $0.option == option }
    return found
  }

  private mutating func value(_ option: Option) throws(UsageError) -> [UInt8]? {
    let found = values(option)
    guard found.count <= 1 else { throw UsageError("\(option) was given twice") }
    return found.first
  }

  private mutating func flag(_ option: Option) throws(UsageError) -> Bool {
    let found = options.count { $0.option == option }
    options.removeAll { $0.option == option }
    guard found <= 1 else { throw UsageError("\(option) was given twice") }
    return found == 1
  }
}
