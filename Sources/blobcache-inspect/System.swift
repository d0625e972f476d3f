// The few system calls of the tool, each with its unsafety in one place.
internal import BlobCache

#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

#if canImport(Glibc)
  internal import Glibc
#elseif canImport(Musl)
  internal import Musl
#else
  internal import Darwin
#endif

/// The words after the program's name as the system gave them: `CommandLine.arguments` repairs what is not UTF-8.
func rawArguments() -> [[UInt8]] {
  var words: [[UInt8]] = []
  for index in 1..<max(1, Int(CommandLine.argc)) {
    guard let word = unsafe CommandLine.unsafeArgv[index] else { break }
    let count = unsafe strlen(word)
    words.append(unsafe [UInt8](UnsafeRawBufferPointer(start: word, count: count)))
  }
  return words
}

/// Makes a broken pipe an error of write(2), and sees to it that the three standard descriptors are taken.
///
/// Were one closed, a file of the cache could get its number, and be written to as standard output. What stands in for
/// it refuses what its number is for, so that the user is told.
func prepareStandardStreams() {
  signal(SIGPIPE, SIG_IGN)
  for (number, flags) in [(Int32(0), O_WRONLY), (1, O_RDONLY), (2, O_WRONLY)]
  where fcntl(number, F_GETFD) < 0 {
    // The lowest free number is given: this one.
    _ = unsafe open("/dev/null", flags)
  }
}

/// Does not come back.
func endProcess(_ status: ExitStatus) -> Never { exit(status.rawValue) }

/// Milliseconds since 1970.
func currentMilliseconds() -> Int64 { Date().milliseconds }

extension Date {
  /// Milliseconds since 1970, at the ends of Int64 where it does not fit.
  var milliseconds: Int64 {
    let value = (timeIntervalSince1970 * 1000).rounded()
    return Int64(exactly: value) ?? (value < 0 ? .min : .max)
  }
}

func isTerminal(_ descriptor: Int32) -> Bool { isatty(descriptor) == 1 }

/// How many columns a terminal has; 80 where it does not tell, nil for what is no terminal.
func terminalWidth(_ descriptor: Int32) -> Int? {
  guard isTerminal(descriptor) else { return nil }
  var size = winsize()
  let told = unsafe ioctl(descriptor, UInt(TIOCGWINSZ), &size) == 0
  return told && size.ws_col > 0 ? Int(size.ws_col) : 80
}

/// The system's words for errno.
func systemMessage(_ code: Int32) -> String { unsafe String(cString: strerror(code)) }

/// Whoever read the output has gone: success, since he has what he wanted.
struct BrokenPipe: Error {}

/// Writes all of it, or throws `BrokenPipe` or a `Failure`.
func writeAll(_ bytes: UnsafeRawBufferPointer, to descriptor: Int32) throws {
  var rest = unsafe bytes[...]
  while unsafe !rest.isEmpty {
    let part = unsafe UnsafeRawBufferPointer(rebasing: rest)
    let written = unsafe write(descriptor, part.baseAddress, min(part.count, 1 << 30))
    if written < 0 {
      let code = errno
      if code == EINTR { continue }
      if code == EPIPE { throw BrokenPipe() }
      throw Failure("cannot write the output: \(systemMessage(code))")
    }
    unsafe rest = rest.dropFirst(written)
  }
}

/// A file or standard input, read in pieces.
struct InputFile: ~Copyable {
  /// The most bytes that `read` gives.
  static let pieceSize = 1 << 18

  private let descriptor: Int32
  private let name: String

  init(_ source: PutCommand.Source) throws(Failure) {
    switch source {
    case .standardInput:
      descriptor = 0
      name = "standard input"
    case .file(let path):
      name = quoted(path)
      let terminated = path.map(CChar.init(bitPattern:)) + [0]
      descriptor = unsafe open(terminated, O_RDONLY | O_CLOEXEC)
      if descriptor < 0 { throw Failure("cannot open \(name): \(systemMessage(errno))") }
    }
  }

  deinit {
    if descriptor > 0 { close(descriptor) }
  }

  /// How many bytes there are from here on, of a regular file that tells; nil of a pipe, a terminal, and what
  /// the kernel makes up as it is read.
  func restOfFile() -> Int? {
    var facts = stat()
    guard unsafe fstat(descriptor, &facts) == 0, facts.st_mode & S_IFMT == S_IFREG else {
      return nil
    }
    let position = lseek(descriptor, 0, SEEK_CUR)
    let rest = Int(facts.st_size) - Int(position)
    return position >= 0 && rest > 0 ? rest : nil
  }

  /// The next bytes; none at the end.
  func read() throws(Failure) -> [UInt8] {
    var code: Int32 = 0
    let bytes = unsafe [UInt8](unsafeUninitializedCapacity: Self.pieceSize) { buffer, count in
      var got: Int
      repeat {
        #if canImport(Glibc)
          got = unsafe Glibc.read(descriptor, buffer.baseAddress, buffer.count)
        #elseif canImport(Musl)
          got = unsafe Musl.read(descriptor, buffer.baseAddress, buffer.count)
        #else
          got = unsafe Darwin.read(descriptor, buffer.baseAddress, buffer.count)
        #endif
      } while got < 0 && errno == EINTR
      if got < 0 { code = errno }
      count = max(0, got)
    }
    guard code == 0 else { throw Failure("cannot read \(name): \(systemMessage(code))") }
    return bytes
  }
}

/// One line from standard input, without its end; nil at the end.
func readAnswer() -> String? { readLine() }
