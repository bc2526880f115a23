package storetest

import (
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

var shardCases = []testCase{
	{name: "ShardsAreApart", run: shardsApart},
	{name: "IntegersAreShards", run: integerShards},
	{name: "ShardPositionsResume", run: shardsResume},
	{name: "DisposeInAShard", run: shardsDispose},
	{name: "CountBetweenShards", needs: counts, run: countShards},
	{name: "DumpYieldsShards", needs: dumps, run: dumpShards},
}

// sharded makes the world's target one with a shard property and a timestamp.
func (w *world) sharded() {
	w.instants()
	w.target.ShardProperty = "shard"
}

// at is the instant i seconds after noon.
func at(i int) store.Value { return store.InstantValue(noon.Add(time.Duration(i) * time.Second)) }

func inShard(name string, shard, expiry store.Value) store.Entity {
	return store.Entity{Name: name, Shard: shard, Expiry: expiry, Data: []byte(`{"user":"u7"}`)}
}

// shard asks for all instants of one shard.
func (w *world) shard(v store.Value) store.Query {
	return store.Query{Target: w.target, Namespace: w.ns, Shard: v, Limit: store.MaxPage,
		Lo: at(-1_000_000), Hi: at(1_000_000)}
}

func instantsOf(entries []store.Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Value.Time.UTC().Format(store.TimeLayout))
	}
	return out
}

func (w *world) showsShard(when string, shard store.Value, seconds ...int) {
	w.Helper()
	want := []string{}
	for _, s := range seconds {
		want = append(want, at(s).Time.Format(store.TimeLayout))
	}
	w.same(fmt.Sprintf("shard %q %s", shard.Text, when), instantsOf(w.scan(w.shard(shard), false)), want)
}

// text is a shard value.
func text(s string) store.Value { return store.TextValue(s) }

func shardsApart(w *world) {
	w.sharded()
	w.put(inShard("a", text("x"), at(3)), inShard("b", text("x"), at(1)), inShard("c", text("y"), at(2)),
		inShard("d", text("xx"), at(4)),
		inShard("e", store.Value{}, at(5)), inShard("f", store.IntegerValue(7), at(6)), inShard("g", text("7"), at(7)),
		inShard("h", text("x"), store.Value{}), inShard("i", text("x"), store.TextValue("garbage")),
		inShard("j", text(""), at(8)))
	w.showsShard("alone", text("x"), 1, 3)
	w.showsShard("alone", text("y"), 2)
	w.showsShard("alone", text("xx"), 4)
	w.showsShard("alone", text("7"), 7)
	w.showsShard("alone", text(""), 8)
	w.showsShard("which nobody has", text("z"))
	q := w.shard(text("x"))
	q.Lo, q.Hi = at(2), at(3)
	w.same("from 2 to 3 in x", instantsOf(w.scan(q, false)), instantsOf([]store.Entry{{Value: at(3)}}))
}

func integerShards(w *world) {
	w.sharded()
	for i, n := range []int64{0, -1, 7, 10, 1 << 60} {
		w.put(inShard(fmt.Sprintf("n%d", i), store.IntegerValue(n), at(i)))
	}
	w.put(inShard("text", text("10"), at(9)))
	for i, n := range []int64{0, -1, 7, 10, 1 << 60} {
		w.showsShard("of integers", store.IntegerValue(n), i)
	}
	w.showsShard("of texts", text("10"), 9)
}

func shardsResume(w *world) {
	w.sharded()
	const tied = 120
	var put []store.Entity
	for i := range tied {
		put = append(put, inShard(fmt.Sprintf("t-%04d", i), text("x"), at(0)),
			inShard(fmt.Sprintf("u-%04d", i), text("y"), at(0)))
	}
	put = append(put, inShard("before", text("x"), at(-5)), inShard("after", text("x"), at(5)))
	w.put(put...)
	for _, positions := range []bool{false, true} {
		q := w.shard(text("x"))
		q.Limit = 7
		seen := map[string]bool{}
		for _, e := range w.scan(q, positions) {
			seen[e.Key] = true
		}
		if len(seen) != tied+2 {
			w.Errorf("by position: %v: %d of %d entities were met", positions, len(seen), tied+2)
		}
	}
}

