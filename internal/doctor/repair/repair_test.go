package repair_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// Only heartbeats that are old enough go, and the runs of their processes are marked.
func TestDeadHeartbeats(t *testing.T) {
	in(t, func(w *world) {
		dead := w.beat("sessions", "host/dead", 2*time.Hour, 30*time.Second)
		w.beat("sessions", "host/recent", 30*time.Minute, 30*time.Second)
		w.beat("sessions", "host/idle", 9*time.Minute, 0)
		w.beat("sessions", "host/long", 3*time.Hour, 2*time.Hour)
		odd := w.beat("sessions", "host/odd", 5*time.Hour, time.Second)
		w.edit(store.WorkerRecord, "sessions", odd, func(f store.Fields) { f["epoch"] = "one" })
		run := history.NewRun("sessions", "serve", history.Origin{Owner: "host/dead"}, time.Now().Add(-3*time.Hour)).KeptFor(time.Hour * 24)
		run, err := history.Save(w.t.Context(), w.db, run)
		if err != nil {
			w.t.Fatal(err)
		}

		before := len(w.keys("sessions"))
		r := w.apply(repair.WorkerDead)
		if len(r.Changes) != 1 || r.Changes[0].Key != dead || r.Failed() || len(r.Left) != 4 {
			w.t.Errorf("%+v", r)
		}
		if _, found := w.record(store.WorkerRecord, "sessions", dead); found || len(w.keys("sessions")) != before-1 {
			w.t.Errorf("records: %q", w.keys("sessions"))
		}
		if run, _, err = history.Load(w.t.Context(), w.db, "sessions", run.Key); err != nil || run.Run.End != history.Lost {
			w.t.Errorf("%+v, %v", run, err)
		}
		if r := w.apply(repair.WorkerDead); len(r.Changes) > 0 || r.Failed() { // it has healed
			w.t.Errorf("%+v", r)
		}
		w.config.OlderThan = 20 * time.Minute
		if r := w.apply(repair.WorkerDead); len(r.Changes) != 1 || !contains(r.Changes[0].Key, "recent") {
			w.t.Errorf("%+v", r)
		}
		w.config.OlderThan = time.Nanosecond // a short age does not make a live process dead
		if r := w.look(repair.WorkerDead); len(r.Changes) > 0 {
			w.t.Errorf("%+v", r)
		}
	})
}

// A process that wakes up between the look and the removal keeps its heartbeat.
func TestHeartbeatThatIsRenewedMeanwhile(t *testing.T) {
	in(t, func(w *world) {
		key := w.beat("sessions", "host/1", 2*time.Hour, 30*time.Second)
		var used atomic.Bool // a sync.Once would hold others up, and with them the time of the bubble
		w.db.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.WorkerRecord && c.Record.Fields == nil {
				if used.CompareAndSwap(false, true) {
					r, _ := w.record(store.WorkerRecord, "sessions", key)
					was := r.Revision
					r.Revision = store.NewRevision(was)
					if err := w.db.Save(w.t.Context(), r, was); err != nil {
						w.t.Error(err)
					}
				}
			}
			return nil
		}
		r, err := repair.Run(w.t.Context(), w.setup(repair.WorkerDead, true))
		if _, found := w.record(store.WorkerRecord, "sessions", key); err != nil || !found || r.Changes[0].Done != 0 {
			w.t.Errorf("%+v, %v", r, err)
		}
		wantLeft(w.t, r, false, "meanwhile")
	})
}

// malform makes the target record one that no program reads.
func (w *world) malform() {
	w.edit(store.TargetRecord, "sessions", "sessions", func(f store.Fields) { f["created"] = "yesterday" })
}

