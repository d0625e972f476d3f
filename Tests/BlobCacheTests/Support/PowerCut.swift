import Foundation
import Glibc
import Testing

@testable import blobcache_test_process

/// A directory as a power cut can leave it, made from a recording.
///
/// The model, and what of it is stricter than a Linux file system is known to be:
///
/// - Data. What was written to a file before its last `fsync` or `fdatasync`, or a `syncfs`, is there. Of what was written
///   since, each piece of 512 bytes or of 4 KiB is there as it was at some moment since, each at another one: later writes
///   without earlier ones, zeroes where nothing reached the disk, also in a file that was renamed already. Its size is one
///   that it had since, or one in between. A write of an `O_DSYNC` descriptor that has returned is there; what was written
///   before it is not, for that.
/// - Names. `journal`, as ext4 does it: names and sizes that were set by calls are there up to some moment, and none later;
///   that moment is no earlier than the last change of a folder or of a file that was synced since. `folders`, as POSIX
///   leaves it open: each folder has its own moment, and only an `fsync` of the folder itself, or a `syncfs`, sets its
///   earliest. A renamed file has its old or its new name. A file whose folder is not there is not there either.
/// - Mappings. The slot table and the index's lock file have zeroes, garbage or their last content, page by page.
struct PowerCut {
  /// The cut happens before this event.
  let at: Int
  private let recording: Recording
  private var random: SeededGenerator
  private let names: Names
  private let style: Style

  private enum Names { case journal, folders }

  /// What becomes of data that was not synced, for the whole cut.
  private enum Style {
    case mixed
    case allKept
    case allLost
    /// Everything but one write.
    case oneLost(Int)
  }

  /// And for one file.
  private enum Fate {
    case kept
    case lost
    /// The blocks are there, nothing is in them.
    case zeroes
    case before(Int)
    case after(Int)
    case pieces(Int)
    case without(Int)
  }

  init(_ recording: Recording, at: Int, seed: UInt64) {
    self.recording = recording
    self.at = at
    var random = SeededGenerator(seed: seed)
    names = Int.random(in: 0..<3, using: &random) == 0 ? .folders : .journal
    switch Int.random(in: 0..<10, using: &random) {
    case 0: style = .allKept
    case 1: style = .allLost
    case 2, 3, 4:
      let first = recording.syncAlls.last { $0 < at } ?? 0
      let writes = (first..<at).filter {
        if case .write = recording.events[$0] { true } else { false }
      }
      style = writes.suffix(24).randomElement(using: &random).map { .oneLost($0) } ?? .allKept
    default: style = .mixed
    }
    self.random = random
  }

  /// Nothing lost: what the recording itself says.
  static func complete(_ recording: Recording) -> PowerCut {
    PowerCut(complete: recording)
  }

  private init(complete recording: Recording) {
    self.recording = recording
    at = recording.events.count
    random = SeededGenerator(seed: 0)
    names = .journal
    style = .allKept
    isComplete = true
  }
  private var isComplete = false

  var description: String { "cut before event \(at), \(names), \(style)" }

  // MARK: Names

  /// Makes the directory at `path`; nothing when its own name is lost. `mapped`: the last contents of mapped files.
  mutating func rebuild(_ path: String, mapped: [String: [UInt8]]) throws {
    let moments = moments()
    var children: [Recording.Node: [String: Recording.Node]] = [:]
    for index in 0..<at {
      switch recording.events[index] {
      case .make(let parent, let name, let node) where index < moments.of(parent):
        children[parent, default: [:]][name] = node
      case .rename(let from, let name, let to, let newName, let node) where index < moments.of(to):
        if children[from]?[name] == node { children[from]?[name] = nil }
        children[to, default: [:]][newName] = node
      case .unlink(let parent, let name, let node) where index < moments.of(parent):
        if children[parent]?[name] == node { children[parent]?[name] = nil }
      default: break
      }
    }
    guard children[Recording.outside]?[""] != nil else { return }
    try make(Recording.root, path, children, moments, mapped)
  }

  private mutating func make(
    _ node: Recording.Node, _ path: String, _ children: [Recording.Node: [String: Recording.Node]],
    _ moments: Moments, _ mapped: [String: [UInt8]]
  ) throws {
    guard recording.isFolder[node] else {
      return try makeFile(node, path, moments, mapped)
    }
    guard mkdir(path, 0o700) == 0 else { throw trouble(path) }
    for (name, child) in (children[node] ?? [:]).sorted(by: { $0.key < $1.key }) {
      try make(child, "\(path)/\(name)", children, moments, mapped)
    }
  }

  private func trouble(_ path: String) -> SecondProcess.Failure {
    SecondProcess.Failure(description: "\(path): errno \(errno)")
  }

  /// Names, and sizes that were set by calls, are there if they were made before this event.
  private struct Moments {
    var journal: Int?
    var folders: [Int] = []
    func of(_ node: Recording.Node) -> Int { journal ?? folders[node] }
  }

