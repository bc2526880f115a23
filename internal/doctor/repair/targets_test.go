package repair_test

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// unused makes the target old one that nobody has used for so long.
func (w *world) unused(long time.Duration) {
	w.edit(store.SealRecord, "old", cursor.SealKey("old", 1), func(f store.Fields) { f["schema"] = int64(2) })
	w.edit(store.BudgetRecord, "old", "old", func(f store.Fields) { f["schema"] = int64(1) })
	time.Sleep(long)
	w.sweep(w.target)
}

const month = 31 * 24 * time.Hour

// The records of a target that nobody configures go, the budget last, and nothing else does.
func TestUnconfiguredTarget(t *testing.T) {
	in(t, func(w *world) {
		w.unused(month)
		w.beat("old", "host/1", 2*time.Hour+month, 30*time.Second)
		others, entities := w.keys("sessions"), len(w.db.Entities("Order", ""))
		var order []string
		w.db.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Target == "old" {
				order = append(order, string(c.Record.Sort))
			}
			return nil
		}
		if r := w.look(repair.TargetUnconfigured); len(r.Changes) != 5 || r.Changes[3].Record != "ReaperTarget" {
			w.t.Errorf("%+v", r)
		}
		r := w.apply(repair.TargetUnconfigured, "old")
		if len(w.keys("old")) > 0 || r.Kept == "" || r.Failed() {
			w.t.Errorf("%+v; %q", r, w.keys("old"))
		}
		if order[0] != "ReaperSeal" || order[len(order)-1] != "ReaperBudget" {
			w.t.Errorf("in the order %q", order)
		}
		if now := w.keys("sessions"); len(now) != len(others) || len(w.db.Entities("Order", "")) != entities {
			w.t.Errorf("%q, before %q", now, others)
		}
		if r := w.apply(repair.TargetUnconfigured, "old", "never"); len(r.Changes) > 0 || len(r.Left) != 2 { // it has healed
			w.t.Errorf("%+v", r)
		}
	})
}

// Whatever shows that a target may be in use, or that a person has said something of it, keeps its
// records.
func TestTargetThatIsKept(t *testing.T) {
	for why, seed := range map[string]func(w *world){
		"it was used at":       func(w *world) { time.Sleep(29 * 24 * time.Hour) },
		"its history":          func(w *world) { w.unused(month); w.tell() },
		"ReaperSeal old.000":   func(w *world) { w.unused(month); w.seal(time.Now().Add(-time.Hour)) },
		"works on it":          func(w *world) { w.unused(month); w.beat("old", "host/1", time.Minute, 30*time.Second) },
		"it makes no sense":    func(w *world) { w.unused(month); w.oddBeat() },
		"paused by bob (wait)": func(w *world) { w.change(func(r *generation.Record) { r.Paused = true }); w.unused(month) },
		"nobody has decided": func(w *world) {
			w.change(func(r *generation.Record) { r.Trip.ID, r.Trip.At = "x", time.Now() })
			w.unused(month)
		},
		"cannot be read": func(w *world) {
			w.unused(month)
			w.edit(store.TargetRecord, "old", "old", func(f store.Fields) { f["created"] = "yesterday" })
		},
		"of a program that this one does not know": func(w *world) {
			w.unused(month)
			w.edit(store.BudgetRecord, "old", "old", func(f store.Fields) { f["schema"] = int64(9) })
		},
		"being adopted (phase dual)": func(w *world) { w.adopted("dual"); w.unused(month) },
		"a restore of it was not finished, that of ann": func(w *world) {
			w.restored(store.Fields{"plan": "p", "done": false})
			w.unused(month)
		},
		"remove the record ReaperRestore old by hand": func(w *world) { // planning: nothing shows since when
			w.restored(store.Fields{"owner": "host/1", "done": false})
			w.unused(month)
		},
	} {
		in(t, func(w *world) {
			seed(w)
			if r := w.look(repair.TargetUnconfigured); len(r.Changes) > 0 || r.Failed() {
				w.t.Errorf("%s: %+v", why, r)
			}
			before := w.db.Writes()
			r, err := repair.Run(w.t.Context(), w.setup(repair.TargetUnconfigured, true, "old"))
			if err != nil || len(r.Changes) > 0 || w.db.Writes() != before {
				w.t.Errorf("%s: %+v, %v", why, r, err)
			}
			wantLeft(w.t, r, true, why)
		})
	}
}

