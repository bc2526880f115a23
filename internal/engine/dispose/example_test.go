package dispose_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A dry run takes a range, disposes of what is due in it, and releases it; but writes nothing.
func Example() {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	due, _ := expirykey.New(1, 2, now.Add(-time.Hour))
	early, _ := expirykey.New(1, 2, now.Add(time.Hour))
	ctx := context.Background()
	fmt.Println(s.Put(ctx, sitetest.Target, "", []store.Entity{{Name: "s-1", Expiry: store.TextValue(due.String())},
		{Name: "s-2", Expiry: store.TextValue(early.String())}}))
	setup := sitetest.Setup(s, s.Now)
	setup.Apply = false
	c := site.New(setup)
	fmt.Println(c.Open(ctx))

	var page step.Scratch
	r := shardquery.Range{Generation: 1, Shard: 2}
	reader := &shardquery.Reader{Store: s, Target: sitetest.Target, Range: r, Until: shardquery.LastInstant, Now: s.Now}
	_, err := reader.Next(ctx, &page.Page, 50)
	fmt.Println(len(page.Page.Entries), err)
	decide := dispose.NewDecider(c, r.Generation, c.Horizon(), nil)
	for _, e := range page.Page.Entries {
		if decide.Decide(e.Value) == index.Due {
			page.Ops = append(page.Ops, store.Op{Entry: e})
		}
	}

	hold := dispose.NewHold(c, plan.New(c.Rules, c.Viewer.View(), plan.Book{}, c.Clock.Now()).Cursor(r))
	fmt.Println(hold.Take(ctx, ctx, r, nil))
	w := dispose.NewWriter(c, &hold, nil, time.Time{})
	turn := step.Turn{Ctx: ctx, Work: ctx, Scratch: &page}
	batch, err := w.Pick(turn)
	fmt.Println(len(batch), err)
	fmt.Println(w.Dispose(turn, reader.Query(), batch, false))
	fmt.Println(batch[0].Outcome == store.Deleted, s.Writes(), "write")
	_, err = hold.Release(ctx)
	fmt.Println(err)
	// Output:
	// <nil>
	// <nil>
	// 2 <nil>
	// <nil>
	// 1 <nil>
	// <nil>
	// true 1 write
	// <nil>
}
