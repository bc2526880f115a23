package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/throttle"
)

type grant struct {
	at    time.Time
	n     int
	burst float64
}

// await waits, and returns how long it did and what for at last.
func await(ctx context.Context, p *throttle.Pacer, n int) (waited time.Duration, why throttle.Reason, err error) {
	err = p.Await(ctx, n, func(r throttle.Reason, d time.Duration) {
		waited += d
		why = r
	})
	return waited, why, err
}

func TestPacerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
		began := time.Now()
		for range 10 {
			waited, why, err := await(t.Context(), p, 100)
			if err != nil || why != throttle.ReasonMax || waited != time.Second {
				t.Errorf("waited %v for %q, %v", waited, why, err)
			}
		}
		if got := time.Since(began); got != 10*time.Second {
			t.Errorf("1000 entities at 100/s took %v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := await(ctx, p, 100); !errors.Is(err, context.Canceled) {
			t.Errorf("wait of a cancelled context: %v", err)
		}
		free := throttle.Open(time.Now, throttle.Limits{Unlimited: true}, throttle.State{}, 500)
		if waited, why, err := await(t.Context(), free, 500); waited != 0 || why != "" || err != nil {
			t.Errorf("unlimited waited %v for %q, %v", waited, why, err)
		}
	})
}

// Whoever waits follows a change by another goroutine at once, and learns what
// it waited for.
func TestAWaitFollowsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 1, Max: 1}, throttle.State{}, 500)
		began := time.Now()
		waited := map[throttle.Reason]time.Duration{}
		done := make(chan error, 1)
		go func() {
			done <- p.Await(t.Context(), 400, func(r throttle.Reason, d time.Duration) { waited[r] += d })
		}()
		step := func(d time.Duration, reason throttle.Reason, f func()) {
			time.Sleep(d)
			synctest.Wait()
			if s := p.Status(); !s.Waiting || s.Reason != reason {
				t.Errorf("%+v, want to wait for %q", s, reason)
			}
			f()
			synctest.Wait()
		}
		// Each of the tokens is a debt, or the first one would do.
		step(500*time.Millisecond, throttle.ReasonMax, func() { p.Hold(throttle.ReasonPaused) })
		step(time.Hour, throttle.ReasonPaused, func() { p.Hold("") })
		step(100*time.Millisecond, throttle.ReasonMax, func() {
			p.SetTotal(throttle.Share{PerSecond: 0.001, Burst: 1, Until: time.Now().Add(time.Hour)})
		})
		step(time.Minute, throttle.ReasonTotal, func() { p.SetTotal(throttle.Share{Unlimited: true}) })
		step(100*time.Millisecond, throttle.ReasonMax, func() { p.SetLimits(throttle.Limits{Unlimited: true}) })
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := map[throttle.Reason]time.Duration{throttle.ReasonMax: 700 * time.Millisecond, throttle.ReasonPaused: time.Hour, throttle.ReasonTotal: time.Minute}
		if fmt.Sprint(waited) != fmt.Sprint(want) || time.Since(began) != time.Hour+time.Minute+700*time.Millisecond {
			t.Errorf("waited %v in %v, want %v", waited, time.Since(began), want)
		}
		if s := p.Status(); s.Waiting || !s.Unlimited || s.Rate != 0 {
			t.Errorf("%+v after the wait", s)
		}
	})
}

func TestPushBackReachesAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
		began := time.Now()
		done := make(chan time.Duration, 1)
		go func() {
			if _, why, err := await(t.Context(), p, 50); err != nil || why != throttle.ReasonPushBack {
				t.Errorf("%q, %v", why, err)
			}
			done <- time.Since(began)
		}()
		time.Sleep(400 * time.Millisecond)
		if !p.PushBack(throttle.ReasonPushBack) || p.PushBack(throttle.ReasonPushBack) {
			t.Error("two calls should halve once")
		}
		// 40 tokens are there, and 10 more come at 50/s, a little faster each moment.
		if got := (<-done).Round(time.Millisecond); got != 600*time.Millisecond {
			t.Errorf("got its tokens after %v", got)
		}
		if s := p.State(); s.Rate < 50 || s.Rate > 50.1 || s.Used.IsZero() {
			t.Errorf("kept %+v", s)
		}
	})
}
