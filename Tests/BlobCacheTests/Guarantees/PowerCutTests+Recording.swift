import Foundation
import Glibc
import Testing

@testable import BlobCache
@testable import blobcache_test_process

/// How the scenarios are run and recorded.
extension PowerCutTests {
  func record(
    _ scenario: Scenario, _ settings: [String: String] = [:], at path: String? = nil,
    after start: [UInt8] = [], boot: String = bootA
  ) async throws -> (recording: Recording, mapped: [String: [UInt8]]) {
    let path = path ?? directory.path("cache")
    let log = directory.path(scenario.fileName)
    try Data(start).write(to: URL(fileURLWithPath: log))
    try await run(scenario, path, log, settings, boot)
    let recording = try Recording(log)
    let mapped = keepMapped(path, log)
    try expectComplete(recording, path)
    return (recording, mapped)
  }

  private func run(
    _ scenario: Scenario, _ path: String, _ log: String, _ settings: [String: String],
    _ boot: String
  ) async throws {
    var environment = ["BLOBCACHE_RECORD_LOG": log, "BLOBCACHE_RECORD_ROOT": path]
    environment.merge(settings) { $1 }
    let phases = scenario.processes.map {
      $0.split(separator: "|", omittingEmptySubsequences: false)
    }
    let options = "\(scenario.options)\(scenario.isDurable ? " durable" : "")"
    var running: [SecondProcess?] = []
    for _ in scenario.processes {
      running.append(
        try await .over(path, "\(options) boot=\(boot)", environment: environment))
    }
    for phase in phases[0].indices {
      try await withThrowingTaskGroup(of: Void.self) { group in
        for (number, process) in running.enumerated() {
          guard let process, phase < phases[number].count else { continue }
          let commands = Array(phases[number][phase])
          group.addTask { [options, path] in
            var boot = boot
            for (index, command) in commands.enumerated() {
              let id = "\(number).\(phase).\(index)"
              try await Self.run(command, id, process, path, options, &boot)
            }
          }
        }
        try await group.waitForAll()
      }
      for (number, process) in running.enumerated() {
        let last = phases[number].indices.contains(phase) ? phases[number][phase].last : nil
        if let process, last?.hasPrefix("killed") == true {
          process.kill()
          running[number] = nil
        }
      }
    }
    for (number, process) in running.enumerated() {
      guard let process else { continue }
      try await Self.close(process, "\(number).end")
      try await process.end()
    }
  }

  private static func expect(_ answer: String, _ command: String) throws {
    guard answer.hasPrefix("ok") else {
      throw SecondProcess.Failure(description: "\(command): \(answer)")
    }
  }

  private static func close(_ process: SecondProcess, _ id: String) async throws {
    try expect(try await process.call("mark begin \(id) close"), "mark")
    try expect(try await process.call("close"), "close")
    try expect(try await process.call("mark done \(id)"), "mark")
  }

  private static func run(
    _ command: String, _ id: String, _ process: SecondProcess, _ path: String, _ options: String,
    _ boot: inout String
  ) async throws {
    switch command.split(separator: " ").first {
    case "reopen", "reboot":
      try await close(process, id)
      if command == "reboot" {
        try expect(try await process.call("mark reboot"), "mark")
        boot = boot == bootA ? bootC : bootA
      }
      try expect(try await process.call("open \(path) \(options) boot=\(boot)"), "open")
    case "clear":
      // Marked here, since it is no part of what the process does by itself.
      try expect(try await process.call("mark begin \(id) clear"), "mark")
      try expect(try await process.call("clear"), "clear")
      try expect(try await process.call("mark done \(id)"), "mark")
    case "killed":
      // It ends in the middle of this.
      await #expect(throws: SecondProcess.Failure.self) {
        try await process.call(String(command.dropFirst(7)))
      }
    default: try expect(try await process.call(command), command)
    }
  }

  /// The slot table and the index's lock file, kept beside the log for a cut that is made again.
  private func keepMapped(_ path: String, _ log: String) -> [String: [UInt8]] {
    for name in ["slots", "index/lock.mdb"] {
      let copy = "\(log).\(name.replacingOccurrences(of: "/", with: "-"))"
      // The end of the slot table is what is used of it; without it there is garbage and there are zeroes.
      try? FileManager.default.copyItem(atPath: "\(path)/\(name)", toPath: copy)
    }
    return mapped(log)
  }

  func mapped(_ log: String) -> [String: [UInt8]] {
    var contents: [String: [UInt8]] = [:]
    for name in ["slots", "index/lock.mdb"] {
      let copy = "\(log).\(name.replacingOccurrences(of: "/", with: "-"))"
      contents[name] = FileManager.default.contents(atPath: copy).map { [UInt8]($0) }
    }
    return contents
  }

  /// The recording, with nothing lost, gives the directory that is there: so nothing was done that it does not tell.
  private func expectComplete(_ recording: Recording, _ path: String) throws {
    let copy = directory.path("complete")
    var cut = PowerCut.complete(recording)
    try cut.rebuild(copy, mapped: [:])
    let made = contents(copy)
    let real = contents(path)
    #expect(Set(made.keys) == Set(real.keys))
    for (name, bytes) in real where name != "slots" && !name.hasSuffix("lock.mdb") {
      #expect(made[name] == bytes, "\(name) is not as it was recorded")
    }
    try FileManager.default.removeItem(atPath: copy)
  }

  private func contents(_ path: String) -> [String: Data] {
    var contents: [String: Data] = [:]
    for name in FileManager.default.enumerator(atPath: path)?.allObjects ?? [] {
      // nil for a folder, which counts by its name.
      let file =
        "\(name)" == "slots" ? nil : FileManager.default.contents(atPath: "\(path)/\(name)")
      contents["\(name)"] = file ?? Data()
    }
    return contents
  }
}

extension PowerCutTests.Scenario {
  var fileName: String {
    "power-cut-"
      + name.filter { $0 != "," }.map { $0.isLetter || $0.isNumber ? "\($0)" : "-" }.joined()
  }
}
