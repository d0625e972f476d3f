// swift-tools-version: 6.2
import PackageDescription

let strict: [SwiftSetting] = [
  .enableUpcomingFeature("ExistentialAny"),
  .enableUpcomingFeature("InternalImportsByDefault"),
  .enableUpcomingFeature("MemberImportVisibility"),
  .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
  .enableUpcomingFeature("InferIsolatedConformances"),
  .enableExperimentalFeature("Lifetimes"),
  .strictMemorySafety(),
  .treatAllWarnings(as: .error),
]

let package = Package(
  name: "blobcache",
  platforms: [.macOS(.v26)],
  products: [
    .library(name: "BlobCache", targets: ["BlobCache"]),
    .executable(name: "blobcache-inspect", targets: ["blobcache-inspect"]),
  ],
  targets: [
    .systemLibrary(
      name: "CLMDB", path: "CSources/CLMDB", pkgConfig: "lmdb",
      providers: [.apt(["liblmdb-dev"]), .brew(["lmdb"])]),
    .systemLibrary(
      name: "COpenSSL", path: "CSources/COpenSSL", pkgConfig: "libcrypto",
      providers: [.apt(["libssl-dev"]), .brew(["openssl@3"])]),
    .target(
      name: "CBlobStore", dependencies: ["CLMDB", "COpenSSL"], path: "CSources/CBlobStore",
      cSettings: [
        .define("_GNU_SOURCE"),
        .treatAllWarnings(as: .error), .enableWarning("all"), .enableWarning("extra"),
        .enableWarning("conversion"),
      ],
      linkerSettings: [.linkedLibrary("lmdb"), .linkedLibrary("crypto")]),
    .target(name: "BlobCache", dependencies: ["CBlobStore"], swiftSettings: strict),
    .executableTarget(
      name: "blobcache-inspect", dependencies: ["BlobCache"], swiftSettings: strict),
    // Lets calls of the C core and of LMDB fail: see FailingCalls.h. Inert unless asked for.
    .target(
      name: "FailingCalls", dependencies: ["CLMDB", "COpenSSL"], path: "Tests/FailingCalls",
      cSettings: [
        .define("_GNU_SOURCE"),
        .treatAllWarnings(as: .error), .enableWarning("all"), .enableWarning("extra"),
      ]),
    // Stands in front of the calls that change files: see Recorder.h. Inert unless asked for.
    .target(
      name: "Recorder", dependencies: ["FailingCalls"], path: "Tests/Recorder",
      cSettings: [
        .define("_GNU_SOURCE"),
        .treatAllWarnings(as: .error), .enableWarning("all"), .enableWarning("extra"),
      ]),
    .executableTarget(
      name: "blobcache-test-process",
      dependencies: ["BlobCache", "CBlobStore", "FailingCalls", "Recorder"],
      path: "Tests/TestProcess",
      // In front of the C library's also for Dispatch and LMDB: see Descriptors.swift, FailingCalls.h and Recorder.h.
      linkerSettings: [
        .unsafeFlags(
          [
            "open", "write", "writev", "pwrite", "ftruncate", "fsync", "fdatasync", "unlink",
            "rename", "mkdir", "pread", "read", "close", "fcntl", "lseek", "mmap", "munmap",
            "madvise",
            "__fxstat", "fstatfs", "malloc", "calloc", "realloc", "posix_memalign", "memalign",
            "aligned_alloc", "free",
          ].flatMap { ["-Xlinker", "--export-dynamic-symbol=\($0)"] })
      ]),
    .testTarget(
      name: "BlobCacheTests",
      dependencies: ["BlobCache", "CBlobStore", "Recorder", "blobcache-test-process"]),
    .testTarget(
      name: "InspectTests", dependencies: ["BlobCache", "blobcache-inspect"]),
  ],
  swiftLanguageModes: [.v6],
  cLanguageStandard: .c11
)
