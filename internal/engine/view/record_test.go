package view_test

import (
	"errors"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/store"
)

// opened returns the viewer of a process that has read the records.
func opened(t *testing.T, s *modelstore.Store, local func() time.Time) *view.Viewer {
	t.Helper()
	v := site.New(sitetest.Setup(s, local)).Viewer
	if err := v.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return v
}

// A mark that was made too long ago, or by a clock that is wrong now, is not written.
func TestMarksAreWrittenAtOnceAndByTheRightClock(t *testing.T) {
	at, jump := now, time.Duration(0)
	s := modelstore.New(func() time.Time { return at })
	v := opened(t, s, func() time.Time { return at.Add(jump) })
	before := s.Writes()
	rec, made := v.View().Record, v.Clock.Now()
	at = at.Add(view.RecordTimeout * 2)
	if err := v.SaveRecord(t.Context(), rec, made); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a mark that is %v old: %v", 2*view.RecordTimeout, err)
	}
	if err := v.ReloadRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	jump = time.Hour
	if err := v.ReloadRecord(t.Context()); !errors.Is(err, storeclock.ErrWrong) {
		t.Errorf("a clock that is an hour ahead: %v", err)
	}
	if err := v.SaveRecord(t.Context(), rec, v.Clock.Now()); !errors.Is(err, storeclock.ErrWrong) {
		t.Errorf("a mark by that clock: %v", err)
	}
	if n := s.Writes() - before; n != 0 {
		t.Errorf("%d writes", n)
	}
	jump = 0
	if err := v.ReloadRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.SaveRecord(t.Context(), rec, v.Clock.Now()); err != nil || s.Writes() == before {
		t.Errorf("a mark of this moment: %v, %d writes", err, s.Writes()-before)
	}
}

// A change that lost against another process is made again on what that one wrote.
func TestChangesAreRepeatedOnWhatOthersWrote(t *testing.T) {
	s := modelstore.New(func() time.Time { return now })
	one := opened(t, s, s.Now)
	other := opened(t, s, s.Now)
	add := func(shards int) view.RecordChange {
		return func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
			is.NurseryShards += shards
			return is, true, nil
		}
	}
	was := one.View().Record.NurseryShards
	if err := other.ChangeRecord(t.Context(), add(1)); err != nil {
		t.Fatal(err)
	}
	if err := one.SaveRecord(t.Context(), one.View().Record, now); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a write by the older record: %v", err)
	}
	if err := one.ChangeRecord(t.Context(), add(2)); err != nil || one.View().Record.NurseryShards != was+3 {
		t.Errorf("%d shards of %d, %v", one.View().Record.NurseryShards, was, err)
	}
}