func (w *world) load() generation.Record {
	w.t.Helper()
	rec, _, err := generation.Load(w.t.Context(), w.db, "sessions")
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// A record that makes no sense is replaced by what a sweep would make of the index. What an operator
// has set stays.
func TestMalformedRecord(t *testing.T) {
	in(t, func(w *world) {
		w.put(w.target, "in another generation", 7, 1, time.Hour)
		was := w.load()
		was.PaceMax, was.Paused, was.PauseNote = generation.Rate{Set: true, PerSecond: 50}, true, generation.Note{Actor: "bob", Reason: "legal hold"}
		was, err := generation.Save(w.t.Context(), w.db, was)
		if err != nil {
			w.t.Fatal(err)
		}
		w.malform()
		r := w.apply(repair.RecordMalformed)
		if len(r.Changes) != 1 || r.Changes[0].Action != repair.Rebuild || len(r.Left) > 0 {
			w.t.Errorf("%+v", r)
		}
		is := w.load()
		if !is.Paused || is.PauseNote != was.PauseNote || is.PaceMax != was.PaceMax {
			w.t.Errorf("%+v", is)
		}
		if n := len(is.Generations); n < 2 || is.Generations[0].Number != 1 || is.Generations[1].Number != 7 {
			w.t.Errorf("%+v", is.Generations)
		}
		if store.RevisionCount(is.Revision) <= store.RevisionCount(was.Revision) {
			w.t.Errorf("revision %s follows %s: cursors would name a later one", is.Revision, was.Revision)
		}
		list, err := history.Read(w.t.Context(), w.db, "sessions", time.Now().Add(-time.Minute))
		told := slices.ContainsFunc(list.Records, func(r history.Record) bool {
			return r.Change.What == "repair" && r.By.Actor == "ann"
		})
		if err != nil || !told {
			w.t.Errorf("%+v, %v", list.Records, err)
		}
		if r := w.apply(repair.RecordMalformed); len(r.Changes) > 0 { // it has healed
			w.t.Errorf("%+v", r)
		}
		w.sweep(w.target)
	})
}

// If nobody can read whether a target was paused, the rebuilt record is paused.
func TestPauseThatCannotBeRead(t *testing.T) {
	for name, change := range map[string]func(store.Fields){
		"a wrong type": func(f store.Fields) { f["paused"] = "perhaps" },
		"a wrong time": func(f store.Fields) { f["paused"], f["pause_at"] = true, "noon" },
		"none":         func(f store.Fields) { delete(f, "paused"); f["created"] = "yesterday" },
	} {
		in(t, func(w *world) {
			w.edit(store.TargetRecord, "sessions", "sessions", change)
			w.apply(repair.RecordMalformed)
			if rec := w.load(); !rec.IsPaused(time.Now()) || !contains(rec.PauseNote.Reason, "cannot be read") {
				w.t.Errorf("%s: %+v", name, rec)
			}
		})
	}
	in(t, func(w *world) {
		w.edit(store.TargetRecord, "sessions", "sessions", func(f store.Fields) { f["paused"], f["pause_at"] = false, "noon" })
		w.apply(repair.RecordMalformed)
		if rec := w.load(); rec.Paused {
			w.t.Errorf("%+v", rec)
		}
	})
}

// A record is lost: it is rebuilt, and paused if the history says so.
func TestLostRecord(t *testing.T) {
	for after, paused := range map[string]bool{"": false, "paused": true, "resume": false,
		"paused until 1999-01-01T00:00:00Z": false, "paused until 2999-01-01T00:00:00Z, max 50": true} {
		in(t, func(w *world) {
			if r := w.apply(repair.RecordLost); len(r.Changes) > 0 || len(r.Left) != 1 {
				w.t.Errorf("there is a record: %+v", r)
			}
			for what, text := range map[string]string{"pause": after, "resume": ""} {
				if after == "" || what == "resume" && after != "resume" {
					continue
				}
				if what == "resume" {
					time.Sleep(time.Minute)
				}
				at := time.Now()
				if what == "pause" {
					at = at.Add(-time.Hour)
				}
				err := sweep.RecordHistory(w.t.Context(), w.sweepConfig(w.target), w.target, at, history.KindAction,
					history.Change{What: what, After: text})
				if err != nil {
					w.t.Fatal(err)
				}
			}
			w.remove(store.TargetRecord, "sessions", "sessions")
			if r := w.look(repair.RecordMalformed); len(r.Changes) > 0 || !contains(r.Left[0].Why, repair.RecordLost) {
				w.t.Errorf("%+v", r)
			}
			r := w.apply(repair.RecordLost)
			if len(r.Changes) != 1 {
				w.t.Errorf("%+v", r)
			}
			if rec := w.load(); rec.Paused != paused || len(rec.Generations) == 0 {
				w.t.Errorf("%q: %+v", after, rec)
			}
			if !paused {
				w.sweep(w.target)
			}
		})
	}
	in(t, func(w *world) { // nothing shows that there ever was one
		w.target.Name, w.target.Kind = "fresh", "Fresh"
		if r := w.apply(repair.RecordLost); len(r.Changes) > 0 {
			w.t.Errorf("%+v", r)
		}
	})
}

// If a part of its history cannot be read, nobody knows whether a lost record was paused.
func TestLostRecordWithHistoryThatCannotBeRead(t *testing.T) {
	for name, schema := range map[string]any{"a newer program": int64(99), "no sense": "one"} {
		in(t, func(w *world) {
			err := sweep.RecordHistory(w.t.Context(), w.sweepConfig(w.target), w.target, time.Now(), history.KindAction,
				history.Change{What: "pause", After: "paused"})
			if err != nil {
				w.t.Fatal(err)
			}
			list, err := history.Read(w.t.Context(), w.db, "sessions", time.Now())
			if err != nil || len(list.Records) != 1 {
				w.t.Fatal(list, err)
			}
			w.edit(store.SweepRecord, "sessions", list.Records[0].Key, func(f store.Fields) { f["schema"] = schema })
			w.remove(store.TargetRecord, "sessions", "sessions")
			w.apply(repair.RecordLost)
			if rec := w.load(); !rec.IsPaused(time.Now()) || !contains(rec.PauseNote.Reason, "cannot be read") {
				w.t.Errorf("%s: %+v", name, rec)
			}
		})
	}
}

// What somebody else has written meanwhile stays, whether it has a new revision or not; so does the
// record of a newer program, or of one that is not known.
func TestRecordThatIsNotReplaced(t *testing.T) {
	right := func(w *world) store.Record {
		r, _ := w.record(store.TargetRecord, "sessions", "sessions")
		return r
	}
	for name, heal := range map[string]func(w *world, was store.Record){
		"by hand": func(w *world, was store.Record) {
			w.edit(store.TargetRecord, "sessions", "sessions", func(f store.Fields) { f["created"] = was.Fields["created"] })
		},
		"by a program": func(w *world, was store.Record) {
			w.remove(store.TargetRecord, "sessions", "sessions")
			w.sweep(w.target)
		},
	} {
		// Between the first look and the next one, and just before the write.
		for _, at := range []int{2, 3, 4} {
			in(t, func(w *world) {
				was := right(w)
				w.malform()
				loads, healed := 0, store.Record{}
				w.db.Before = func(_ context.Context, c modelstore.Call) error {
					if c.Method == "Load" && c.Records.Sort == store.TargetRecord {
						if loads++; loads == at {
							w.db.Before = nil
							heal(w, was)
							healed = right(w)
						}
					}
					return nil
				}
				r, err := repair.Run(w.t.Context(), w.setup(repair.RecordMalformed, true))
				if err != nil || healed.Revision == "" {
					w.t.Fatalf("%s at %d: %+v, %v", name, at, r, err)
				}
				wantLeft(w.t, r, false, "healed meanwhile")
				if is := right(w); is.Revision != healed.Revision {
					w.t.Errorf("%s at %d: %+v was written over", name, at, healed)
				}
			})
		}
	}
	for why, change := range map[string]func(store.Fields){
		"a newer program": func(f store.Fields) { f["schema"] = int64(99) },
		"by hand":         func(f store.Fields) { f["schema"] = "two" },
	} {
		in(t, func(w *world) {
			w.edit(store.TargetRecord, "sessions", "sessions", change)
			r := w.look(repair.RecordMalformed)
			wantLeft(w.t, r, true, why)
		})
	}
	in(t, func(w *world) {
		w.malform()
		wantLeft(w.t, w.look(repair.RecordLost), true, repair.RecordMalformed)
	})
}

// Another record than that of the target that makes no sense is named, and not mended.
func TestAnotherRecordThatMakesNoSense(t *testing.T) {
	spoil := map[store.RecordSort]func(w *world){
		store.CursorRecord: func(w *world) {
			w.edit(store.CursorRecord, "sessions", "sessions.00000001.0002", func(f store.Fields) { f["token"] = "one" })
		},
		store.BudgetRecord: func(w *world) {
			w.target.Breaker = breaker.Rules{On: true, Floor: 100, Fraction: 0.25, Window: time.Hour}
			w.edit(store.BudgetRecord, "sessions", "sessions", func(f store.Fields) { f["schema"] = "one" })
		},
	}
	for sort, spoil := range spoil {
		for what, target := range map[string]func(w *world){
			"right":   func(*world) {},
			"missing": func(w *world) { w.remove(store.TargetRecord, "sessions", "sessions") },
		} {
			in(t, func(w *world) {
				target(w)
				spoil(w)
				r := w.look(repair.RecordMalformed)
				wantLeft(w.t, r, true, string(sort)+` "sessions`)
				if r := w.apply(repair.RecordMalformed); len(r.Changes) > 0 || !r.Failed() {
					w.t.Errorf("%s, %s: %+v", sort, what, r)
				}
				if what == "missing" {
					return
				}
				if r := w.look(repair.RecordLost); r.Failed() { // it is of the target record alone
					w.t.Errorf("%s: %+v", sort, r)
				}
			})
		}
	}
	in(t, func(w *world) { // a sweep does without heartbeats, but doctor finds it
		w.db.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Load" && c.Record.Sort == store.WorkerRecord {
				return fmt.Errorf("ReaperWorker x: %w", store.ErrCorrupt)
			}
			return nil
		}
		wantLeft(w.t, w.look(repair.RecordMalformed), true, "ReaperWorker x")
	})
	in(t, func(w *world) { // a budget does not keep the target record from being made again
		spoil[store.BudgetRecord](w)
		w.malform()
		r := w.apply(repair.RecordMalformed)
		wantLeft(w.t, r, true, `ReaperBudget "sessions"`)
		if len(r.Changes) != 1 {
			w.t.Errorf("%+v", r)
		}
	})
}

