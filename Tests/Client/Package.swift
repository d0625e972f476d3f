// swift-tools-version: 6.2
import Foundation
import PackageDescription

// A user's package: nothing of the main package's settings. Built and run twice by CI:
//
//     BLOBCACHE_CLIENT_MODE=5 swift run --package-path Tests/Client
//     BLOBCACHE_CLIENT_MODE=6 swift run --package-path Tests/Client
let mode: SwiftLanguageMode =
  ProcessInfo.processInfo.environment["BLOBCACHE_CLIENT_MODE"] == "5" ? .v5 : .v6

let package = Package(
  name: "client",
  platforms: [.macOS(.v26)],
  dependencies: [.package(name: "blobcache", path: "../..")],
  targets: [
    .executableTarget(
      name: "Client", dependencies: [.product(name: "BlobCache", package: "blobcache")],
      swiftSettings: [.treatAllWarnings(as: .error)])
  ],
  swiftLanguageModes: [mode]
)
