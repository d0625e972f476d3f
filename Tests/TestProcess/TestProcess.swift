import BlobCache
import Foundation

/// A second process for the tests: reads one command a line from stdin and answers each with one line
/// on stdout, in order. Words are separated by spaces; keys are plain words; bodies are given by a
/// size and a seed (`seededBytes`). Answers begin with what happened (`ok`, `hit`, `miss`, `error`).
@main
struct TestProcess {
  static func main() async {
    // Coming back to the main actor opens libdispatch's eventfd, which traps when there is no
    // descriptor left: it should be there before `descriptors` takes them away.
    await Task.detached {}.value
    var commands = Commands()
    while let line = readLine() {
      let words = line.split(separator: " ").map(String.init)
      guard let verb = words.first else { continue }
      if verb == "exit" { break }
      do {
        answer(try await commands.run(verb, Array(words.dropFirst())))
      } catch let error as BlobCache.Error {
        answer("error \(error.code) \(oneLine(error))")
      } catch {
        answer("error other \(oneLine(error))")
      }
    }
  }

  private static func oneLine(_ error: any Swift.Error) -> String {
    String("\(error)".map { $0.isNewline ? " " : $0 })
  }
}

/// Writes a whole line by one system call: a line that the reader has seen was complete.
func answer(_ line: String) {
  let bytes = Array((line + "\n").utf8)
  guard write(1, bytes, bytes.count) == bytes.count else { exit(3) }
}
