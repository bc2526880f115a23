package sweep_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/sweep"
)

// What is due on ground that was never swept is counted in the namespaces of all deployments
// that the record names: a process that settles it does so for all of them.
func TestGroundOfAllDeployments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		now := time.Now()
		for i := range 300 {
			w.putIn("eu", 1, 4, fmt.Sprint("there-", i), now.Add(-time.Duration(i)*10*time.Minute))
		}
		w.put(1, 4, "here", now)
		time.Sleep(time.Minute)
		w.target.Namespaces = []string{"eu"} // its deployment has not swept yet
		_, err := control.Change(t.Context(), w.config(), w.target, func(r *generation.Record) { r.PaceMax.Set = false })
		if err != nil || !w.record().Sweeps([]string{"eu"}, now) {
			t.Fatalf("%+v, %v", w.record(), err)
		}
		for _, namespace := range []string{"", "eu"} {
			w.target.Namespaces = []string{namespace}
			w.sweep()
		}
		if rec, left := w.record(), len(w.s.Entities("Session", "eu")); rec.Trip.Rule != breaker.NewGround || left < 300 {
			t.Errorf("%d of 300 are left: %+v", left, rec.Trip)
		}
	})
}

// What lies in generations that have retired is late in the namespaces of all deployments.
func TestStraysOfAllDeployments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.s.Before = nil
		e.target.Breaker = small
		e.target.Namespaces = []string{"", "eu"}
		e.mustSweep()
		e.runFor(6 * time.Hour)
		if r := e.record(); r.Generations[0].Number < 2 {
			t.Fatalf("generations: %s", e.states())
		}
		now := time.Now()
		for i := range 480 { // more than two thirds of all
			e.putIn("", 0, 4, fmt.Sprint("long-", i), now.Add(1000*time.Hour))
		}
		for i := range 120 {
			e.putIn("", 1, 4, fmt.Sprint("here-", i), now.Add(-3*time.Hour))
			e.putIn("eu", 1, 4, fmt.Sprint("there-", i), now.Add(-3*time.Hour))
		}
		e.target.Namespaces = []string{""}
		sweep.Audit(t.Context(), e.config())
		trip := e.record().Trip
		if gone := 600 - len(e.s.Entities("Session", "")); gone > int(small.Floor) || trip.Rule != breaker.LateOnes || trip.Due < 140 {
			t.Errorf("%d of 240 are gone: %+v", gone, trip)
		}
	})
}
