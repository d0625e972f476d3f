extension BlobCache {
  /// Small facts kept with an entry, such as an ETag: strings or bytes under names, in order, 64
  /// KiB at most in all.
  ///
  ///     try await cache.store(page, for: url, attributes: ["etag": "\"x1\"", "type": "text/html"])
  ///
  /// Names are compared by their UTF-8. Attributes that are too large to store make the call that
  /// brings them throw ``Error`` with code ``Error/Code/attributesTooLarge``.
  public struct Attributes: Hashable, Sendable {
    private var pairs: [Pair] = []

    struct Pair: Hashable, Sendable {
      var name: String
      var value: AttributeValue
    }

    /// The most bytes that names and values of one entry may take, encoded (7 bytes an attribute
    /// are added).
    public static let maximumByteCount = 65_536

    /// No attributes.
    public init() {}

    /// The value under a name; nil if there is none. Setting nil removes it; a new name goes to the
    /// end.
    public subscript(name: String) -> AttributeValue? {
      get { position(of: name).map { pairs[$0].value } }
      set {
        switch (position(of: name), newValue) {
        case (let index?, let value?): pairs[index].value = value
        case (let index?, nil): pairs.remove(at: index)
        case (nil, let value?): pairs.append(Pair(name: name, value: value))
        case (nil, nil): break
        }
      }
    }

    private func position(of name: String) -> Int? {
      pairs.firstIndex { $0.name.utf8.elementsEqual(name.utf8) }
    }
  }

  /// A string or bytes. Literals of either kind are values.
  public struct AttributeValue: Hashable, Sendable {
    enum Form: Hashable, Sendable {
      case text(String)
      case bytes([UInt8])
    }

    let form: Form

    /// A value that is text.
    public init(_ string: String) { form = .text(string) }

    /// A value that is bytes.
    public init(_ bytes: some Collection<UInt8>) { form = .bytes([UInt8](bytes)) }

    /// The text; for bytes, the text that they are in UTF-8, nil if they are not.
    public var string: String? {
      switch form {
      case .text(let text): text
      case .bytes(let bytes): String(validating: bytes, as: UTF8.self)
      }
    }

    /// The bytes; for text, its UTF-8.
    public var bytes: [UInt8] {
      switch form {
      case .text(let text): [UInt8](text.utf8)
      case .bytes(let bytes): bytes
      }
    }

    /// Whether the value was given as text.
    public var isText: Bool {
      if case .text = form { true } else { false }
    }
  }
}

extension BlobCache.Attributes: RandomAccessCollection {
  /// A name and its value.
  public typealias Element = (name: String, value: BlobCache.AttributeValue)

  public var startIndex: Int { 0 }
  public var endIndex: Int { pairs.count }
  public subscript(position: Int) -> Element { (pairs[position].name, pairs[position].value) }
}

extension BlobCache.Attributes: ExpressibleByDictionaryLiteral {
  /// The attributes in the order written; of a name that occurs twice, the last value.
  public init(dictionaryLiteral elements: (String, BlobCache.AttributeValue)...) {
    for (name, value) in elements { self[name] = value }
  }
}

extension BlobCache.AttributeValue: ExpressibleByStringInterpolation, ExpressibleByArrayLiteral {
  public init(stringLiteral value: String) { self.init(value) }
  public init(arrayLiteral elements: UInt8...) { self.init(elements) }
}

extension BlobCache.Attributes: CustomStringConvertible {
  /// Names and values; long ones shortened, bytes as their count.
  public var description: String {
    if isEmpty { return "[:]" }
    let pairs = map { "\(BlobCache.Key($0.name).summary): \($0.value)" }
    return "[" + pairs.joined(separator: ", ") + "]"
  }
}

extension BlobCache.AttributeValue: CustomStringConvertible {
  /// The text in quotes, 80 characters at most; for bytes, how many there are.
  public var description: String {
    switch form {
    case .text(let text): BlobCache.Key(text).summary
    case .bytes(let bytes): "\(bytes.count) bytes"
    }
  }
}
