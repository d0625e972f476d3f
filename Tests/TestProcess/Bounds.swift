import BlobCache
import Foundation
import Synchronization

private struct Counts: Sendable {
  var threads: Int
  var descriptors: Int
}

private final class Most: Sendable {
  let counts: Mutex<Counts>
  init(_ first: Counts) { counts = Mutex(first) }
}

extension Commands {
  /// `hold-many KEY COUNT`: holds a key's blob so many times at once. `ok MAPPED RIGHT AGAIN`: how many mappings of blob
  /// files the process had then, how many of the blobs were right, and whether one that is looked up after all of them
  /// went is mapped.
  func holdMany(_ words: [String]) async throws -> String {
    let (cache, key) = (try opened(), try key(words))
    let count = try number(words, 1) { Int($0) }
    let digest = try cache.blob(for: key)?.digest
    var held: [BlobCache.Blob] = []
    for _ in 0..<count {
      if let blob = try cache.blob(for: key) { held.append(blob) }
    }
    let mapped = try Self.mappings()
    // What needs mappings of its own still has them: threads, and memory.
    let sums = DispatchQueue.concurrentSum(8)
    // The first and the last ones, which are of both kinds.
    let right = (held.prefix(20) + held.suffix(40)).allSatisfy {
      BlobCache.Digest(hashing: $0.data) == digest
    }
    held = []
    let last = try cache.blob(for: key)
    let again = try Self.mappings()
    return withExtendedLifetime(last) {
      "ok \(mapped) \(right && sums == 8) \(again == 1)"
    }
  }

  /// `bounds TASKS`: so many tasks at once store, stream, look up and fetch, while others sweep, verify and flush. `ok THREADS
  /// MOST DESCRIPTORS MOST AFTER`: of the process, before, at most meanwhile, and when all have ended.
  func bounds(_ words: [String]) async throws -> String {
    let (cache, tasks) = (try opened(), try number(words, 0) { Int($0) })
    let before = try Self.counts()
    let most = Most(before)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<tasks {
        group.addTask {
          let bytes = seededBytes(count: task % 2 == 0 ? 60_000 : 400, seed: UInt64(task))
          let key = BlobCache.Key("bound-\(task % 40)")
          for round in 0..<6 {
            switch (task + round) % 6 {
            case 0: try await cache.store(bytes, for: key)
            case 1, 2:
              try await cache.store(for: key) { body in
                try await body.write(bytes.prefix(200))
                await Task.yield()
                try await body.write(bytes.dropFirst(200))
              }
            case 3: for _ in 0..<20 { _ = try cache.blob(for: key) }
            case 4:
              _ = try await cache.fetch(key) { load in
                try await load.write(bytes)
                return .complete
              }
            default:
              switch task % 20 {
              case 0: try await cache.sweep()
              case 1: _ = try await cache.verify()
              case 2: try await cache.flush()
              default: try await cache.remove(key)
              }
            }
            let now = try Self.counts()
            most.counts.withLock {
              $0.threads = max($0.threads, now.threads)
              $0.descriptors = max($0.descriptors, now.descriptors)
            }
          }
        }
      }
      try await group.waitForAll()
    }
    let found = most.counts.withLock { $0 }
    let after = try Self.counts()
    return
      "ok \(before.threads) \(found.threads) \(before.descriptors) \(found.descriptors) \(after.descriptors)"
  }

  private static func counts() throws -> Counts {
    let files = FileManager.default
    return Counts(
      threads: try files.contentsOfDirectory(atPath: "/proc/self/task").count,
      descriptors: try files.contentsOfDirectory(atPath: "/proc/self/fd").count)
  }

  /// By pieces: a file of proc(5) says that it has no size, and is read to no more than a page by those who believe it.
  private static func mappings() throws -> Int {
    let file = openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC)
    guard file >= 0 else { throw UsageError(description: "maps: errno \(errno)") }
    defer { close(file) }
    var text: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 1 << 16)
    while true {
      let count = read(file, &piece, piece.count)
      guard count > 0 else { break }
      text += piece[..<count]
    }
    return String(decoding: text, as: UTF8.self).split(separator: "\n")
      .count { $0.contains("/blobs/") }
  }
}

extension DispatchQueue {
  /// So many threads, each with some memory.
  fileprivate static func concurrentSum(_ count: Int) -> Int {
    let group = DispatchGroup()
    let results = (0..<count).map { _ in UnsafeMutablePointer<Int>.allocate(capacity: 1) }
    for result in results {
      nonisolated(unsafe) let place = result  // each thread has its own
      group.enter()
      Thread.detachNewThread {
        place.pointee = [UInt8](repeating: 1, count: 1 << 20).count >> 20
        group.leave()
      }
    }
    group.wait()
    defer { for result in results { result.deallocate() } }
    return results.reduce(0) { $0 + $1.pointee }
  }
}
