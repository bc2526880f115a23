package shardquery_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// Whatever queries fail, are too slow or too large, wherever a reader goes back to,
// how far it is extended, and wherever it stops and another goes on from its
// position: each entry comes once, in order.
func TestReaderReadsEachEntryOnce(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			readEachOnce(t, rand.New(rand.NewPCG(seed, 3)), seed%2 == 1)
		})
		if t.Failed() {
			return
		}
	}
}

// FuzzReader has the fuzzer choose what is there and which queries fail.
func FuzzReader(f *testing.F) {
	f.Add([]byte("\xff\x00\xff\x00"), false)
	f.Add([]byte("what is there, and which queries fail"), true)
	f.Fuzz(func(t *testing.T, text []byte, byInstant bool) {
		synctest.Test(t, func(t *testing.T) {
			readEachOnce(t, rand.New(&script{text, rand.NewPCG(1, 2)}), byInstant)
		})
	})
}

func readEachOnce(t *testing.T, rng *rand.Rand, byInstant bool) {
	t.Helper()
	target, r := target, shardquery.Range{Generation: 1}
	if byInstant {
		target, r = instants, shardquery.Range{Form: layout.Instants}
	}
	now := time.Now()
	floor := now.Add(-2500 * time.Hour)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	want := fill(t, s, target, r, now, rng)
	s.Before = failures(rng, r, now)
	until := now.Add(-time.Duration(rng.Int64N(int64(2600 * time.Hour))))
	c := course{t: t, rng: rng, store: s}
	c.begin = func(after store.Position, before pageReader) pageReader {
		windows := []time.Duration{0, 1, math.MaxInt64, time.Duration(rng.Int64N(int64(500 * time.Hour)))}
		reader := &shardquery.Reader{Store: s, Target: target, Range: r, From: after, Until: until,
			Floor: floor, Window: windows[rng.IntN(len(windows))], Now: time.Now}
		if before != nil && rng.IntN(2) == 0 {
			reader.Window = before.(*shardquery.Reader).NextWindow()
		}
		return reader
	}
	for {
		more := c.step()
		if !more && until.Equal(now) {
			break
		}
		if !more || rng.IntN(10) == 0 {
			until = until.Add(time.Duration(rng.Int64N(int64(800 * time.Hour))))
			if until.After(now) || rng.IntN(10) == 0 {
				until = now
			}
			reader := c.reader.(*shardquery.Reader)
			reader.Extend(until)
			reader.Extend(until.Add(-1000 * time.Hour)) // never back
		}
	}
	c.isOver(want)
}

// fill puts entries into the range: at instants from long ago to now, many at one of
// them, and malformed ones. It returns what a reader should find, in order.
func fill(
	t *testing.T, s *watched, target store.Target, r shardquery.Range, now time.Time, rng *rand.Rand,
) (want []string) {
	t.Helper()
	lo := r.Lo(now.Add(-2500 * time.Hour))
	hi, _ := r.UpTo(now)
	for i := range rng.IntN(200) {
		at := now.Add(-time.Duration(rng.Int64N(int64(2000 * time.Hour))))
		switch rng.IntN(12) {
		case 0, 1, 2, 3:
			at = now.Add(-1000 * time.Hour) // many at one instant
		case 4:
			at = now.AddDate(-1-rng.IntN(1900), 0, 0)
		}
		expiry := store.InstantValue(at)
		if r.Form == layout.Keys {
			key, err := expirykey.New(1, 0, at)
			if err != nil {
				t.Fatal(err)
			}
			expiry = store.TextValue(key.String())
			switch rng.IntN(15) {
			case 0: // between two instants
				expiry.Text += "x"
			case 1:
				expiry.Text = expiry.Text[:33] + "a"
			}
		}
		name := fmt.Sprintf("e-%03d", i)
		if expiry.Compare(lo) >= 0 && expiry.Compare(hi) <= 0 {
			want = append(want, shown(expiry)+` "`+name+`"`)
		}
		_ = s.Put(t.Context(), target, "", []store.Entity{{Name: name, Expiry: expiry}})
	}
	slices.Sort(want)
	return want
}

