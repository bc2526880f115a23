package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// idleLag is how far the cursor of a range without work may lag before it is
// moved: index rows that the application's own extensions left behind are
// tombstones too.
const idleLag = 10 * time.Minute

// An ending says how a range's turn ended where nothing failed.
type ending uint8

const (
	finished   ending = iota // swept to its horizon
	unfinished               // something could not be settled; the cursor stands before it
	taken                    // another worker holds it: to be looked at again
	leftToHolder
)

// A worker sweeps one range.
type worker struct {
	*pass
	r       shardquery.Range
	ctx     context.Context // done: begin no new page
	work    context.Context // done: give up the page in flight
	horizon time.Time
	first   cursor.Cursor // as it stood at the beginning
	claim   *cursor.Claim // nil in a dry run
	key     string        // of its record
	token   int64         // of the claim
	pacer   *throttle.Pacer
	size    int // most entries in a page
	chunk   int // most entities in one write; shrinks where they are too large
	growth  shardquery.Growth
	delays  []time.Duration // reused
	page    store.Page
	ahead   *ahead // the next page, where it is read while this one is written
	ops     []store.Op
	stuck   bool // an entry could not be settled: the cursor stays before it

	ground    ground
	carry     *carrier // where what is not due goes; nil where it stays
	auditing  bool     // what is found are strays
	disposed  bool     // something was deleted or carried
	fromStart bool     // this is a read from the range's start

	impostors map[string]bool // entities whose entries look well-formed, and whose property is of another type

	unsettled int  // such entries, all told
	contended bool // a batch is being taken apart
}

// sweepRange sweeps one range to its horizon and, where it is due, reads it from
// its start. The range is claimed once the first page has found work. Unsettled
// counts the due entities that contention did not let through.
func (p *pass) sweepRange(ctx, work context.Context, r shardquery.Range, again bool) (end ending, unsettled int, err error) {
	if err := p.clock.check(); err != nil {
		return unfinished, 0, err
	}
	cur := p.cursor(r)
	if again {
		if cur, err = p.await(ctx, func() cursor.Cursor { return p.cursor(r) }); err != nil || cur.Lease.Owner != "" && p.keeper.Wait(cur) > 0 {
			return leftToHolder, 0, err
		}
	}
	now := p.clock.Now()
	if !p.due(r.Generation, cur, now) {
		return finished, 0, nil // another worker was faster
	}
	w := &worker{pass: p, r: r, ctx: ctx, work: work, horizon: now.Add(-p.target.Retention), first: cur, key: cur.Key(),
		ground: p.grounds[r.Generation], ahead: new(ahead), chunk: p.target.Page, size: p.pageSize(r, cur)}
	if w.ground.drain {
		w.carry = w.drainer()
		defer w.carry.close()
	}
	sealed := !w.ground.sealed.IsZero()

	fresh := cur.Position.IsZero() // then this sweep reads it from its start
	w.fromStart = fresh
	behind := !fresh && p.behindDue(r.Generation, cur, now)
	reader := w.reader(cur.Position, w.until())
	more, err := w.nonEmpty(reader)
	if err != nil {
		return unfinished, 0, err
	}
	if len(w.page.Entries) == 0 && !behind && !sealed {
		w.saw(time.Time{}, 0)
		return finished, 0, w.idle(now)
	}
	if p.Apply {
		if p.keeper.Wait(cur) > 0 {
			return taken, 0, nil
		}
		claim, err := p.keeper.Claim(ctx, cur)
		if errors.Is(err, cursor.ErrTaken) {
			if again {
				return leftToHolder, 0, nil // it was free and is not any more: somebody is at it
			}
			return taken, 0, p.refresh(ctx, p.Now())
		}
		if store.Transient(err) && ctx.Err() == nil {
			return unfinished, 0, fmt.Errorf("%w: %w", errBlocked, err)
		}
		if err != nil {
			return unfinished, 0, err
		}
		w.take(claim)
		// Progress is saved and the lease released however the sweep ends.
		defer func() {
			if w.claim != nil {
				_ = w.release()
			}
		}()
	}
	if err := w.walk(reader, more, w.moveCursor); err != nil {
		return unfinished, 0, err
	}
	if !w.stuck {
		w.update(func(c *cursor.Cursor) {
			c.Position = later(c.Position, r.At(w.limit()))
			c.Swept = w.horizon.Truncate(time.Microsecond)
			if fresh {
				c.Rewind = cursor.Rewind{Done: now.Truncate(time.Microsecond)}
			}
		})
	}
	settled := !w.stuck
	if behind {
		if err := w.readBehind(now); err != nil {
			return unfinished, 0, err
		}
		settled = settled && !w.stuck
	}
	if sealed && settled && w.claim != nil {
		if err := w.takeStock(); err != nil {
			return unfinished, 0, err
		}
	}
	if w.claim != nil {
		if err := w.release(); err != nil {
			return unfinished, 0, err
		}
	}
	if !settled {
		return unfinished, w.unsettled, nil
	}
	if p.Apply {
		w.saw(time.Time{}, 0)
	}
	return finished, 0, nil
}

