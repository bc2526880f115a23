package sweep_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// An uncounted is a store whose COUNTs may get no answer.
type uncounted struct {
	*modelstore.Store
	mute atomic.Bool
}

func (s *uncounted) Count(ctx context.Context, t store.Target, ns string, span store.Span, upTo int64) (int64, error) {
	if s.mute.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return s.Store.Count(ctx, t, ns, span, upTo)
}

// Nothing waits for a COUNT that is for people alone.
func TestCountWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 100, throttle.Limits{Unlimited: true})
		for i := range 100 {
			p.put(0, 4, fmt.Sprint("live-", i), time.Now().Add(1000*time.Hour))
		}
		c, s := p.config(), &uncounted{Store: p.s}
		c.Store = s
		s.mute.Store(true)
		c.Progress = &sweep.Progress{Estimate: true}
		if res := sweep.Run(t.Context(), c).Targets[0]; res.Deleted != 400 || !res.Complete || res.Error != "" {
			t.Errorf("%+v", res)
		}
		for i := range 100 {
			p.put(0, 4, fmt.Sprint("late-", i), time.Now())
		}
		began := time.Now()
		res := sweep.Run(t.Context(), c).Targets[0]
		if res.Deleted != 100 || !res.Complete || res.Error != "" || time.Since(began) > 30*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), res)
		}
	})
}

// COUNTs for people hold up nothing, not even the first read of a range, which is in the
// slow lane as well.
func TestMuteCountHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fill(200, time.Hour)
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method == "Count" {
				<-ctx.Done()
				return ctx.Err()
			}
			return w.trace(ctx, c)
		}
		cfg := w.config()
		cfg.Workers, cfg.Progress = 2, &sweep.Progress{Estimate: true}
		began := time.Now()
		var last time.Time
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" {
				last = time.Now()
			}
			return nil
		}
		res := sweep.Run(t.Context(), cfg).Targets[0]
		if !res.Complete || res.Error != "" || res.Deleted == 0 || last.Sub(began) > 15*time.Second {
			t.Errorf("the last delete came after %v: %+v", last.Sub(began), res)
		}
	})
}
