package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// ErrLimit is wrapped by the error of a sweep that would delete, or was about to
// delete, more than the limits of its target allow.
var ErrLimit = store.WithHint(errors.New("sweep limit exceeded"),
	"if that many are to go, sweep once with --yes, or set another limit")

// An allowance is how many entities one tick of a target may delete. What is due is
// counted at each tick, and deletes wait for the answer. It is safe for concurrent use.
type allowance struct {
	dry      bool    // only say what would be refused
	deletes  int64   // most in one tick; 0 is no limit
	fraction float64 // most in one tick, of all entities with the property; 0 is no limit

	mu    sync.Mutex
	known bool
	// answered says that what is due was counted before, and due how much that was.
	answered bool
	due      int64
	left     int64
	all      int64 // entities with the property, or a lower bound of them; -1 before they were counted
	// further is when all was last counted up to more than the tick itself needed.
	further time.Time
	err     error // the limit that was exceeded
}

func newAllowance(t *Target, apply, yes bool) *allowance {
	a := &allowance{dry: !apply, all: -1, known: true, left: math.MaxInt64}
	if !yes {
		a.deletes, a.fraction = t.MaxDeletes, t.MaxFraction
		a.known = a.dry || !a.limited()
	}
	return a
}

// limited reports whether the target has any limit.
func (a *allowance) limited() bool { return a.deletes > 0 || a.fraction > 0 }

// close makes deletes wait until what is due is counted again.
func (a *allowance) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.err = a.dry, nil
}

// isOpen reports whether anything may be deleted.
func (a *allowance) isOpen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known && a.err == nil
}

// exceeded returns the error of a limit that was exceeded, if one was.
func (a *allowance) exceeded() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// spend takes n deletes from what this tick may still delete.
func (a *allowance) spend(n int) error {
	if !a.limited() || n == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil && a.left < int64(n) {
		a.err = fmt.Errorf("more entities are due than were counted when the sweep began: %w. "+
			"It stopped before deleting more", ErrLimit)
	}
	if a.err != nil {
		return a.err
	}
	a.left -= int64(n)
	return nil
}

// refund gives back what was spent on deletes that did not happen.
func (a *allowance) refund(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left < math.MaxInt64-int64(n) {
		a.left += int64(n)
	}
}

// hasAnswer reports whether due entities were ever counted.
func (a *allowance) hasAnswer() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answered
}

// lastDue returns the result of the last count of due entities.
func (a *allowance) lastDue() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.due
}

// allow sets what one tick may delete, given how much is due.
func (a *allowance) allow(due int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	most, why := a.mostLocked()
	a.known, a.answered, a.due, a.left, a.err = true, true, due, most, nil
	if due > most {
		a.err = fmt.Errorf("%d entities are due, and %s: %w. Nothing was deleted", due, why, ErrLimit)
	}
}

// most returns how much one tick may delete.
func (a *allowance) most() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	most, _ := a.mostLocked()
	return most
}

// mostLocked returns how much one tick may delete, and by which limit.
func (a *allowance) mostLocked() (most int64, why string) {
	most = math.MaxInt64
	if a.deletes > 0 {
		most, why = a.deletes, fmt.Sprintf("limits.max_deletes is %d", a.deletes)
	}
	if a.fraction > 0 {
		if n := int64(a.fraction * float64(a.all)); n < most {
			most, why = n, fmt.Sprintf("limits.max_fraction is %g, and %d entities carry the property", a.fraction, a.all)
		}
	}
	return most, why
}

// fill counts what is due and sets what this tick may delete. If a COUNT fails the
// last answer counts; without one deletes go on waiting.
func (a *allowance) fill(ctx context.Context, c *collector, p *plan.Plan) error {
	counter, ok := c.cfg.Store.(store.Counter)
	if !ok {
		a.allow(0)
		return nil
	}
	n, err := countSpans(ctx, c, counter, c.dueSpans(p), 0)
	if err != nil && (!a.hasAnswer() || ctx.Err() != nil) {
		return fmt.Errorf("count what is due: %w", err)
	}
	if err != nil {
		c.log.failed("count what is due", "", err)
		n = a.lastDue()
	}
	if err == nil && a.fraction > 0 {
		if err := a.countAll(ctx, c, counter, n); err != nil {
			return err
		}
	}
	if err == nil && n > a.most() && n <= readUpTo { // what is malformed is in it, and does not go
		if due, err := c.readDue(ctx, p); err != nil {
			c.log.DebugContext(ctx, "cannot read what is due: the limits go by its COUNT", "error", err)
		} else {
			n = min(n, due)
		}
	}
	a.allow(n)
	if err := a.exceeded(); err != nil && a.dry {
		c.log.WarnContext(ctx, "with --apply this sweep would refuse", "error", err)
		a.removeLimits()
	}
	return nil
}

// readDue reads the index where this sweep does, and counts what is due and well-formed,
// each entity once, whatever number of shard values it has.
func (c *collector) readDue(ctx context.Context, p *plan.Plan) (int64, error) {
	horizon := c.horizon()
	seen := map[[2]string]bool{}
	for r := range p.All() {
		if !p.Range(r).Read {
			continue
		}
		from := c.readFrom(p, r)
		err := c.entries(ctx, r, from, horizon, horizon, c.target.Page, func(e store.Entry, j judgement) bool {
			if j == due {
				seen[[2]string{r.Namespace, e.Key}] = true
			}
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	return int64(len(seen)), nil
}

// countAll counts what carries the property, as far as it matters with so much due:
// up to where twice as much would be allowed. What is due later in the tick, and in
// ticks whose COUNTs fail, goes by a count that goes further, once in a while. It
// fails only if there is no earlier answer.
func (a *allowance) countAll(ctx context.Context, c *collector, counter store.Counter, due int64) error {
	now, enough := c.cfg.Now(), int64(2*float64(due)/a.fraction)+1
	a.mu.Lock()
	further := a.all < 0 || age(now, a.further) >= furtherEvery
	a.mu.Unlock()
	if further {
		enough = max(enough, countFurther)
	}
	all, err := countSpans(ctx, c, counter, c.everywhere(store.Span{}), enough)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.all < 0:
		return fmt.Errorf("count the target: %w", err)
	case err != nil:
		c.log.failed("count the target", "", err)
	case further:
		a.all, a.further = all, now
	case all < enough || all > a.all: // otherwise it adds nothing to what is known
		a.all = all
	}
	return nil
}

// removeLimits removes all limits for this tick.
func (a *allowance) removeLimits() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left, a.err = math.MaxInt64, nil
}

const (
	// countTimeout bounds one COUNT, which the services end after 60 s.
	countTimeout = time.Minute
	// readUpTo is how many entries are read, which tells malformed ones apart, before a
	// limit refuses them by their COUNT. In native mode each costs a read.
	readUpTo = 10_000
	// The services bill a read for every 1,000 entries that they count.
	countFurther = 1_000_000
	furtherEvery = time.Hour
	// countersAtOnce is few, because others are sweeping.
	countersAtOnce = 4
)
