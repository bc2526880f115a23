package sweep_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// misspelt returns a world whose target was swept for days with a misspelt kind, while 300
// entities of the right one came to be due.
func misspelt(t *testing.T) *world {
	w := newWorld(t)
	w.target.Breaker = small
	w.target.Kind = "Sesion"
	w.begin()
	w.mustSweep()
	time.Sleep(72 * time.Hour)
	w.mustSweep()
	w.target.Kind = "Session"
	w.putEvery(300, -10*time.Minute)
	return w
}

// wantHeld fails unless nothing is gone, and a trip on unswept ground holds the target.
func (w *world) wantHeld(n int) {
	w.t.Helper()
	if trip := w.record().Trip; len(w.left()) != n || trip.Rule != breaker.NewGround {
		w.t.Fatalf("%d of %d are left; trip %+v", len(w.left()), n, trip)
	}
}

// A command with the corrected file brings the record up to date before the first sweep. What
// is due is on unswept ground anyway.
func TestCommandsDoNotSettleGround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := misspelt(t)
		_, err := control.Change(t.Context(), w.config(), w.target, func(r *generation.Record) { r.PaceMax.Set = false })
		if err != nil {
			t.Fatal(err)
		}
		w.sweep()
		w.wantHeld(300)
	})
}

// A laggard is a store that takes long to count.
type laggard struct{ *modelstore.Store }

func (s laggard) Count(ctx context.Context, t store.Target, ns string, span store.Span, upTo int64) (int64, error) {
	defer time.Sleep(20 * time.Second) // its answer is old by then
	return s.Store.Count(ctx, t, ns, span, upTo)
}

// A process that still has the old configuration does not settle what others sweep, and goes on
// with its own.
func TestGroundIsSettledByWhoSweepsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := misspelt(t)
		right := w.target
		w.target.Kind = "Sesion"
		d := w.serve(w.config())
		for i := range 400 { // so that it reserves again and again
			w.put(1, 4, fmt.Sprint("old-", i), time.Now().Add(time.Duration(i)*time.Second/10))
		}
		time.Sleep(10 * time.Second)
		w.target = right
		var all sync.WaitGroup
		all.Go(func() { w.with(laggard{w.s}) })
		time.Sleep(15 * time.Second)
		w.sweep()
		all.Wait()
		w.wantHeld(300)
		if st := d.state(); st.Deleted < 100 {
			t.Errorf("%+v", st)
		}
	})
}

// A daemon with the old kind goes on while another process counts what is due in the new one.
func TestDaemonGoesOnThroughAChangeOfKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker, w.target.Next = small, everyMinute
		w.begin()
		w.mustSweep()
		old := w.config()
		d := w.serve(old)
		time.Sleep(time.Minute)
		w.target.Kind = "Sesion" // a new deployment, which comes with another kind
		w.sweep()
		w.target.Kind = "Session"
		w.putEvery(300, time.Minute)
		time.Sleep(7 * time.Hour)
		if trip := w.record().Trip; len(w.left()) > 0 || trip.IsOpen() {
			t.Errorf("%d are left; %+v, trip %+v", len(w.left()), d.state(), trip)
		}
	})
}

// A trip is of what was swept then: its approval lets nothing pass of what the target holds
// since its kind was changed.
func TestApprovalEndsWithItsGround(t *testing.T) {
	for _, approved := range []bool{false, true} {
		t.Run(fmt.Sprint("approved before ", approved), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := misspelt(t)
				w.sweep()
				w.wantHeld(300)
				id := w.record().Trip.ID
				w.target.Kind = "Other"
				for i := range 400 {
					w.put(1, 4, fmt.Sprint("o-", i), time.Now().Add(-time.Duration(i)*10*time.Minute))
				}
				w.target.Kind = "Session"
				approve := func() error {
					_, _, err := control.Approve(t.Context(), w.config(), w.target, control.Order{Actor: "ann", Reason: "right"},
						control.Approval{ID: id})
					return err
				}
				if approved {
					if err := approve(); err != nil {
						t.Fatal(err)
					}
				}
				w.target.Kind = "Other"
				if !approved {
					if err := approve(); err == nil {
						t.Error("the trip of another kind is approved")
					}
				}
				w.sweep()
				if left := len(w.s.Entities("Other", "")); left != 400 || w.record().Trip.Rule != breaker.NewGround {
					t.Errorf("%d are left: %+v", left, w.record().Trip)
				}
			})
		})
	}
}

// Somebody removes the target's record to be rid of the trip, and a command makes another one
// while a daemon runs. What is due is counted again.
func TestRecordRemovedDuringATrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		w.putEvery(300, -10*time.Minute)
		d := w.serve(w.config())
		time.Sleep(10*time.Second + 300*time.Millisecond) // not when it writes itself
		w.wantHeld(300)
		for range 3 {
			rec := w.record()
			w.remove(store.TargetRecord, rec.Revision)
			_, err := control.Change(t.Context(), w.config(), w.target, func(r *generation.Record) { r.Paused = false })
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if left := len(w.left()); left != 300 || !w.record().Trip.IsOpen() {
				t.Fatalf("%d are left: %+v, %+v", left, w.record().Trip, d.state())
			}
		}
	})
}

// A dry run that takes longer than the record stays fresh foretells the trip, too.
func TestLongDryRunForeseesNewGround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := misspelt(t)
		cfg := w.config()
		cfg.Apply, cfg.Store = false, laggard{w.s}
		res := sweep.Run(t.Context(), cfg).Targets[0]
		if f := res.WouldTrip; f == nil || f.Rule != breaker.NewGround || f.Due != 300 {
			t.Errorf("it foresees %+v: %+v", f, res)
		}
	})
}

// A retention that was made longer, and is taken out again, is approved again, also if an even
// shorter one was approved before.
func TestRetentionTakenOutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		w.mustSweep() // without a retention
		w.target.Retention = 24 * time.Hour
		time.Sleep(time.Hour)
		w.mustSweep()
		w.putEvery(300, 4*time.Minute)
		time.Sleep(22 * time.Hour)
		d := w.serve(w.config()) // which still has it
		time.Sleep(time.Minute)
		w.target.Retention = 0
		w.sweep()
		w.wantHeld(300)
		w.approve(0)
		w.mustSweep()
		if left := len(w.left()); left > 0 || d.state().Deleted > 0 {
			t.Errorf("%d are left: %+v", left, w.record().Trip)
		}
	})
}

// A longer retention does not hold a daemon that still has the shorter one.
func TestDaemonGoesOnThroughALongerRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.begin()
		w.mustSweep()
		w.serve(w.config())
		time.Sleep(time.Second)
		w.target.Retention = 200 * time.Hour
		w.sweep()
		for i := range 300 {
			w.put(1, 4, fmt.Sprint("e-", i), time.Now().Add(10*time.Second))
		}
		time.Sleep(5 * time.Minute)
		if trip := w.record().Trip; len(w.left()) > 0 || trip.IsOpen() {
			t.Errorf("%d are left: %+v", len(w.left()), trip)
		}
	})
}

// remove removes a record of the target by hand.
func (w *world) remove(sort store.RecordSort, revision string) {
	w.t.Helper()
	r := store.Record{Sort: sort, Key: w.target.Name, Target: w.target.Name}
	if err := w.s.Save(w.t.Context(), r, revision); err != nil {
		w.t.Fatal(err)
	}
}
