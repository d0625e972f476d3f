extension Command {
  func help(_ verb: Verb?, _ output: Output) throws -> ExitStatus {
    try output.line(verb?.help ?? overview)
    return .fine
  }
}

private let overview = """
  blobcache-inspect looks into a BlobCache directory and changes it, also while it is in use.

  usage: blobcache-inspect COMMAND DIRECTORY [ARGUMENT…] [--option…]

    stats     what is in it, and what it takes on the disk
    list      its entries
    show      all that is known of an entry
    cat       the bytes of an entry
    verify    read and compare everything, and repair it
    put       store a file or standard input
    remove    remove entries by key or prefix
    renew     give an entry a new lifetime
    clear     remove every entry
    help      this, or more of one COMMAND
    version   the version of this program

  A KEY is taken byte by byte; one that begins with - goes after --, one that begins with
  sha256: after --key. Reading changes nothing, not even an access time. --json is for programs.
  Exit status: 0 fine, 1 problems found or key absent, 2 could not run.
  """

extension Verb {
  /// The whole help of a command.
  var help: String {
    switch self {
    case .stats:
      """
      usage: blobcache-inspect stats DIRECTORY [--json]

      Counts entries and blobs, what each part of the directory takes on the disk, and the lookups
      of all processes since the table of slots was made.
      """
    case .list:
      """
      usage: blobcache-inspect list DIRECTORY [--option…]

      One line for each entry, expired ones included.

        --prefix BYTES   only keys that begin so
        --expired        only entries that are expired
        --sort ORDER     size (largest first), age (oldest first), hits (most first) or
                         expiry (next first); else in no particular order
        --reverse        the other way around
        --limit N        the first N
        --json           one object a line

      READS ends at 63+. Control characters and what is not UTF-8 are written as escapes. On a
      terminal, the middle of a key that does not fit is left out.
      """
    case .show:
      """
      usage: blobcache-inspect show DIRECTORY KEY|sha256:HEX [--json]

      All that is known of an entry, expired or not; by digest, of one that is not expired.

        --key BYTES      the key, whatever it begins with
        --digest HEX     the same as sha256:HEX
        --json           one object
      """
    case .cat:
      """
      usage: blobcache-inspect cat DIRECTORY KEY|sha256:HEX

      Writes the bytes of an entry that is not expired to standard output.

        --key BYTES      the key, whatever it begins with
        --digest HEX     the same as sha256:HEX
      """
    case .verify:
      """
      usage: blobcache-inspect verify DIRECTORY [--repair] [--json]

      Looks at every page of the index, compares every blob with its digest, the index with the
      files, the counts with a recount.
      The exit status is 1 if there were problems, also when they have been repaired.

        --repair         put right what is found: damaged entries are removed, and their files
                         kept in the folder quarantine; an index with a damaged page is set
                         aside there, while no other process has the directory open: the cache
                         is empty then, and its blob files are kept. The same content, stored
                         again, uses them; a second --repair removes what is left
        --json           one object
      """
    case .put:
      """
      usage: blobcache-inspect put DIRECTORY KEY [FILE|-] [--option…]

      Stores a file, or standard input, under a key. Makes the directory a cache if it is absent
      or empty; one that holds anything and has no FORMAT is refused. Files get the modes that the
      directory has. Without an option for it, the entry does not expire.

        --key BYTES            the key, whatever it begins with
        --ttl DURATION         fresh for so long: 500ms, 20s, 5m, 1h30m, 7d, 2w
        --sliding DURATION     fresh for so long after it was last read
        --at-most DURATION     with --sliding: no longer than this in all
        --forever              fresh until removed
        --attribute NAME=VALUE kept with the entry; may be given several times
        --json                 the entry as one object
      """
    case .remove:
      """
      usage: blobcache-inspect remove DIRECTORY KEY… [--json]
             blobcache-inspect remove DIRECTORY --prefix BYTES [--json]

      Removes entries. The exit status is 1 if one of the keys was not there.

        --key BYTES      a key, whatever it begins with; may be given several times
        --prefix BYTES   all entries whose keys begin so
        --json           one object
      """
    case .renew:
      """
      usage: blobcache-inspect renew DIRECTORY KEY --ttl|--sliding DURATION|--forever [--json]

      Gives an entry a new lifetime, counted from now, also when it is expired.

        --key BYTES            the key, whatever it begins with
        --ttl DURATION         fresh for so long: 500ms, 20s, 5m, 1h30m, 7d, 2w
        --sliding DURATION     fresh for so long after it was last read
        --at-most DURATION     with --sliding: no longer than this in all
        --forever              fresh until removed
        --json                 the entry as one object
      """
    case .clear:
      """
      usage: blobcache-inspect clear DIRECTORY [--yes] [--json]

      Removes every entry. Asks first on a terminal.

        --yes            do not ask
        --json           one object
      """
    case .help: "usage: blobcache-inspect help [COMMAND]"
    case .version: "usage: blobcache-inspect version"
    }
  }
}
