import CBlobStore
import Foundation
import Testing

@testable import BlobCache

/// Every error names the operation, the path and the cause, and says what to do; and what it says
/// is what happened.
@Suite struct ErrorTextTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  /// `.busy` and such have one text for several statuses; each has one that says what to do.
  @Test func everyStatusHasACodeOfItsOwnAndAdvice() {
    var texts: [String: String] = [:]
    for raw in 1..<64 {
      let status = bcs_status(rawValue: UInt32(raw))
      let name = String(cString: bcs_status_name(status))
      if name == "BCS_?" { break }
      // These are answers, not errors.
      if ["BCS_MISS", "BCS_WOULD_BLOCK"].contains(name) { continue }
      let error = BlobCache.Error(status, operation: "test")
      #expect(!error.message.contains("not known here"), "\(name)")
      #expect(error.message.hasSuffix("."), "\(name)")
      #expect(texts.updateValue(name, forKey: error.message) == nil, "\(name): \(error.message)")
    }
    #expect(texts.count > 25)
  }

  @Test(arguments: [
    (ENAMETOOLONG, BlobCache.Error.Code.invalidArgument, "longer than the system allows"),
    (EISDIR, .isADirectory, "A folder stands where a file should be"),
    (ENOTDIR, .notADirectory, "A file stands where a folder should be"),
    (ELOOP, .symbolicLink, "A link stands in the way"),
    (EROFS, .readOnly, "The file system is mounted read-only"),
    (ENOENT, .notFound, "does not exist"),
    (EACCES, .permission, "Permission was denied"),
    (EMFILE, .tooManyFiles, "No file descriptor is left"),
    (EDQUOT, .noSpace, "No space is left"),
    (EIO, .io, "Reading or writing failed"),
  ])
  func everyErrnoSaysWhatItIs(errno: Int32, code: BlobCache.Error.Code, words: String) {
    let error = BlobCache.Error(errno: errno, operation: "open", path: "/p")
    #expect(error.code == code)
    #expect(error.message.contains(words), "\(error)")
    #expect(error.cause == String(cString: strerror(errno)))
  }

  @Test func localizedDescriptionSaysTheSame() {
    let error: any Swift.Error = BlobCache.Error(
      .io, operation: "open", path: "/p", message: "No.", cause: "because")
    #expect(error.localizedDescription == "No. (io, in open of /p: because)")
  }

  @Test func limitsNameTheDirectoryAndTheValue() async throws {
    var configuration = BlobCache.Configuration()
    configuration.limits = .bytes(4_095)
    let opening = try await errorOf {
      _ = try BlobCache(directory: path, configuration: configuration)
    }
    #expect(opening.path == path)
    #expect(opening.cause == "4095 was given")
    let cache = try BlobCache(directory: path)
    let trimming = try await errorOf { try await cache.trim(to: .age(.seconds(-1))) }
    #expect(trimming.path == cache.directory)
    #expect(trimming.cause == "-1.0 seconds was given")
    try await cache.close()
  }

  @Test func aPathIsShortenedInItsMiddleInTheTextOnly() {
    let long = "/front/" + String(repeating: "x", count: 4000) + "/end"
    let error = BlobCache.Error(.io, operation: "open", path: long, message: "No.")
    #expect(error.path == long)
    #expect(error.description.count < 250)
    #expect(error.description.contains("/front/xx"))
    #expect(error.description.contains("xx/end)"))
  }

  @Test func aSourceThatIsNoRegularFileSaysWhatItIs() async throws {
    let cache = try BlobCache(directory: path)
    let file = directory.path("file")
    try Data([1]).write(to: URL(fileURLWithPath: file))
    try FileManager.default.createSymbolicLink(
      atPath: directory.path("link"), withDestinationPath: file)
    func refusal(_ path: String) async throws -> BlobCache.Error {
      try await errorOf { try await cache.store(contentsOf: path, for: "key") }
    }
    let link = try await refusal(directory.path("link"))
    #expect(link.code == .symbolicLink)
    #expect(link.path == directory.path("link"))
    #expect(link.message.hasPrefix("The file to store is a symbolic link"))
    let folder = try await refusal(directory.path)
    #expect(folder.code == .invalidArgument)
    #expect(folder.message.hasPrefix("Only a regular file can be stored"))
    #expect(folder.cause == "it is a folder")
    #expect(try await refusal("/dev/null").cause == "it is a device or a pipe")
    #expect(try await refusal(file + "/below").code == .notADirectory)
    let name = directory.path(String(repeating: "n", count: 256))
    #expect(try await refusal(name).message.contains("longer than the system allows"))
    #expect(try await refusal("").message.hasPrefix("The path is empty"))
    #expect(try await refusal("a\0b").code == .invalidArgument)
    try await cache.close()
  }

  @Test func writingABlobToAPathThatCannotBeSaysWhy() async throws {
    let cache = try BlobCache(directory: path)
    try await cache.store([1, 2], for: "key")
    let blob = try #require(try cache.blob(for: "key"))
    let empty = try await errorOf { try blob.write(to: "") }
    #expect(empty.code == .invalidArgument)
    #expect(empty.message.hasPrefix("The path is empty"))
    #expect(try await errorOf { try blob.write(to: directory.path) }.code == .isADirectory)
    let nowhere = try await errorOf { try blob.write(to: directory.path("absent/file")) }
    #expect(nowhere.code == .notFound)
    #expect(nowhere.message.hasPrefix("The folder to write into does not exist"))
    let tooLong = try await errorOf {
      try blob.write(to: directory.path(String(repeating: "n", count: 256)))
    }
    #expect(tooLong.code == .invalidArgument, "\(tooLong)")
    // The longest name that there can be is no trouble, and nothing is left beside it.
    let longest = directory.path(String(repeating: "n", count: 255))
    try blob.write(to: longest)
    #expect(FileManager.default.contents(atPath: longest) == Data([1, 2]))
    #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path).count == 2)
    try await cache.close()
  }

  @Test func errorsNameTheCallThatWasMade() async throws {
    let cache = try BlobCache(directory: path)
    let key = BlobCache.Key([UInt8](repeating: 1, count: 65_537))
    let calls: [(String, () async throws -> Void)] = [
      ("lookup", { _ = try cache.blob(for: key) }),
      ("entry", { _ = try cache.entry(for: key) }),
      ("store", { try await cache.store([1], for: key) }),
      ("renew", { _ = try await cache.renew(key, lifetime: .forever) }),
      ("remove", { try await cache.remove(key) }),
      ("removeAll", { try await cache.removeAll(withPrefix: key) }),
      ("entries", { for try await _ in cache.entries(withPrefix: key) {} }),
    ]
    for (operation, call) in calls {
      let error = try await errorOf { try await call() }
      #expect(error.code == .keyTooLong, "\(error)")
      #expect(error.operation == operation, "\(error)")
    }
    try await cache.close()
  }

  @Test func aTagThatNoEntryCanHaveIsATagAndNoKey() async throws {
    let cache = try BlobCache(directory: path)
    let longest = String(repeating: "t", count: 65_534)
    try await cache.store([1], for: "key", tags: [longest])
    let tag = longest + "t"
    let calls: [(String, () async throws -> Void)] = [
      ("removeAll", { try await cache.removeAll(tagged: tag) }),
      ("removeAll", { try await cache.removeAll(matching: .tagged(tag + tag)) }),
      ("entries", { for try await _ in cache.entries(withPrefix: nil, tag: tag + tag) {} }),
      ("store", { try await cache.store([1], for: "key", tags: [tag]) }),
    ]
    for (operation, call) in calls {
      let error = try await errorOf { try await call() }
      #expect(error.code == .tagsTooLarge && error.operation == operation, "\(error)")
      #expect(error.message.contains("shorter") && !error.message.contains("key"), "\(error)")
    }
    #expect(try await cache.removeAll(tagged: longest) == 1)
    try await cache.close()
  }

  @Test func anotherDurabilityNamesTheOneThatThereIs() async throws {
    var durable = BlobCache.Configuration()
    durable.durability = .durable
    let cache = try BlobCache(directory: path, configuration: durable)
    for stage in ["open", "closed"] {
      let error = try await errorOf { _ = try BlobCache(directory: path) }
      #expect(error.code == .durabilityMismatch)
      #expect(error.cause?.contains("durable") == true, "\(stage): \(error)")
      try await cache.close()
    }
  }

  @Test(arguments: [
    (0o700 as UInt32, 0 as UInt32), (0o700, 0o200), (0o700, 0o700), (0o700, 0o10600),
    (0, 0o600), (0o600, 0o600), (0o1777, 0o600), (0xFFFF_FFFF, 0xFFFF_FFFF),
  ])
  func modesThatCannotBeUsedAreRefusedBeforeAnythingIsMade(
    directoryMode: UInt32, fileMode: UInt32
  ) async throws {
    var configuration = BlobCache.Configuration()
    configuration.directoryMode = directoryMode
    configuration.fileMode = fileMode
    let error = try await errorOf {
      _ = try BlobCache(directory: path, configuration: configuration)
    }
    #expect(error.code == .invalidArgument)
    #expect(error.path == path)
    #expect(error.message.contains("Mode cannot be used"), "\(error)")
    #expect(fileStatus(path) == nil)
  }
}
