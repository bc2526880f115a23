package inspect_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/inspect"
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
