import Foundation
import Testing

/// What the README and the documentation say must be so: their programs are the snippets that the build compiles, and
/// the files, `make` targets and links that they name exist.
@Suite("README and documentation")
struct ReadmeTests {
  private static let root = URL(filePath: #filePath)
    .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()

  private static let documents = [
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
    "Sources/BlobCache/BlobCache.docc/BlobCache.md",
    "Sources/BlobCache/BlobCache.docc/BlobCacheClass.md",
    "Sources/BlobCache/BlobCache.docc/GettingStarted.md",
    "Sources/BlobCache/BlobCache.docc/HowItWorks.md",
    "Sources/BlobCache/BlobCache.docc/OnDiskFormat.md",
    "Sources/BlobCache/BlobCache.docc/Decisions.md",
    "Sources/BlobCache/BlobCache.docc/Guarantees.md",
  ]

  private func text(_ path: String) throws -> String {
    try String(contentsOf: Self.root.appending(path: path), encoding: .utf8)
  }

  /// The code of a document's blocks in a language.
  private func blocks(of document: String, in language: String) throws -> [String] {
    var blocks: [String] = []
    var open: (language: String, lines: [Substring])?
    for line in try text(document).split(separator: "\n", omittingEmptySubsequences: false) {
      if let block = open {
        if line == "```" {
          if block.language == language {
            blocks.append(block.lines.joined(separator: "\n") + "\n")
          }
          open = nil
        } else {
          open?.lines.append(line)
        }
      } else if line.hasPrefix("```") {
        open = (String(line.dropFirst(3)), [])
      }
    }
    return blocks
  }

  /// A document without its blocks of code.
  private func prose(of document: String) throws -> String {
    let parts = try text(document).components(separatedBy: "```")
    return parts.enumerated().filter { $0.offset.isMultiple(of: 2) }.map(\.element).joined()
  }

  @Test(arguments: documents)
  func everyWholeProgramIsASnippet(document: String) throws {
    let folder = Self.root.appending(path: "Snippets")
    let snippets = try FileManager.default.contentsOfDirectory(
      at: folder, includingPropertiesForKeys: nil
    ).map { try String(contentsOf: $0, encoding: .utf8) }

    let programs = try blocks(of: document, in: "swift").filter { $0.hasPrefix("import ") }
    for program in programs {
      let isSnippet = snippets.contains(program)
      #expect(isSnippet, "not the same as any file of Snippets:\n\(program)")
    }
    if document == "README.md" { #expect(programs.count >= 2) }
  }

  @Test(arguments: documents)
  func whatIsLinkedExists(document: String) throws {
    let folder = Self.root.appending(path: document).deletingLastPathComponent()
    for match in try prose(of: document).matches(of: #/\]\(([^)#\s]+)[^)]*\)/#) {
      let target = String(match.output.1)
      if target.contains("://") { continue }
      let exists = FileManager.default.fileExists(atPath: folder.appending(path: target).path)
      #expect(exists, "\(target)")
    }
  }

  @Test(arguments: documents)
  func filesThatAreNamedExist(document: String) throws {
    let paths =
      #/`((?:Sources|CSources|Tests|Benchmarks|Snippets|scripts|\.ci)\/[A-Za-z0-9+._\/-]*)`/#
    for match in try text(document).matches(of: paths) {
      let path = String(match.output.1)
      let exists = FileManager.default.fileExists(atPath: Self.root.appending(path: path).path)
      #expect(exists, "\(path)")
    }
  }

  @Test(arguments: documents)
  func suitesThatAreNamedExist(document: String) throws {
    let tests = FileManager.default.enumerator(atPath: Self.root.appending(path: "Tests").path)
    let files = Set(
      (tests?.allObjects ?? []).compactMap { ($0 as? String)?.split(separator: "/").last })
    for match in try text(document).matches(of: #/`([A-Z][A-Za-z]*Tests)`/#) {
      #expect(files.contains("\(match.output.1).swift"), "\(match.output.1)")
    }
  }

  @Test(arguments: documents)
  func makeTargetsThatAreNamedExist(document: String) throws {
    let makefile = try text("Makefile")
    for match in try text(document).matches(
      of: #/(?:`|^)make ([a-z][a-z -]*)/#.anchorsMatchLineEndings())
    {
      for target in match.output.1.split(separator: " ") {
        #expect(
          makefile.contains("\n\(target): ") || makefile.contains("\n\(target):\n"),
          "make \(target)")
      }
    }
  }
}
