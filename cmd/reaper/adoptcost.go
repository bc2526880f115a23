package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
)

// dollarsPerRead is the price in us-central1 (billing catalogue, September 2026); see
// docs/costs.md. Other locations have other prices.
const dollarsPerRead = 0.03 / 100_000

// announceReading says what a reading of all entities will cost, before it begins. On a
// terminal it asks whether to go on, unless yes.
func (a *app) announceReading(ctx context.Context, s *session, cfg adopt.Config, what string, yes bool) error {
	e, err := adopt.Expect(ctx, cfg)
	if err != nil {
		return cmp.Or(unfitOrder(err), err)
	}
	if !a.onTerminal() {
		s.log.InfoContext(ctx, "reading all entities", slog.String("target", cfg.Target.Name), slog.String("for", what),
			slog.String("expected", readingText(s.Store.Driver, e)))
		return nil
	}
	fmt.Fprintf(a.stderr, "%s reads all entities of %s: %s\n", what, cfg.Target.Name, readingText(s.Store.Driver, e))
	if yes {
		return nil
	}
	return a.confirm("go on?")
}

// readingText says how many reads are expected, and what they cost.
func readingText(driver config.Driver, e adopt.Expectation) string {
	if e.Source == "" {
		return "how many is not known; each costs a read"
	}
	about := "about"
	if e.AtLeast {
		about = "at least"
	}
	text := fmt.Sprintf("%s %s reads, by %s", about, grouped(e.Entities), e.Source)
	if driver == config.Embedded {
		return text
	}
	return text + "; " + dollars(float64(e.Entities)*dollarsPerRead)
}

// dollars says what reads cost, for people.
func dollars(sum float64) string {
	if sum < 0.01 {
		return "less than $0.01 in us-central1"
	}
	return fmt.Sprintf("$%.2f in us-central1", sum)
}
