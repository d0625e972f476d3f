extension Command {
  func version(_ output: Output) throws -> ExitStatus {
    try output.line("blobcache-inspect 0.1.0 (directory format 1)")
    return .fine
  }
}
