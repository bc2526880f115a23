package site

import (
	"context"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/metrics"
)

// Sums returns what this process has done to the target so far.
func (c *Site) Sums() chronicle.Sums {
	s := chronicle.Sums{Counts: metrics.Load(&c.Tally.Counts.CountsOf), Operations: c.Tally.Meter.Operations(),
		Delays: c.Tally.Counts.Delays.Load(), Throttled: c.Tally.ThrottledFor(), Horizon: c.Horizon()}
	s.Budget = c.Budget.Account() // after the counts, so that it includes what they include
	return s
}

// TookOver marks the runs of a process as lost whose range this one has claimed, if that process
// is known to be dead. In an embedded store it is if it opened the store before this one;
// elsewhere its heartbeat shows it.
func (c *Site) TookOver(from cursor.Lease) {
	if from.Owner != "" && !c.Keeper.IsOfThisOpening(from.Owner) {
		c.Story.Bury(cursor.Heartbeat{Target: c.Target.Name, Owner: from.Owner})
	}
}

// BudgetedSoFar returns the budget as it was before this process reported anything to it.
func (c *Site) BudgetedSoFar(ctx context.Context) (history.Budgeted, error) {
	if first, read := c.Budget.FirstRead(); read {
		return first, nil
	}
	b, err := spend.Load(ctx, c.Keeper.Store, c.Target.Name)
	if first, read := c.Budget.FirstRead(); read { // it may have reported while this was loaded
		return first, nil
	}
	return history.Budgeted{Began: b.Began, Deleted: b.Spent.Ever}, err
}
