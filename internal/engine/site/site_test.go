package site_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/throttle"
)

func open(t *testing.T, setup site.Setup) *site.Site {
	t.Helper()
	c := site.New(setup)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// Nothing is deleted by a target record that was read too long ago, even if no read has failed.
func TestOldRecordHoldsTheTarget(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	c := open(t, sitetest.Setup(s, s.Now))
	if now = now.Add(view.FreshFor); c.HeldBy() != "" {
		t.Errorf("held by %q while the record is fresh", c.HeldBy())
	}
	now = now.Add(time.Millisecond)
	if c.HeldBy() != throttle.ReasonRecord || !errors.Is(c.RecordFault(), site.ErrUnheard) {
		t.Errorf("held by %q, because of %v", c.HeldBy(), c.RecordFault())
	}
	if err := c.Viewer.ReloadRecord(t.Context()); err != nil || c.HeldBy() != "" {
		t.Errorf("after another read, %v: held by %q", err, c.HeldBy())
	}
}

// A closed gate holds a target; a dry run writes nothing, and nothing holds it.
func TestGateHoldsWhatApplies(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	for apply, want := range map[bool]throttle.Reason{true: throttle.ReasonGate, false: ""} {
		s := modelstore.New(func() time.Time { return now })
		setup := sitetest.Setup(s, s.Now)
		setup.Apply = apply
		setup.Gate = func(context.Context) error { return errors.New("maintenance") }
		if why := open(t, setup).HeldBy(); why != want {
			t.Errorf("apply %v: held by %q, want %q", apply, why, want)
		}
	}
}

// One sweep deletes nothing that expires after it began, however long it takes.
func TestHorizonOfOneSweepStays(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	setup := sitetest.Setup(s, s.Now)
	setup.Target.Retention = time.Hour
	c := open(t, setup)
	began := c.Horizon()
	c.Until = c.Clock.Now()
	if now = now.Add(time.Minute); !c.Horizon().Equal(began) {
		t.Errorf("the horizon moved by %v", c.Horizon().Sub(began))
	}
	c.Until = time.Time{}
	if !c.Horizon().After(began) {
		t.Error("the horizon of a daemon does not move")
	}
}

// A dry run gives few examples for each reason, and each entity once.
func TestFewExamples(t *testing.T) {
	tally := site.NewTally()
	for _, id := range []string{"a", "a", "b", "c", "d"} {
		tally.GiveExample(site.Example{Kept: site.KeptSuspect, ID: id})
	}
	tally.GiveExample(site.Example{Kept: site.KeptMalformed, ID: "a"})
	got := ""
	for _, x := range tally.Preview.Examples {
		got += x.Kept[:1] + x.ID + " "
	}
	if got != "sa sb sc ma " {
		t.Errorf("the examples are %s", got)
	}
}
