import Foundation

/// Whether locks on open file descriptions are granted without being asked for, as on a network file system that
/// forgets them: BLOBCACHE_LOCKS=granted.
private let grantsLocks = ProcessInfo.processInfo.environment["BLOBCACHE_LOCKS"] == "granted"

private typealias Control = @convention(c) (CInt, CInt, UnsafeMutableRawPointer?) -> CInt
private let system = dlsym(UnsafeMutableRawPointer(bitPattern: -1), "fcntl").map {
  unsafeBitCast($0, to: Control.self)
}

/// In front of the C library's `fcntl` for this process, by way of InFront.c: its third argument comes in a register, as in the variadic one.
@_cdecl("blobcache_fcntl_in_front")
public func fcntlInFront(
  _ file: CInt, _ command: CInt, _ argument: UnsafeMutableRawPointer?
) -> CInt {
  // F_OFD_SETLK, F_OFD_SETLKW and F_OFD_GETLK of Linux.
  let (set, wait, get): (CInt, CInt, CInt) = (37, 38, 36)
  if grantsLocks {
    if command == set || command == wait { return 0 }
    if command == get {
      argument?.assumingMemoryBound(to: flock.self).pointee.l_type = CShort(F_UNLCK)
      return 0
    }
  }
  guard let system else {
    errno = ENOSYS
    return -1
  }
  return system(file, command, argument)
}
