package adopt

import (
	"context"
	"time"
)

// NextRound returns when the next round of an adoption begins, if rounds begin so often, on
// this process's clock. It is now if there is no round yet, if the last one is not done, or if
// it was of another share or spread.
func NextRound(ctx context.Context, cfg Config, every time.Duration) (time.Time, error) {
	p, err := newPlanner(cfg)
	if err != nil {
		return time.Time{}, err
	}
	err = p.view.refresh(ctx)
	now := p.job.now()
	rec, exists := p.view.adoption()
	if err != nil || !exists || !p.job.resumes(rec) {
		return now, err
	}
	if unfinished, err := unfinished(ctx, p.job.store, rec); err != nil || unfinished {
		return now, err
	}
	return now.Add(rec.Reading.Add(every).Sub(p.view.storeNow())), nil
}
