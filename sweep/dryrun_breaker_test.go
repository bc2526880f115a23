package sweep_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A dry run foretells an event that lies behind more than it reads.
func TestDryRunForeseesBehindABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 3000)
		time.Sleep(80 * time.Hour) // 28 hours of a backlog
		at := time.Now().Add(-10 * time.Hour)
		for i := range 1500 {
			w.put(1, 4, fmt.Sprint("event-", i), at)
		}
		f := w.dryRun(asIs).WouldTrip
		res := w.sweep()
		if trip := w.record().Trip; !trip.IsOpen() || f == nil || f.Rule != trip.Rule || !f.Hour.Equal(trip.Hour) {
			t.Errorf("it foresees %+v; the trip is %+v, %+v", f, trip, res)
		}
	})
}

// A dry run does not foretell a burst where a sweep would only learn.
func TestDryRunOfATargetThatLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		if err != nil {
			t.Fatal(err)
		}
		w.remove(store.BudgetRecord, b.Revision) // as after an upgrade
		w.restamp(time.Now())
		time.Sleep(time.Second)
		f := w.dryRun(asIs).WouldTrip
		w.sweep()
		if trip := w.record().Trip; trip.IsOpen() != (f != nil) {
			t.Errorf("it foresees %+v; the trip is %+v", f, trip)
		}
	})
}

// A dry run foretells as far as it can count.
func TestDryRunForeseesWhatTakesLongToCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1500)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		cfg := w.config()
		cfg.Apply, cfg.Store = false, &slowCounter{Store: w.s}
		if f := sweep.Run(t.Context(), cfg).Targets[0].WouldTrip; f == nil || f.Rule != breaker.Burst {
			t.Errorf("it foresees %+v", f)
		}
	})
}
