package sweep

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A pass is one sweep of one target.
type pass struct {
	Config
	target Target
	slots  chan struct{} // one for each range that may be swept at the same time
	still  bool          // leave the life of the generations to sweeps
	clock  *clock
	keeper *cursor.Keeper
	meter  *store.Meter

	record     generation.Record
	namespaces []string
	all        []shardquery.Range // of every live generation
	ranges     []shardquery.Range // those of them that are due
	grounds    map[int]ground     // by generation
	retired    []int
	governor   *governor
	published  published
	began      time.Time
	allowance  atomic.Int64 // entities that may still be deleted, where there is a limit
	limited    bool
	horizon    time.Time // when the sweep began; each range takes its own at its claim

	loading    door       // held while the cursors are read
	mu         sync.Mutex // guards what follows
	table      cursor.Table
	loaded     time.Time // when the read of table was sent
	seen       time.Time // when it had arrived
	errs       []error
	failed     int               // errs keeps only the first few
	stuckSince time.Time         // when contention first kept an entity from being settled
	looked     generation.Record // the target record after a look around
	throttled  map[throttle.Reason]time.Duration

	counts
}

// counts are what workers add up. Stepped turns negative for good where a page
// could not tell.
type counts struct {
	scanned, expired, deleted, conflicts, suspect, malformed, carried, strays, pages, stepped, behind, incomplete atomic.Int64
	stepsUnknown                                                                                                  atomic.Bool
}

func newPass(c Config, t Target, slots chan struct{}) *pass {
	if c.Metrics == nil {
		c.Metrics = metrics.Nowhere()
	}
	if t.Watchdog == nil {
		t.Watchdog = &metrics.Watchdog{Patience: time.Hour}
	}
	p := &pass{Config: c, target: t, slots: slots, meter: new(store.Meter), loading: newDoor(),
		throttled: map[throttle.Reason]time.Duration{}}
	p.Log = c.Log.With("target", t.Name)
	began := c.Now()
	p.began = began
	p.clock = &clock{now: c.Now, passed: func() time.Duration { return c.Now().Sub(began) }, maxSkew: t.MaxClockSkew}
	opening := ""
	if x, ok := c.Store.(store.Exclusive); ok {
		opening = x.Opening() + "/"
	}
	p.governor = newGovernor(p)
	p.keeper = &cursor.Keeper{Store: c.Store, Owner: opening + c.Owner, Opening: opening, Lease: t.Lease,
		Now: c.Now, StoreNow: p.clock.Now, Log: p.Log}
	return p
}

// governed reads the records and does a job while the governor watches over it. The
// job begins no new page once ctx is done; work is what pages in flight and final
// saves go by.
func (p *pass) governed(ctx, work context.Context, job func(p *pass, ctx, work context.Context) error) error {
	ctx, work = store.WithMeter(ctx, p.meter), store.WithMeter(work, p.meter)
	if err := p.begin(ctx); err != nil {
		return err
	}
	ctx, done, err := p.govern(ctx)
	defer done()
	if err != nil {
		return err
	}
	return job(p, ctx, work)
}

