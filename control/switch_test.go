package control_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

var ann, bob = control.Order{Actor: "ann", Reason: "a restore"}, control.Order{Actor: "bob"}

// The record keeps who paused a target, when, why and until when. It also keeps who resumed
// it.
func TestPauseAndResume(t *testing.T) {
	at(t, func(d *desk) {
		if _, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target); err != nil {
			d.Fatal(err)
		}
		at := time.Now().UTC()
		if _, _, err := control.Pause(d.Context(), d.config(), d.target, ann, time.Hour); err != nil {
			d.Fatal(err)
		}
		rec := d.record()
		if !rec.Paused || !rec.PausedUntil.Equal(at.Add(time.Hour)) ||
			rec.PauseNote.Actor != "ann" || rec.PauseNote.Reason != "a restore" || !rec.PauseNote.At.Equal(at) {
			d.Errorf("paused: %+v", rec)
		}
		time.Sleep(time.Minute)
		if rec, _, err := control.Pause(d.Context(), d.config(), d.target, bob, 0); err != nil || !rec.PausedUntil.IsZero() ||
			rec.PauseNote.Actor != "bob" || rec.PauseNote.Reason != "" {
			d.Errorf("paused again without an end: %+v, %v", rec, err)
		}
		if rec, _, err := control.Resume(d.Context(), d.config(), d.target, ann); err != nil || rec.Paused || rec.PauseNote.Actor != "ann" {
			d.Errorf("resumed: %+v, %v", rec, err)
		}
		before := d.s.Writes()
		if rec, _, err := control.Resume(d.Context(), d.config(), d.target, bob); err != nil || rec.PauseNote.Actor != "ann" || d.s.Writes() != before {
			d.Errorf("resumed again: %+v, %v", rec, err)
		}
	})
}

// The record keeps who changed the pace, and only if it did change.
func TestSetPace(t *testing.T) {
	at(t, func(d *desk) {
		if _, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target); err != nil {
			d.Fatal(err)
		}
		set := func(o control.Order, p control.Pace) generation.Record {
			d.Helper()
			rec, _, err := control.SetPace(d.Context(), d.config(), d.target, o, p)
			if err != nil {
				d.Fatal(err)
			}
			return rec
		}
		seven := generation.Rate{Set: true, PerSecond: 7}
		if rec := set(ann, control.Pace{Max: seven}); rec.PaceMax != seven || rec.PaceTotal.Set || rec.PaceNote.Actor != "ann" {
			d.Errorf("%+v", rec)
		}
		before := d.s.Writes()
		set(bob, control.Pace{})
		if rec := set(bob, control.Pace{Max: seven}); rec.PaceNote.Actor != "ann" || d.s.Writes() != before {
			d.Errorf("without a change: %+v", rec)
		}
		if rec := set(bob, control.Pace{Reset: true, Total: seven}); rec.PaceMax.Set || rec.PaceTotal != seven || rec.PaceNote.Actor != "bob" {
			d.Errorf("reset: %+v", rec)
		}
	})
}

// A target without a record is refused, and gets no record.
func TestSwitchesNeedARecord(t *testing.T) {
	at(t, func(d *desk) {
		_, _, pause := control.Pause(d.Context(), d.config(), d.target, ann, 0)
		_, _, resume := control.Resume(d.Context(), d.config(), d.target, ann)
		_, _, pace := control.SetPace(d.Context(), d.config(), d.target, ann, control.Pace{})
		for _, err := range []error{pause, resume, pace} {
			if !errors.Is(err, control.ErrNoRecord) {
				d.Errorf("of a target that nobody swept: %v", err)
			}
		}
		if d.s.Writes() != 0 {
			d.Error("something was written")
		}
	})
}

// A reason that is too long or more than one line is refused before anything is read.
func TestBadOrders(t *testing.T) {
	at(t, func(d *desk) {
		for what, o := range map[string]control.Order{
			"10 KB": {Reason: strings.Repeat("x", 10<<10)}, "one byte too many": {Reason: strings.Repeat("x", control.MaxReason+1)},
			"a line break": {Reason: "a\nb"}, "an escape": {Reason: "\x1b[2J"}, "not UTF-8": {Reason: "\xff"},
			"a line separator": {Reason: "a\u2028b"}, "a bad actor": {Actor: "a\tb"}, "a long actor": {Actor: strings.Repeat("x", 321)},
		} {
			if _, _, err := control.Pause(d.Context(), d.config(), d.target, o, 0); err == nil || errors.Is(err, control.ErrNoRecord) {
				d.Errorf("%s: %v", what, err)
			}
		}
		if err := (control.Order{Reason: strings.Repeat("x", control.MaxReason)}).Check(); err != nil {
			d.Error(err)
		}
	})
}

// A change that takes effect is in the history once, if the store fails the first writes of
// its record, or answers them too late.
func TestChangesAreToldOnce(t *testing.T) {
	for _, late := range []bool{false, true} {
		at(t, func(d *desk) {
			d.target.History = sweep.History{Keep: time.Hour, Actor: "job"}
			if _, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target); err != nil {
				d.Fatal(err)
			}
			fails := 3
			hook := func(_ context.Context, c modelstore.Call) error {
				if c.Method == "Save" && c.Record.Sort == store.SweepRecord && fails > 0 {
					fails--
					return fmt.Errorf("no: %w", store.ErrUnavailable)
				}
				return nil
			}
			if d.s.Before = hook; late {
				d.s.Before, d.s.After = nil, hook
			}
			if _, _, err := control.Pause(d.Context(), d.config(), d.target, ann, 0); err != nil {
				d.Fatal(err)
			}
			list, err := history.Read(d.Context(), d.s, "sessions", time.Time{})
			n := 0
			for _, r := range list.Records {
				if r.Kind == history.KindAction {
					n++
				}
			}
			if n != 1 || fails != 0 || err != nil {
				d.Errorf("late: %v: %d records of one pause after %d failures, %v", late, n, 3-fails, err)
			}
		})
	}
}

