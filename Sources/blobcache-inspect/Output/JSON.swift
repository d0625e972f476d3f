#if canImport(FoundationEssentials)
  internal import FoundationEssentials
#else
  internal import Foundation
#endif

/// A value that is written as JSON (RFC 8259) on one line, its fields in the order given.
enum JSON: Equatable {
  case null
  case bool(Bool)
  case int(Int)
  /// Milliseconds, written as seconds with as many decimals as needed.
  case seconds(Int64)
  case ratio(Double)
  case string(String)
  case array([JSON])
  case object([Field])

  struct Field: Equatable {
    let name: String
    let value: JSON
    init(_ name: String, _ value: JSON) {
      self.name = name
      self.value = value
    }
  }

  static func base64(_ bytes: [UInt8]) -> JSON { .string(Data(bytes).base64EncodedString()) }

  var text: String {
    var out = ""
    write(to: &out)
    return out
  }

  private func write(to out: inout String) {
    switch self {
    case .null: out += "null"
    case .bool(let value): out += value ? "true" : "false"
    case .int(let value): out += String(value)
    case .seconds(let milliseconds): out += decimal(milliseconds, places: 3)
    case .ratio(let value): out += decimal(Int64((value * 10_000).rounded()), places: 4)
    case .string(let value): writeString(value, to: &out)
    case .array(let values):
      out += "["
      for (index, value) in values.enumerated() {
        if index > 0 { out += "," }
        value.write(to: &out)
      }
      out += "]"
    case .object(let fields):
      out += "{"
      for (index, field) in fields.enumerated() {
        if index > 0 { out += "," }
        writeString(field.name, to: &out)
        out += ":"
        field.value.write(to: &out)
      }
      out += "}"
    }
  }
}

private func writeString(_ text: String, to out: inout String) {
  out += "\""
  for scalar in text.unicodeScalars {
    switch scalar {
    case "\"": out += "\\\""
    case "\\": out += "\\\\"
    case "\n": out += "\\n"
    case "\r": out += "\\r"
    case "\t": out += "\\t"
    // The rest of the control characters must be escaped, or (DEL, C1, direction) should be for terminals.
    case _ where scalar.value < 0x20 || scalar.value == 0x7F || isUnsafe(scalar):
      out += "\\u" + hexDigits(scalar.value, count: 4)
    default: out.unicodeScalars.append(scalar)
    }
  }
  out += "\""
}

/// `value` ÷ 10^places without trailing zeros.
private func decimal(_ value: Int64, places: Int) -> String {
  var digits = String(value.magnitude)
  digits = String(repeating: "0", count: max(0, places + 1 - digits.count)) + digits
  let whole = digits.dropLast(places)
  var fraction = digits.suffix(places)
  while fraction.last == "0" { fraction.removeLast() }
  return (value < 0 ? "-" : "") + whole + (fraction.isEmpty ? "" : "." + fraction)
}
