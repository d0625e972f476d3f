internal import BlobCache

/// Words → typed command → run → exit status.
enum Program {
  static func run(_ words: [[UInt8]]) async -> ExitStatus {
    prepareStandardStreams()
    let output = Output()
    do {
      let command = try Command(parsing: words)
      let status = try await command.run(output)
      try output.flush()
      return status
    } catch is BrokenPipe {
      return .fine
    } catch {
      return explain(error, output)
    }
  }

  private static func explain(_ error: any Error, _ output: Output) -> ExitStatus {
    do {
      // What is known already comes before the complaint.
      try output.flush()
    } catch is BrokenPipe {
      return .fine
    } catch {
      // The complaint below matters more.
    }
    switch error {
    case let error as UsageError:
      Output.complain("\(error.message); see blobcache-inspect help")
      return .couldNotRun
    case let error as Failure:
      Output.complain(error.message)
      return error.status
    case let error as BlobCache.Error:
      Output.complain(error.line)
      return .couldNotRun
    default:
      Output.complain(escaped("\(error)"))
      return .couldNotRun
    }
  }
}

extension Command {
  func run(_ output: Output) async throws -> ExitStatus {
    switch self {
    case .help(let verb): try help(verb, output)
    case .version: try version(output)
    case .stats(let command): try await command.run(output)
    case .list(let command): try await command.run(output)
    case .show(let command): try await command.run(output)
    case .cat(let command): try await command.run(output)
    case .verify(let command): try await command.run(output)
    case .put(let command): try await command.run(output)
    case .remove(let command): try await command.run(output)
    case .renew(let command): try await command.run(output)
    case .pin(let command): try await command.run(output)
    case .trim(let command): try await command.run(output)
    case .sweep(let command): try await command.run(output)
    case .clear(let command): try await command.run(output)
    }
  }
}

extension BlobCache.Error {
  /// One line: where, what and what to do, the system's words.
  fileprivate var line: String {
    var text = "cannot \(operation)"
    if let path { text += " \(quoted(path.utf8))" }
    text += ": \(escaped(message))"
    if let cause { text += " (\(escaped(cause)))" }
    return text
  }
}
