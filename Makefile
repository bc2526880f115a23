# Habits for people; .ci/run is what decides.

LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMAGE   ?= reaper:$(VERSION)

.PHONY: test race lint bench demo build image ci

test: ## every test; those that need Google's emulator skip where it is missing
	go test ./...

race: ## the same with the race detector, in random order
	go test -race -shuffle=on ./...

lint:
	go vet ./...
	go run $(LINT) run ./...

bench: ## one table with ratios, from one run
	go test -run '^$$' -bench BenchmarkTable -benchtime 1x -timeout 60m ./bench -args -o "$(CURDIR)/docs/benchmarks.md"

demo: ## fill a temporary store, sweep it, show what happened
	go run ./cmd/reaper demo

build: ## bin/reaper, static, as in the image
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/reaper ./cmd/reaper

image:
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

ci:
	bash .ci/run
