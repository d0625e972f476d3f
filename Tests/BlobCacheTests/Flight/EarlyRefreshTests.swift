import Testing

@testable import BlobCache

@Suite struct EarlyRefreshTests {
  @Test func theMarginIsDrawnFromAnExponentialDistribution() {
    #expect(EarlyRefresh.margin(loadTime: 100, beta: 1, chance: 0) == 0)
    #expect(abs(EarlyRefresh.margin(loadTime: 100, beta: 1, chance: 0.5) - 69.3) < 0.1)
    #expect(abs(EarlyRefresh.margin(loadTime: 100, beta: 2, chance: 0.5) - 138.6) < 0.1)
    #expect(EarlyRefresh.margin(loadTime: 0, beta: 1, chance: 0.9) == 0)
    // The largest number below 1 that is drawn.
    let most = EarlyRefresh.margin(loadTime: 1, beta: 1, chance: 1 - 1 / Double(1 << 53))
    #expect(most > 36 && most < 37)
    let draws = (0..<10_000).map { _ in
      EarlyRefresh.margin(loadTime: 100, beta: 1, chance: .random(in: 0..<1))
    }
    #expect(abs(draws.reduce(0, +) / 10_000 - 100) < 10, "the mean is the load time")
  }

  @Test func loadTimesAreBounded() {
    let times = LoadTimes()
    #expect(times.longest == 0 && times.of("k") == nil)
    times.note("k", .milliseconds(30))
    times.note("slow", .milliseconds(90))
    #expect(times.of("k") == 30 && times.longest == 90)
    for number in 0..<2 * LoadTimes.limit { times.note(.init("\(number)"), .milliseconds(1)) }
    #expect(times.of("k") == nil)
    #expect(times.of(.init("\(2 * LoadTimes.limit - 1)")) == 1)
    times.note(.init([UInt8](repeating: 1, count: 60_000)), .milliseconds(1))
    #expect(times.of(.init([UInt8](repeating: 1, count: 60_000))) == nil)
  }
}
