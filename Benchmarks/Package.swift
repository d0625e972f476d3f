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
  name: "blobcache-benchmarks",
  platforms: [.macOS(.v26)],
  products: [.executable(name: "blobcache-bench", targets: ["blobcache-bench"])],
  dependencies: [.package(name: "blobcache", path: "..")],
  targets: [
    .systemLibrary(
      name: "CPeerLMDB", path: "CSources/CPeerLMDB", pkgConfig: "lmdb",
      providers: [.apt(["liblmdb-dev"]), .brew(["lmdb"])]),
    .systemLibrary(
      name: "CPeerCrypto", path: "CSources/CPeerCrypto", pkgConfig: "libcrypto",
      providers: [.apt(["libssl-dev"]), .brew(["openssl@3"])]),
    .target(
      name: "CBaseline", dependencies: ["CPeerLMDB", "CPeerCrypto"],
      path: "CSources/CBaseline",
      cSettings: [
        .define("_GNU_SOURCE"),
        .treatAllWarnings(as: .error), .enableWarning("all"), .enableWarning("extra"),
        .enableWarning("conversion"),
      ],
      linkerSettings: [.linkedLibrary("lmdb"), .linkedLibrary("crypto")]),
    .executableTarget(
      name: "blobcache-bench",
      dependencies: ["CBaseline", .product(name: "BlobCache", package: "blobcache")],
      swiftSettings: strict),
  ],
  swiftLanguageModes: [.v6],
  cLanguageStandard: .c11
)
