import Foundation
import Testing

@testable import BlobCache

/// Promise 4: no process is starved of the write lock by others that store without a pause.
@Suite("4. Turns at the write lock")
struct TurnsTests {
  private let directory = TemporaryDirectory()

  enum Others: String, CaseIterable {
    case tasks = "hog 64"
    case core = "hog-core"
  }

  /// Who waits is behind what is being committed, and behind who waited before: not behind all that come later. A store
  /// comes to stand in line by a thread of its own, so of those only the time is told; one through the C core is there at
  /// once.
  @Test(arguments: ["every=3600000", "durable"], Others.allCases)
  func aSingleStoreHasItsTurnBesideTwoThatStoreWithoutPause(mode: String, others: Others)
    async throws
  {
    let path = directory.path("cache")
    try await SecondProcess.over(path, mode).end()
    let isCore = others == .core
    func begin() async throws -> SecondProcess {
      isCore ? try SecondProcess() : try await SecondProcess.over(path, mode)
    }
    let single = try await begin()
    var hogs: [SecondProcess] = []
    for _ in 0..<2 {
      let hog = try await begin()
      #expect(try await hog.call(isCore ? "hog-core \(path)" : others.rawValue) == "ok")
      hogs.append(hog)
    }
    let command = "turns 101 \(path)\(isCore ? " core" : "")"
    let words = try await single.call(command).split(separator: " ")
    try #require(words.count == 4 && words[0] == "ok", "\(words)")
    let (few, most) = (try #require(Int(words[1])), try #require(Int(words[2])))
    print(
      "turns: \(mode), \(others): \(few) when it has a processor, \(most) at most, \(words[3]) ms at most"
    )
    // Its own, the one under way, and one of each other: some more where the machine is loaded.
    if isCore { #expect(few <= 6) }
    #expect(try #require(Int(words[3])) < 10_000)
    for hog in hogs {
      #expect(try !hog.isStopped)
      hog.kill()
    }
    single.kill()
    #expect(try await structureOf(path) == "ok")
  }
}