// run sweeps the target.
func (p *pass) run(ctx, work context.Context) error {
	around, err := p.look(ctx)
	if err == nil {
		err = p.survey(ctx)
	}
	if err == nil {
		err = p.brake(ctx)
	}
	if err != nil {
		p.ranges = p.all
		p.incomplete.Add(int64(len(p.ranges)))
		return err
	}
	p.countDue(ctx)
	p.Progress.Ranges.Add(int64(len(p.ranges)))
	queue := &queue{}
	for _, r := range p.order(store.Chance(ctx)) {
		queue.add(turn{r: r})
	}
	var group errgroup.Group
	coming, enough := context.WithCancel(ctx) // done once a worker found nothing left to do
	defer enough()
	for i := range min(cap(p.slots), len(p.ranges)) {
		if i >= workersAtOnce && p.keeper.Opening == "" && (throttle.Sleep(coming, workerEvery) != nil || queue.empty()) {
			break
		}
		group.Go(func() error {
			defer enough()
			for t, ok := queue.next(); ok; t, ok = queue.next() {
				p.one(ctx, work, t, queue)
			}
			return nil
		})
	}
	auditing, enoughOfThat := context.WithCancel(ctx)
	defer enoughOfThat()
	var audit sync.WaitGroup
	audit.Go(func() { // beside the ranges, and in nobody's place
		if err := protect(func() error { return p.auditDue(auditing, work) }); err != nil && !p.stopped(auditing, work, err) {
			p.fail(fmt.Errorf("audit: %w", err))
		}
	})
	_ = group.Wait() // failures are in p.errs
	last := time.AfterFunc(auditBeyond, func() {
		p.Log.InfoContext(ctx, "the audit goes on with the next sweep, which it must not keep waiting")
		enoughOfThat()
	})
	audit.Wait()
	last.Stop()
	if ctx.Err() == nil {
		if err := p.retire(ctx); err != nil && ctx.Err() == nil {
			p.fail(err)
		}
	}
	if around != nil && ctx.Err() == nil {
		if err := around(ctx); err != nil && ctx.Err() == nil {
			p.fail(err)
		}
	}
	if len(p.errs) > 0 {
		return fmt.Errorf("%d failures in %d ranges: %w", p.failed, len(p.ranges), errors.Join(p.errs...))
	}
	if ctx.Err() != nil {
		return errStopped
	}
	return nil
}

// govern starts the governor, where anything is to be written. The context that it
// returns ends with the given one, or when nothing may be deleted for too long.
func (p *pass) govern(ctx context.Context) (context.Context, func(), error) {
	if !p.Apply {
		p.governor.follow(p.record, time.Time{}) // which is not stored as it is
		return ctx, func() {}, nil
	}
	p.governor.follow(p.record, p.began)
	if p.record.Paused {
		p.Log.WarnContext(ctx, "the target is paused: nothing is done until reaper resume")
		p.listRanges()
		p.lookOnly(ctx)
		return ctx, func() {}, errHeld
	}
	if p.target.Gate != nil {
		p.governor.ask(ctx) // before anything is deleted
	}
	ctx, end := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := protect(func() error { p.governor.watch(ctx, end); return nil }); err != nil {
			p.fail(err)
			end(err)
		}
	}()
	return ctx, func() { end(nil); <-watched }, nil
}

// begin reads the records and takes the horizon.
func (p *pass) begin(ctx context.Context) error {
	if err := p.loadTable(ctx); err != nil {
		return err
	}
	if err := p.loadRecord(ctx); err != nil {
		return err
	}
	p.horizon = p.clock.Now().Add(-p.target.Retention)
	return p.listNamespaces(ctx)
}

// Workers come in one after the other: a process that was begun together with
// this one must find ranges that nobody holds. A store that only one process can
// have open needs no such courtesy.
const (
	workersAtOnce = 4
	workerEvery   = 500 * time.Millisecond
)

// one gives a range its turn, and files what came of it.
func (p *pass) one(ctx, work context.Context, t turn, queue *queue) {
	if wait := t.after.Sub(p.Now()); wait > 0 {
		_ = throttle.Sleep(ctx, wait) // a context that is done is seen below
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		p.incomplete.Add(1)
		return
	}
	r := t.r
	var end ending
	var unsettled int
	err := protect(func() (err error) {
		end, unsettled, err = p.sweepRange(ctx, work, r, t.again)
		return err
	})
	switch {
	case err == nil && end == taken:
		queue.add(turn{r: r, again: true}) // after all others: its holder may be done by then
	case err == nil && end == unfinished && p.Apply && p.mayStillSettle():
		p.expired.Add(-int64(unsettled)) // it will be found due once more
		queue.add(turn{r: r, after: p.Now().Add(settleEvery)})
	case err == nil && end == unfinished:
		p.incomplete.Add(1)
	case err == nil:
		p.Progress.RangesDone.Add(1)
	case p.stopped(ctx, work, err):
		p.incomplete.Add(1)
	case errors.Is(err, errBlocked) && p.mayStillSettle():
		p.Log.DebugContext(ctx, "cannot claim a range yet", "range", p.id(r).Key(), "error", err)
		queue.add(turn{r: r, after: p.Now().Add(settleEvery)})
	case errors.Is(err, cursor.ErrLost):
		// Another worker has the range now, or will take it: that is no failure.
		p.incomplete.Add(1)
		p.Log.WarnContext(ctx, "lost a range to another worker", "range", p.id(r).Key(), "error", err)
	default:
		p.incomplete.Add(1)
		p.fail(fmt.Errorf("%v: %w", r, err))
		p.Log.ErrorContext(ctx, "range failed", "range", p.id(r).Key(), "error", err)
	}
}

