package adopt

import (
	"context"
	"errors"
	"fmt"

	"github.com/reaper-ttl/reaper/store"
)

var errStop = errors.New("stopped")

// A reading is that of all keys by a record. It does not change, unlike the record in the store.
type reading struct {
	job    *job
	record Record
}

// query returns the walk of a part from behind a key.
func (r *reading) query(part int, after string) store.WalkQuery {
	q := r.job.query(r.record.Parts[part].Namespace)
	q.After, q.Until = after, r.record.Parts[part].Until
	return q
}

// peek reads the first rows of some parts, which are spread over all of them.
func (r *reading) peek(ctx context.Context, parts, rows int, look func(namespace string, rows []store.Row)) error {
	var read store.Rows
	for i := 0; i < len(r.record.Parts); i += max(1, len(r.record.Parts)/parts) {
		q := r.query(i, r.record.after(i))
		q.Limit = rows
		if err := store.Retry(ctx, savePatience, func() error { return r.job.adopter.Walk(ctx, q, &read) }); err != nil {
			return err
		}
		look(q.Namespace, read.List)
	}
	return nil
}

// over says why this run stops, by the adoption's record as it is now. It is nil as long as that is of
// the same reading.
func (r *reading) over(now Record, exists bool) error {
	var why string
	switch {
	case !exists:
		why = "was undone"
	case now.isReading(r.record):
		return nil
	case now.Phase == Undoing:
		why = "is being undone"
	case now.Phase == Finished:
		why = "was finished"
	default:
		return fmt.Errorf("%w: another process has begun round %d of target %s", errStop, now.Round().Number,
			r.job.cfg.Target.Name)
	}
	return fmt.Errorf("%w: the adoption of target %s %s", errStop, r.job.cfg.Target.Name, why)
}

// isFollowedBy reports whether a record is of the round after this run's, with the same settings:
// another process has begun it because all parts of this one were done.
func (r *reading) isFollowedBy(now Record) bool {
	return r.job.cfg.Order == Stamp && now.Began.Equal(r.record.Began) &&
		now.Round().Number == r.record.Round().Number+1 && r.job.resumes(now)
}
