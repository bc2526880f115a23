package chore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
)

// A day after the first generation was opened, the chore life opens the second one.
func Example() {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	ctx := context.Background()
	c := site.New(sitetest.Setup(s, s.Now))
	fmt.Println(c.Open(ctx))
	now = now.Add(25 * time.Hour)
	fmt.Println(c.Viewer.ReloadRecord(ctx)) // the store tells the time
	p := plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now())
	out := chore.New(c, plan.Chore{Kind: plan.Life}).Step(step.Turn{Ctx: ctx, Work: ctx}, step.Todo{Plan: p})
	fmt.Println(out.State == step.Ended, len(c.Viewer.View().Record.Generations))
	// Output:
	// <nil>
	// <nil>
	// true 2
}
