/// The command line as words and options, before anything is known of commands.
///
/// Bytes all the way: a key need not be UTF-8. Options may stand anywhere, as `--name VALUE` or `--name=VALUE`; after
/// `--` everything is a word. `-` alone is a word (standard input).
struct Arguments: Equatable {
  var words: [[UInt8]] = []
  var options: [Given] = []

  struct Given: Equatable {
    let option: Option
    /// Nil for an option that takes none.
    let value: [UInt8]?
  }

  init(_ raw: [[UInt8]]) throws(UsageError) {
    var rest = raw[...]
    while let word = rest.popFirst() {
      if word == Array("--".utf8) {
        words.append(contentsOf: rest)
        return
      }
      guard word.first == UInt8(ascii: "-"), word.count > 1 else {
        words.append(word)
        continue
      }
      let parts = word.split(
        separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
      let name = parts[0]
      let attached = parts.count > 1 ? parts[1] : nil
      guard let option = Option(written: name) else {
        throw UsageError("unknown option \(quoted(name)); a key that begins with - goes after --")
      }
      if option.takesValue {
        guard let value = attached.map(Array.init) ?? rest.popFirst() else {
          throw UsageError("\(option) needs a value")
        }
        options.append(Given(option: option, value: value))
      } else {
        guard attached == nil else { throw UsageError("\(option) takes no value") }
        options.append(Given(option: option, value: nil))
      }
    }
  }
}

/// Every option of every command. A name means the same everywhere, so that options may precede the command.
enum Option: String, CaseIterable, CustomStringConvertible {
  case age
  case atMost = "at-most"
  case attribute, bytes, digest
  case dryRun = "dry-run"
  case entries, expired, forever, help, json, key
  case keyBase64 = "key-base64"
  case larger, limit, older, pin, pinned, prefix, record, repair, reverse, sliding, sort, tag, ttl
  case version, yes

  init?(written word: some Sequence<UInt8>) {
    let word = String(decoding: Array(word), as: UTF8.self)
    switch word {
    case "-h": self = .help
    default:
      guard word.hasPrefix("--"), let option = Option(rawValue: String(word.dropFirst(2))) else {
        return nil
      }
      self = option
    }
  }

  var takesValue: Bool {
    switch self {
    case .age, .atMost, .attribute, .bytes, .digest, .entries, .key, .keyBase64, .larger, .limit,
      .older, .prefix, .sliding, .sort, .tag, .ttl:
      true
    case .dryRun, .expired, .forever, .help, .json, .pin, .pinned, .record, .repair, .reverse,
      .version, .yes:
      false
    }
  }

  var description: String { "--" + rawValue }
}
