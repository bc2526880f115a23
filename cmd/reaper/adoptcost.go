package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/reaper-ttl/reaper/internal/adopt"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/internal/forecast"
)

// dollarsPer returns what one operation costs in us-central1, by the table in docs/plan.md. Other locations
// have other prices.
func dollarsPer(name forecast.PriceName) float64 {
	p, _ := forecast.ProvenPrices("us-central1")
	each, _ := p.OfOne(name)
	return each
}

// announceReading says what a reading of all entities will cost, before it begins. On a
// terminal it asks whether to go on, unless it may ask nobody.
func (ad *adoption) announceReading(ctx context.Context, what string) error {
	e, err := adopt.Expect(ctx, ad.cfg)
	if err != nil {
		return cmp.Or(unfitOrder(err), err)
	}
	target, reading := ad.cfg.Target.Name, readingText(ad.Store.Driver, e)
	if !ad.onTerminal() {
		ad.log.InfoContext(ctx, "reading all entities", slog.String("target", target), slog.String("for", what),
			slog.String("expected", reading))
		return nil
	}
	fmt.Fprintf(ad.stderr, "%s reads all entities of %s: %s\n", what, target, reading)
	if ad.yes {
		return nil
	}
	return ad.confirm("go on?")
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
	return text + "; " + dollars(float64(e.Entities)*dollarsPer(forecast.Reads))
}

// dollars says what reads cost, for people.
func dollars(sum float64) string {
	if sum < 0.01 {
		return "less than $0.01 in us-central1"
	}
	return fmt.Sprintf("$%.2f in us-central1", sum)
}
