package orphans

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A largeOnes store deletes no more than 130 orphans in the time of a call.
type largeOnes struct{ *modelstore.Store }

func (s largeOnes) DeleteOrphans(
	ctx context.Context, _ store.LineageQuery, _ string, list []store.Relative,
) (store.Outcome, error) {
	if len(list) > 130 {
		<-ctx.Done()
		return store.Unknown, ctx.Err()
	}
	time.Sleep(20 * time.Second)
	return store.Deleted, nil
}

// A worker with large orphans gets on, though others with small ones enlarge the size that they share.
func TestOthersEnlargeTheSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, err := newJob(Config{Sweep: sweep.Config{Store: largeOnes{modelstore.New(time.Now)}, Apply: true, Now: time.Now,
			Grace: time.Second, Log: slog.New(slog.DiscardHandler)}, Target: sweep.Target{Shards: 4, Lease: 30 * time.Second,
			Target: store.Target{Name: "users", Kind: "User"}}, Rate: throttle.Limits{Unlimited: true}, Unlimited: true})
		if err != nil {
			t.Fatal(err)
		}
		d := &deleter{job: j, switches: j.newSwitches(), tally: newTally(j.Progress, time.Now()), size: newBatchSize(),
			pacer: throttle.Open(time.Now, j.Rate, throttle.State{}, mostBelow)}
		d.story = &story{job: j, switches: d.switches, tally: d.tally}
		var list []store.Relative
		for i := range mostBelow {
			list = append(list, store.Relative{Key: fmt.Sprint("k", i)})
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for throttle.Sleep(ctx, 25*time.Millisecond) == nil {
				d.size.wentWell(d.size.current())
			}
		}()
		_, err = d.run(t.Context(), store.LineageQuery{}, "gone", list, new(refusals))
		if cancel(); err != nil || d.tally.counts.Deleted != int64(mostBelow) {
			t.Errorf("%d of %d deleted, %v", d.tally.counts.Deleted, mostBelow, err)
		}
	})
}
