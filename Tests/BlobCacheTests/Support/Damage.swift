import Foundation
import Testing

@testable import blobcache_test_process

/// One thing that goes wrong with one file of a cache directory that nobody has open: chosen by a seed, so that it can be
/// had again.
struct Damage: CustomStringConvertible {
  enum Target: String, CaseIterable {
    case index = "index/data.mdb"
    case readers = "index/lock.mdb"
    case checkpoint = "index/checkpoint"
    case ballast = "index/ballast"
    case slots
    case format = "FORMAT"
    case lock = "LOCK"
    case blob
    case staging
    case quarantine
  }

  enum Change: String, CaseIterable {
    case flip, zeroes, garbage, torn, truncation
    case growth
    case swap, removal
  }

  let target: Target
  let change: Change
  private(set) var place = ""
  /// Below the directory.
  private(set) var path = ""
  private var random: SeededGenerator

  var description: String { "\(change.rawValue) of \(path) \(place)" }

  /// Half of all are of the index, which has most to lose.
  static let targets: [Target] =
    Array(repeating: .index, count: 10) + Array(repeating: .slots, count: 4)
    + [.checkpoint, .checkpoint, .checkpoint, .lock, .blob, .blob, .readers, .ballast, .format]
    + [.staging, .quarantine]

  init(seed: UInt64, target: Target? = nil, change: Change? = nil) {
    var random = SeededGenerator(seed: seed &* 0x9E37_79B9_7F4A_7C15)
    let drawn = Self.targets.randomElement(using: &random) ?? .index
    let drawnChange = Change.allCases.randomElement(using: &random) ?? .flip
    self.target = target ?? drawn
    self.change = change ?? drawnChange
    self.random = random
  }

  /// Damages `directory`; files of `other` take the place of its own.
  mutating func apply(to directory: String, swappedWith other: String) throws {
    path = try choose(in: directory)
    let file = "\(directory)/\(path)"
    // A file that is not there is left so: what appears is the matter of `growth` and `swap`.
    guard let size = fileStatus(file).map({ Int($0.st_size) }) else {
      place = "(absent)"
      return
    }
    switch change {
    case .flip:
      guard size > 0 else { return }
      let at = offset(size, unit: 1)
      place = "at \(at)"
      let byte = try #require(try bytes(file, at, 1).first)
      try overwrite(file, at: at, with: [byte ^ 1 << UInt8.random(in: 0..<8, using: &random)])
    case .zeroes, .garbage:
      guard size > 0 else { return }
      let unit = Bool.random(using: &random) ? 512 : 4096
      let at = offset(size, unit: unit)
      let count = min(unit, size - at)
      place = "\(count) bytes at \(at)"
      let garbage = seededBytes(count: count, seed: random.next())
      try overwrite(
        file, at: at, with: change == .zeroes ? Array(repeating: 0, count: count) : garbage)
    case .torn:
      guard size > 0 else { return }
      // From some sector on a page is that of another page.
      let start = offset(size, unit: 4096)
      let at = start + 512 * Int.random(in: 1..<8, using: &random)
      guard at < size else { return }
      let from = offset(size, unit: 4096) + (at - start)
      let count = min(start + 4096, size) - at
      place = "at \(at) by \(from)"
      var part = try bytes(file, from, count)
      part += Array(repeating: 0, count: count - part.count)
      try overwrite(file, at: at, with: part)
    case .truncation:
      let kept = Int.random(in: 0...size, using: &random)
      let unit = [1, 512, 4096].randomElement(using: &random) ?? 1
      place = "to \(kept / unit * unit)"
      try #require(truncate(file, kept / unit * unit) == 0)
    case .growth:
      let count = [1, 40, 512, 4096, 20_000].randomElement(using: &random) ?? 1
      place = "by \(count)"
      let more =
        Bool.random(using: &random)
        ? Array(repeating: 0, count: count) : seededBytes(count: count, seed: random.next())
      try overwrite(file, at: size, with: more)
    case .swap:
      let source = target == .blob ? try otherBlob(in: directory) : "\(other)/\(path)"
      guard fileStatus(source) != nil else {
        place = "(with nothing)"
        return
      }
      place = "with \(source.suffix(40))"
      try FileManager.default.removeItem(atPath: file)
      try #require(Machine.run("cp", "--sparse=always", source, file))
    case .removal:
      try FileManager.default.removeItem(atPath: file)
    }
  }

