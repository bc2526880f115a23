package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// insert inserts the items of a chunk, and notes in the record that they are done.
func (r *run) insert(ctx context.Context, c *chunk) error {
	if err := r.switches.Check(ctx, r.hold.pause); err != nil {
		return err
	}
	err := r.contents(ctx, r.withParents(c.items), func(namespace string, items []item) error {
		for len(items) > 0 {
			n, err := r.tokens(ctx, len(items))
			if err != nil {
				return err
			}
			if err := r.batch(ctx, namespace, items[:n]); err != nil {
				return err
			}
			items = items[n:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	n := r.tally.soFar()
	to := c.end
	to.exist, to.restored, to.verified, to.vanished = n.Exist, n.Restored, n.Verified, n.Vanished
	to.stripped, to.refused, to.notFound, to.plan = n.Stripped, n.Refused, n.NotFound, r.plan.fingerprint
	return r.hold.reach(ctx, to)
}

// tokens waits until there are some, and returns how many entities may be inserted, at most so many.
func (r *run) tokens(ctx context.Context, most int) (int, error) {
	for {
		n, wait, _ := r.pacer.Ready(min(most, store.MaxPage))
		if pressed, ok := r.job.store.(store.Pressured); wait == 0 && ok && pressed.Pressed() {
			wait = firstWait // before it takes tokens: they would be lost
		}
		if wait == 0 {
			wait, _ = r.pacer.Take(n)
		}
		if wait == 0 {
			return n, nil
		}
		if err := r.hold.pause(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// batch inserts items for which there are tokens. If the store refuses them for what may be the fault of one, they
// are halved until that one is found.
func (r *run) batch(ctx context.Context, namespace string, items []item) error {
	began, wait := r.job.now(), firstWait
	for queue := [][]item{items}; len(queue) > 0; {
		some := queue[0]
		if err := r.ready(ctx, some); err != nil {
			return r.settled(ctx, namespace, queue, err)
		}
		queue = queue[1:]
		left, err := r.try(ctx, namespace, some)
		if err == nil && len(left) == len(some) {
			err = fmt.Errorf("%w: it inserts none of %d entities, and says nothing", store.ErrFailed, len(some))
			return err
		}
		switch {
		case len(left) == 0 && err != nil:
			return r.settled(ctx, namespace, queue, err)
		case len(left) == 0:
		case err == nil: // it was more than one call takes
			queue = append([][]item{left}, queue...)
		case ctx.Err() != nil:
			return r.settled(ctx, namespace, append(queue, left), ctx.Err())
		case store.Transient(err) && r.job.now().Sub(began) < patience:
			r.pacer.PushBack(throttle.ReasonPushBack)
			if err := r.hold.pause(ctx, jitter(ctx, wait)); err != nil {
				return r.settled(ctx, namespace, append(queue, left), err)
			}
			wait = min(2*wait, longestWait)
			if errors.Is(err, store.ErrContention) || store.TookTooLong(err) {
				queue = append(halves(left), queue...)
			} else {
				queue = append([][]item{left}, queue...)
			}
		case !store.MayBeOfOneEntity(err):
			err = fmt.Errorf("insert %d entities: %w", len(left), err)
			return r.settled(ctx, namespace, append(queue, left), err)
		case len(left) > 1:
			queue = append(halves(left), queue...)
		default:
			r.tally.refuse(left[0], err)
			r.leave(left[0])
			r.job.log.WarnContext(ctx, "the store refuses to take an entity back", "target", r.job.Target.Name, "key",
				left[0].Key, "error", err)
		}
	}
	return nil
}

// errUnsettled is a failure even if the restore was stopped: what it has done is not known, or the breaker not told.
var errUnsettled = errors.New("what the restore has inserted last is not known: run the same command again")

// settled returns why a batch ends, once it has found out what calls whose replies were lost had inserted. If another
// process goes on with the restore, that is its concern.
func (r *run) settled(ctx context.Context, namespace string, queue [][]item, why error) error {
	if errors.Is(why, errLost) {
		return why
	}
	var doubtful []item
	for _, some := range queue {
		for _, one := range some {
			if one.doubtful {
				doubtful = append(doubtful, one)
			}
		}
	}
	if err := r.check(ctx, namespace, nil, doubtful, false); err != nil {
		return fmt.Errorf("%w: %w: %v", errUnsettled, err, why) //nolint:errorlint // not as why: something was touched
	}
	return why
}

// leave notes that nothing below an entity may be inserted.
func (r *run) leave(one item) {
	if r.absent == nil {
		r.absent = map[string]bool{}
	}
	r.absent[one.namespace+"\x00"+one.Key] = true
}

// withParents returns the items that lie below nothing that this run could not insert, and notes the others: they
// would be orphans.
func (r *run) withParents(items []item) (left []item) {
	if len(r.absent) == 0 {
		return items
	}
	for _, one := range items {
		above := ""
		for i := range one.Key {
			if one.Key[i] == '/' && r.absent[one.namespace+"\x00"+one.Key[:i]] {
				above = one.Key[:i]
				break
			}
		}
		if above == "" {
			left = append(left, one)
			continue
		}
		r.tally.refuse(one, fmt.Errorf("%w: %s", errNoParent, above))
	}
	return left
}

// errNoParent is why an entity is not inserted that would be an orphan.
var errNoParent = errors.New("what it lies below did not come back")

// ready makes sure, as late as it can, that a batch may be inserted: what it needs may take minutes.
func (r *run) ready(ctx context.Context, items []item) error {
	lease := r.job.Target.Lease
	old := lease / 3
	for range mostLooks {
		if err := r.switches.Check(ctx, r.hold.pause); err != nil {
			return err
		}
		horizon := r.switches.StoreAtMost().Add(-r.job.Target.Retention)
		for _, one := range items {
			if one.expires && !one.at.After(horizon) { // it was not when the restore began: this takes long
				return fmt.Errorf("%w: %s by now, and what comes after it", ErrDue, one.Key)
			}
		}
		if err := r.checkOthers(items); err != nil { // the plan is older, and had no contents of a journal
			return err
		}
		kept := r.job.now()
		if err := r.hold.renewAfter(ctx, old); err != nil || storeclock.Age(r.job.now(), kept) < time.Second {
			return err
		}
		old = 2 * lease / 3 // later, or a store that takes seconds for each call is asked again and again
	}
	return fmt.Errorf("%w: to read the records and to renew the lease takes more than two thirds of it, %v",
		store.ErrDeadline, lease)
}

// mostLooks is how often a batch looks whether it may be inserted, and has to renew the lease then.
const mostLooks = 10

// announce tells the breaker of what was inserted, and of nothing else: an expiry that was announced is held against
// no limit, and what existed has its own. A process that dies before this leaves one batch unannounced.
func (r *run) announce(ctx context.Context, inserted []item) error {
	var expiries []time.Time
	for _, one := range inserted {
		if one.expires {
			expiries = append(expiries, one.at)
		}
	}
	if r.job.Announce == nil || len(expiries) == 0 {
		return nil
	}
	ctx, cancel := r.job.finishing(ctx, patience) // it is done already
	defer cancel()
	if err := store.Retry(ctx, patience, func() error { return r.job.Announce(ctx, expiries) }); err != nil {
		return fmt.Errorf("announce %d expiries in target %s: %w", len(expiries), r.job.Target.Name, err)
	}
	return nil
}

// try makes one call, reads back what it inserted, and returns what has no outcome yet: nothing, with an error, if
// it could not be read back.
func (r *run) try(ctx context.Context, namespace string, items []item) (left []item, err error) {
	list := make([]store.Insertion, len(items))
	for i, one := range items {
		list[i] = store.Insertion{Copy: one.Copy}
		if _, had := r.job.expiry(one.Copy); !had {
			list[i].AsIs = true
			continue
		}
		if list[i].To, err = r.value(one); err != nil {
			return items, fmt.Errorf("stamp %s: %w", one.Key, err)
		}
	}
	r.inserts = true
	err = r.job.call(ctx, func(ctx context.Context) error {
		return r.job.archiver.Insert(ctx, r.job.Target.Target, namespace, list)
	})
	var sure, doubtful []item
	for i, one := range items {
		switch o := list[i].Outcome; {
		case o == store.Inserted:
			r.tally.outcome(one, o, list[i].Stripped)
			sure = append(sure, one)
		case o == store.Kept && one.doubtful:
			doubtful = append(doubtful, one)
		case o == store.Kept:
			r.tally.outcome(one, o, "")
		default:
			one.doubtful = one.doubtful || store.MayHaveHappened(err)
			left = append(left, one)
		}
	}
	r.job.log.DebugContext(ctx, "entities inserted", "target", r.job.Target.Name, "namespace", namespace, "entities",
		len(sure), "of", len(items), "left", len(left))
	r.story.inserted(ctx, len(sure))
	if backErr := r.check(ctx, namespace, sure, doubtful, true); backErr != nil {
		return nil, fmt.Errorf("%w: %w", errUnsettled, errors.Join(backErr, err))
	}
	return left, err
}

// check announces and reads what was inserted, and what may have been inserted by a call whose reply was lost. Kept
// says that the store has met all of it.
func (r *run) check(ctx context.Context, namespace string, sure, doubtful []item, kept bool) error {
	if len(sure)+len(doubtful) == 0 {
		return nil
	}
	err := r.announce(ctx, sure)
	found, backErr := r.readBack(ctx, namespace, sure, doubtful, kept)
	r.story.inserted(ctx, len(found))
	return errors.Join(err, backErr, r.announce(ctx, found))
}

// readBack reads entities, and returns those that were in doubt and were inserted: one that exists with the very
// expiry that it was to get is taken for that.
func (r *run) readBack(
	ctx context.Context, namespace string, sure, doubtful []item, kept bool,
) (found []item, err error) {
	ctx, cancel := r.job.finishing(ctx, patience)
	defer cancel()
	all := append(sure, doubtful...)
	// Without the lease, too: it may be what could not be renewed.
	err = r.each(ctx, namespace, keysOf(all), r.fetchOnly, func(i int, c store.Copy) {
		if i >= len(sure) {
			at, has := expiresOf(c.Expiry)
			if !has || !all[i].expires || !at.Equal(all[i].at) {
				if kept || c.Data != nil {
					r.tally.outcome(all[i], store.Kept, "")
				}
				return
			}
			r.tally.outcome(all[i], store.Inserted, "")
			found = append(found, all[i])
		}
		r.tally.read(c.Data != nil)
	})
	if err != nil {
		err = fmt.Errorf("read back %d entities: %w", len(all), err)
	}
	return found, err
}

func halves(items []item) [][]item {
	if len(items) < 2 {
		return [][]item{items}
	}
	return [][]item{items[:len(items)/2], items[len(items)/2:]}
}

// jitter keeps processes that failed together from trying again together.
func jitter(ctx context.Context, d time.Duration) time.Duration {
	return d/2 + time.Duration(store.Chance(ctx)*float64(d))
}