  private mutating func moment(from first: Int) -> Int {
    if isComplete { return at }
    switch Int.random(in: 0..<4, using: &random) {
    case 0: return first
    case 1: return at
    default: return Int.random(in: first...at, using: &random)
    }
  }

  private mutating func moments() -> Moments {
    let syncAll = recording.syncAlls.last { $0 < at } ?? 0
    if names == .folders {
      let firsts = recording.syncEvents.map { max(syncAll, $0.last { $0 < at } ?? 0) }
      return Moments(folders: firsts.map { moment(from: $0) })
    }
    var first = syncAll
    for node in recording.syncEvents.indices {
      let syncs = recording.syncEvents[node].prefix { $0 < at }
      // A later sync covers what an earlier one of its kind did.
      if let last = syncs.last { first = max(first, journaled(node, before: last)) }
      if let last = syncs.last(where: { !isOnlyData($0) }) {
        first = max(first, journaled(node, before: last))
      }
    }
    return Moments(journal: moment(from: first))
  }

  private func isOnlyData(_ sync: Int) -> Bool {
    if case .sync(_, onlyData: true) = recording.events[sync] { true } else { false }
  }

  /// Up to where a sync of a file or a folder takes the journal: its last change. An fdatasync has no need of new names.
  private func journaled(_ node: Recording.Node, before sync: Int) -> Int {
    let names = recording.nameEvents[node]
    let changes =
      isOnlyData(sync)
      ? names.prefix(1) + sizes(node) : names + recording.entryEvents[node] + sizes(node)
    return changes.filter { $0 < sync }.max().map { $0 + 1 } ?? 0
  }

  private func sizes(_ node: Recording.Node) -> [Int] {
    recording.dataEvents[node].filter {
      if case .write = recording.events[$0] { false } else { true }
    }
  }

  // MARK: Data

  private mutating func makeFile(
    _ node: Recording.Node, _ path: String, _ moments: Moments, _ mapped: [String: [UInt8]]
  ) throws {
    let file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
    guard file >= 0 else { throw trouble(path) }
    defer { close(file) }
    let content = content(node, moments.of(node))
    defer { content.bytes.deallocate() }
    guard ftruncate(file, off_t(content.size)) == 0 else { throw trouble(path) }
    if let name = recording.mapped[node] {
      try fill(file, content, last: mapped[name] ?? [], path)
      return
    }
    // Pages of zeroes stay holes.
    let page = 4096
    var start = 0
    while start < content.size {
      var end = start
      while end < content.size, !content.isZero(end..<min(end + page, content.size)) {
        end = min(end + page, content.size)
      }
      if end > start {
        let piece = UnsafeRawBufferPointer(rebasing: content.bytes[start..<end])
        guard pwrite(file, piece.baseAddress, piece.count, off_t(start)) == piece.count else {
          throw trouble(path)
        }
        start = end
      } else {
        start = min(start + page, content.size)
      }
    }
  }

  private struct Content {
    var bytes: UnsafeMutableRawBufferPointer
    var size = 0
    var allocated: [Range<Int>] = []

    func isZero(_ range: Range<Int>) -> Bool {
      guard let base = bytes.baseAddress, !range.isEmpty else { return true }
      let first = base + range.lowerBound
      return first.load(as: UInt8.self) == 0 && memcmp(first, first + 1, range.count - 1) == 0
    }

    func clear(_ range: Range<Int>) {
      let range = range.clamped(to: 0..<bytes.count)
      guard let base = bytes.baseAddress, !range.isEmpty else { return }
      memset(base + range.lowerBound, 0, range.count)
    }
  }

  private func end(_ event: Recording.Event) -> Int {
    switch event {
    case .write(_, let offset, let data, _): offset + data.count
    case .truncate(_, let size): size
    case .allocate(_, let offset, let count, let keepsSize): keepsSize ? 0 : offset + count
    default: 0
    }
  }

  /// What the file holds: what was synced, and of the rest what its fate leaves. `moment`: for truncations and holes.
  private mutating func content(_ node: Recording.Node, _ moment: Int) -> Content {
    let events = recording.dataEvents[node].prefix { $0 < at }
    let isMapped = recording.mapped[node] != nil
    let capacity = isMapped ? 0 : events.map { end(recording.events[$0]) }.max() ?? 0
    var content = Content(bytes: .allocate(byteCount: capacity, alignment: 16))
    if let base = content.bytes.baseAddress { memset(base, 0, capacity) }

    let syncAll = recording.syncAlls.last { $0 < at } ?? 0
    let synced = max(syncAll, recording.syncEvents[node].last { $0 < at } ?? 0)
    let pending = events.filter { $0 >= synced }
    let fate = fate(pending)
    var (least, most) = (0, 0)
    for index in events {
      let event = recording.events[index]
      let isSure = index < synced || isWritten(event, index)
      switch event {
      case .write(_, let offset, let data, _):
        if !isMapped {
          write(data, at: offset, index, isSure ? .kept : fate, node, synced, content)
        }
        most = max(most, offset + data.count)
        if isSure { least = max(least, offset + data.count) }
      case .truncate(_, let size) where isSure || index < moment:
        content.clear(size..<max(size, content.bytes.count))
        (least, most) = (size, size)
        content.allocated = content.allocated.map { $0.clamped(to: 0..<size) }
      case .allocate(_, let offset, let count, let keepsSize) where isSure || index < moment:
        content.allocated.append(offset..<offset + count)
        if !keepsSize { (least, most) = (max(least, offset + count), max(most, offset + count)) }
      case .punch(_, let offset, let count) where isSure || index < moment:
        content.clear(offset..<offset + count)
      default: break
      }
    }
    content.size = size(fate, least, most)
    return content
  }

