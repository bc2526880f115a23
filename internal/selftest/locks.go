package selftest

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

func isMissingIndex(err error) bool { return errors.Is(err, store.ErrMissingIndex) }

// An abandoner can leave a transaction behind, as a process does that is killed.
type abandoner interface {
	Abandon(ctx context.Context, t store.Target, namespace, key string) error
}

const (
	mostLocked = 270 * time.Second // the longest that a transaction of the service may last
	oneTry     = 10 * time.Second
)

// locks leaves a transaction behind that has read an entity, and measures for how long others
// cannot write it.
func locks(b *bench) {
	a, ok := b.run.setup.Store.(abandoner)
	if !ok {
		b.Skipf("the store has no transactions that outlast their process")
	}
	t := b.target(b.firstGuard())
	now := b.mustNow()
	e := b.entity(firstGeneration(), "locked", now)
	b.put(t, e)
	key := b.keyOf(e)
	err := store.Retry(b.ctx, patience, func() error { return a.Abandon(b.ctx, t.Target, "", key) })
	if err != nil {
		b.Fatalf("leave a transaction behind: %v", err)
	}
	began := b.run.setup.Now()
	e = b.entity(firstGeneration(), "locked", now.Add(time.Hour))
	err = store.Retry(b.ctx, mostLocked, func() error {
		ctx, cancel := context.WithTimeout(b.ctx, oneTry)
		defer cancel()
		return b.db.Put(ctx, t.Target, "", []store.Entity{e})
	})
	took := b.run.setup.Now().Sub(began)
	if err != nil {
		b.Fatalf("a dead process's lock held a writer up for %.0f s, and did not end: %v", took.Seconds(), err)
	}
	class := locksNone
	switch {
	case took > 2*time.Minute:
		class = locksLonger
	case took > 30*time.Second:
		class = locksAMinute
	case took > 2*time.Second:
		class = locksShort
	}
	b.run.facts[factLocks] = class
	b.Notef("a writer waited %.1f s for what a dead process had read in a transaction", took.Seconds())
}
