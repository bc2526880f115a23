package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/chronicle"
	"github.com/reaper-ttl/reaper/internal/engine/guard"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A Config says how to work on a target.
type Config struct {
	Store     store.Store
	Apply     bool             // without it, count only and write nothing
	Workers   int              // steps at the same time, over all targets
	FromStart bool             // read each range from its start, even if such a read is not due
	Exact     bool             // without Apply: read and check each entity
	Archive   Archive          // keeps what is about to be deleted of the target; may be nil
	Now       func() time.Time // this process's clock
	Metrics   *metrics.Metrics
	Progress  *Progress
}

// A Target is what is worked on.
type Target struct {
	store.Target
	ShardValues []store.Value
	Policy      generation.Policy
	Retention   time.Duration // kept this long past expires
	Overlap     time.Duration // a saved cursor stays this much behind the horizon
	Page        int           // entries per page
	Lease       time.Duration
	Limits      breaker.Limits
	Breaker     breaker.Rules
	Compare     Comparer // keeps due entities that disagree with their expiry; may be nil
	Descendants Descendants
	Watchdog    *metrics.Watchdog
}

// Descendants say what becomes of what lies below due entities. The zero value leaves it alone.
type Descendants struct {
	Mode   DescendantsMode
	Max    int64          // an entity with more below it is kept
	Owners []store.Target // of which nothing goes but by its own expiry
}

// A DescendantsMode is what becomes of descendants.
type DescendantsMode string

// The modes.
const (
	KeepDescendants   DescendantsMode = ""       // they stay
	DeleteDescendants DescendantsMode = "delete" // they go before what they lie below
	RefuseDescendants DescendantsMode = "refuse" // what has any is kept
)

// IsTripped reports whether an open breaker holds the target. One that is switched off holds nothing.
func (t Target) IsTripped(r generation.Record) bool { return t.Breaker.On && r.Trip.IsOpen() }

// A Site has what all work on one target shares. Its fields are set before the first step and
// do not change; what they point to is safe for concurrent use.
type Site struct {
	Cfg    Config
	Target Target
	Rules  plan.Rules
	Log    *journal.Journal
	Story  *chronicle.Chronicle // nil without a history
	Clock  *storeclock.Clock
	Index  *index.Index
	Keeper *cursor.Keeper
	Viewer *view.Viewer
	Watch  *pace.Watch
	Pacing *pace.Pacing
	Budget *spend.Spender // nil without a breaker and limits
	Guards *guard.Guards
	Tally  *Tally
	Until  time.Time // when the one sweep began, which deletes nothing that is due later; zero in a daemon
}

// Open reads the records and asks the gate, before anything is deleted.
func (c *Site) Open(ctx context.Context) error {
	if err := c.Viewer.Open(store.WithMeter(ctx, &c.Tally.Meter)); err != nil {
		return err
	}
	c.Pacing.Follow(c.Viewer.View())
	c.Guards.LogChanges()
	if c.Pacing.Gate != nil {
		c.Pacing.Gate.Ask(ctx)
	}
	return nil
}

// Horizon returns the present horizon: an entity that expires at or before it is due.
func (c *Site) Horizon() time.Time {
	now := c.Clock.Now()
	if !c.Until.IsZero() && now.After(c.Until) {
		now = c.Until
	}
	return now.Add(-c.Target.Retention)
}

// HeldBy returns why nothing may be written to the target at present; it is empty if
// writes are allowed. It relies on recent information only: a pause takes effect within
// fifteen seconds, even in a process that was frozen.
func (c *Site) HeldBy() throttle.Reason {
	v := c.Viewer.View()
	switch {
	case !c.Cfg.Apply:
		return ""
	case c.Target.IsTripped(v.Record): // resume does not end it, so it comes before a pause
		return throttle.ReasonBreaker
	case v.Record.IsPaused(c.Clock.Now()):
		return throttle.ReasonPaused
	case !c.Pacing.Gate.IsOpen():
		return throttle.ReasonGate
	case c.RecordFault() != nil:
		return throttle.ReasonRecord
	case c.archiveFault() != nil:
		return throttle.ReasonArchive
	case c.Budget.IsAtLimit():
		return throttle.ReasonLimit
	}
	return ""
}

