package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// patience is how long calls fail, and none goes well, until that is the error.
	patience    = 2 * time.Minute
	callTimeout = 30 * time.Second
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
)

// mostBelow is how many orphans one transaction deletes at most, in addition to the read of the entity
// that is missing.
const mostBelow = store.MaxPage - 1

// A deleter deletes orphans, as pace, switches and the run's limit allow.
type deleter struct {
	job      *job
	switches *switches.Switches
	pacer    *throttle.Pacer
	tally    *tally
	story    *story
	size     *batchSize

	mu   sync.Mutex
	left int64 // of the run's limit
	held int64 // reserved, and neither used nor given back

	hot atomic.Int64 // orphans refused for contention since a call of any worker went well
}

// refusals are the orphans below one root that the store refused to delete.
type refusals struct {
	keys []string
	hot  int // of them for contention, since a call went well
}

// reserve takes from the run's limit, and returns how much there was, at most n. It waits for what other
// workers hold and may give back: they must not be stopped before they have used it.
func (d *deleter) reserve(ctx context.Context, n int) (int, error) {
	for {
		some, wait := d.tryReserve(n)
		if some > 0 {
			return some, nil
		}
		if !wait {
			return 0, fmt.Errorf("target %s: %w: %d were deleted", d.job.Target.Name, ErrMax, d.job.Max)
		}
		if err := throttle.Sleep(ctx, firstWait); err != nil {
			return 0, err
		}
	}
}

