import Foundation
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 11: whatever somebody put under one of our names before us is neither followed nor waited for nor deleted,
/// unless it is a plain file of ours; and nothing outside the directory changes.
@Suite("11. Hostile neighbours", .timeLimit(.minutes(2)))
struct HostileNeighboursTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }
  private var outside: String { directory.path("outside") }

  enum Plant: CaseIterable {
    case fifo, device, socket, folder, link, hardLink, secondName, linkToNowhere
  }

  private static let names = [
    "FORMAT", "LOCK", "slots", "index/data.mdb", "index/lock.mdb", "index/ballast",
    "index/checkpoint", "blobs/BLOB", "staging/12345678.1.99.1-7", "staging/12345678.1.99.1+7",
    "quarantine/BLOB.1",
  ]

  private func plant(_ kind: Plant, _ name: String) throws {
    if kind == .secondName {  // as `cp -al` leaves it
      if fileStatus(name) == nil { try Data("mine".utf8).write(to: URL(fileURLWithPath: name)) }
      try #require(link(name, outside + "/second") == 0)
      return
    }
    if fileStatus(name) != nil { try FileManager.default.removeItem(atPath: name) }
    switch kind {
    case .fifo: try #require(mkfifo(name, 0o600) == 0)
    case .device: try #require(mknod(name, S_IFBLK | 0o600, makedev(240, 77)) == 0)
    case .socket: try #require(mknod(name, S_IFSOCK | 0o600, 0) == 0)
    case .folder:
      try FileManager.default.createDirectory(atPath: name, withIntermediateDirectories: false)
      try Data("mine".utf8).write(to: URL(fileURLWithPath: name + "/inside"))
    case .link: try #require(symlink(outside + "/file", name) == 0)
    case .hardLink: try #require(link(outside + "/file", name) == 0)
    case .secondName: break
    case .linkToNowhere: try #require(symlink(outside + "/absent", name) == 0)
    }
  }

  private func makedev(_ major: UInt32, _ minor: UInt32) -> dev_t {
    dev_t(major) << 8 | dev_t(minor)
  }

  @Test(arguments: Plant.allCases, names)
  func whatStandsUnderOurNamesIsNeitherFollowedNorTaken(kind: Plant, name: String) async throws {
    if kind == .device && !Machine.isRoot { return }
    try FileManager.default.createDirectory(
      atPath: outside, withIntermediateDirectories: false)
    try Data(seededBytes(count: 9000, seed: 9)).write(to: URL(fileURLWithPath: outside + "/file"))
    let large = seededBytes(count: 100_000, seed: 1)
    let first = try BlobCache(directory: path)
    let digest = try await first.store(large, for: "large").digest
    try await first.store([1], for: "small")
    try await first.close()
    let blob = "\(digest.hex.prefix(2))/\(digest.hex)"
    let shown = name.replacingOccurrences(
      of: "BLOB", with: name.hasPrefix("blobs") ? blob : digest.hex)
    try plant(kind, "\(path)/\(shown)")
    let before = snapshot(outside)

    do {
      let cache = try BlobCache(directory: path)
      if let found = try cache.blob(for: "large") { #expect(found.holds(large)) }
      if let found = try cache.blob(for: "small") { #expect(found.holds([1])) }
      // Nobody waits for the other end of a FIFO, and what cannot be stored is handed over.
      let loaded = try await cache.fetch("large") { load in
        try await load.write(large)
        return .complete
      }
      #expect(loaded.holds(large))
      do {
        try await cache.store(large + [7], for: "other")
        try await cache.remove("large")
        try await cache.flush()
        _ = try await cache.sweep()
        _ = try await cache.verify(.everything, repair: true)
      } catch {
        #expect(error.path != nil, "\(error)")
      }
      try await cache.close()
    } catch let error as BlobCache.Error {
      #expect(error.path?.hasPrefix(path) == true, "\(error)")
      #expect(error.code != .underlying, "\(error)")
    }
    #expect(snapshot(outside) == before)
    if kind == .folder, fileStatus("\(path)/\(shown)") != nil {
      #expect(FileManager.default.contents(atPath: "\(path)/\(shown)/inside") == Data("mine".utf8))
    }
  }

  @Test func oddAndHugeNamesInOurFoldersStay() async throws {
    let first = try BlobCache(directory: path)
    try await first.store(seededBytes(count: 100_000, seed: 1), for: "large")
    try await first.close()
    let names = [
      String(repeating: "n", count: 255), "..hidden", " ", "\u{1B}[31m", "a\nb", "-", "+", "x+",
      "%s%n",
      "caf\u{E9}",
    ]
    var planted: [String] = []
    for folder in ["", "staging", "quarantine", "index", "blobs", "blobs/00"] {
      try FileManager.default.createDirectory(
        atPath: "\(path)/\(folder)", withIntermediateDirectories: true,
        attributes: [.posixPermissions: 0o700])
      for name in names {
        let file = "\(path)/\(folder)/\(name)"
        try Data("mine".utf8).write(to: URL(fileURLWithPath: file))
        planted.append(file)
      }
    }
    let cache = try BlobCache(directory: path)
    try await cache.store(seededBytes(count: 100_000, seed: 2), for: "more")
    try await cache.removeAll()
    _ = try await cache.sweep()
    _ = try await cache.verify(.everything, repair: true)
    try await cache.close()
    for file in planted {
      #expect(
        FileManager.default.contents(atPath: file) == Data("mine".utf8), "\(file.debugDescription)")
    }
  }

  @Test(.enabled(if: Machine.canBecomeNobody, "needs root and setpriv"))
  func aGroupSharesADirectoryWhateverTheUmasks() async throws {
    let path = directory.path("shared")
    try #require(chmod(directory.path, 0o755) == 0)
    var configuration = BlobCache.Configuration()
    configuration.directoryMode = 0o2770
    configuration.fileMode = 0o660
    let large = seededBytes(count: 100_000, seed: 1)
    let made = try BlobCache(directory: path, configuration: configuration)
    try await made.close()
    let paths = try FileManager.default.subpathsOfDirectory(atPath: path).map { "\(path)/\($0)" }
    for name in [path] + paths { try #require(chown(name, 0, 65_534) == 0) }
    // chown(2) takes the set-group-id bit away from files, not from folders.
    let cache = try BlobCache(directory: path, configuration: configuration)
    try await cache.store(large, for: "ours")
    let other = try SecondProcess(wrapper: Machine.asNobody)
    #expect(try await other.call("umask 77") == "ok")
    #expect(try await other.call("open \(path) group") == "ok")
    #expect(try await other.call("get ours").hasPrefix("hit 100000 "))
    #expect(try await other.call("store theirs 200000 2").hasPrefix("ok"))
    #expect(
      try #require(try cache.blob(for: "theirs")).holds(seededBytes(count: 200_000, seed: 2)))
    #expect(try await other.call("remove ours") == "ok true")
    #expect(try cache.blob(for: "ours") == nil)
    try await other.end()
    try await cache.close()
  }
}
