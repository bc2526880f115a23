package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// patience is how long a page is tried against a store that does not take
	// it, before its range fails.
	patience = 2 * time.Minute
	// writeTimeout bounds one try. The services end a transaction after 270 s,
	// or 60 s without a request.
	writeTimeout = 30 * time.Second
	// smallChunk is how far the writes of a sweep shrink by themselves; a single
	// try may be halved further.
	smallChunk = 50
	// contendedTries is how often a batch is tried before it is taken apart.
	contendedTries = 3
	// settlePatience is how long one contended entity may hold up its range.
	settlePatience = 5 * time.Second
)

// disposeOf decides about each entry of the page at hand and disposes of it. It
// returns the length of the longest prefix that is disposed of, and how many
// entities were deleted, also beside an error.
func (w *worker) disposeOf(q store.Query) (prefix, deleted int, err error) {
	entries := w.page.Entries
	w.ops = w.ops[:0]
	expired := 0
	for i := range entries {
		e := entries[i]
		switch j := w.decide(e.Value, w.horizon); {
		case j == due:
			w.ops = append(w.ops, store.Op{Entry: e})
			expired++
		case j == malformed:
			if !w.auditing { // there the count of what lies outside has it
				w.malformed.Add(1)
			}
		case w.carry != nil && (j == early || j == suspect):
			w.ops = append(w.ops, store.Op{Entry: e, To: e.Value}) // stamped when it is written
		case j == suspect:
			w.suspect.Add(1)
		default: // the index is behind: the entity comes again in its time
		}
	}
	w.expired.Add(int64(expired))
	w.Progress.Expired.Add(int64(expired))
	for rest := w.ops; len(rest) > 0 && err == nil; {
		n := min(len(rest), w.chunk, w.size)
		if w.pacer != nil {
			n = min(n, w.pacer.Burst(w.target.Page))
		}
		if err = w.spend(deletesIn(rest[:n])); err != nil {
			break
		}
		before := w.chunk
		err = w.dispose(q, rest[:n], false, w.Now().Add(patience))
		if err == nil {
			err = w.settleChanged(q, rest[:n])
		}
		w.chunk = w.growth.After(w.chunk, w.target.Page, err == nil && n == before && w.chunk == before)
		rest = rest[n:]
	}
	gone, carried := 0, 0
	for i := range w.ops {
		switch w.ops[i].Outcome {
		case store.Deleted:
			gone++
		case store.Carried:
			carried++
		case store.Unknown, store.Changed:
			if w.ops[i].To.Type == store.Missing {
				w.unsettled++
			}
		case store.Gone, store.Kept:
		}
	}
	if w.Apply {
		deleted = gone
	}
	w.disposed = w.disposed || gone+carried > 0
	w.measureDelays(deleted)
	w.deleted.Add(int64(deleted))
	w.Progress.Deleted.Add(int64(deleted))
	if w.auditing {
		w.strays.Add(int64(gone + carried))
	} else {
		w.carried.Add(int64(carried))
	}
	if w.claim != nil {
		w.Log.DebugContext(w.ctx, "page", "range", w.key, "owner", w.keeper.Owner, "token", w.token,
			"entries", len(entries), "due", expired, "deleted", deleted, "carried", carried)
	}
	return settledPrefix(entries, w.ops), deleted, err
}

// deletesIn counts the ops that are not carries, where something is to be written.
func deletesIn(ops []store.Op) (n int) {
	for i := range ops {
		if ops[i].To.Type == store.Missing {
			n++
		}
	}
	return n
}

// settledPrefix returns how many of the entries, from the first on, are
// disposed of. The ops are those entries that had to go, in the same order.
func settledPrefix(entries []store.Entry, ops []store.Op) int {
	for i := range entries {
		if len(ops) == 0 {
			return len(entries)
		}
		if ops[0].Entry.Key != entries[i].Key || ops[0].Entry.Value != entries[i].Value {
			continue // kept
		}
		if ops[0].Outcome == store.Unknown || ops[0].Outcome == store.Changed {
			return i
		}
		ops = ops[1:]
	}
	return len(entries)
}

