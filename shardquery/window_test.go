package shardquery_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// tombstones has a store time out when a query would step over more than most of
// them: one lies in each minute.
func tombstones(most int, from time.Time) func(context.Context, modelstore.Call) error {
	return func(_ context.Context, c modelstore.Call) error {
		first, last := from, from
		for _, v := range []store.Value{c.Query.Lo, c.Query.After.Value} {
			if k, err := expirykey.Parse(v.Text); err == nil && k.Expires.After(first) {
				first = k.Expires
			}
		}
		if k, err := expirykey.Parse(c.Query.Hi.Text); err == nil {
			last = k.Expires
		}
		if n := last.Sub(first) / time.Minute; n > time.Duration(most) {
			return fmt.Errorf("%d tombstones: %w", n, context.DeadlineExceeded)
		}
		return nil
	}
}

// A look is a query: to which instant, in hours from the floor on, and whether it
// was late.
type look struct {
	to   float64
	late bool
}

// looks reads to the end of a range without entries, and returns what was asked.
func looks(t *testing.T, reader *shardquery.Reader) (list []look) {
	t.Helper()
	s := &watched{Store: reader.Store.(*modelstore.Store), t: t}
	reader.Store = s
	place := reader.Position().Value
	for more := true; more; {
		var page store.Page
		var err error
		more, err = reader.Next(t.Context(), &page, 500)
		late := errors.Is(err, shardquery.ErrShrunk)
		if err != nil && !late {
			t.Fatal(err)
		}
		q := s.queries[len(s.queries)-1]
		hi, err := reader.Range.Expires(q.Hi)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, look{hi.Sub(reader.Floor).Hours(), late})
		if q.After.Value != place {
			t.Fatalf("a window begins behind %v, not behind %v", q.After.Value, place)
		}
		if place = reader.Position().Value; !late && place != q.Hi {
			t.Fatalf("the position is %v behind a window that ends at %v", place, q.Hi)
		}
		more = more || late
	}
	return list
}

// read returns looks that were not late.
func read(to ...float64) (list []look) {
	for _, h := range to {
		list = append(list, look{h, false})
	}
	return list
}

// late returns looks that were.
func late(to ...float64) (list []look) {
	for _, h := range to {
		list = append(list, look{h, true})
	}
	return list
}

func TestWindowsBeginSmallAndDouble(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		from   float64 // hours from the floor on; 0 is the start of the range
		window time.Duration
		slow   float64 // hours: queries that end before take long, but are not late
		want   []look
		after  time.Duration
	}{
		"all at once":      {0, 0, 0, read(100), 0},
		"from the start":   {0, time.Hour, 0, read(0, 1, 3, 7, 15, 31, 63, 100), 64 * time.Hour},
		"behind the floor": {10, 2 * time.Hour, 0, read(12, 16, 24, 40, 72, 100), 64 * time.Hour},
		"before the floor": {-1, 30 * time.Hour, 0, read(0, 30, 90, 100), 120 * time.Hour},
		"slowly":           {0, 10 * time.Hour, 35, read(0, 10, 20, 30, 40, 60, 100), 80 * time.Hour},
		"in one":           {0, 1000 * time.Hour, 0, read(0, 100), 1000 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := modelstore.New(time.Now)
			s.Before = func(_ context.Context, q modelstore.Call) error {
				if k, _ := expirykey.Parse(q.Query.Hi.Text); k.Expires.Sub(floor).Hours() < c.slow {
					time.Sleep(30 * time.Second / 4)
				}
				return nil
			}
			reader := newReader(s, floor.Add(100*time.Hour))
			reader.Floor, reader.Window = floor, c.window
			if c.from != 0 {
				reader.From = store.Position{Value: keyAt(floor.Add(time.Duration(c.from) * time.Hour))}
			}
			if got := looks(t, reader); !slices.Equal(got, c.want) || reader.NextWindow() != c.after {
				t.Errorf("%s: %v and then windows of %v, want %v and %v", name, got, reader.NextWindow(), c.want, c.after)
			}
		})
	}
}

