package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// A book is what this process remembers of one target between steps. The
// scheduler's goroutine alone touches it.
type book struct {
	items
	c       *collector
	agenda  agenda
	opening chan error // what came of the first read of the records
	plan    *plan.Plan
	view    *plan.View // that the plan was made of; nil before the first
	memory  memory
	count   sweepCount
	held    held
	orders  orders    // that were in force when the waiting ranges were told how long
	dirty   bool      // something happened that the plan does not know
	looked  time.Time // when clocks and shares were looked at last
}

// The items of a book.
type items struct {
	ranges map[shardquery.Range]*item
	chores map[plan.Chore]*item
	active int // those that do not rest, and releases under way
}

// An agenda says when the ranges of a target become ready, and when its work ends:
// for one sweep, or on a schedule.
type agenda interface {
	// open reads the target's records; other methods are called only then.
	open(ctx context.Context, b *book) error
	// chores reports whether chores may begin.
	chores() bool
	// look is asked again and again, and does what has become due.
	look(s *scheduler, b *book, now time.Time)
	// next returns how long nothing becomes due by itself.
	next(b *book, now time.Time) time.Duration
	// failed takes in that the records could not be read at all.
	failed(b *book, err error)
	// isOver reports whether the work on the target has ended.
	isOver(b *book) bool
}

// A memory is what was learned from steps since the view was read.
type memory struct {
	plan.Book
	ownAt     map[cursor.ID]time.Time  // when each of the book's own cursors was written
	notBefore map[plan.Chore]time.Time // when a chore that failed is tried again
}

// choreAgain is how soon a chore that failed is tried again.
const choreAgain = 30 * time.Second

// A held says what holds the target as a whole, and since when.
type held struct {
	why   throttle.Reason
	since time.Time
}

func newBook(c *collector, a agenda) *book {
	return &book{c: c, agenda: a, opening: make(chan error, 1),
		items: items{ranges: map[shardquery.Range]*item{}, chores: map[plan.Chore]*item{}},
		memory: memory{plan.Book{Own: map[cursor.ID]cursor.Cursor{}, Tried: map[plan.Chore]time.Time{}},
			map[cursor.ID]time.Time{},
			map[plan.Chore]time.Time{}}}
}

// metered returns a context in which the target is billed.
func (b *book) metered(ctx context.Context) context.Context {
	return store.WithMeter(ctx, &b.c.tally.meter)
}

// look takes in what is new, and does what is due.
func (b *book) look(s *scheduler, now time.Time) {
	if b.isClosed() || b.view == nil && !b.isOpen() {
		return
	}
	if v := b.c.viewer.View(); v != b.view {
		b.follow(s, v, now)
	}
	if now.Sub(b.looked) >= heartbeat || now.Before(b.looked) {
		b.looked = now
		b.c.pacing.renewShares()
		b.checkHold(s, now)
		b.c.publish()
		if b.dirty {
			b.replan(s, now)
		}
	}
	b.agenda.look(s, b, now)
}

// isOpen reports whether the records have been read.
func (b *book) isOpen() bool {
	select {
	case err := <-b.opening:
		if err != nil {
			b.agenda.failed(b, err)
		}
		return err == nil
	default:
		return false
	}
}

// nextLook returns how long nothing happens to the book by itself.
func (b *book) nextLook(now time.Time) time.Duration {
	if b.view == nil || b.isClosed() {
		return heartbeat
	}
	return min(b.looked.Add(heartbeat).Sub(now), b.agenda.next(b, now))
}

// isClosed reports whether nothing is left to do, ever.
func (b *book) isClosed() bool { return b.active == 0 && b.agenda.isOver(b) }

// follow takes in a view.
func (b *book) follow(s *scheduler, v *plan.View, now time.Time) {
	b.view = v
	b.c.pacing.follow(v)
	b.checkHold(s, now)
	if now := b.c.pacing.orders(); now != b.orders {
		b.orders = now
		s.rouseAll(b, b.c.cfg.Now()) // their tokens come faster, or slower
	}
	for id, at := range b.memory.ownAt {
		if v.CursorsSent.After(at) {
			delete(b.memory.ownAt, id)
			delete(b.memory.Own, id)
		}
	}
	b.replan(s, now)
	b.rouseReleased(s, now)
}

