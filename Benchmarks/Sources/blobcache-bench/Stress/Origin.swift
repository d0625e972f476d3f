import BlobCache
import CBaseline
import Foundation
import Synchronization

/// What the stress service fetches: this machine's own files, with their SHA-256 taken before the run.
struct OriginFile: Codable, Sendable {
  let path: String
  let size: Int
  let digest: [UInt8]

  static let largest = 8 << 20

  /// At most `most` regular files, evenly picked from all below /usr/share (and elsewhere if those
  /// are few), most popular first: the order is shuffled, so popularity knows nothing of size.
  static func collect(most: Int) throws -> [OriginFile] {
    var paths: [String] = []
    for root in ["/usr/share", "/usr/lib", "/usr/include", "/etc", "/opt"] where paths.count < most
    {
      let below = FileManager.default.enumerator(atPath: root)
      while let name = below?.nextObject() as? String { paths.append("\(root)/\(name)") }
    }
    paths.sort()
    var generator = SeededGenerator(2)
    paths.shuffle(using: &generator)
    var files: [OriginFile] = []
    for path in paths where files.count < most && isWanted(path) {
      guard let bytes = FileManager.default.contents(atPath: path) else { continue }
      files.append(OriginFile(path: path, size: bytes.count, digest: sha256([UInt8](bytes))))
    }
    guard files.count >= 100 else { throw Failure("too few readable files below /usr") }
    return files
  }

  private static func isWanted(_ path: String) -> Bool {
    var status = stat()
    return unsafe lstat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFREG
      && status.st_size <= largest
  }
}

func sha256(_ bytes: [UInt8]) -> [UInt8] {
  unsafe bytes.withUnsafeBytes { unsafe sha256($0) }
}

func sha256(_ bytes: UnsafeRawBufferPointer) -> [UInt8] {
  var digest = [UInt8](repeating: 0, count: 32)
  let code = unsafe cb_sha256(bytes.baseAddress, bytes.count, max(bytes.count, 1), &digest)
  precondition(code == 0, "SHA-256 is not to be had")
  return digest
}

/// The slow server: some milliseconds before the first byte, then a bandwidth. Notices when the same file is asked
/// for twice at a time, which one process's cache must never do.
final class Origin: Sendable {
  static let piece = 64 << 10
  static let bytesPerSecond = 200e6

  let files: [OriginFile]
  private let loading = Mutex<Set<Int>>([])

  init(files: [OriginFile]) { self.files = files }

  /// The first byte's delay: 2 to 9 ms, always the same for a file.
  static func latency(_ rank: Int) -> Duration { .milliseconds(2 + rank % 8) }

  /// False when this file was being loaded already.
  func begin(_ rank: Int) -> Bool { loading.withLock { $0.insert(rank).inserted } }
  func end(_ rank: Int) { loading.withLock { _ = $0.remove(rank) } }

  func send(_ rank: Int, to load: inout BlobCache.Load) async throws {
    try await Task.sleep(for: Self.latency(rank))
    let file = try FileHandle(forReadingFrom: URL(fileURLWithPath: files[rank].path))
    defer { try? file.close() }  // it was only read
    while let bytes = try file.read(upToCount: Self.piece), !bytes.isEmpty {
      try await load.write(bytes)
      try await Task.sleep(for: .seconds(Double(bytes.count) / Self.bytesPerSecond))
    }
  }
}

/// Popularity: rank r is asked for in proportion to 1 / (r + 1)^0.9.
struct Zipf: Sendable {
  private let cumulative: [Double]

  init(count: Int) {
    var sum = 0.0
    cumulative = (0..<count).map { rank in
      sum += pow(Double(rank + 1), -0.9)
      return sum
    }
  }

  func sample(_ generator: inout SeededGenerator) -> Int {
    let point = Double.random(in: 0..<(cumulative.last ?? 1), using: &generator)
    var (low, high) = (0, cumulative.count - 1)
    while low < high {
      let middle = (low + high) / 2
      if cumulative[middle] <= point { low = middle + 1 } else { high = middle }
    }
    return low
  }
}
