import Foundation

/// Hit ratios: replays traces through the store and through the policies of the literature at the same capacity.
enum Replay {
  static let quickRequests = 20_000
  static let kinds = Kind.policies + [.store]

  @concurrent
  static func run(_ options: Options) async throws -> Bool {
    var options = options
    let quick = options.flag("--quick")
    let json = options.flag("--json")
    let percents = try self.percents(options.value("--percent") ?? "1,5,10,25")
    let files = try options.operands()

    if quick {
      try await SelfCheck.run()
      complain("self-check passed")
    }
    let made = quick ? quickRequests : 200_000
    var sources: [() throws -> Trace] = files.map { file in { try TraceFile.read(file) } }
    if files.isEmpty {
      complain("no trace named: two are made on the spot")
      sources = [false, true].map { sized in { .synthetic(requests: made, sized: sized) } }
    }
    for source in sources {
      var trace = try source()
      if quick { trace = trace.prefix(quickRequests) }
      try await replay(trace, percents: percents, json: json)
    }
    return true
  }

  private static func replay(_ trace: Trace, percents: [Double], json: Bool) async throws {
    let capacities = percents.map(trace.capacity(percent:))
    var report = ReplayReport(trace: trace, percents: percents, capacities: capacities)
    for kind in kinds {
      var outcomes: [Outcome] = []
      for (percent, capacity) in zip(percents, capacities) {
        let outcome = try await Outcome.replaying(trace, through: kind, capacity: capacity)
        outcomes.append(outcome)
        if json {
          print(try report.json(kind.name, percent: percent, capacity: capacity, outcome))
          fflush(nil)
        }
      }
      report.add(kind.name, outcomes)
    }
    if !json {
      print(report.text)
      fflush(nil)
    }
  }

  private static func percents(_ text: String) throws -> [Double] {
    try text.split(separator: ",", omittingEmptySubsequences: false).map { word in
      guard let percent = Double(word), percent > 0, percent <= 100 else {
        throw UsageError("--percent needs numbers above 0, up to 100, with commas between")
      }
      return percent
    }
  }
}
