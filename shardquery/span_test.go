package shardquery_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A span over generations shows each entry once, in order, whatever queries fail or
// are too slow, wherever a reader goes back to, and wherever one stops and another
// goes on from its position.
func TestSpanReaderReadsEachEntryOnce(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			spanReadsOnce(t, rand.New(rand.NewPCG(seed, 5)))
		})
		if t.Failed() {
			return
		}
	}
}

// FuzzSpanReader has the fuzzer choose what is there and which queries fail.
func FuzzSpanReader(f *testing.F) {
	f.Add([]byte("\xff\x00\xff\x00"))
	f.Add([]byte("what is there, and which queries fail"))
	f.Fuzz(func(t *testing.T, text []byte) {
		synctest.Test(t, func(t *testing.T) {
			spanReadsOnce(t, rand.New(&script{text, rand.NewPCG(1, 2)}))
		})
	})
}

func spanReadsOnce(t *testing.T, rng *rand.Rand) {
	t.Helper()
	now := time.Now()
	s := &watched{Store: modelstore.New(time.Now), t: t}
	from, _ := expirykey.GenerationRange(3)
	_, to := expirykey.GenerationRange(5)
	if rng.IntN(3) == 0 { // what lies before a sealed range's first survivor
		last, _ := expirykey.UpTo(4, 1, now)
		from, to = expirykey.Prefix(4, 1), last
	}
	want := fillSpan(t, s, from, to, now, rng)
	s.Before = spanFailures(rng, now)
	c := course{t: t, rng: rng, store: s}
	c.begin = func(after store.Position, _ pageReader) pageReader {
		return &shardquery.SpanReader{Store: s, Target: target, From: from, To: to, After: after,
			Floor: now.Add(-1825 * 24 * time.Hour), Now: time.Now}
	}
	for c.step() {
	}
	c.isOver(want)
	if at := c.reader.Position().Value.Text; at != to && len(c.got) > 0 {
		t.Errorf("at its end the reader stands at %q, not %q", at, to)
	}
}

// fillSpan puts entries into and around a span, and returns those that are inside,
// in order.
func fillSpan(t *testing.T, s *watched, from, to string, now time.Time, rng *rand.Rand) (want []string) {
	t.Helper()
	n := 0
	add := func(value string) {
		name := fmt.Sprintf("e-%03d", n)
		n++
		if value >= from && value < to {
			want = append(want, value+` "`+name+`"`)
		}
		_ = s.Put(t.Context(), target, "", []store.Entity{{Name: name, Expiry: store.TextValue(value)}})
	}
	for range rng.IntN(120) {
		at := now.Add(time.Duration(rng.Int64N(int64(4000*time.Hour))) - 2000*time.Hour)
		if rng.IntN(4) == 0 {
			at = now.AddDate(rng.IntN(4000)-1900, 0, 0)
		}
		key, err := expirykey.New(2+rng.IntN(5), rng.IntN(4), at)
		if err != nil {
			t.Fatal(err)
		}
		text := key.String()
		if rng.IntN(20) == 0 {
			text += "x"
		}
		add(text)
	}
	last, _ := expirykey.UpTo(4, 1, now)
	for range 30 {
		add(last) // also where the span ends
	}
	for _, odd := range []string{"00000003.0002.tomorrow", "00000004.0001.tomorrow", "00000004.", "00000004.x",
		"00000003/", "00000004.9999.", "00000006.", "00000002/"} {
		add(odd)
	}
	slices.Sort(want)
	return want
}

