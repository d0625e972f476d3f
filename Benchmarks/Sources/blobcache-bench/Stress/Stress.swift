import CBaseline
import Foundation

/// The main job: some processes serve this machine's files through one cache directory, whose limit is far below what
/// they would take, and every byte is compared. A soak is the same for longer, and must be flat.
enum Stress {
  @concurrent
  static func run(_ options: Options) async throws -> Bool {
    let plan = try Plan(options)
    let list = "\(try makeFolder("origin"))/files.json"
    defer { removeFolder((list as NSString).deletingLastPathComponent) }
    complain("reading the origin's files …")
    let files = try OriginFile.collect(most: plan.quick ? 1_500 : 5_000)
    try JSONEncoder().encode(files).write(to: URL(fileURLWithPath: list))
    let footprint = files.reduce(0) { $0 + $1.size }
    let limit = plan.limit(footprint: footprint)
    let memory = plan.memory(limit: limit)
    complain(
      "\(grouped(files.count)) files, \(bytes(footprint)), SHA-256 of each taken; \(plan.processes) "
        + "processes of \(Worker.clients) clients, \(bytes(memory)) of memory tier each, for "
        + "\(plan.seconds) s over \(plan.directory), limit \(limit.map(bytes) ?? "none")")

    let watch = try Watch(directory: plan.directory, limit: limit)
    let crew = Crew(plan: plan, list: list, memory: memory, watch: watch)
    let run = try await crew.run()
    let flatness = plan.soak ? Flatness.judge(watch.looks, seconds: plan.seconds) : []
    let report = StressReport(
      tally: run.tally, seconds: run.seconds, looks: watch.looks, bound: watch.bound,
      violations: watch.violations.count, flatness: flatness)
    if plan.json {
      print(try report.json)
    } else {
      print(report.text)
      print(Inspect.commands(tool: plan.inspect, directory: plan.directory, files: files))
    }
    fflush(nil)
    for text in run.tally.complaints + watch.violations.prefix(5) { complain(text) }
    let flat = flatness.allSatisfy(\.isFlat)
    let passed = !run.tally.failed && run.crashes == 0 && watch.violations.isEmpty && flat
    complain(
      passed
        ? "passed: \(grouped(run.tally.verified)) blobs served, each equal to its file"
        : "FAILED: \(run.tally.wrongBytes) wrong, \(run.tally.duplicateLoads) duplicate loads, "
          + "\(run.tally.errors) errors, \(run.crashes) processes ended badly, above the bound at "
          + "\(watch.violations.count) of \(watch.looks.count) samples" + (flat ? "" : ", not flat")
    )
    return passed
  }
}
