package sweep_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/sweep"
)

// Nothing that is usual trips the breaker: generations that close, drain and retire, reads from
// the start, stragglers, a second process, an outage that is longer than entities live, another
// number of shards, and a retention that is made longer.
func TestOrdinaryDaysNeverTrip(t *testing.T) {
	nightly.Races(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.target.Policy = hourly
		w.target.Rewind = 6 * time.Hour
		w.begin()
		for round := range 36 * 4 { // a quarter of an hour each
			rec := w.record()
			newest, shards := rec.Generations[len(rec.Generations)-1].Number, rec.Generations[len(rec.Generations)-1].Shards
			for i := range 75 { // 300 in an hour, of 1,500
				in := 5*time.Hour + time.Duration(i)*12*time.Second
				if i == 0 {
					in = -time.Minute // a straggler
				}
				w.put(newest, shards, fmt.Sprintf("e-%d-%d", round, i), time.Now().Add(in))
			}
			switch {
			case round >= 60 && round < 90: // an outage
			case round >= 30 && round < 50:
				for _, res := range w.together(2) {
					if res.Error != "" {
						t.Fatalf("%+v", res)
					}
				}
			default:
				if res := w.sweep(); res.Error != "" || res.Held != "" {
					t.Fatalf("round %d: %+v", round, res)
				}
			}
			if round == 100 {
				w.target.Shards = 6
			}
			if round == 120 {
				w.target.Retention = time.Hour
			}
			if trip := w.record().Trip; trip.IsOpen() {
				t.Fatalf("round %d: %+v", round, trip)
			}
			time.Sleep(15 * time.Minute)
		}
		time.Sleep(7 * time.Hour)
		for range 2 {
			if res := w.sweep(); res.Error != "" || res.Held != "" {
				t.Fatalf("at the end: %+v", res)
			}
			time.Sleep(7 * time.Hour)
		}
		sweep.Audit(t.Context(), w.config())
		if trip := w.record().Trip; trip.IsOpen() || len(w.left()) > 0 {
			t.Errorf("%d are left: %+v", len(w.left()), trip)
		}
	})
}
