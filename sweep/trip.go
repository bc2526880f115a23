package sweep

import (
	"context"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
)

// CountTrip counts what is left of the event of a trip. It writes nothing.
func CountTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (int64, error) {
	j, err := openObserver(ctx, cfg, t)
	if err != nil {
		return 0, err
	}
	return j.CountLeft(ctx, trip)
}

// DescribeTrip finds out what an operator wants to know of a trip, if the process that tripped
// was killed before it could save that. It describes what is left, and writes nothing.
func DescribeTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (breaker.Detail, error) {
	j, err := openObserver(ctx, cfg, t)
	if err != nil {
		return breaker.Detail{}, err
	}
	return j.Describe(ctx, trip), nil
}

// openObserver returns an observer of the target's breaker.
func openObserver(ctx context.Context, cfg Config, t Target) (*spend.Observer, error) {
	cfg = cfg.withDefaults()
	cfg.Apply = false
	c := newSite(&cfg, &t)
	if err := c.Open(ctx); err != nil {
		return nil, err
	}
	return spend.Observe(c.Spending()), nil
}
