package sweep_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A slowCounter is a store that counts up to a bound, and takes too long for all.
type slowCounter struct {
	*modelstore.Store
	all   bool // it does not even do that
	mutex sync.Mutex
	asked int
}

func (s *slowCounter) Count(ctx context.Context, t store.Target, ns string, span store.Span, upTo int64) (int64, error) {
	s.mutex.Lock()
	s.asked++
	s.mutex.Unlock()
	if upTo == 0 || s.all {
		<-ctx.Done()
		return 0, fmt.Errorf("count: %w", store.ErrDeadline)
	}
	return s.Store.Count(ctx, t, ns, span, upTo)
}

// with sweeps once on another store.
func (w *world) with(s store.Store) sweep.TargetResult {
	c := w.config()
	c.Store = s
	return sweep.Run(w.t.Context(), c).Targets[0]
}

// While a process counts what is due on unswept ground, which takes it a minute, another one trips the breaker, and a
// part is approved. What that covers is left out of the second count, and the rest is not to go by it.
func TestPartApprovedDuringACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withNewGround(t)
		var all sync.WaitGroup
		all.Go(func() { w.with(&slowCounter{Store: w.s}) })
		time.Sleep(time.Second)
		all.Go(func() { w.sweep() })
		time.Sleep(time.Second)
		w.approve(30) // before the first one sees the trip: a sweep that is held ends
		all.Wait()
		for range 3 {
			w.sweep()
		}
		if left, rec := len(w.left()), w.record(); left < 270 || !rec.NewGround || !rec.Trip.IsOpen() {
			t.Errorf("%d are left after 30 of 300 were approved: %+v", left, rec.Trip)
		}
	})
}

// An event that is too large to be counted trips nevertheless, and is approved by its instant.
func TestBreakerCountsUpToItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 1500)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		s := &slowCounter{Store: w.s}
		res := w.with(s)
		trip := w.record().Trip
		if gone := 1500 - len(w.left()); gone > 100 || res.Held != string(throttle.ReasonBreaker) || !trip.More {
			t.Fatalf("%d are gone: %+v, %+v", gone, trip, res)
		}
		w.approve(0)
		for range 3 {
			w.with(s)
		}
		if left := len(w.left()); left > 0 {
			t.Errorf("%d are left: %+v", left, w.record().Trip)
		}
	})
}

// What cannot be counted at all goes no further than the floor of each hour, the rest of the
// target goes on, and the sweep fails and says why.
func TestBreakerWithoutCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		now := time.Now()
		for i := range 300 { // three hours ahead of it, below the floor
			w.put(1, 4, fmt.Sprint("before-", i), now.Add(time.Duration(i%3+1)*time.Hour))
		}
		for _, name := range w.left() {
			if strings.HasPrefix(name, "e-") {
				w.put(1, 4, name, now.Add(5*time.Hour))
			}
		}
		time.Sleep(6 * time.Hour)
		s := &slowCounter{Store: w.s, all: true}
		res := w.with(s)
		if res.Deleted != 400 || !strings.Contains(res.Error, "the breaker cannot count") || res.Held != "" || !strings.Contains(res.Hint, "off") {
			t.Fatalf("%+v", res)
		}
		if b, err := spend.Load(t.Context(), w.s, w.target.Name); err != nil ||
			!strings.HasPrefix(b.Uncounted, "what expires from 2000-01-0") {
			t.Errorf("the budget does not say why: %v, %q", err, b.Uncounted)
		}
		if res = w.sweep(); res.Held != string(throttle.ReasonBreaker) || len(w.left()) != 500 {
			t.Errorf("with counts: %d are left, %+v", len(w.left()), res)
		}
		if b, err := spend.Load(t.Context(), w.s, w.target.Name); err != nil || b.Uncounted != "" {
			t.Errorf("the budget still says why: %v, %q", err, b.Uncounted)
		}
	})
}

// A tombCounter is a store whose COUNT never gets past tombstones, while reads do.
type tombCounter struct {
	*modelstore.Store
	hours bool          // nor does a COUNT of an hour, and each takes as long as it may
	takes time.Duration // to read a page of what is counted
	most  time.Duration // how much time one query may step over; zero is no bound
	reads atomic.Int64  // of pages of what is counted
	lates atomic.Int64  // queries that took too long
}

