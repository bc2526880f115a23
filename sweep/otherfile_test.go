package sweep

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// A process goes on with a property that the target no longer has: others, with a new targets file, have changed the
// record. It cannot see what has the new property alone, so it retires no generation. Those that go by the record do.
func TestGenerationOfAnotherProperty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := modelstore.New(time.Now)
		cfg, target := alone(s)
		target.Policy = generation.Policy{Every: 24 * time.Hour, Staleness: time.Minute, Slack: 10 * time.Minute, Keep: 32}
		cfg.Targets = []Target{target}
		moved := target
		moved.Property = "expires_key"
		lists := func(property string) bool { // and retires by a process that has the other property
			c := newSite(&cfg, &target)
			if err := c.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			if property != target.Property {
				if _, _, err := EnsureRecord(t.Context(), cfg, moved); err != nil {
					t.Fatal(err)
				}
			}
			at := step.ChoreView{View: c.Viewer.View(), Now: c.Clock.Now()}
			do := step.Todo{Plan: at.Plan(c.Rules), Chore: at}
			turn := step.Turn{Ctx: t.Context(), Work: t.Context()}
			if out := chore.New(c, plan.Chore{Kind: plan.Retire, Generation: 1}).Step(turn, do); out.Err != nil {
				t.Fatal(out.Err)
			}
			rec, _, err := generation.Load(t.Context(), s, target.Name)
			if err != nil || rec.Property != property {
				t.Fatalf("%+v, %v", rec, err)
			}
			return slices.ContainsFunc(rec.Generations, func(g generation.Generation) bool { return g.Number == 1 })
		}
		for range 20 { // until the generation may retire
			if !lists(moved.Property) {
				t.Fatal("retired by a process that cannot see all of it")
			}
			if !lists(target.Property) {
				return
			}
			s.Before = func(_ context.Context, c modelstore.Call) error { // this test is to retire it, and no sweep
				if c.Method == "Save" && c.Record.Sort == store.TargetRecord && !hasFirst(c.Record.Fields) {
					return store.ErrConflict
				}
				return nil
			}
			Run(t.Context(), cfg)
			s.Before = nil
			time.Sleep(7 * time.Hour)
		}
		t.Error("it never retires")
	})
}

// hasFirst reports whether a target record lists the first generation.
func hasFirst(record store.Fields) bool {
	list, _ := record["generations"].([]store.Fields)
	return slices.ContainsFunc(list, func(g store.Fields) bool { return g["number"] == int64(1) })
}