// dispose deletes a chunk of a page under the lease and the pace. It repeats
// what failed for a passing reason until the given instant, and halves what is
// too large, too slow or contended, so that one hot entity costs only itself.
// Uncertain says that an earlier try may have deleted: what is gone then counts
// as deleted. What could not be settled stays Unknown or Changed.
func (w *worker) dispose(q store.Query, ops []store.Op, uncertain bool, until time.Time) error {
	for try := 0; ; try++ {
		err := w.tryDispose(q, ops)
		for i := range ops {
			if uncertain && ops[i].Outcome == store.Gone {
				ops[i].Outcome = store.Deleted
			}
		}
		if err == nil {
			return nil
		}
		if w.claim != nil && w.claim.Err() != nil {
			return w.claim.Err()
		}
		if w.work.Err() != nil {
			return errStopped
		}
		w.Metrics.Error(w.target.Name, metrics.OpCommit, code(err))
		if try == 0 && !w.contended { // the parts of a contended batch say nothing new
			w.slowDown(err)
		}
		uncertain = uncertain || mayHaveHappened(err)
		rest := open(ops)
		if len(rest) == 0 {
			return nil
		}
		if len(rest) < len(ops) {
			err := w.dispose(q, rest, uncertain, until)
			putBack(ops, rest)
			return err
		}
		contended, large := errors.Is(err, store.ErrContention), errors.Is(err, store.ErrTooLarge)
		switch {
		case contended && len(ops) == 1:
			return w.settle(q, &ops[0], uncertain)
		case contended && w.ctx.Err() == nil && !w.contended && try < contendedTries:
			// Mostly it passes.
		case contended && w.target.Guard == store.GuardQuery:
			// Halves would lock the same page again.
			return w.settleEach(q, ops, uncertain)
		case len(ops) > 1 && (contended || large || slow(err)):
			if !contended {
				w.chunk = min(w.chunk, max(smallChunk, len(ops)/2))
			} else if !w.contended {
				w.contended = true // its parts need no patience of their own
				defer func() { w.contended = false }()
			}
			half := len(ops) / 2
			return errors.Join(w.dispose(q, ops[:half], uncertain, until), w.dispose(q, ops[half:], uncertain, until))
		case !store.Transient(err), !w.Now().Before(until):
			return fmt.Errorf("dispose of %d entities: %w", len(ops), err)
		}
		if w.backOff(try) != nil {
			return errStopped
		}
	}
}

// settleEach settles the entities of a batch one by one.
func (w *worker) settleEach(q store.Query, ops []store.Op, uncertain bool) error {
	for i := range ops {
		if ops[i].Outcome != store.Unknown {
			continue
		}
		if err := w.settle(q, &ops[i], uncertain); err != nil {
			return err
		}
	}
	return nil
}

// backOff waits after a try that failed, longer each time, up to five seconds.
func (w *worker) backOff(try int) error {
	most := min(5*time.Second, 100*time.Millisecond<<min(try, 6))
	return throttle.Sleep(w.ctx, most/2+time.Duration(store.Chance(w.ctx)*float64(most/2)))
}

func slow(err error) bool {
	return errors.Is(err, store.ErrDeadline) || errors.Is(err, context.DeadlineExceeded)
}

// mayHaveHappened reports whether a write that failed so may have taken effect.
func mayHaveHappened(err error) bool {
	return slow(err) || errors.Is(err, store.ErrUnavailable)
}

// open returns the ops without an outcome: all of them as they are, or copies.
func open(ops []store.Op) []store.Op {
	n := 0
	for i := range ops {
		if ops[i].Outcome == store.Unknown {
			n++
		}
	}
	if n == len(ops) {
		return ops
	}
	rest := make([]store.Op, 0, n)
	for i := range ops {
		if ops[i].Outcome == store.Unknown {
			rest = append(rest, ops[i])
		}
	}
	return rest
}

// putBack files what became of the copies that open made.
func putBack(ops, rest []store.Op) {
	for i := range ops {
		if ops[i].Outcome == store.Unknown {
			ops[i], rest = rest[0], rest[1:]
		}
	}
}

// tryDispose makes one try, once the pace allows it.
func (w *worker) tryDispose(q store.Query, ops []store.Op) error {
	return w.writing(ops, func(ctx context.Context) error {
		w.ahead.begin(w.ctx, w.Now)
		b := store.Batch{Query: q, Ops: ops, DryRun: !w.Apply}
		began := w.Now()
		err := w.Store.Dispose(ctx, &b)
		w.Metrics.Commit(w.target.Name, w.Now().Sub(began))
		w.addSteps(b.SteppedOver, w.fromStart)
		return err
	})
}

