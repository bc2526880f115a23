package measure_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/internal/measure"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

func sessions() sweep.Target {
	return sweep.Target{
		Target: store.Target{Name: "sessions", Kind: "Session", Property: "expiry_key", Type: store.Text},
		Layout: "sharded", Shards: 4, MaxAge: 1825 * 24 * time.Hour, Rewind: 24 * time.Hour, Overlap: 10 * time.Second,
		Page: 500, Lease: 30 * time.Second, MaxClockSkew: 10 * time.Second, Pace: throttle.Limits{Start: 500, Max: 500},
		History: sweep.History{Keep: 90 * 24 * time.Hour, Actor: "test", Host: "test"}}
}

func config(s store.Store, t sweep.Target) sweep.Config {
	return sweep.Config{Store: s, Targets: []sweep.Target{t}, Apply: true, Workers: 4, Grace: time.Second, Owner: "test", Now: time.Now,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// put writes entities that expire one second after the other, from some time on.
func put(ctx context.Context, s *modelstore.Store, t sweep.Target, prefix string, n int, from time.Time) error {
	for i := range n {
		k, err := expirykey.New(expirykey.Nursery, i%t.Shards, from.Add(time.Duration(i)*time.Second))
		if err != nil {
			return err
		}
		e := store.Entity{Name: fmt.Sprint(prefix, i), Expiry: store.TextValue(k.String())}
		if err := s.Put(ctx, t.Target, "", []store.Entity{e}); err != nil {
			return err
		}
	}
	return nil
}

func Example() {
	ctx, t, s := context.Background(), sessions(), modelstore.New(time.Now)
	if err := put(ctx, s, t, "s-", 100, time.Now().Add(-50*time.Second)); err != nil {
		fmt.Println(err)
		return
	}
	m, err := measure.Read(ctx, config(s, t), t)
	if err != nil {
		fmt.Println(err)
		return
	}
	reads, known := m.Reads()
	fmt.Println("at most", reads, "reads, and one for each 1,000 entries; known:", known)
	counts, _, err := m.Count(ctx)
	fmt.Println(counts.Entities, counts.Due >= 50, counts.Ranges, err)
	// Output:
	// at most 8 reads, and one for each 1,000 entries; known: false
	// 100 true 4 <nil>
}

// What sweeps have deleted shows the rate, and how long entities live.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, s := sessions(), modelstore.New(time.Now)
		cfg := config(s, target)
		const perSweep = 300 // one a second
		for i := range 40 {
			if err := put(t.Context(), s, target, fmt.Sprint(i, "-"), perSweep, time.Now().Add(10*time.Minute)); err != nil {
				t.Fatal(err)
			}
			if res := sweep.Run(t.Context(), cfg); !res.Complete {
				t.Fatal(res)
			}
			time.Sleep(5 * time.Minute)
		}
		m, err := measure.Read(t.Context(), cfg, target)
		if err != nil {
			t.Fatal(err)
		}
		counts, ok, err := m.Count(t.Context())
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		w, known := m.Workload(counts)
		if math.Abs(w.Writes-1) > 0.15 || len(w.Lives) == 0 || !w.Swept || w.Check() != nil {
			t.Errorf("%+v %q", w, known)
		}
		life := time.Duration(0)
		for _, l := range w.Lives {
			life += time.Duration(float64(l.For) * l.Share)
		}
		// Those of a batch live from 10 to 15 minutes.
		if life < 8*time.Minute || life > 17*time.Minute {
			t.Errorf("they live %v: %q", life, known)
		}
		if m.Past.Jobs != m.Past.Runs || m.Past.Runs < 30 {
			t.Errorf("%+v", m.Past)
		}
		compare(t, m, target, w)
	})
}

// compare holds what the program itself has counted to the forecast. The model store bills as the embedded one.
func compare(t *testing.T, m *measure.Target, target sweep.Target, w forecast.Workload) {
	t.Helper()
	s := measure.SettingsOf(target, forecast.Embedded, 5*time.Minute)
	s.Job = true
	deletes := float64(m.Past.Counts.Deleted)
	o := s.SpanOf(w, forecast.ByStore, float64(m.Past.Runs)*300, deletes)
	got := m.Past.Operations
	if differs(float64(got.Reads), o.Reads) || differs(float64(got.Writes), o.Writes) || differs(float64(got.Deletes), o.Deletes) {
		t.Errorf("history %+v, forecast %+v", got, o)
	}
}

// differs reports whether two numbers differ by more than 15 %: a tenth, and the first sweeps, which only begin.
func differs(a, b float64) bool { return math.Abs(a-b) > 0.15*max(a, b) }

// Settings come over as they are, and limits bound the total.
func TestSettings(t *testing.T) {
	target := sessions()
	target.Kind, target.Namespaces, target.SingleValued = "users/u1/items", []string{"a", "b", "c"}, true
	target.Guard = store.GuardAuto
	target.Total = throttle.Limit{PerSecond: 100}
	target.Limits.PerDay = 86_400
	s := measure.SettingsOf(target, forecast.Native, time.Minute)
	if s.Namespaces != 3 || s.Shards != 4 || s.Guard != forecast.ByQuery || s.Layout.Row.Kind != len("items") || s.Layout.Every != 0 ||
		s.Pace != (forecast.Pace{Start: 500, Max: 500, Total: 1}) {
		t.Errorf("%+v", s)
	}
	target.Namespaces, target.Type, target.ShardProperty = []string{"*"}, store.Instant, "shard"
	target.ShardValues, target.Shards = []store.Value{store.TextValue("a"), store.TextValue("b")}, 0
	target.Pace, target.Generations = throttle.Limits{Unlimited: true}, true
	target.Policy.Every, target.Policy.Keep = time.Hour, 3
	s = measure.SettingsOf(target, forecast.Native, time.Minute)
	if s.Namespaces != 1 || s.Shards != 2 || s.Guard != forecast.ByLookup || !s.Layout.Row.Composite || s.Layout.Keep != 3 ||
		s.Pace.Max != 0 || s.Check() != nil {
		t.Errorf("%+v %v", s, s.Check())
	}
}
