package cursor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// checkpointEvery is the least time between two writes of the record of a moving cursor. A
// crash repeats no more work than that. (The services' pages on best practice ask that no
// record be written more often than once a second.)
const checkpointEvery = 10 * time.Second

// checkpointSoon is how soon a cursor that moves rarely is saved. It lets the changes of one
// page be written together.
const checkpointSoon = time.Second

// claimTimeout bounds one try to claim a range, or to move its cursor.
// claimPatience bounds when the last try begins: a worker has other ranges to
// sweep, and retries this one later.
const (
	claimTimeout  = 10 * time.Second
	claimPatience = 2 * time.Second
)

// ErrTaken is what Claim returns if another worker was faster or holds the range. The
// caller has to load the record again.
var ErrTaken = errors.New("the range is another worker's")

// ErrFull is what ClaimUnless returns if the range is better left to another process.
var ErrFull = errors.New("this process holds its part of the ranges")

// ErrLost is why a claim's context ends before its release: another worker has the
// range, or the heartbeat was not renewed within a lease.
var ErrLost = errors.New("the lease is lost")

// A Keeper claims ranges for one worker process, as long as its heartbeat holds. All
// exported fields are set before its first use.
type Keeper struct {
	Store    store.Store
	Owner    string           // a name that no other process has, nor this one after a restart
	Opening  string           // of an exclusive store: claims whose owner does not begin with it are void
	Lease    time.Duration    // how long an epoch holds without being renewed
	Now      func() time.Time // this process's clock, monotonic
	StoreNow func() time.Time // the store's clock, for what people read
	Log      *slog.Logger
	// BeatFails is told when heartbeats begin to fail, in the place of Log; it may be nil.
	BeatFails func(error)
	Pulse     *Pulse // of this process and the target whose ranges it claims; nil for commands that only read

	seen atomic.Pointer[sighting]  // nil before the heartbeats were read
	lost atomic.Pointer[time.Time] // when another process last was faster to claim a range; nil if none was
}

// Claim takes the range whose record is c, raises its fencing token, and holds it until
// Release or until the epoch of this process's heartbeat ends. Without an epoch it begins
// one, which costs a write. It fails with ErrTaken if the record is no longer as it was, or
// if the range must be left to its holder.
func (k *Keeper) Claim(ctx context.Context, c Cursor) (*Claim, error) {
	return k.ClaimUnless(ctx, ctx, c, nil)
}

// ClaimUnless claims a range as Claim does, but fails with ErrFull if full says so. It is asked,
// with the number of ranges that this process holds, once the heartbeats of others are known; it
// must not block. Once ctx is done, no claim is sent any more; one that was sent is waited for
// until work is done, since one that takes effect after it was given up is released by nobody.
func (k *Keeper) ClaimUnless(ctx, work context.Context, c Cursor, full func(held int) bool) (*Claim, error) {
	if k.Wait(c) > 0 {
		return nil, fmt.Errorf("claim %v: %w", c.ID, ErrTaken)
	}
	claim := &Claim{keeper: k, id: c.ID, cur: c, saving: make(chan struct{}, 1)}
	// From here on the claim outlives ctx: it must be able to save its cursor while a page
	// in flight is given its grace.
	claim.ctx, claim.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	k.Pulse.Want(1)
	epoch, err := k.Pulse.hold(ctx, claim, full)
	if err == nil {
		err = ctx.Err() // hold answers at once while an epoch is in force
	}
	if err == nil {
		claim.epoch = epoch
		err = claim.save(work, func(next *Cursor) {
			next.Lease = Lease{Owner: k.Owner, Epoch: epoch, Token: c.Lease.Token + 1}
		})
	}
	if err == nil {
		err = claim.Err() // the epoch may have ended before the claim took effect
	}
	if err != nil {
		k.Pulse.drop(claim)
		claim.cancel(err)
		if errors.Is(err, ErrLost) {
			now := k.Now()
			k.lost.Store(&now)
			return nil, fmt.Errorf("claim %v: %w", c.ID, ErrTaken)
		}
		return nil, fmt.Errorf("claim %v: %w", c.ID, err)
	}
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
	if next.Lease.Owner != "" { // of a holder that is gone
		next.Lease = k.released(next.Lease)
	}
	err = put(ctx, k.Store, next.encode(), c.Revision)
	if errors.Is(err, store.ErrConflict) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("move cursor %v: %w", c.ID, err)
	}
	return next, true, nil
}

// Forget removes the record of a range that no longer exists, and reports whether it did. It
// does nothing if a worker holds the range, or if the record has changed since it was read.
func (k *Keeper) Forget(ctx context.Context, c Cursor) (removed bool, err error) {
	if c.Revision == "" || k.Wait(c) > 0 {
		return false, nil
	}
	if removed, err = remove(ctx, k.Store, store.CursorRecord, c.Key(), c.Target, c.Revision); err != nil {
		return false, fmt.Errorf("remove cursor %v: %w", c.ID, err)
	}
	return removed, nil
}