// writing runs one write that disposes of some entities: after waiting for the
// pace, under the lease, and within the time that one try may take. Stopping ends
// the waiting, but not the write.
func (w *worker) writing(ops []store.Op, write func(context.Context) error) error {
	ctx, timeout := w.work, writeTimeout
	if w.claim != nil {
		if err := w.ready(ops); err != nil {
			return err
		}
	}
	if w.carry != nil {
		if err := w.carry.stamp(ops); err != nil {
			return err
		}
		_, slack := w.record.Bounds()
		timeout = min(timeout, slack) // a stamp that is older must be made anew
	}
	if w.claim != nil {
		leased, cancel, err := w.claim.Writing(w.work)
		if err != nil {
			return err
		}
		defer cancel()
		ctx = leased
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return write(ctx)
}

// ready waits for the pace, of what is carried also where it comes down, and for
// whatever else holds writes back.
func (w *worker) ready(ops []store.Op) error {
	for {
		if err := w.giveWay(); err != nil {
			return err
		}
		granted := w.governor.said()
		if err := w.pacer.Await(w.ctx, len(ops), w.waited); err != nil {
			return errStopped
		}
		if w.carry != nil {
			if err := w.carry.await(ops); err != nil {
				return err
			}
		}
		// The wait may have been long, or the machine asleep: what was granted by a pace
		// that is over, or in a pause, goes unused.
		if held, err := w.governor.informed(w.ctx); err != nil || !held && w.governor.said() == granted {
			return err
		}
	}
}

// mostImpostors is how many a worker remembers. Any more keep their generation alive,
// as suspects do that nobody has tried to carry.
const mostImpostors = 1000

// settleChanged deals with the entities that had changed since the scan: those
// that are not due any more are disposed of, the others are settled one by one.
func (w *worker) settleChanged(q store.Query, ops []store.Op) error {
	for i := range ops {
		op := &ops[i]
		if op.Outcome != store.Changed {
			continue
		}
		if op.Known && op.Now.Type != store.Missing && op.Now.Type != w.target.Type {
			// It had been that all along: a projection shows one element of a list,
			// a blob as a text, and a timestamp as an integer.
			if op.To.Type == store.Missing {
				w.expired.Add(-1)
			}
			w.keep(op, malformed)
			if w.impostors == nil {
				w.impostors = map[string]bool{}
			}
			if len(w.impostors) < mostImpostors {
				w.impostors[op.Entry.Key] = true
			}
			continue
		}
		w.conflicts.Add(1)
		if op.Known {
			if j, do := w.judge(op.Entry.Key, op.Now); do == store.Keep {
				w.keep(op, j)
				continue
			}
		}
		if err := w.settle(q, op, false); err != nil {
			return err
		}
	}
	return nil
}

// judge decides about an expiry that was read outside a scan: it may lie in
// another range, but not in a generation that this sweep knows nothing of.
func (w *worker) judge(key string, v store.Value) (judgement, store.Verdict) {
	j := w.decide(v, w.horizon)
	if w.target.Type == store.Instant {
		if j == due {
			return j, store.Delete
		}
		return j, store.Keep
	}
	k, err := expirykey.Parse(v.Text)
	if v.Type != store.Text || err != nil {
		return j, store.Keep // never, or malformed
	}
	mine := w.carry != nil && w.carry.leaves(k.Generation)
	if j == due && (mine || w.lives(k.Generation)) {
		return j, store.Delete
	}
	if mine && (j == early || j == suspect) {
		if to, err := w.carry.key(key, k.Expires); err == nil {
			return j, store.CarryTo(store.TextValue(to.String()))
		}
	}
	if j == due {
		j = early
	}
	return j, store.Keep
}

// lives reports whether this sweep knows the generation.
func (p *pass) lives(number int) bool {
	return slices.ContainsFunc(p.record.Live(), func(g generation.Generation) bool { return g.Number == number })
}

// keep disposes of an op by keeping its entity, and counts why.
func (w *worker) keep(op *store.Op, j judgement) {
	op.Outcome = store.Kept
	switch j {
	case malformed:
		w.malformed.Add(1)
	case suspect:
		w.suspect.Add(1)
	case never, early, due: // not this sweep's any more
	}
}

// settle disposes of one entity in a transaction of its own, by the expiry that
// it has then. Contention that outlasts the patience leaves it Unknown.
func (w *worker) settle(q store.Query, op *store.Op, uncertain bool) error {
	if !w.Apply {
		op.Outcome = store.Kept // it changes: a later sweep will see
		return nil
	}
	var seen judgement
	var outcome store.Outcome
	one := []store.Op{*op} // a stamp that it gets goes unused where the expiry is another now
	err := store.Retry(w.ctx, settlePatience, func() (err error) {
		err = w.writing(one, func(ctx context.Context) (err error) {
			outcome, err = w.Store.Settle(ctx, q, op.Entry, func(v store.Value) (do store.Verdict) {
				seen, do = w.judge(op.Entry.Key, v)
				return do
			})
			return err
		})
		uncertain = uncertain || err != nil && mayHaveHappened(err)
		return err
	})
	switch {
	case err == nil:
	case w.claim.Err() != nil:
		return w.claim.Err()
	case w.ctx.Err() != nil:
		return errStopped
	case store.Transient(err): // whoever holds it may be dead: its locks end in their time
		op.Outcome = store.Unknown
		w.Log.DebugContext(w.ctx, "contended entity left for the next sweep", "range", w.key, "key", op.Entry.Key)
		return nil
	default:
		return fmt.Errorf("settle one entity: %w", err)
	}
	switch {
	case outcome == store.Kept:
		w.keep(op, seen)
	case outcome == store.Gone && uncertain:
		op.Outcome = store.Deleted
	default:
		op.Outcome = outcome
	}
	return nil
}