// rouseReleased makes the ranges ready that waited for another process and, as the
// view shows, need not any more.
func (b *book) rouseReleased(s *scheduler, now time.Time) {
	var list []*item
	for r, it := range b.ranges {
		if it.state == waiting && it.out.isElsewhere() && b.c.keeper.Wait(b.plan.Cursor(r)) == 0 {
			list = append(list, it)
		}
	}
	for _, it := range inOrder(list) {
		s.remove(it)
		s.rouse(it, now)
	}
}

// checkHold finds out whether the target is held, and tells its pacers.
func (b *book) checkHold(s *scheduler, now time.Time) {
	why := b.c.heldBy()
	if !b.c.pacing.hold(why) {
		return
	}
	if b.held.why == "" {
		b.held.since = now
	}
	if b.held.why = why; why == "" {
		b.held.since = time.Time{}
		s.rouseAll(b, now)
		b.resume(s, now)
	}
	b.c.tellHold(why)
}

// resume makes the ranges ready that were given back, or only looked at, while the target
// was held: the next tick may be hours away.
func (b *book) resume(s *scheduler, now time.Time) {
	var list []*item
	for _, it := range b.ranges {
		if it.state == resting && (it.out.held != "" || it.out.state == stopped) && s.ctx.Err() == nil {
			list = append(list, it)
		}
	}
	for _, it := range inOrder(list) {
		b.makeReady(s, it, now)
	}
}

// replan makes a new plan, and items for what is new in it.
func (b *book) replan(s *scheduler, now time.Time) {
	b.dirty = false
	b.plan = plan.New(b.c.rules, b.view, b.memory.Book, b.c.clock.Now())
	names := make(map[string]bool, len(b.plan.Ranges()))
	wanted := make(map[shardquery.Range]bool, len(b.plan.Ranges()))
	for i, r := range b.plan.Ranges() {
		names[b.c.rules.ID(r).Key()] = true
		wanted[r] = true
		if b.ranges[r] == nil {
			b.ranges[r] = &item{job: &rangeJob{c: b.c, r: r}, book: b, name: b.c.rules.ID(r).Key(), order: i}
		}
	}
	for r, it := range b.ranges {
		if !wanted[r] && it.state == resting {
			delete(b.ranges, r)
			b.settleCount(it, false)
		}
	}
	b.c.target.Watchdog.Only(names)
	b.c.guards.only(names)
	if !b.agenda.chores() || s.ctx.Err() != nil {
		return
	}
	for i, c := range b.plan.Chores() {
		b.addChore(s, c, i, now)
	}
}

// addCount counts what is due, for the limits of the target and for who watches.
func (b *book) addCount(s *scheduler, now time.Time) {
	if b.c.limits.limited() {
		b.c.limits.close()
		b.addChore(s, plan.Chore{Kind: countDue}, 0, now)
	}
}

// estimate counts what is due for who watches the progress.
func (b *book) estimate(s *scheduler, now time.Time) {
	if b.c.cfg.Progress.Estimate {
		b.addChore(s, plan.Chore{Kind: estimate}, 0, now)
	}
}

// cancelChores ends the chores that are at work, which are only for people: they
// hold up nothing.
func (b *book) cancelChores(kinds ...plan.Kind) {
	for c, it := range b.chores {
		if slices.Contains(kinds, c.Kind) && it.state == running {
			it.cancel()
		}
	}
}

// addChore makes a chore ready, unless it is at work already.
func (b *book) addChore(s *scheduler, c plan.Chore, order int, now time.Time) {
	if b.chores[c.Key()] != nil || now.Before(b.memory.notBefore[c.Key()]) {
		return
	}
	var do job = &choreJob{c: b.c, chore: c}
	if c.Kind == plan.Audit {
		do = newAuditJob(b.c, c.Namespace)
	}
	it := &item{job: do, book: b, name: c.Name(), order: order,
		lane: lane{slow: true, apart: c.Kind == plan.Look || c.Kind == estimate || c.Kind == countDue}}
	b.chores[c.Key()] = it
	b.active++
	s.makeReady(it, now)
}