// restored writes the record of a restore of the old target.
func (w *world) restored(with store.Fields) {
	w.t.Helper()
	began := store.FormatTime(time.Now())
	fields := store.Fields{"schema": int64(1), "order": "--since 24h", "began": began, "until": began, "actor": "ann"}
	maps.Copy(fields, with)
	err := w.db.Save(w.t.Context(), store.Record{Sort: store.RestoreRecord, Key: "old", Target: "old", Revision: "r1",
		Fields: fields}, "")
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tell() {
	err := sweep.RecordHistory(w.t.Context(), w.sweepConfig(w.old), w.old, time.Now().Add(-time.Hour), history.KindAction,
		history.Change{What: "pace"})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) seal(at time.Time) {
	w.edit(store.SealRecord, "old", cursor.SealKey("old", 1), func(f store.Fields) { f["renewed"] = store.FormatTime(at) })
}

func (w *world) oddBeat() {
	key := w.beat("old", "host/1", 2*month, time.Second)
	w.edit(store.WorkerRecord, "old", key, func(f store.Fields) { f["epoch"] = "one" })
}

func (w *world) change(change func(*generation.Record)) {
	rec, _, err := generation.Load(w.t.Context(), w.db, "old")
	if err != nil {
		w.t.Fatal(err)
	}
	rec.PauseNote = generation.Note{Actor: "bob", At: time.Now(), Reason: "wait"}
	change(&rec)
	if _, err := generation.Save(w.t.Context(), w.db, rec); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) adopted(phase string) {
	at := store.FormatTime(time.Now())
	w.edit(store.AdoptRecord, "old", "old", func(f store.Fields) {
		f["schema"], f["kind"], f["property"], f["phase"] = int64(1), "Order", "key", phase
		f["rule"], f["rule_property"], f["began"], f["reading"] = "property expires", "expires", at, at
		f["rounds"] = []store.Fields{{"number": int64(1), "began": at, "percent": 100.0}}
		f["parts"] = []store.Fields{{"namespace": "", "until": ""}}
	})
}

// learned gives the target old a breaker whose budget knows what is usual.
func (w *world) learned() {
	w.t.Helper()
	w.old.Breaker = breaker.Rules{On: true, Floor: 100, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour}
	for i := range 300 {
		w.put(w.old, fmt.Sprintf("long-%d", i), 1, i%4, 100*24*time.Hour)
	}
	w.sweep(w.old)
	time.Sleep(48 * time.Hour)
	w.put(w.old, "usual", 1, 1, -time.Second)
	w.sweep(w.old)
}

// wantHeld makes sure that a burst of wrong expiries does not go.
func (w *world) wantHeld(when string) {
	w.t.Helper()
	for i := range 900 {
		w.put(w.old, fmt.Sprintf("wrong-%d", i), 1, i%4, -90*time.Minute)
	}
	res := sweep.Run(w.t.Context(), w.sweepConfig(w.old)).Targets[0]
	if res.Error != "" || res.Held == "" || res.Deleted > w.old.Breaker.Floor {
		w.t.Errorf("%s: %d of a burst were deleted, held %q, error %q", when, res.Deleted, res.Held, res.Error)
	}
}

// A process begins to use a target while its records are removed: the rest stays, sweeps go on, and
// the breaker holds.
func TestTargetThatIsUsedMeanwhile(t *testing.T) {
	for _, sort := range []store.RecordSort{store.SealRecord, store.CursorRecord, store.BudgetRecord, store.TargetRecord} {
		in(t, func(w *world) {
			w.learned()
			w.unused(month)
			lives := len(w.db.Entities("Order", ""))
			var used atomic.Bool // a sync.Once would hold others up, and with them the time of the bubble
			w.db.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Save" && c.Record.Target == "old" && c.Record.Sort == sort && c.Record.Fields == nil {
					if used.CompareAndSwap(false, true) {
						w.put(w.old, "late", 1, 2, -time.Second)
						w.sweep(w.old)
					}
				}
				return nil
			}
			r, err := repair.Run(w.t.Context(), w.setup(repair.TargetUnconfigured, true, "old"))
			if err != nil {
				w.t.Errorf("%s: %+v, %v", sort, r, err)
			}
			wantLeft(w.t, r, true, "meanwhile")
			if _, found := w.record(store.TargetRecord, "old", "old"); !found {
				w.t.Errorf("%s: the target record is gone", sort)
			}
			w.db.Before = nil
			w.put(w.old, "later", 1, 3, -time.Second)
			w.sweep(w.old)
			if n := len(w.db.Entities("Order", "")); n != lives {
				w.t.Errorf("%s: %d entities are left, want %d", sort, n, lives)
			}
			w.wantHeld(string(sort))
		})
	}
}

