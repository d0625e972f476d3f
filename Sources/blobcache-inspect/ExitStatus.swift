/// What the process answers.
enum ExitStatus: Int32 {
  case fine = 0
  /// Problems were found, or a key is absent.
  case found = 1
  /// It could not run: the one line on standard error says why and what to do.
  case couldNotRun = 2
}

/// Why a command ends without having done what was asked: one line for a person.
struct Failure: Error, Equatable {
  var status: ExitStatus = .couldNotRun
  let message: String

  init(_ message: String, status: ExitStatus = .couldNotRun) {
    self.message = message
    self.status = status
  }
}

/// The words of the command line make no command.
struct UsageError: Error, Equatable {
  let message: String
  init(_ message: String) { self.message = message }
}
