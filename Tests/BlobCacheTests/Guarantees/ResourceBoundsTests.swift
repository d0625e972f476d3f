import Foundation
import Testing

@testable import BlobCache

/// Threads, descriptors and mappings of a process are bounded, whatever its callers do.
@Suite("Resource bounds", .serialized)
struct ResourceBoundsTests {
  private let directory = TemporaryDirectory()
  private var path: String { directory.path("cache") }

  private static let mostMappings: Int = {
    let text = try? String(contentsOfFile: "/proc/sys/vm/max_map_count", encoding: .utf8)
    return Int(text?.filter(\.isNumber) ?? "") ?? 0
  }()

  /// More large blobs than there may be mappings for: the last ones are copies, and the process has half of its mappings
  /// left for all else.
  @Test(
    .enabled(if: (1000...200_000).contains(mostMappings), "as many mappings as are too many here"))
  func heldBlobsLeaveHalfOfTheMappingsToOthers() async throws {
    let process = try await SecondProcess.over(path, "memory=0")
    #expect(try await process.call("store key 1600000 1").hasPrefix("ok"))
    let half = Self.mostMappings / 2
    let answer = try await process.call("hold-many key \(half + 30)")
    #expect(answer == "ok \(half) true true")
    try await process.end()
  }

  /// However many operations are under way, their threads and descriptors are a few.
  @Test func threadsAndDescriptorsAreFewInAStorm() async throws {
    let process = try await SecondProcess.over(path)
    _ = try await process.call("mixed 400 1")
    let words = try await process.call("bounds 400").split(separator: " ")
    try #require(words.count == 6 && words[0] == "ok", "\(words)")
    let numbers = words.dropFirst().compactMap { Int($0) }
    print(
      "bounds: threads \(numbers[0]), at most \(numbers[1]); descriptors \(numbers[2]), at most \(numbers[3])"
    )
    // The store's own: eight for what blocks, one that writes; and the runtime's, one for each processor and some.
    #expect(numbers[1] <= 9 + ProcessInfo.processInfo.activeProcessorCount * 2 + 16)
    // A staged body has a descriptor while it is written; all else that is open is counted by the process.
    #expect(numbers[3] <= numbers[2] + 400 + 64)
    // None is left behind: a few may be of what is under way in the background.
    #expect(numbers[4] <= numbers[2] + 6, "\(numbers)")
    try await process.end()
  }
}