func (s *tombCounter) Count(ctx context.Context, t store.Target, ns string, span store.Span, upTo int64) (int64, error) {
	k, err := expirykey.Parse(span.From.Value.Text)
	if err == nil && (s.hours || time.Since(k.Expires) > 2*time.Hour) {
		if s.hours {
			<-ctx.Done()
		}
		return 0, fmt.Errorf("count: %w", store.ErrDeadline)
	}
	return s.Store.Count(ctx, t, ns, span, upTo)
}

func (s *tombCounter) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	if q.Limit == store.MaxPage {
		s.reads.Add(1)
		time.Sleep(s.takes)
	}
	lo := q.Lo.Text
	if after := q.After.Value.Text; after > lo {
		lo = after
	}
	from, err := expirykey.Parse(lo)
	to, err2 := expirykey.Parse(q.Hi.Text)
	end := time.Now().Add(-25 * time.Hour) // the tombstones are of the three days before
	if begin := end.Add(-72 * time.Hour); err != nil || from.Expires.Before(begin) {
		from.Expires = begin
	}
	if err2 == nil && to.Expires.Before(end) {
		end = to.Expires
	}
	if s.most > 0 && err2 == nil && end.Sub(from.Expires) > s.most {
		s.lates.Add(1)
		<-ctx.Done()
		return fmt.Errorf("scan: %w", store.ErrDeadline)
	}
	return s.Store.Scan(ctx, q, p)
}

// withLateOnes returns a world in which so many are late.
func withLateOnes(t *testing.T, late int) *world {
	t.Helper()
	w := withBreaker(t, 3000)
	names := w.left()
	at := time.Now().Add(3 * time.Hour)
	for i := range 200 { // an hour above the floor, so that all are counted
		w.put(1, 4, fmt.Sprint("hour-", i), at)
	}
	for range 4 {
		time.Sleep(time.Hour)
		w.mustSweep()
	}
	if b, err := spend.Load(t.Context(), w.s, w.target.Name); err != nil || !b.KnowsAll() {
		t.Fatalf("all are not known: %v", err)
	}
	for _, name := range names[len(names)-late:] {
		w.put(1, 4, name, time.Now().Add(-12*time.Hour))
	}
	time.Sleep(25 * time.Hour)
	w.target.Next = everyMinute
	return w
}

// What is late is read if no COUNT of it is answered: what is usual goes in one sweep, and
// what is not trips.
func TestBreakerReadsWhatItCannotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 250)
		before := len(w.left())
		res := w.with(&tombCounter{Store: w.s, takes: 500 * time.Millisecond})
		if res.Deleted != 250 || before-len(w.left()) != 250 || res.Error != "" || res.Held != "" {
			t.Errorf("%+v: %+v", res, w.record().Trip)
		}
		if b, err := spend.Load(t.Context(), w.s, w.target.Name); err != nil || b.Uncounted != "" {
			t.Errorf("the budget still says that it is not counted: %v, %q", err, b.Uncounted)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 900)
		s := &tombCounter{Store: w.s, takes: 50 * time.Millisecond}
		before := len(w.left())
		res, trip := w.with(s), w.record().Trip
		if gone := before - len(w.left()); gone > 100 || trip.Rule != breaker.LateOnes || trip.Due+trip.Gone < trip.Limit {
			t.Fatalf("%d are gone: %+v, %+v", gone, trip, res)
		}
		w.approve(0)
		for range 3 {
			w.with(s)
			time.Sleep(25 * time.Hour)
		}
		if left := before - 900; len(w.left()) > left {
			t.Errorf("%d are left, not %d: %+v", len(w.left()), left, w.record().Trip)
		}
	})
}

// A sweep that ends before its read does has not failed.
func TestBreakerReadsLongerThanASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 250)
		if res := w.with(&tombCounter{Store: w.s, takes: 4 * time.Second}); res.Error != "" || res.Deleted != 100 {
			t.Errorf("%+v", res)
		}
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		if err != nil || !strings.Contains(b.Uncounted, "it is read") {
			t.Errorf("the budget does not say that it is read: %v, %q", err, b.Uncounted)
		}
	})
}

