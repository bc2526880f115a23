package cursor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// checkpointEvery is how often the record of a moving cursor is written at most: a
// crash repeats no more than that. The services' pages on best practice ask that
// no record be written more often than once a second.
const checkpointEvery = 10 * time.Second

// claimTimeout bounds one try to claim a range, or to move its cursor.
// claimPatience bounds when the last try begins: a worker has other ranges to
// sweep, and retries this one later.
const (
	claimTimeout  = 10 * time.Second
	claimPatience = 2 * time.Second
)

// ErrTaken is what Claim returns where another worker was faster or holds the
// range: load the record again.
var ErrTaken = errors.New("the range is another worker's")

// ErrLost is why a claim's context ends before its release: another worker has
// the range, or the lease ran out before it could be renewed.
var ErrLost = errors.New("the lease is lost")

// A Keeper claims ranges for one worker process and keeps its leases. All
// fields are set before its first use.
type Keeper struct {
	Store    store.Store
	Owner    string           // names this process, unlike any other, also after a restart
	Opening  string           // of an exclusive store: leases whose owner does not begin with it are void
	Lease    time.Duration    // how long a claim holds without being renewed
	Now      func() time.Time // this process's clock, monotonic
	StoreNow func() time.Time // the store's clock, for what people read
	Log      *slog.Logger
	Pulse    *Pulse // of this process and the target whose ranges it claims; nil for what only looks
}

// Wait returns how long the range must be left alone: zero where nobody holds
// it. A holder is believed gone when its record has stood still for one lease
// since this process first saw it, on this process's own clock. That is safe
// because the holder counts its lease from before it sent that record.
func (k *Keeper) Wait(c Cursor) time.Duration {
	if c.Lease.Owner == "" || !k.IsOfThisOpening(c.Lease.Owner) {
		return 0
	}
	return max(0, max(k.Lease, min(c.Lease.Length, mostLease))-k.Now().Sub(c.Seen))
}

// Claim takes the range whose record is c, raises its fencing token, and keeps
// the lease until Release. It fails with ErrTaken where the record is no longer
// as it was, or is held and has not stood still for long enough.
func (k *Keeper) Claim(ctx context.Context, c Cursor) (*Claim, error) {
	if k.Wait(c) > 0 {
		return nil, fmt.Errorf("claim %v: %w", c.ID, ErrTaken)
	}
	claim := &Claim{keeper: k, id: c.ID, cur: c, stop: make(chan struct{}), stopped: make(chan struct{})}
	// From here on the claim outlives ctx: it must be able to renew and to end
	// the lease while a page in flight is given its grace.
	claim.ctx, claim.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	err := claim.save(ctx, func(next *Cursor) {
		next.Lease = Lease{Owner: k.Owner, Token: c.Lease.Token + 1}
	})
	if err != nil {
		claim.cancel(err)
		if errors.Is(err, ErrLost) {
			return nil, fmt.Errorf("claim %v: %w", c.ID, ErrTaken)
		}
		return nil, err
	}
	go claim.keep() // until Release
	return claim, nil
}

// Move sets the position of a range that nobody holds and in which nothing was
// found, by one compare-and-set. It returns the changed record, and true for moved.
// If another worker holds the range or changed its record meanwhile, Move changes
// nothing.
func (k *Keeper) Move(ctx context.Context, c Cursor, change func(*Cursor)) (next Cursor, moved bool, err error) {
	if k.Wait(c) > 0 {
		return c, false, nil
	}
	next = c
	change(&next)
	next.Revision = store.NewRevision(c.Revision)
	if next.Lease.Owner != "" { // of a dead holder: with a new revision the lease would seem to be renewed
		next.Lease = k.released(next.Lease)
	}
	err = store.Retry(ctx, claimPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, claimTimeout)
		defer cancel()
		return k.Store.Save(ctx, next.encode(), c.Revision)
	})
	if errors.Is(err, store.ErrConflict) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("move cursor %v: %w", c.ID, err)
	}
	return next, true, nil
}

// Forget removes the record of a range that is no more. It leaves it alone where
// somebody holds it, or has changed it since it was read.
func (k *Keeper) Forget(ctx context.Context, c Cursor) error {
	if c.Revision == "" || k.Wait(c) > 0 {
		return nil
	}
	rec := store.Record{Sort: store.CursorRecord, Key: c.Key(), Target: c.Target, Revision: store.NewRevision(c.Revision)}
	err := store.Retry(ctx, claimPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, claimTimeout)
		defer cancel()
		return k.Store.Save(ctx, rec, c.Revision)
	})
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("remove cursor %v: %w", c.ID, err)
	}
	return nil
}

// A Claim is a range that this process holds. Its methods may be called from
// any goroutine.
type Claim struct {
	keeper  *Keeper
	id      ID
	ctx     context.Context // ends when the lease is lost, or at the release
	cancel  context.CancelCauseFunc
	stop    chan struct{} // closed to end keep
	stopped chan struct{} // closed when keep has returned

	mu    sync.Mutex
	cur   Cursor
	dirty bool
	sent  time.Time // when the write that began or renewed the lease was sent
	saved time.Time // when the record was written last
}

