import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// Promise 4, several processes at once: each is killed, stopped and continued at random moments while all of them do
/// everything that the library does. The long form: BLOBCACHE_KILLS=5000; other moments: BLOBCACHE_KILL_SEED; one weather
/// alone: BLOBCACHE_KILL_WEATHER.
@Suite("4. Killed together", .serialized)
struct KilledTogetherTests {
  private let directory = TemporaryDirectory()

  /// What one directory is opened with, and what follows from it.
  struct Weather: Sendable, CustomTestStringConvertible {
    var name: String
    var options: String
    var evicts = false
    var clears = false
    var testDescription: String { name }

    static let all = [
      Weather(name: "checkpoints", options: "every=15 limit=268435456"),
      Weather(name: "durable", options: "durable"),
      Weather(name: "no checkpoints, cleared", options: "every=3600000", clears: true),
      Weather(name: "checkpoints, a small limit", options: "every=15 limit=2097152", evicts: true),
    ]
  }

  @Test(arguments: Weather.all)
  func eachKilledStoppedAndContinuedAtRandomMoments(weather: Weather) async throws {
    if let only = Machine.killWeather, only != weather.name { return }
    let incidents = (Machine.kills ?? 64) / Weather.all.count
    let index = try #require(Weather.all.firstIndex { $0.name == weather.name })
    let seed = Machine.killSeed ?? UInt64(index + 1)
    let round = try Round(directory, weather, seed)
    var longest = [Ledger.Kind: Duration]()
    for number in 0..<incidents {
      try await round.strike(number)
      if number % 8 == 7 || number == incidents - 1 { try await round.calm(number / 8 + index) }
    }
    for kind in Ledger.Kind.allCases { longest[kind] = round.ledger.longest(kind) }
    print(
      """
      killed together: \(weather.name): \(round.kills) kills, \(round.stops) stops, \
      \(round.ledger.count(.lookup)) lookups (longest \(longest[.lookup]!)), \
      \(round.ledger.count(.write)) writes (\(longest[.write]!)), \
      \(round.ledger.count(.fetch)) fetches (\(longest[.fetch]!))
      """)
    #expect(round.ledger.count(.lookup) > 100 && round.ledger.count(.write) > 100)
    // Far above anything but a wait for somebody who stands still; the machine may be loaded.
    #expect(longest[.lookup]! < .seconds(10))
    #expect(longest[.fetch]! < .seconds(30))
    #expect(longest[.write]! < .seconds(30))
  }
}

/// Three processes over one directory, and what is done to them.
private final class Round {
  let path: String
  let ledger: Ledger
  private(set) var kills = 0
  private(set) var stops = 0
  private let ledgerPath: String
  private let weather: KilledTogetherTests.Weather
  private var random: SeededGenerator
  private var processes: [SecondProcess?] = []
  private var comment: Comment = ""

  init(
    _ directory: TemporaryDirectory, _ weather: KilledTogetherTests.Weather, _ seed: UInt64
  ) throws {
    path = directory.path("cache")
    ledgerPath = directory.path("ledger")
    self.weather = weather
    ledger = try Ledger(ledgerPath)
    ledger.prepare()
    random = SeededGenerator(seed: seed)
    processes = [SecondProcess?](repeating: nil, count: Ledger.processes)
  }

  private func coin(_ chance: Double) -> Bool { Double.random(in: 0..<1, using: &random) < chance }

  // MARK: Life

  /// With a memory tier or without one.
  private func begin(_ number: Int) async throws {
    let memory = coin(0.5) ? "" : " memory=0"
    let process = try await SecondProcess.over(
      path, "\(weather.options) once lease=1 sweep=150\(memory)")
    try sendStorm(process, number)
    processes[number] = process
  }

  private func sendStorm(_ process: SecondProcess, _ number: Int) throws {
    try process.send(
      "storm \(ledgerPath) \(number) \(random.next() >> 1)\(weather.evicts ? " evicts" : "")\(weather.clears ? " clears" : "")"
    )
  }

  /// What it said before it was killed is an error: it has found something wrong.
  private func kill(_ number: Int) throws {
    guard let process = processes[number] else { return }
    process.kill()
    kills += 1
    let said = try process.remainingLines()
    #expect(said.isEmpty, comment)
    #expect(said.allSatisfy { $0 == "ok" }, "\(said)")
    processes[number] = nil
    if ledger.stops(number) % 2 == 1 { ledger.noteStop(number) }
  }

