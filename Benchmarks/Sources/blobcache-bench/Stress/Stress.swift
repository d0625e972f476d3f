import CBaseline
import Foundation

/// The main job: two processes serve this machine's files through one cache directory, and every byte is compared.
enum Stress {
  static let processes = 2

  @concurrent
  static func run(_ options: Options) async throws -> Bool {
    var options = options
    let quick = options.flag("--quick")
    let json = options.flag("--json")
    let seconds = try options.number("--seconds") ?? (quick ? 8 : 30)
    let directory = try options.value("--directory") ?? makeFolder("stress")
    let inspect = try options.value("--inspect") ?? Inspect.builtTool()
    try options.end()

    let list = "\(try makeFolder("origin"))/files.json"
    defer { removeFolder((list as NSString).deletingLastPathComponent) }
    complain("reading the origin's files …")
    let files = try OriginFile.collect(most: quick ? 1_500 : 5_000)
    try JSONEncoder().encode(files).write(to: URL(fileURLWithPath: list))
    let size = files.reduce(0) { $0 + $1.size }
    complain(
      "\(grouped(files.count)) files, \(bytes(size)), SHA-256 of each taken; \(processes) processes of "
        + "\(Worker.clients) clients for \(seconds) s over \(directory)")

    let run = try await Crew(
      directory: directory, list: list, seconds: seconds, live: !json
    ).run()
    var disk: UInt64 = 0
    try check(unsafe cb_tree_allocated(directory, &disk), "walk of \(directory)")
    let report = StressReport(tally: run.tally, seconds: run.seconds, disk: Int(disk))
    if json {
      print(try report.json)
    } else {
      print(report.text)
      print(Inspect.commands(tool: inspect, directory: directory, files: files))
    }
    fflush(nil)
    for text in run.tally.complaints { complain(text) }
    let passed = !run.tally.failed && run.crashes == 0
    complain(
      passed
        ? "passed: \(grouped(run.tally.verified)) blobs served, each equal to its file"
        : "FAILED: \(run.tally.wrongBytes) wrong, \(run.tally.duplicateLoads) duplicate loads, "
          + "\(run.tally.errors) errors, \(run.crashes) processes ended badly")
    return passed
  }
}
