# Shortcuts for people; .ci/run decides whether a commit may land.

LINT       := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.14.0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
IMAGE   ?= reaper:$(VERSION)

BENCH       ?= BenchmarkTable
BENCHFLAGS  ?=
BENCHREPORT ?= $(CURDIR)/docs/benchmarks.md

# How long fuzz (each target), chaos and prove run.
FOR        ?= 10m
MATCH      ?= .
MODE       ?=
CHAOSFLAGS ?=

.PHONY: help test writers race fuzz lint bench prove mutate chaos nightly demo build image release-check release ci

test: ## every test; those that need Google's emulator skip if it is missing
	go test ./...

writers: ## test the writers in Node, Python and Java, and build their packages
	writers/check

race: ## packages in which goroutines meet, with the race detector, in random order; -cpu 1 because of golang/go#78156
	go test -race -cpu 1 -short -shuffle=on $$(awk '/^[a-z]/ {print "./" $$1}' .ci/raced)

fuzz: ## every fuzz target, each for FOR=10m; MATCH='config\.' runs only a part
	bash .ci/fuzz '$(FOR)' '$(MATCH)'

lint:
	go vet ./...
	go run $(LINT) run ./...

bench: ## everything side by side; BENCHFLAGS="-rounds 3" changes sizes, BENCH=BenchmarkTable/memory runs only a part
	go -C bench test -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 120m . -args -o "$(BENCHREPORT)" $(BENCHFLAGS)

chaos: ## real processes on Google's emulators while everything breaks: FOR=30m, MODE=datastore or native, CHAOSFLAGS="-seed 7 -build -race -logs DIR"
	EMULATOR_REQUIRED=1 go test -count 1 -v -timeout 0 -run TestChaos ./internal/chaos -args -for $(FOR) -mode '$(MODE)' $(CHAOSFLAGS)

prove: ## simulate new random lives, for FOR=10m
	@go run ./internal/sim/prove -for $(FOR)

mutate: ## put each deliberate bug into the program, and check that the simulation notices
	go run ./internal/sim/mutate

nightly: ## every test at its full size, chaos, 20,000 fresh seeds, every deliberate bug: some hours
	bash .ci/run nightly

demo: ## fill a temporary store, sweep it, show what happened
	go run ./cmd/reaper demo

build: ## bin/reaper, static, as in the image
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o bin/reaper ./cmd/reaper

image:
	docker build --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -t $(IMAGE) .

release-check: ## build in dist/ what a release of this tree would contain
	go run $(GORELEASER) check
	go run $(GORELEASER) release --snapshot --clean

release: ## a draft on GitHub, of a tagged commit and an unchanged tree
	go run $(GORELEASER) release --clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

ci:
	bash .ci/run