// A record that the store cannot decode is named, as one that no repair mends, and the other targets are
// repaired.
func TestRecordThatTheStoreCannotDecode(t *testing.T) {
	for sort, ids := range map[store.RecordSort][]string{
		store.TargetRecord: {repair.RecordMalformed, repair.RecordLost, repair.TargetUnconfigured},
		store.CursorRecord: {repair.RecordMalformed, repair.TargetUnconfigured},
		store.WorkerRecord: {repair.WorkerDead, repair.TargetUnconfigured},
		store.AdoptRecord:  {repair.TargetUnconfigured},
		store.SweepRecord:  {repair.TargetUnconfigured},
	} {
		for _, id := range ids {
			in(t, func(w *world) {
				w.unused(month)
				w.malform()
				w.beat("sessions", "host/1", 2*time.Hour, 30*time.Second)
				was, _ := w.record(store.TargetRecord, "sessions", "sessions")
				if id == repair.RecordLost {
					w.remove(store.TargetRecord, "sessions", "sessions")
				}
				const sick = "first"
				c, well := w.setup(id, true), "sessions"
				first := w.target
				first.Name = sick
				c.Sweep.Targets = []sweep.Target{first, w.target}
				if repair.TakesNames(id) {
					c.Names, well = []string{sick, "old"}, "old"
				} else {
					w.edit(store.TargetRecord, sick, sick, func(f store.Fields) { maps.Copy(f, was.Fields) })
				}
				w.db.Before = func(_ context.Context, c modelstore.Call) error {
					if c.Method == "Load" && c.Record.Sort == sort && c.Records.Target == sick {
						return fmt.Errorf("%s x: %w: field note is a time.Time", sort, store.ErrCorrupt)
					}
					return nil
				}
				r, err := repair.Run(w.t.Context(), c)
				if err != nil || len(r.Changes) == 0 {
					w.t.Errorf("%s, %s: %+v, %v", sort, id, r, err)
				}
				for _, change := range r.Changes {
					if change.Target != well || change.Done == 0 {
						w.t.Errorf("%s, %s: %+v", sort, id, change)
					}
				}
				wantLeft(w.t, r, true, "remove it by hand")
				named := slices.ContainsFunc(r.Left, func(l repair.Left) bool {
					return l.Failed && l.Target == sick && l.Record == string(sort) && contains(l.Why, string(sort)+" x: ")
				})
				if !named {
					w.t.Errorf("%s, %s: no record is named: %+v", sort, id, r.Left)
				}
			})
		}
	}
}