// put writes a record that nobody holds, if the store still has the revision that it was
// made from. It is impatient: others are waiting.
func put(ctx context.Context, s store.Store, rec store.Record, prev string) error {
	return store.Retry(ctx, claimPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, claimTimeout)
		defer cancel()
		return s.Save(ctx, rec, prev)
	})
}

// remove removes a record, unless it has changed, and reports whether it did.
func remove(ctx context.Context, s store.Store, sort store.RecordSort, key, target, revision string) (bool, error) {
	rec := store.Record{Sort: sort, Key: key, Target: target, Revision: store.NewRevision(revision)}
	err := put(ctx, s, rec, revision)
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// A Claim is a range that this process holds. Its methods may be called from
// any goroutine.
type Claim struct {
	keeper *Keeper
	id     ID
	epoch  int64
	ctx    context.Context // ends when the claim is lost, or at the release
	cancel context.CancelCauseFunc
	saving chan struct{} // full while the record is written: one write at a time

	mu       sync.Mutex
	cur      Cursor
	saved    time.Time   // when the record was written last
	due      *time.Timer // saves what has changed since; nil if nothing has
	released bool
}

// Done is closed when the claim is lost.
func (c *Claim) Done() <-chan struct{} { return c.ctx.Done() }

// Err returns why the claim is lost, wrapping ErrLost or the store's error, or
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
	if c.due == nil && !c.released {
		c.due = time.AfterFunc(max(checkpointSoon, checkpointEvery-c.keeper.Now().Sub(c.saved)), c.checkpoint)
	}
}

// Writing returns a context for writes in the range: it ends when ctx does, when the claim is lost, and
// no later than the epoch as it stands now, so that no write can outlast it.
func (c *Claim) Writing(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := c.Err(); err != nil {
		return nil, nil, err
	}
	left := c.left()
	if left <= 0 {
		return nil, nil, fmt.Errorf("write in %v: %w", c.id, c.lapsed())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrLost)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// left returns how long the claim still holds by this process's own count.
func (c *Claim) left() time.Duration {
	b := c.keeper.Pulse.Beat()
	if !b.Live || b.Epoch != c.epoch {
		return 0
	}
	return c.keeper.Lease - passed(b.Sent, c.keeper.Now())
}

// lapsed returns why a claim does not hold any more that nobody has ended yet.
func (c *Claim) lapsed() error {
	if err := c.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%w: this process could not renew its heartbeat for %v", ErrLost, c.keeper.Lease)
}

// checkpoint saves the cursor while the claim lasts.
func (c *Claim) checkpoint() {
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	c.mu.Lock()
	c.due = nil
	over := c.released
	c.mu.Unlock()
	if over || c.Err() != nil { // the release saves it, or the claim is lost
		return
	}
	if err := c.save(c.ctx, nil); err != nil {
		c.cancel(err)
	}
}

// save writes the present cursor, or what change makes of it. It repeats the same write
// until its outcome is known or the claim is over: a different write could not tell an
// earlier success of its own from a conflict. One goroutine at a time calls it.
func (c *Claim) save(ctx context.Context, change func(*Cursor)) error {
	k := c.keeper
	prev := c.Cursor()
	next := prev
	next.Revision = store.NewRevision(prev.Revision)
	if change != nil {
		change(&next)
	}
	held := next.Lease.Token == prev.Lease.Token
	patience := claimPatience
	if held {
		patience = k.Lease
	}
	err := store.Retry(ctx, patience, func() error {
		if c.left() <= 0 {
			return c.lapsed()
		}
		try := k.Lease / 3
		if !held { // a new claim: no lease runs out meanwhile
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
	c.saved = k.Now()
	c.mu.Unlock()
	k.Log.DebugContext(ctx, "cursor saved", "range", c.id.Key(), "owner", next.Lease.Owner, "epoch", next.Lease.Epoch,
		"token", next.Lease.Token, "position", formatValue(next.Position.Value))
	return nil
}

// Release writes the cursor and gives the range back. If the claim is lost it
// writes nothing and returns why.
func (c *Claim) Release(ctx context.Context) error {
	c.mu.Lock()
	c.released = true
	if c.due != nil {
		c.due.Stop()
	}
	c.mu.Unlock()
	// A checkpoint that hangs is given up when ctx is done.
	stopWatching := context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	stopWatching()
	defer c.keeper.Pulse.drop(c)
	defer c.cancel(errReleased)
	if err := c.Err(); err != nil {
		return err
	}
	return c.save(ctx, func(next *Cursor) { next.Lease = c.keeper.released(next.Lease) })
}

// released returns the lease of a range that this process no longer holds.
func (k *Keeper) released(l Lease) Lease {
	return Lease{Token: l.Token, Released: k.StoreNow().UTC().Truncate(time.Microsecond)}
}

var errReleased = errors.New("the claim was released")
