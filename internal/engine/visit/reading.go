package visit

import (
	"errors"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/dispose"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/spend"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A reading is one read of a span within a visit, over many steps: from a range's
// cursor, from its start, or of a span that should be empty.
type reading struct {
	reader    index.Reader
	fromStart bool // it may meet any number of tombstones, so its failures say nothing about the pace
	done      bool
	pastDue   bool // all due entities were disposed of: the rest is carried
	stuck     bool // an entity of it waits for another try: what is reached is not saved
	sampling
	failing failing
	window  time.Duration // the next claim begins with it; the reader itself may be reading ahead
	// reached is a position before which everything is disposed of, or waits for another try.
	reached   store.Position
	save      func(c *cursor.Cursor, to store.Position)
	unsure    unsure
	shortfall spend.Shortfall // what it could not delete by the breaker's budget
}

// back lets a reading read again from where everything before is disposed of.
func (rd *reading) back() { rd.reader.Seek(rd.reached) }

// checkpoint saves the position of a reading, unless an entity of it waits for another try.
func (rd *reading) checkpoint(h *dispose.Hold) {
	if !rd.stuck && !rd.reached.IsZero() {
		h.Update(func(c *cursor.Cursor) { rd.save(c, rd.reached) })
	}
}

// readings are the reads of one visit, the main one first. They take turns.
type readings struct {
	list  []*reading
	turns int // steps so far
}

func (r *readings) main() *reading { return r.list[0] }

// aheadOf returns the reading of which a page was read ahead; nil if none was.
func (r *readings) aheadOf(s *step.Scratch) *reading {
	for _, rd := range r.list {
		if s.Ahead.Done != nil && s.Ahead.Reader == rd.reader {
			return rd
		}
	}
	return nil
}

// next returns the reading whose turn it is. It returns nil if all are done; or if
// they have to wait, and for how long.
func (r *readings) next(now time.Time, turn int) (rd *reading, wait time.Duration) {
	for i := range r.list {
		next := r.list[(turn+i)%len(r.list)]
		if next.done {
			continue
		}
		if d := max(next.failing.until.Sub(now), next.shortfall.Until.Sub(now)); d > 0 {
			if wait == 0 || d < wait {
				wait = d
			}
			continue
		}
		return next, 0
	}
	return nil, wait
}

// allRead reports whether all readings have ended.
func (r *readings) allRead() bool {
	return !slices.ContainsFunc(r.list, func(rd *reading) bool { return !rd.done })
}

// A sampling says how far a dry run reads.
type sampling struct {
	counted   bool // it has counted what follows the first page
	uncounted bool // it cannot count that, and reads it
}

// A failing is a call that fails repeatedly with transient errors.
type failing struct {
	since time.Time
	tries int
	until time.Time // when the call may be repeated
}

// Patience is how long a failing call is retried before its range counts as failed.
const Patience = 2 * time.Minute

// pauseOrFail returns the pause after which the call is to be repeated, longer each
// time, up to five seconds; once patience is over it returns the error.
func (f *failing) pauseOrFail(t step.Turn, now time.Time, err error) error {
	if f.since.IsZero() {
		f.since = now
	}
	if now.Sub(f.since) > Patience {
		return err
	}
	most := min(5*time.Second, 100*time.Millisecond<<min(f.tries, 6))
	wait := most/2 + time.Duration(store.Chance(t.Ctx)*float64(most/2))
	f.tries++
	f.until = now.Add(wait)
	return &throttle.Pause{Wait: wait, Why: throttle.ReasonPushBack}
}

// An unsure is a batch whose outcome is not known. When its part of the range is read
// again, the entities that are absent count as deleted.
type unsure struct {
	upTo  store.Position
	tried int // entities in it
	found int // of these, how many were met again
}

// add notes the ops of a page that were tried without learning their outcome.
func (u *unsure) add(s *step.Scratch) {
	known := u.upTo
	for i := range s.Doubted {
		op := &s.Ops[i]
		if !s.Doubted[i] || op.Outcome != store.Unknown || op.IsCarry() {
			continue
		}
		at := op.Entry.Position()
		if known.IsZero() || at.Value.Compare(known.Value) > 0 { // otherwise it is counted already
			u.tried++
			u.upTo = at
		}
	}
}

// isShrunk reports whether a query failed because it asked for too much. The next query
// asks for less, or has more time.
func isShrunk(err error) bool { return errors.Is(err, shardquery.ErrShrunk) }
