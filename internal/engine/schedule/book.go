package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/engine/pace"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/internal/engine/site"
	"github.com/reaper-ttl/reaper/internal/engine/step"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// heartbeat is how often clocks and shares are looked at.
const heartbeat = time.Second

// A book is what this process remembers of one target between steps. It decides what its
// items do next. The scheduler's goroutine alone touches it.
type book struct {
	c *site.Site
	Target
	agenda agenda
	opened <-chan error // how the first read of the records ended
	roster
	planner
	count   sweepCount
	hold    hold
	sharing sharing
	orders  pace.Orders // under which the waiting ranges got their wakes
	visited bool        // a tick has looked at the need of each of the ranges
	looked  time.Time   // when clocks and shares were looked at last
}

// An agenda says when the ranges of a target become ready, and when its work ends:
// for one sweep, or on a schedule.
type agenda interface {
	// open reads the target's records, in a goroutine of its own. Look is called only after that.
	open(ctx context.Context, c *site.Site) error
	// chores reports whether chores may begin.
	chores() bool
	// look is called again and again, and does what has become due.
	look(b *book, now time.Time)
	// next returns how long nothing becomes due by itself.
	next(b *book, now time.Time) time.Duration
	// failed handles that the records could not be read at all.
	failed(b *book, err error)
	// task names what the agenda does, for the history.
	task() string
	// isOver reports whether the work on the target has ended.
	isOver(b *book) bool
}

// newBook returns the book of a target, whose records have been read once opened has a value.
func newBook(s *scheduler, t Target, a agenda, opened <-chan error) *book {
	c := t.Site
	c.Story.For(a.task())
	b := &book{c: c, Target: t, agenda: a, opened: opened, planner: newPlanner(c),
		hold: hold{c: c}, sharing: sharing{c: c}}
	b.roster = newRoster(c, s, b)
	b.count = sweepCount{c: c, tags: &b.tagCounts}
	return b
}

// look takes in what is new, and does what is due.
func (b *book) look(now time.Time) {
	if b.isClosed() || b.view == nil && !b.isOpen() {
		return
	}
	if v := b.c.Viewer.View(); v != b.view {
		b.follow(v, now)
	}
	if now.Sub(b.looked) >= heartbeat || now.Before(b.looked) {
		b.looked = now
		b.c.Pacing.RenewShares()
		b.checkHold(now)
		b.share(now)
		b.c.Publish()
		b.c.Story.Look(now, b.hold.why, b.active > 0)
		if b.dirty {
			b.replan(now)
		}
	}
	b.agenda.look(b, now)
}