// A late query halves the window, and from then on only eight quick windows in a
// row are followed by a longer one.
func TestLateWindowHalvesAndIsCautious(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(time.Now)
	s.Before = tombstones(10*60, floor)
	reader := newReader(s, floor.Add(1000*time.Hour))
	reader.Floor, reader.Window = floor, 4*time.Hour
	got := looks(t, reader)
	want := slices.Concat(read(0, 4, 12), late(28), read(20, 28, 36, 44, 52, 60, 68, 76),
		late(92), read(84, 92, 100, 108, 116, 124, 132, 140), late(156))
	if !slices.Equal(got[:len(want)], want) {
		t.Errorf("%v, want %v", got[:len(want)], want)
	}
	missed := 0
	for _, l := range got {
		if l.late {
			missed++
		}
	}
	if missed > len(got)/8 {
		t.Errorf("%d of %d queries were late", missed, len(got))
	}
	if end := got[len(got)-1]; end != (look{1000, false}) || reader.NextWindow() != 8*time.Hour {
		t.Errorf("it ended at %v, the next window is %v", end, reader.NextWindow())
	}

	// A later reader that begins with that window has its first query in time.
	again := newReader(s, floor.Add(1000*time.Hour))
	again.From = store.Position{Value: keyAt(floor.Add(500 * time.Hour))}
	again.Floor, again.Window = floor, reader.NextWindow()
	if again.NextWindow() != reader.NextWindow() {
		t.Errorf("before its first query: %v", again.NextWindow())
	}
	got = looks(t, again)
	if want := slices.Concat(read(508), late(524), read(516)); !slices.Equal(got[:len(want)], want) {
		t.Errorf("again: %v, want %v", got[:len(want)], want)
	}
}

// Without a window the first late query is that for everything. What lies before
// the floor is then read by itself, and takes nothing from the windows behind it.
func TestWindowsComeWithTheFirstLateQuery(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(time.Now)
	s.Before = tombstones(30*60, floor)
	reader := newReader(s, floor.Add(100*time.Hour))
	reader.Floor = floor
	want := slices.Concat(late(100), read(0), late(100, 50), read(25, 50, 75, 100))
	if got := looks(t, reader); !slices.Equal(got, want) || reader.NextWindow() != 25*time.Hour {
		t.Errorf("%v and then windows of %v, want %v", got, reader.NextWindow(), want)
	}

	// Tombstones before the floor, where no entries are expected.
	s.Before = tombstones(30*60, floor.Add(-100*time.Hour))
	reader = newReader(s, floor.Add(20*time.Hour))
	reader.Floor, reader.Window = floor, time.Hour
	reader.From = store.Position{Value: keyAt(floor.Add(-100 * time.Hour))}
	want = slices.Concat(late(0, -50), read(-75, -50, -25, 0), read(1, 3, 7, 15, 20))
	if got := looks(t, reader); !slices.Equal(got, want) || reader.NextWindow() != 16*time.Hour {
		t.Errorf("before the floor: %v and then windows of %v, want %v", got, reader.NextWindow(), want)
	}

	// At first nothing but what lies before the floor is wanted.
	reader = newReader(s, floor.Add(-40*time.Hour))
	reader.Floor, reader.From = floor, store.Position{Value: keyAt(floor.Add(-100 * time.Hour))}
	want = slices.Concat(late(-40), read(-70, -40))
	if got := looks(t, reader); !slices.Equal(got, want) || reader.NextWindow() != 0 {
		t.Errorf("before the floor alone: %v and then windows of %v, want %v", got, reader.NextWindow(), want)
	}
	reader.Store = s
	reader.Extend(floor.Add(20 * time.Hour))
	if got := looks(t, reader); !slices.Equal(got, read(-10, 0, 20)) {
		t.Errorf("and then: %v", got)
	}
}

// What was learned about windows stays, where a reader goes back to before there
// were any.
func TestSeekForgetsNoWindow(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	reader := newReader(s, floor.Add(time.Hour))
	reader.Floor = floor
	next(t, s, reader, 500, false, nil)
	s.Before = tombstones(30*60, floor)
	reader.Extend(floor.Add(41 * time.Hour))
	var page store.Page
	if _, err := reader.Next(t.Context(), &page, 500); !errors.Is(err, shardquery.ErrShrunk) {
		t.Fatal(err)
	}
	s.Before = func(context.Context, modelstore.Call) error { return store.ErrDeadline }
	reader.Seek(store.Position{Value: keyAt(floor.Add(-time.Hour))})
	if _, err := reader.Next(t.Context(), &page, 500); !errors.Is(err, shardquery.ErrShrunk) {
		t.Fatal(err)
	}
	if q := s.queries[2]; q.Hi != keyAt(floor.Add(time.Hour)) {
		t.Errorf("the window before ends at %v", q.Hi)
	}
	if reader.NextWindow() != 20*time.Hour {
		t.Errorf("the next window is %v", reader.NextWindow())
	}
}