// failures returns a hook that fails queries: now and then, where they ask for too
// much, and where they step over too many tombstones. Those lie over the last 3,000
// hours only.
func failures(rng *rand.Rand, r shardquery.Range, now time.Time) func(context.Context, modelstore.Call) error {
	dense := time.Duration(100+rng.IntN(1000)) * time.Hour // a query over more than this is too slow
	return func(ctx context.Context, c modelstore.Call) error {
		from := now.Add(-3000 * time.Hour)
		for _, v := range []store.Value{c.Query.Lo, c.Query.After.Value} {
			if v.Type == store.Text && len(v.Text) > 33 {
				v.Text = v.Text[:33] + "Z"
			}
			if at, err := r.Expires(v); err == nil && at.After(from) {
				from = at
			}
		}
		to, err := r.Expires(c.Query.Hi)
		switch {
		case rng.IntN(10) == 0:
			return fmt.Errorf("now and then: %w", store.ErrUnavailable)
		case c.Query.Limit > 20 && rng.IntN(2) == 0:
			return fmt.Errorf("%d at once: %w", c.Query.Limit, store.ErrTooLarge)
		case err == nil && to.Sub(from) > dense:
			<-ctx.Done()
			return fmt.Errorf("too many tombstones: %w", ctx.Err())
		case rng.IntN(10) == 0: // not late, but not quick
			time.Sleep(10 * time.Second)
		}
		return nil
	}
}

func newReader(s store.Store, until time.Time) *shardquery.Reader {
	return &shardquery.Reader{Store: s, Target: target, Range: shardquery.Range{Generation: 1}, Until: until,
		Floor: until.Add(-2500 * time.Hour), Now: time.Now}
}

// keyAt returns the value of an entry in generation 1, shard 0.
func keyAt(at time.Time) store.Value {
	last, _ := expirykey.UpTo(1, 0, at)
	return store.TextValue(last)
}

// put writes n entities that expire from one instant on, one in each step.
func put(t *testing.T, s *watched, from time.Time, step time.Duration, n int) {
	t.Helper()
	for i := range n {
		name := fmt.Sprintf("e-%04d", i)
		expiry := keyAt(from.Add(time.Duration(i) * step))
		_ = s.Put(t.Context(), target, "", []store.Entity{{Name: name, Expiry: expiry}})
	}
}

// keys lists what a page holds.
func keys(page store.Page) (list []string) {
	for _, e := range page.Entries {
		list = append(list, e.Key)
	}
	return list
}

// names lists the keys of what put wrote, from the i-th to the one before the j-th.
func names(i, j int) (list []string) {
	for ; i < j; i++ {
		list = append(list, fmt.Sprintf(`"e-%04d"`, i))
	}
	return list
}

// next reads one page, and holds that it is one query and what it shows.
func next(t *testing.T, s *watched, r pageReader, most int, wantMore bool, want []string) {
	t.Helper()
	var page store.Page
	asked := len(s.queries)
	more, err := r.Next(t.Context(), &page, most)
	if err != nil || more != wantMore || !slices.Equal(keys(page), want) || len(s.queries) != asked+1 {
		t.Fatalf("%d queries, %v, %v, %q, want one query, %v, %q",
			len(s.queries)-asked, err, more, keys(page), wantMore, want)
	}
}

// rest reads to the end, and lists what it found.
func rest(t *testing.T, r pageReader) (list []string) {
	t.Helper()
	for more := true; more; {
		var page store.Page
		var err error
		if more, err = r.Next(t.Context(), &page, store.MaxPage); err != nil {
			t.Fatal(err)
		}
		list = append(list, keys(page)...)
	}
	return list
}

// One call is one query, whatever comes of it, and a failing one takes no longer
// than the store does.
func TestNextMakesOneQuery(t *testing.T) {
	for _, c := range []struct {
		err       error
		mayShrink bool
	}{
		{store.ErrDenied, false},
		{store.ErrMissingIndex, false},
		{store.ErrUnavailable, false},
		{store.ErrPushback, false},
		{store.ErrTooLarge, true},
		{store.ErrDeadline, true},
		{context.DeadlineExceeded, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &watched{Store: modelstore.New(time.Now), t: t}
			s.Before = func(context.Context, modelstore.Call) error { return fmt.Errorf("for ever: %w", c.err) }
			reader, began := newReader(s, time.Now()), time.Now()
			reader.From = store.Position{Value: keyAt(began.Add(-time.Hour))}
			shrunk := 0
			for calls := 1; ; calls++ {
				var page store.Page
				more, err := reader.Next(t.Context(), &page, 500)
				if !errors.Is(err, c.err) || more || len(s.queries) != calls || time.Since(began) > 0 {
					t.Fatalf("%d queries in %d calls: %v, %v", len(s.queries), calls, more, err)
				}
				if reader.Position() != reader.From {
					t.Fatalf("the position is %v", reader.Position())
				}
				if !errors.Is(err, shardquery.ErrShrunk) {
					break
				}
				shrunk++
			}
			if shrunk > 0 != c.mayShrink || shrunk > 100 {
				t.Errorf("%v: asked for less %d times", c.err, shrunk)
			}
			var page store.Page
			_, _ = reader.Next(t.Context(), &page, 500)
			last, before := s.queries[len(s.queries)-1], s.queries[len(s.queries)-2]
			if last != before || c.mayShrink && last.Limit != 1 {
				t.Errorf("%v: asked for %+v after %+v", c.err, last, before)
			}
		})
	}
}