// isOpen reports whether the records have been read.
func (b *book) isOpen() bool {
	select {
	case err := <-b.opened:
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
func (b *book) follow(v *plan.View, now time.Time) {
	old := b.view
	b.view = v
	b.c.Pacing.Follow(v)
	b.checkHold(now)
	if orders := b.c.Pacing.Orders(); orders != b.orders {
		b.orders = orders
		b.s.rouseAll(b, b.c.Cfg.Now()) // their tokens come faster, or slower
	}
	b.memory.forgetOwn(old, v)
	b.replan(now)
	b.s.rouse(b.sharing.released(b.elsewhere, b.plan), now)
}

// checkHold finds out whether the target is held. When that ends, what waited for it continues.
func (b *book) checkHold(now time.Time) {
	changed, since := b.hold.check(now)
	if b.hold.why == "" {
		if changed {
			b.s.rouseAll(b, now)
		}
		if changed || b.hold.left { // else it ended before anybody saw it, or while they came to rest
			b.resume(now)
		}
	}
	if changed {
		b.c.LogHold(b.hold.why, since, b.hold.fault)
	}
}

// resume makes the ranges ready that were given back, or only looked at, while the target
// was held: the next tick may be hours away.
func (b *book) resume(now time.Time) {
	b.hold.left = false
	if b.s.isStopping() {
		return
	}
	for _, it := range b.interrupted() {
		b.makeReady(it, now)
	}
}

// share divides the ranges among the live processes.
func (b *book) share(now time.Time) {
	if !b.c.Cfg.Apply {
		return
	}
	if b.sharing.hasNews() {
		b.s.rouse(b.sharing.released(b.elsewhere, b.plan), now)
	}
	b.sharing.look(&b.tagCounts, b.view, b.s.isStopping(), now)
}

// replan makes a new plan, and begins the chores that are due.
func (b *book) replan(now time.Time) {
	if last := b.renew(); last != nil {
		b.followRanges(last)
	}
	if !b.agenda.chores() || b.s.isStopping() {
		return
	}
	for i, c := range b.plan.Chores() {
		b.beginChore(c, i, now)
	}
}

// beginChore makes a chore ready, unless it is in progress already or has just failed.
func (b *book) beginChore(c plan.Chore, order int, now time.Time) {
	if b.chores[c.Key()] == nil && b.memory.mayTry(c.Key(), now) {
		b.addChore(c, b.Chore(c), order, now)
	}
}

// followRanges forgets the ranges that no longer exist. New ones have to be visited before it
// is known how far the target is swept.
func (b *book) followRanges(last *plan.Plan) {
	if b.plan.SameRanges(last) {
		return
	}
	for r, it := range b.ranges {
		if !b.plan.Has(r) {
			b.forgetProgress(it)
			b.forgetAtRest(it)
		}
	}
	for id := range b.memory.Own {
		if !b.c.Lives(id.Generation) { // another process forgets the records
			b.memory.dropOwn(id)
		}
	}
	for r := range b.plan.All() {
		if !last.Has(r) {
			b.visited = false
			return
		}
	}
}

// forgetAtRest forgets an item at rest of which there is nothing to remember: its range
// does not exist any more, or needs nothing by its cursor. It remembers that calls were slow.
func (b *book) forgetAtRest(it *item) {
	j, isRange := it.rangeJob()
	if !isRange || it.state != step.Resting {
		return
	}
	exists := b.plan.Has(j.Range())
	if it.needed = exists && b.plan.Range(j.Range()).Read; it.needed || exists && (it.late || it.out.Held != "") {
		b.note(it)
		return
	}
	b.count.settle(it, false)
	b.drop(j, it)
}

// readyAll makes the ranges ready that need anything, and lets those that are in work
// continue to the horizon of now.
func (b *book) readyAll(now time.Time) {
	b.replan(now)
	list := b.wanted(b.ranges)
	if !b.visited {
		b.visited = true
		b.forgetOthers(list)
	}
	for i, r := range plan.Order(list, store.Chance(b.s.ctx)) {
		b.tick(r, i, now)
	}
}

// tick makes a range ready that rests and needs anything, and lets one that is in work
// continue to the horizon of now.
func (b *book) tick(r shardquery.Range, order int, now time.Time) {
	need, it := b.plan.Range(r), b.ranges[r]
	if it == nil {
		it = b.addRange(b.Range(r), b.reached(r, need))
	}
	j, isRange := it.rangeJob()
	switch {
	case it.state == step.Resting && need.Read:
		it.order, it.slow = order, it.late || need.IsSlow()
		b.makeReady(it, now)
	case it.state == step.Resting:
		b.c.SawDue(it.name, time.Time{}, 0) // nothing in it is due: it is left alone
		b.count.settle(it, false)
		b.forgetAtRest(it)
	case it.state == step.Ready && isRange && it.isUnopened() && it.slow && !it.late && !need.IsSlow():
		it.slow = false // what is due goes first, again
		b.s.remove(it)
		b.s.makeReady(it, now)
	case it.state == step.Waiting && isRange && j.AtHorizon():
		it.again, it.slow = true, it.late
		b.s.remove(it)
		b.s.awake(it, now)
	case it.state == step.Ready && isRange && j.AtHorizon() && !it.again: // else it keeps its place
		it.again, it.slow = true, it.late
		b.s.remove(it)
		b.s.makeReady(it, now)
	default:
		it.again = true
	}
}

// todo implements owner.
func (b *book) todo(it *item) step.Todo {
	j, isRange := it.rangeJob()
	if !isRange {
		return b.choreTodo(it.chore, it.job.IsClaimed())
	}
	if it.again {
		it.again = false
		j.GoOn()
	}
	return b.rangeTodo(j.Range(), b.working)
}

// stepped implements owner.
func (b *book) stepped(it *item, now time.Time) {
	if it.givesBack() {
		it.end(step.Outcome{State: step.Given})
	}
	switch continues := it.out.State == step.Ready || it.out.State == step.Waiting; {
	case !continues:
		it.gives, it.worked = false, time.Time{}
	case it.worked.IsZero():
		it.worked = now
	}
	out := *it.out
	b.count.add(it, out)
	if out.State == step.Given || out.Theirs { // its holder says how old what is due there is
		b.c.Target.Watchdog.Forget(it.name)
	}
	if out.Moved != nil {
		b.memory.noteOwn(*out.Moved, now)
	}
	if out.Release != nil {
		b.active++
		b.s.release(it, out.Release)
	}
	switch {
	case out.State == step.Ready, out.State == step.Waiting && it.isTicked():
		if it.isTicked() { // what has become due goes first
			it.slow, it.either = it.late, false
		}
		b.s.makeReady(it, now)
	case out.State == step.Waiting:
		b.s.sleep(it, now)
	case out.Release == nil:
		b.finish(it, now)
	}
	if it.out != step.AtRest {
		it.out.Release, it.out.Moved = nil, nil // else they keep the visit
	}
	b.note(it)
	b.dirty = true
}

// released implements owner.
func (b *book) released(it *item, saved cursor.Cursor, err error, now time.Time) {
	b.active--
	if err != nil {
		b.c.Viewer.WantCursor(saved.ID) // it is not known what the record says
		b.c.Story.LostCursor()
		if !errors.Is(err, cursor.ErrLost) && !b.s.isStopping() {
			b.count.fail(it, err) // the next sweep repeats what was not saved
		}
	} else {
		b.memory.noteOwn(saved, now)
	}
	b.dirty = true
	b.finish(it, now)
}

// finish brings an item to rest that has nothing to do, or lets it wait for its next try.
func (b *book) finish(it *item, now time.Time) {
	if it.out.State == step.Given {
		it.out.Wake, it.out.Why = b.sharing.gaveOne(now), throttle.ReasonLease
		b.s.sleep(it, now)
		return
	}
	if it.out.State == step.Failed {
		it.failures++
		it.out.Wake = now.Add(step.AgainIn(it.failures))
	} else {
		it.failures = 0
	}
	_, isRange := it.rangeJob()
	if isRange && b.isDaemon() && !b.s.isStopping() && (it.out.State == step.Failed || it.out.State == step.Lost) {
		it.again = false
		b.s.sleep(it, now) // a daemon tries it again, even before the next tick
		return
	}
	b.active--
	it.state = step.Resting
	// As after a tick that came while its claim was given back.
	continues := isRange && it.again && it.out.State == step.Resting && !b.s.isStopping()
	if !continues {
		it.wanted = time.Time{} // else it keeps its place in the slow lane
	}
	if it.out.IsPlain() {
		it.out = step.AtRest
	}
	if !isRange {
		b.endChore(it, now)
		return
	}
	if continues {
		b.makeReady(it, now)
	}
	if b.isDaemon() && (it.out.Held != "" || it.out.State == step.Stopped) {
		b.hold.left = true
	}
	it.again = false
	b.forgetAtRest(it)
}

// endChore forgets a chore, and notes when it may be tried again.
func (b *book) endChore(it *item, now time.Time) {
	delete(b.chores, it.chore)
	if it.out.State == step.Failed {
		b.memory.notBefore[it.chore] = now.Add(choreAgain)
	} else {
		b.memory.Tried[it.chore] = b.c.Clock.Now()
	}
}

// isDaemon reports whether the work continues after each range was swept once.
func (b *book) isDaemon() bool { return b.c.Until.IsZero() }

// stop stops all items that no worker works on: their claims are released.
func (b *book) stop(now time.Time) {
	for _, it := range b.s.queued(b) {
		b.stopItem(it, now)
	}
}

// releaseClaims stops the items that hold a claim, of a target that is held. Chores continue,
// and it is still looked at what is due.
func (b *book) releaseClaims(now time.Time) {
	for _, it := range b.s.queued(b) {
		if it.job.IsClaimed() {
			b.stopItem(it, now)
		}
	}
}

// stopItem stops an item between two of its steps.
func (b *book) stopItem(it *item, now time.Time) {
	b.s.remove(it)
	it.state = step.Running
	it.end(step.Outcome{State: step.Stopped})
	b.stepped(it, now)
}
