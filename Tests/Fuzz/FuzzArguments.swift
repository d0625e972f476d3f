/// The command line's parser: any words make a command or an error of one line; nothing traps.
@testable import BlobCache

@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzArguments(_ start: UnsafePointer<UInt8>?, _ count: Int) -> CInt {
  let bytes = [UInt8](UnsafeBufferPointer(start: start, count: count))
  // An argument has no NUL, so that is what parts them.
  let words = bytes.split(separator: 0, omittingEmptySubsequences: false).map(Array.init)
  do {
    let command = try Command(parsing: words)
    guard let again = try? Command(parsing: words), again == command else {
      fatalError("it parses in two ways")
    }
  } catch {
    let isOneLine = error.message.unicodeScalars.allSatisfy {
      $0.value >= 0x20 && $0.value != 0x7F && !isUnsafe($0)
    }
    precondition(
      isOneLine && !error.message.isEmpty, "not a line: \(error.message.debugDescription)")
  }
  return 0
}