// A store that is slow whatever it is asked gets more time for windows as long as they
// were; one that only steps over too much does not.
func TestReaderTellsASlowStoreFromALongWindow(t *testing.T) {
	const timeout = 5 * time.Second
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	answerAfter := func(takes func(modelstore.Call) time.Duration) func(context.Context, modelstore.Call) error {
		return func(ctx context.Context, c modelstore.Call) error { return throttle.Sleep(ctx, takes(c)) }
	}
	for name, one := range map[string]struct {
		takes func(modelstore.Call) time.Duration
		days  int
		long  time.Duration // the first window
		late  int           // at most
		took  time.Duration
		next  time.Duration // the window, at least
	}{
		// Five are late, a minute of windows that grow no more follows.
		"slow": {func(modelstore.Call) time.Duration { return 7 * time.Second }, 1, time.Hour, 5, 5*timeout + 25*7*time.Second, time.Hour},
		// Five late in a row twice, and then there is time enough.
		"slower": {func(modelstore.Call) time.Duration { return 15 * time.Second }, 1, time.Hour, 10, 15*timeout + 25*15*time.Second, time.Hour},
		"dense": {func(c modelstore.Call) time.Duration {
			first, _ := expirykey.Parse(max(c.Query.Lo.Text, c.Query.After.Value.Text))
			last, _ := expirykey.Parse(c.Query.Hi.Text)
			return last.Expires.Sub(first.Expires) / 60 // a minute for each hour
		}, 1, time.Hour, 200, time.Hour, 150 * time.Second},
		// Windows that begin small grow nonetheless: ten doublings of eight queries each.
		"slow for a month": {func(modelstore.Call) time.Duration { return 7 * time.Second }, 30, time.Minute, 5,
			20 * time.Minute, 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &watched{Store: modelstore.New(time.Now), t: t}
				s.Before = answerAfter(one.takes)
				reader := newReader(s, floor.Add(time.Duration(one.days)*24*time.Hour))
				reader.From, reader.Floor = store.Position{Value: keyAt(floor)}, floor
				reader.Window, reader.Timeout = one.long, timeout
				began, late := time.Now(), 0
				for more := true; more; {
					var page store.Page
					var err error
					more, err = reader.Next(t.Context(), &page, 500)
					if errors.Is(err, shardquery.ErrShrunk) {
						late, more = late+1, true
					} else if err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(began); late > one.late || took > one.took || reader.NextWindow() < one.next {
					t.Errorf("%d queries were late, all took %v, and the next window is %v", late, took, reader.NextWindow())
				}
			})
		})
	}
}

// Every query in a window must be quick for the next window to be longer. A late
// query ends a window: the count starts again, and the next query asks for fewer entries.
func TestEachQueryInAWindowCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		floor := time.Now().UTC().Truncate(time.Hour)
		s := &watched{Store: modelstore.New(time.Now), t: t}
		put(t, s, floor.Add(time.Minute), time.Minute, 60)
		reader := newReader(s, floor.Add(1000*time.Hour))
		reader.From, reader.Floor, reader.Window = store.Position{Value: keyAt(floor)}, floor, time.Hour
		slow := func(context.Context, modelstore.Call) error { time.Sleep(10 * time.Second); return nil }
		s.Before = slow
		next(t, s, reader, 40, true, names(0, 40))
		s.Before = nil
		next(t, s, reader, 40, true, names(40, 60))
		if reader.NextWindow() != time.Hour {
			t.Errorf("after a slow page and a quick one the window is %v", reader.NextWindow())
		}

		reader.Seek(store.Position{Value: keyAt(floor)})
		s.Before = slow
		next(t, s, reader, 20, true, names(0, 20))
		s.Before = func(context.Context, modelstore.Call) error { return store.ErrDeadline }
		var page store.Page
		for _, want := range []int{300, 150, 75, 50, 50} {
			_, err := reader.Next(t.Context(), &page, 300)
			if got := s.queries[len(s.queries)-1].Limit; got != want || !errors.Is(err, shardquery.ErrShrunk) {
				t.Errorf("asked for %d entries, not %d: %v", got, want, err)
			}
		}
		s.Before = nil
		small := reader.NextWindow() // 40 minutes, halved five times
		for i := range 8 {
			if got := reader.NextWindow(); got != small || got != 75*time.Second {
				t.Errorf("after %d quick windows they are of %v", i, got)
			}
			if _, err := reader.Next(t.Context(), &page, 300); err != nil {
				t.Fatal(err)
			}
		}
		if got := reader.NextWindow(); got != 2*small {
			t.Errorf("after eight quick windows they are of %v", got)
		}
	})
}

