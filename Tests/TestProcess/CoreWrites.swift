import CBlobStore

/// What commands do through the C core alone.
extension Commands {
  func coreStore(_ directory: String) -> OpaquePointer? {
    var options = bcs_options()
    options.durability = BCS_AS_RECORDED
    var store: OpaquePointer?
    return bcs_open(directory, &options, &store) == BCS_OK ? store : nil
  }

  func coreWrite(_ store: OpaquePointer, _ name: String) -> OpaquePointer? {
    var write: OpaquePointer?
    let status = Array(name.utf8).withUnsafeBytes { key in
      var spec = bcs_entry_spec(
        key: key.baseAddress, key_count: key.count, attributes: nil, attributes_count: 0,
        tags: nil, tags_count: 0,
        lifetime: bcs_lifetime(
          kind: BCS_FOREVER, shortened_ms: 0, deadline_ms: .max, window_ms: 0), stale_ms: 0,
        now_ms: 1_900_000_000_000)
      return bcs_write_inline(store, &spec, "x", 1, nil, &write)
    }
    return status == BCS_OK ? write : nil
  }
}