// What the caller's own context ends says nothing about the query.
func TestCallersContextShrinksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &watched{Store: modelstore.New(time.Now), t: t}
		reader := newReader(s, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var page store.Page
		_, err := reader.Next(ctx, &page, 500)
		if !errors.Is(err, context.Canceled) || errors.Is(err, shardquery.ErrShrunk) {
			t.Errorf("cancelled: %v", err)
		}
		// Its deadline, in the middle of a query that would take longer.
		s.Before = func(ctx context.Context, _ modelstore.Call) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = reader.Next(ctx, &page, 500)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, shardquery.ErrShrunk) {
			t.Errorf("out of time: %v", err)
		}
		if s.queries[0] != s.queries[1] || reader.NextWindow() != 0 {
			t.Errorf("asked for %+v and then for %+v", s.queries[0], s.queries[1])
		}
	})
}

func TestPagesShrinkAndGrow(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	put(t, s, now.Add(-3000*time.Minute), time.Minute, 3000)
	s.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Query.Limit > 100 {
			return store.ErrTooLarge
		}
		return nil
	}
	reader := newReader(s, now)
	var page store.Page
	var limits []int
	read := func(most int) {
		_, err := reader.Next(t.Context(), &page, most)
		if err != nil && !errors.Is(err, shardquery.ErrShrunk) {
			t.Fatal(err)
		}
		limits = append(limits, s.queries[len(s.queries)-1].Limit)
	}
	for range 15 {
		read(400)
	}
	for range 5 {
		read(30) // says nothing about what the store bears
	}
	for range 8 {
		read(400)
	}
	s.Before = func(context.Context, modelstore.Call) error { return store.ErrTooLarge }
	read(400)
	s.Before = nil
	for range 9 { // the count starts again
		read(400)
	}
	want := slices.Concat([]int{400, 200}, slices.Repeat([]int{100}, 8), []int{125}, slices.Repeat([]int{62}, 4),
		slices.Repeat([]int{30}, 5), slices.Repeat([]int{62}, 4), slices.Repeat([]int{77}, 5),
		slices.Repeat([]int{38}, 8), []int{47})
	if !slices.Equal(limits, want) {
		t.Errorf("asked for %v, want %v", limits, want)
	}
}

// The store's own cursor goes with the next query while that is the same, also
// after a failure, and not with another.
func TestCursorGoesWithItsQuery(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	put(t, s, now.Add(-100*time.Minute), time.Minute, 100)
	reader := newReader(s, now)
	var page store.Page
	for i, c := range []struct {
		most int
		err  error
		want bool
	}{
		{10, nil, false}, {10, nil, true}, {10, store.ErrUnavailable, true}, {10, nil, true},
		{20, nil, false}, {20, nil, true},
	} {
		s.Before = func(context.Context, modelstore.Call) error { return c.err }
		if _, err := reader.Next(t.Context(), &page, c.most); !errors.Is(err, c.err) {
			t.Fatal(err)
		}
		if got := s.queries[i].Next != nil; got != c.want {
			t.Errorf("query %d has the cursor: %v, want %v", i, got, c.want)
		}
	}
	reader.Seek(reader.Position())
	next(t, s, reader, 20, true, names(70, 90))
	if s.queries[6].Next != nil {
		t.Error("the cursor outlived a seek")
	}
}

