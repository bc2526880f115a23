package chore_test

import (
	"context"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// in opens a site with changes to its setup.
func in(t *testing.T, s *modelstore.Store, change func(*site.Setup)) *site.Site {
	t.Helper()
	setup := sitetest.Setup(s, s.Now)
	change(&setup)
	c := site.New(setup)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// moved sweeps another property than other sites.
func moved(setup *site.Setup) {
	setup.Target.Property, setup.Rules.Scope.Property = "expires_with", "expires_with"
}

// must does a chore, which has to end well, by the present record.
func must(t *testing.T, c *site.Site, is plan.Chore) {
	t.Helper()
	if err := c.Viewer.ReloadRecord(t.Context()); err != nil { // the store tells the time
		t.Fatal(err)
	}
	if out := do(t, c, is); out.State != step.Ended {
		t.Fatalf("%s: %v: %v", is.Kind, out.State, out.Err)
	}
}

func put(t *testing.T, s *modelstore.Store, ns, name string, generation, shard int, expires time.Time) {
	t.Helper()
	k, err := expirykey.New(generation, shard, expires)
	if err == nil {
		err = s.Put(t.Context(), sitetest.Target, ns, []store.Entity{{Name: name, Expiry: store.TextValue(k.String())}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A process that goes on with another one's pass over a sealed generation has not read the records of the
// ranges that this had met. It reads them before the seal counts: otherwise it would take them for empty.
func TestPassOfAnotherProcess(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	both := func(setup *site.Setup) { setup.Rules.Namespaces = []string{"", "eu"} }
	first := in(t, s, both)
	put(t, s, "", "a", 1, 1, now.Add(900*time.Hour))
	put(t, s, "eu", "b", 1, 2, now.Add(900*time.Hour))
	sealed := func(c *site.Site) bool {
		return plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now()).Stage(1).IsSealed()
	}
	for !sealed(first) {
		now = now.Add(13 * time.Hour)
		must(t, first, plan.Chore{Kind: plan.Probe})
		must(t, first, plan.Chore{Kind: plan.Life})
	}
	dies, goesOn := in(t, s, both), in(t, s, both)
	scans := 0
	s.Before = func(_ context.Context, c modelstore.Call) error {
		if c.Method != "Scan" {
			return nil
		}
		now = now.Add(11 * time.Second) // so that it saves how far it has come
		if c.Namespace == "eu" {
			scans++
		}
		if scans == 2 {
			return store.ErrDenied
		}
		return nil
	}
	seal := plan.Chore{Kind: plan.Seal, Generation: 1}
	if out := do(t, dies, seal); out.State != step.Failed {
		t.Fatalf("%v: %v", out.State, out.Err)
	}
	s.Before = nil
	now = now.Add(2 * time.Minute)
	must(t, goesOn, seal)
	p := plan.New(goesOn.Rules, goesOn.Viewer.View(), plan.Book{}, goesOn.Clock.Now())
	for ns, shard := range map[string]int{"": 1, "eu": 2} {
		if r := (shardquery.Range{Namespace: ns, Generation: 1, Shard: shard}); !p.Range(r).Read {
			t.Errorf("%q: after a pass that met something it counts as empty: %+v", ns, p.Cursor(r))
		}
	}
}

// A daemon with an old targets file looks around the ranges of the property that it has: it must not note
// that in a record which is of another property by now, and whose first look is still to come.
func TestLookOfAnotherProperty(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	old := open(t, s, true)
	put(t, s, "", "a", 1, 1, now.Add(time.Hour))
	must(t, old, plan.Chore{Kind: plan.Look})
	is := in(t, s, moved)
	must(t, old, plan.Chore{Kind: plan.Look})
	if err := is.Viewer.ReloadRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := is.Viewer.View().Record; !r.Checked.IsZero() {
		t.Errorf("of %s somebody with %s has looked around at %v", r.Property, old.Target.Property, r.Checked)
	}
	must(t, is, plan.Chore{Kind: plan.Look})
	if is.Viewer.View().Record.Checked.IsZero() {
		t.Error("who has the property has not looked around")
	}
}

// After somebody has made a new record, a daemon with an old targets file probes the property that it has: that of
// another one, of which the record is by now, is still to come.
func TestProbeOfAnotherProperty(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	old, is := open(t, s, true), in(t, s, moved)
	now = now.Add(12 * time.Minute)
	must(t, old, plan.Chore{Kind: plan.Probe})
	put(t, s, "", "a", 5, 1, now.Add(time.Hour))
	must(t, is, plan.Chore{Kind: plan.Probe})
	if r := is.Viewer.View().Record; !r.Probe.IsZero() || len(r.Generations) != 3 || r.Generations[1].Number != 5 {
		t.Errorf("the probe is due at %v, and found %+v", r.Probe, r.Generations)
	}
}

// A deployment joins while the second probe is under way: that did not go to its namespaces, and is repeated.
func TestProbeOfNamespacesThatJoin(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	probes := open(t, s, true)
	put(t, s, "eu", "a", 5, 1, now.Add(time.Hour))
	now = now.Add(12 * time.Minute)
	joined := false
	s.Before = func(_ context.Context, call modelstore.Call) error {
		if !joined && call.Method == "Scan" {
			joined = true
			in(t, s, func(setup *site.Setup) { setup.Rules.Namespaces = []string{"eu"} })
		}
		return nil
	}
	for range 2 {
		must(t, probes, plan.Chore{Kind: plan.Probe})
	}
	if r := probes.Viewer.View().Record; !joined || !r.Probe.IsZero() || len(r.Generations) != 3 {
		t.Errorf("the probe is due at %v, and found %+v", r.Probe, r.Generations)
	}
}

// While a range is in work for long, only its record says how far it has come. A look that wants to know whether
// the index has any entry asks that first, and does not read over what was deleted behind it.
func TestLookReadsBehindNoCursor(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	looks, works := open(t, s, true), open(t, s, true)
	put(t, s, "", "a", 1, 2, now.Add(900*time.Hour))
	r := shardquery.Range{Generation: 1, Shard: 2}
	k, err := expirykey.New(1, 2, now.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cur := cursor.Cursor{ID: works.Rules.ID(r), Scope: works.Rules.Scope, TargetRevision: 1,
		Position: store.Position{Value: store.TextValue(k.String())}}
	if _, moved, err := works.Keeper.Move(t.Context(), cur, func(*cursor.Cursor) {}); !moved || err != nil {
		t.Fatal(moved, err)
	}
	s.Before = func(_ context.Context, c modelstore.Call) error {
		if q := c.Query; c.Method == "Scan" && q.After == (store.Position{}) && q.Lo.Compare(cur.Position.Value) < 0 &&
			q.Hi.Compare(cur.Position.Value) > 0 {
			t.Errorf("it reads from %s on", q.Lo)
		}
		return nil
	}
	must(t, looks, plan.Chore{Kind: plan.Look})
	if looks.Viewer.View().Record.EmptyIndex {
		t.Error("the index seems to be empty")
	}
}
