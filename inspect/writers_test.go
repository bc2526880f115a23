package inspect_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// A datedStore is a model store that tells when each entity was last written.
type datedStore struct {
	*modelstore.Store
	written map[string]time.Time // by key
	walks   int
}

func (d *datedStore) WalkWritten(ctx context.Context, q store.WalkQuery, rows *store.Rows) (list []time.Time, err error) {
	d.walks++
	if err := d.Walk(ctx, q, rows); err != nil {
		return nil, err
	}
	for _, r := range rows.List {
		list = append(list, d.written[r.Key])
	}
	return list, nil
}

// A world with two generations, of which the first is sealed, and with writers of several kinds.
func (w *world) writers(d *datedStore) {
	w.t.Helper()
	w.target.Policy = hourly
	w.target.Policy.Keep = 5
	w.sweep()
	w.put(1, 4, "keeps its generation", time.Now().Add(48*time.Hour))
	w.sweepFor(2 * time.Hour)
	w.s.Remove("Session", "", modelstore.Key(store.Entity{Name: "keeps its generation"}))
	now := time.Now()
	put := func(name, expiry string, ago time.Duration) {
		w.raw(name, expiry)
		d.written[modelstore.Key(store.Entity{Name: name})] = now.Add(-ago)
	}
	live := now.Add(24 * time.Hour).UTC().Format("20060102T150405.000Z")
	lives := w.lives()
	newest, first := lives[len(lives)-2].Number, lives[0].Number
	for i := range 6 {
		put(fmt.Sprintf("new-%d", i), fmt.Sprintf("%08d.%04d.%s", newest, i%4, live), 10*time.Minute)
	}
	for i := range 3 {
		put(fmt.Sprintf("nursery-%d", i), fmt.Sprintf("00000000.%04d.%s", i, live), 3*time.Hour)
	}
	put("in time", fmt.Sprintf("%08d.0000.%s", first, live), 2*time.Hour)
	put("old copy", fmt.Sprintf("%08d.0001.%s", first, live), time.Minute)
	put("shard", fmt.Sprintf("%08d.0009.%s", newest, live), time.Minute)
	put("nursery shard", "00000000.0099."+live, time.Minute)
	put("future", "00000099.0000."+live, time.Minute)
	put("odd", "tomorrow", time.Minute)
	if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{{Name: "for ever"},
		{Name: "typed", Expiry: store.InstantValue(now)}}); err != nil {
		w.t.Fatal(err)
	}
}

// Each key is counted once: by its generation, or as one that no rule explains, in the hour of its
// last write.
func TestWriters(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		d := &datedStore{Store: w.s, written: map[string]time.Time{}}
		w.writers(d)
		for key := range w.s.Entities("Session", "") {
			if strings.Contains(key, "touched") {
				w.s.Remove("Session", "", key)
			}
		}
		cfg := w.config()
		cfg.Store = d
		var table inspect.WriterTable
		w.looking(func() (err error) {
			table, err = inspect.Writers(t.Context(), cfg, w.target, 1000)
			return err
		})
		if table.Sampled != 17 || table.More || table.Note != "" || table.WithoutKey != 1 {
			t.Errorf("%+v", table)
		}
		if s := table.NurseryShare; s == nil || *s != 0.3 {
			t.Errorf("share of the nursery: %v", s)
		}
		if g := table.Generations; len(g) != 3 || g[0].Entities != 6 || g[1].Entities != 1 || g[2].Number != 0 || g[2].Entities != 3 {
			t.Errorf("%+v", g)
		}
		faults := map[string]string{}
		for _, f := range table.Unexplained {
			faults[f.Examples[0]] = f.Why
			if f.Entities != 1 || f.Last == nil && f.Examples[0] != "typed" {
				t.Errorf("%+v", f)
			}
		}
		for name, why := range map[string]string{"old copy": "after its generation was sealed", "shard": "does not have", "typed": "not a text",
			"nursery shard": "of the nursery", "future": "never opened", "odd": "not an expiry key"} {
			if !strings.Contains(faults[name], why) {
				t.Errorf("%s: %q, want %q", name, faults[name], why)
			}
		}
		sum := inspect.WriterHour{}
		for i, h := range table.Hours {
			sum.Entities, sum.Newest, sum.Older = sum.Entities+h.Entities, sum.Newest+h.Newest, sum.Older+h.Older
			sum.Nursery, sum.Unexplained, sum.WithoutKey = sum.Nursery+h.Nursery, sum.Unexplained+h.Unexplained, sum.WithoutKey+h.WithoutKey
			if i > 0 && h.From != nil && !h.From.Before(*table.Hours[i-1].From) {
				t.Errorf("the hours are not in order: %+v", table.Hours)
			}
		}
		if want := (inspect.WriterHour{Entities: 17, Newest: 6, Older: 1, Nursery: 3, Unexplained: 6, WithoutKey: 1}); sum != want {
			t.Errorf("the hours add up to %+v", sum)
		}
	})
}

// A sample reads no more than it was asked for, though it reads in several places, and of several
// namespaces; it says so if there is more.
func TestWritersAreSampled(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Namespaces = []string{"", "eu"}
		for i := range 3000 {
			e := store.Entity{Name: fmt.Sprintf("s-%04d", i)}
			for _, ns := range w.target.Namespaces {
				if err := w.s.Put(t.Context(), w.target.Target, ns, []store.Entity{e}); err != nil {
					t.Fatal(err)
				}
			}
		}
		d := &datedStore{Store: w.s}
		cfg := w.config()
		cfg.Store = d
		for _, most := range []int{1, 2, 39, 100, 2000} {
			d.walks = 0
			table, err := inspect.Writers(t.Context(), cfg, w.target, most)
			if err != nil || table.Sampled > most || table.Sampled < most*9/10 || !table.More || d.walks > 90 {
				t.Errorf("%d: %d sampled in %d queries, more: %t, %v", most, table.Sampled, d.walks, table.More, err)
			}
		}
		table, err := inspect.Writers(t.Context(), cfg, w.target, 100_000)
		if err != nil || table.Sampled != 6000 || table.More {
			t.Errorf("%d sampled, more: %t, %v", table.Sampled, table.More, err)
		}
		cfg.Store = w.s // which does not tell when entities were written
		if table, err = inspect.Writers(t.Context(), cfg, w.target, 10); err != nil || table.Note == "" || table.Hours[0].From != nil {
			t.Errorf("%+v, %v", table, err)
		}
		w.target.Layout, w.target.Type = "timestamp", store.Instant
		if table, err = inspect.Writers(t.Context(), cfg, w.target, 10); err != nil || table.Note == "" || table.Sampled > 0 {
			t.Errorf("%+v, %v", table, err)
		}
	})
}