// todo returns what the plan says of an item now.
func (b *book) todo(it *item) todo {
	switch j := it.job.(type) {
	case *rangeJob:
		if it.again {
			it.again = false
			j.goOn()
		}
		return todo{need: b.plan.Range(j.r), cursor: b.plan.Cursor(j.r), plan: b.plan}
	case *auditJob:
		return todo{cursor: b.plan.AuditCursor(j.r.Namespace), spans: b.plan.AuditSpans(j.r.Namespace), plan: b.plan}
	}
	// A chore has a plan of its own: this one's book goes on changing.
	own := plan.Book{Own: maps.Clone(b.memory.Own), Tried: maps.Clone(b.memory.Tried)}
	return todo{plan: plan.New(b.c.rules, b.view, own, b.c.clock.Now())}
}

// makeReady makes a range at rest ready.
func (b *book) makeReady(s *scheduler, it *item, now time.Time) {
	b.active++
	s.makeReady(it, now)
}

// readyAll makes the ranges ready that need anything, and lets those that are at
// work go on to the horizon of now.
func (b *book) readyAll(s *scheduler, now time.Time) {
	b.replan(s, now)
	order := plan.Order(slices.SortedFunc(maps.Keys(b.ranges), func(x, y shardquery.Range) int {
		return strings.Compare(b.ranges[x].name, b.ranges[y].name)
	}), store.Chance(s.ctx))
	for i, r := range order {
		it := b.ranges[r]
		j, isRange := it.job.(*rangeJob)
		switch need := b.plan.Range(r); {
		case it.state == resting && need.Read:
			it.order, it.slow = i, it.late || need.IsSlow()
			b.makeReady(s, it, now)
		case it.state == resting && !need.Read:
			b.c.sawDue(it.name, time.Time{}, 0) // nothing in it is due: it is left alone
			b.settleCount(it, false)
		case it.state == waiting && isRange && j.atHorizon():
			it.again, it.slow = true, it.late
			s.remove(it)
			s.rouse(it, now)
		case it.state == ready && isRange && j.atHorizon() && !it.again: // else it keeps its place
			it.again, it.slow = true, it.late
			s.remove(it)
			s.makeReady(it, now)
		case it.state != resting:
			it.again = true
		}
	}
}

// stepped takes in what became of a step.
func (b *book) stepped(s *scheduler, it *item, now time.Time) {
	out := it.out
	b.noteOutcome(it, out)
	b.noteOwn(out.moved, now)
	if out.release != nil {
		b.active++
		s.release(it, out.release)
	}
	switch {
	case out.state == ready, out.state == waiting && it.ticked():
		if it.ticked() { // what has fallen due goes first
			it.slow, it.either = it.late, false
		}
		s.makeReady(it, now)
	case out.state == waiting:
		s.sleep(it, now)
	case out.release == nil:
		b.toRest(s, it, now)
	}
	b.dirty = true
}

// ticked reports whether a tick came while the range was at work, and its normal reading
// had come to its end.
func (it *item) ticked() bool {
	j, isRange := it.job.(*rangeJob)
	return it.again && isRange && j.atHorizon()
}

// toRest notes that an item has nothing to do.
func (b *book) toRest(s *scheduler, it *item, now time.Time) {
	c, isChore := it.chore()
	if it.out.state == failed {
		it.failures++
		it.out.wake = now.Add(againIn(it.failures))
	} else {
		it.failures = 0
	}
	if !isChore && b.c.until.IsZero() && s.ctx.Err() == nil && (it.out.state == failed || it.out.state == lost) {
		it.again = false
		s.sleep(it, now) // a daemon tries it again, also before the next tick
		return
	}
	b.active--
	it.state, it.wanted = resting, time.Time{}
	if !isChore {
		if it.again && it.out.state == resting && s.ctx.Err() == nil { // a tick came while it was given back
			b.makeReady(s, it, now)
		}
		it.again = false
		return
	}
	delete(b.chores, c)
	if it.out.state == failed {
		b.memory.notBefore[c] = now.Add(choreAgain)
	} else {
		b.memory.Tried[c] = b.c.clock.Now()
	}
}

// noteOwn keeps a cursor as this process has written it, if it did.
func (b *book) noteOwn(c cursor.Cursor, now time.Time) bool {
	if c.Revision == "" {
		return false
	}
	b.memory.Own[c.ID], b.memory.ownAt[c.ID] = c, now
	return true
}

