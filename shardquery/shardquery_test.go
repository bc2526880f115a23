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
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

var target = store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text}

// instants has timestamps in place of expiry keys.
var instants = store.Target{Name: "events", Kind: "Event", Property: "expires", Type: store.Instant}

func ExampleReader() {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	stamp := generation.Stamper{Generation: 1, Shards: 1}
	for i := range 5 {
		name := fmt.Sprintf("s-%d", i)
		key, _ := stamp.Name(name, now.Add(time.Duration(i-3)*time.Hour))
		_ = s.Put(context.Background(), target, "", []store.Entity{{Name: name, Expiry: store.TextValue(key.String())}})
	}
	r := shardquery.Reader{Store: s, Target: target, Range: shardquery.Range{Generation: 1}, Until: now, Page: 3, Now: time.Now}
	var page store.Page
	for more := true; more; {
		var err error
		if more, err = r.Next(context.Background(), &page); err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range page.Entries {
			fmt.Println(e.Key, e.Value.Text)
		}
	}
	// Output:
	// "s-0" 00000001.0000.20261121T000000.000Z
	// "s-1" 00000001.0000.20261121T010000.000Z
	// "s-2" 00000001.0000.20261121T020000.000Z
	// "s-3" 00000001.0000.20261121T030000.000Z
}

func TestRangesAndGapsCoverTheIndex(t *testing.T) {
	gens := []generation.Generation{{Number: 3, Shards: 2}, {Number: 7, Shards: 1}, {Number: 0, Shards: 3}}
	ranges := shardquery.Ranges(gens, []string{""})
	if len(ranges) != 6 {
		t.Fatalf("%d ranges: %v", len(ranges), ranges)
	}
	gaps := shardquery.Gaps(ranges, time.Time{})
	for _, v := range []string{"", "0", "00000000.0000", "00000000.0000.", "00000000.0000.2026", "00000000.0000/", "00000000.0002.x", "00000000.0003.x",
		"00000003.0001.y", "00000003.0002.y", "00000005.0000.y", "00000007.0000.\xff", "00000007.0000/", "tomorrow", "é"} {
		covered := 0
		for _, r := range ranges {
			if lo, hi := expirykey.Range(r.Generation, r.Shard); v >= lo && v < hi {
				covered++
			}
		}
		for _, g := range gaps {
			if v >= g.From.Value.Text && (g.To == store.Point{} || v < g.To.Value.Text) {
				covered++
			}
		}
		if covered != 1 {
			t.Errorf("%q lies in %d ranges and gaps, want exactly one", v, covered)
		}
	}
}

// FuzzGaps holds that every text is in exactly one range or gap.
func FuzzGaps(f *testing.F) {
	f.Add("00000001.0003/", 4, 4)
	f.Fuzz(func(t *testing.T, v string, first, nursery int) {
		if first < 1 || first > 50 || nursery < 1 || nursery > 50 {
			return
		}
		ranges := shardquery.Ranges([]generation.Generation{{Number: 1, Shards: first}, {Number: 0, Shards: nursery}}, []string{""})
		covered := 0
		for _, r := range ranges {
			if lo, hi := expirykey.Range(r.Generation, r.Shard); v >= lo && v < hi {
				covered++
			}
		}
		for _, g := range shardquery.Gaps(ranges, time.Time{}) {
			if v >= g.From.Value.Text && (g.To == store.Point{} || v < g.To.Value.Text) {
				covered++
			}
		}
		if covered != 1 {
			t.Errorf("%q lies in %d ranges and gaps", v, covered)
		}
	})
}