// Two repairs at once change the record once.
func TestTwoRepairsAtOnce(t *testing.T) {
	in(t, func(w *world) {
		w.malform()
		configs := []repair.Config{w.setup(repair.RecordMalformed, true), w.setup(repair.RecordMalformed, true)}
		results, errs := make([]repair.Result, 2), make([]error, 2)
		w.db.Before = func(context.Context, modelstore.Call) error { time.Sleep(time.Millisecond); return nil }
		var group sync.WaitGroup
		for i, c := range configs {
			group.Go(func() { results[i], errs[i] = repair.Run(w.t.Context(), c) })
		}
		group.Wait()
		done := 0
		for _, r := range results {
			for _, c := range r.Changes {
				done += c.Done
			}
		}
		if err := errors.Join(errs...); err != nil || done != 1 {
			w.t.Errorf("%d changes: %+v, %v", done, results, err)
		}
	})
}

// A write whose reply was lost counts as done.
func TestLostReply(t *testing.T) {
	for _, id := range []string{repair.RecordMalformed, repair.WorkerDead} {
		in(t, func(w *world) {
			w.malform()
			w.beat("sessions", "host/1", 2*time.Hour, 30*time.Second)
			lost := 0
			w.db.After = func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Save" && (c.Record.Sort == store.TargetRecord || c.Record.Sort == store.WorkerRecord) && lost < 3 {
					lost++
					return fmt.Errorf("save: %w", store.ErrUnavailable)
				}
				return nil
			}
			r, err := repair.Run(w.t.Context(), w.setup(id, true))
			if err != nil || len(r.Changes) != 1 || r.Changes[0].Done != 1 || lost == 0 {
				w.t.Errorf("%s: %+v, %v, %d replies were lost", id, r, err, lost)
			}
		})
	}
}

