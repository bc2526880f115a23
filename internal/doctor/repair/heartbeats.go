package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// runBefore is how long before the last heartbeat of a process its run may have begun.
const runBefore = 24 * time.Hour

// removeHeartbeats removes the heartbeats of dead processes from the targets.
func (r *run) removeHeartbeats(ctx context.Context) error {
	return each(r, r.Sweep.Targets, func(t sweep.Target) (string, error) { return t.Name, r.removeHeartbeatsOf(ctx, t) })
}

func (r *run) removeHeartbeatsOf(ctx context.Context, t sweep.Target) error {
	beats, now, err := cursor.LoadHeartbeats(ctx, r.records, t.Name, nil, r.Sweep.Now)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(beats)) {
		h := beats[key]
		why, dead := r.judgeHeartbeat(h, now)
		if !dead {
			r.leave(Left{Target: t.Name, Record: string(store.WorkerRecord), Key: key, Why: why})
			continue
		}
		c := r.change(Change{Target: t.Name, Action: Remove, Record: string(store.WorkerRecord), Key: key,
			Evidence: []string{why}})
		if !r.Apply {
			continue
		}
		if c.Done, err = r.bury(ctx, t, h); err != nil {
			return err
		}
		if c.Done == 0 {
			r.leave(Left{Target: t.Name, Record: string(store.WorkerRecord), Key: key,
				Why: "it was written or removed meanwhile: its process lives, or another one has removed it"})
		}
	}
	return nil
}

// judgeHeartbeat says whether the process of a heartbeat is dead, and how that is known.
func (r *run) judgeHeartbeat(h cursor.Heartbeat, now time.Time) (why string, dead bool) {
	if h.Invalid != nil {
		return "it makes no sense, so nobody can tell how old it is: " + h.Invalid.Error(), false
	}
	heard := "last heard of at " + ago(now, h.Renewed)
	if e, ok := r.Sweep.Store.(store.Exclusive); ok && !strings.HasPrefix(h.Owner, e.Opening()+"/") {
		return heard + ", by an earlier opening of this directory, which one process at a time can have open", true
	}
	if most := silence(h, r.OlderThan); now.Sub(h.Renewed) <= most {
		return fmt.Sprintf("%s, not longer ago than %v: it may live", heard, most), false
	}
	return heard, true
}

// silence returns how long nothing must have been heard of a process that counts as dead.
func silence(h cursor.Heartbeat, olderThan time.Duration) time.Duration {
	if olderThan == 0 {
		olderThan = DefaultSilent
	}
	return max(olderThan, 2*h.Lease, 2*cursor.IdleBeat)
}

// bury removes one heartbeat, unless it has changed, and returns how many it has removed. The runs
// of its process are marked as lost first, as by a sweep: after that nobody would look for them.
func (r *run) bury(ctx context.Context, t sweep.Target, h cursor.Heartbeat) (removed int, err error) {
	is, found, _, err := r.records.raw(ctx, store.WorkerRecord, t.Name, h.Key())
	if err != nil || !found || is.Revision != h.Revision {
		return 0, err
	}
	if _, err := history.MarkLost(ctx, r.records, t.Name, h.Owner, h.Renewed.Add(-runBefore)); err != nil {
		return 0, fmt.Errorf("mark the runs of %s: %w", h.Owner, err)
	}
	err = r.records.remove(ctx, store.WorkerRecord, t.Name, h.Key(), h.Revision)
	if errors.Is(err, store.ErrConflict) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return 1, nil
}