// stopped reports whether an error only says that the sweep was asked to stop.
func (p *pass) stopped(ctx, work context.Context, err error) bool {
	return errors.Is(err, errStopped) || ended(ctx, err) || ended(work, err)
}

// fail keeps an error for the target's result.
func (p *pass) fail(err error) {
	const most = 3 // the log has them all
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed++
	if len(p.errs) < most {
		p.errs = append(p.errs, err)
	}
}

// loadTable reads the cursors, and the store's time with them.
func (p *pass) loadTable(ctx context.Context) error {
	p.mu.Lock()
	before := p.table
	p.mu.Unlock()
	var table cursor.Table
	var sent, at time.Time
	err := patiently(ctx, func(ctx context.Context) (err error) {
		sent = p.Now()
		table, at, err = cursor.Load(ctx, p.Store, p.target.Name, before, p.Now)
		return err
	})
	if err != nil {
		return err
	}
	if err := p.clock.observe(at, sent); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table, p.loaded, p.seen = table, sent, p.Now()
	return nil
}

const (
	// recordTimeout bounds one read of records, and recordPatience all tries
	// together: an address where nobody answers is an error within 30 s.
	recordTimeout  = 10 * time.Second
	recordPatience = 20 * time.Second
)

// patiently repeats a call that reads records, or a few entries.
func patiently(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, recordPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, recordTimeout)
		defer cancel()
		return call(ctx)
	})
}

// refresh reads the cursors again, unless somebody did since the given instant.
func (p *pass) refresh(ctx context.Context, since time.Time) error {
	if err := p.loading.enter(ctx); err != nil {
		return err
	}
	defer p.loading.leave()
	p.mu.Lock()
	fresh := !p.loaded.Before(since)
	p.mu.Unlock()
	if fresh {
		return nil
	}
	return p.loadTable(ctx)
}

func (p *pass) listNamespaces(ctx context.Context) error {
	p.namespaces = p.target.Namespaces
	if len(p.namespaces) == 0 {
		p.namespaces = []string{""}
	}
	if !slices.Contains(p.namespaces, "*") {
		return nil
	}
	n, ok := p.Store.(store.Namespacer)
	if !ok {
		p.namespaces = []string{""}
		return nil
	}
	return patiently(ctx, func(ctx context.Context) (err error) {
		p.namespaces, err = n.Namespaces(ctx)
		return err
	})
}

// listRanges lists the target's ranges as far as they are known from the target
// record and the cursors.
func (p *pass) listRanges() {
	if p.target.Type == store.Instant {
		p.all = shardquery.InstantRanges(p.target.ShardValues, p.namespaces)
		return
	}
	p.all = shardquery.Ranges(p.record.Live(), p.namespaces)
	p.addKnown()
}

// floor returns the instant before which an expiry is implausible.
func (p *pass) floor(horizon time.Time) time.Time { return horizon.Add(-p.target.MaxAge) }

// decide judges the value of an expiry property at a horizon.
func (p *pass) decide(v store.Value, horizon time.Time) judgement {
	return decide(p.target.Type, v, horizon, p.target.MaxAge)
}

func (p *pass) id(r shardquery.Range) cursor.ID {
	return cursor.ID{Target: p.target.Name, Namespace: r.Namespace, Generation: r.Generation, Shard: r.ShardName()}
}

