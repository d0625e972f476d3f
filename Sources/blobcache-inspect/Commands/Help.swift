extension Command {
  func help(_ verb: Verb?, _ output: Output) throws -> ExitStatus {
    try output.line(verb?.help ?? overview)
    return .fine
  }
}

private let overview = """
  blobcache-inspect looks into a BlobCache directory and changes it, also while it is in use.

  usage: blobcache-inspect COMMAND DIRECTORY [ARGUMENT…] [--option…]

    stats     what is in it, its limits and how full they are, hits and evictions
    list      its entries
    show      all that is known of an entry
    cat       the bytes of an entry
    verify    read and compare everything, and repair it
    put       store a file or standard input
    remove    remove entries by key, prefix, tag, size or age
    renew     give an entry a new lifetime
    pin       keep an entry from eviction
    unpin     let it be evicted again
    trim      evict entries down to limits, or set limits
    sweep     remove what has expired, and debris
    clear     remove every entry
    help      this, or more of one COMMAND
    version   the version of this program

  A KEY is taken byte by byte; one that begins with - goes after --, one that begins with
  sha256: after --key, one with a NUL byte after --key-base64. Reading changes nothing, not even
  an access time. --json is for programs.
  Exit status: 0 fine, 1 problems found or key absent, 2 could not run.
  """

extension Verb {
  /// The whole help of a command.
  var help: String {
    switch self {
    case .stats:
      """
      usage: blobcache-inspect stats DIRECTORY [--json]

      Counts entries and blobs, what they use of the directory's limits, what each part of it takes
      on the disk, and the lookups and evictions of all processes since the table of slots was made.

      A miss is a lookup that found no fresh entry, also that of a fetch which then joined a load
      that was running: 1,000 tasks that fetch one missing key together are 1,000 misses and one
      load. What counts as in use are blob files, the index's pages in use, staging, quarantine and
      the table of slots; free pages inside the index's file do not.
      """
    case .list:
      """
      usage: blobcache-inspect list DIRECTORY [--option…]

      One line for each entry, expired ones included.

        --prefix BYTES   only keys that begin so
        --tag TAG        only entries that were stored with this tag
        --expired        only entries that are expired
        --pinned         only entries that are pinned
        --sort ORDER     size (largest first), age (oldest first), hits (most first) or
                         expiry (next first); else in no particular order
        --reverse        the other way around
        --limit N        the first N
        --json           one object a line

      READS ends at 63+, and counts reads within some milliseconds once. PIN marks what is pinned.
      Control characters and what is not UTF-8 are written as escapes. On a
      terminal, the middle of a key that does not fit is left out.
      """
    case .show:
      """
      usage: blobcache-inspect show DIRECTORY KEY|sha256:HEX [--json]

      All that is known of an entry, expired or not; by digest, of one that is not expired.

        --key BYTES      the key, whatever it begins with
        --key-base64 B   the key as base64
        --digest HEX     the same as sha256:HEX
        --json           one object
      """
    case .cat:
      """
      usage: blobcache-inspect cat DIRECTORY KEY|sha256:HEX

      Writes the bytes of an entry that is not expired to standard output.

        --key BYTES      the key, whatever it begins with
        --key-base64 B   the key as base64
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
      directory has. Without an option for it, the entry does not expire. What is larger than the
      directory's limit is refused, and so is more than half of it from a pipe.

        --key BYTES            the key, whatever it begins with
        --key-base64 B         the key as base64
        --ttl DURATION         fresh for so long: 500ms, 20s, 5m, 1h30m, 7d, 2w
        --sliding DURATION     fresh for so long after it was last read
        --at-most DURATION     with --sliding: no longer than this in all
        --forever              fresh until removed
        --attribute NAME=VALUE kept with the entry; may be given several times
        --tag TAG              to list and remove it by; may be given several times
        --pin                  keep it from eviction and sweeps
        --json                 the entry as one object
      """
    case .remove:
      """
      usage: blobcache-inspect remove DIRECTORY KEY… [--json]
             blobcache-inspect remove DIRECTORY --option… [--json]

      Removes entries, pinned ones, too. The exit status is 1 if one of the keys was not there.

        --key BYTES      a key, whatever it begins with; may be given several times
        --key-base64 B   a key as base64; may be given several times

      Without keys, the entries that meet all of:

        --prefix BYTES   the key begins so
        --tag TAG        stored with this tag
        --expired        expired
        --larger SIZE    the blob has more bytes: 500kB, 10MiB, 1.5GiB
        --older DURATION stored or renewed longer ago: 20s, 5m, 1h30m, 7d, 2w
        --json           one object
      """
    case .pin:
      """
      usage: blobcache-inspect pin DIRECTORY KEY [--json]

      Keeps an entry from eviction and sweeps until it is unpinned or removed. It still expires, and
      counts as used; a store in its place is pinned, too.

        --key BYTES      the key, whatever it begins with
        --key-base64 B   the key as base64
        --json           the entry as one object
      """
    case .unpin:
      """
      usage: blobcache-inspect unpin DIRECTORY KEY [--json]

      Lets an entry be evicted and swept again.

        --key BYTES      the key, whatever it begins with
        --key-base64 B   the key as base64
        --json           the entry as one object
      """
    case .trim:
      """
      usage: blobcache-inspect trim DIRECTORY [--option…]

      Evicts entries until the directory is within limits, those worth least first: expired, seldom
      read, large ones. Pinned ones stay. Without options, to the limits that it has. The exit status
      is 1 if what is pinned, or else not evicted, is above them; it is 0 if services have stored
      more meanwhile, which they evict themselves.

        --bytes SIZE     what it uses on the disk: 500MB, 10GiB, 1.5TiB (kB, MB … are powers of
                         1,000; KiB, MiB … and K, M … of 1,024); at least 1MiB
        --entries N      how many entries
        --age DURATION   entries that were stored or renewed longer ago go: 20s, 1h30m, 7d, 2w
        --record         makes these the directory's limits, for all its processes; the others stay
                         as they are. none takes a limit away: --entries none
        --dry-run        changes nothing; tells how far it is from the limits, and about how much
                         would go
        --json           one object
      """
    case .sweep:
      """
      usage: blobcache-inspect sweep DIRECTORY [--json]

      Removes entries that are expired and beyond the time that they are kept as stale copies (show
      tells it), blob files that no entry uses, what processes that are gone left unfinished, and of
      the quarantine what is above 64 MiB. Services do so by themselves, as a rule every minute. To
      remove all that is expired: remove --expired.

        --json           one object
      """
    case .renew:
      """
      usage: blobcache-inspect renew DIRECTORY KEY --ttl|--sliding DURATION|--forever [--json]

      Gives an entry a new lifetime, counted from now, also when it is expired.

        --key BYTES            the key, whatever it begins with
        --key-base64 B         the key as base64
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
