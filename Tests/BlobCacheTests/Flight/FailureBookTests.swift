import Testing

@testable import BlobCache

@Suite struct FailureBookTests {
  private struct Down: Error {}

  private func failing(_ count: Int, at now: Int64 = 1_000, chance: Double = 0) -> FailureBook<Int>
  {
    var book = FailureBook<Int>()
    var now = now
    for _ in 0..<count {
      book.record(1, cause: Down(), now: now, chance: chance)
      now = book.failures[1]?.retryAt ?? now
    }
    return book
  }

  @Test func theDelayDoublesUpToAMinuteAndChanceOnlyLengthensIt() {
    let delays = (1...9).map { FailureBook<Int>.delay(after: $0, chance: 0) }
    #expect(delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000])
    #expect(FailureBook<Int>.delay(after: 1, chance: 0.999) == 1_499)
    #expect(FailureBook<Int>.delay(after: 1_000_000, chance: 0.5) == 75_000)
  }

  @Test(arguments: [0, 0.5, 0.999])
  func atMostSixLoadsInTheFirstMinuteThenOneAMinute(chance: Double) {
    var book = FailureBook<Int>()
    var begun: [Int64] = []
    for now in stride(from: Int64(0), to: 600_000, by: 100) where !book.isBackingOff(1, now: now) {
      begun.append(now)
      book.record(1, cause: Down(), now: now, chance: chance)
    }
    #expect(begun.filter { $0 < 60_000 }.count <= 6)
    for start in stride(from: Int64(60_000), to: 540_000, by: 10_000) {
      #expect(begun.filter { (start..<start + 60_000).contains($0) }.count <= 1)
    }
  }

  @Test func aNegativeLifetimeIsTheCallers() {
    let book = failing(1)
    #expect(book.negative(1, lifetime: 500, now: 1_000)?.cause is Down)
    #expect(book.negative(1, lifetime: 500, now: 1_499) != nil)
    #expect(book.negative(1, lifetime: 500, now: 1_500) == nil)
    #expect(book.negative(1, lifetime: 501, now: 1_500) != nil)
    #expect(book.negative(1, lifetime: 0, now: 1_000) == nil)
    #expect(book.negative(2, lifetime: 500, now: 1_000) == nil)
  }

  @Test func aClockThatIsSetBackEndsBoth() {
    let book = failing(3)
    let before = Int64(-1_000_000_000)
    #expect(book.negative(1, lifetime: .max, now: before) == nil)
    #expect(!book.isBackingOff(1, now: before))
  }

  @Test func whatEndsIt() {
    var book = failing(3)
    book.endNegative(1)
    #expect(book.negative(1, lifetime: .max, now: 5_000) == nil)
    #expect(book.isBackingOff(1, now: 5_000), "a reload does not make the origin well")
    book.record(1, cause: Down(), now: 5_000, chance: 0)
    #expect(book.negative(1, lifetime: 100, now: 5_000) != nil, "it failed again")
    #expect(book.failures[1]?.count == 4)
    book.forget(1)
    #expect(!book.isBackingOff(1, now: 5_000))
    book.record(1, cause: Down(), now: 5_000, chance: 0)
    #expect(book.failures[1]?.count == 1)
    book.record(1, cause: Down(), now: 5_000 + FailureBook<Int>.memory, chance: 0)
    #expect(book.failures[1]?.count == 1, "long ago")
  }

  @Test func itIsBoundedInNumberAndForgetsTheOldest() {
    var book = FailureBook<Int>()
    let limit = FailureBook<Int>.countLimit
    for key in 0..<limit { book.record(key, cause: Down(), now: 0, chance: 0) }
    book.record(0, cause: Down(), now: 0, chance: 0)
    for key in limit..<limit + 100 { book.record(key, cause: Down(), now: 0, chance: 0) }
    #expect(book.count == limit)
    #expect(book.failures[0] != nil, "it failed again meanwhile")
    #expect(book.failures[1] == nil)
    #expect(book.failures[100] == nil)
    #expect(book.failures[101] != nil)
  }

  @Test func itIsBoundedInBytes() {
    var book = FailureBook<Int> { _ in 65_536 }
    for key in 0..<1_000 { book.record(key, cause: Down(), now: 0, chance: 0) }
    #expect(book.count == FailureBook<Int>.byteLimit / 65_536)
    for key in 0..<1_000 { book.forget(key) }
    for key in 0..<10 { book.record(key, cause: Down(), now: 0, chance: 0) }
    #expect(book.count == 10)
  }

  @Test func oneKeyThatFailsForeverTakesNoMemory() {
    var book = FailureBook<Int>()
    for now in 0..<100_000 as Range<Int64> { book.record(1, cause: Down(), now: now, chance: 0) }
    #expect(book.count == 1)
  }
}