// spanFailures returns a hook that fails queries: now and then, where they ask for
// too much, and where they step over too many tombstones. Those lie in two shards of
// generation 4, over the last 300 hours.
func spanFailures(rng *rand.Rand, now time.Time) func(context.Context, modelstore.Call) error {
	type span struct{ from, to string }
	var dense []span
	for _, shard := range []int{1, 3} {
		for h := -300; h < 0; h += 10 {
			a, _ := expirykey.UpTo(4, shard, now.Add(time.Duration(h)*time.Hour))
			b, _ := expirykey.UpTo(4, shard, now.Add(time.Duration(h+10)*time.Hour))
			dense = append(dense, span{a, b})
		}
	}
	most := 1 + rng.IntN(8)
	return func(ctx context.Context, c modelstore.Call) error {
		first := max(c.Query.Lo.Text, c.Query.After.Value.Text)
		steps := 0
		for _, d := range dense {
			if d.to > first && d.from < c.Query.Hi.Text {
				steps++
			}
		}
		switch {
		case rng.IntN(15) == 0:
			return fmt.Errorf("now and then: %w", store.ErrUnavailable)
		case c.Query.Limit > 20 && rng.IntN(2) == 0:
			return fmt.Errorf("%d at once: %w", c.Query.Limit, store.ErrTooLarge)
		case steps > most+1:
			<-ctx.Done()
			return fmt.Errorf("too many tombstones: %w", ctx.Err())
		case rng.IntN(10) == 0: // not late, but not quick
			time.Sleep(10 * time.Second)
		}
		return nil
	}
}

