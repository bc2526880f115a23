package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An event is approved twenty at a time: the rest of it waits, however many parts went.
func TestManyPartsOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1600)
		names := w.left()
		for _, name := range names[:500] {
			w.put(1, 4, name, time.Now())
		}
		keep := len(names) - 500
		time.Sleep(time.Second)
		w.sweep()
		for i := 1; len(w.left()) > keep+20; i++ {
			before := len(w.left())
			if !w.record().Trip.IsOpen() {
				t.Fatalf("part %d: no trip", i)
			}
			w.approve(20)
			w.sweep()
			if gone := before - len(w.left()); gone > 20 {
				t.Fatalf("part %d of 20 was approved, and %d went; trip %+v", i, gone, w.record().Trip)
			}
		}
	})
}

// Another process has deleted a part of an event, and not reported it yet: the rest waits.
func TestRestOfAPartThatIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		w.sweep()
		left := w.left()
		n := int64(len(left) - 80)
		trip := w.approve(n)
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		if err != nil {
			t.Fatal(err)
		}
		b, _, _ = b.Reserve(sweep.BreakerRules(w.target), time.Now(), w.record().Approvals,
			[]breaker.Want{{Key: breaker.Key{Approval: trip.ID}, N: n}})
		if err := w.s.Save(t.Context(), b.Encode(), b.Revision); err != nil {
			t.Fatal(err)
		}
		for _, name := range left[:n] { // the other process deletes
			w.put(1, 4, name, time.Now().Add(1000*time.Hour))
		}
		time.AfterFunc(3*time.Second, func() { // and reports
			b, _ := spend.Load(context.Background(), w.s, w.target.Name)
			b = b.Take([]breaker.Report{{Key: breaker.Key{Approval: trip.ID}, Done: n}})
			_ = w.s.Save(context.Background(), b.Encode(), b.Revision)
		})
		w.sweep()
		if gone := len(left) - len(w.left()); gone > 0 || !w.record().Trip.IsOpen() {
			t.Errorf("%d of the rest of 80 are gone; trip %+v", gone, w.record().Trip)
		}
	})
}

// A process was killed that had reserved all of an approval, and what was approved is gone. A burst
// in the same hour, of what expires after that, is another event.
func TestBurstAfterWhatAKilledProcessReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 900)
		w.lateOnesAreReserved(w.left()[:600])
		left := w.left()
		time.Sleep(5 * time.Minute)
		for _, name := range left[:500] {
			w.put(1, 4, name, time.Now())
		}
		time.Sleep(time.Second)
		w.sweep()
		if gone, trip := len(left)-len(w.left()), w.record().Trip; trip.Rule != breaker.Burst || gone > int(small.Floor)+50 {
			t.Errorf("%d of %d are gone; trip %+v", gone, len(left), trip)
		}
	})
}

// lateOnesAreReserved has entities turn up behind the cursors half an hour into an hour, approves all of
// them, and reserves them for a process that will never report it.
func (w *world) lateOnesAreReserved(names []string) {
	w.t.Helper()
	time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(90 * time.Minute)))
	for i := range 40 { // so that all cursors are here
		w.put(1, 4, fmt.Sprint("now-", i), time.Now())
	}
	time.Sleep(time.Second)
	w.mustSweep()
	for _, name := range names {
		w.put(1, 4, name, time.Now().Add(-12*time.Hour))
	}
	time.Sleep(time.Second)
	w.fromStart()
	trip := w.approve(0)
	if trip.Rule != breaker.LateOnes {
		w.t.Fatalf("%+v", trip)
	}
	w.reserve(trip)
}

// reserve reserves all of an approved event for another process.
func (w *world) reserve(trip breaker.Trip) {
	w.t.Helper()
	b, err := spend.Load(w.t.Context(), w.s, w.target.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	b, grants, _ := b.Reserve(sweep.BreakerRules(w.target), time.Now(), w.record().Approvals,
		[]breaker.Want{{Key: breaker.Key{Approval: trip.ID}, N: trip.Due}})
	if err := w.s.Save(w.t.Context(), b.Encode(), b.Revision); err != nil || len(grants) != 1 {
		w.t.Fatal(err, grants)
	}
}

// A burst next to one that another process still works on is an event of its own: the trip says how much
// that is.
func TestBurstBesideWhatIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 900)
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(65 * time.Minute)))
		burst := func(names []string) breaker.Trip {
			for _, name := range names {
				w.put(1, 4, name, time.Now())
			}
			time.Sleep(time.Second)
			w.sweep()
			return w.record().Trip
		}
		if trip := burst(w.left()[:400]); trip.Rule != breaker.Burst {
			t.Fatalf("%+v", trip)
		}
		w.reserve(w.approve(0))
		before := w.left()
		trip := burst(before[len(before)-300:])
		if gone := int64(len(before) - len(w.left())); trip.Rule != breaker.Burst || trip.Due > 300 || trip.Due < 300-gone {
			t.Errorf("%d are gone; trip %+v", gone, trip)
		}
	})
}

