internal import CBlobStore
internal import Synchronization

extension Store {
  var statistics: BlobCache.Statistics {
    var counted = bcs_counters()
    let status = unsafe bcs_count(handle.pointer, &counted)
    return statistics(status == BCS_OK ? counted : lastCounted.withLock(\.self))
  }

  /// Keeps what `statistics` gives once the store is shut.
  func keepCounted() {
    var counted = bcs_counters()
    if unsafe bcs_count(handle.pointer, &counted) == BCS_OK {
      lastCounted.withLock { $0 = counted }
    }
  }

  private func statistics(_ counted: bcs_counters) -> BlobCache.Statistics {
    var out = BlobCache.Statistics()
    out.entries = Int(clamping: counted.entries)
    out.indexBytes = Int(clamping: counted.inline_bytes)
    out.blobFiles = Int(clamping: counted.blob_files)
    out.blobBytes = Int(clamping: counted.blob_bytes)
    out.blobAllocatedBytes = Int(clamping: counted.blob_allocated)
    out.pinnedEntries = Int(clamping: counted.pinned_entries)
    out.pinnedBytes = Int(clamping: counted.pinned_bytes)
    out.usedBytes = Int(clamping: counted.used_bytes)
    out.evictions = Int(clamping: counted.evictions)
    out.evictionAge = .milliseconds(counted.eviction_age_ms)
    out.hits = Int(clamping: counted.hits)
    out.misses = Int(clamping: counted.misses)
    out.memoryHits = Int(clamping: counted.memory_hits)
    out.memoryEntries = Int(clamping: counted.memory_entries)
    out.memoryBytes = Int(clamping: counted.memory_bytes)
    out.loads = flights.loads
    out.joins = flights.joins
    out.staleHits = counters.staleHits.count
    out.failedLoads = counters.failedLoads.count
    out.stores = counters.stores.count
    out.failedStores = counters.failedStores.count
    out.removals = counters.removals.count
    out.damaged = counters.damaged.count
    out.failedLookups = counters.failedLookups.count
    return out
  }

  /// Walks the folders and the slots; blocks.
  func census() throws(BlobCache.Error) -> BlobCache.Census {
    var counted = bcs_counters()
    let now = now
    let status = try unsafe handle.use("statistics") { store throws(BlobCache.Error) in
      unsafe bcs_count_all(store, now, &counted)
    }
    guard status == BCS_OK else { throw status.lastError("statistics") }
    var out = BlobCache.Census()
    out.statistics = statistics(counted)
    out.expired = Int(clamping: counted.entries_expired)
    out.indexAllocatedBytes = Int(clamping: counted.index_allocated)
    out.indexFreeBytes = Int(clamping: counted.index_free)
    out.indexSpareBytes = Int(clamping: counted.index_spare)
    out.stagingAllocatedBytes = Int(clamping: counted.staging_allocated)
    out.quarantineAllocatedBytes = Int(clamping: counted.quarantine_allocated)
    out.slotsAllocatedBytes = Int(clamping: counted.slots_allocated)
    out.totalHits = Int(clamping: counted.total_hits)
    out.totalMisses = Int(clamping: counted.total_misses)
    out.totalMemoryHits = Int(clamping: counted.total_memory_hits)
    out.diskFree = Int(clamping: counted.disk_free)
    out.diskReserve = Int(clamping: counted.disk_reserve)
    return out
  }

  /// Blocks.
  func flush() throws(BlobCache.Error) {
    let status = try unsafe handle.use("flush") { store throws(BlobCache.Error) in
      unsafe bcs_flush(store)
    }
    guard status == BCS_OK else { throw status.lastError("flush") }
  }

  /// Blocks.
  func checkpoint() throws(BlobCache.Error) {
    let status = try unsafe handle.use("checkpoint") { store throws(BlobCache.Error) in
      unsafe bcs_checkpoint(store, 0)
    }
    guard status == BCS_OK else { throw status.lastError("checkpoint") }
  }

  /// Reads the pages of the index without following them; blocks for long.
  func checkPages(repair: Bool) throws(BlobCache.Error) -> bcs_check_report {
    var report = bcs_check_report()
    let status = try unsafe handle.use("verify") { store throws(BlobCache.Error) in
      unsafe bcs_check_pages(store, repair, &report)
    }
    guard status == BCS_OK else { throw status.lastError("verify") }
    return report
  }

  /// Walks index and folders; blocks for long.
  func checkStructure(
    repair: Bool, progress: @escaping (Int, Int) -> Void
  ) throws(BlobCache.Error) -> bcs_check_report {
    var report = bcs_check_report()
    let place = unsafe bcs_check_place(handle.pointer)
    guard place == BCS_OK else { throw place.lastError("verify") }
    var call = Progress(call: progress)
    let status = try unsafe handle.use("verify") { store throws(BlobCache.Error) in
      unsafe withUnsafeMutablePointer(to: &call) { call in
        unsafe bcs_check_structure(store, repair, &report, tellProgress, call)
      }
    }
    guard status == BCS_OK else { throw status.lastError("verify") }
    return report
  }
}

private struct Progress {
  let call: (Int, Int) -> Void
}

private func tellProgress(context: UnsafeMutableRawPointer?, done: UInt64, total: UInt64) {
  unsafe context?.assumingMemoryBound(to: Progress.self).pointee
    .call(Int(clamping: done), Int(clamping: total))
}
