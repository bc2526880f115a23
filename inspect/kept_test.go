package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// list names the entities that are kept for a reason.
func (w *world) list(kept inspect.Kept, limit int) (list inspect.KeptList) {
	w.t.Helper()
	w.looking(func() (err error) {
		list, err = inspect.ListKept(w.t.Context(), w.config(), w.target, kept, limit)
		return err
	})
	return list
}

// wantKept checks which entities a list names, in any order.
func (w *world) wantKept(kept inspect.Kept, want ...string) (list inspect.KeptList) {
	w.t.Helper()
	list = w.list(kept, 20)
	var got []string
	for _, e := range list.Entities {
		got = append(got, e.ID)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || list.More || list.Reads == 0 {
		w.t.Errorf("%s: %q, want %q; %+v", kept, got, want, list)
	}
	return list
}

// value writes one entity with any value in its property.
func (w *world) value(name string, v, shard store.Value) {
	w.t.Helper()
	e := store.Entity{Name: name, Expiry: v, Shard: shard}
	if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{e}); err != nil {
		w.t.Fatal(err)
	}
}

// In each layout, a list names the entities that sweeps keep, with the reason, and no live
// ones.
func TestListKept(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.sweepAsIs() // of an empty target: the next sweep looks around again
		now := time.Now()
		for i := range 40 {
			w.put(1, 4, fmt.Sprint("live-", i), now.Add(time.Duration(i+1)*time.Hour))
		}
		w.put(1, 4, "old", now.Add(-w.target.MaxAge-3*time.Hour))
		isKey, shard := w.target.Type == store.Text, store.Value{}
		malformed, outside := []string{}, []string{"other type"}
		if n := len(w.target.ShardValues); n > 0 {
			shard = w.target.ShardValues[0]
		}
		if isKey {
			w.value("other type", store.InstantValue(now), shard)
			w.raw("in range", "00000001.0002.1999")
			w.raw("behind all", "00000001.0001.never")
			w.raw("garbage", "tomorrow")
			w.raw("generation 9", "00000009.0000.20000101T000000.000Z")
			w.raw("shard 7", "00000001.0007.19991231T000000.000Z")
			malformed, outside = []string{"in range", "behind all"}, append(outside, "garbage", "generation 9", "shard 7")
		} else {
			w.value("other type", store.TextValue("2026-01-01"), shard)
			outside = append(outside, "old") // timestamps are not swept that far back
		}
		w.sweep()
		w.put(1, 4, "behind", now.Add(-30*time.Hour))
		w.wantKept(inspect.KeptMalformed, malformed...)
		list := w.wantKept(inspect.KeptSuspect, "old")
		if e := list.Entities[0]; e.Key != `"old"` || e.Value == "" || e.Range == "outside" || !strings.Contains(e.Why, "max_age") ||
			(e.Type == "text") != isKey {
			t.Errorf("%+v", e)
		}
		list = w.wantKept(inspect.KeptOutside, outside...)
		for _, e := range list.Entities {
			why := map[string]string{"other type": "a timestamp, not an expiry key", "garbage": "no expiry key",
				"generation 9": "no sweep reads generation 00000009", "shard 7": "has 4 shards, and this is shard 0007"}[e.ID]
			if !isKey {
				why = map[string]string{"other type": "a text, not a timestamp", "old": "max_age"}[e.ID]
			}
			if e.Range != "outside" || !strings.Contains(e.Why, why) || why == "" {
				t.Errorf("%+v", e)
			}
		}
		list = w.wantKept(inspect.KeptRefused, "behind")
		if e := list.Entities[0]; !strings.Contains(e.Why, "or written behind the cursor; its range is not sealed") {
			t.Errorf("%+v", e)
		}
	})
}

// The record of a sealed range says whether the store refuses entities there.
func TestListRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Policy = hourly
		w.target.Policy.Keep = 30
		w.sweep()
		w.put(1, 4, "later", time.Now().Add(100*time.Hour))
		w.sweepFor(3 * time.Hour)
		key := w.put(1, 4, "stays", time.Now().Add(-150*time.Minute))
		w.wantKept(inspect.KeptRefused)
		w.edit(cursor.ID{Target: "sessions", Generation: 1, Shard: strings.Split(key, ".")[1]},
			func(c *cursor.Cursor) { c.Stock.Refused = true })
		list := w.wantKept(inspect.KeptRefused, "stays")
		if e := list.Entities[0]; !strings.Contains(e.Why, "the store refuses to delete or carry") || e.Range != key[:13] {
			t.Errorf("%+v", e)
		}
	})
}