// until returns the last instant of expiry that the sweep wants of its range: the
// horizon, or all there is where what is not due is carried.
func (w *worker) until() time.Time {
	if w.carry != nil {
		return shardquery.LastInstant
	}
	return w.horizon
}

// take makes a claim the worker's. Each begins with an empty bucket: a crash loop
// gains nothing.
func (w *worker) take(claim *cursor.Claim) {
	w.claim = claim
	cur := claim.Cursor()
	w.token = cur.Lease.Token
	w.Metrics.LeaseHeld(w.target.Name, 1)
	w.pacer = w.governor.open(w.keptPace(cur), w.ownPart(w.r))
	w.governor.claimed(cur)
}

// reader returns a reader of the range with everything but its bounds set.
func (w *worker) reader(from store.Position, until time.Time) *shardquery.Reader {
	return &shardquery.Reader{Store: w.Store, Target: w.target.Target, Range: w.r, From: from, Until: until,
		Plain: w.floor(w.horizon), Page: w.size, Now: w.Now, Refused: w.refused}
}

// An ahead reads the next page while the one at hand is written: it begins with
// the first write, so that the pace holds it back, too. What it reads may be
// older by a page than what a read after the write would see; the writes'
// conditions see to that.
type ahead struct {
	reader reader
	page   store.Page
	more   bool
	err    error
	took   time.Duration
	done   chan struct{} // nil until it has begun; then closed at its end
	cancel context.CancelFunc
}

