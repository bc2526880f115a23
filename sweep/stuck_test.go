package sweep_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// Others hold entities in transactions for good, and the store takes its time to say so. A
// sweep that waits for nothing else ends, and says that it is not complete.
func TestEndsThoughEntitiesStayLocked(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.touch()
		time.Sleep(time.Minute)
		for shard := range 4 {
			w.dueIn(1, shard, fmt.Sprint("locked-", shard), time.Now().Add(-time.Hour)) // behind the cursor
		}
		w.s.Before = lockedFor(5 * time.Second)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began, cfg := time.Now(), w.config()
		cfg.FromStart = true
		res := sweep.Run(ctx, cfg).Targets[0]
		if took := time.Since(began); took > 10*time.Minute || res.Complete || res.Incomplete != 4 {
			t.Errorf("after %v: %+v", took, res)
		}
	})
}

// The same of an audit.
func TestAuditEndsThoughAStrayStaysLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		e.runFor(3 * time.Hour)
		e.s.Before = lockedFor(5 * time.Second)
		e.stamped(1, 4, "locked", time.Now().Add(-time.Minute))
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began := time.Now()
		res := sweep.Audit(ctx, e.config()).Targets[0]
		if took := time.Since(began); took > 10*time.Minute || res.Complete || res.Error != "" {
			t.Errorf("after %v: %+v", took, res)
		}
	})
}

// lockedFor fails each write of an entity whose name begins so, after some time.
func lockedFor(d time.Duration) func(context.Context, modelstore.Call) error {
	return func(ctx context.Context, c modelstore.Call) error {
		for _, op := range c.Ops {
			if strings.HasPrefix(op.Entry.Key, `"locked`) {
				_ = throttle.Sleep(ctx, d)
				return fmt.Errorf("somebody holds it: %w", store.ErrContention)
			}
		}
		return nil
	}
}