func TestSeekGoesOnInsideAWindow(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	first := now.Add(-1000 * time.Minute)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	put(t, s, first, time.Minute, 1000)
	at := func(i int) store.Position {
		return store.Position{Value: keyAt(first.Add(time.Duration(i) * time.Minute)), Key: names(i, i+1)[0]}
	}
	reader := newReader(s, now)
	reader.Floor, reader.Window = first, time.Hour
	next(t, s, reader, 25, true, names(0, 1)) // what is not after the floor
	last := func() store.Query { return s.queries[len(s.queries)-1] }

	next(t, s, reader, 25, true, names(1, 26))
	next(t, s, reader, 25, true, names(26, 51))
	end := last().Hi
	if end != keyAt(first.Add(time.Hour)) {
		t.Fatalf("the window ends at %v", end)
	}
	reader.Seek(at(30))
	if reader.Position() != at(30) {
		t.Errorf("the position is %v", reader.Position())
	}
	next(t, s, reader, 25, true, names(31, 56))
	if q := last(); q.After != at(30) || q.Next != nil || q.Hi != end {
		t.Errorf("in the window: %+v", q)
	}
	next(t, s, reader, 25, true, names(56, 61))
	reader.Seek(at(58)) // the window is at its end, the next one not begun
	next(t, s, reader, 25, true, names(59, 61))

	next(t, s, reader, 25, true, names(61, 86))
	if last().Hi != keyAt(first.Add(3*time.Hour)) {
		t.Errorf("the second window ends at %v", last().Hi)
	}
	reader.Seek(at(40)) // in the window before
	next(t, s, reader, 25, true, names(41, 61))
	if last().Hi != end {
		t.Errorf("the first window, read again, ends at %v, not %v", last().Hi, end)
	}
	if got := rest(t, reader); !slices.Equal(got, names(61, 1000)) {
		t.Errorf("the rest: %q", got)
	}
	reader.Seek(at(3)) // far back
	next(t, s, reader, 25, true, names(4, 29))
	reader.Seek(store.Position{})
	if got := rest(t, reader); !slices.Equal(got, names(0, 1000)) {
		t.Errorf("from the start: %q", got)
	}
}

func TestExtendGoesOnBehindTheEnd(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	first := now.Add(-100 * time.Minute)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	put(t, s, first, time.Minute, 100)
	reader := newReader(s, first.Add(9*time.Minute+500*time.Microsecond))
	next(t, s, reader, 4, true, names(0, 4))
	reader.Extend(first.Add(19 * time.Minute)) // in the middle of a window, which stays as it is
	next(t, s, reader, 4, true, names(4, 8))
	if q := s.queries[1]; q.Hi != s.queries[0].Hi || q.Next == nil {
		t.Errorf("another query in one window: %+v", q)
	}
	next(t, s, reader, 4, true, names(8, 10))
	next(t, s, reader, 40, false, names(10, 20))

	for _, after := range []time.Duration{0, 19 * time.Minute, 19*time.Minute + 500*time.Microsecond} {
		reader.Extend(first.Add(after))
		var page store.Page
		more, err := reader.Next(t.Context(), &page, 40)
		if more || err != nil || len(page.Entries) > 0 || len(s.queries) != 4 {
			t.Errorf("behind the end: %v, %v, %v, %d queries", page.Entries, more, err, len(s.queries))
		}
	}
	// What is written behind is not seen, but what is ahead.
	late := store.Entity{Name: "late", Expiry: keyAt(first.Add(5 * time.Minute))}
	_ = s.Put(t.Context(), target, "", []store.Entity{late})
	reader.Extend(first.Add(30 * time.Minute))
	next(t, s, reader, 40, false, names(20, 31))
	reader.Extend(first.Add(31 * time.Minute))
	reader.Seek(store.Position{Value: keyAt(first.Add(25 * time.Minute))})
	next(t, s, reader, 40, true, names(25, 31))
	next(t, s, reader, 40, false, names(31, 32))
	reader.Extend(time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC))
	next(t, s, reader, 100, false, names(32, 100))
}

func TestNothingBeforeYearOne(t *testing.T) {
	s := &watched{Store: modelstore.New(time.Now), t: t}
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	put(t, s, now, time.Minute, 1)
	for _, window := range []time.Duration{0, time.Hour} {
		s.queries = nil
		reader := newReader(s, time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC))
		reader.Window = window
		var page store.Page
		for range 2 {
			more, err := reader.Next(t.Context(), &page, 500)
			if more || err != nil || len(page.Entries) > 0 || len(s.queries) > 0 {
				t.Errorf("%v, %v, %v, %d queries", page.Entries, more, err, len(s.queries))
			}
		}
		reader.Floor = now.Add(-time.Hour)
		reader.Extend(now)
		if got := rest(t, reader); !slices.Equal(got, names(0, 1)) {
			t.Errorf("%q", got)
		}
	}
}
