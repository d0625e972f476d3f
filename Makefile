# `make run` and `make test` are all that is needed; `make help` lists the rest. Each installs what is missing first.

SWIFT ?= swift
FORMATTED := Package.swift Sources Tests Benchmarks Snippets
BENCH := --package-path Benchmarks --scratch-path $(CURDIR)/.build/benchmarks
CLIENT := --package-path Tests/Client --scratch-path $(CURDIR)/.build/client
# Seconds after which a test run counts as hung.
TEST_LIMIT ?= 600

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

.PHONY: run
run: bootstrap ## the main job: a stress service over one directory, with progress and a table
	$(SWIFT) build -c release --product blobcache-inspect
	$(SWIFT) run -c release $(BENCH) blobcache-bench stress \
	  --inspect $(CURDIR)/.build/release/blobcache-inspect $(ARGS)

.PHONY: soak
soak: bootstrap ## the stress service for ten minutes: memory and disk must be flat (ARGS="--minutes N")
	$(SWIFT) build -c release --product blobcache-inspect
	$(SWIFT) run -c release $(BENCH) blobcache-bench soak \
	  --inspect $(CURDIR)/.build/release/blobcache-inspect $(ARGS)

.PHONY: test
test: bootstrap ## all tests, then the client package in Swift 5 and Swift 6 mode
	scripts/limit 900 $(SWIFT) build --build-tests
	scripts/swift-test $(TEST_LIMIT) .build/logs/test.log --skip-build
	@$(MAKE) --no-print-directory client

.PHONY: client
client: bootstrap ## a user's package, compiled and run in Swift 5 and in Swift 6 mode
	BLOBCACHE_CLIENT_MODE=5 scripts/limit 600 $(SWIFT) run $(CLIENT)
	BLOBCACHE_CLIENT_MODE=6 scripts/limit 600 $(SWIFT) run $(CLIENT)

.PHONY: bootstrap
bootstrap: ## installs what is missing: pkg-config, LMDB, OpenSSL
	@scripts/bootstrap

.PHONY: build
build: bootstrap ## library, tool and snippets, in debug
	$(SWIFT) build

.PHONY: format
format: ## formats the Swift sources in place
	$(SWIFT) format --in-place --parallel --recursive $(FORMATTED)

.PHONY: lint
lint: ## fails where `make format` would change something, or a rule of .swift-format is broken
	$(SWIFT) format lint --strict --parallel --recursive $(FORMATTED)

.PHONY: check-c
check-c: ## the C core exports only its own prefix, and its header stands alone (after a build)
	scripts/check-c

.PHONY: docs
docs: bootstrap ## the documentation, into .build/docs; warnings are errors
	scripts/docs

.PHONY: micro
micro: bootstrap ## the speed table, each row against its baseline (ARGS=--json for programs)
	$(SWIFT) run -c release $(BENCH) blobcache-bench micro $(ARGS)

.PHONY: checkpoints
checkpoints: bootstrap ## what checkpoints cost stores and lookups
	$(SWIFT) run -c release $(BENCH) blobcache-bench checkpoints $(ARGS)

.PHONY: threshold
threshold: bootstrap ## the measurement that chose how large a body may stand in the index
	$(SWIFT) run -c release $(BENCH) blobcache-bench threshold $(ARGS)

.PHONY: trace
trace: bootstrap ## hit ratios of access traces, ours against LRU, SIEVE, S3-FIFO, W-TinyLFU (ARGS="FILE… --json")
	$(SWIFT) run -c release $(BENCH) blobcache-bench trace $(ARGS)

.PHONY: kill-long
kill-long: bootstrap ## the kill -9 tests, some thousands of kills and stops, and one inside each step
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_KILLS=5000 scripts/swift-test 14400 .build/logs/kill.log --skip-build --filter Killed

.PHONY: histories-long
histories-long: bootstrap ## two thousand recorded histories of few keys, one and three processes: each must be linearizable
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_HISTORIES=$${BLOBCACHE_HISTORIES:-2000} scripts/swift-test 3600 .build/logs/histories.log --skip-build --filter Histories

.PHONY: power-cut-long
power-cut-long: bootstrap ## some thousands of power cuts: every write, sync and rename recorded, what a cut can lose is lost
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_CUTS=$${BLOBCACHE_CUTS:-5000} scripts/swift-test 7200 .build/logs/power-cut.log --skip-build --filter PowerCut

.PHONY: corruption-long
corruption-long: bootstrap ## some thousands of damaged files: bytes flipped, sectors torn, files cut off, swapped, taken away
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_CORRUPTIONS=$${BLOBCACHE_CORRUPTIONS:-5000} scripts/swift-test 7200 .build/logs/corruption.log --skip-build --filter 'CorruptionTests|DamagedWhileOpen'
.PHONY: calls-long
calls-long: bootstrap ## each system call of each verb fails, with each errno that it can have
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_CALLS=all scripts/swift-test 7200 .build/logs/calls.log --skip-build --filter CallsFail

.PHONY: coherence-long
coherence-long: bootstrap ## the memory tiers of three processes against a million writes
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_COHERENCE=1000000 scripts/swift-test 3600 .build/logs/coherence.log --skip-build --filter MemoryAgrees

.PHONY: accounting-long
accounting-long: bootstrap ## a million operations of three processes at a limit: du and the statistics agree
	scripts/limit 900 $(SWIFT) build --build-tests
	BLOBCACHE_OPERATIONS=1000000 scripts/swift-test 7200 .build/logs/accounting.log --skip-build --filter Accounting

.PHONY: asan
asan: bootstrap ## the tests under AddressSanitizer, leaks included
	SWIFT_BACKTRACE=enable=no scripts/swift-test 1500 .build/logs/asan.log --sanitize=address \
	  --scratch-path .build/asan -Xswiftc -use-ld=lld $(ARGS)

.PHONY: tsan
tsan: bootstrap ## a storm on the C core under ThreadSanitizer
	scripts/core-storm 60

.PHONY: fuzz
fuzz: bootstrap ## the fuzz targets, ten minutes each (ARGS="SECONDS [TARGET…]")
	scripts/fuzz $(or $(ARGS),600)

.PHONY: clean
clean: ## removes everything that was built
	rm -rf .build Benchmarks/.build Tests/Client/.build
