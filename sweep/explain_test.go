package sweep_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// Every reason for which an entity may be there, or not, is told from the others,
// and telling writes nothing.
func TestExplain(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.target.Retention = 2 * time.Hour
		explain := func(name, verdict, why string) sweep.Explanation {
			t.Helper()
			before := w.s.Writes()
			x, err := sweep.Explain(t.Context(), w.config(), w.target, "", store.Entity{Name: name})
			if err != nil || x.Verdict != verdict || !strings.Contains(x.Why, why) {
				t.Errorf("%s: %+v, %v; want %s, %q", name, x, err, verdict, why)
			}
			if w.s.Writes() != before {
				t.Errorf("%s: explaining it wrote something", name)
			}
			return x
		}
		raw := func(name string, shard int, v store.Value) {
			e := store.Entity{Name: name, Expiry: v}
			if n := len(w.target.ShardValues); n > 0 && shard < n {
				e.Shard = w.target.ShardValues[shard]
			}
			_ = w.s.Put(t.Context(), w.target.Target, "", []store.Entity{e})
		}
		now := time.Now()
		w.put(1, 4, "due", now.Add(-3*time.Hour))
		explain("due", "due", "the next sweep deletes it") // nobody has swept here yet
		w.sweep()
		explain("due", "absent", "was deleted")
		explain("never there", "absent", "never written")

		w.put(1, 4, "retained", now.Add(-time.Hour))
		if x := explain("retained", "early", "it is due in 1h0m0s"); x.Due == nil || !x.Due.Equal(now.Add(time.Hour)) || x.Range == nil || !x.Found {
			t.Errorf("%+v", x)
		}
		w.put(1, 4, "behind", now.Add(-30*time.Hour))
		explain("behind", "due", "behind its range's cursor, after it had expired")
		w.put(1, 4, "old", now.Add(-w.target.MaxAge-3*time.Hour))
		explain("old", "suspect", "implausible")
		raw("forever", 0, store.Value{})
		explain("forever", "never", "never expires")
		raw("number", 0, store.IntegerValue(7))
		explain("number", "malformed", "neither a text nor a timestamp")
		raw("list", 0, store.Value{Type: store.List, Text: "[]"})
		explain("list", "malformed", "a list")
		if w.target.Type == store.Text {
			raw("instant", 0, store.InstantValue(now))
			explain("instant", "malformed", "a timestamp, not an expiry key")
			w.raw("elsewhere", "00000009.0000.20000101T000000.000Z")
			explain("elsewhere", "outside", "no sweep reads generation 00000009")
			w.raw("shard 7", "00000001.0007.19991231T000000.000Z")
			explain("shard 7", "outside", "has 4 shards, and this is shard 0007")
		} else {
			raw("text", 0, store.TextValue("2026"))
			explain("text", "malformed", "a text, not a timestamp")
		}
		if w.target.ShardProperty != "" {
			raw("no shard", 99, store.InstantValue(now))
			explain("no shard", "outside", "none of the target's shard_values")
		}

		// While another process holds the range.
		id := cursor.ID{Target: "sessions", Generation: 1, Shard: "0003"}
		var name string
		switch w.target.Layout {
		case "timestamp":
			id.Generation, id.Shard = 0, "0000"
		case "sharded-timestamp":
			id.Generation, id.Shard = 0, "12"
		}
		for i := 0; ; i++ { // a name that hashes there
			name = strings.Repeat("x", i)
			if key := w.put(1, 4, name, now.Add(-3*time.Hour)); w.target.Type == store.Instant && w.target.Layout == "timestamp" ||
				strings.HasPrefix(key, "00000001.0003.") || w.s.Entities("Session", "")[`"`+name+`"`].Shard == store.IntegerValue(12) {
				break
			}
		}
		k := cursor.Keeper{Store: w.s, Owner: "somebody", Lease: time.Minute, Now: time.Now, StoreNow: time.Now, Log: w.config().Log}
		claim, err := k.Claim(t.Context(), w.cursors()[id])
		if err != nil {
			t.Fatal(err)
		}
		explain(name, "due", "somebody is sweeping its range")
		if err := claim.Release(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}
