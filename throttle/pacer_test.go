package throttle_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
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

// await takes n tokens as soon as they are there, and returns how long that took
// and what it waited for at last.
func await(p *throttle.Pacer, n int) (waited time.Duration, why throttle.Reason) {
	for {
		wait, reason := p.Take(n)
		if wait == 0 {
			return waited, why
		}
		time.Sleep(wait)
		waited, why = waited+wait, reason
	}
}

func TestPacerSaysHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
		began := time.Now()
		for range 10 {
			if waited, why := await(p, 100); why != throttle.ReasonMax || waited != time.Second {
				t.Errorf("waited %v for %q", waited, why)
			}
		}
		if got := time.Since(began); got != 10*time.Second {
			t.Errorf("1000 entities at 100/s took %v", got)
		}
		free := throttle.Open(time.Now, throttle.Limits{Unlimited: true}, throttle.State{}, 500)
		if wait, why := free.Take(500); wait != 0 || why != "" {
			t.Errorf("unlimited waits %v for %q", wait, why)
		}
	})
}

// A caller that asks again after a change gets the new limits, and learns what it waits for.
func TestChangesCountAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 1, Max: 1}, throttle.State{}, 500)
		ask := func(d time.Duration, reason throttle.Reason, f func()) {
			t.Helper()
			time.Sleep(d)
			if wait, why := p.Take(400); wait <= 0 || why != reason {
				t.Errorf("wait %v for %q, want %q", wait, why, reason)
			}
			if n, wait, why := p.Ready(400); n != 0 || wait <= 0 || why != reason {
				t.Errorf("%d are ready in %v for %q, want %q", n, wait, why, reason)
			}
			f()
		}
		ask(500*time.Millisecond, throttle.ReasonMax, func() { p.Hold(throttle.ReasonPaused) })
		ask(time.Hour, throttle.ReasonPaused, func() { p.Hold("") })
		ask(100*time.Millisecond, throttle.ReasonMax, func() {
			p.SetTotal(throttle.Share{PerSecond: 0.001, Burst: 1, Until: time.Now().Add(time.Hour)})
		})
		ask(time.Minute, throttle.ReasonTotal, func() { p.SetTotal(throttle.Share{Unlimited: true}) })
		ask(100*time.Millisecond, throttle.ReasonMax, func() { p.SetLimits(throttle.Limits{Unlimited: true}) })
		if wait, why := p.Take(400); wait != 0 || why != "" {
			t.Errorf("without a limit: wait %v for %q", wait, why)
		}
		if s := p.Status(); !s.Unlimited || s.Rate != 0 || s.Reason != "" {
			t.Errorf("%+v without a limit", s)
		}
	})
}

func TestPushBackCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
		began := time.Now()
		p.Take(50)
		time.Sleep(400 * time.Millisecond)
		if !p.PushBack(throttle.ReasonPushBack) || p.PushBack(throttle.ReasonPushBack) {
			t.Error("two calls should halve once")
		}
		if _, why := await(p, 50); why != throttle.ReasonPushBack {
			t.Errorf("waited for %q", why)
		}
		// 40 tokens are there, and 10 more come at 50/s, a little faster each moment.
		if got := time.Since(began).Round(time.Millisecond); got != 600*time.Millisecond {
			t.Errorf("got its tokens after %v", got)
		}
		if s := p.State(); s.Rate < 50 || s.Rate > 50.1 || s.Used.IsZero() {
			t.Errorf("kept %+v", s)
		}
	})
}

func TestSlowPagesPushBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Open(time.Now, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
		for range 9 {
			p.Latency(10, time.Millisecond)
		}
		time.Sleep(time.Minute)
		halved := []bool{p.Latency(10, time.Second), p.Latency(10, time.Second), p.Latency(10, time.Second)}
		if !slices.Equal(halved, []bool{false, false, true}) {
			t.Error("the third slow page in a row should halve the rate")
		}
		if s := p.Status(); s.Reason != throttle.ReasonLatency || s.Rate > 51 {
			t.Errorf("%+v", s)
		}
	})
}