// begin begins to read, once. It does nothing where there is nothing to read.
func (a *ahead) begin(ctx context.Context, now func() time.Time) {
	if a.reader == nil || a.done != nil {
		return
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.done = make(chan struct{})
	go func() {
		defer close(a.done)
		began := now()
		a.err = protect(func() (err error) {
			a.more, err = a.reader.Next(ctx, &a.page)
			return err
		})
		a.took = now().Sub(began)
	}()
}

// end stops reading, and waits until nobody does.
func (a *ahead) end() {
	if a.done != nil {
		a.cancel()
		<-a.done
		a.done = nil
	}
	a.reader = nil
}

// A reader reads a stretch of an index page by page.
type reader interface {
	Next(ctx context.Context, page *store.Page) (more bool, err error)
	Query() store.Query       // that read the last page
	Position() store.Position // everything before was read
}

// next reads one page, or takes the one that was read ahead, and counts it.
func (w *worker) next(reader reader) (more bool, err error) {
	var took time.Duration
	if a := w.ahead; a.done != nil {
		<-a.done
		more, err, took = a.more, a.err, a.took
		w.page, a.page = a.page, w.page
		a.end()
	} else {
		began := w.Now()
		more, err = reader.Next(w.ctx, &w.page)
		took = w.Now().Sub(began)
	}
	if n := len(w.page.Entries); err == nil && n > 0 && w.pacer != nil && !w.fromStart {
		w.pacer.Latency(n, took)
		w.tombstones()
	}
	if err == nil {
		w.Metrics.Query(w.target.Name, took)
		w.scanned.Add(int64(len(w.page.Entries)))
		w.Progress.Scanned.Add(int64(len(w.page.Entries)))
		w.pages.Add(1)
		w.addSteps(w.page.SteppedOver, w.fromStart)
	}
	return more, err
}

// nonEmpty reads on until a page has entries or the reader is at its end.
func (w *worker) nonEmpty(reader reader) (more bool, err error) {
	for {
		more, err = w.next(reader)
		if err != nil || !more || len(w.page.Entries) > 0 {
			return more, err
		}
	}
}

// walk works through the page at hand and those that follow it. After each one
// moved is told up to where everything is disposed of.
func (w *worker) walk(reader reader, more bool, moved func(store.Position, int)) error {
	defer w.ahead.end()
	for {
		if len(w.page.Entries) > 0 {
			q := reader.Query()
			if w.ahead.reader = nil; more {
				w.ahead.reader = reader
			}
			prefix, deleted, err := w.disposeOf(q)
			if prefix > 0 && !w.stuck || deleted > 0 {
				var to store.Position
				if prefix > 0 && !w.stuck {
					to = w.page.Entries[prefix-1].Position()
				}
				moved(to, deleted)
			}
			w.stuck = w.stuck || prefix < len(w.page.Entries)
			if err != nil {
				return err
			}
		} else if more && !w.stuck {
			moved(reader.Position(), 0) // a window of nothing but tombstones
		}
		if !more {
			return nil
		}
		if w.ctx.Err() != nil {
			return errStopped
		}
		if w.claim != nil && w.claim.Err() != nil {
			return w.claim.Err()
		}
		var err error
		if more, err = w.next(reader); err != nil {
			return err
		}
	}
}

// update changes the cursor in memory, from where the claim saves it.
func (w *worker) update(change func(*cursor.Cursor)) {
	if w.claim != nil {
		w.claim.Update(change)
	}
}

// limit returns the instant that no saved cursor stands later than, so that
// entities written a little late are not behind it.
func (w *worker) limit() time.Time { return w.horizon.Add(-w.target.Overlap) }

// moveCursor moves the cursor over a disposed prefix, as far as its limit. A
// zero position leaves it where it is.
func (w *worker) moveCursor(to store.Position, deleted int) {
	if stop := w.r.At(w.limit()); w.carry == nil && !to.IsZero() && to.Value.Compare(stop.Value) >= 0 {
		to = stop
	}
	w.update(func(c *cursor.Cursor) {
		c.Deleted += int64(deleted)
		c.Position = later(c.Position, to)
		w.keepPace(c)
	})
}

// moves returns what keeps up the position of a read that is not the sweep's own.
func (w *worker) moves(at func(*cursor.Cursor) *store.Position) func(store.Position, int) {
	return func(to store.Position, deleted int) {
		w.update(func(c *cursor.Cursor) {
			c.Deleted += int64(deleted)
			if !to.IsZero() {
				*at(c) = to
			}
		})
	}
}

// later returns the one of two positions in a range that is further on; the
// cursor itself never goes back. Of two with one value it is b: keys are in the
// store's own order, and b was read after a.
func later(a, b store.Position) store.Position {
	if c := b.Value.Compare(a.Value); c < 0 || c == 0 && b.Key == "" {
		return a
	}
	return b
}

// readBehind reads the range from its start, or from where the last attempt came
// to, up to the cursor, for entries that were written behind it.
func (w *worker) readBehind(now time.Time) error {
	began, from := w.first.Rewind.Began, w.first.Rewind.Position
	if began.IsZero() || began.Before(w.ground.since) { // an attempt from before the sealing shows too little
		began, from = now.Truncate(time.Microsecond), store.Position{}
		w.update(func(c *cursor.Cursor) { c.Rewind.Began, c.Rewind.Position = began, from })
	}
	w.stuck, w.fromStart = false, true
	reader := w.reader(from, w.until())
	// The last sweep's cursor is far enough: from there on this one has been.
	if until, err := w.r.Expires(w.first.Position.Value); err == nil && until.Before(reader.Until) {
		reader.Until = until
		if w.first.Position.Key == "" {
			reader.Until = until.Add(-w.r.Resolution())
		}
	}
	// Of a range that was read to its end since the sealing, suspects alone are left.
	suspects := w.ground.drain && !w.first.Rewind.Done.Before(w.ground.since)
	if floor := w.floor(w.horizon); suspects && floor.Before(reader.Until) {
		reader.Until = floor
	}
	more, err := w.next(reader)
	if err != nil {
		return err
	}
	err = w.walk(reader, more, w.moves(func(c *cursor.Cursor) *store.Position { return &c.Rewind.Position }))
	if err == nil && !w.stuck {
		done := began
		if suspects {
			done = w.first.Rewind.Done
		}
		w.update(func(c *cursor.Cursor) { c.Rewind = cursor.Rewind{Done: done} })
	}
	return err
}

// idle moves the cursor of a range without work where it lags.
func (w *worker) idle(now time.Time) error {
	to := w.r.At(w.limit())
	if !w.Apply || to.IsZero() {
		return nil
	}
	fresh := w.first.Position.IsZero()
	stands, err := w.r.Expires(w.first.Position.Value)
	if !fresh && err == nil && w.limit().Sub(stands) <= idleLag {
		return nil
	}
	_, err = w.keeper.Move(w.ctx, w.first, func(c *cursor.Cursor) {
		c.Position = later(c.Position, to)
		c.Swept = w.horizon.Truncate(time.Microsecond)
		if fresh {
			c.Rewind = cursor.Rewind{Done: now.Truncate(time.Microsecond)}
		}
	})
	if store.Transient(err) {
		w.Log.DebugContext(w.ctx, "an idle cursor stays where it is until the next sweep", "range", w.key, "error", err)
		return nil
	}
	return err
}

// await waits while another worker holds the range, or the audit, whose record now
// returns: until it moves, then that is its holder's business, or has stood still for
// one lease, then it may be taken over. It returns the record as it is then.
func (p *pass) await(ctx context.Context, now func() cursor.Cursor) (cursor.Cursor, error) {
	cur := now()
	began := p.Now()
	defer func() { p.waited(throttle.ReasonLease, p.Now().Sub(began)) }()
	for {
		wait := p.keeper.Wait(cur)
		if wait <= 0 {
			return cur, nil
		}
		asked := p.Now()
		if err := throttle.Sleep(ctx, min(wait, p.target.Lease/6)); err != nil {
			return cur, fmt.Errorf("wait for %v: %w", cur.ID, errStopped)
		}
		if err := p.refresh(ctx, asked); err != nil {
			return cur, err
		}
		next := now()
		if next.Revision != cur.Revision {
			return next, nil
		}
		cur = next
	}
}
