package sweep_test

import (
	"context"
	"fmt"
	"strings"
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

// If a target has limits, deletes wait for the first COUNT that gets an answer; after that
// they use the last answer. Without limits nothing waits for a COUNT.
func TestCountWithoutAnswer(t *testing.T) {
	newMute := func(t *testing.T, fraction float64) (*paced, *uncounted, sweep.Config) {
		p := newPaced(t, 100, throttle.Limits{Unlimited: true})
		for i := range 100 {
			p.put(0, 4, fmt.Sprint("live-", i), time.Now().Add(1000*time.Hour))
		}
		p.target.MaxFraction = fraction
		c, s := p.config(), &uncounted{Store: p.s}
		c.Store = s
		s.mute.Store(true)
		return p, s, c
	}
	t.Run("one sweep", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, s, c := newMute(t, 0.9)
			res := sweep.Run(t.Context(), c).Targets[0]
			if res.Deleted > 0 || len(p.left()) != 500 || res.Complete || res.Held != string(throttle.ReasonLimit) ||
				!strings.Contains(res.Error, "count what is due") {
				t.Errorf("%+v", res)
			}
			s.mute.Store(false)
			if res = sweep.Run(t.Context(), c).Targets[0]; res.Deleted != 400 || !res.Complete || res.Error != "" {
				t.Errorf("with an answer: %+v", res)
			}
		})
	})
	t.Run("a daemon", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, s, c := newMute(t, 0.9)
			d := p.serve(c)
			for range 10 {
				time.Sleep(time.Minute)
				if st := d.state(); st.Held != throttle.ReasonLimit || st.Deleted > 0 {
					t.Errorf("without any answer: %+v", st)
				}
			}
			s.mute.Store(false)
			time.Sleep(3 * time.Minute)
			if st := d.state(); st.Deleted != 400 || st.Held != "" || st.Err != "" {
				t.Errorf("with an answer: %+v", st)
			}
			failed := d.sweeps("failed")
			s.mute.Store(true)
			for i := range 100 {
				p.put(0, 4, fmt.Sprint("late-", i), time.Now())
			}
			time.Sleep(3 * time.Minute)
			if st := d.state(); st.Deleted != 500 || st.Err != "" {
				t.Errorf("by the last answer: %+v", st)
			}
			if n := d.sweeps("failed"); n > failed {
				t.Errorf("%d sweeps failed by the last answer", n-failed)
			}
		})
	})
	t.Run("without limits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, _, c := newMute(t, 0)
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
	})
}

// Entities that become due during a COUNT, or after it, are deleted in the same tick as
// long as the target's limit allows it: the count is not the limit.
func TestDueAfterTheCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, 10, throttle.Limits{Unlimited: true})
		p.target.MaxFraction = 0.5
		for i := range 1000 {
			p.put(0, 4, fmt.Sprint("live-", i), time.Now().Add(1000*time.Hour))
		}
		for i := range 1200 {
			at := time.Now().Add(time.Duration(i) * 100 * time.Millisecond)
			p.put(0, 4, fmt.Sprint("due-", i), at.Add(time.Second))
		}
		c := p.config()
		c.Store = &slowlyCounted{p.s}
		d := p.serve(c)
		time.Sleep(2*time.Minute + 10*time.Second)
		if st := d.state(); st.Deleted != 1240 || st.Err != "" || d.sweeps("failed") > 0 {
			t.Errorf("%d failed sweeps: %+v", d.sweeps("failed"), st)
		}
	})
}

// A slowlyCounted is a store whose COUNTs take their time.
type slowlyCounted struct{ *modelstore.Store }

func (s *slowlyCounted) Count(
	ctx context.Context, t store.Target, ns string, span store.Span, upTo int64,
) (int64, error) {
	n, err := s.Store.Count(ctx, t, ns, span, upTo)
	if err := throttle.Sleep(ctx, 300*time.Millisecond); err != nil {
		return 0, err
	}
	return n, err
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