// A store that answers one call in three makes a repair slower; one that refuses makes it fail, with
// the reason and without a change.
func TestStoreThatFails(t *testing.T) {
	in(t, func(w *world) {
		w.unused(month)
		w.malform()
		w.beat("sessions", "host/1", 2*time.Hour, 30*time.Second)
		var mu sync.Mutex
		calls, chance := 0, rand.New(rand.NewPCG(1, 6))
		w.db.Before = func(context.Context, modelstore.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; chance.IntN(3) != 0 {
				return fmt.Errorf("call %d: %w", calls, store.ErrUnavailable)
			}
			return nil
		}
		for _, id := range []string{repair.RecordMalformed, repair.WorkerDead, repair.TargetUnconfigured} {
			var names []string
			if repair.TakesNames(id) {
				names = []string{"old"}
			}
			r, err := repair.Run(w.t.Context(), w.setup(id, true, names...))
			if err != nil || r.Failed() || len(r.Changes) == 0 || r.Changes[0].Done == 0 {
				w.t.Errorf("%s: %+v, %v", id, r, err)
			}
		}
	})
	in(t, func(w *world) {
		w.malform()
		before := w.db.Writes()
		w.db.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" {
				return fmt.Errorf("save: %w", store.ErrDenied)
			}
			return nil
		}
		r, err := repair.Run(w.t.Context(), w.setup(repair.RecordMalformed, true))
		if !errors.Is(err, store.ErrDenied) || r.Changes[0].Done != 0 || w.db.Writes() != before {
			w.t.Errorf("%+v, %v", r, err)
		}
	})
}

