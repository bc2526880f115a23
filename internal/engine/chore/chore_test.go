package chore_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

func open(t *testing.T, s *modelstore.Store, apply bool) *site.Site {
	t.Helper()
	return in(t, s, func(setup *site.Setup) { setup.Apply = apply })
}

func do(t *testing.T, c *site.Site, is plan.Chore) step.Outcome {
	t.Helper()
	at := step.ChoreView{View: c.Viewer.View(), Now: c.Clock.Now()}
	turn := step.Turn{Ctx: t.Context(), Work: t.Context(), Over: func() bool { return false }}
	return chore.New(c, is).Step(turn, step.Todo{Plan: at.Plan(c.Rules), Chore: at})
}

// Of two processes that do the same chore one changes the record. That is no failure of the other.
func TestOneProcessChangesTheRecord(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	one, two := open(t, s, true), open(t, s, true)
	now = now.Add(25 * time.Hour)
	for _, c := range []*site.Site{one, two} {
		if err := c.Viewer.ReloadRecord(t.Context()); err != nil { // the store tells the time
			t.Fatal(err)
		}
	}
	for _, c := range []*site.Site{one, two} {
		if out := do(t, c, plan.Chore{Kind: plan.Life}); out.State != step.Ended {
			t.Errorf("%v: %v", out.State, out.Err)
		}
	}
	if err := two.Viewer.ReloadRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(two.Viewer.View().Record.Generations); n != 2 {
		t.Errorf("there are %d generations", n)
	}
}

// A generation whose ranges were not read to their end does not retire, whatever a plan has listed.
func TestNoRetirementWithoutRecords(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	c := open(t, s, true)
	if out := do(t, c, plan.Chore{Kind: plan.Retire, Generation: 1}); out.State != step.Ended {
		t.Errorf("%v: %v", out.State, out.Err)
	}
	if !c.Lives(1) {
		t.Error("it has retired")
	}
}

// A dry run changes no record.
func TestDryRunChangesNothing(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	open(t, s, true) // makes the record
	c := open(t, s, false)
	now = now.Add(25 * time.Hour)
	if err := c.Viewer.ReloadRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, apply := range []bool{false, true} {
		if apply {
			c = open(t, s, true)
		}
		before := s.Writes()
		for _, kind := range []plan.Kind{plan.Raise, plan.Retire, plan.Life} {
			if out := do(t, c, plan.Chore{Kind: kind, Generation: 1}); out.State != step.Ended {
				t.Errorf("%s: %v: %v", kind, out.State, out.Err)
			}
		}
		if n := s.Writes() - before; (n > 0) != apply {
			t.Errorf("apply %t: %d writes", apply, n)
		}
	}
}

// A look around that finds a generation in the record which another process has found since it began looks again:
// it says nothing of that generation before it has looked past its last shard.
func TestLookBesideTheSecondProbe(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	put := func(name, expiry string) {
		e := store.Entity{Name: name, Expiry: store.TextValue(expiry)}
		if err := s.Put(t.Context(), sitetest.Target, "", []store.Entity{e}); err != nil {
			t.Fatal(err)
		}
	}
	looks, probes := open(t, s, true), open(t, s, true)
	if out := do(t, looks, plan.Chore{Kind: plan.Look}); out.State != step.Ended {
		t.Fatalf("%v: %v", out.State, out.Err)
	}
	put("s-1", "00000005.0030.20261125T020000.000Z")
	put("s-2", "nowhere") // makes the look write what it finds
	now = now.Add(12 * time.Minute)
	for _, c := range []*site.Site{probes, looks} {
		if err := c.Viewer.ReloadRecord(t.Context()); err != nil { // the store tells the time
			t.Fatal(err)
		}
	}
	if out := do(t, probes, plan.Chore{Kind: plan.Probe}); out.State != step.Ended {
		t.Fatalf("%v: %v", out.State, out.Err)
	}
	if out := do(t, looks, plan.Chore{Kind: plan.Look}); out.State != step.Ended {
		t.Fatalf("%v: %v", out.State, out.Err)
	}
	v := looks.Viewer.View()
	if r := v.Record; len(r.Generations) < 2 || r.Checked.IsZero() {
		t.Errorf("looked around at %v, with %+v", r.Checked, r.Generations)
	}
	id := looks.Rules.ID(shardquery.Range{Generation: 5, Shard: 30})
	if !v.Cursors.Has(id) {
		t.Errorf("noted a look that has not found %v", id)
	}
}