// A list ends at its limit, or after a hundred thousand entries, and says so.
func TestListEnds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		for i := range 30 {
			w.put(1, 4, fmt.Sprint("old-", i), time.Now().Add(-w.target.MaxAge-time.Hour))
		}
		if list := w.list(inspect.KeptSuspect, 31); len(list.Entities) != 30 || list.More {
			t.Errorf("%d of 30, more %v: %s", len(list.Entities), list.More, list.MoreWhy)
		}
		if list := w.list(inspect.KeptSuspect, 7); len(list.Entities) != 7 || !list.More || list.MoreWhy != "the list ends at its limit of 7" {
			t.Errorf("%d of 7, more %v: %s", len(list.Entities), list.More, list.MoreWhy)
		}
		c := w.config()
		c.Store = endless{w.s, new(atomic.Int64)}
		list, err := inspect.ListKept(t.Context(), c, w.target, inspect.KeptMalformed, 7)
		if err != nil || len(list.Entities) != 0 || !list.More || list.Examined < 100_000 || list.Examined > 110_000 ||
			!strings.HasPrefix(list.MoreWhy, "stopped after ") {
			t.Errorf("examined %d: %s, %v", list.Examined, list.MoreWhy, err)
		}
	})
}

// An endless store has more due entities than a list can read.
type endless struct {
	*modelstore.Store
	scanned *atomic.Int64
}

func (s endless) Scan(_ context.Context, q store.Query, page *store.Page) error {
	page.Entries, page.More, page.Next = page.Entries[:0], true, nil
	for range q.Limit {
		page.Entries = append(page.Entries, store.Entry{Key: fmt.Sprintf("%09d", s.scanned.Add(1)), Value: q.Hi})
	}
	return nil
}

// A dumped store shows what no query of a range can find.
type dumped struct{ *modelstore.Store }

// If the store counts more entities than queries show, the list reads entities one by one.
// So it finds values that are neither texts nor timestamps, and unknown shard values.
func TestListWhatNoQueryFinds(t *testing.T) {
	inEachLayout(t, func(t *testing.T, w *world) {
		w.sweep()
		shard, want := store.Value{}, []string{"number", "map"}
		if len(w.target.ShardValues) > 0 {
			shard = w.target.ShardValues[1]
			w.value("shard 99", store.InstantValue(time.Now().Add(time.Hour)), store.IntegerValue(99))
			want = append(want, "shard 99")
		}
		w.value("number", store.IntegerValue(7), shard)
		w.value("map", store.Value{Type: store.Other, Text: `{"a":1}`}, shard)
		w.value("none", store.Value{}, shard)
		list, err := inspect.ListKept(t.Context(), func() sweep.Config { c := w.config(); c.Store = dumped{w.s}; return c }(), w.target, inspect.KeptOutside, 20)
		if err != nil || len(list.Entities) != len(want) || list.More {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, e := range list.Entities {
			if !slices.Contains(want, e.ID) || e.ID != "shard 99" && e.Type != e.ID {
				t.Errorf("%+v", e)
			}
		}
	})
}

// Dump implements store.Dumper.
func (d dumped) Dump(_ context.Context, t store.Target, namespace string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		for _, e := range d.Entities(t.Kind, namespace) {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// hanging is a store that dumps some entities and then nothing more.
type hanging struct {
	dumped
	first int
}

func (h hanging) Dump(ctx context.Context, _ store.Target, _ string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		for i := range h.first {
			if !yield(store.Entity{Name: fmt.Sprint("live-", i)}, nil) {
				return
			}
		}
		<-ctx.Done()
		yield(store.Entity{}, ctx.Err())
	}
}

// A list reads entities one by one up to ten thousand, or half a minute, and says so.
func TestListReadsOnlySoMuch(t *testing.T) {
	for first, why := range map[int]string{7: "after reading 7 entities one by one in 30s", 20_000: "after reading 10000 entities"} {
		in(t, func(t *testing.T, w *world) {
			w.sweep()
			w.value("number", store.IntegerValue(7), store.Value{})
			c := w.config()
			c.Store = hanging{dumped{w.s}, first}
			began := time.Now()
			list, err := inspect.ListKept(t.Context(), c, w.target, inspect.KeptOutside, 20)
			if err != nil || !list.More || !strings.Contains(list.MoreWhy, why) || time.Since(began) > time.Minute {
				t.Errorf("after %v: %+v, %v", time.Since(began), list, err)
			}
		})
	}
}

// If the store does not answer queries, a list fails instead of waiting without end.
func TestListOfAStoreThatHangs(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.sweep()
		w.s.Before = func(ctx context.Context, c modelstore.Call) error {
			if c.Method != "Scan" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		for _, kept := range inspect.KeptReasons() {
			began := time.Now()
			_, err := inspect.ListKept(t.Context(), w.config(), w.target, kept, 20)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > time.Minute {
				t.Errorf("%s, after %v: %v", kept, took, err)
			}
		}
	})
}