// released takes in that a claim was given back.
func (b *book) released(s *scheduler, r result, now time.Time) {
	b.active--
	if r.out.err != nil || !b.noteOwn(r.cursor, now) {
		b.c.viewer.wantCursors() // nobody knows how the record stands
	}
	b.dirty = true
	b.toRest(s, r.item, now)
}

// stop gives up everything that no worker is at: what is claimed is given back.
func (b *book) stop(s *scheduler, now time.Time) {
	b.giveUpAll(s, now, func(*item) bool { return true })
}

// giveBack gives up what is claimed, of a target that is held. Chores go on, and what is
// due is still looked at.
func (b *book) giveBack(s *scheduler, now time.Time) {
	b.giveUpAll(s, now, (*item).isClaimed)
}

// giveUpAll gives up those items that no worker is at and that are wanted.
func (b *book) giveUpAll(s *scheduler, now time.Time, wanted func(*item) bool) {
	all := slices.AppendSeq(slices.Collect(maps.Values(b.ranges)), maps.Values(b.chores))
	for _, it := range inOrder(all) {
		if (it.state == ready || it.state == waiting) && wanted(it) {
			b.giveUp(s, it, now)
		}
	}
}

// isClaimed reports whether an item that no worker is at holds a claim.
func (it *item) isClaimed() bool {
	switch j := it.job.(type) {
	case *rangeJob:
		return j.visit != nil
	case *auditJob:
		return j.visit != nil
	}
	return false
}

// giveUp ends what an item is at, between two steps.
func (b *book) giveUp(s *scheduler, it *item, now time.Time) {
	s.remove(it)
	it.state = running
	it.out = it.job.end(outcome{state: stopped})
	b.stepped(s, it, now)
}

// A sweepCount is the sweep that is counted: how far the ranges are that were
// ready when it began.
type sweepCount struct {
	open     bool
	began    time.Time // by this process's clock
	horizon  time.Time // what every range is to be brought to
	pending  int       // ranges that are not there yet
	ranges   int
	left     int // ranges that did not come there
	failures int
	errs     []error // the first few of them
}

// openCount begins to count a sweep of the ranges that do not rest. Those that a live
// process holds are that one's.
func (b *book) openCount(now time.Time) {
	b.count = sweepCount{open: true, began: now, horizon: b.c.horizon()}
	for _, it := range b.ranges {
		it.pending = it.state != resting && !(it.state == waiting && it.out.theirs)
		if it.pending {
			b.count.pending++
		}
	}
	b.count.ranges = b.count.pending
	b.c.cfg.Progress.Ranges.Add(int64(b.count.ranges))
}

// noteOutcome counts what a step says of the sweep that is counted.
func (b *book) noteOutcome(it *item, out outcome) {
	if out.err != nil {
		b.fail(it, out.err)
	}
	if out.reached.After(it.reached) {
		it.reached = out.reached
	}
	if !it.pending {
		return
	}
	_, isRange := it.job.(*rangeJob)
	switch {
	case !isRange:
	case out.theirs, !out.reached.IsZero() && !out.reached.Before(b.count.horizon):
		b.settleCount(it, false)
	case out.state == resting && !it.again: // else it goes on at once
		b.settleCount(it, out.held != "")
	case out.state == failed, out.state == stopped, out.state == lost:
		b.settleCount(it, true)
	}
}

// settleCount notes that the counted sweep waits for a range no longer.
func (b *book) settleCount(it *item, left bool) {
	if !it.pending {
		return
	}
	it.pending = false
	b.count.pending--
	if left {
		b.count.left++
	} else {
		b.c.cfg.Progress.RangesDone.Add(1)
	}
}

// fail keeps an error for the result of the sweep, and names it.
func (b *book) fail(it *item, err error) {
	const most = 3 // the log has them all
	b.count.failures++
	if len(b.count.errs) < most {
		b.count.errs = append(b.count.errs, err)
	}
	b.c.log.Error("step failed", "of", it.name, "error", err)
}

// err returns why the sweep that was counted failed; nil if it did not.
func (c *sweepCount) err() error {
	if c.failures == 0 {
		return nil
	}
	if c.ranges == 0 { // it did not come as far as its ranges
		return errors.Join(c.errs...)
	}
	return fmt.Errorf("%d failures in %d ranges: %w", c.failures, c.ranges, errors.Join(c.errs...))
}
