package adopt

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/sweep"
)

// The steps of an adoption that the history of its target has. Rounds are not among them: a
// watch may begin one each minute.
const (
	toldStamp  = "adopt" // it began, or its share rose
	toldDual   = "adopt dual"
	toldFinish = "adopt finish"
	toldUndo   = "adopt undo"
)

// tell writes a step into the history. The step was made, so a failure is only logged.
func (c Config) tell(ctx context.Context, at time.Time, what string, before, after Record) {
	err := sweep.RecordHistory(ctx, c.Sweep, c.Target, at, history.KindAction,
		history.Change{What: what, Before: before.step(), After: after.step()})
	if err != nil {
		c.Sweep.Log.WarnContext(ctx, "cannot write the history", "target", c.Target.Name, "what", what, "error", err)
	}
}

// step returns how far an adoption is, for people; empty for a record that does not exist.
func (r Record) step() string {
	if len(r.Rounds) == 0 {
		return ""
	}
	return fmt.Sprintf("phase %s, %v%% by %s", r.Phase, r.Round().Percent, r.Rule)
}

// tellPlan writes what a run has begun into the history: with a new record, a larger share, or
// the first undo.
func (c Config) tellPlan(ctx context.Context, at time.Time, before, after Record) {
	what := toldStamp
	switch {
	case after.Phase == Undoing && before.Phase != Undoing:
		what = toldUndo
	case after.Phase == Undoing:
		return
	case len(before.Rounds) > 0 && before.Round().Percent == after.Round().Percent:
		return
	}
	c.tell(ctx, at, what, before, after)
}
