package shardquery_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/layout"
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
	r := shardquery.Reader{Store: s, Target: target, Range: shardquery.Range{Generation: 1}, Until: now, Now: time.Now}
	var page store.Page
	for more := true; more; {
		err := shardquery.Patiently(context.Background(), time.Minute, func() (err error) {
			more, err = r.Next(context.Background(), &page, 3)
			return err
		})
		if err != nil {
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
	gaps := layout.Gaps(ranges, time.Time{})
	for _, v := range []string{"", "0", "00000000.0000", "00000000.0000.", "00000000.0000.2026", "00000000.0000/",
		"00000000.0002.x", "00000000.0003.x", "00000003.0001.y", "00000003.0002.y", "00000005.0000.y",
		"00000007.0000.\xff", "00000007.0000/", "tomorrow", "é"} {
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
		gens := []generation.Generation{{Number: 1, Shards: first}, {Number: 0, Shards: nursery}}
		ranges := shardquery.Ranges(gens, []string{""})
		covered := 0
		for _, r := range ranges {
			if lo, hi := expirykey.Range(r.Generation, r.Shard); v >= lo && v < hi {
				covered++
			}
		}
		for _, g := range layout.Gaps(ranges, time.Time{}) {
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
	values := []store.Value{{Type: store.Other, Text: "7"}}
	for _, at := range []time.Time{shardquery.FirstInstant, floor.Add(-time.Microsecond), floor,
		floor.Add(time.Microsecond), shardquery.LastInstant} {
		values = append(values, store.InstantValue(at))
	}
	values = append(values, store.TextValue(""))
	text, integer := store.TextValue, store.IntegerValue
	for name, c := range map[string]struct{ configured, others []store.Value }{
		"no shards": {nil, []store.Value{{}}},
		"texts":     {[]store.Value{text("x"), text(""), text("m")}, []store.Value{text("a"), text("xx"), integer(3)}},
		"integers": {[]store.Value{integer(10), integer(-1), integer(9)},
			[]store.Value{integer(0), integer(11), text("9")}},
	} {
		s := modelstore.New(time.Now)
		sharded := store.Target{Kind: "Event", Property: "expires", Type: store.Instant}
		if c.configured != nil {
			sharded.ShardProperty = "shard"
		}
		ranges := layout.Instants.Ranges(c.configured, []string{""})
		for _, shard := range append(slices.Clone(c.configured), c.others...) {
			for i, v := range values {
				e := store.Entity{Name: "e", Shard: shard, Expiry: v}
				_ = s.Put(t.Context(), sharded, "", []store.Entity{e})
				covered := 0
				for _, r := range ranges {
					var page store.Page
					hi, _ := r.UpTo(shardquery.LastInstant)
					q := store.Query{Target: sharded, Shard: r.Value, Lo: r.Lo(floor), Hi: hi, Limit: 1}
					_ = s.Scan(t.Context(), q, &page)
					covered += len(page.Entries)
				}
				inside := covered
				for _, g := range layout.Gaps(ranges, floor) {
					n, _ := s.Count(t.Context(), sharded, "", g, 0)
					covered += int(n)
				}
				known := c.configured == nil || slices.Contains(c.configured, shard)
				if covered != 1 || inside == 1 != (known && i >= 3 && i <= 5) {
					t.Errorf("%s: shard %q, value %d lies in %d ranges and %d ranges and gaps",
						name, shard.Text, i, inside, covered)
				}
			}
		}
	}
}