// Timestamps begin with the floor, whatever the position.
func TestTimestampsBeginWithTheFloor(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	for _, from := range []store.Position{{}, {Value: store.InstantValue(floor.Add(-time.Hour)), Key: `"x"`}} {
		s := &watched{Store: modelstore.New(time.Now), t: t}
		reader := newReader(s, floor.Add(5*time.Hour))
		reader.Target, reader.Range = instants, shardquery.Range{Form: layout.Instants}
		reader.From, reader.Floor, reader.Window = from, floor, 2*time.Hour
		if got := rest(t, reader); len(got) > 0 {
			t.Errorf("%q", got)
		}
		var ends []float64
		for _, q := range s.queries {
			ends = append(ends, q.Hi.Time.Sub(floor).Hours())
		}
		if !slices.Equal(ends, []float64{2, 5}) || s.queries[0].Lo != store.InstantValue(floor) {
			t.Errorf("from %v: windows to %v", from, ends)
		}
	}
}

// A window that was cut short says little about longer ones: a range that is swept
// every minute does not come to believe in windows of years.
func TestShortWindowsDoNotGrow(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(time.Now)
	reader := newReader(s, floor)
	reader.Floor, reader.Window = floor, time.Hour
	for range 100 {
		reader.Extend(reader.Until.Add(time.Minute))
		var page store.Page
		for more := true; more; {
			var err error
			if more, err = reader.Next(t.Context(), &page, 500); err != nil {
				t.Fatal(err)
			}
		}
	}
	if reader.NextWindow() != time.Hour {
		t.Errorf("the next window is %v", reader.NextWindow())
	}
}

// Windows of centuries do not overflow, and end with the range.
func TestWindowsOfCenturies(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, window := range []time.Duration{1, 100 * year, 150 * year, math.MaxInt64} {
		s := &watched{Store: modelstore.New(time.Now), t: t}
		reader := newReader(s, time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC))
		reader.Floor, reader.Window = time.Time{}, window
		var page store.Page
		for more := true; more; {
			before := reader.Position().Value
			var err error
			if more, err = reader.Next(t.Context(), &page, 500); err != nil {
				t.Fatal(err)
			}
			if q := reader.Query(); q.Hi.Compare(before) <= 0 || q.After.Value != before {
				t.Fatalf("from %v to %v behind %v", q.After.Value, q.Hi, before)
			}
		}
		end := reader.Query().Hi
		if end != keyAt(shardquery.LastInstant) || len(s.queries) > 150 || reader.NextWindow() <= 0 {
			t.Errorf("%v: %d windows, the last one to %v; the next of %v",
				window, len(s.queries), end, reader.NextWindow())
		}
	}
}

// Where the position is malformed the next windows still lie behind it.
func TestWindowsBehindMalformedPositions(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(time.Now)
	s.Before = tombstones(30*60, floor)
	for text, want := range map[string][]look{
		"00000001.0000.20261121":             read(1, 3, 7, 15, 20),
		"00000001.0000.20261121T130000.000a": read(11, 13, 17, 20),
		"00000001.0000.tomorrow":             nil, // past all windows: there is nothing to ask for
	} {
		reader := newReader(s, floor.Add(20*time.Hour))
		reader.Floor, reader.Window = floor, time.Hour
		reader.From = store.Position{Value: store.TextValue(text), Key: `"odd"`}
		var got []look
		for more := true; more; {
			var page store.Page
			var err error
			if more, err = reader.Next(t.Context(), &page, 500); err != nil {
				t.Fatal(err)
			}
			if hi, _ := expirykey.Parse(reader.Query().Hi.Text); hi.Expires.After(floor) {
				got = append(got, look{hi.Expires.Sub(floor).Hours(), false})
			}
			if reader.Position().Value.Compare(reader.From.Value) < 0 {
				t.Fatalf("%q: the reader went back to %v", text, reader.Position())
			}
		}
		// The last millisecond before a malformed instant is where its windows begin.
		if !slices.EqualFunc(got, want, func(a, b look) bool { return math.Abs(a.to-b.to) < 0.001 }) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
