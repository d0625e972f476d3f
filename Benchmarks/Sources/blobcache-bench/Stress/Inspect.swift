import Foundation

/// The commands that look into the directory a run has left.
enum Inspect {
  /// The tool where a build of the main package leaves it, else its bare name.
  static func builtTool() -> String {
    var folder = Bundle.main.executableURL?.resolvingSymlinksInPath().deletingLastPathComponent()
    while let here = folder, here.path != "/" {
      let candidates = [
        "blobcache-inspect", ".build/release/blobcache-inspect", ".build/debug/blobcache-inspect",
      ]
      for name in candidates {
        let path = here.appendingPathComponent(name).path
        if FileManager.default.isExecutableFile(atPath: path) { return path }
      }
      folder = here.deletingLastPathComponent()
    }
    return "blobcache-inspect"
  }

  static func commands(tool: String, directory: String, files: [OriginFile]) -> String {
    let tool = quoted(tool)
    let directory = quoted(directory)
    let path = quoted(files[0].path)  // the most popular one, stored for ever
    return """
      The directory stays. Look into it, or remove it:

        \(tool) stats \(directory)
        \(tool) list \(directory) --sort size --limit 10
        \(tool) show \(directory) \(path)
        \(tool) cat \(directory) \(path) | cmp - \(path) && echo equal
        \(tool) verify \(directory)
        echo hello | \(tool) put \(directory) greeting - --ttl 1h
        \(tool) cat \(directory) greeting
        rm -r \(directory)

      """
  }

  private static func quoted(_ text: String) -> String {
    let plain = text.utf8.allSatisfy {
      (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0)
        || (UInt8(ascii: "a")...UInt8(ascii: "z")).contains($0 | 0x20) || "/._-+".utf8.contains($0)
    }
    return plain && !text.isEmpty
      ? text
      : "'\(text.split(separator: "'", omittingEmptySubsequences: false).joined(separator: "'\\''"))'"
  }
}