// Late ones that expired after those a killed process had reserved are another event.
func TestLateOnesAfterWhatAKilledProcessReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1600)
		names := w.left()
		w.lateOnesAreReserved(names[:700])
		for _, name := range names[:700] { // it has deleted them
			w.put(1, 4, name, time.Now().Add(1000*time.Hour))
		}
		time.Sleep(3 * time.Hour)
		for i := range 40 {
			w.put(1, 4, fmt.Sprint("later-", i), time.Now())
		}
		time.Sleep(time.Second)
		w.mustSweep()
		before := len(w.left())
		for _, name := range names[800:1400] {
			w.put(1, 4, name, time.Now().Add(-time.Hour))
		}
		time.Sleep(time.Second)
		w.fromStart()
		if gone := before - len(w.left()); gone > int(small.Floor)+50 || !w.record().Trip.IsOpen() {
			t.Errorf("%d of 600 are gone; trip %+v", gone, w.record().Trip)
		}
	})
}

// A part of what is late is approved, and the process restarts: what was late is of an hour then.
func TestPartOfLateOnesAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1600)
		w.target.Next = everyMinute
		daemon := w.serve(w.config())
		time.Sleep(30 * time.Minute)
		names := w.left()
		at := time.Now().Add(-26 * time.Hour).Truncate(time.Hour).Add(time.Minute)
		for _, name := range names[:600] {
			w.put(1, 4, name, at)
		}
		keep := len(names) - 600
		for range 60 {
			if time.Sleep(time.Hour); w.record().Trip.IsOpen() {
				break
			}
		}
		daemon.stop()
		trip := w.record().Trip
		before := len(w.left())
		t.Logf("trip %+v, %d of the event left", trip, before-keep)
		if !trip.IsOpen() {
			t.Fatal("no trip")
		}
		n := int64(before - keep - 250)
		w.approve(n)
		for range 3 {
			w.sweep()
			time.Sleep(time.Minute)
		}
		t.Logf("trip %+v", w.record().Trip)
		if gone := before - len(w.left()); gone > int(n) {
			t.Errorf("%d went of %d that were approved", gone, n)
		}
	})
}

// While a process counts an hour, another one trips, a part is approved, and goes: the count that began
// before knows nothing of the part, and is not to let the rest go.
func TestPartIsApprovedDuringACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		hour := sweep.BreakerRules(w.target).HourOf(time.Now())
		const rest = 80
		s := &hookedCounter{Store: w.s}
		s.hook = sync.OnceFunc(func() {
			left := w.left()
			rec := w.record()
			trip := breaker.Trip{ID: "theirs", Rule: breaker.Burst, At: time.Now(), Hour: hour.Hour,
				Through: hour.Hour.Add(time.Hour), Due: int64(len(left)), Gone: 100, Limit: 150, All: 600}
			if _, err := generation.Save(t.Context(), w.s, rec.Tripped(trip)); err != nil {
				t.Error(err)
			}
			n := int64(len(left) - rest)
			w.approve(n)
			mine := breaker.Key{Approval: trip.ID}
			err := store.ErrConflict
			for errors.Is(err, store.ErrConflict) { // the process that counts may save its budget just then
				b, _ := spend.Load(t.Context(), w.s, w.target.Name)
				b, _, _ = b.Reserve(sweep.BreakerRules(w.target), time.Now(), w.record().Approvals, []breaker.Want{{Key: mine, N: n}})
				b = b.Take([]breaker.Report{{Key: mine, Done: n}})
				err = w.s.Save(t.Context(), b.Encode(), b.Revision)
			}
			if err != nil {
				t.Error(err)
			}
			for _, name := range left[:n] {
				w.put(1, 4, name, time.Now().Add(1000*time.Hour))
			}
		})
		before := len(w.left())
		w.with(s)
		left := len(w.left())
		t.Logf("%d before, %d after, trip %+v", before, left, w.record().Trip)
		if gone := before - left; gone > 100 || !w.record().Trip.IsOpen() {
			t.Errorf("%d went, the floor is 100 and %d of them were the rest", gone, rest)
		}
	})
}

type hookedCounter struct {
	*modelstore.Store
	hook func()
}

func (s *hookedCounter) Count(
	ctx context.Context, t store.Target, namespace string, span store.Span, upTo int64,
) (int64, error) {
	s.hook()
	return s.Store.Count(ctx, t, namespace, span, upTo)
}
