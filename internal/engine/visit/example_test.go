package visit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/visit"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/store"
)

// A dry run visits each range that the plan lists, in one step, and writes nothing.
func Example() {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	k, _ := expirykey.New(1, 2, now.Add(-time.Hour))
	ctx := context.Background()
	fmt.Println(s.Put(ctx, sitetest.Target, "", []store.Entity{{Name: "s-1", Expiry: store.TextValue(k.String())}}))
	setup := sitetest.Setup(s, s.Now)
	setup.Apply = false
	c := site.New(setup)
	fmt.Println(c.Open(ctx))
	p := plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now())
	for r := range p.All() {
		t := step.Turn{Ctx: ctx, Work: ctx, Over: func() bool { return false }, Scratch: &step.Scratch{}}
		job := visit.NewRange(c, r)
		if out := job.Step(t, step.Todo{Need: p.Range(r), Cursor: p.Cursor(r), Plan: p}); out.State != step.Resting {
			fmt.Println(r, out.State, out.Err)
		}
	}
	fmt.Println(c.Tally.Counts.Expired.Load(), "is due;", s.Writes(), "write")
	// Output:
	// <nil>
	// <nil>
	// 1 is due; 1 write
}
