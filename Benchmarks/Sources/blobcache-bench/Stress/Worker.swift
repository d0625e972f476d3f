import BlobCache
import Foundation
import Synchronization

/// One of the processes: clients that ask for files through the cache, each waiting for its answer before it asks again.
struct Worker: Sendable {
  static let clients = 48

  let cache: BlobCache
  let origin: Origin
  let zipf: Zipf
  let keys: [BlobCache.Key]
  let end: ContinuousClock.Instant

  @concurrent
  static func run(_ options: Options) async throws -> Bool {
    var options = options
    guard let directory = try options.value("--directory"),
      let list = try options.value("--origin"),
      let seconds = try options.number("--seconds"), let seed = try options.number("--seed"),
      let memory = try options.value("--memory").flatMap({ Int($0) })
    else { throw UsageError("worker is started by stress") }
    let files = try JSONDecoder().decode(
      [OriginFile].self, from: Data(contentsOf: URL(fileURLWithPath: list)))
    var configuration = BlobCache.Configuration()  // the limit stands in the directory
    configuration.memory = memory == 0 ? .off : BlobCache.MemoryTier(bytes: memory)
    let cache = try BlobCache(directory: directory, configuration: configuration)
    let worker = Worker(
      cache: cache, origin: Origin(files: files), zipf: Zipf(count: files.count),
      keys: files.map { BlobCache.Key($0.path) }, end: .now + .seconds(seconds))
    let tally = try await worker.serve(seed: seed)
    try await cache.close()
    return !tally.failed
  }

  /// A third for ever, a third for a time, a third for as long as somebody asks: all short enough for this run.
  static func lifetime(_ rank: Int) -> BlobCache.Lifetime {
    switch rank % 6 {
    case 0, 3: .forever
    case 1: .expires(after: .seconds(1))
    case 4: .expires(after: .seconds(4))
    default: .sliding(.seconds(1), atMost: .seconds(5))
    }
  }

  private func serve(seed: Int) async throws -> Tally {
    let tallies = (0..<Self.clients).map { _ in SharedTally() }
    let total = { @Sendable in
      var sum = Tally()
      for tally in tallies { sum.add(tally.value.withLock { $0 }) }
      sum.residentKiB = residentKiB()
      return sum
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for (i, tally) in tallies.enumerated() {
        group.addTask { await client(SeededGenerator(UInt64(seed * 1000 + i)), tally) }
      }
      group.addTask {
        while ContinuousClock.now < end {
          try say(total())
          try await Task.sleep(for: .milliseconds(500))
        }
      }
      try await group.waitForAll()
    }
    let tally = total()
    try say(tally)
    return tally
  }

  private func say(_ tally: Tally) throws {
    FileHandle.standardOutput.write(try JSONEncoder().encode(tally) + Data("\n".utf8))
  }

  private func client(_ generator: SeededGenerator, _ tally: SharedTally) async {
    var generator = generator
    while ContinuousClock.now < end {
      let rank = zipf.sample(&generator)
      do {
        try await request(rank, tally)
      } catch {
        tally.value.withLock {
          $0.errors += 1
          $0.complain("\(origin.files[rank].path): \(error)")
        }
      }
      await Task.yield()  // a service waits for its next request here
    }
  }

  private func request(_ rank: Int, _ tally: SharedTally) async throws {
    let called = SharedFlag()
    let start = ContinuousClock.now
    let blob = try await cache.fetch(keys[rank], lifetime: Self.lifetime(rank)) { load in
      called.set()
      let first = origin.begin(rank)
      defer { if first { origin.end(rank) } }
      // The cache was asked first, so a copy that is handed to the loader is past its lifetime.
      let expired = load.previous != nil
      tally.value.withLock {
        if expired { $0.expired += 1 }
        if !first { $0.duplicateLoads += 1 }
      }
      try await origin.send(rank, to: &load)
      return .complete
    }
    let time = (ContinuousClock.now - start).nanoseconds

    let right = unsafe blob.withUnsafeBytes { unsafe sha256($0) } == origin.files[rank].digest
    tally.value.withLock {
      $0.requests += 1
      $0.bytesServed += blob.count
      $0.verified += 1
      if case .loadedNotStored = blob.source { $0.notStored += 1 }
      $0.latency[kind(of: blob, loaded: called.isSet), default: Histogram()].add(time)
      if !right {
        $0.wrongBytes += 1
        $0.complain("\(origin.files[rank].path): wrong bytes from \(blob.source)")
      }
    }
  }

  private func kind(of blob: BlobCache.Blob, loaded: Bool) -> Tally.Kind {
    switch blob.source {
    case .memory: .memory
    case .index: .index
    case .file: .file
    default: loaded ? .load : .join
    }
  }
}

private final class SharedTally: Sendable {
  let value = Mutex(Tally())
}

/// Whether the request's own loader ran.
private final class SharedFlag: Sendable {
  private let flag = Atomic(false)
  var isSet: Bool { flag.load(ordering: .relaxed) }
  func set() { flag.store(true, ordering: .relaxed) }
}

private func residentKiB() -> Int {
  var usage = rusage()
  unsafe getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
  return usage.ru_maxrss
}