// Queries that take too long for all the tombstones become shorter.
func TestBreakerReadsThroughTombstones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 900)
		before := len(w.left())
		s := &tombCounter{Store: w.s, most: 6 * time.Hour}
		c := w.config()
		c.Store = s
		daemon := w.serve(c)
		time.Sleep(3 * time.Hour)
		daemon.stop()
		if gone, trip := before-len(w.left()), w.record().Trip; gone > 100 || trip.Rule != breaker.LateOnes || s.lates.Load() == 0 {
			t.Errorf("%d are gone, %d queries were late: %+v", gone, s.lates.Load(), trip)
		}
	})
}

// A read that takes hours keeps nothing else from being counted and deleted.
func TestBreakerReadsInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 250)
		before := len(w.left())
		s := &tombCounter{Store: w.s, takes: 4 * time.Second}
		c := w.config()
		c.Store = s
		daemon := w.serve(c)
		const hours = 12
		for i := range hours {
			for n := range 150 { // above the floor, so that each hour is counted
				w.put(1, 4, fmt.Sprintf("new-%d-%d", i, n), time.Now())
			}
			time.Sleep(time.Hour)
			for _, name := range w.left() {
				if strings.HasPrefix(name, "new-") {
					t.Fatalf("hour %d: %s is left: %+v", i, name, w.record().Trip)
				}
			}
		}
		daemon.stop()
		if gone := before - len(w.left()); gone < 250 || s.reads.Load() < 50 {
			t.Errorf("%d late ones are gone after %d reads: %+v", gone, s.reads.Load(), w.record().Trip)
		}
	})
}

// Hours that cannot be counted either do not keep what is late from its turn.
func TestBreakerReadsBesideFailingCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 900)
		now := time.Now()
		for i := range 450 {
			w.dueIn(0, i%3, fmt.Sprint("uncounted-", i), now.Add(-time.Duration(i%3)*time.Hour))
		}
		c := w.config()
		c.Store = &tombCounter{Store: w.s, hours: true, takes: 2 * time.Second}
		daemon := w.serve(c)
		time.Sleep(3 * time.Hour)
		daemon.stop()
		if trip := w.record().Trip; trip.Rule != breaker.LateOnes {
			t.Errorf("after three hours: %+v", trip)
		}
	})
}

// Two processes may read the same. What one of them has found usual, and is gone by then, does not trip
// the other, unless both read at one and the same pace: what is deleted while it is read counts twice then,
// on the side of a trip. That comes by chance in one of 300 lives, and so not in three that follow each other.
func TestTwoReadWhatTheyCannotCount(t *testing.T) {
	nightly.Races(t)
	for _, slower := range []int{50, 100, 200, 550} {
		var said string
		for range 3 {
			if said = twoRead(t, time.Duration(slower)*time.Millisecond); said == "" {
				break
			}
		}
		if said != "" {
			t.Errorf("one slower by %d ms: %s", slower, said)
		}
	}
}

// twoRead has two processes read what they cannot count, and says what is wrong afterwards.
func twoRead(t *testing.T, slower time.Duration) (said string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 600)
		before := len(w.left())
		var daemons []*service
		for i := range 2 {
			c := w.config()
			c.Store = &tombCounter{Store: w.s, takes: 500*time.Millisecond + time.Duration(i)*slower}
			daemons = append(daemons, w.serve(c))
		}
		time.Sleep(time.Hour)
		for _, d := range daemons {
			d.stop()
		}
		if gone, trip := before-len(w.left()), w.record().Trip; gone < 600 || trip.IsOpen() {
			said = fmt.Sprintf("%d are gone, %+v", gone, trip)
		}
	})
	return said
}