  private mutating func choose(in directory: String) throws -> String {
    switch target {
    case .blob:
      return "blobs/"
        + (CacheFolder(directory).blobFiles.sorted().randomElement(using: &random) ?? "")
    case .staging, .quarantine:
      let name = try debris(in: directory)
      return "\(target.rawValue)/\(name)"
    default: return target.rawValue
    }
  }

  /// Where something stands: in the slot table's head, its mark and its lines rather than in the holes between them; in
  /// the head of a page as often as in the rest of it.
  private mutating func offset(_ size: Int, unit: Int) -> Int {
    var at = Int.random(in: 0..<size, using: &random)
    switch target {
    case .slots:
      let lines = 33_751_040
      let parts = [0..<704, 0..<704, 4096..<4400, 65_536..<65_800, lines..<lines + 64 * 160]
      at = Int.random(in: parts.randomElement(using: &random) ?? 0..<size, using: &random)
    case .index where Bool.random(using: &random):
      at = at / 4096 * 4096 + Int.random(in: 0..<64, using: &random)
    case .readers where Bool.random(using: &random): at %= 8192
    default: break
    }
    return min(at, size - 1) / unit * unit
  }

  /// What the dead, or strangers, may have left there; the damage is done to that.
  private mutating func debris(in directory: String) throws -> String {
    let folder = "\(directory)/\(target.rawValue)"
    let dead = "00000000.1.4194000.7"
    let names = [
      "\(dead)-1", "\(dead)+2", "11111111.\(String(pidNamespace, radix: 16)).1.1+3", "stranger",
      "x+y",
      String(repeating: "ab", count: 32) + ".17", "index.1",
    ]
    let name = names.randomElement(using: &random) ?? "stranger"
    var content = seededBytes(count: Int.random(in: 0...9000, using: &random), seed: random.next())
    // An intent that names what is in use, and half a digest.
    if name.contains("+") {
      content = []
      for blob in CacheFolder(directory).blobFiles.sorted().prefix(3) {
        content += digest(of: blob)
      }
      content += seededBytes(count: 40, seed: random.next())
    }
    try Data(content).write(to: URL(fileURLWithPath: "\(folder)/\(name)"))
    return name
  }

  private var pidNamespace: UInt64 { UInt64(fileStatusFollowing("/proc/self/ns/pid")?.st_ino ?? 0) }

  private func digest(of blob: String) -> [UInt8] {
    let digits = Array(blob.suffix(64).utf8)
    return stride(from: 0, to: digits.count - 1, by: 2).compactMap {
      UInt8(String(decoding: digits[$0...$0 + 1], as: UTF8.self), radix: 16)
    }
  }

  private mutating func otherBlob(in directory: String) throws -> String {
    let all = CacheFolder(directory).blobFiles.sorted().filter { "blobs/\($0)" != path }
    return "\(directory)/blobs/\(all.randomElement(using: &random) ?? "")"
  }

  private func bytes(_ file: String, _ at: Int, _ count: Int) throws -> [UInt8] {
    let handle = try #require(FileHandle(forReadingAtPath: file))
    try handle.seek(toOffset: UInt64(at))
    let bytes = try handle.read(upToCount: count) ?? Data()
    try handle.close()
    return [UInt8](bytes)
  }
}

private func fileStatusFollowing(_ path: String) -> stat? {
  var status = stat()
  return stat(path, &status) == 0 ? status : nil
}