  /// Whether it is a write of an O_DSYNC descriptor that has returned: the event behind it says so.
  private func isWritten(_ event: Recording.Event, _ index: Int) -> Bool {
    if case .write(_, _, _, isSynced: true) = event { return index + 1 < at }
    return false
  }

  private mutating func size(_ fate: Fate, _ least: Int, _ most: Int) -> Int {
    switch fate {
    case .lost: return least
    case .kept, .zeroes, .without: return most
    case .before, .after, .pieces:
      guard least < most else { return most }
      switch Int.random(in: 0..<4, using: &random) {
      case 0: return least
      case 1: return Int.random(in: least...most, using: &random)
      default: return most
      }
    }
  }

  private mutating func fate(_ pending: [Int]) -> Fate {
    if pending.isEmpty || isComplete { return .kept }
    switch style {
    case .allKept: return .kept
    case .allLost: return .lost
    case .oneLost(let index): return .without(index)
    case .mixed: break
    }
    switch Int.random(in: 0..<20, using: &random) {
    case 0..<4: return .kept
    case 4..<7: return .lost
    case 7..<9: return .zeroes
    case 9..<11: return .before(Int.random(in: pending[0]...at, using: &random))
    case 11: return .after(Int.random(in: pending[0]...at, using: &random))
    case 12..<15: return .pieces(512)
    default: return .pieces(4096)
    }
  }

  private func write(
    _ data: Range<Int>, at offset: Int, _ index: Int, _ fate: Fate, _ node: Recording.Node,
    _ synced: Int, _ content: Content
  ) {
    switch fate {
    case .kept: break
    case .lost, .zeroes: return
    case .before(let moment): if index >= moment { return }
    case .after(let moment): if index < moment { return }
    case .without(let lost): if index == lost { return }
    case .pieces(let piece):
      var from = offset
      while from < offset + data.count {
        let number = from / piece
        let end = min((number + 1) * piece, offset + data.count)
        if index < moment(node, number, synced) {
          let start = data.lowerBound + from - offset
          copy(start..<start + end - from, from, content)
        }
        from = end
      }
      return
    }
    copy(data, offset, content)
  }

  private func copy(_ data: Range<Int>, _ offset: Int, _ content: Content) {
    recording.log.withUnsafeBytes { log in
      guard let target = content.bytes.baseAddress, let source = log.baseAddress else { return }
      memcpy(target + offset, source + data.lowerBound, data.count)
    }
  }

  /// When a piece of a file was last written to the disk: one moment for all writes that touch it.
  private func moment(_ node: Recording.Node, _ piece: Int, _ synced: Int) -> Int {
    var state = random.state ^ UInt64(node) &* 0x9E37_79B9 ^ UInt64(piece) &* 0xC2B2_AE3D_27D4_EB4F
    let word = splitMix64(&state)
    switch word & 3 {
    case 0: return synced
    case 1: return at
    default: return synced + Int((word >> 8) % UInt64(at - synced + 1))
    }
  }

  /// A mapped file: any page of what is allocated, or of the whole file, may hold anything.
  private mutating func fill(
    _ file: Int32, _ content: Content, last: [UInt8], _ path: String
  ) throws {
    let page = 4096
    let style = Int.random(in: 0..<4, using: &random)
    let ranges = content.allocated.isEmpty ? [0..<content.size] : content.allocated
    for range in ranges.map({ $0.clamped(to: 0..<content.size) }) where style > 0 && !range.isEmpty
    {
      for start in stride(from: range.lowerBound, to: range.upperBound, by: page) {
        let count = min(page, range.upperBound - start)
        var bytes = [UInt8](repeating: 0, count: count)
        switch style == 3 ? Int.random(in: 0..<3, using: &random) : style {
        case 1: bytes = seededBytes(count: count, seed: random.next())
        case 2: if start + count <= last.count { bytes = Array(last[start..<start + count]) }
        default: continue
        }
        guard pwrite(file, bytes, count, off_t(start)) == count else { throw trouble(path) }
      }
    }
  }
}