func (d *deleter) tryReserve(n int) (some int, wait bool) {
	if d.job.Unlimited {
		return n, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	some = int(min(int64(n), d.left))
	d.left -= int64(some)
	d.held += int64(some)
	return some, d.held > 0
}

// settle ends a reservation of which a part was not used.
func (d *deleter) settle(reserved, unused int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held -= int64(reserved)
	d.left += int64(unused)
}

// run deletes a list of orphans below one missing entity, each behind all that lies below it. It reports
// whether that entity exists by now, and stops then.
func (d *deleter) run(
	ctx context.Context, q store.LineageQuery, missing string, list []store.Relative, kept *refusals,
) (exists bool, err error) {
	for len(list) > 0 && !exists {
		if err := d.switches.Check(ctx, throttle.Sleep); err != nil {
			return false, err
		}
		n, err := d.tokens(ctx, min(len(list), d.size.current()))
		if err != nil {
			return false, err
		}
		if n, err = d.reserve(ctx, n); err != nil {
			return false, err
		}
		exists, err = d.batch(ctx, q, missing, list[:n], kept)
		if err != nil {
			return false, err
		}
		list = list[n:]
	}
	return exists, nil
}

// tokens waits until there are some, and returns how many orphans may be deleted, at most so many.
func (d *deleter) tokens(ctx context.Context, most int) (int, error) {
	for {
		n, wait, _ := d.pacer.Ready(most)
		if wait == 0 {
			wait, _ = d.pacer.Take(n)
		}
		if wait == 0 {
			return n, nil
		}
		if err := throttle.Sleep(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// batch deletes orphans for which there are tokens and a reservation. If the store refuses them for what
// may be the fault of one, they are halved until that one is found.
func (d *deleter) batch(
	ctx context.Context, q store.LineageQuery, missing string, list []store.Relative, kept *refusals,
) (exists bool, err error) {
	unused := len(list)
	defer func() { d.settle(len(list), unused) }()
	fails := d.newFailures()
	for todo := [][]store.Relative{list}; len(todo) > 0; {
		// A pause that came while this waited for tokens, or for its next try, counts, too.
		if err := d.switches.Check(ctx, throttle.Sleep); err != nil {
			return false, err
		}
		todo = d.size.cut(todo)
		some := d.withoutKept(ctx, kept, todo[0])
		if todo[0] = some; len(some) == 0 {
			todo = todo[1:]
			continue
		}
		outcome, err := d.call(ctx, q, missing, some)
		if errors.Is(err, errHeldMeanwhile) {
			fails = d.newFailures() // nothing failed: it waits above
			continue
		}
		if err != nil {
			if todo, err = d.failed(ctx, kept, fails, todo, err); err != nil {
				return false, err
			}
			continue
		}
		switch outcome {
		case store.Kept:
			return true, nil
		case store.Changed:
			if todo[0] = d.withoutOwned(some); len(todo[0]) == 0 {
				todo = todo[1:]
			}
		case store.Deleted:
			unused -= len(some)
			kept.hot = 0
			d.deleted(ctx, missing, len(some))
			todo, fails = todo[1:], d.newFailures()
		default:
			return false, fmt.Errorf("%w: outcome %d of a delete below %s", store.ErrFailed, outcome, missing)
		}
	}
	return false, nil
}

// deleted notes that a call has deleted orphans.
func (d *deleter) deleted(ctx context.Context, missing string, n int) {
	d.size.wentWell(n)
	d.hot.Store(0)
	d.tally.deleted(n)
	d.job.Sweep.Log.DebugContext(ctx, "orphans deleted", "target", d.job.Target.Name, "below", missing, "entities", n)
	d.story.deleted(ctx)
}

// failures are the calls of a batch that failed since one went well.
type failures struct {
	since  time.Time // when that was, or the batch began
	wait   time.Duration
	hot    string // the key of an orphan that was contended alone, since heated: it may be for patience
	heated time.Time
}

// mostHot is how many orphans below one root, and how many for each worker, may be refused for contention one after the
// other, until it is the store's.
const mostHot = 3

// isOneMore counts an orphan that is refused for contention, and reports whether it may be that one's alone.
func (d *deleter) isOneMore(kept *refusals) bool {
	kept.hot++
	return d.hot.Add(1) <= mostHot*int64(max(1, d.job.Sweep.Workers)) && kept.hot <= mostHot
}

func (d *deleter) newFailures() *failures {
	return &failures{since: d.job.Sweep.Now(), wait: firstWait}
}

// isHot reports whether one orphan is contended, alone, and whether it has been for long enough.
func (f *failures) isHot(some []store.Relative, err error, now time.Time) (is, ends bool) {
	if len(some) != 1 || !errors.Is(err, store.ErrContention) {
		return false, false
	}
	if f.hot != some[0].Key {
		f.hot, f.heated, f.since = some[0].Key, now, now
	}
	return true, now.Sub(f.heated) >= patience
}

// failed returns what is to be done after a call for the first list failed, and waits as long as that takes. The error
// is that of the batch.
func (d *deleter) failed(
	ctx context.Context, kept *refusals, fails *failures, todo [][]store.Relative, err error,
) ([][]store.Relative, error) {
	some := todo[0]
	if store.TookTooLong(err) || errors.Is(err, store.ErrTooLarge) && len(some) > 1 {
		d.size.failed(len(some))
	}
	now := d.job.Sweep.Now()
	hot, ends := fails.isHot(some, err, now)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case hot && ends && d.isOneMore(kept): // somebody writes it again and again
		fails.since, fails.wait = now, firstWait
	case hot && !ends, store.Transient(err) && now.Sub(fails.since) < patience:
		d.pacer.PushBack(throttle.ReasonPushBack)
		if err := throttle.Sleep(ctx, jitter(ctx, fails.wait)); err != nil {
			return nil, err
		}
		fails.wait = min(2*fails.wait, longestWait)
		if errors.Is(err, store.ErrContention) || store.TookTooLong(err) { // others may enlarge the size meanwhile
			todo = append(halves(some), todo[1:]...)
		}
		return todo, nil
	case !store.MayBeOfOneEntity(err):
		return nil, err
	case len(some) > 1:
		return append(halves(some), todo[1:]...), nil
	}
	d.refuse(ctx, kept, some[0].Key, err)
	return todo[1:], nil
}

// refuse keeps an orphan, and with it those that it lies below: see [deleter.withoutKept].
func (d *deleter) refuse(ctx context.Context, kept *refusals, key string, why error) {
	kept.keys = append(kept.keys, key)
	d.tally.refused()
	d.job.Sweep.Log.WarnContext(ctx, "the store refuses to delete an orphan", "target", d.job.Target.Name, "key", key,
		"error", why)
}

// errBelowIsKept is why an orphan is kept.
var errBelowIsKept = errors.New("something below it could not be deleted")

// withoutKept returns those of a list below which everything was deleted, and refuses the others.
func (d *deleter) withoutKept(ctx context.Context, kept *refusals, list []store.Relative) []store.Relative {
	if len(kept.keys) == 0 {
		return list
	}
	var left []store.Relative
	for _, r := range list {
		if slices.ContainsFunc(kept.keys, func(key string) bool { return store.IsBelow(key, r.Key) }) {
			d.refuse(ctx, kept, r.Key, errBelowIsKept)
		} else {
			left = append(left, r)
		}
	}
	return left
}

// call makes one call, which goes on for the grace if the run is to stop: what it did must be known.
func (d *deleter) call(
	ctx context.Context, q store.LineageQuery, missing string, list []store.Relative,
) (store.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return store.Unknown, err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d.job.Sweep.Grace, cancel) })
	defer stop()
	kept := &keeping{archive: d.job.Target.Archive, namespace: q.Namespace, switches: d.switches}
	outcome, err := store.Unknown, kept.begin(bounded, &q, list)
	if err == nil {
		outcome, err = d.job.store.DeleteOrphans(bounded, q, missing, list)
	}
	kept.end(outcome, err)
	if err != nil && kept.held {
		err = errHeldMeanwhile
	}
	return outcome, err
}

// withoutOwned returns those of a list that have no owner, and are below nothing in the list that has one.
func (d *deleter) withoutOwned(list []store.Relative) (left []store.Relative) {
	for _, r := range list {
		if slices.ContainsFunc(list, func(o store.Relative) bool {
			return o.Owner != "" && (o.Key == r.Key || store.IsBelow(r.Key, o.Key))
		}) {
			d.tally.claimed(r)
		} else {
			left = append(left, r)
		}
	}
	return left
}

func halves(list []store.Relative) [][]store.Relative {
	if len(list) < 2 {
		return [][]store.Relative{list}
	}
	return [][]store.Relative{list[:len(list)/2], list[len(list)/2:]}
}

// jitter keeps workers that failed together from trying again together.
func jitter(ctx context.Context, d time.Duration) time.Duration {
	return d/2 + time.Duration(store.Chance(ctx)*float64(d))
}
