package orphans

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/sweep"
)

// What the history of a target has of a run that deletes.
const (
	toldBegin = "orphans"     // the first ones are deleted
	toldEnd   = "orphans end" // how many there were
)

// A story writes a run into the history of the target: after its first delete, and at its end. A write
// that fails is only logged.
type story struct {
	job      *job
	switches *switches.Switches
	tally    *tally
	begun    atomic.Bool
}

// deleted notes that orphans were deleted.
func (s *story) deleted(ctx context.Context) {
	if s.begun.Swap(true) {
		return // the other workers go on meanwhile
	}
	after := fmt.Sprintf("deletes at most %d", s.job.Max)
	if s.job.Unlimited {
		after = "deletes without a limit"
	}
	s.tell(ctx, history.Change{What: toldBegin, After: after})
}

// end notes what a run has deleted.
func (s *story) end(ctx context.Context, complete bool) {
	n := s.tally.soFar()
	if n.Deleted == 0 {
		return
	}
	after := fmt.Sprintf("deleted %d", n.Deleted)
	if !complete {
		after += ", not complete"
	}
	s.tell(ctx, history.Change{What: toldEnd, After: after})
}

func (s *story) tell(ctx context.Context, c history.Change) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	err := sweep.RecordHistory(ctx, s.job.Sweep, s.job.Target, s.switches.StoreNow(), history.KindAction, c)
	if err != nil {
		s.job.Sweep.Log.WarnContext(ctx, "cannot write the history", "target", s.job.Target.Name, "what", c.What,
			"error", err)
	}
}
