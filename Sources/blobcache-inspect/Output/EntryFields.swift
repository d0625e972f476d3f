internal import BlobCache

extension BlobCache.Entry {
  /// The fields of an entry in every `--json` output; CommandLine.md lists them.
  var json: JSON { .object(fields) }

  private var fields: [JSON.Field] {
    var out = [keyField(key)]
    out.append(.init("digest", .string(digest.hex)))
    out.append(.init("size", .int(size)))
    out.append(.init("location", .string(location.description)))
    out.append(.init("storedAt", moment(storedAt.milliseconds)))
    out.append(.init("lastAccess", moment(lastAccess?.milliseconds)))
    out.append(.init("hits", .int(hits)))
    let lifetime = lifetime.parts
    out.append(.init("lifetime", .string(lifetime.kind)))
    out.append(.init("lifetimeSeconds", seconds(lifetime.span)))
    out.append(.init("atMostSeconds", seconds(lifetime.atMost)))
    out.append(.init("expiresAt", moment(expiresAt?.milliseconds)))
    out.append(.init("expired", .bool(isExpired)))
    out.append(.init("stale", .bool(isStale)))
    out.append(.init("staleWindowSeconds", .seconds(staleWindow.wholeMilliseconds)))
    out.append(.init("pinned", .bool(isPinned)))
    out.append(.init("tags", .array(tags.map(JSON.string))))
    var text: [JSON.Field] = []
    var binary: [JSON.Field] = []
    for (name, value) in attributes {
      if let string = value.string {
        text.append(.init(name, .string(string)))
      } else {
        binary.append(.init(name, .base64(value.bytes)))
      }
    }
    out.append(.init("attributes", .object(text)))
    if !binary.isEmpty { out.append(.init("attributesBase64", .object(binary))) }
    return out
  }

  /// `in 20s`, `5m ago`, `never`.
  func expiry(now: Int64) -> String {
    expiresAt.map { relative($0.milliseconds, now: now) } ?? "never"
  }

  /// Where format 1 keeps the blob, seen from the directory.
  private var file: String { "blobs/\(digest.hex.prefix(2))/\(digest.hex)" }

  /// Everything, for a person.
  func facts(now: Int64) -> Facts {
    var facts = Facts()
    facts.add("key", readable(key))
    facts.add("digest", "sha256:\(digest.hex)")
    facts.add("size", size < 1024 ? "\(size) B" : "\(formatted(bytes: size)) (\(grouped(size)) B)")
    facts.add("kept in", location == .file ? file : "the index")
    facts.gap()
    let stored = storedAt.milliseconds
    facts.add("stored", "\(readable(stored)) (\(relative(stored, now: now)))")
    let access = lastAccess?.milliseconds
    facts.add("last read", access.map { "\(readable($0)) (\(relative($0, now: now)))" } ?? "never")
    facts.add("reads", formatted(hits: hits))
    facts.add("lifetime", lifetime.words)
    let end = expiresAt?.milliseconds
    let verb = isExpired ? "expired" : "expires"
    facts.add(verb, end.map { "\(readable($0)) (\(relative($0, now: now)))" } ?? "never")
    if end != nil {
      let window = formatted(milliseconds: staleWindow.wholeMilliseconds)
      facts.add("stale for", "\(window) after that" + (isStale ? "; it is stale now" : ""))
    }
    if isPinned { facts.add("pinned", "kept from eviction and sweeps") }
    if !attributes.isEmpty || !tags.isEmpty { facts.gap() }
    for tag in tags { facts.add("tag", tag.isEmpty ? "(empty)" : escaped(tag)) }
    for (name, value) in attributes {
      facts.add("attribute", "\(escaped(name)) = \(escaped(value.bytes))")
    }
    return facts
  }
}

/// A key for a person. The empty one would not be seen.
func readable(_ key: BlobCache.Key) -> String {
  key.byteCount == 0 ? "(empty)" : escaped(key.bytes)
}

/// The counter of an entry ends at 63.
func formatted(hits: Int) -> String { hits >= 63 ? "63+" : String(hits) }

/// `key`, or `keyBase64` for one that is not UTF-8.
func keyField(_ key: BlobCache.Key) -> JSON.Field {
  key.string.map { .init("key", .string($0)) } ?? .init("keyBase64", .base64(key.bytes))
}

private func moment(_ milliseconds: Int64?) -> JSON {
  milliseconds.map { .string(timestamp($0)) } ?? .null
}

private func seconds(_ milliseconds: Int64?) -> JSON { milliseconds.map(JSON.seconds) ?? .null }

extension BlobCache.Lifetime {
  fileprivate var parts: (kind: String, span: Int64?, atMost: Int64?) {
    switch form {
    case .forever: ("forever", nil, nil)
    case .span(let span): ("expires", span, nil)
    case .moment, .noMoment: ("expires", nil, nil)
    case .sliding(let window, let most): ("sliding", window, most)
    }
  }

  /// `20s`, `sliding 20s, at most 1h`.
  var words: String {
    switch form {
    case .forever: "forever"
    case .span(let span): formatted(milliseconds: span)
    case .moment(let moment): "until \(readable(moment))"
    case .noMoment: description  // of no entry
    case .sliding(let window, let most):
      "sliding \(formatted(milliseconds: window))"
        + (most.map { ", at most \(formatted(milliseconds: $0))" } ?? "")
    }
  }
}
