package adopt

import (
	"context"
	"time"
)

// NextRound returns when the next round of an adoption begins, if rounds begin so often, on
// this process's clock. It is now if there is no round yet, if the last one is not done, or if
// it was of another share or spread.
func NextRound(ctx context.Context, cfg Config, every time.Duration) (time.Time, error) {
	r, err := newRun(cfg)
	if err != nil {
		return time.Time{}, err
	}
	rec, exists, err := r.load(ctx)
	now := r.now()
	if err != nil || !exists || !r.resumes(rec) {
		return now, err
	}
	if unfinished, err := r.unfinished(ctx, rec); err != nil || unfinished {
		return now, err
	}
	return now.Add(rec.Reading.Add(every).Sub(r.target.storeNow())), nil
}