// Sweepers that hold the record for seconds, or a store that answers too late, hold a change up and do
// not make it fail: an operator should not have to enter it again.
func TestChangesOutlastABusyStore(t *testing.T) {
	for _, late := range []bool{false, true} {
		at(t, func(d *desk) {
			if _, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target); err != nil {
				d.Fatal(err)
			}
			until := time.Now().Add(40 * time.Second)
			busy := func(err error) func(context.Context, modelstore.Call) error {
				return func(_ context.Context, c modelstore.Call) error {
					if c.Method == "Save" && c.Record.Sort == store.TargetRecord && time.Now().Before(until) {
						return err
					}
					return nil
				}
			}
			if d.s.Before = busy(fmt.Errorf("locked: %w", store.ErrContention)); late {
				d.s.Before, d.s.After = nil, busy(fmt.Errorf("no answer: %w", store.ErrDeadline))
			}
			rec, _, err := control.Pause(d.Context(), d.config(), d.target, ann, 0)
			if err != nil || !rec.Paused || d.record().PauseNote.Reason != ann.Reason {
				d.Errorf("late: %v: %+v, %v", late, rec, err)
			}
		})
	}
}

// A change is made even if the history of the target cannot be written: the log says so.
func TestChangesWithoutTheirHistory(t *testing.T) {
	at(t, func(d *desk) {
		d.target.History = sweep.History{Keep: time.Hour, Actor: "job"}
		if _, _, err := sweep.EnsureRecord(d.Context(), d.config(), d.target); err != nil {
			d.Fatal(err)
		}
		refuses := true
		d.s.Before = func(_ context.Context, c modelstore.Call) error {
			if refuses && c.Method == "Save" && c.Record.Sort == store.SweepRecord {
				return fmt.Errorf("no: %w", store.ErrUnavailable)
			}
			return nil
		}
		var log strings.Builder
		cfg := d.config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		if rec, _, err := control.Pause(d.Context(), cfg, d.target, ann, 0); err != nil || !rec.Paused || !d.record().Paused {
			d.Errorf("%+v, %v", rec, err)
		}
		if n := strings.Count(log.String(), "cannot write the history"); n != 1 {
			d.Errorf("%d lines: %s", n, log.String())
		}
		refuses = false
		if _, _, err := control.Resume(d.Context(), cfg, d.target, bob); err != nil {
			d.Fatal(err)
		}
		list, err := history.Read(d.Context(), d.s, "sessions", time.Time{})
		if err != nil {
			d.Fatal(err)
		}
		n := len(list.Records)
		if last := list.Records[n-1]; last.By.Actor != "bob" || last.Change.What != "resume" || last.Change.Before != "paused" ||
			last.Change.After != "not paused" {
			d.Errorf("%+v", last)
		}
	})
}

// An approval is in the history with what may go by it, and with the word that as much is usual
// from now on. A later change of the target does not repeat it.
func TestApprovalsAreInTheHistory(t *testing.T) {
	at(t, func(d *desk) {
		d.target.History = sweep.History{Keep: time.Hour, Actor: "job"}
		d.target.Breaker = breaker.Rules{On: true, Floor: 10, Fraction: 0.25, Window: time.Hour, Learn: 14 * 24 * time.Hour}
		rec, now, err := sweep.EnsureRecord(d.Context(), d.config(), d.target)
		if err != nil {
			d.Fatal(err)
		}
		for _, id := range []string{"first", "second"} {
			tripped := rec.Tripped(breaker.Trip{ID: id, Rule: breaker.Burst, At: now, Hour: now.Truncate(time.Hour), Through: now,
				Due: 500, Limit: 100, All: 1000})
			if _, err := generation.Save(d.Context(), d.s, tripped); err != nil {
				d.Fatal(err)
			}
			approval := control.Approval{ID: id, Count: 50, Normal: id == "second"}
			if rec, _, err = control.Approve(d.Context(), d.config(), d.target, ann, approval); err != nil {
				d.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if _, _, err := control.Pause(d.Context(), d.config(), d.target, bob, 0); err != nil {
			d.Fatal(err)
		}
		list, err := history.Read(d.Context(), d.s, "sessions", time.Time{})
		if err != nil {
			d.Fatal(err)
		}
		var told []string
		for _, r := range list.Records {
			if r.Kind == history.KindApproval || r.Kind == history.KindAction {
				told = append(told, fmt.Sprintf("%s by %s: %s -> %s", r.Change.What, r.By.Actor, r.Change.Before, r.Change.After))
			}
		}
		want := []string{
			"approve by ann: paused, trip first open: 500 due -> not paused, trip first approved: 50 may go",
			"approve by ann: paused, trip second open: 500 due -> not paused, trip second approved: 50 may go, " +
				"and as many in one window are usual from now on",
			"pause by bob: not paused -> paused",
		}
		if !slices.Equal(told, want) {
			d.Errorf("got\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
		}
	})
}
