import CBaseline
import Foundation

/// From which size should a body be a file? Bodies inline in LMDB's record against files named by digest, in the
/// store's record layout (`layout.c`), without the rest of the store. Prints Markdown tables.
enum Threshold {
  static let sizes = [2, 4, 8, 16, 32, 64]  // KiB
  static let batch = 64  // stores that one group commit takes along
  static let rounds = 3

  static func run(_ options: Options) throws -> Bool {
    var options = options
    let quick = options.flag("--quick")
    try options.end()
    let folder = try makeFolder("threshold")
    // All at the end: ext4 creates files slowly after many deletions.
    defer { removeFolder(folder) }

    var speed = [
      "| body | get warm: inline | + WILLNEED | file | put: inline | of it locked | file | of it locked |",
      "|---|---|---|---|---|---|---|---|",
    ]
    var cold = [
      "| body | get cold: inline | + WILLNEED | inline, NORDAHEAD | NORDAHEAD + WILLNEED | file |",
      "|---|---|---|---|---|---|",
    ]
    var space = [
      "| bodies | disk / payload: inline | file | after churn: inline | of it reusable | file "
        + "| put after churn: inline | file |",
      "|---|---|---|---|---|---|---|---|",
    ]
    for size in sizes.reversed() {
      let trial = Trial(folder: folder, bodySize: size << 10, quick: quick)
      let result = try trial.run()
      speed.insert("| \(size) KiB | \(result.speed.joined(separator: " | ")) |", at: 2)
      cold.insert("| \(size) KiB | \(result.cold.joined(separator: " | ")) |", at: 2)
      let churn = try trial.churn()
      let sizes = "\(size / 2)–\(size) KiB"
      space.insert("| \(sizes) | \(churn.joined(separator: " | ")) |", at: 2)
      complain("\(size) KiB done")
    }
    print(
      """
      Microseconds an operation, medians of \(rounds) rounds, inline and file in turn; puts in \
      group commits of \(batch), SHA-256 included, no fsync. *Locked*: the part inside the write \
      transaction, when no other writer can work.

      \(speed.joined(separator: "\n"))

      Microseconds a first read, nothing of it in memory (means of \(Trial.coldReads) reads).

      \(cold.joined(separator: "\n"))

      Sizes uniform between half and all of the row's; churn: as many bodies as there are, twice \
      over, each a random removal and a store. *Reusable*: free pages of the index.

      \(space.joined(separator: "\n"))
      """)
    return true
  }
}

/// One size: two stores, inline and file, with the same bodies in the same order.
private struct Trial {
  static let coldReads = 200
  let folder: String
  let bodySize: Int
  let quick: Bool

  var count: Int {
    let most = (quick ? 32 : 256) << 20
    return min(16_384, most / bodySize) / Threshold.batch * Threshold.batch
  }

  /// Put, warm gets, cold gets, with bodies of exactly the row's size.
  func run() throws -> (speed: [String], cold: [String]) {
    var stores = try [true, false].map { try Layout(folder, "\(bodySize)", inline: $0) }
    defer { for store in stores { store.close() } }
    sync()  // the disk still writes what the size before left behind
    let batches = stride(from: 0, to: count, by: Threshold.batch)
    var puts = [Samples(), Samples()]  // ours: µs a put; baseline: of it locked
    for (i, first) in batches.enumerated() {
      let numbers = (first..<first + Threshold.batch).map(UInt64.init)
      let bodies = Bodies(numbers, size: { _ in bodySize }, stride: bodySize)
      for side in i.isMultiple(of: 2) ? [0, 1] : [1, 0] {
        let (total, locked) = try stores[side].put(numbers, removing: nil, bodies)
        puts[side].ours.append(total)
        puts[side].baseline.append(locked)
      }
    }

    var order = (0..<UInt64(count)).map { $0 }
    var generator = SeededGenerator(UInt64(bodySize))
    var warm: [[Double]] = [[], [], []]
    for round in 0...Threshold.rounds {
      order.shuffle(using: &generator)
      for (i, (side, willNeed)) in [(0, false), (0, true), (1, false)].enumerated() {
        let time = try stores[side].get(order, willNeed: willNeed)
        if round > 0 { warm[i].append(time) }
      }
    }

    var cold: [Double] = []
    let variants = [
      (0, true, false), (0, true, true), (0, false, false), (0, false, true), (1, false, false),
    ]
    for (side, readAhead, willNeed) in variants {
      order.shuffle(using: &generator)
      stores[side].close()
      try stores[side].makeCold()
      stores[side] = try Layout(folder, "\(bodySize)", inline: side == 0, readAhead: readAhead)
      cold.append(try stores[side].get(Array(order.prefix(Self.coldReads)), willNeed: willNeed))
    }
    let speed =
      warm.map(\.median)
      + puts.flatMap { [$0.ours.median, $0.baseline.median] }
    return (speed.map(microseconds), cold.map(microseconds))
  }

