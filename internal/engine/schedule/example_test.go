package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/chore"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/schedule"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/internal/engine/visit"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/sitetest"
	"github.com/reaper-ttl/reaper/shardquery"
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