  private func stop(_ number: Int) {
    guard let process = processes[number], ledger.stops(number).isMultiple(of: 2) else { return }
    ledger.noteStop(number)
    Glibc.kill(process.pid, SIGSTOP)
    stops += 1
  }

  private func go(_ number: Int) {
    guard let process = processes[number], !ledger.stops(number).isMultiple(of: 2) else { return }
    Glibc.kill(process.pid, SIGCONT)
    ledger.noteStop(number)
  }

  /// The moments are what is random here.
  private func aMoment(_ most: Int) async throws {
    try await Task.sleep(for: .microseconds(Int.random(in: 0...most, using: &random)))
  }

  // MARK: One incident

  func strike(_ number: Int) async throws {
    comment = "\(weather.name), incident \(number)"
    for number in processes.indices where processes[number] == nil { try await begin(number) }
    try await aMoment(60_000)
    let first = Int.random(in: processes.indices, using: &random)
    let second = (first + 1) % processes.count
    switch Int.random(in: 0..<10, using: &random) {
    case 0..<4: try kill(first)
    case 4:
      try kill(first)
      try kill(second)
    case 5:
      stop(first)
      try await aMoment(40_000)
      try kill(first)
    case 6:
      // One opens, and is killed, while another stands still.
      stop(first)
      try await aMoment(5000)
      try kill(second)
      try await aMoment(40_000)
      go(first)
    case 7:
      stop(first)
      stop(second)
      try await aMoment(60_000)
      if coin(0.5) { try kill(second) }
      go(first)
      go(second)
    default:
      for _ in 0..<3 {
        stop(first)
        try await aMoment(coin(0.1) ? 300_000 : 20_000)
        go(first)
        try await aMoment(3000)
      }
    }
  }

  // MARK: Afterwards

  /// All come to an end, in one of three ways; then nothing may be left, and nothing be lost.
  func calm(_ number: Int) async throws {
    comment = "\(weather.name), after \(kills) kills"
    switch number % 3 {
    case 0: for number in processes.indices { try kill(number) }
    case 1:
      for number in processes.indices.dropFirst() { try kill(number) }
      if processes[0] == nil { try await begin(0) }
      try await survive()
    default:
      ledger.isOver = true
      try await endInOrder()
    }
    ledger.isOver = false
    try await lookAround()
  }

  private func endInOrder() async throws {
    for number in processes.indices {
      guard let process = processes[number] else { continue }
      try await end(process)
      processes[number] = nil
    }
  }

  /// One goes on, and its sweep takes away what the others have left.
  private func survive() async throws {
    ledger.isOver = true
    let process = try #require(processes[0])
    try await expectOK(process.nextLine())
    try await expectOK(process.call("sweep"))
    #expect(Leftovers(path).beside(process.pid) == [], comment)
    try await expectOK(process.call("close"))
    try await process.end()
    processes[0] = nil
  }

  private func end(_ process: SecondProcess) async throws {
    try await expectOK(process.nextLine())
    try await expectOK(process.call("close"))
    try await process.end()
  }

  private func expectOK(_ answer: String) { #expect(answer == "ok", comment) }

  private func lookAround() async throws {
    var configuration = BlobCache.Configuration()
    configuration.durability = .asRecorded
    configuration.sweepInterval = nil
    let cache = try BlobCache(directory: path, configuration: configuration)
    for key in 0..<Ledger.keys { try ledger.settle(key, in: cache, evicts: weather.evicts) }
    // What a dead writer could not announce, the next one does.
    try await cache.store([1], for: "after")
    for key in 0..<Ledger.keys { try ledger.check(key, in: cache, evicts: weather.evicts) }
    ledger.settleClears()
    if weather.clears {
      try await cache.removeAll()
      for key in 0..<Ledger.keys {
        #expect(try cache.blob(for: Ledger.name(key)) == nil, comment)
        ledger.done(key, 0, clears: ledger.clearsDone)
        ledger.setPinned(key, false)
      }
    }
    try await cache.sweep()
    #expect(try await strayFiles(of: cache) == [], comment)
    let report = try await cache.verify(.everything)
    #expect(report.isSound, "\(report)")
    try await cache.close()
    #expect(Leftovers(path).afterAll == [], comment)
    #expect(try await structureOf(path) == "ok", comment)
  }
}
