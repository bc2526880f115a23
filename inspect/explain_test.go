package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// An explanation distinguishes all reasons for which an entity may exist or not, and writes
// nothing.
func TestExplain(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.target.Retention = 2 * time.Hour
		explain := func(name, verdict, why string) inspect.Explanation {
			t.Helper()
			x := w.explain(name)
			if x.Verdict != verdict || !strings.Contains(x.Why, why) {
				t.Errorf("%s: %+v; want %s, %q", name, x, verdict, why)
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
		if _, _, err := sweep.EnsureRecord(t.Context(), w.config(), w.target); err != nil {
			t.Fatal(err)
		}
		w.put(1, 4, "due", now.Add(-3*time.Hour))
		explain("due", "due", "the next sweep deletes it") // nobody has swept here yet
		w.sweep()
		explain("due", "absent", "was deleted")
		explain("never there", "absent", "never written")

		w.put(1, 4, "retained", now.Add(-time.Hour))
		x := explain("retained", "early", "it is due in 1h")
		if x.Due == nil || !x.Due.Equal(now.Add(time.Hour)) || x.Range == nil || !x.Found {
			t.Errorf("%+v", x)
		}
		w.put(1, 4, "tomorrow", now.Add(45*time.Hour))
		explain("tomorrow", "early", "it is due in 1d23h") // with the retention
		w.put(1, 4, "soon", now.Add(-90*time.Minute))
		explain("soon", "early", "it is due in 30m")
		w.put(1, 4, "any time", now.Add(24*time.Hour+10*time.Minute+20*time.Second))
		explain("any time", "early", "it is due in 1d2h10m20s")
		w.put(1, 4, "next month", now.Add(40*24*time.Hour))
		explain("next month", "early", "it is due in 40 days")
		w.put(1, 4, "next generation", now.AddDate(150, 0, 1))
		explain("next generation", "early", "it is due in 150 years")
		w.put(1, 4, "in centuries", now.AddDate(999, 0, 1))
		explain("in centuries", "early", "it is due in 999 years")
		last := time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)
		w.put(1, 4, "at the end", last)
		x = explain("at the end", "early", fmt.Sprintf("it is due in %d years", 9999-now.Year()))
		if _, err := json.Marshal(x); err != nil || !x.Expires.Equal(last) || x.Due.Before(last) {
			t.Errorf("%+v, %v", x, err) // with the retention it is due in the year 10000, which JSON has no instant for
		}
		w.put(1, 4, "behind", now.Add(-30*time.Hour))
		explain("behind", "due", "behind its range's cursor, after it had expired")
		w.put(1, 4, "old", now.Add(-w.target.MaxAge-3*time.Hour))
		explain("old", "suspect", "it expired longer than max_age (1825d) before the horizon, which is implausible")
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
			explain("no shard", "outside", "for one of the target's shard_values")
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
			key := w.put(1, 4, name, now.Add(-3*time.Hour))
			shard := w.s.Entities("Session", "")[`"`+name+`"`].Shard
			if w.target.Layout == "timestamp" || strings.HasPrefix(key, "00000001.0003.") ||
				shard == store.IntegerValue(12) {
				break
			}
		}
		claim := w.claim("somebody", id)
		explain(name, "due", "somebody is sweeping its range")
		w.release(claim)
	})
}

// The store may refuse to delete an entity for good. In a range with such an entity, one
// that is due and behind the cursor may be it.
func TestExplainRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Policy.Keep = 30
		w.sweep()
		w.put(1, 4, "later", time.Now().Add(100*time.Hour))
		w.sweepFor(3 * time.Hour)
		key := w.put(1, 4, "stays", time.Now().Add(-150*time.Minute))
		id := cursor.ID{Target: "sessions", Generation: 1, Shard: strings.Split(key, ".")[1]}
		x := w.explain("stays")
		if x.Verdict != "due" || !strings.Contains(x.Why, "was sealed already: the daily audit") || x.Range.Refused {
			t.Errorf("%+v", x)
		}
		w.put(1, 4, "resting", time.Now().Add(-time.Minute)) // ahead of the cursor, in a range that rests
		if x := w.explain("resting"); !strings.Contains(x.Why, "was sealed already: the daily audit") {
			t.Errorf("%+v", x)
		}
		w.edit(id, func(c *cursor.Cursor) { c.Stock.Suspects = true })
		// The audit keeps away from such a range.
		if x := w.explain("stays"); !strings.Contains(x.Why, "the next read of the range from its start") {
			t.Errorf("%+v", x)
		}
		w.edit(id, func(c *cursor.Cursor) { c.Stock.Refused = true })
		x = w.explain("stays")
		if x.Verdict != "due" || !strings.Contains(x.Why, "the store has refused to delete") || !x.Range.Refused {
			t.Errorf("%+v", x)
		}
	})
}

// A choosy store has entities with names alone.
type choosy struct{ *modelstore.Store }

func (c choosy) Key(t store.Target, namespace string, e store.Entity) (string, error) {
	if e.Name == "" {
		return "", errors.New("no name")
	}
	return c.Store.Key(t, namespace, e)
}

// An id that no entity can have gives another error than a store that fails.
func TestExplainUnknown(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		c := w.config()
		c.Store = choosy{w.s}
		_, err := inspect.Explain(t.Context(), c, w.target, "", store.Entity{})
		if !errors.Is(err, inspect.ErrUnknownEntity) {
			t.Errorf("no id: %v", err)
		}
		w.s.Before = func(context.Context, modelstore.Call) error { return store.ErrDenied }
		_, err = inspect.Explain(t.Context(), c, w.target, "", store.Entity{Name: "x"})
		if !errors.Is(err, store.ErrDenied) || errors.Is(err, inspect.ErrUnknownEntity) {
			t.Errorf("a store that refuses: %v", err)
		}
	})
}
