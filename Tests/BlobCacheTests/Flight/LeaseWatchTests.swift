import Testing

@testable import BlobCache

/// Who waits for a process that loads, and for how long.
@Suite struct LeaseWatchTests {
  private func holder(_ number: UInt32, _ beats: UInt32) -> Leases.Holder {
    Leases.Holder(number: number, beats: beats)
  }

  /// A watch whose pauses have become long.
  private func settled(_ patience: Duration = .seconds(1)) -> LeaseWatch {
    var watch = LeaseWatch(patience: patience)
    for _ in 0..<20 { _ = watch.pause(chance: 0.5) }
    return watch
  }

  @Test func whoGivesSignsIsWaitedForWithoutEnd() {
    var watch = settled()
    // A sign at every fifth look.
    let isPatient = (0..<10_000).allSatisfy { look in
      let seen = holder(7, UInt32(look / 5))
      return watch.see(seen, after: .milliseconds(100), isNested: false) == .wait
    }
    #expect(isPatient)
    #expect(watch.level == 0)
  }

  @Test func whoIsSilentIsPassedByLevelForLevel() {
    var watch = settled()
    for level in 1...Leases.levels {
      var decision = LeaseWatch.Decision.wait
      var looks = 0
      while decision == .wait {
        decision = watch.see(holder(7, 1), after: .milliseconds(100), isNested: false)
        looks += 1
      }
      #expect(looks == 11, "the first look begins the silence, ten make a second")
      #expect(decision == (level < Leases.levels ? .passBy : .goOn))
      #expect(watch.level == level)
    }
  }

  @Test func anotherHolderBeginsAnew() {
    var watch = settled()
    for number in 1..<100 as Range<UInt32> {
      for _ in 0..<10 {
        #expect(watch.see(holder(number, 1), after: .milliseconds(100), isNested: false) == .wait)
      }
    }
  }

  @Test func standingStillOneselfIsNotTheOthersSilence() {
    var watch = settled()
    _ = watch.see(holder(7, 1), after: .zero, isNested: false)
    #expect(watch.see(holder(7, 1), after: .seconds(3600), isNested: false) == .wait)
  }

  @Test func forALoaderNobodyWaitsLongerThanThePatience() {
    var watch = settled()
    var looks: UInt32 = 0
    while watch.see(holder(7, looks), after: .milliseconds(100), isNested: true) == .wait {
      looks += 1
    }
    #expect(looks == 9)
    #expect(watch.see(holder(7, 99), after: .milliseconds(100), isNested: false) == .wait)
  }

  @Test func pausesGrowToATenthOfASecond() {
    var watch = LeaseWatch(patience: .seconds(1))
    let first = watch.pause(chance: 0.5)
    #expect(first < .milliseconds(10))
    for _ in 0..<20 { _ = watch.pause(chance: 0.5) }
    #expect(watch.pause(chance: 0.5) == .milliseconds(100))
    #expect(watch.pause(chance: 0) == .milliseconds(75))
  }
}