// cursor returns where the range stands, by the newest table read.
func (p *pass) cursor(r shardquery.Range) cursor.Cursor {
	opened := p.record.Created
	for _, g := range p.record.Generations {
		if g.Number == r.Generation {
			opened = g.Opened
		}
	}
	return p.cursorAt(p.id(r), opened)
}

func (p *pass) cursorAt(id cursor.ID, opened time.Time) cursor.Cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.table.Get(id, cursor.Scope{Kind: p.target.Kind, Property: p.target.Property, Layout: p.target.scope(), Opened: opened}, p.target.Type)
	if c.Seen.IsZero() {
		c.Seen = p.loaded
	}
	c.TargetRevision = revisionCount(p.record.Revision)
	return c
}

// rewindDue reports whether a read of the range from its start is under way or
// due at the given instant. Ranges take turns: each has a fixed part of the
// period's last fifth to itself.
func (p *pass) rewindDue(c cursor.Cursor, now time.Time) bool {
	if !c.Rewind.Began.IsZero() {
		return true
	}
	return !now.Before(c.Rewind.Done.Add(jitter(p.target.Rewind, c.Key())))
}

// jitter returns four fifths of the period to all of it, always the same for
// the same name.
func jitter(period time.Duration, name string) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(name))
	return period - time.Duration(float64(period)/5*float64(h.Sum32())/(1<<32))
}

// waited adds to what held the sweep back.
func (p *pass) waited(why throttle.Reason, d time.Duration) {
	if d > 0 {
		p.mu.Lock()
		p.throttled[why] += d
		p.mu.Unlock()
	}
}

// addSteps adds up the deleted points that a read stepped over.
func (p *pass) addSteps(n int64, fromStart bool) {
	if n == store.UnknownSteps {
		p.stepsUnknown.Store(true)
		return
	}
	p.counts.stepped.Add(n)
	if fromStart {
		p.counts.behind.Add(n)
	}
}

func (p *pass) result() TargetResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := p.record
	if p.looked.Target != "" {
		rec = p.looked
	}
	res := TargetResult{
		Name: p.target.Name, Horizon: p.horizon,
		Scanned: p.scanned.Load(), Expired: p.expired.Load(), Deleted: p.deleted.Load(), Conflicts: p.conflicts.Load(),
		Suspect: p.suspect.Load(), Malformed: p.malformed.Load(), Outside: rec.Outside, Pages: p.pages.Load(),
		Carried: p.carried.Load(), Strays: p.strays.Load(),
		Ranges: len(p.ranges), Incomplete: int(p.incomplete.Load()), Retired: append([]int{}, p.retired...),
		Operations: p.meter.Operations(), Throttled: map[string]float64{}, EmptyIndex: rec.EmptyIndex,
	}
	if !p.stepsUnknown.Load() {
		n := p.counts.stepped.Load()
		behind := p.counts.behind.Load()
		res.Stepped, res.Behind = &n, &behind
	}
	for why, d := range p.throttled {
		res.Throttled[string(why)] = d.Seconds()
	}
	return res
}

// errBlocked is why a range could not be claimed where its record did not take
// the write: another process, perhaps a dead one, has it in a transaction.
var errBlocked = errors.New("the cursor record is blocked")

// mayStillSettle reports whether a range with a blocked record, or with entities
// that contention did not let through, gets another turn. The locks of a process that died are dropped with its
// transaction, which the services end after 60 s without a request.
func (p *pass) mayStillSettle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuckSince.IsZero() {
		p.stuckSince = p.Now()
	}
	return p.Now().Sub(p.stuckSince) < settleFor
}

const (
	settleEvery = 5 * time.Second
	settleFor   = 90 * time.Second
)

// A door lets one in at a time, as a mutex does. Who waits before it, while another
// one reads records, waits no longer than its context lasts.
type door chan struct{}

func newDoor() door { return make(door, 1) }

func (d door) enter(ctx context.Context) error {
	select {
	case d <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d door) leave() { <-d }
