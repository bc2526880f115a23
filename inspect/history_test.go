package inspect_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// check returns the verdict on the history of the world's target.
func (w *world) check() inspect.HistoryCheck {
	w.t.Helper()
	h, err := inspect.ReadHistory(w.t.Context(), w.config(), w.target, inspect.HistoryQuery{Limit: 10, Check: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return *h.Check
}

// alterRun changes the runs in the history behind the program's back.
func (w *world) alterRun(change func(*history.Run)) {
	w.t.Helper()
	list, err := history.Read(w.t.Context(), w.s, "sessions", time.Time{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range list.Records {
		if r.Kind != history.KindRun {
			continue
		}
		change(&r.Run)
		if _, err := history.Save(context.Background(), w.s, r.KeptFor(w.target.History.Keep)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// A check finds a history that has more, or less, than the ranges count. A run without a
// proper end explains a difference; records that cannot be read prevent a verdict.
func TestCheckOfTheHistory(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.History = sweep.History{Keep: 24 * time.Hour, Actor: "job"}
		if got := w.check(); got.Verdict != inspect.NotCompared {
			t.Errorf("without a history: %+v", got)
		}
		sweep.Run(t.Context(), w.config())
		for i := range 40 {
			w.put(1, 4, fmt.Sprint("due-", i), time.Now())
		}
		if res := sweep.Run(t.Context(), w.config()); res.Targets[0].Deleted != 40 {
			t.Fatalf("%+v", res)
		}
		if got := w.check(); got.Verdict != inspect.Agrees || got.Deleted != 40 || got.Counted != 40 || got.Runs != 2 {
			t.Errorf("%+v", got)
		}
		more := func(n int64) func(*history.Run) {
			return func(r *history.Run) {
				if r.End == history.Done || r.End == history.Lost {
					r.Sums[0].Counts.Deleted += n
				}
			}
		}
		for _, n := range []int64{1, -2} {
			w.alterRun(more(n))
			if got := w.check(); got.Verdict != inspect.Differs {
				t.Errorf("with %d more: %+v", n, got)
			}
		}
		w.alterRun(func(r *history.Run) { r.End = history.Lost })
		if got := w.check(); got.Verdict != inspect.AtLeast || got.Lost != 2 || got.Deleted != 39 {
			t.Errorf("of lost runs: %+v", got)
		}
		w.alterRun(func(r *history.Run) { r.End, r.Ended = history.Open, time.Time{} })
		silent := func() (n int) {
			h, err := inspect.ReadHistory(t.Context(), w.config(), w.target, inspect.HistoryQuery{Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range h.Records {
				if r.Run != nil && r.Run.Silent {
					n++
				}
			}
			return n
		}
		if n := silent(); n != 0 {
			t.Errorf("%d of two runs are silent though they have just written", n)
		}
		time.Sleep(time.Hour)
		if n := silent(); n != 2 {
			t.Errorf("%d of two runs are silent after an hour without a heartbeat", n)
		}
		bad := store.Record{Sort: store.SweepRecord, Key: "1.2.x", Target: "sessions", Revision: "1-a",
			Fields: store.Fields{"schema": int64(7)}}
		if err := w.s.Save(t.Context(), bad, ""); err != nil {
			t.Fatal(err)
		}
		if got := w.check(); got.Verdict != inspect.NotCompared {
			t.Errorf("with a record that cannot be read: %+v", got)
		}
	})
}

// sweepOf sweeps n entities that are due, by the target's settings as they are.
func (w *world) sweepOf(n int64) {
	w.t.Helper()
	for i := range n {
		w.put(1, 4, fmt.Sprint("due-", i), time.Now())
	}
	if res := sweep.Run(w.t.Context(), w.config()); res.Targets[0].Deleted != n {
		w.t.Fatalf("%+v", res.Targets[0])
	}
}

// alterBudget changes the budget behind the program's back.
func (w *world) alterBudget(change func(*breaker.Budget)) {
	w.t.Helper()
	b, err := spend.Load(w.t.Context(), w.s, "sessions")
	if err != nil {
		w.t.Fatal(err)
	}
	change(&b)
	if err := w.s.Save(w.t.Context(), b.Encode(), b.Revision); err != nil {
		w.t.Fatal(err)
	}
}

// remove removes all records of a sort.
func (w *world) remove(sort store.RecordSort) {
	w.t.Helper()
	got, err := w.s.Load(w.t.Context(), store.RecordQuery{Sort: sort, Target: "sessions"})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range got.List {
		gone := store.Record{Sort: sort, Key: r.Key, Target: r.Target, Revision: store.NewRevision(r.Revision)}
		if err := w.s.Save(w.t.Context(), gone, r.Revision); err != nil {
			w.t.Fatal(err)
		}
	}
}

// wantBudget compares the verdict on the budget and its numbers.
func (w *world) wantBudget(when string, verdict inspect.Agreement, deleted, reported, without int64) {
	w.t.Helper()
	got := w.check().Budget
	if got.Verdict != verdict || got.Deleted != deleted || got.Reported != reported || got.Without != without || got.Why == "" {
		w.t.Errorf("%s: %+v, want %s", when, got, verdict)
	}
}

var roomy = breaker.Rules{On: true, Floor: 1000, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour}

// A check finds deletes that the budget does not know, or has too many of. What a process has
// not reported, a lost run and a lost reply explain so much, and no more.
func TestCheckOfTheBudget(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.History = sweep.History{Keep: 24 * time.Hour, Actor: "job"}
		w.target.Breaker = roomy
		w.wantBudget("without a history", inspect.NotCompared, 0, 0, 0)
		sweep.Run(t.Context(), w.config())
		w.wantBudget("before the first delete", inspect.Agrees, 0, 0, 0)
		w.sweepOf(40)
		w.wantBudget("after a sweep", inspect.Agrees, 40, 40, 0)
		ever := func(n int64) { w.alterBudget(func(b *breaker.Budget) { b.Spent.Ever = n }) }
		last := func(change func(*history.Run)) {
			w.alterRun(func(r *history.Run) {
				if r.Counts().Deleted > 0 {
					change(r)
				}
			})
		}
		ever(43)
		w.wantBudget("with three too many", inspect.Differs, 40, 43, 0)
		last(func(r *history.Run) { r.End = history.Lost })
		w.wantBudget("after a lost run", inspect.AtLeast, 40, 43, 0)
		ever(38)
		w.wantBudget("a lost run that had reported everything", inspect.Differs, 40, 38, 0)
		last(func(r *history.Run) { r.Sums[0].Budget.Unreported = 2 })
		w.wantBudget("a lost run that had two to report", inspect.AtLeast, 40, 38, 0)
		owner := ""
		list, err := history.Read(t.Context(), w.s, "sessions", time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Records {
			if r.Run.Counts().Deleted > 0 {
				owner = r.By.Owner
			}
		}
		for id := range w.cursors() {
			defer w.release(w.claim(owner, id)) // it has a heartbeat from now on
			break
		}
		w.wantBudget("while that process works", inspect.Pending, 40, 38, 0)
		ever(37)
		w.wantBudget("more than that process has to report", inspect.Differs, 40, 37, 0)
		ever(45)
		last(func(r *history.Run) { r.End, r.Ended = history.Open, time.Time{} })
		w.wantBudget("while a run goes on", inspect.Pending, 40, 45, 0)
		last(func(r *history.Run) {
			r.End, r.Ended, r.Sums[0].Budget = history.Done, r.Updated, history.Budgeted{Began: r.Sums[0].Budget.Began, Doubtful: 5}
		})
		w.wantBudget("after a lost reply", inspect.AtLeast, 40, 45, 0)
		ever(35)
		w.wantBudget("after the lost reply of a delete", inspect.AtLeast, 40, 35, 0)
		ever(34)
		w.wantBudget("more than the lost reply explains", inspect.Differs, 40, 34, 0)
	})
}

// Each account has its own beginning: the breaker may be switched off and on, and records of
// the history and the budget may be removed.
func TestBeginningsOfTheAccounts(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.History = sweep.History{Keep: 24 * time.Hour, Actor: "job"}
		w.sweepOf(10)
		w.wantBudget("without a breaker", inspect.Off, 0, 0, 10)
		if b := w.check().Budget; b.Since != nil {
			t.Errorf("without a budget: %+v", b)
		}
		w.target.Breaker = roomy
		w.sweepOf(20)
		w.wantBudget("with a breaker since then", inspect.Off, 20, 20, 10)
		w.target.Breaker = breaker.Rules{}
		w.sweepOf(5)
		w.wantBudget("off again", inspect.Off, 20, 20, 15)
		w.target.Limits.PerDay = 1000
		w.sweepOf(7)
		w.wantBudget("with limits alone", inspect.Off, 27, 27, 15)
		w.alterBudget(func(b *breaker.Budget) { b.Spent.Ever++ })
		w.wantBudget("with one too many", inspect.Differs, 27, 28, 15)
		w.remove(store.SweepRecord)
		w.wantBudget("without a history", inspect.NotCompared, 0, 0, 0)
		w.sweepOf(8)
		w.wantBudget("with a history that began later", inspect.Agrees, 8, 8, 0)
		w.remove(store.BudgetRecord)
		w.sweepOf(9)
		w.wantBudget("with a new budget", inspect.Off, 9, 9, 8)
	})
}
