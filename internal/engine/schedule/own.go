package schedule

import (
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/throttle"
)

// Own is what a process knows of the ranges of a target by its own work.
type Own struct {
	Owner  string     // names the process in leases; empty if nothing is known
	Ranges []OwnRange // those that it works on, or has left with something due, in no order
}

// An OwnRange is what a process knows of a range by its own work.
type OwnRange struct {
	Range     shardquery.Range
	InWork    bool            // it holds or reads the range
	OldestDue time.Time       // when the oldest entity left in it became due; zero if that is not known
	Held      throttle.Reason // what its last step had to wait for; empty if nothing holds it back
}

// own lists what this process knows of its ranges.
func (r *roster) own() Own {
	o := Own{Owner: r.c.Keeper.Owner}
	for at, it := range r.ranges {
		one := OwnRange{Range: at, OldestDue: r.c.Target.Watchdog.DueSince(it.name), Held: it.out.Why}
		// While a step runs, the job is its worker's.
		one.InWork = it.state == step.Running || it.state != step.Resting && it.job.IsClaimed()
		if one.InWork || !one.OldestDue.IsZero() {
			o.Ranges = append(o.Ranges, one)
		}
	}
	return o
}
