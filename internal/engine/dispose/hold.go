package dispose

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Hold is what a worker holds of a range while it works there: the claim, without which it may
// write nothing, and the pacer.
type Hold struct {
	Before cursor.Cursor   // the record as it was before the claim
	Pacer  *throttle.Pacer // nil until the range is taken
	c      *site.Site
	claim  *cursor.Claim // nil until the range is taken, and always in a dry run
}

// NewHold returns the hold of a range, which is not taken yet.
func NewHold(c *site.Site, before cursor.Cursor) Hold { return Hold{c: c, Before: before} }

// Key names the range.
func (h *Hold) Key() string { return h.Before.Key() }

// IsClaimed reports whether the range is claimed. In a dry run it never is.
func (h *Hold) IsClaimed() bool { return h.claim != nil }

// Err returns why the claim does not hold any more.
func (h *Hold) Err() error {
	if h.claim == nil {
		return nil
	}
	return h.claim.Err()
}

// Cursor returns the cursor as it is in memory.
func (h *Hold) Cursor() cursor.Cursor { return h.claim.Cursor() }

// Take claims the range. Its bucket is empty, and begins to fill now. A dry run claims
// nothing, and obeys the same pace. Full may refuse the claim; nil refuses none. Once ctx is
// done it claims nothing any more, but a claim that was sent is waited for until work is done.
func (h *Hold) Take(ctx, work context.Context, r shardquery.Range, full func(held int) bool) error {
	c := h.c
	pacer := c.Pacing.Open(c.Pacing.KeptPace(h.Before), c.Pacing.OwnPart(r))
	if !c.Cfg.Apply {
		h.Pacer = pacer
		c.Pacing.Register(h.Key(), pacer)
		return nil
	}
	claim, err := c.Keeper.ClaimUnless(ctx, work, h.Before, full)
	if err != nil {
		c.Pacing.Close(pacer)
		if errors.Is(err, cursor.ErrTaken) {
			c.Viewer.WantCursor(h.Before.ID)
		}
		return err
	}
	h.claim, h.Pacer = claim, pacer
	c.TookOver(h.Before.Lease)
	c.Cfg.Metrics.LeaseHeld(c.Target.Name, 1)
	c.Pacing.Register(h.Key(), pacer)
	return nil
}

// Update changes the cursor in memory, from where the claim saves it.
func (h *Hold) Update(change func(*cursor.Cursor)) {
	if h.claim != nil {
		h.claim.Update(change)
	}
}

// WasNotEmpty notes that something was deleted or carried. If the range was empty before, the time for which
// it must stay so before its generation retires begins again, also if this visit takes no stock any more.
func (h *Hold) WasNotEmpty() {
	if h.claim != nil && !h.Cursor().Stock.Emptied.IsZero() {
		h.Update(func(c *cursor.Cursor) { c.Stock.Emptied = time.Time{} })
	}
}

// SlowDown lowers the pace after an error that is push-back.
func (h *Hold) SlowDown(err error) {
	if h.Pacer != nil && store.Transient(err) && h.Pacer.PushBack(throttle.ReasonPushBack) {
		h.Update(func(c *cursor.Cursor) { h.c.Pacing.Save(c, h.Pacer) })
	}
}

// Release gives the claim back and returns the cursor as it was saved. It may take as long
// as a lease, but occupies no worker.
func (h *Hold) Release(work context.Context) (cursor.Cursor, error) {
	c := h.c
	c.Pacing.Unregister(h.Key())
	defer c.Pacing.Close(h.Pacer) // also if it panics
	if h.claim == nil {
		return h.Before, nil
	}
	c.Cfg.Metrics.LeaseHeld(c.Target.Name, -1)
	h.claim.Update(func(cur *cursor.Cursor) { c.Pacing.Save(cur, h.Pacer) })
	err := h.claim.Release(work)
	return h.claim.Cursor(), err
}