// What cannot be counted can be cleared once its cause is gone, and only then.
func TestClearWithoutCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withLateOnes(t, 900)
		s := &tombCounter{Store: w.s}
		w.with(s)
		s.takes = 2 * time.Second
		c := w.config()
		c.Store = s
		clearTrip := func() error {
			_, _, err := control.Clear(t.Context(), c, w.target, control.Order{Actor: "ann", Reason: "mended"},
				func(trip breaker.Trip) (int64, error) { return sweep.CountTrip(t.Context(), c, w.target, trip) })
			return err
		}
		if err := clearTrip(); err == nil || !w.record().Trip.IsOpen() {
			t.Fatalf("nothing is mended, and it is cleared: %v", err)
		}
		w.restamp(time.Now().Add(100 * time.Hour))
		if err := clearTrip(); err != nil || w.record().Trip.IsOpen() {
			t.Errorf("it is not cleared: %v", err)
		}
	})
}

// clear ends the open trip, as an operator does.
func (w *world) clear() error {
	_, _, err := control.Clear(w.t.Context(), w.config(), w.target, control.Order{Actor: "ann", Reason: "mended"},
		func(trip breaker.Trip) (int64, error) {
			return sweep.CountTrip(w.t.Context(), w.config(), w.target, trip)
		})
	return err
}

// A trip is cleared once its cause is gone, however much has come to be due in the meantime.
func TestClearAfterAWeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 3000)
		names := w.left()
		for i := range 40 { // so that all cursors are here
			w.put(1, 4, fmt.Sprint("now-", i), time.Now())
		}
		time.Sleep(time.Second)
		w.mustSweep()
		for _, name := range names[:900] { // behind the cursors
			w.put(1, 4, name, time.Now().Add(-24*time.Hour))
		}
		time.Sleep(time.Second)
		for range 2 {
			w.sweep()
			time.Sleep(25 * time.Hour)
		}
		trip := w.record().Trip
		if trip.Rule != breaker.LateOnes {
			t.Fatalf("trip %+v", trip)
		}
		w.approve(10)
		for range 2 {
			w.sweep()
			time.Sleep(25 * time.Hour)
		}
		if err := w.clear(); err == nil || !w.record().Trip.IsOpen() {
			t.Fatalf("nothing is mended, and it is cleared: %v", err)
		}
		for _, name := range names[:900] {
			if e, ok := w.find(name); ok {
				w.put(1, 4, e, time.Now().Add(2000*time.Hour))
			}
		}
		time.Sleep(24 * time.Hour)
		if err := w.clear(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if res := w.sweep(); res.Held != "" {
				t.Fatalf("%+v: %+v", res, w.record().Trip)
			}
		}
	})
}

// find returns the name of an entity, if it is there.
func (w *world) find(name string) (string, bool) {
	for _, n := range w.left() {
		if n == name {
			return n, true
		}
	}
	return "", false
}

// A retention that was put back, and then cleared, is no approval of the shorter one. Nor does
// a process that still has the longer one approve it for the others.
func TestShorterRetentionIsApprovedByAPerson(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprint("another process ", other), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.target.Breaker = small
				w.target.Retention = 200 * time.Hour
				w.begin()
				w.mustSweep()
				w.putEvery(300, -time.Hour/2)
				w.target.Retention = 0
				if !other {
					w.sweep()
					if w.record().Trip.Rule != breaker.NewGround {
						t.Fatalf("%+v", w.record().Trip)
					}
				}
				w.target.Retention = 200 * time.Hour
				if !other {
					if err := w.clear(); err != nil {
						t.Fatal(err)
					}
				}
				w.put(1, 4, "old", time.Now().Add(-201*time.Hour))
				w.mustSweep()
				w.target.Retention = 0
				if res := w.sweep(); len(w.left()) != 300 || res.Held != string(throttle.ReasonBreaker) {
					t.Errorf("%d are left: %+v", len(w.left()), res)
				}
			})
		})
	}
}

// Two configurations at once: the one with the shorter retention is held, whatever the other
// one writes into the record.
func TestMixedRetentions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.target.Breaker = small
		w.target.Retention = 200 * time.Hour
		w.begin()
		w.mustSweep()
		w.putEvery(300, -time.Hour/2)
		long, short := w.config(), w.config()
		short.Targets = []sweep.Target{w.target}
		short.Targets[0].Retention = 0
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 700 * time.Millisecond)
				sweep.Run(t.Context(), []sweep.Config{long, short}[i%2])
			})
		}
		all.Wait()
		if left := len(w.left()); left != 300 || w.record().Trip.Rule != breaker.NewGround {
			t.Errorf("%d are left: %+v", left, w.record().Trip)
		}
	})
}