// A restore begins, or somebody adopts, while the records are removed: it goes by them, and writes no heartbeat.
func TestWorkThatBeginsMeanwhile(t *testing.T) {
	for why, begin := range map[string]func(w *world){
		"process host/1 may be at a restore of it": func(w *world) {
			w.restored(store.Fields{"owner": "host/1", "done": false})
		},
		"being adopted (phase dual)": func(w *world) { w.adopted("dual") },
	} {
		in(t, func(w *world) {
			w.learned()
			w.unused(month)
			var begun atomic.Bool
			w.db.Before = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Save" && c.Record.Target == "old" && c.Record.Fields == nil && begun.CompareAndSwap(false, true) {
					begin(w)
				}
				return nil
			}
			r, err := repair.Run(w.t.Context(), w.setup(repair.TargetUnconfigured, true, "old"))
			if err != nil {
				w.t.Errorf("%+v, %v", r, err)
			}
			wantLeft(w.t, r, true, why)
			if _, found := w.record(store.TargetRecord, "old", "old"); !found || !begun.Load() {
				w.t.Errorf("%s: the target record is gone", why)
			}
		})
	}
}

// A process makes the target record again after it was removed: the budget that it uses stays.
func TestTargetThatBeginsAgainMeanwhile(t *testing.T) {
	in(t, func(w *world) {
		w.learned()
		w.unused(month)
		w.db.After = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.TargetRecord && c.Record.Fields == nil {
				w.db.After = nil
				w.sweep(w.old)
			}
			return nil
		}
		r, err := repair.Run(w.t.Context(), w.setup(repair.TargetUnconfigured, true, "old"))
		if err != nil {
			w.t.Errorf("%+v, %v", r, err)
		}
		wantLeft(w.t, r, true, "its record was written meanwhile")
		if _, found := w.record(store.BudgetRecord, "old", "old"); !found {
			w.t.Error("the budget is gone")
		}
		w.wantHeld("begun again")
	})
}

// A repair that is killed after any number of writes is completed by the next one. A sweep in
// between loses nothing, and its breaker holds as if no record had been removed.
func TestKilledRepair(t *testing.T) {
	after := map[string]func(w *world, when string){
		"the repair": func(w *world, when string) {
			w.apply(repair.TargetUnconfigured, "old")
			if keys := w.keys("old"); len(keys) > 0 {
				w.t.Errorf("%s: %q", when, keys)
			}
		},
		"a sweep": func(w *world, when string) {
			lives := len(w.db.Entities("Order", ""))
			w.put(w.old, "late", 1, 2, -time.Second)
			w.sweep(w.old)
			if n := len(w.db.Entities("Order", "")); n != lives {
				w.t.Errorf("%s: %d entities are left, want %d", when, n, lives)
			}
		},
		"a burst": (*world).wantHeld,
	}
	const records = 7 // a seal, four cursors, the target record and the budget
	for kill := range records {
		for what, follow := range after {
			in(t, func(w *world) {
				when := fmt.Sprintf("%s after %d writes", what, kill)
				w.learned()
				w.unused(month)
				w.killRepair(kill)
				if n := len(w.keys("old")); n != records-kill {
					w.t.Fatalf("%s: %q are left", when, w.keys("old"))
				}
				follow(w, when)
			})
		}
	}
}

// killRepair ends a repair after so many writes.
func (w *world) killRepair(writes int) {
	w.t.Helper()
	ctx, die := context.WithCancel(w.t.Context())
	defer die()
	var begun atomic.Int64
	w.db.Before = func(ctx context.Context, c modelstore.Call) error {
		if c.Method == "Save" && begun.Add(1) > int64(writes) {
			die()
			return ctx.Err()
		}
		return nil
	}
	_, err := repair.Run(ctx, w.setup(repair.TargetUnconfigured, true, "old"))
	w.db.Before = nil
	if err == nil {
		w.t.Fatalf("it was not killed after %d writes", writes)
	}
}
