import Foundation

/// How a stress run is asked for.
struct Plan: Sendable {
  let soak: Bool
  let quick: Bool
  let json: Bool
  let seconds: Int
  let processes: Int
  let directory: String
  let inspect: String
  private let limitGiven: Limit
  private let memoryGiven: Int?

  private enum Limit {
    case byFootprint
    case none
    case bytes(Int)
  }

  init(_ options: Options) throws {
    var options = options
    soak = options.command == "soak"
    quick = options.flag("--quick")
    json = options.flag("--json")
    let minutes = try soak ? options.number("--minutes") : nil
    let usual = soak ? 60 * (minutes ?? 10) : quick ? 8 : 30
    seconds = try options.number("--seconds") ?? usual
    processes = try options.number("--processes") ?? 3
    let limit = try options.value("--limit")
    limitGiven =
      switch limit {
      case nil: .byFootprint
      case "none": .none
      case let text?: .bytes(try size(text, of: "--limit"))
      }
    memoryGiven = try options.value("--memory").map { try size($0, of: "--memory") }
    inspect = try options.value("--inspect") ?? Inspect.builtTool()
    directory = try options.value("--directory") ?? makeFolder(soak ? "soak" : "stress")
    try options.end()
  }

  /// The limit of the directory in bytes; nil: none. Unless it is given, a quarter of what the files hold.
  func limit(footprint: Int) -> Int? {
    switch limitGiven {
    case .byFootprint: max(footprint / 4, 4 << 20)
    case .none: nil
    case .bytes(let bytes): bytes
    }
  }

  /// What each process keeps in memory; unless it is given, a quarter of the limit, so that every tier has work.
  func memory(limit: Int?) -> Int { memoryGiven ?? limit.map { $0 / 4 } ?? 64 << 20 }
}

/// `16MiB`, `64K`, `1g` or plain bytes; units are powers of 1,024.
private func size(_ text: String, of option: String) throws -> Int {
  let digits = text.prefix { $0.isNumber }
  let shifts = ["": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30]
  guard let number = Int(digits), let shift = shifts[text.dropFirst(digits.count).lowercased()],
    number <= Int.max >> shift
  else { throw UsageError("\(option) needs a size such as 16MiB, not \(text)") }
  return number << shift
}
