import Foundation

/// A trace as text: a request a line, `key size` in decimal (a line without a size means 1); xz-compressed or not.
enum TraceFile {
  /// The .xz file format, 2.1.1.1.
  private static let xzMagic: [UInt8] = [0xFD, 0x37, 0x7A, 0x58, 0x5A, 0x00]

  /// Reads a file, or standard input for `-`.
  static func read(_ path: String) throws -> Trace {
    guard path != "-" else {
      let text = try FileHandle.standardInput.readToEnd() ?? Data()
      guard !text.starts(with: xzMagic) else {
        throw Failure("standard input is xz-compressed: put `xz -dc |` before this command")
      }
      return try parse(Array(text), name: "standard input")
    }
    guard let file = FileHandle(forReadingAtPath: path) else {
      throw Failure("\(path): no such file, or it may not be read")
    }
    defer { try? file.close() }  // read to its end: closing cannot lose anything
    return try parse(Array(content(of: file, path: path)), name: name(of: path))
  }

  private static func content(of file: FileHandle, path: String) throws -> Data {
    do {
      let start = try file.read(upToCount: xzMagic.count) ?? Data()
      try file.seek(toOffset: 0)
      guard start.elementsEqual(xzMagic) else { return try file.readToEnd() ?? Data() }
    } catch {
      throw Failure("\(path): cannot be read: \(error)")
    }
    return try decompressed(file, path: path)
  }

  /// `web07` for `/traces/web07.txt.xz`.
  private static func name(of path: String) -> String {
    let last = URL(fileURLWithPath: path).lastPathComponent
    return String(last.prefix { $0 != "." })
  }

  private static func decompressed(_ file: FileHandle, path: String) throws -> Data {
    let folders = ProcessInfo.processInfo.environment["PATH"] ?? "/usr/bin:/bin"
    let candidates = folders.split(separator: ":").map { "\($0)/xz" }
    guard let xz = candidates.first(where: FileManager.default.isExecutableFile(atPath:)) else {
      throw Failure(
        "\(path) is xz-compressed and there is no xz on PATH: install it (Debian: apt-get install "
          + "xz-utils; macOS: brew install xz), or decompress the file elsewhere")
    }
    let process = Process()
    process.executableURL = URL(fileURLWithPath: xz)
    process.arguments = ["--decompress", "--stdout"]
    process.standardInput = file
    let pipe = Pipe()
    process.standardOutput = pipe
    try process.run()
    let text = try pipe.fileHandleForReading.readToEnd() ?? Data()
    process.waitUntilExit()
    guard process.terminationStatus == 0 else {
      throw Failure("\(path): xz ended with status \(process.terminationStatus)")
    }
    return text
  }

  static func parse(_ text: [UInt8], name: String) throws -> Trace {
    var trace = Trace(name: name)
    var line = 0
    for bytes in text.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false) {
      line += 1
      let words = bytes.split { $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: "\t") || $0 == 13 }
      guard let first = words.first else { continue }
      guard words.count <= 2, let key = number(first),
        let size = words.count == 2 ? number(words[1]) : 1, size > 0, size <= 1 << 40
      else { throw Failure("\(name), line \(line): not `key size`, both decimal, size above 0") }
      trace.append(key: key, size: Int(size))
    }
    guard !trace.requests.isEmpty else { throw Failure("\(name): no requests in it") }
    return trace
  }

  private static func number(_ digits: ArraySlice<UInt8>) -> UInt64? {
    var value: UInt64 = 0
    for digit in digits {
      guard (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(digit) else { return nil }
      let (tenfold, overflows) = value.multipliedReportingOverflow(by: 10)
      let (sum, carries) = tenfold.addingReportingOverflow(UInt64(digit - UInt8(ascii: "0")))
      if overflows || carries { return nil }
      value = sum
    }
    return value
  }
}
