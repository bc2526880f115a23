# Habits for people; .ci/run is what decides.

LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMAGE   ?= reaper:$(VERSION)

FOR     ?= 1m

BENCH       ?= BenchmarkTable
BENCHFLAGS  ?=
BENCHREPORT ?= $(CURDIR)/docs/benchmarks.md

.PHONY: test race lint bench prove mutate demo build image ci

test: ## every test; those that need Google's emulator skip where it is missing
	go test ./...

race: ## the same with the race detector, in random order
	go test -race -shuffle=on ./...

lint:
	go vet ./...
	go run $(LINT) run ./...

bench: ## everything side by side; BENCHFLAGS="-rounds 3" changes sizes, BENCH=BenchmarkTable/memory has a part alone
	go test -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 120m ./bench -args -o "$(BENCHREPORT)" $(BENCHFLAGS)

prove: ## simulate lives that nobody has seen, for as long as FOR says
	@go run ./internal/sim/prove -for $(FOR)

mutate: ## put each deliberate bug into the program, and see that the simulation notices
	go run ./internal/sim/mutate

demo: ## fill a temporary store, sweep it, show what happened
	go run ./cmd/reaper demo

build: ## bin/reaper, static, as in the image
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/reaper ./cmd/reaper

image:
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

ci:
	bash .ci/run