// The details of a trip are those of the open one, also if several processes find the event at
// the same time.
func TestDetailsAreOfTheOpenTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		w.together(5)
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		trip := w.record().Trip
		if err != nil || b.Trip.ID != trip.ID || len(b.Trip.Samples) == 0 || len(b.Trip.Histogram) == 0 {
			t.Fatalf("%v: %+v of %+v", err, b.Trip, trip)
		}
		sum := int64(0)
		for _, bar := range b.Trip.Histogram {
			sum += bar.N
		}
		if sum < trip.Due-small.Floor || sum > trip.Due+trip.Gone { // slices that were granted go meanwhile
			t.Errorf("the bars hold %d: %+v", sum, trip)
		}
	})
}

// A process that is killed just after it tripped has not written what people want to know: those
// who ask are told anyway, and nothing is written for it.
func TestDetailsOfAKilledProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.BudgetRecord && c.Record.Fields["trip"] != "" {
				return fmt.Errorf("killed: %w", store.ErrDenied)
			}
			return nil
		}
		w.sweep()
		writes := w.s.Writes()
		st, err := inspect.Breaker(t.Context(), w.config(), w.target)
		if err != nil || st.Trip == "" || w.s.Writes() != writes {
			t.Fatalf("%v, %d writes: %+v", err, w.s.Writes()-writes, st)
		}
		sum := int64(0)
		for _, bar := range st.Histogram {
			sum += bar.N
		}
		if left := int64(len(w.left())); sum != left || len(st.Samples) == 0 {
			t.Errorf("%d are left: %+v", left, st)
		}
	})
}

// A trip whose save reached the store is told of like any other, although all answers to the save
// were lost for as long as it was tried.
func TestTripWithLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		var tripped atomic.Pointer[time.Time]
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.TargetRecord && w.record().Trip.IsOpen() {
				now := time.Now()
				if tripped.CompareAndSwap(nil, &now) || now.Sub(*tripped.Load()) < 30*time.Second {
					return fmt.Errorf("no answer: %w", store.ErrUnavailable)
				}
			}
			return nil
		}
		w.target.History = sweep.History{Keep: keepHistory, Actor: "job@example.com", Host: "host"}
		log := &syncBuffer{}
		cfg := w.config()
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		sweep.Run(t.Context(), cfg)
		trip := w.record().Trip
		b, err := spend.Load(t.Context(), w.s, w.target.Name)
		if err != nil || tripped.Load() == nil || !trip.IsOpen() || b.Trip.ID != trip.ID || len(b.Trip.Samples) == 0 {
			t.Errorf("%v: %+v of %+v", err, b.Trip, trip)
		}
		if got := strings.Count(log.String(), "breaker tripped"); got != 1 {
			t.Errorf("the trip was logged %d times", got)
		}
		if got := w.history(history.KindTrip); len(got) != 1 {
			t.Errorf("the history has %+v", got)
		}
	})
}

// What was announced is no burst; what comes in addition is.
func TestAnnouncedEntitiesAreNoBurst(t *testing.T) {
	for extra, trips := range map[int]bool{0: false, 400: true} {
		synctest.Test(t, func(t *testing.T) {
			w := withBreaker(t, 600)
			at := time.Now().Add(24 * time.Hour).Truncate(time.Hour)
			for i := range 500 + extra {
				w.put(1, 4, fmt.Sprint("adopted-", i), at.Add(time.Duration(i)*time.Second))
			}
			stamped := map[time.Time]int64{}
			for i := range 500 {
				stamped[at.Add(time.Duration(i)*time.Second)]++
			}
			if err := control.Announce(t.Context(), w.config(), w.target, stamped); err != nil {
				t.Fatal(err)
			}
			time.Sleep(25 * time.Hour)
			res := w.sweep()
			if open := w.record().Trip.IsOpen(); open != trips {
				t.Errorf("%d more than announced: %+v, %+v", extra, w.record().Trip, res)
			}
		})
	}
}