// RecordFault returns which of the records that this process needs it cannot read or write, and
// why; nil if there is no such record.
func (c *Site) RecordFault() error {
	if err := c.Budget.Lasting(); err != nil {
		return fmt.Errorf("the target's budget cannot be read or written: %w", err)
	}
	if err := c.Story.Lasting(); err != nil {
		return fmt.Errorf("the target's history cannot be written: %w", err)
	}
	if c.IsUncounted() {
		_, err := c.Watch.Failing()
		return fmt.Errorf("the heartbeats, which divide the total, were not read for a lease: %w", cmp.Or(err, ErrUnheard))
	}
	if c.IsUnread() {
		return fmt.Errorf("the target record was not read for %v: %w", view.FreshFor, cmp.Or(c.Viewer.Failing(), ErrUnheard))
	}
	return nil
}

// IsUnread reports whether the last read of the target record is too old to delete anything by it.
func (c *Site) IsUnread() bool {
	return storeclock.Age(c.Cfg.Now(), c.Viewer.View().RecordSent) > view.FreshFor
}

// IsUncounted reports whether this process cannot get a share of the total because it
// cannot read the heartbeats. It then leaves the ranges to others.
func (c *Site) IsUncounted() bool {
	long, _ := c.Watch.Failing()
	return long && c.Pacing.Divides()
}

// Lives reports whether a generation is live: the nursery, or one of the target record's.
func (c *Site) Lives(number int) bool {
	if number == expirykey.Nursery {
		return true
	}
	for _, g := range c.Viewer.View().Record.Generations {
		if g.Number == number {
			return true
		}
	}
	return false
}

// StampBy returns the target record to stamp by. Ok is false if it was read more than a
// quarter of the staleness ago: stamps must commit before the record is half a staleness old.
func (c *Site) StampBy() (rec generation.Record, ok bool) {
	v := c.Viewer.View()
	staleness, _ := v.Record.Bounds()
	return v.Record, storeclock.Age(c.Cfg.Now(), v.RecordSent) <= staleness/4
}

// Slack returns how long a stamp is valid.
func (c *Site) Slack() time.Duration {
	_, slack := c.Viewer.View().Record.Bounds()
	return slack
}

// ErrUnheard is why a record is old although no read of it has failed.
var ErrUnheard = errors.New("the process or its machine stood still")

// Progress is how far a running sweep has got, over all targets. It may be
// read at any time.
type Progress struct {
	// Estimate asks for Due, which costs a COUNT for each range.
	Estimate bool

	// Begin is called in the goroutine of each step and of each release before it begins,
	// with the names of its target and of its range or chore. A simulation that must be
	// repeatable uses it to order those that begin at the same instant. It may be nil.
	Begin func(target, name string)

	Due                                           atomic.Int64 // entities due when the sweep began
	Ranges, RangesDone, Scanned, Expired, Deleted atomic.Int64

	// What is done at present: ranges in which a dry run counts what is due, ranges that are read from
	// their start, and targets of which a dry run finds out whether their breaker would trip.
	Counting, FromStart, Judging atomic.Int64
}

// A Comparer says which due entries must be kept, because something else in their entity says
// that it is not due: see [Target].Compare. It is also called without entries, to learn whether
// anything is to be compared at present.
type Comparer func(ctx context.Context, namespace string, due []store.Entry) (Comparison, error)

// A Comparison is the result of a Comparer for some entries.
type Comparison struct {
	Active bool            // false if nothing is to be compared at present
	Kept   map[string]bool // the keys of those that must be kept
	// Premises are by what the others were compared, by their keys: each is deleted only while its premise is true.
	Premises map[string]store.Premise
}