// Every (shard, value) of an index on both lies in exactly one range or gap, and
// gaps follow each other in the order of the index.
func TestInstantRangesAndGapsCoverTheIndex(t *testing.T) {
	floor := time.Date(2021, 11, 22, 12, 0, 0, 0, time.UTC)
	values := []time.Time{shardquery.FirstInstant, floor.Add(-time.Microsecond), floor, floor.Add(time.Microsecond), shardquery.LastInstant}
	for name, c := range map[string]struct{ configured, others []store.Value }{
		"no shards": {nil, []store.Value{{}}},
		"texts":     {[]store.Value{store.TextValue("x"), store.TextValue(""), store.TextValue("m")}, []store.Value{store.TextValue("a"), store.TextValue("xx"), store.IntegerValue(3)}},
		"integers":  {[]store.Value{store.IntegerValue(10), store.IntegerValue(-1), store.IntegerValue(9)}, []store.Value{store.IntegerValue(0), store.IntegerValue(11), store.TextValue("9")}},
	} {
		s := modelstore.New(time.Now)
		sharded := store.Target{Kind: "Event", Property: "expires", Type: store.Instant}
		if c.configured != nil {
			sharded.ShardProperty = "shard"
		}
		ranges := shardquery.InstantRanges(c.configured, []string{""})
		for _, shard := range append(slices.Clone(c.configured), c.others...) {
			for i, v := range []store.Value{{Type: store.Other, Text: "7"}, store.InstantValue(values[0]), store.InstantValue(values[1]), store.InstantValue(values[2]),
				store.InstantValue(values[3]), store.InstantValue(values[4]), store.TextValue("")} {
				e := store.Entity{Name: "e", Shard: shard, Expiry: v}
				_ = s.Put(t.Context(), sharded, "", []store.Entity{e})
				covered := 0
				for _, r := range ranges {
					var page store.Page
					hi, _ := r.UpTo(shardquery.LastInstant)
					_ = s.Scan(t.Context(), store.Query{Target: sharded, Shard: r.Value, Lo: r.Lo(floor), Hi: hi, Limit: 1}, &page)
					covered += len(page.Entries)
				}
				inside := covered
				for _, g := range shardquery.Gaps(ranges, floor) {
					n, _ := s.Count(t.Context(), sharded, "", g)
					covered += int(n)
				}
				known := c.configured == nil || slices.Contains(c.configured, shard)
				if covered != 1 || inside == 1 != (known && i >= 3 && i <= 5) {
					t.Errorf("%s: shard %q, value %d lies in %d ranges and %d ranges and gaps", name, shard.Text, i, inside, covered)
				}
			}
		}
	}
}

// Whatever queries fail, are too slow or too large, and wherever a reader stops
// and another goes on from its position: each entry comes once, in order.
func TestReaderReadsEachEntryOnce(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			readEachOnce(t, rand.New(rand.NewPCG(seed, 3)), seed%2 == 1)
		})
	}
}

// A script is a source of random numbers: what the fuzzer says, and then more.
type script struct {
	bytes []byte
	rest  *rand.PCG
}