func shardsDispose(w *world) {
	w.sharded()
	w.put(inShard("a", text("x"), at(1)), inShard("b", text("x"), at(2)), inShard("c", text("x"), at(3)),
		inShard("d", text("y"), at(1)))
	q := w.shard(text("x"))
	found := w.scan(q, false)
	w.put(inShard("b", text("x"), at(50)))
	b := w.batch(q, found...)
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	w.same("outcomes", outcomes(b.Ops), []string{"deleted", "changed", "deleted"})
	w.showsShard("afterwards", text("x"), 50)
	w.showsShard("afterwards", text("y"), 1)
	o, err := store.Unknown, error(nil)
	w.retry("settle", func() error {
		o, err = w.store.Settle(w.ctx, q, found[1], func(v store.Value) store.Verdict {
			return verdictUnless(v.Type != store.Instant || !v.Time.Equal(at(50).Time))
		})
		return err
	})
	if o != store.Deleted {
		w.Errorf("settle says %s, not deleted", outcome(o))
	}
	w.showsShard("at the end", text("x"))
}

func countShards(w *world) {
	w.sharded()
	w.put(inShard("a", text("x"), at(1)), inShard("b", text("x"), at(2)), inShard("c", text("x"), at(-500)),
		inShard("d", text("y"), at(1)),
		inShard("e", text("m"), at(1)), inShard("f", text("z"), at(1)), inShard("g", store.IntegerValue(7), at(1)),
		inShard("null", text("x"), store.Value{Type: store.Other, Text: "null"}), inShard("never", text("x"), store.Value{}),
		inShard("garbage", text("x"), store.TextValue("garbage")), inShard("bare", store.Value{}, at(1)),
		inShard("nowhere", text("m"), store.Value{Type: store.Other, Text: "null"}))
	point := func(shard string, v store.Value, after bool) store.Point {
		return store.Point{Shard: text(shard), Value: v, After: after}
	}
	end := store.InstantValue(time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC))
	for _, c := range []struct {
		what string
		span store.Span
		want int64
	}{
		{"everything that has both", store.Span{}, 8},
		{"below shard x", store.Span{To: point("x", store.Value{}, false)}, 2},
		{"below shard x's noon - 100 s", store.Span{To: point("x", at(-100), false)}, 3},
		{"from x's second second on, to its end",
			store.Span{From: point("x", at(2), false), To: point("x", store.Value{}, true)}, 2},
		{"behind x's second second, to its end",
			store.Span{From: point("x", at(2), true), To: point("x", store.Value{}, true)}, 1},
		{"behind x's instants, before y's", store.Span{From: point("x", end, true), To: point("y", at(-100), false)}, 1},
		{"behind y's instants", store.Span{From: point("y", end, true)}, 1},
		{"behind shard x", store.Span{From: point("x", store.Value{}, true)}, 2},
		{"instants of x", store.Span{From: point("x", at(-100), false), To: point("x", end, true)}, 2},
		{"nothing", store.Span{From: point("y", at(2), false), To: point("y", at(2), false)}, 0},
	} {
		if n := w.count(c.span); n != c.want {
			w.Errorf("%s: %d, not %d", c.what, n, c.want)
		}
		w.stops(c.what, c.span, c.want)
	}
}

func dumpShards(w *world) {
	w.sharded()
	put := []store.Entity{inShard("a", text("x"), at(3)), inShard("b", store.IntegerValue(12), at(1)),
		inShard("c", store.Value{}, at(2)),
		inShard("d", text("y"), store.Value{}), inShard("e", text("y"), store.TextValue("garbage"))}
	w.put(put...)
	i := 0
	for e, err := range w.store.(store.Dumper).Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		if i == len(put) {
			w.Fatalf("the dump has more than %d entities", len(put))
		}
		if want := put[i]; e.Name != want.Name || e.Shard != want.Shard || e.Expiry != want.Expiry ||
			canonical(w, e.Data) != canonical(w, want.Data) {
			w.Errorf("entity %d is %+v, not %+v", i, e, want)
		}
		i++
	}
	if i != len(put) {
		w.Errorf("the dump has %d entities, not %d", i, len(put))
	}
}
