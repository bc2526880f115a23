package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/chronicle"
)

// endOf returns why one sweep ended.
func endOf(ctx context.Context, res TargetResult) history.End {
	if res.Error != "" {
		return history.Failed
	}
	end, isHeld := chronicle.HeldEnd(res.Held)
	switch {
	case isHeld:
		return end
	case res.Complete && res.Expired+res.Carried+res.Strays == 0:
		return history.Idle
	case res.Complete:
		return history.Done
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return history.Signal
	}
	return history.Deadline
}

// RecordHistory writes to the history that this process has changed a target. It does nothing
// for a target without history.
func RecordHistory(ctx context.Context, cfg Config, t Target, at time.Time, kind history.Kind, c history.Change,
) error {
	cfg.Apply = true
	cfg = cfg.withDefaults()
	if err := newSite(&cfg, &t).Story.Record(ctx, at, kind, c); err != nil {
		return fmt.Errorf("the change was made, but is not in the history: %w", err)
	}
	return nil
}
