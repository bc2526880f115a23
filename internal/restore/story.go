package restore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/sweep"
)

// What the history of a target has of a run that restores.
const (
	toldBegin = "restore"     // the first ones are inserted
	toldEnd   = "restore end" // how many there were
)

// A story writes a run into the history of the target: after its first insert, and at its end. A write that fails
// is only logged.
type story struct {
	run   *run
	begun atomic.Bool
}

// inserted notes that so many entities were inserted.
func (s *story) inserted(ctx context.Context, n int) {
	if n == 0 || s.begun.Swap(true) {
		return
	}
	s.tell(ctx, history.Change{What: toldBegin, Reason: s.run.job.Reason,
		After: fmt.Sprintf("inserts up to %d: %s", s.run.tally.soFar().Restorable, s.run.job.Order)})
}

// end notes what a run has restored.
func (s *story) end(ctx context.Context, complete bool) {
	if !s.begun.Load() {
		return
	}
	n := s.run.tally.soFar()
	after := fmt.Sprintf("restored %d, %d exist", n.Restored, n.Exist)
	if !complete {
		after += ", not complete"
	}
	s.tell(ctx, history.Change{What: toldEnd, Reason: s.run.job.Reason, After: after})
}

func (s *story) tell(ctx context.Context, c history.Change) {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	j := s.run.job
	err := sweep.RecordHistory(ctx, j.Sweep, j.Target, s.run.switches.StoreNow(), history.KindAction, c)
	if err != nil {
		j.log.WarnContext(ctx, "cannot write the history", "target", j.Target.Name, "what", c.What, "error", err)
	}
}
