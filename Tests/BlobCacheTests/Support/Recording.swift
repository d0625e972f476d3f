import Foundation
import Glibc
import Recorder
import Testing

/// What processes did to a directory, in the order in which it happened: the log of Recorder.h, with files in place of
/// paths and inode numbers, which both name one file after another.
struct Recording {
  /// A file or a folder, whatever its names are.
  typealias Node = Int

  enum Event {
    /// A new name, of a new file or folder.
    case make(parent: Node, name: String, Node)
    case rename(from: Node, name: String, to: Node, newName: String, Node)
    case unlink(parent: Node, name: String, Node)
    /// `data` of the log. A write of a descriptor that was opened with O_DSYNC is followed by a `written`.
    case write(Node, offset: Int, data: Range<Int>, isSynced: Bool)
    case written(Node)
    case truncate(Node, size: Int)
    case allocate(Node, offset: Int, count: Int, keepsSize: Bool)
    case punch(Node, offset: Int, count: Int)
    case sync(Node, onlyData: Bool)
    case syncAll
    case mark(String)
  }

  /// The folder that holds the directory, and the directory.
  static let outside: Node = 0
  static let root: Node = 1

  private(set) var path: String
  private(set) var log: [UInt8]
  private(set) var events: [Event] = []
  private(set) var isFolder: [Bool] = [true, true]
  /// By node, the events about what is in it, about its names, its syncs; for a folder also about the names in it.
  private(set) var dataEvents: [[Int]] = [[], []]
  private(set) var nameEvents: [[Int]] = [[], []]
  private(set) var syncEvents: [[Int]] = [[], []]
  private(set) var entryEvents: [[Int]] = [[], []]
  private(set) var syncAlls: [Int] = []
  /// What is stored into a mapping is in no log: the slot table and the index's lock file, as they were in the end.
  private(set) var mapped: [Node: String] = [:]

  struct Gap: Error, CustomStringConvertible {
    var description: String
  }

  init(_ path: String) throws {
    self.path = path
    log = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))
    var reader = Reader(recording: self)
    try reader.read()
    self = reader.recording
  }

  /// The texts of marks, with the events that they are.
  var marks: [(at: Int, text: String)] {
    events.enumerated().compactMap { index, event in
      if case .mark(let text) = event { (index, text) } else { nil }
    }
  }

  // MARK: Reading the log

  /// The tree as it is at some record: names are resolved in it, inode numbers are those of now.
  private struct Reader {
    var recording: Recording
    private var children: [Node: [String: Node]] = [:]
    private var nodes: [UInt64: Node] = [:]

    init(recording: Recording) { self.recording = recording }

    mutating func read() throws {
      var at = 0
      while at < recording.log.count {
        let head = recording.log.withUnsafeBytes {
          $0.loadUnaligned(fromByteOffset: at, as: recorder_head.self)
        }
        try note(head, at + MemoryLayout<recorder_head>.size)
        at += Int(head.size)
      }
    }

    private mutating func note(_ head: recorder_head, _ start: Int) throws {
      let path = text(start, head.path_count)
      let second = text(start + Int(head.path_count), head.second_count)
      let from = start + Int(head.path_count) + Int(head.second_count)
      let data = from..<from + Int(head.data_count)
      let (offset, length) = (Int(head.offset), Int(head.length))
      guard head.flags & UInt32(RECORDER_UNKNOWN) == 0 else {
        throw Gap(description: "a call on \(path) that cannot be told")
      }
      switch recorder_op(head.op) {
      case RECORDER_CREATE, RECORDER_MKDIR:
        try make(path, inode: head.inode, isFolder: recorder_op(head.op) == RECORDER_MKDIR)
      case RECORDER_RENAME: try rename(path, second)
      case RECORDER_UNLINK, RECORDER_RMDIR: try unlink(path)
      case RECORDER_WRITE:
        let isSynced = head.flags & UInt32(RECORDER_DSYNC) != 0
        let node = try node(head, path)
        noteData(node, .write(node, offset: offset, data: data, isSynced: isSynced))
        if isSynced { recording.events.append(.written(node)) }
      case RECORDER_TRUNCATE:
        let node = try node(head, path)
        noteData(node, .truncate(node, size: length))
      case RECORDER_ALLOCATE:
        let node = try node(head, path)
        let keeps = head.flags & UInt32(RECORDER_KEEP_SIZE) != 0
        noteData(node, .allocate(node, offset: offset, count: length, keepsSize: keeps))
      case RECORDER_PUNCH:
        let node = try node(head, path)
        noteData(node, .punch(node, offset: offset, count: length))
      case RECORDER_FSYNC, RECORDER_FDATASYNC:
        let node = try node(head, path)
        recording.syncEvents[node].append(recording.events.count)
        let onlyData = recorder_op(head.op) == RECORDER_FDATASYNC
        recording.events.append(.sync(node, onlyData: onlyData))
      case RECORDER_SYNCFS: syncAll()
      case RECORDER_MARK:
        // A machine that goes down in order has written everything.
        if path == "reboot" { syncAll() }
        recording.events.append(.mark(path))
      default: throw Gap(description: "record \(head.op) of \(path)")
      }
    }

    private func text(_ start: Int, _ count: UInt32) -> String {
      String(decoding: recording.log[start..<start + Int(count)], as: UTF8.self)
    }

    private func node(_ head: recorder_head, _ path: String) throws -> Node {
      if path == "/" { return Recording.outside }
      guard let node = nodes[head.inode] else {
        throw Gap(description: "nobody has made \(path), inode \(head.inode)")
      }
      return node
    }

    private mutating func noteData(_ node: Node, _ event: Event) {
      recording.dataEvents[node].append(recording.events.count)
      recording.events.append(event)
    }

    private mutating func syncAll() {
      recording.syncAlls.append(recording.events.count)
      recording.events.append(.syncAll)
    }

    private func place(_ path: String) throws -> (parent: Node, name: String) {
      if path.isEmpty { return (Recording.outside, "") }
      var parts = path.split(separator: "/").map(String.init)
      let name = parts.removeLast()
      var folder = Recording.root
      for part in parts {
        guard let next = children[folder]?[part] else {
          throw Gap(description: "no folder of \(path)")
        }
        folder = next
      }
      return (folder, name)
    }

    private mutating func names(_ parents: [Node], _ node: Node, _ event: Event) {
      for parent in Set(parents) { recording.entryEvents[parent].append(recording.events.count) }
      recording.nameEvents[node].append(recording.events.count)
      recording.events.append(event)
    }

    private mutating func make(_ path: String, inode: UInt64, isFolder: Bool) throws {
      let (parent, name) = try place(path)
      var node = Recording.root
      if !path.isEmpty {
        node = recording.isFolder.count
        recording.isFolder.append(isFolder)
        recording.dataEvents.append([])
        recording.nameEvents.append([])
        recording.syncEvents.append([])
        recording.entryEvents.append([])
      }
      children[parent, default: [:]][name] = node
      nodes[inode] = node
      if path == "slots" || path == "index/lock.mdb" { recording.mapped[node] = path }
      names([parent], node, .make(parent: parent, name: name, node))
    }

    private mutating func rename(_ path: String, _ second: String) throws {
      let (from, to) = (try place(path), try place(second))
      guard let node = children[from.parent]?.removeValue(forKey: from.name) else {
        throw Gap(description: "nobody has made \(path)")
      }
      children[to.parent, default: [:]][to.name] = node
      names(
        [from.parent, to.parent], node,
        .rename(from: from.parent, name: from.name, to: to.parent, newName: to.name, node))
    }

    private mutating func unlink(_ path: String) throws {
      let (parent, name) = try place(path)
      guard let node = children[parent]?.removeValue(forKey: name) else {
        throw Gap(description: "nobody has made \(path)")
      }
      names([parent], node, .unlink(parent: parent, name: name, node))
    }
  }
}

