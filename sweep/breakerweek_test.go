package sweep_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A mishap is an accident in simulated time: what a target of entities with lives of a month is
// like before, and what happens to it.
type mishap struct {
	before  func(t *sweep.Target)
	exists  func(i int) time.Duration // when an entity expires, from the instant of the mishap on
	happens func(w *world, t *sweep.Target)
	rule    breaker.Rule
}

// restamps lets all entities expire some time after the mishap.
func restamps(when func(i int) time.Duration) func(*world, *sweep.Target) {
	return func(w *world, _ *sweep.Target) {
		now := time.Now()
		for i := range mishapSize {
			w.put(1, 4, fmt.Sprintf("e-%05d", i), now.Add(when(i)))
		}
	}
}

const (
	mishapSize = 600
	month      = 30 * 24 * time.Hour
)

// inTheNextMonth is when entities expire that have been written evenly over the last one.
func inTheNextMonth(i int) time.Duration {
	return 10*24*time.Hour + time.Duration(i)*month/mishapSize
}

func halfHoursAgo(i int) time.Duration { return -time.Duration(i) * time.Hour / 4 }

var mishaps = map[string]mishap{
	"everything to in a minute": {exists: inTheNextMonth, rule: breaker.Burst,
		happens: restamps(func(int) time.Duration { return time.Minute })},
	"everything to yesterday": {exists: inTheNextMonth, rule: breaker.LateOnes,
		happens: restamps(func(int) time.Duration { return -24 * time.Hour })},
	"a batch cuts lives to a day from now": {exists: inTheNextMonth, rule: breaker.Burst,
		happens: restamps(func(i int) time.Duration { return 24*time.Hour + time.Duration(i)*time.Second })},
	"a batch cuts lives to a day from when it was written": {exists: inTheNextMonth, rule: breaker.LateOnes,
		happens: restamps(func(i int) time.Duration { return -time.Duration(i) * month / mishapSize })},
	"retention taken out": {exists: halfHoursAgo, rule: breaker.NewGround,
		before:  func(t *sweep.Target) { t.Retention = 20 * 24 * time.Hour },
		happens: func(_ *world, t *sweep.Target) { t.Retention = 0 }},
	"a misspelt property corrected": {exists: halfHoursAgo, rule: breaker.NewGround,
		before:  func(t *sweep.Target) { t.Property = "expiry_kez" },
		happens: func(_ *world, t *sweep.Target) { t.Property = "expiry_key" }},
}

// TestBreakerHoldsForAWeek lets three daemons work for a part of each hour, and kills them every
// second time, while sweeps and audits run, too. Whatever happens to their target, its breaker trips, and
// nothing more is deleted for a week, although some entities come to be due each hour as ever. After
// the approval all of that goes, and the breaker stays closed.
func TestBreakerHoldsForAWeek(t *testing.T) {
	nightly.Races(t)
	shift := nightly.Size(t, 20*time.Minute, 20*time.Second)
	for name, x := range mishaps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { x.happenTo(&hours{world: newWorld(t), shift: shift}) })
		})
	}
}

// Hours are what passes in a target in which some entities come to be due each hour.
type hours struct {
	*world
	fleet   []*accountant
	shift   time.Duration
	written int
	passed  int
}

// pass lets hours pass.
func (h *hours) pass(n int) {
	for range n {
		if h.passed++; h.target.Property == "expiry_key" { // else nothing is there, by that property
			for range 5 {
				h.written++
				h.put(1, 4, fmt.Sprintf("usual-%05d", h.written), time.Now().Add(time.Hour-h.target.Retention))
			}
		}
		ends := time.Now().Add(time.Hour)
		h.work(h.passed%2 == 0)
		time.Sleep(time.Until(ends))
	}
}

// work lets three daemons work for a shift, and then kills or stops them.
func (h *hours) work(kills bool) {
	var running []*service
	for range 3 {
		a, c := &accountant{Store: h.s}, h.config()
		c.Store = a
		h.fleet, running = append(h.fleet, a), append(running, h.serve(c))
	}
	time.Sleep(h.shift)
	for i, s := range running {
		h.fleet[len(h.fleet)-len(running)+i].dead.Store(kills)
		s.stop()
	}
}

// deletedSince returns how much the daemons have deleted from an instant on.
func (h *hours) deletedSince(at time.Time) (n int64) {
	for _, a := range h.fleet {
		n += a.since(at)
	}
	return n
}

func (x mishap) happenTo(h *hours) {
	t := h.t
	h.target.Breaker, h.target.Page, h.target.Next = small, 20, everyMinute
	if x.before != nil {
		x.before(&h.target)
	}
	h.begin()
	h.pass(48)
	now := time.Now()
	for i := range mishapSize {
		h.put(1, 4, fmt.Sprintf("e-%05d", i), now.Add(x.exists(i)))
	}
	for i := range 20 {
		h.put(1, 4, fmt.Sprintf("live-%02d", i), now.Add(100*24*time.Hour))
	}
	x.happens(h.world, &h.target)
	for !h.record().Trip.IsOpen() {
		if h.pass(1); time.Since(now) > 60*time.Hour {
			t.Fatal("it does not trip within sixty hours")
		}
	}
	held, calm := h.record().Trip, time.Now()
	x.staysHeld(h)
	left, most := h.leftOfMishap(), int(small.Floor)+3*h.target.Page
	if x.rule == breaker.NewGround {
		most = 0
	}
	if n := h.deletedSince(calm); n > 0 || mishapSize-left > most || held.Rule != x.rule || h.record().Trip.ID != held.ID {
		t.Fatalf("%d of %d are gone, at most %d may be; %d went while it was held: %+v, then %+v",
			mishapSize-left, mishapSize, most, n, held, h.record().Trip)
	}
	h.approve(0)
	h.pass(50)
	if rec := h.record(); rec.Trip.IsOpen() {
		t.Errorf("after the approval it trips again: %+v", rec.Trip)
	}
	h.mustSweep()
	h.wantLive()
	t.Logf("%s trips %v after it happened; %d of %d had gone", held.Rule, held.At.Sub(now), mishapSize-left, mishapSize)
}

// staysHeld lets a week pass, with a sweep and an audit now and then.
func (x mishap) staysHeld(h *hours) {
	h.t.Helper()
	for range 7 * 4 {
		h.pass(6)
		if res := h.sweep(); res.Held != string(throttle.ReasonBreaker) || res.Deleted > 0 {
			h.t.Fatalf("%+v", res)
		}
		if res := sweep.Audit(h.t.Context(), h.config()).Targets[0]; res.Deleted > 0 || res.Error != "" {
			h.t.Fatalf("the audit: %+v", res)
		}
	}
}

// leftOfMishap counts what is left of what the mishap hit.
func (w *world) leftOfMishap() (n int) {
	for _, name := range w.left() {
		if name[:2] == "e-" {
			n++
		}
	}
	return n
}
