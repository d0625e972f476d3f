/// `512 B`, `1.5 KiB`, `10.0 GiB`.
func formatted(bytes: Int) -> String {
  guard bytes >= 1024 else { return "\(bytes) B" }
  var tenths = Double(bytes) / 1024
  var unit = 0
  // 1023.95 would be written as 1024.0: the next unit, then.
  while tenths >= 1023.95, unit < 4 {
    tenths /= 1024
    unit += 1
  }
  let rounded = Int((tenths * 10).rounded())
  return "\(rounded / 10).\(rounded % 10) \(["KiB", "MiB", "GiB", "TiB", "PiB"][unit])"
}

/// `1,234,567`.
func grouped(_ number: Int) -> String {
  let digits = String(number.magnitude)
  var out = ""
  for (index, digit) in digits.enumerated() {
    if index > 0 && (digits.count - index) % 3 == 0 { out += "," }
    out.append(digit)
  }
  return (number < 0 ? "-" : "") + out
}

/// The one noun or the other: `1 entry`, `2 entries`.
func counted(_ number: Int, _ one: String, _ many: String) -> String {
  "\(grouped(number)) \(number == 1 ? one : many)"
}

/// The two largest units, rounded: `20s`, `1h30m`, `7d`. Below a second, `0.5s`.
func formatted(milliseconds: Int64) -> String {
  let milliseconds = milliseconds.magnitude
  if milliseconds < 100 { return "\(milliseconds)ms" }
  if milliseconds < 950 { return "0.\((milliseconds + 50) / 100)s" }
  let units: [(UInt64, String)] = [
    (86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"),
  ]
  var seconds = milliseconds / 1_000 + (milliseconds % 1_000 >= 500 ? 1 : 0)
  func unit() -> Int { units.firstIndex { seconds >= $0.0 } ?? units.count - 1 }
  // To the smaller of the two that are shown; that may make a larger one full: 1h59m59s is 2h.
  let step = units[min(unit() + 1, units.count - 1)].0
  seconds = (seconds + step / 2) / step * step
  let first = unit()
  let (size, name) = units[first]
  var out = "\(seconds / size)\(name)"
  if first + 1 < units.count {
    let (nextSize, nextName) = units[first + 1]
    let rest = seconds % size / nextSize
    if rest > 0 { out += "\(rest)\(nextName)" }
  }
  return out
}

/// A moment (milliseconds since 1970) seen from another: `in 20s`, `5m ago`.
func relative(_ moment: Int64, now: Int64) -> String {
  let (span, overflow) = moment.subtractingReportingOverflow(now)
  if overflow { return moment > 0 ? "in ages" : "ages ago" }
  return span > 0 ? "in \(formatted(milliseconds: span))" : "\(formatted(milliseconds: span)) ago"
}

/// A moment as RFC 3339 writes it, in UTC with milliseconds: `2026-11-30T09:01:25.123Z`. What lies outside the
/// years 0 to 9999 that it can write is drawn to their ends.
func timestamp(_ moment: Int64) -> String {
  let date = CivilTime(moment)
  return "\(date.day)T\(date.time).\(padded(date.millisecond, 3))Z"
}

/// The same for people: `2026-11-30 09:01:25 UTC`.
func readable(_ moment: Int64) -> String {
  let date = CivilTime(moment)
  return "\(date.day) \(date.time) UTC"
}

/// Days and times in the proleptic Gregorian calendar. By hand, since Foundation's formatters would bring in the whole
/// of it for this; the arithmetic is Howard Hinnant's days_from_civil, inverted ("chrono-Compatible Low-Level Date
/// Algorithms").
private struct CivilTime {
  let day: String
  let time: String
  let millisecond: Int64

  init(_ moment: Int64) {
    let moment = min(max(moment, -62_167_219_200_000), 253_402_300_799_999)
    let days = Int64((Double(moment) / 86_400_000).rounded(.down))
    let inDay = moment - days * 86_400_000
    let shifted = days + 719_468
    let era = (shifted >= 0 ? shifted : shifted - 146_096) / 146_097
    let dayOfEra = shifted - era * 146_097
    let yearOfEra =
      (dayOfEra - dayOfEra / 1_460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
    let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
    let monthFromMarch = (5 * dayOfYear + 2) / 153
    let dayOfMonth = dayOfYear - (153 * monthFromMarch + 2) / 5 + 1
    let month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
    let year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
    day = "\(padded(year, 4))-\(padded(month, 2))-\(padded(dayOfMonth, 2))"
    time =
      padded(inDay / 3_600_000, 2) + ":" + padded(inDay / 60_000 % 60, 2) + ":"
      + padded(inDay / 1_000 % 60, 2)
    millisecond = inDay % 1_000
  }
}

private func padded(_ number: Int64, _ count: Int) -> String {
  let digits = String(number)
  return String(repeating: "0", count: max(0, count - digits.count)) + digits
}

func padLeft(_ text: String, _ width: Int) -> String {
  String(repeating: " ", count: max(0, width - text.count)) + text
}

func padRight(_ text: String, _ width: Int) -> String {
  text + String(repeating: " ", count: max(0, width - text.count))
}