// looksAtSpan reads a span without entries to its end, in windows that hold to the
// order of keys, and returns how many queries were in time and how many were late.
func looksAtSpan(t *testing.T, reader *shardquery.SpanReader, s *watched) (inTime, late int) {
	t.Helper()
	place := ""
	for more := true; more; {
		var page store.Page
		var err error
		asked := len(s.queries)
		more, err = reader.Next(t.Context(), &page, 500)
		if len(s.queries) != asked+1 {
			t.Fatalf("%d queries in one call", len(s.queries)-asked)
		}
		q := s.queries[asked]
		if q.After.Value.Text != place || q.Hi.Text <= place {
			t.Fatalf("a window from %q to %q behind %q", q.After.Value.Text, q.Hi.Text, place)
		}
		if errors.Is(err, shardquery.ErrShrunk) {
			late, more = late+1, true
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if inTime++; inTime > 10_000 {
			t.Fatal("it does not end")
		}
		if place = reader.Position().Value.Text; place != q.Hi.Text {
			t.Fatalf("the position is %q behind a window that ends at %q", place, q.Hi.Text)
		}
	}
	return inTime, late
}

func TestSpanReaderHalvesAndDoubles(t *testing.T) {
	floor := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	_, to := expirykey.GenerationRange(expirykey.MaxGeneration)
	begin := func() *shardquery.SpanReader {
		return &shardquery.SpanReader{Store: s, Target: target, From: expirykey.Prefix(1, 0), To: to,
			Floor: floor, Now: time.Now}
	}
	reader := begin()
	if inTime, late := looksAtSpan(t, reader, s); inTime != 1 || late != 0 {
		t.Errorf("%d queries, %d of them late, where one would do", inTime+late, late)
	}
	asked := len(s.queries)
	var page store.Page
	if more, err := reader.Next(t.Context(), &page, 500); more || err != nil || len(s.queries) != asked {
		t.Errorf("behind the end: %v, %v", more, err)
	}

	// Tombstones in one shard of one generation, among all that there can be.
	s.Before = func(ctx context.Context, c modelstore.Call) error {
		first, last := max(c.Query.Lo.Text, c.Query.After.Value.Text), c.Query.Hi.Text
		a, _ := expirykey.UpTo(7, 3, floor.Add(time.Hour))
		b, _ := expirykey.UpTo(7, 3, floor.Add(2*time.Hour))
		if first <= a && b <= last {
			return store.ErrDeadline
		}
		return nil
	}
	if inTime, late := looksAtSpan(t, begin(), s); inTime > 1000 || late > 1000 || late < 10 {
		t.Errorf("%d queries in time and %d late", inTime, late)
	}
}

// Once no smaller query is possible the store's error comes alone.
func TestSpanReaderAtItsSmallest(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	for _, floor := range []time.Time{now, {}, now.AddDate(-3000, 0, 0), now.AddDate(7970, 0, 0)} {
		s := &watched{Store: modelstore.New(time.Now), t: t}
		s.Before = func(context.Context, modelstore.Call) error { return store.ErrDeadline }
		from, to := expirykey.GenerationRange(3)
		reader := &shardquery.SpanReader{Store: s, Target: target, From: from, To: to, Floor: floor, Now: time.Now}
		calls, err := 0, shardquery.ErrShrunk
		for ; errors.Is(err, shardquery.ErrShrunk); calls++ {
			var page store.Page
			if calls > 200 {
				t.Fatalf("floor %v: it does not end", floor)
			}
			_, err = reader.Next(t.Context(), &page, 500)
			if !errors.Is(err, store.ErrDeadline) || len(s.queries) != calls+1 {
				t.Fatalf("%d queries, %v", len(s.queries), err)
			}
		}
		if q := s.queries[calls-1]; q.Limit != 1 || q.Hi.Text <= from {
			t.Errorf("floor %v: in the end it asked for %+v", floor, q)
		}
	}
}

func TestSpanReaderSeeks(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	first := now.Add(-100 * time.Minute)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	put(t, s, first, time.Minute, 100)
	from, to := expirykey.GenerationRange(1)
	reader := &shardquery.SpanReader{Store: s, Target: target, From: from, To: to, Floor: first, Now: time.Now}
	at := func(i int) store.Position {
		return store.Position{Value: keyAt(first.Add(time.Duration(i) * time.Minute)), Key: names(i, i+1)[0]}
	}
	next(t, s, reader, 20, true, names(0, 20))
	next(t, s, reader, 20, true, names(20, 40))
	reader.Seek(at(29))
	next(t, s, reader, 20, true, names(30, 50))
	if q := s.queries[2]; q.After != at(29) || q.Next != nil {
		t.Errorf("behind a seek: %+v", q)
	}
	next(t, s, reader, 20, true, names(50, 70))
	next(t, s, reader, 50, false, names(70, 100))
	reader.Seek(at(95)) // from the end
	next(t, s, reader, 50, false, names(96, 100))
}

// A reader that goes back by more than a window begins one as long as they are now.
func TestSpanReaderSeeksFarBack(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	first := now.Add(-1000 * time.Minute)
	s := &watched{Store: modelstore.New(time.Now), t: t}
	put(t, s, first, time.Minute, 1000)
	// A query that is too slow ends more than some time behind its beginning.
	s.Before = func(_ context.Context, c modelstore.Call) error {
		from, err := expirykey.Parse(max(c.Query.After.Value.Text, keyAt(first).Text))
		to, _ := expirykey.Parse(min(c.Query.Hi.Text, keyAt(now).Text))
		if err == nil && to.Expires.Sub(from.Expires) > 100*time.Minute {
			return store.ErrDeadline
		}
		return nil
	}
	from, to := expirykey.GenerationRange(1)
	reader := &shardquery.SpanReader{Store: s, Target: target, From: from, To: to, Floor: first, Now: time.Now}
	read := func() string {
		for {
			_, err := reader.Next(t.Context(), new(store.Page), 7)
			if err == nil {
				return reader.Query().Hi.Text
			}
			if !errors.Is(err, shardquery.ErrShrunk) {
				t.Fatal(err)
			}
		}
	}
	var ends []string // of windows
	for len(ends) < 6 {
		if end := read(); len(ends) == 0 || ends[len(ends)-1] != end {
			ends = append(ends, end)
		}
	}
	start := store.Position{Value: store.TextValue(ends[3])}
	reader.Seek(start) // where the window before begins
	if end := read(); end != ends[4] {
		t.Errorf("the window before ends at %q, not %q", end, ends[4])
	}
	reader.Seek(store.Position{Value: keyAt(first), Key: names(0, 1)[0]})
	asked := len(s.queries)
	read()
	if end := s.queries[asked].Hi.Text; end >= ends[4] {
		t.Errorf("a window from the start ends at %q; they ended at %q", end, ends)
	}
	for reader.Position().Value.Text < to {
		read()
	}
}