// Done is closed when the lease is lost.
func (c *Claim) Done() <-chan struct{} { return c.ctx.Done() }

// Err returns why the lease is lost, wrapping ErrLost or the store's error, or
// nil while it holds.
func (c *Claim) Err() error { return context.Cause(c.ctx) }

// Cursor returns the cursor as it stands in memory.
func (c *Claim) Cursor() Cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cur
}

// Update changes the cursor in memory. The change reaches the store within
// ten seconds, and at the latest with Release.
func (c *Claim) Update(change func(*Cursor)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.cur)
	c.dirty = true
}

// Writing returns a context for writes in the range: it ends when ctx does and
// no later than the lease as it stands now, so that no write can outlast it.
func (c *Claim) Writing(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := c.Err(); err != nil {
		return nil, nil, err
	}
	left := c.left()
	if left <= 0 {
		return nil, nil, fmt.Errorf("write in %v: %w", c.id, ErrLost)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrLost)
	return ctx, cancel, nil
}

// left returns how long the lease still holds by this process's own count. Both
// the monotonic and the wall clock are asked: one of them may have stood still
// while the machine slept.
func (c *Claim) left() time.Duration {
	c.mu.Lock()
	sent := c.sent
	c.mu.Unlock()
	now := c.keeper.Now()
	passed := max(now.Sub(sent), now.Round(0).Sub(sent.Round(0)))
	return c.keeper.Lease - passed
}

// keep writes the record while the claim lasts: once in ten seconds while the
// cursor moves, and every third of the lease in any case.
func (c *Claim) keep() {
	defer close(c.stopped)
	third := c.keeper.Lease / 3
	every := min(checkpointEvery, third)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		select {
		case <-c.stop: // both were ready: the release writes anyway
			return
		default:
		}
		c.mu.Lock()
		// Half a tick early is better than most of a tick late.
		due := c.dirty || c.keeper.Now().Sub(c.saved) >= third-every/2
		c.mu.Unlock()
		if !due {
			continue
		}
		if err := c.save(c.ctx, nil); err != nil {
			c.cancel(err)
			return
		}
	}
}

// save writes the cursor as it stands, with the next renewal or with what
// change makes of it. It repeats the same write until its outcome is known or
// the lease is over: a different one could not tell its own success from a
// conflict. Only one goroutine saves at a time: Claim, then keep, then Release.
func (c *Claim) save(ctx context.Context, change func(*Cursor)) error {
	k := c.keeper
	c.mu.Lock()
	prev := c.cur
	c.dirty = false
	c.mu.Unlock()

	next := prev
	next.Revision = store.NewRevision(prev.Revision)
	next.Lease.Renewals++
	if change != nil {
		change(&next)
	}
	if next.Lease.Owner != "" {
		next.Lease.Until = k.StoreNow().Add(k.Lease).Truncate(time.Microsecond)
		next.Lease.Length = k.Lease
	}
	sent := k.Now()
	held := next.Lease.Token == prev.Lease.Token
	patience := claimPatience
	if held {
		patience = k.Lease
	}
	err := store.Retry(ctx, patience, func() error {
		if held && c.left() <= 0 {
			return ErrLost
		}
		try := k.Lease / 3
		if !held { // nothing runs out while it is tried
			try = max(try, claimTimeout)
		}
		ctx, cancel := context.WithTimeout(ctx, try)
		defer cancel()
		return k.Store.Save(ctx, next.encode(), prev.Revision)
	})
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err != nil {
		return fmt.Errorf("save cursor %v: %w", c.id, err)
	}
	c.mu.Lock()
	c.cur.Lease, c.cur.Revision = next.Lease, next.Revision
	c.sent, c.saved = sent, k.Now()
	c.mu.Unlock()
	k.Log.DebugContext(ctx, "cursor saved", "range", c.id.Key(), "owner", next.Lease.Owner, "token", next.Lease.Token,
		"renewals", next.Lease.Renewals, "position", formatValue(next.Position.Value))
	return nil
}

// Release writes the cursor and gives the range back. After a lost lease it
// writes nothing and returns why the lease is lost.
func (c *Claim) Release(ctx context.Context) error {
	// Ending keep first means that no renewal can follow the release; a renewal
	// that hangs is given up when ctx is.
	forsake := context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })
	close(c.stop)
	<-c.stopped
	forsake()
	defer c.cancel(errReleased)
	if err := c.Err(); err != nil {
		return err
	}
	return c.save(ctx, func(next *Cursor) { next.Lease = c.keeper.released(next.Lease) })
}

// released returns a lease as it is left behind.
func (k *Keeper) released(l Lease) Lease {
	return Lease{Token: l.Token, Released: k.StoreNow().UTC().Truncate(time.Microsecond)}
}

var errReleased = errors.New("the claim was released")
