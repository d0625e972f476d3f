// Words from the system in, an exit status out; everything between is in Program.swift.
#if canImport(Glibc)
  internal import Glibc
#elseif canImport(Musl)
  internal import Musl
#else
  internal import Darwin
#endif

exit(await Program.run(rawArguments()).rawValue)
