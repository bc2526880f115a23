package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/sweep/chore"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/schedule"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/sweep/visit"
)

// One sweep ends when every range is swept up to the instant at which it began.
func Example() {
	s := modelstore.New(time.Now)
	sitetest.PutExpired(s, time.Now())
	c := site.New(sitetest.Setup(s, time.Now))
	ends := schedule.Sweep(context.Background(), schedule.Config{Workers: 4, Grace: time.Second, Now: time.Now}, []schedule.Target{{
		Site:  c,
		Range: func(r shardquery.Range) step.Range { return visit.NewRange(c, r) },
		Chore: func(is plan.Chore) step.Job { return chore.New(c, is) },
	}})
	fmt.Println(ends[0].Complete, ends[0].Err, c.Tally.Counts.Deleted.Load(), "deleted")
	// Output:
	// true <nil> 1 deleted
}
