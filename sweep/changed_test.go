package sweep_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A quietLog keeps what is logged. Several goroutines write it.
type quietLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *quietLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count returns how many times the log says something.
func (l *quietLog) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// changes returns the warnings about a target that changed, without their times, and
// forgets them.
func (l *quietLog) changes() (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "target changed") {
			list = append(list, strings.TrimSpace(line[strings.Index(line, "level="):]))
		}
	}
	l.text.Reset()
	return list
}

// A sweep warns if its target has another kind, property or layout than before, and names
// the old and the new value: each dry run does, and the first sweep with --apply.
func TestTellsWhatChanged(t *testing.T) {
	timestamps := func(w *world) {
		w.target.Layout, w.target.Generations, w.target.Shards = "timestamp", false, 0
		w.target.Type = store.Instant
	}
	for name, c := range map[string]struct {
		change func(w *world)
		want   []string
	}{
		"kind": {func(w *world) { w.target.Kind = "Sesion" }, []string{
			`"target changed: what its old kind and property hold is no longer swept" target=sessions kind=Sesion before_kind=Session property=expiry_key before_property=expiry_key`}},
		"property": {func(w *world) { w.target.Property = "expires_at" }, []string{
			`"target changed: what its old kind and property hold is no longer swept" target=sessions kind=Session before_kind=Session property=expires_at before_property=expiry_key`}},
		"layout": {func(w *world) { w.target.Layout, w.target.Generations = "sharded", false }, []string{
			`"target changed: every range is read from its start in the new layout" target=sessions layout=sharded before_layout=generation`}},
		"layout and property": {func(w *world) { timestamps(w); w.target.Property = "at" }, []string{
			`"target changed: what its old kind and property hold is no longer swept" target=sessions kind=Session before_kind=Session property=at before_property=expiry_key`,
			`"target changed: every range is read from its start in the new layout" target=sessions layout=timestamp before_layout=generation`}},
		"longer retention": {func(w *world) { w.target.Retention = time.Hour }, []string{
			`"target changed: a longer retention keeps what was due so far" target=sessions retention_seconds=3600 before_retention_seconds=30`}},
		"no retention": {func(w *world) { w.target.Retention = 0 }, []string{
			`"target changed: a shorter retention makes more entities due at once" target=sessions retention_seconds=0 before_retention_seconds=30`}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.target.Retention = 30 * time.Second
				log := new(quietLog)
				sweepOnce := func(apply bool) {
					cfg := w.config()
					cfg.Apply = apply
					cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
					if res := sweep.Run(t.Context(), cfg); res.Failed() {
						t.Fatalf("%+v", res)
					}
				}
				expect := func(when string, want ...string) {
					t.Helper()
					got := log.changes()
					if len(got) != len(want) {
						t.Fatalf("%s: %q, want %q", when, got, want)
					}
					for i := range want {
						if got[i] != "level=WARN msg="+want[i] {
							t.Errorf("%s: %s, want %s", when, got[i], want[i])
						}
					}
				}
				sweepOnce(true)
				for i := range 20 {
					w.put(1, 4, fmt.Sprint("e-", i), time.Now().Add(-time.Minute))
				}
				sweepOnce(true)
				sweepOnce(true)
				expect("before the change")
				c.change(w)
				sweepOnce(false)
				expect("a dry run", c.want...)
				sweepOnce(false)
				expect("another dry run", c.want...)
				w.put(0, 4, "due", time.Now().Add(-time.Minute)) // a range without work gets no cursor
				sweepOnce(true)
				expect("with apply", c.want...)
				sweepOnce(true)
				expect("with apply again")
				sweepOnce(false)
				expect("a dry run later")
			})
		})
	}
	in(t, func(t *testing.T, w *world) { // a daemon says it once
		w.sweep()
		w.target.Kind = "Other"
		log := new(quietLog)
		cfg := w.config()
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		s := w.serve(cfg)
		time.Sleep(10 * time.Minute)
		s.stop()
		if got := log.changes(); len(got) != 1 || !strings.Contains(got[0], "before_kind=Session") {
			t.Errorf("a daemon: %q", got)
		}
	})
}

// A target whose kind or property is another one is looked around at once: what is misspelt
// is told of by the first sweep, and not a day later.
func TestLooksAroundAtOnceAfterAChange(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		want   string
	}{
		"a kind that holds nothing": {func(w *world) { w.target.Kind = "Sesion" }, "the kind holds no entity"},
		"a property that no index has": {func(w *world) { // the store of these tests knows one property a kind
			w.target.Kind, w.target.Property = "Other", "expires_at"
			if err := w.s.Put(w.t.Context(), w.target.Target, "", []store.Entity{{Name: "a"}, {Name: "b"}}); err != nil {
				w.t.Fatal(err)
			}
		}, "the target holds entities, but not one of them"},
		"the same again": {func(*world) {}, ""},
	} {
		for _, apply := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, apply %v", name, apply), func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					w.begin()
					w.put(1, 4, "due", time.Now().Add(-time.Minute))
					w.put(1, 4, "later", time.Now().Add(time.Hour))
					w.sweep()
					time.Sleep(10 * time.Minute) // the next look is due in a day
					c.change(w)
					log := new(quietLog)
					cfg := w.config()
					cfg.Apply = apply
					cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
					if res := sweep.Run(t.Context(), cfg); res.Failed() {
						t.Fatalf("%+v", res)
					}
					if said := log.text.String(); c.want == "" && said != "" || !strings.Contains(said, c.want) {
						t.Errorf("said %q", said)
					}
				})
			})
		}
	}
}

// A longer retention leaves cursors beyond the horizon. Ranges are read from their start all the
// same, or what is written behind the cursor would wait for as long as the retention was
// lengthened.
func TestRewindAfterALongerRetention(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Retention, w.target.Rewind = 0, 10*time.Minute
		w.begin()
		for i := range 20 { // in each shard
			w.put(0, 4, fmt.Sprint("due-", i), time.Now().Add(-time.Minute))
		}
		w.sweep()
		w.target.Retention = 10 * time.Hour
		w.put(0, 4, "straggler", time.Now().Add(-11*time.Hour))
		w.put(0, 4, "kept", time.Now().Add(-9*time.Hour))
		time.Sleep(20 * time.Minute)
		w.sweep()
		left := map[string]bool{}
		for _, e := range w.s.Entities(w.target.Kind, "") {
			left[e.Name] = true
		}
		if left["straggler"] || !left["kept"] {
			t.Errorf("after the next read from the start there are %v", left)
		}
	})
}
