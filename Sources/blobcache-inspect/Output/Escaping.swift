/// Bytes as one line of text that is safe on a terminal.
///
/// Control characters (C0, DEL, C1), the characters that turn the direction of text around, line and paragraph
/// separators, and bytes that are not UTF-8 become `\n`, `\t`, `\r`, `\xNN` or `\u{N}`; a backslash becomes two, so
/// that different bytes never look the same.
func escaped(_ bytes: some Sequence<UInt8>) -> String {
  let bytes = Array(bytes)
  if let text = String(validating: bytes, as: UTF8.self) { return escaped(text) }
  var out = ""
  var rest = bytes[...]
  while let first = rest.first {
    // The shortest prefix that is UTF-8 is one scalar.
    let scalar = (1...4).lazy.filter { $0 <= rest.count }
      .compactMap { String(validating: rest.prefix($0), as: UTF8.self) }.first
    if let scalar {
      out += escaped(scalar)
      rest = rest.dropFirst(scalar.utf8.count)
    } else {
      out += "\\x" + hexDigits(UInt32(first), count: 2)
      rest = rest.dropFirst()
    }
  }
  return out
}

func escaped(_ text: String) -> String {
  var out = String.UnicodeScalarView()
  for scalar in text.unicodeScalars {
    switch scalar {
    case "\\": out.append(contentsOf: "\\\\".unicodeScalars)
    case "\n": out.append(contentsOf: "\\n".unicodeScalars)
    case "\r": out.append(contentsOf: "\\r".unicodeScalars)
    case "\t": out.append(contentsOf: "\\t".unicodeScalars)
    case _ where scalar.value < 0x20 || scalar.value == 0x7F:
      out.append(contentsOf: "\\x\(hexDigits(scalar.value, count: 2))".unicodeScalars)
    case _ where isUnsafe(scalar):
      out.append(contentsOf: "\\u{\(hexDigits(scalar.value, count: 1))}".unicodeScalars)
    default: out.append(scalar)
    }
  }
  return String(out)
}

/// A word of the command line, for a message.
func quoted(_ bytes: some Sequence<UInt8>) -> String {
  "'\(shortened(escaped(bytes), to: 78))'"
}

/// A text of at most `most` characters: the middle of a longer one is left out, since the ends of paths and keys tell
/// the most.
func shortened(_ text: String, to most: Int) -> String {
  guard text.count > most else { return text }
  return text.prefix(most / 2) + "…" + text.suffix(most - most / 2 - 1)
}

/// What may do something to a terminal or mislead its reader, besides ASCII control characters.
func isUnsafe(_ scalar: Unicode.Scalar) -> Bool {
  switch scalar.value {
  case 0x80...0x9F, 0x061C, 0x200E, 0x200F, 0x2028...0x202E, 0x2066...0x2069, 0xFEFF: true
  default: false
  }
}

func hexDigits(_ value: UInt32, count: Int) -> String {
  let digits = String(value, radix: 16)
  return String(repeating: "0", count: max(0, count - digits.count)) + digits
}
