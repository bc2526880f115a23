package visit

import (
	"errors"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// mostAside is how many entities of a range may wait aside before the range
	// itself has to wait.
	mostAside = 16
	// asideEvery is how soon an entity that waits aside is tried again, and
	// asideMost the longest time between two tries.
	asideEvery = 5 * time.Second
	asideMost  = time.Minute
	// lastingTries is how often an entity that the store refuses is tried before it
	// is kept.
	lastingTries = 3
	// lastingSince is how recently the store must have taken some other write if the
	// failure of a range's last entity is to count as that entity's own.
	lastingSince = 5 * time.Minute
)

// A deferred is an entity that waits for another try while its range is read on: another
// client holds it in a transaction, or the store refuses it. The saved cursor stays
// before it.
type deferred struct {
	rds   []*reading // that have met it
	entry store.Entry
	carry bool
	since time.Time
	retry time.Time
	tries int
	// refusals are the last tries, all of which the store refused.
	refusals int
	lasting  error // why the store refuses it; nil if it is contended
	unsure   bool  // a try may have deleted it
}

// deferEntity lets an op wait aside. If too many wait already, the range has to wait for
// one of them.
func (v *visit) deferEntity(t step.Turn, rd *reading, op *store.Op, err error) error {
	if !v.c.Cfg.Apply { // nothing is written, so nothing is tried again
		op.Outcome = store.Kept
		return nil
	}
	now := v.c.Cfg.Now()
	if len(v.asides) >= mostAside {
		return &throttle.Pause{Wait: max(asideEvery/50, v.nextAside().Sub(now)), Why: throttle.ReasonPushBack}
	}
	a := &deferred{
		rds: []*reading{rd}, entry: op.Entry, carry: op.IsCarry(), since: now, unsure: store.MayHaveHappened(err),
	}
	a.failed(now, err)
	v.asides = append(v.asides, a)
	v.writer.Size.EndParts()
	rd.stuck = true
	op.Outcome = store.Kept // for now, so that the reading continues past it
	v.c.Log.DebugContext(t.Ctx, "entity left for another try", "range", v.hold.Key(), "key", op.Entry.Key,
		"error", err)
	return nil
}

// failed notes a try that failed.
func (a *deferred) failed(now time.Time, err error) {
	if a.refusals++; !store.MayBeOfOneEntity(err) {
		a.refusals = 0
	}
	if a.lasting = nil; store.MayBeOfOneEntity(err) {
		a.lasting = err
	}
	a.unsure = a.unsure || store.MayHaveHappened(err)
	a.tries++
	a.retry = now.Add(AgainIn(a.tries))
}

// AgainIn returns how long to wait before the next try after this many failures, at least
// one.
func AgainIn(tries int) time.Duration { return min(asideMost, asideEvery<<min(tries-1, 4)) }

// nextAside returns the instant at which the next entity that waits aside is due
// for a retry; zero if no entity waits.
func (v *visit) nextAside() (at time.Time) {
	for _, a := range v.asides {
		if at.IsZero() || a.retry.Before(at) {
			at = a.retry
		}
	}
	return at
}

// retryAsides tries once more each entity whose retry is due.
func (v *visit) retryAsides(t step.Turn) error {
	for _, a := range slices.Clone(v.asides) {
		if v.c.Cfg.Now().Before(a.retry) {
			continue
		}
		if err := v.retryAside(t, a); err != nil {
			return err
		}
		if t.Over() {
			break
		}
	}
	return nil
}

func (v *visit) retryAside(t step.Turn, a *deferred) error {
	op := store.Op{Entry: a.entry}
	if a.carry {
		op.To = a.entry.Value
	}
	q := store.Query{Target: v.c.Target.Target, Namespace: v.r.Namespace, Shard: v.r.Value}
	outcome, j, err := v.trySettle(t, q, &op)
	if err != nil {
		if err := v.writer.Fatal(t, err); err != nil {
			return err
		}
		if a.failed(v.c.Cfg.Now(), err); a.isRefused(v) {
			v.refuse(a)
		}
		return nil
	}
	v.settled(&op, outcome, j, a.unsure)
	switch op.Outcome {
	case store.Deleted:
		v.deleted(1, 0)
		v.countMoved(1, 0)
	case store.Carried:
		v.deleted(0, 1)
		v.countMoved(0, 1)
	case store.Unknown, store.Gone, store.Changed, store.Kept:
	}
	v.clear(a)
	return nil
}

// isRefused reports whether the store refuses the entity for good: it did so several
// times while it took other writes, or there is no other write to compare with.
func (a *deferred) isRefused(v *visit) bool {
	if a.lasting == nil || a.refusals < lastingTries {
		return false
	}
	since := a.since
	if len(v.asides) == 1 && v.allRead() { // the visit will make no other write
		if !errors.Is(a.lasting, store.ErrFailed) {
			return true
		}
		since = since.Add(-lastingSince)
	}
	return v.c.Tally.SucceededSince(since)
}

// refuse keeps an entity that the store refuses, counts it, and names it.
func (v *visit) refuse(a *deferred) {
	v.c.Tally.Counts.Refused.Add(1)
	v.kept.add(a.entry, true)
	v.c.Log.WarnFew("the store refuses an entity: it is kept", "range", v.hold.Key(), "namespace", v.r.Namespace,
		"key", a.entry.Key, "expiry", a.entry.Position().Value.String(), "error", a.lasting)
	v.clear(a)
}

// waitsAside reports whether an entity that a reading has met waits aside. One reading
// may have met it at its old expiry, and another one at its new expiry: then it holds up
// the progress of both.
func (v *visit) waitsAside(rd *reading, key string) bool {
	i := slices.IndexFunc(v.asides, func(a *deferred) bool { return a.entry.Key == key })
	if i < 0 {
		return false
	}
	if a := v.asides[i]; !slices.Contains(a.rds, rd) {
		a.rds, rd.stuck = append(a.rds, rd), true
	}
	return true
}

// holdUp keeps the progress of a reading from being saved until every entity that waits
// aside now is disposed of: the reading saves the same position as those that met them, and
// its keys come after theirs.
func (v *visit) holdUp(rd *reading) {
	for _, a := range v.asides {
		a.rds, rd.stuck = append(a.rds, rd), true
	}
}

// clear removes an entity that is disposed of from those that wait aside. Once a reading
// has none left, its progress is saved.
func (v *visit) clear(a *deferred) {
	v.asides = slices.DeleteFunc(v.asides, func(b *deferred) bool { return a == b })
	for _, rd := range a.rds {
		if !slices.ContainsFunc(v.asides, func(b *deferred) bool { return slices.Contains(b.rds, rd) }) {
			rd.stuck = false
			v.checkpoint(rd)
		}
	}
}