// What cannot be asked for is refused before anything is read.
func TestUsage(t *testing.T) {
	in(t, func(w *world) {
		w.db.Before = func(context.Context, modelstore.Call) error { w.t.Error("the store was called"); return nil }
		for _, c := range []struct {
			id        string
			apply     bool
			olderThan time.Duration
			names     []string
		}{
			{id: "paused"}, {id: ""}, {id: "Worker-dead"},
			{id: repair.WorkerDead, names: []string{"old"}},
			{id: repair.TargetUnconfigured, apply: true},
			{id: repair.TargetUnconfigured, names: []string{"sessions"}},
			{id: repair.TargetRenamed, olderThan: time.Minute, names: []string{"old"}},
			{id: repair.RecordLost, olderThan: time.Hour},
		} {
			w.config.OlderThan = c.olderThan
			_, err := repair.Run(w.t.Context(), w.setup(c.id, c.apply, c.names...))
			if !errors.Is(err, repair.ErrUsage) {
				w.t.Errorf("%+v: %v", c, err)
			}
			if len(c.names) == 0 && c.olderThan == 0 && !c.apply && !contains(err.Error(), strings.Join(repair.IDs(), ", ")) {
				w.t.Errorf("%v does not list what can be repaired", err)
			}
		}
	})
}

// A store that does not answer is given up with the first of many targets, not with each.
func TestManyTargetsOfASilentStore(t *testing.T) {
	in(t, func(w *world) {
		w.db.Before = func(context.Context, modelstore.Call) error { return fmt.Errorf("load: %w", store.ErrUnavailable) }
		for _, id := range []string{repair.RecordLost, repair.WorkerDead} {
			c := w.setup(id, true)
			for i := range 199 {
				other := w.target
				other.Name = fmt.Sprintf("t-%d", i)
				c.Sweep.Targets = append(c.Sweep.Targets, other)
			}
			began := time.Now()
			_, err := repair.Run(w.t.Context(), c)
			if !errors.Is(err, store.ErrUnavailable) || !contains(err.Error(), "199 more targets were not examined") {
				w.t.Errorf("%s: %v", id, err)
			}
			if took := time.Since(began); took > time.Minute { // of the bubble's time
				w.t.Errorf("%s: it took %v", id, took)
			}
		}
	})
}

// A repair without names says if it has not examined all targets.
func TestManyRecordedTargets(t *testing.T) {
	in(t, func(w *world) {
		for n, whole := range map[int]bool{500: true, 501: false} {
			c := w.setup(repair.TargetUnconfigured, false)
			c.Sweep.Store = crowded{w.db, n}
			r, err := repair.Run(w.t.Context(), c)
			if (err == nil) != whole || err != nil && !contains(err.Error(), "only the first 500 targets") {
				w.t.Errorf("%d targets: %v", n, err)
			}
			if len(r.Left) != 500 {
				w.t.Errorf("%d targets: %d were examined", n, len(r.Left))
			}
		}
	})
}

// A crowded database has as many target records as it says.
type crowded struct {
	database
	targets int
}

func (d crowded) RecordedTargets(_ context.Context, most int) (names []string, err error) {
	for i := range min(d.targets, most) {
		names = append(names, fmt.Sprintf("t-%d", i))
	}
	return names, nil
}