  /// Fill, then replace everything twice over in random order; sizes vary, which is what fragments.
  func churn() throws -> [String] {
    let stores = try [true, false].map { try Layout(folder, "\(bodySize)-churn", inline: $0) }
    defer { for store in stores { store.close() } }
    sync()
    var generator = SeededGenerator(UInt64(bodySize) + 1)
    var live = (0..<UInt64(count)).map { $0 }
    let size = { (number: UInt64) in
      bodySize / 2 + Int(number &* 2_654_435_761 % UInt64(bodySize / 2))
    }
    var ratios: [[Double]] = [[], []]
    var reusable = 0.0
    var last: [[Double]] = [[], []]
    for pass in 0...2 {
      last = [[], []]
      for first in stride(from: 0, to: count, by: Threshold.batch) {
        let numbers = (0..<Threshold.batch).map { UInt64(pass * count + first + $0) }
        var removals: [UInt64]?
        if pass > 0 {
          removals = numbers.map { number in
            let i = Int.random(in: 0..<live.count, using: &generator)
            defer {
              live[i] = live[live.count - 1]
              live.removeLast()
            }
            return live[i]
          }
          live += numbers
        }
        let bodies = Bodies(numbers, size: size, stride: bodySize)
        for side in 0...1 {
          last[side].append(try stores[side].put(numbers, removing: removals, bodies).total)
        }
      }
      guard pass != 1 else { continue }
      let payload = Double(live.reduce(0) { $0 + size($1) })
      for side in 0...1 {
        let space = try stores[side].space()
        ratios[side].append(Double(space.allocated) / payload)
        if side == 0 { reusable = Double(space.reusable) / Double(space.allocated) }
      }
    }
    let ratio = { (value: Double) in String(format: "%.2f", value) }
    return [
      ratio(ratios[0][0]), ratio(ratios[1][0]), ratio(ratios[0][1]),
      String(format: "%.0f %%", reusable * 100), ratio(ratios[1][1]),
      microseconds(last[0].median), microseconds(last[1].median),
    ]
  }
}

private func microseconds(_ value: Double) -> String {
  String(format: value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value)
}

/// The bodies of one batch, one `stride` apart.
private struct Bodies {
  let bytes: [UInt8]
  let sizes: [Int]
  let stride: Int

  init(_ numbers: [UInt64], size: (UInt64) -> Int, stride: Int) {
    bytes = body(Int(numbers[0]), numbers.count * stride)
    sizes = numbers.map(size)
    self.stride = stride
  }
}

/// Owns one `cb_layout`; not to be used after `close()`.
@safe
private final class Layout {
  private let folder: String
  private var layout: OpaquePointer?

  init(_ parent: String, _ name: String, inline: Bool, readAhead: Bool = false) throws {
    folder = "\(parent)/\(name)-\(inline ? "inline" : "file")"
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    let options = cb_layout_options(inline_bodies: inline, read_ahead: readAhead)
    try check(unsafe cb_layout_open(folder, options, &layout))
  }

  func close() {
    if let layout = unsafe layout { unsafe cb_layout_close(layout) }
    unsafe layout = nil
  }

  /// Microseconds a body: in all, and of it under the write lock.
  func put(
    _ numbers: [UInt64], removing: [UInt64]?, _ bodies: Bodies
  ) throws -> (total: Double, locked: Double) {
    var locked: UInt64 = 0
    let time = try seconds {
      try check(
        unsafe cb_layout_put(
          layout, numbers, removing, bodies.bytes, bodies.stride, bodies.sizes, numbers.count,
          &locked))
    }
    let each = 1 / Double(numbers.count)
    return (time * 1e6 * each, Double(locked) / 1e3 * each)
  }

  /// Microseconds a read, every byte summed.
  func get(_ numbers: [UInt64], willNeed: Bool) throws -> Double {
    var sum: UInt64 = 0
    let time = try seconds {
      for number in numbers { try check(unsafe cb_layout_get(layout, number, willNeed, &sum)) }
    }
    return time * 1e6 / Double(numbers.count)
  }

  func space() throws -> (allocated: UInt64, reusable: UInt64) {
    var (allocated, reusable): (UInt64, UInt64) = (0, 0)
    try check(unsafe cb_layout_space(layout, &allocated, &reusable))
    return (allocated, reusable)
  }

  func makeCold() throws {
    var complete = false
    try check(unsafe cb_make_cold(folder, &complete))
    if !complete { complain("not root: folders and inodes stay warm") }
  }
}
