import BlobCache
import Foundation
import Glibc
import Testing

/// The files of a cache directory as the format describes them, for tests that damage or count them.
struct CacheFolder {
  var path: String

  init(_ path: String) { self.path = path }

  func blobFile(_ digest: BlobCache.Digest) -> String {
    "\(path)/blobs/\(digest.hex.prefix(2))/\(digest.hex)"
  }

  /// Names in a folder, all the way down, without the folders themselves; empty when it is absent.
  func files(in folder: String) -> [String] {
    let names = FileManager.default.enumerator(atPath: "\(path)/\(folder)")?.allObjects ?? []
    return names.compactMap { $0 as? String }.filter { name in
      (fileStatus("\(path)/\(folder)/\(name)")?.st_mode ?? 0) & S_IFMT != S_IFDIR
    }
  }

  var blobFiles: [String] { files(in: "blobs") }
  var quarantined: [String] { files(in: "quarantine") }
}

/// `lstat`, nil when there is nothing.
func fileStatus(_ path: String) -> stat? {
  var status = stat()
  return lstat(path, &status) == 0 ? status : nil
}

/// The permission bits, in octal as people write them.
func mode(_ path: String) -> String {
  fileStatus(path).map { String($0.st_mode & 0o7777, radix: 8) } ?? "absent"
}

/// Changes the bytes of a file in place: same inode, as a bad disk or another program would.
func overwrite(_ path: String, at offset: Int, with bytes: [UInt8]) throws {
  let file = try #require(FileHandle(forUpdatingAtPath: path))
  try file.seek(toOffset: UInt64(offset))
  try file.write(contentsOf: Data(bytes))
  try file.close()
}

func flipByte(of path: String, at offset: Int) throws {
  let file = try #require(FileHandle(forUpdatingAtPath: path))
  try file.seek(toOffset: UInt64(offset))
  let byte = try #require(try file.read(upToCount: 1)?.first)
  try file.close()
  try overwrite(path, at: offset, with: [byte ^ 0x40])
}

/// Every name below a folder with mode, size and target or content: equal before and after means
/// that nothing was touched.
func snapshot(_ path: String) -> [String] {
  let names = (FileManager.default.enumerator(atPath: path)?.allObjects ?? []).map { "\($0)" }
  return ([""] + names).sorted().map { name in
    let full = name.isEmpty ? path : "\(path)/\(name)"
    guard let status = fileStatus(full) else { return "\(name) absent" }
    let content: String
    switch status.st_mode & S_IFMT {
    case S_IFREG:
      content = "\(FileManager.default.contents(atPath: full)?.base64EncodedString() ?? "?")"
    case S_IFLNK:
      content = (try? FileManager.default.destinationOfSymbolicLink(atPath: full)) ?? "?"
    default: content = ""
    }
    return "\(name) \(String(status.st_mode, radix: 8)) \(status.st_uid) \(content)"
  }
}

extension BlobCache.Blob {
  /// Whether the bytes are exactly these, by one memcmp: large bodies compare quickly in debug builds.
  func holds(_ expected: [UInt8]) -> Bool {
    withUnsafeBytes { bytes in
      bytes.count == expected.count
        && (bytes.baseAddress.map { memcmp($0, expected, expected.count) == 0 } ?? true)
    }
  }
}

/// Runs what must throw a `BlobCache.Error` and gives it.
func errorOf(
  _ location: SourceLocation = #_sourceLocation, _ body: () async throws -> Void
) async throws -> BlobCache.Error {
  do {
    try await body()
  } catch let error as BlobCache.Error {
    return error
  }
  throw SecondProcess.Failure(description: "no error was thrown, at \(location)")
}
