import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 11: nothing outside is touched, nothing unknown inside is deleted, no symbolic link is
/// followed; modes are as configured. And what is not a cache of ours is refused untouched.
@Suite("11. Keeps to its directory")
struct KeepsToItsDirectoryTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  /// A closed cache with a small and a large blob.
  private func makeCache() async throws -> BlobCache.Digest {
    let cache = try BlobCache(directory: path)
    try await cache.store(seededBytes(count: 100, seed: 1), for: "small")
    let entry = try await cache.store(seededBytes(count: 100_000, seed: 2), for: "large")
    try await cache.close()
    return entry.digest
  }

  /// Opening throws one of these codes and leaves every name below as it was.
  private func expectRefused(
    _ path: String, _ codes: [BlobCache.Error.Code], below: String? = nil,
    _ configuration: BlobCache.Configuration = .init()
  ) async throws {
    let before = snapshot(below ?? path)
    let error = try await errorOf {
      _ = try BlobCache(directory: path, configuration: configuration)
    }
    #expect(codes.contains(error.code), "\(error)")
    #expect(error.path != nil && !error.message.isEmpty, "\(error)")
    #expect(snapshot(below ?? path) == before)
  }

  // MARK: Modes

  @Test(arguments: ["000", "022", "077", "777"])
  func modesAreThoseConfiguredUnderAnyUmask(mask: String) async throws {
    let process = try SecondProcess()
    #expect(try await process.call("umask \(mask)") == "ok")
    #expect(try await process.call("open \(path)") == "ok")
    #expect(try await process.call("store small 100 1").hasPrefix("ok"))
    #expect(try await process.call("store large 100000 2").hasPrefix("ok"))
    try await process.end()
    expectModes(folders: "700", files: "600")
  }

  @Test func modesCanBeWider() async throws {
    var configuration = BlobCache.Configuration()
    configuration.directoryMode = 0o750
    configuration.fileMode = 0o640
    let cache = try BlobCache(directory: path, configuration: configuration)
    try await cache.store(seededBytes(count: 100_000, seed: 2), for: "large")
    try await cache.close()
    expectModes(folders: "750", files: "640")
  }

  private func expectModes(folders: String, files: String) {
    let names = (FileManager.default.enumerator(atPath: path)?.allObjects ?? []).map { "/\($0)" }
    #expect(names.count > 6)
    for name in [""] + names {
      let isFolder = fileStatus(path + name).map { $0.st_mode & S_IFMT == S_IFDIR } ?? false
      #expect(mode(path + name) == (isFolder ? folders : files), "\(name)")
    }
  }

  // MARK: Not ours

  @Test func directoryWithSomethingElseIsRefusedUntouched() async throws {
    try #require(mkdir(path, 0o700) == 0)
    try Data("chapter 1".utf8).write(to: URL(fileURLWithPath: path + "/thesis.txt"))
    try #require(mkdir(path + "/blobs", 0o700) == 0)
    try await expectRefused(path, [.notACache])
  }

  @Test(arguments: ["blobcache 2\ndurability checkpointed\n", "blobcache 10\n"])
  func otherFormatVersionIsRefusedUntouched(format: String) async throws {
    _ = try await makeCache()
    try Data(format.utf8).write(to: URL(fileURLWithPath: path + "/FORMAT"))
    try await expectRefused(path, [.formatVersion])
  }

  @Test(arguments: ["", "something else\n", "\0\0\0\0", "blobcache\n"])
  func garbageFormatFileIsRefusedUntouched(format: String) async throws {
    _ = try await makeCache()
    try Data(format.utf8).write(to: URL(fileURLWithPath: path + "/FORMAT"))
    try await expectRefused(path, [.notACache, .formatVersion, .corrupt])
  }

  @Test func fileInPlaceOfTheDirectoryIsRefused() async throws {
    try Data("a file".utf8).write(to: URL(fileURLWithPath: path))
    try await expectRefused(path, [.notADirectory])
    try await expectRefused(path + "/below", [.notADirectory], below: path)
  }

  @Test(arguments: ["index", "blobs", "staging"])
  func fileInPlaceOfAFolderIsRefused(name: String) async throws {
    _ = try await makeCache()
    try FileManager.default.removeItem(atPath: "\(path)/\(name)")
    try Data("a file".utf8).write(to: URL(fileURLWithPath: "\(path)/\(name)"))
    let error = try await errorOf { _ = try BlobCache(directory: path) }
    #expect(error.code == .notADirectory, "\(error)")
    #expect(
      FileManager.default.contents(atPath: "\(path)/\(name)") == Data("a file".utf8))
  }

  @Test(.enabled(if: Machine.isRoot, "changing an owner needs root"), arguments: ["", "/blobs"])
  func foreignOwnerIsRefused(name: String) async throws {
    _ = try await makeCache()
    try #require(chown(path + name, 12_345, 12_345) == 0)
    try await expectRefused(path, [.permission])
  }

  @Test(arguments: ["", "/blobs", "/index", "/staging"], [mode_t(0o777), 0o722, 0o1777])
  func directoryThatAnybodyMayWriteInIsRefused(name: String, mode: mode_t) async throws {
    _ = try await makeCache()
    try #require(chmod(path + name, mode) == 0)
    try await expectRefused(path, [.permission])
  }

  @Test func networkFileSystemIsRefusedUnlessAllowed() async throws {
    _ = try await makeCache()
    var configuration = BlobCache.Configuration()
    configuration.fileSystemType = 0x6969  // NFS_SUPER_MAGIC, statfs(2)
    try await expectRefused(path, [.networkFileSystem], configuration)
    let absent = directory.path("new")
    #expect(throws: BlobCache.Error.self) {
      try BlobCache(directory: absent, configuration: configuration)
    }
    configuration.allowsNetworkFileSystem = true
    let cache = try BlobCache(directory: path, configuration: configuration)
    #expect(try cache.contains("small"))
    try await cache.close()
  }

  @Test(arguments: ["/proc/blobcache", "/dev/null/cache"])
  func directoryThatCannotBeMadeIsAnError(path: String) async throws {
    let error = try await errorOf { _ = try BlobCache(directory: path) }
    #expect(!error.message.isEmpty)
    #expect(fileStatus(path) == nil)
  }

  // MARK: Symbolic links

  @Test(arguments: [
    "index", "blobs", "staging", "slots", "FORMAT", "LOCK", "quarantine", "index/data.mdb",
  ])
  func symbolicLinkInPlaceOfOursIsRefusedAndItsTargetUntouched(name: String) async throws {
    _ = try await makeCache()
    let outside = directory.path("outside")
    try #require(mkdir(outside, 0o700) == 0)
    let target = outside + "/target"
    if fileStatus("\(path)/\(name)") != nil {
      try FileManager.default.moveItem(atPath: "\(path)/\(name)", toPath: target)
    } else {
      try #require(mkdir(target, 0o700) == 0)
    }
    try FileManager.default.createSymbolicLink(
      atPath: "\(path)/\(name)", withDestinationPath: target)
    let before = snapshot(outside)
    let error = try await errorOf { _ = try BlobCache(directory: path) }
    #expect(error.code == .symbolicLink, "\(error)")
    #expect(snapshot(outside) == before)
  }

  @Test func symbolicLinkInPlaceOfAFanOutFolderIsNeverWrittenThrough() async throws {
    let digest = try await makeCache()
    let fan = "\(path)/blobs/\(digest.hex.prefix(2))"
    let outside = directory.path("outside")
    try FileManager.default.moveItem(atPath: fan, toPath: outside)
    try FileManager.default.createSymbolicLink(atPath: fan, withDestinationPath: outside)
    let before = snapshot(outside)
    do {
      let cache = try BlobCache(directory: path)
      #expect(try cache.blob(for: "large") == nil)
      let bytes = seededBytes(count: 100_000, seed: 2)
      let blob = try await cache.fetch("large") { load in
        try await load.write(bytes)
        return .complete
      }
      #expect(blob.holds(bytes))
      try await cache.remove("large")
      try await cache.flush()
      _ = try await cache.verify(.everything, repair: true)
      try await cache.close()
    } catch let error as BlobCache.Error {
      #expect(error.code == .symbolicLink, "\(error)")
    }
    #expect(snapshot(outside) == before)
  }

  @Test func symbolicLinkInPlaceOfABlobFileIsAMiss() async throws {
    let digest = try await makeCache()
    let file = CacheFolder(path).blobFile(digest)
    let outside = directory.path("outside")
    try FileManager.default.moveItem(atPath: file, toPath: outside)
    try FileManager.default.createSymbolicLink(atPath: file, withDestinationPath: outside)
    let cache = try BlobCache(directory: path)
    #expect(try cache.blob(for: "large") == nil)
    try await cache.store(seededBytes(count: 100_000, seed: 2), for: "again")
    #expect(try #require(try cache.blob(for: "again")).count == 100_000)
    try await cache.removeAll()
    try await cache.close()
    #expect(FileManager.default.contents(atPath: outside)?.count == 100_000)
  }

  @Test func danglingSymbolicLinkIsRefused() async throws {
    try FileManager.default.createSymbolicLink(
      atPath: path, withDestinationPath: directory.path("nowhere"))
    let error = try await errorOf { _ = try BlobCache(directory: path) }
    #expect([.symbolicLink, .notFound].contains(error.code), "\(error)")
    #expect(fileStatus(directory.path("nowhere")) == nil)
  }

  @Test func symbolicLinkToADirectoryThatIsNotOursIsRefused() async throws {
    let foreign = directory.path("foreign")
    try #require(mkdir(foreign, 0o700) == 0)
    try Data("chapter 1".utf8).write(to: URL(fileURLWithPath: foreign + "/thesis.txt"))
    try FileManager.default.createSymbolicLink(atPath: path, withDestinationPath: foreign)
    try await expectRefused(path, [.notACache, .symbolicLink, .permission], below: foreign)
  }

  @Test(.enabled(if: Machine.isRoot, "changing an owner needs root"))
  func symbolicLinkToADirectoryOfSomebodyElseIsRefused() async throws {
    let foreign = directory.path("foreign")
    try #require(mkdir(foreign, 0o700) == 0 && chown(foreign, 12_345, 12_345) == 0)
    try FileManager.default.createSymbolicLink(atPath: path, withDestinationPath: foreign)
    try await expectRefused(path, [.permission, .symbolicLink], below: foreign)
  }

  @Test func storeDoesNotFollowALinkAtItsSource() async throws {
    let secret = directory.path("secret")
    try Data("secret".utf8).write(to: URL(fileURLWithPath: secret))
    try FileManager.default.createSymbolicLink(
      atPath: directory.path("link"), withDestinationPath: secret)
    let cache = try BlobCache(directory: path)
    let error = try await errorOf {
      try await cache.store(contentsOf: directory.path("link"), for: "key")
    }
    #expect(error.code == .symbolicLink, "\(error)")
    #expect(try cache.blob(for: "key") == nil)
    try await cache.close()
  }

  // MARK: Unknown names, and nothing elsewhere

  @Test func unknownNamesInsideAreNeverDeleted() async throws {
    _ = try await makeCache()
    let names = ["notes", "blobs/notes", "blobs/zz", "staging/notes", "index/notes", "quarantine"]
    for name in names where fileStatus("\(path)/\(name)") == nil {
      try Data("mine".utf8).write(
        to: URL(fileURLWithPath: "\(path)/\(name)\(name == "quarantine" ? "-notes" : "")"))
    }
    let cache = try BlobCache(directory: path)
    try await cache.store(seededBytes(count: 90_000, seed: 3), for: "more")
    try await cache.removeAll()
    _ = try await cache.verify(.everything, repair: true)
    try await cache.flush()
    try await cache.close()
    for name in names.dropLast() {
      #expect(
        FileManager.default.contents(atPath: "\(path)/\(name)") == Data("mine".utf8), "\(name)")
    }
  }

  @Test func temporaryFilesLieInsideWhereverTMPDIRIs() async throws {
    let elsewhere = "/dev/shm"
    try #require(access(elsewhere, W_OK) == 0)
    let other = TemporaryDirectory(below: elsewhere)
    let process = try await SecondProcess.over(path, environment: ["TMPDIR": other.path])
    #expect(try await process.call("store large 300000 1").hasPrefix("ok"))
    #expect(try await process.call("stream streamed 300000 2 1000").hasPrefix("ok"))
    #expect(try await process.call("get streamed").hasPrefix("hit 300000 "))
    try await process.end()
    #expect(try FileManager.default.contentsOfDirectory(atPath: other.path).isEmpty)
  }

  @Test func filesOfAnotherMountAreCopiedAndMoved() async throws {
    let other = TemporaryDirectory(below: "/dev/shm")
    let bytes = seededBytes(count: 300_000, seed: 1)
    let cache = try BlobCache(directory: path)
    for mode in [BlobCache.FileMode.copying, .moving] {
      try Data(bytes).write(to: URL(fileURLWithPath: other.path("source")))
      try await cache.store(contentsOf: other.path("source"), for: "key", mode: mode)
      #expect(try #require(try cache.blob(for: "key")).holds(bytes))
      #expect((fileStatus(other.path("source")) == nil) == (mode == .moving))
    }
    try await cache.close()
  }

  // MARK: Keys

  @Test func everyKeyIsItsOwnAndNoneIsAPath() async throws {
    let outside = snapshot(directory.path).filter { !$0.hasPrefix("cache") }
    var keys: [BlobCache.Key] = [
      "", ".", "..", "a/b", "a\0b", "a", "A", "../escape", "/etc/passwd", "\u{E9}", "e\u{301}",
      "a\\b", " ", "\n", BlobCache.Key([0xFF, 0xFE]), BlobCache.Key([0]), "sha256:00",
    ]
    for count in [510, 511, 512, 4096, 65_535, 65_536] {
      keys.append(BlobCache.Key([UInt8](repeating: UInt8(ascii: "k"), count: count)))
      keys.append(BlobCache.Key(seededBytes(count: count, seed: 1)))
    }
    var cache = try BlobCache(directory: path)
    for (index, key) in keys.enumerated() {
      try await cache.store(seededBytes(count: 50 + index, seed: UInt64(index)), for: key)
    }
    try await cache.close()
    cache = try BlobCache(directory: path)
    for (index, key) in keys.enumerated() {
      let blob = try #require(try cache.blob(for: key), "\(index)")
      #expect(blob.holds(seededBytes(count: 50 + index, seed: UInt64(index))), "\(index)")
      #expect(blob.entry.key.bytes == key.bytes)
    }
    #expect(cache.statistics.entries == keys.count)
    #expect(snapshot(directory.path).filter { !$0.hasPrefix("cache") }.count == outside.count)
    try await cache.close()
  }

  @Test func keyOver64KiBIsRefusedEverywhere() async throws {
    let cache = try BlobCache(directory: path)
    let key = BlobCache.Key([UInt8](repeating: 1, count: 65_537))
    let errors = [
      try await errorOf { _ = try cache.blob(for: key) },
      try await errorOf { _ = try cache.contains(key) },
      try await errorOf { _ = try cache.entry(for: key) },
      try await errorOf { _ = try cache.withBytes(for: key) { $0.byteCount } },
      try await errorOf { try await cache.store([1], for: key) },
      try await errorOf { try await cache.remove(key) },
      try await errorOf { _ = try await cache.renew(key, lifetime: .forever) },
      try await errorOf { _ = try await cache.fetch(key) { _ in .complete } },
    ]
    for error in errors { #expect(error.code == .keyTooLong, "\(error)") }
    try await cache.close()
  }
}
