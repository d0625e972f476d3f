internal import CBlobStore
internal import Dispatch
internal import Synchronization

/// The descriptors of Dispatch itself, which are opened before the first cache is.
///
/// On Linux, Dispatch opens four when they are first needed: an eventfd for the main queue, and an epoll, an eventfd
/// and a timerfd for timers. The first job of a common queue, which may be a task of Swift's concurrency, needs the
/// latter three too, and one more for a moment, since Dispatch counts by a timer which of its threads run
/// (`/proc/…/stat`). It has no error for a process that has no descriptor left by then: it traps. So all of that
/// happens here, where a lack of descriptors is an error.
///
/// What remains is not in the hands of a library: each second in which more jobs wait than the machine has cores,
/// Dispatch counts its threads again, and traps when no descriptor is left then.
enum RuntimeDescriptors {
  private static let count = 5
  private static let areOpen = Mutex(false)

  static func prepare() throws(BlobCache.Error) {
    #if os(Linux)
      let status = areOpen.withLock { areOpen in
        if areOpen { return BCS_OK }
        guard hasFreeDescriptors(count) else { return BCS_NO_DESCRIPTORS }
        openAll()
        areOpen = true
        return BCS_OK
      }
      if status != BCS_OK { throw BlobCache.Error(status, operation: "open") }
    #endif
  }

  private static func openAll() {
    DispatchQueue.main.async {}
    let hasRun = DispatchSemaphore(value: 0)
    // When all common threads are blocked, they have started before, and the wait is in vain.
    DispatchQueue.global().async { hasRun.signal() }
    _ = hasRun.wait(timeout: .now() + .milliseconds(100))
    // Twice: by the time the second timer has run, Dispatch has been through its loop after the first. On a queue of
    // its own, which gets a thread even when all of the common ones are blocked.
    let queue = DispatchQueue(label: "blobcache.descriptors")
    let hasExpired = DispatchSemaphore(value: 0)
    for _ in 0..<2 {
      queue.asyncAfter(deadline: .now() + .microseconds(500)) { hasExpired.signal() }
      hasExpired.wait()
    }
  }
}