// Any goroutine may change the limits while another one asks.
func TestPacerIsLocked(t *testing.T) {
	p := throttle.Open(time.Now, throttle.Limits{Start: 1e6, Max: 1e6}, throttle.State{}, 500)
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for i := range 500 {
				p.SetLimits(throttle.Limits{Start: 1e6, Max: float64(1e6 + i)})
				p.Hold("")
				p.SetTotal(throttle.Share{Unlimited: true})
				p.Status()
				p.State()
			}
		})
	}
	for range 2000 {
		if n, _, _ := p.Ready(500); n > 0 {
			p.Take(n)
		}
	}
	others.Wait()
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := throttle.Sleep(ctx, time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		err := throttle.Sleep(ctx, time.Hour)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Ready says how much may be read, and takes nothing.
func TestReady(t *testing.T) {
	hundred := throttle.Limits{Start: 100, Max: 100}
	second := func(n float64) time.Time { return start.Add(time.Duration(n * float64(time.Second))) }
	for _, c := range []struct {
		name   string
		limits throttle.Limits
		change func(*throttle.Pace)
		at     float64 // seconds
		most   int
		n      int
		wait   time.Duration
	}{
		{"an empty bucket waits for half a burst", hundred, nil, 0, 500, 0, 500 * time.Millisecond},
		{"less than half a burst", hundred, nil, 0.3, 500, 0, 200 * time.Millisecond},
		{"half a burst", hundred, nil, 0.5, 500, 50, 0},
		{"more than half a burst", hundred, nil, 0.75, 500, 75, 0},
		{"a full bucket", hundred, nil, 60, 500, 100, 0},
		{"a burst is at most a page", throttle.Limits{Start: 5000, Max: 5000}, nil, 60, 1000, 500, 0},
		{"fewer wanted than half a burst", hundred, nil, 0.1, 10, 10, 0},
		{"no more than wanted", hundred, nil, 60, 10, 10, 0},
		{"half of the few that are wanted", hundred, nil, 0.05, 10, 5, 0},
		{"one token is a burst at a slow pace", throttle.Limits{Start: 0.5, Max: 0.5}, nil, 0, 500, 0, 2 * time.Second},
		{"one entity", throttle.Limits{Start: 0.5, Max: 0.5}, nil, 2, 500, 1, 0},
		{"unlimited", throttle.Limits{Unlimited: true}, nil, 0, 500, 500, 0},
		{"held", hundred, func(p *throttle.Pace) {
			p.Hold(start, throttle.ReasonGate)
		}, 60, 500, 0, time.Second},
		{"nothing is granted", throttle.Limits{}, nil, 60, 500, 0, time.Second},
		{"the share", hundred, func(p *throttle.Pace) {
			p.SetTotal(start, throttle.Share{PerSecond: 10, Burst: 10, Until: second(100)})
		}, 0, 500, 0, 500 * time.Millisecond},
		{"what the share's burst holds", hundred, func(p *throttle.Pace) {
			p.SetTotal(start, throttle.Share{PerSecond: 10, Burst: 4, Until: second(100)})
		}, 60, 500, 4, 0},
		{"a share that lapsed", hundred, func(p *throttle.Pace) {
			p.SetTotal(start, throttle.Share{PerSecond: 10, Burst: 10, Until: second(1)})
		}, 60, 500, 0, time.Second},
	} {
		p := throttle.NewPace(start, c.limits, throttle.State{}, 500)
		if c.change != nil {
			c.change(p)
		}
		for range 2 { // it takes nothing
			n, wait := p.Ready(second(c.at), c.most)
			if n != c.n || wait.Round(time.Microsecond) != c.wait {
				t.Errorf("%s: %d in %v, want %d in %v", c.name, n, wait, c.n, c.wait)
			}
		}
		if c.n > 0 {
			if wait := p.Take(second(c.at), c.n); wait != 0 {
				t.Errorf("%s: what was ready comes in %v", c.name, wait)
			}
		}
	}
}

// A bucket that is asked for what it does not hold counts as waited for, and the
// rate grows meanwhile; one that nobody asks for does not grow.
func TestReadyCountsAsWaiting(t *testing.T) {
	limits := throttle.Limits{Start: 100, Max: 1000}
	wanted := throttle.NewPace(start, limits, throttle.State{}, 500)
	idle := throttle.NewPace(start, limits, throttle.State{}, 500)
	now := start
	granted := 0
	for now.Before(start.Add(5 * time.Minute)) {
		n, wait := wanted.Ready(now, 500)
		if n > 0 {
			wait = max(wait, wanted.Take(now, n))
			granted += n
		}
		now = now.Add(max(wait, time.Microsecond))
	}
	if rate := wanted.Rate(now); math.Abs(rate-150) > 1 {
		t.Errorf("%.1f/s after five minutes of waiting, want 150", rate)
	}
	if granted < 35_000 || granted > 38_000 { // the integral of the rate
		t.Errorf("%d granted", granted)
	}
	if rate := idle.Rate(now); rate != 100 {
		t.Errorf("%.1f/s where nobody asked", rate)
	}
}

// Ready and Take agree, whatever the pace: what is ready can be taken, and after the
// wait something is ready.
func TestReadyAgreesWithTake(t *testing.T) {
	for _, rate := range []float64{0.01, 0.3, 1, 1.5, 2, 3, 7, 99.9, 500, 12345} {
		p := throttle.NewPace(start, throttle.Limits{Start: rate, Max: rate}, throttle.State{}, 500)
		now := start
		for range 200 {
			n, wait := p.Ready(now, 500)
			if n == 0 {
				now = now.Add(wait)
				if n, wait = p.Ready(now, 500); n == 0 || wait != 0 {
					t.Fatalf("%v/s: after the wait %d are ready, in %v", rate, n, wait)
				}
			}
			if wait := p.Take(now, n); wait != 0 {
				t.Fatalf("%v/s: %d were ready, and come in %v", rate, n, wait)
			}
		}
	}
}

// A bucket whose next token is far off counts as wanted until that is there: none would drip in without a part of the
// total.
func TestWantsWhileItWaits(t *testing.T) {
	p := throttle.NewPace(start, throttle.Limits{Start: 1.0 / 1800, Max: 1.0 / 1800}, throttle.State{}, 500)
	_, wait := p.Ready(start, 1)
	for at := start; at.Before(start.Add(wait)); at = at.Add(time.Minute) {
		if !p.Wants(at) {
			t.Fatalf("of %v it no longer waits after %v", wait, at.Sub(start))
		}
	}
	if wait < 20*time.Minute || p.Wants(start.Add(wait+11*time.Minute)) {
		t.Errorf("it waits for %v, and wants tokens long after that", wait)
	}
}

// A share that has lapsed grants nothing, and the bucket keeps what it has until the share is renewed or taken away.
func TestLapsedShare(t *testing.T) {
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	for name, c := range map[string]struct {
		then throttle.Share
		want time.Duration
	}{
		"renewed":    {throttle.Share{PerSecond: 10, Burst: 10, Until: second(30)}, 0},
		"smaller":    {throttle.Share{PerSecond: 5, Burst: 5, Until: second(30)}, 0}, // a full bucket is enough
		"taken away": {throttle.Share{Until: second(8)}, time.Second},
	} {
		p := throttle.NewPace(start, throttle.Limits{Start: 100, Max: 100}, throttle.State{}, 500)
		p.SetTotal(start, throttle.Share{PerSecond: 10, Burst: 10, Until: second(5)})
		if p.Lapsed(second(4)) || !p.Lapsed(second(8)) || p.Burst(second(8), 500) != 10 || p.Take(second(8), 1) != time.Second {
			t.Errorf("%s: it grants something once it has lapsed", name)
		}
		p.SetTotal(second(8), c.then)
		if wait := p.Take(second(8), 10); wait != c.want {
			t.Errorf("%s: it waits for %v, want %v", name, wait, c.want)
		}
	}
}
