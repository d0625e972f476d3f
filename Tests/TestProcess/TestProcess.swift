import BlobCache
import Foundation

/// A second process for the tests: reads one command a line from stdin and answers each with one line
/// on stdout, in order. Words are separated by spaces; keys are plain words; bodies are given by a
/// size and a seed (`seededBytes`). Answers begin with what happened (`ok`, `hit`, `miss`, `error`).
@main
struct TestProcess {
  static func main() async {
    if CommandLine.arguments.dropFirst().first == "bare" {
      return bare(Array(CommandLine.arguments.dropFirst(2)))
    }
    // Dispatch's own descriptors should be there before `descriptors` takes all others away: it traps when it cannot
    // have them. Yielding always comes back through the main queue; a timer that has run opened the rest.
    await Task.yield()
    await withCheckedContinuation { continuation in
      DispatchQueue.global().asyncAfter(deadline: .now() + .milliseconds(1)) {
        continuation.resume()
      }
    }
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

  /// `bare DIRECTORY SPARE`, as arguments: opens with SPARE descriptors before anything here has used Dispatch, and
  /// stores when none is left.
  private static func bare(_ words: [String]) {
    do {
      guard words.count == 2, let spare = Int(words[1]) else {
        throw UsageError(description: "bare DIRECTORY SPARE")
      }
      try limitDescriptors(spare: spare)
      let cache = try BlobCache(directory: words[0])
      answer("ok")
      try limitDescriptors(spare: 0)
      let done = DispatchSemaphore(value: 0)
      Task.detached {
        do {
          answer("ok \(try await cache.store([1, 2, 3], for: "key").digest.hex)")
        } catch {
          answer("error \(oneLine(error))")
        }
        done.signal()
      }
      done.wait()
      // Long enough for what the store does when it is let alone, which takes a timer.
      usleep(200_000)
      answer("alive")
    } catch let error as BlobCache.Error {
      answer("error \(error.code) \(oneLine(error))")
    } catch {
      answer("error other \(oneLine(error))")
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
