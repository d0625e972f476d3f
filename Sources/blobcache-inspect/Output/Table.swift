/// Names and values in two columns, with a blank line between groups.
struct Facts {
  private var groups: [[(name: String, value: String)]] = [[]]

  mutating func add(_ name: String, _ value: String) {
    groups[groups.count - 1].append((name, value))
  }

  mutating func gap() { groups.append([]) }

  func write(to output: Output) throws {
    let width = groups.joined().map(\.name.count).max() ?? 0
    for (index, group) in groups.enumerated() {
      if index > 0 { try output.line("") }
      for fact in group { try output.line(padRight(fact.name, width + 2) + fact.value) }
    }
  }
}
