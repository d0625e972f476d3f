internal import Dispatch
internal import Synchronization

/// The stores of this process, one per directory.
///
/// A directory is known by device and inode, so a second path to it gives the same store. Instances
/// are counted; the last one's release ends the store, on the store's own thread, and opening the
/// directory again waits for that.
final class StoreRegistry: Sendable {
  static let shared = StoreRegistry()

  private struct Slot {
    let store: Store
    var instances = 1
    var isEnding = false
  }

  private let slots = Mutex<[StoreIdentity: Slot]>([:])
  /// Held while a directory is being opened: LMDB must not be opened twice, and of a directory that
  /// is being made neither device nor inode is known before.
  private let opening = Mutex<Void>(())

  private enum Found {
    case shared(Store)
    case ending(Store)
    case absent
  }

  /// The store of a directory, opened if it is not. Blocks. Every success is paired with one
  /// `release`.
  func open(
    _ directory: String, configuration: BlobCache.Configuration, isTemporary: Bool = false
  ) throws(BlobCache.Error) -> Store {
    try BlobCache.Error.checkPath(directory, "open")
    // Before anything is made.
    _ = try configuration.limits?.stored("open", of: directory)
    try configuration.memory.check()
    return try opening.withLock { _ in
      Result { () throws(BlobCache.Error) -> Store in
        while true {
          switch StoreIdentity(of: directory).map(find) ?? .absent {
          case .shared(let store):
            do throws(BlobCache.Error) {
              try store.accept(configuration)
              try store.recordLimits(of: configuration)
            } catch {
              release(store)
              throw error
            }
            return store
          case .ending(let store):
            store.ended.wait()
          case .absent:
            try RuntimeDescriptors.prepare()
            let handle = try StoreHandle(directory: directory, configuration: configuration)
            let store = Store(
              handle: handle, configuration: configuration, isTemporary: isTemporary)
            slots.withLock { $0[handle.identity] = Slot(store: store) }
            do throws(BlobCache.Error) {
              try store.recordLimits(of: configuration)
            } catch {
              release(store)
              throw error
            }
            return store
          }
        }
      }
    }.get()
  }

  private func find(_ identity: StoreIdentity) -> Found {
    slots.withLock { slots in
      guard var slot = slots[identity] else { return .absent }
      if slot.isEnding { return .ending(slot.store) }
      slot.instances += 1
      slots[identity] = slot
      return .shared(slot.store)
    }
  }

  /// Gives one instance back. The last one starts the shutdown, whose end `store.ended` tells.
  func release(_ store: Store) {
    let last = slots.withLock { slots in
      guard var slot = slots[store.handle.identity], slot.store === store, !slot.isEnding else {
        return false
      }
      slot.instances -= 1
      slot.isEnding = slot.instances == 0
      slots[store.handle.identity] = slot
      return slot.isEnding
    }
    guard last else { return }
    store.thread.async {
      store.shutDown()
      self.slots.withLock { _ = $0.removeValue(forKey: store.handle.identity) }
      store.ended.leave()
    }
  }

  /// Whether the store has no instance any more.
  func isEnding(_ store: Store) -> Bool {
    slots.withLock { $0[store.handle.identity]?.isEnding ?? true }
  }
}