// MARK: A recording that goes on from a cut

extension Recording {
  /// Behind what such a log tells of before.
  var beginning: Int { (marks.first { $0.text == "reboot" }?.at ?? -1) + 1 }

  /// The beginning of a log for what is done to `directory`, which a cut of this recording has left: the marks before the
  /// cut, all that is in the directory, and that nothing of it is lost any more.
  func continuation(at cut: Int, in directory: String) throws -> [UInt8] {
    var log: [UInt8] = []
    for (at, text) in marks where at < cut { Self.append(RECORDER_MARK, text, to: &log) }
    try Self.append(tree: directory, "", to: &log)
    Self.append(RECORDER_MARK, "reboot", to: &log)
    return log
  }

  private static func append(tree directory: String, _ name: String, to log: inout [UInt8]) throws {
    let path = name.isEmpty ? directory : "\(directory)/\(name)"
    guard let status = fileStatus(path) else { throw Gap(description: "no \(path)") }
    let inode = UInt64(status.st_ino)
    if status.st_mode & S_IFMT == S_IFDIR {
      append(RECORDER_MKDIR, name, inode: inode, to: &log)
      for inner in try FileManager.default.contentsOfDirectory(atPath: path).sorted() {
        try append(tree: directory, name.isEmpty ? inner : "\(name)/\(inner)", to: &log)
      }
      return
    }
    append(RECORDER_CREATE, name, inode: inode, to: &log)
    append(RECORDER_TRUNCATE, name, inode: inode, length: Int(status.st_size), to: &log)
    // Of a mapped file nothing but its size counts; the slot table is sparse, and large.
    if name == "slots" {
      append(
        RECORDER_ALLOCATE, name, inode: inode, length: min(65_536, Int(status.st_size)), to: &log)
    } else if let bytes = FileManager.default.contents(atPath: path), !bytes.isEmpty {
      append(
        RECORDER_WRITE, name, inode: inode, length: bytes.count, data: [UInt8](bytes), to: &log)
    }
  }

  private static func append(
    _ operation: recorder_op, _ path: String, inode: UInt64 = 0, length: Int = 0,
    data: [UInt8] = [], to log: inout [UInt8]
  ) {
    var head = recorder_head()
    let path = Array(path.utf8)
    let count = MemoryLayout<recorder_head>.size + path.count + data.count
    let size = (count + 7) / 8 * 8
    (head.size, head.op, head.inode) = (UInt64(size), operation.rawValue, inode)
    (head.path_count, head.length) = (UInt32(path.count), UInt64(length))
    head.data_count = UInt64(data.count)
    withUnsafeBytes(of: head) { log.append(contentsOf: $0) }
    log += path
    log += data
    log += [UInt8](repeating: 0, count: size - count)
  }
}
