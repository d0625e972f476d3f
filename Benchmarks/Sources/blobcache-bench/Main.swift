import Foundation

/// `blobcache-bench COMMAND [--option…]`
@main
enum Main {
  static let usage = """
    usage: blobcache-bench COMMAND [--option…]

      stress     the main job: processes fetch this machine's files through one cache directory whose
                 limit is far below what they would take; every byte and every bound is checked
                   --seconds N        how long to run (30)
                   --limit SIZE       of the directory, such as 16MiB; `none` (a quarter of the files)
                   --processes N      over the directory (3)
                   --memory SIZE      that each process keeps above the index; 0 (a quarter of the limit)
                   --directory D      where; kept afterwards (a folder in TMPDIR)
                   --inspect PATH     the blobcache-inspect to name in the closing lines
                   --json             the closing table as one JSON object
                   --quick            8 seconds, fewer files
      soak       the same for 10 minutes; memory and disk must be flat: after a third of the run, the median
                 of the last third is at most 10 % above that of the middle third. Options of stress, and
                   --minutes N        how long to run (10)
      micro      every speed row against its baseline, in one interleaved run
                   --only ROW         the rows whose name contains ROW
                   --json             one object a line
                   --quick            smaller data, fewer rounds: for CI
      checkpoints what they cost: stores and lookups with one every 5 seconds and with none
                   --seconds N        of each run (12)
                   --rounds N         of runs (3)
                   --quick            a run of 2 seconds each
      threshold  bodies inline in the index against files, 2 to 64 KiB
                   --quick            less data
      trace      hit ratios of traces (FILE… of lines `key size`, also .xz, `-`: standard input)
                   --percent 1,5,…    capacities in percent of the footprint (1,5,10,25)
                   --json             one object a line
                   --quick            the self-check, and each trace's first 20,000 requests
    """

  static func main() async {
    do {
      let words = Array(CommandLine.arguments.dropFirst())
      if words.contains(where: { ["--help", "-h"].contains($0) }) {
        print(usage)
        exit(0)
      }
      let options = try Options(words)
      let passed =
        switch options.command {
        case "stress", "soak": try await Stress.run(options)
        case "stress-worker": try await Worker.run(options)
        case "micro": try await Micro.run(options)
        case "checkpoints": try await Checkpoints.run(options)
        case "threshold": try Threshold.run(options)
        case "trace": try await Replay.run(options)
        case "help":
          {
            print(usage)
            return true
          }()
        default: throw UsageError("no command named \(options.command)")
        }
      exit(passed ? 0 : 1)
    } catch let error as UsageError {
      complain("\(error.message)\n\(usage)")
      exit(2)
    } catch {
      complain("\(error)")
      exit(1)
    }
  }
}

/// The words after the program's name; each command takes what it knows and then asks for `end()`.
struct Options {
  let command: String
  private var words: [String]

  init(_ words: [String]) throws {
    if words.contains("--help") || words.contains("-h") {
      self.command = "help"
      self.words = []
      return
    }
    guard let command = words.first else { throw UsageError("a command is missing") }
    self.command = command
    self.words = Array(words.dropFirst())
  }

  mutating func flag(_ name: String) -> Bool {
    guard let i = words.firstIndex(of: name) else { return false }
    words.remove(at: i)
    return true
  }

  mutating func value(_ name: String) throws -> String? {
    guard let i = words.firstIndex(of: name) else { return nil }
    guard i + 1 < words.count else { throw UsageError("\(name) needs a value") }
    let value = words[i + 1]
    words.removeSubrange(i...i + 1)
    return value
  }

  mutating func number(_ name: String) throws -> Int? {
    guard let text = try value(name) else { return nil }
    guard let number = Int(text), number > 0 else {
      throw UsageError("\(name) needs a number above 0")
    }
    return number
  }

  /// What is left when all options were taken: the command's operands.
  mutating func operands() throws -> [String] {
    if let word = words.first(where: { $0.hasPrefix("-") && $0 != "-" }) {
      throw UsageError("unknown option \(word)")
    }
    defer { words = [] }
    return words
  }

  func end() throws {
    if let word = words.first { throw UsageError("unknown argument \(word)") }
  }
}

struct UsageError: Swift.Error {
  let message: String
  init(_ message: String) { self.message = message }
}

func complain(_ text: String) {
  FileHandle.standardError.write(Data("blobcache-bench: \(text)\n".utf8))
}
