// The system calls that the library makes from Swift: the only file here that sees libc.
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

/// An open file of the system, for what blobs are written to; closed when it goes.
final class SystemFile: Sendable {
  let descriptor: CInt

  private init(_ descriptor: CInt) { self.descriptor = descriptor }

  deinit { _ = close(descriptor) }

  /// Writes a file aside and renames it onto `path`.
  static func replace(
    _ path: String, with bytes: UnsafeRawBufferPointer, mode: UInt32
  ) throws(BlobCache.Error) {
    // A name of its own: one made from the file's could be too long where the file's is not.
    let folder = path.lastIndex(of: "/").map { path[...$0] } ?? ""
    var template = Array("\(folder).blobcache-XXXXXX".utf8CString)
    let file = try create(&template, path: path)
    do throws(BlobCache.Error) {
      try unsafe file.write(bytes, path: path)
      guard fchmod(file.descriptor, mode_t(mode)) == 0, unsafe rename(template, path) == 0 else {
        throw BlobCache.Error(errno: errno, operation: "rename", path: path)
      }
    } catch {
      unsafe unlink(template)
      throw error
    }
  }

  /// A file in the temporary folder that has no name any more, at offset 0.
  static func unnamed(_ bytes: UnsafeRawBufferPointer) throws(BlobCache.Error) -> SystemFile {
    let folder = ProcessInfo.processInfo.environment["TMPDIR"] ?? "/tmp"
    var template = Array("\(folder)/blobcache-XXXXXX".utf8CString)
    let file = try create(&template, path: folder)
    unsafe unlink(template)
    try unsafe file.write(bytes, path: folder)
    guard lseek(file.descriptor, 0, SEEK_SET) == 0 else {
      throw BlobCache.Error(errno: errno, operation: "seek", path: folder)
    }
    return file
  }

  private static func create(
    _ template: inout [CChar], path: String
  ) throws(BlobCache.Error) -> SystemFile {
    let descriptor = unsafe template.withUnsafeMutableBufferPointer { buffer in
      unsafe buffer.baseAddress.map { unsafe mkstemp($0) } ?? -1
    }
    guard descriptor >= 0 else {
      let code = errno
      guard code != ENOENT else {
        throw BlobCache.Error(
          .notFound, operation: "create", path: path,
          message: "The folder to write into does not exist; make it, or name another one.",
          cause: systemMessage(code))
      }
      throw BlobCache.Error(errno: code, operation: "create", path: path)
    }
    // mkstemp(3) does not do that itself, and a child must not inherit it.
    _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
    return SystemFile(descriptor)
  }

  private func write(_ bytes: UnsafeRawBufferPointer, path: String) throws(BlobCache.Error) {
    var offset = 0
    while offset < bytes.count {
      let part = unsafe UnsafeRawBufferPointer(rebasing: bytes[offset...])
      let written = unsafe writeOnce(descriptor, part)
      if written < 0 && errno == EINTR { continue }
      guard written > 0 else {
        throw BlobCache.Error(errno: errno, operation: "write", path: path)
      }
      offset += written
    }
  }

  /// Removes a file that may be gone already.
  static func remove(_ path: String) throws(BlobCache.Error) {
    if unsafe unlink(path) != 0, errno != ENOENT {
      throw BlobCache.Error(errno: errno, operation: "unlink", path: path)
    }
  }
}

/// write(2), which the method of the same name hides.
private func writeOnce(_ descriptor: CInt, _ part: UnsafeRawBufferPointer) -> Int {
  unsafe write(descriptor, part.baseAddress, min(part.count, 1 << 30))
}

/// The system's words for an errno.
func systemMessage(_ code: CInt) -> String { unsafe String(cString: strerror(code)) }

/// The machine's clock, in milliseconds since 1970.
func systemMilliseconds() -> Int64 {
  var time = timespec()
  #if os(Linux)
    // The kernel's tick (1 to 4 ms) is exact enough for lifetimes and costs a quarter of the precise
    // clock.
    unsafe clock_gettime(CLOCK_REALTIME_COARSE, &time)
  #else
    unsafe clock_gettime(CLOCK_REALTIME, &time)
  #endif
  return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
}

/// Whether the process may open so many files more. Other threads may take them in between; this is as near as it gets.
func hasFreeDescriptors(_ count: Int) -> Bool {
  var taken: [CInt] = []
  for _ in 0..<count {
    let file = unsafe open("/dev/null", O_RDONLY | O_CLOEXEC)
    if file >= 0 { taken.append(file) }
  }
  for file in taken { close(file) }
  return taken.count == count
}

/// log(3).
func naturalLogarithm(_ number: Double) -> Double { log(number) }

/// The number of this process, another one in the child of a fork.
func currentProcess() -> CInt { getpid() }