// A budget whose save reached the store although the answer was lost gives nothing twice.
func TestBudgetWithLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker(t, 600)
		w.restamp(time.Now())
		time.Sleep(time.Second)
		var n atomic.Int64
		w.s.After = func(_ context.Context, c modelstore.Call) error {
			if n.Add(1)%2 == 0 && c.Method == "Save" && c.Record.Sort == store.BudgetRecord {
				return fmt.Errorf("no answer: %w", store.ErrUnavailable)
			}
			return nil
		}
		for range 5 {
			w.together(3)
		}
		w.s.After = nil
		if gone := 600 - len(w.left()); gone > 100 || !w.record().Trip.IsOpen() {
			t.Errorf("%d are gone: %+v", gone, w.record().Trip)
		}
	})
}

// A dry run says that a sweep with --apply would trip, and writes nothing.
func TestDryRunForeseesATrip(t *testing.T) {
	for name, c := range map[string]struct {
		then time.Duration
		want breaker.Rule
	}{"now": {0, breaker.Burst}, "yesterday": {-24 * time.Hour, breaker.LateOnes}, "in a year": {8760 * time.Hour, ""}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := withBreaker(t, 600)
				for i := range 40 { // so that all cursors are here
					w.put(1, 4, fmt.Sprint("now-", i), time.Now())
				}
				time.Sleep(time.Second)
				w.mustSweep()
				w.restamp(time.Now().Add(c.then))
				time.Sleep(time.Second)
				cfg := w.config()
				cfg.Apply = false
				writes := w.s.Writes()
				res := sweep.Run(t.Context(), cfg).Targets[0]
				switch f := res.WouldTrip; {
				case w.s.Writes() > writes:
					t.Error("it writes")
				case f == nil && c.want != "", f != nil && (f.Rule != c.want || f.Due < 500 || len(f.Histogram) == 0):
					t.Errorf("it foresees %+v", f)
				}
				if w.sweep(); w.record().Trip.Rule != c.want && c.want != breaker.LateOnes { // late ones wait for a rewind
					t.Errorf("the trip is %+v", w.record().Trip)
				}
			})
		})
	}
}

// A billedCounter is a store that bills COUNTs as the services do.
type billedCounter struct{ *modelstore.Store }

func (s billedCounter) Count(ctx context.Context, t store.Target, ns string, span store.Span, upTo int64) (int64, error) {
	n, err := s.Store.Count(ctx, t, ns, span, upTo)
	store.Bill(ctx, store.Operations{Reads: max(1, (n+999)/1000)})
	return n, err
}

// The breaker reads little: its counts and its records are less than a hundredth of what the
// deletes read and write themselves. A count costs at least a read for each range, so hours that
// hold hardly more than the floor cost more than that.
func TestBreakerReadsLittle(t *testing.T) {
	nightly.Races(t)
	const each, hours = 20_000, 3
	sum := func(t *testing.T, on bool) (reads, all, deleted int64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.target.Breaker = small
			w.target.Breaker.On, w.target.Breaker.Floor = on, 1000
			w.begin()
			w.mustSweep()
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			for hour := range hours {
				for i := range each {
					w.put(1, 4, fmt.Sprint("e-", hour, "-", i), time.Now().Add(time.Duration(i)*time.Hour/each))
				}
				for range 12 {
					time.Sleep(5 * time.Minute)
					res := w.with(billedCounter{w.s})
					if res.Held != "" || res.Error != "" {
						t.Fatalf("%+v", res)
					}
					n := res.Operations
					reads, all, deleted = reads+n.Reads, all+n.Reads+n.Writes+n.Deletes, deleted+res.Deleted
				}
			}
		})
		return reads, all, deleted
	}
	with, _, deleted := sum(t, true)
	without, all, again := sum(t, false)
	if deleted != again || deleted < (hours-1)*each {
		t.Fatalf("%d deletes with a breaker, %d without", deleted, again)
	}
	share := float64(with-without) / float64(all)
	t.Logf("%d reads with a breaker, %d without, of %d operations: %.2f%%", with, without, all, 100*share)
	if share > 0.01 {
		t.Error("more than a hundredth")
	}
}