func (s *script) Uint64() (n uint64) {
	if len(s.bytes) == 0 {
		return s.rest.Uint64()
	}
	// The first byte is that which small numbers are made of.
	n = uint64(s.bytes[0])<<56 | s.rest.Uint64()>>8
	s.bytes = s.bytes[1:]
	return n
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
		target, r = instants, shardquery.Range{Instants: true}
	}
	now := time.Now()
	s := modelstore.New(time.Now)
	var want []string
	for i := range rng.IntN(200) {
		at := now.Add(-time.Duration(rng.Int64N(int64(2000 * time.Hour))))
		if rng.IntN(3) == 0 {
			at = now.Add(-1000 * time.Hour) // many at one instant
		}
		name := fmt.Sprintf("e-%03d", i)
		expiry := store.InstantValue(at)
		if !r.Instants {
			key, err := expirykey.New(1, 0, at)
			if err != nil {
				t.Fatal(err)
			}
			expiry = store.TextValue(key.String())
		}
		want = append(want, shown(expiry)+` "`+name+`"`)
		_ = s.Put(t.Context(), target, "", []store.Entity{{Name: name, Expiry: expiry}})
	}
	slices.Sort(want)
	dense := time.Duration(100+rng.IntN(1000)) * time.Hour // a query over more than this is too slow
	row := 0                                               // of failures
	s.Before = func(ctx context.Context, c modelstore.Call) error {
		// Tombstones lie over the last 3,000 hours only.
		from := now.Add(-3000 * time.Hour)
		for _, v := range []store.Value{c.Query.Lo, c.Query.After.Value} {
			if at, err := r.Expires(v); err == nil && at.After(from) {
				from = at
			}
		}
		to, err := r.Expires(c.Query.Hi)
		switch {
		case rng.IntN(10) == 0 && row < 3: // a reader gives up where it is for ever
			row++
			return fmt.Errorf("now and then: %w", store.ErrUnavailable)
		case c.Query.Limit > 20 && rng.IntN(2) == 0:
			return fmt.Errorf("%d at once: %w", c.Query.Limit, store.ErrTooLarge)
		case err == nil && to.Sub(from) > dense:
			<-ctx.Done()
			return fmt.Errorf("too many tombstones: %w", ctx.Err())
		}
		row = 0
		return nil
	}
	var got []string
	reader := newReader(s, target, r, store.Position{}, now, 1+rng.IntN(100))
	var page store.Page
	for more := true; more; {
		var err error
		if more, err = reader.Next(t.Context(), &page); err != nil {
			t.Fatal(err)
		}
		at := store.Position{}
		for _, e := range page.Entries {
			got = append(got, shown(e.Value)+" "+e.Key)
			at = e.Position()
		}
		if !at.IsZero() && rng.IntN(5) == 0 {
			reader, more = newReader(s, target, r, at, now, 1+rng.IntN(100)), true // another process goes on
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("read %d entries, want %d, each once and in order", len(got), len(want))
	}
}

func shown(v store.Value) string {
	if v.Type == store.Instant {
		return v.Time.Format(store.TimeLayout)
	}
	return v.Text
}

func newReader(s store.Store, target store.Target, r shardquery.Range, from store.Position, until time.Time, page int) *shardquery.Reader {
	return &shardquery.Reader{Store: s, Target: target, Range: r, From: from, Until: until,
		Plain: until.Add(-2500 * time.Hour), Page: page, Now: time.Now}
}

func TestReaderGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		for _, c := range []struct {
			err  error
			most time.Duration
		}{
			{store.ErrDenied, 0},
			{store.ErrMissingIndex, 0},
			{store.ErrTooLarge, 0},
			{store.ErrDeadline, time.Minute},
			{store.ErrPushback, 3 * time.Minute},
		} {
			s.Before = func(context.Context, modelstore.Call) error { return fmt.Errorf("for ever: %w", c.err) }
			began := time.Now()
			var page store.Page
			_, err := newReader(s, target, shardquery.Range{Generation: 1}, store.Position{}, time.Now(), 500).Next(t.Context(), &page)
			if !errors.Is(err, c.err) || time.Since(began) > c.most {
				t.Errorf("%v: gave up after %v with %v", c.err, time.Since(began), err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var page store.Page
		if _, err := newReader(s, target, shardquery.Range{Generation: 1}, store.Position{}, time.Now(), 500).Next(ctx, &page); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		// The caller's own deadline, in the middle of a query that would take longer.
		s.Before = func(ctx context.Context, _ modelstore.Call) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := newReader(s, target, shardquery.Range{Generation: 1}, store.Position{}, time.Now(), 500).Next(ctx, &page); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("out of time: %v", err)
		}
	})
}

func TestNothingBeforeYearOne(t *testing.T) {
	s := modelstore.New(time.Now)
	var page store.Page
	more, err := newReader(s, target, shardquery.Range{Generation: 1}, store.Position{}, time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), 500).Next(t.Context(), &page)
	if more || err != nil || len(page.Entries) > 0 {
		t.Errorf("%v, %v, %v", page.Entries, more, err)
	}
}
