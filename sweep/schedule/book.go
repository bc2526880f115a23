package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/chore"
	"github.com/reaper-ttl/reaper/sweep/journal"
	"github.com/reaper-ttl/reaper/sweep/pace"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/site"
	"github.com/reaper-ttl/reaper/sweep/step"
	"github.com/reaper-ttl/reaper/sweep/visit"
	"github.com/reaper-ttl/reaper/throttle"
)

// A book is what this process remembers of one target between steps. The
// scheduler's goroutine alone touches it.
type book struct {
	items
	c      *site.Site
	agenda agenda
	Target
	opening chan error // what came of the first read of the records
	plan    *plan.Plan
	view    *plan.View // that the plan was made of; nil before the first
	memory  memory
	count   sweepCount
	held    held
	orders  pace.Orders // that were in force when the waiting ranges were told how long
	dirty   bool        // something happened that the plan does not know
	looked  time.Time   // when clocks and shares were looked at last
}

// The items of a book. A range without one is at rest, and needs nothing that this
// process knows of.
type items struct {
	tagCounts
	ranges map[shardquery.Range]*item
	chores map[plan.Chore]*item
	active int // those that do not rest, and releases under way
	sharing
	// visited says that a tick has asked what each of the ranges needs.
	visited bool
}

// A Target is what the schedule needs to know of a target.
type Target struct {
	Site *site.Site
	// Range, Chore and Round make the jobs: of a range, of a chore, and of a full round of the audit in
	// one namespace.
	Range func(shardquery.Range) step.Range
	Chore func(plan.Chore) step.Job
	Round func(namespace string) step.Job
	// Next returns the next tick after an instant; [Serve] alone asks. It goes by the wall clock.
	Next func(time.Time) time.Time
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
	// task names what the agenda does, for the history.
	task() string
	// isOver reports whether the work on the target has ended.
	isOver(b *book) bool
}

// A memory is what was learned from steps since the view was read.
type memory struct {
	plan.Book
	changed   []cursor.ID              // the book's own cursors that the plan does not know
	ownAt     map[cursor.ID]time.Time  // when each of them was written
	notBefore map[plan.Chore]time.Time // when a chore that failed is tried again
}

// choreAgain is how soon a chore that failed is tried again.
const choreAgain = 30 * time.Second

// A held says what holds the target as a whole, and since when.
type held struct {
	why   throttle.Reason
	since time.Time
	fault error // if a record is the reason
	left  bool  // ranges rest that were only looked at, or given back
}

func newBook(t Target, a agenda) *book {
	t.Site.Story.For(a.task())
	return &book{c: t.Site, Target: t, agenda: a, opening: make(chan error, 1),
		items: items{tagCounts: newTagCounts(), ranges: map[shardquery.Range]*item{}, chores: map[plan.Chore]*item{}},
		memory: memory{Book: plan.Book{Own: map[cursor.ID]cursor.Packed{}, Tried: map[plan.Chore]time.Time{}},
			ownAt: map[cursor.ID]time.Time{}, notBefore: map[plan.Chore]time.Time{}}}
}

// metered returns a context in which the target is billed.
func (b *book) metered(ctx context.Context) context.Context {
	return b.c.Metered(ctx)
}

// look takes in what is new, and does what is due.
func (b *book) look(s *scheduler, now time.Time) {
	if b.isClosed() || b.view == nil && !b.isOpen() {
		return
	}
	if v := b.c.Viewer.View(); v != b.view {
		b.follow(s, v, now)
	}
	if now.Sub(b.looked) >= heartbeat || now.Before(b.looked) {
		b.looked = now
		b.c.Pacing.RenewShares()
		b.checkHold(s, now)
		b.share(s, now)
		b.c.Publish()
		b.c.Story.Look(now, b.held.why, b.active > 0)
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
	old := b.view
	b.view = v
	b.c.Pacing.Follow(v)
	b.checkHold(s, now)
	if now := b.c.Pacing.Orders(); now != b.orders {
		b.orders = now
		s.rouseAll(b, b.c.Cfg.Now()) // their tokens come faster, or slower
	}
	b.memory.forgetOwn(old, v)
	b.replan(s, now)
	b.rouseReleased(s, now)
}

// forgetOwn forgets the book's own cursors that were written before a view's were read.
func (m *memory) forgetOwn(old, v *plan.View) {
	if old != nil {
		if read, ok := v.Cursors.Since(old.Cursors); ok {
			for _, id := range read {
				m.forgetIfRead(v, id)
			}
			return
		}
	}
	for id := range m.ownAt {
		m.forgetIfRead(v, id)
	}
}

func (m *memory) forgetIfRead(v *plan.View, id cursor.ID) {
	at, own := m.ownAt[id]
	if own && v.CursorSent(id).After(at) { // be it that the record is gone
		m.dropOwn(id)
		m.changed = append(m.changed, id)
	}
}

func (m *memory) dropOwn(id cursor.ID) {
	delete(m.Own, id)
	delete(m.ownAt, id)
}

// rouseReleased makes the ranges ready that waited for another process and, as cursors and
// heartbeats show, need not any more.
func (b *book) rouseReleased(s *scheduler, now time.Time) {
	var list []*item
	for it := range b.elsewhere {
		if j, ok := it.rangeJob(); ok && it.out.State != step.Given && b.c.Keeper.Wait(b.plan.Cursor(j.Range())) == 0 {
			list = append(list, it)
		}
	}
	for _, it := range inOrder(list) {
		s.remove(it)
		s.makeAwake(it, now)
	}
}

// checkHold finds out whether the target is held, and tells its pacers.
func (b *book) checkHold(s *scheduler, now time.Time) {
	why := b.c.HeldBy()
	b.held.fault = nil
	if why == throttle.ReasonRecord {
		b.held.fault = cmp.Or(b.c.RecordFault(), site.ErrUnheard) // it may have passed this moment
	}
	b.explain()
	if !b.c.Pacing.Hold(why) {
		if why == "" && b.held.left { // it ended before anybody saw it, or while they came to rest
			b.resume(s, now)
		}
		return
	}
	if b.held.why == "" {
		b.held.since = now
	}
	since := b.held.since
	if b.held.why = why; why == "" {
		b.held.since = time.Time{}
		s.rouseAll(b, now)
		b.resume(s, now)
	}
	b.c.TellHold(why, since, b.held.fault)
}

// explain has the heartbeat say what is wrong, for who asks for the status from elsewhere.
// Whatever else holds a target can be seen in the records, or asked.
func (b *book) explain() {
	text := ""
	if b.held.fault != nil {
		text = b.held.fault.Error()
	}
	b.c.Keeper.Pulse.Explain(text)
}

// resume makes the ranges ready that were given back, or only looked at, while the target
// was held: the next tick may be hours away.
func (b *book) resume(s *scheduler, now time.Time) {
	b.held.left = false
	var list []*item
	for _, it := range b.ranges {
		if it.state == step.Resting && (it.out.Held != "" || it.out.State == step.Stopped) && s.ctx.Err() == nil {
			list = append(list, it)
		}
	}
	for _, it := range inOrder(list) {
		b.makeReady(s, it, now)
	}
}

// replan makes a new plan, and begins the chores that are due.
func (b *book) replan(s *scheduler, now time.Time) {
	b.dirty = false
	last := b.plan
	if last == nil {
		b.plan = plan.New(b.c.Rules, b.view, b.memory.Book, b.c.Clock.Now())
	} else {
		b.plan = last.Next(b.view, b.memory.changed, b.c.Clock.Now())
		b.followRanges(last)
	}
	b.memory.changed = b.memory.changed[:0]
	if !b.agenda.chores() || s.ctx.Err() != nil {
		return
	}
	for i, c := range b.plan.Chores() {
		b.addChore(s, c, i, now)
	}
}

// followRanges forgets the ranges that are no more. Those that are new have to be
// visited before anybody knows how far the target is swept.
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

// forgetProgress forgets what was told of a range to those that watch it.
func (b *book) forgetProgress(it *item) {
	b.c.Target.Watchdog.Forget(it.name)
	b.c.Guards.Forget(it.name)
}

// forgetAtRest forgets an item at rest of which there is nothing to remember: its range
// is no more, or needs nothing by its cursor. A range of which calls were slow is
// remembered for that.
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
	b.settleCount(it, false)
	b.forgetProgress(it)
	b.leaveOut(it)
	delete(b.ranges, j.Range())
}

// estimateDue counts what is due for who watches the progress.
func (b *book) estimate(s *scheduler, now time.Time) {
	if b.c.Cfg.Progress.Estimate {
		b.addChore(s, plan.Chore{Kind: chore.Estimate}, 0, now)
	}
}

// cancelChores ends the chores that are at work, which are only for people: they
// hold up nothing.
func (b *book) cancelChores(kinds ...plan.Kind) {
	for c, it := range b.chores {
		if slices.Contains(kinds, c.Kind) && it.state == step.Running {
			it.cancel()
		}
	}
}

// addChore makes a chore ready, unless it is at work already.
func (b *book) addChore(s *scheduler, c plan.Chore, order int, now time.Time) {
	if b.chores[c.Key()] != nil || now.Before(b.memory.notBefore[c.Key()]) {
		return
	}
	it := &item{job: b.Chore(c), chore: c.Key(), book: b, name: c.Name(), order: order, out: step.AtRest,
		lane: lane{slow: true, apart: onlyCounts(c.Kind)}}
	b.chores[c.Key()] = it
	b.active++
	s.makeReady(it, now)
}

// onlyCounts reports whether a chore is for a count that may take long. It takes no worker.
func onlyCounts(k plan.Kind) bool {
	return k == plan.Look || k == chore.Estimate || k == chore.BehindKind
}

// todo returns what the plan says of an item now.
func (b *book) todo(it *item) step.Todo {
	if j, isRange := it.rangeJob(); isRange {
		r := j.Range()
		if it.again {
			it.again = false
			j.GoOn()
		}
		if !b.plan.Has(r) { // it waited while its generation retired
			return step.Todo{Cursor: b.plan.Cursor(r), Plan: b.plan}
		}
		return step.Todo{Need: b.plan.Range(r), Cursor: b.plan.Cursor(r), Plan: b.plan, Wanted: b.working}
	}
	c := it.chore
	if c.Kind == plan.Audit && !it.job.IsClaimed() {
		return step.Todo{Cursor: b.plan.AuditCursor(c.Namespace), Spans: b.plan.AuditSpans(c.Namespace), Plan: b.plan}
	}
	return step.Todo{Plan: b.plan, Chore: b.choreView(c.Kind)}
}

// choreView returns what the plan of a chore is made of. Those that read ranges from their
// cursors on get a copy of the book's, which go on changing.
func (b *book) choreView(k plan.Kind) (v step.ChoreView) {
	v = step.ChoreView{View: b.view, Now: b.plan.Now()}
	if onlyCounts(k) {
		v.Book.Own = maps.Clone(b.memory.Own)
	}
	return v
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
	var list []shardquery.Range
	for r := range b.plan.All() {
		if b.ranges[r] != nil || b.plan.Range(r).Read {
			list = append(list, r)
		}
	}
	if !b.visited {
		b.visited = true
		b.forgetOthers(list)
	}
	for i, r := range plan.Order(list, store.Chance(s.ctx)) {
		b.tick(s, r, i, now)
	}
}

// forgetOthers forgets what an earlier sweep has told of ranges that need nothing any
// more, or are no more.
func (b *book) forgetOthers(needed []shardquery.Range) {
	told := b.c.Target.Watchdog.Names()
	if len(told) == 0 {
		return
	}
	names := make(map[string]bool, len(needed))
	for _, r := range needed {
		names[b.c.Rules.ID(r).Key()] = true
	}
	b.c.Target.Watchdog.Forget(slices.DeleteFunc(told, func(name string) bool { return names[name] })...)
}

// tick makes a range ready that rests and needs anything, and lets one that is at work
// go on to the horizon of now.
func (b *book) tick(s *scheduler, r shardquery.Range, order int, now time.Time) {
	need, it := b.plan.Range(r), b.ranges[r]
	if it == nil {
		it = b.newItem(r, need)
	}
	j, isRange := it.rangeJob()
	switch {
	case it.state == step.Resting && need.Read:
		it.order, it.slow = order, it.late || need.IsSlow()
		b.makeReady(s, it, now)
	case it.state == step.Resting:
		visit.SawDue(b.c, it.name, time.Time{}, 0) // nothing in it is due: it is left alone
		b.settleCount(it, false)
		b.forgetAtRest(it)
	case it.state == step.Ready && isRange && it.isUnopened() && it.slow && !it.late && !need.IsSlow():
		it.slow = false // what is due goes first, again
		s.remove(it)
		s.makeReady(it, now)
	case it.state == step.Waiting && isRange && j.AtHorizon():
		it.again, it.slow = true, it.late
		s.remove(it)
		s.makeAwake(it, now)
	case it.state == step.Ready && isRange && j.AtHorizon() && !it.again: // else it keeps its place
		it.again, it.slow = true, it.late
		s.remove(it)
		s.makeReady(it, now)
	default:
		it.again = true
	}
}

// newItem returns the item of a range with which this process has to do from now on.
func (b *book) newItem(r shardquery.Range, need plan.Need) *item {
	it := &item{job: b.Target.Range(r), book: b, name: b.c.Rules.ID(r).Key(), out: step.AtRest}
	if next := b.plan.Cursor(r).Stock.Next; need.Inventory && !need.FromStart() && !next.IsZero() {
		it.reached = next.Add(-r.Resolution()) // what is left begins there
	}
	b.ranges[r] = it
	return it
}

// stepped takes in what became of a step.
func (b *book) stepped(s *scheduler, it *item, now time.Time) {
	if it.givesBack() {
		it.end(step.Outcome{State: step.Given})
	}
	switch goesOn := it.out.State == step.Ready || it.out.State == step.Waiting; {
	case !goesOn:
		it.gives, it.worked = false, time.Time{}
	case it.worked.IsZero():
		it.worked = now
	}
	out := *it.out
	b.noteOutcome(it, out)
	if out.Moved != nil {
		b.noteOwn(*out.Moved, now)
	}
	if out.Release != nil {
		b.active++
		s.release(it, out.Release)
	}
	switch {
	case out.State == step.Ready, out.State == step.Waiting && it.ticked():
		if it.ticked() { // what has fallen due goes first
			it.slow, it.either = it.late, false
		}
		s.makeReady(it, now)
	case out.State == step.Waiting:
		s.sleep(it, now)
	case out.Release == nil:
		b.finishItem(s, it, now)
	}
	if it.out != step.AtRest {
		it.out.Release, it.out.Moved = nil, nil // else they keep the visit
	}
	b.note(it)
	b.dirty = true
}

// ticked reports whether a tick came while the range was in work, and its normal reading
// has ended.
func (it *item) ticked() bool {
	j, isRange := it.rangeJob()
	return it.again && isRange && j.AtHorizon()
}

// finishItem notes that an item has nothing to do.
func (b *book) finishItem(s *scheduler, it *item, now time.Time) {
	if it.out.State == step.Given {
		b.gave, b.given = now, b.given+1
		it.out.Wake, it.out.Why = now.Add(b.c.Target.Lease/6), throttle.ReasonLease // somebody should have it by then
		s.sleep(it, now)
		return
	}
	c, isChore := it.theChore()
	if it.out.State == step.Failed {
		it.failures++
		it.out.Wake = now.Add(visit.AgainIn(it.failures))
	} else {
		it.failures = 0
	}
	if !isChore && b.c.Until.IsZero() && s.ctx.Err() == nil && (it.out.State == step.Failed || it.out.State == step.Lost) {
		it.again = false
		s.sleep(it, now) // a daemon tries it again, also before the next tick
		return
	}
	b.active--
	it.state = step.Resting
	// As after a tick that came while its claim was given back.
	goesOn := !isChore && it.again && it.out.State == step.Resting && s.ctx.Err() == nil
	if !goesOn {
		it.wanted = time.Time{} // else it keeps its place in the slow lane
	}
	if it.out.IsPlain() {
		it.out = step.AtRest
	}
	if !isChore {
		if goesOn {
			b.makeReady(s, it, now)
		}
		if b.c.Until.IsZero() && (it.out.Held != "" || it.out.State == step.Stopped) {
			b.held.left = true
		}
		it.again = false
		b.forgetAtRest(it)
		return
	}
	delete(b.chores, c)
	if it.out.State == step.Failed {
		b.memory.notBefore[c] = now.Add(choreAgain)
	} else {
		b.memory.Tried[c] = b.c.Clock.Now()
	}
}

// noteOwn keeps a cursor as this process has written it, if it did.
func (b *book) noteOwn(c cursor.Cursor, now time.Time) {
	if c.Revision != "" {
		b.memory.Own[c.ID], b.memory.ownAt[c.ID] = cursor.Pack(c), now
		b.memory.changed = append(b.memory.changed, c.ID)
	}
}

// released takes in that a claim was given back.
func (b *book) released(s *scheduler, r result, now time.Time) {
	b.active--
	if err := r.out.Err; err != nil {
		b.c.Viewer.WantCursor(r.cursor.ID) // nobody knows how the record stands
		b.c.Story.LostCursor()
		if !errors.Is(err, cursor.ErrLost) && s.ctx.Err() == nil {
			b.fail(r.item, err) // the next sweep repeats what was not saved
		}
	} else {
		b.noteOwn(r.cursor, now)
	}
	b.dirty = true
	b.finishItem(s, r.item, now)
}

// stop stops all items on which no worker works: their claims are released.
func (b *book) stop(s *scheduler, now time.Time) {
	b.stopItems(s, now, func(*item) bool { return true })
}

// releaseClaims stops the items that hold a claim, of a target that is held. Chores go on,
// and what is due is still looked at.
func (b *book) releaseClaims(s *scheduler, now time.Time) {
	b.stopItems(s, now, (*item).isClaimed)
}

// stopItems stops those of the wanted items on which no worker works.
func (b *book) stopItems(s *scheduler, now time.Time, wanted func(*item) bool) {
	for _, it := range s.queued(b) {
		if wanted(it) {
			b.stopItem(s, it, now)
		}
	}
}

// isClaimed reports whether an item that no worker is at holds a claim.
func (it *item) isClaimed() bool { return it.job.IsClaimed() }

// stopItem stops an item between two of its steps.
func (b *book) stopItem(s *scheduler, it *item, now time.Time) {
	s.remove(it)
	it.state = step.Running
	it.end(step.Outcome{State: step.Stopped})
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
	failures journal.Failures
}

// openCount begins to count a sweep of the ranges that do not rest. Those that a live
// process holds are that one's.
func (b *book) openCount(now time.Time) {
	b.count = sweepCount{open: true, began: now, horizon: b.c.Horizon()}
	for _, it := range b.ranges {
		it.pending = it.state != step.Resting && !(it.state == step.Waiting && it.out.Theirs)
		if it.pending {
			b.count.pending++
		}
		b.note(it)
	}
	b.count.ranges = b.count.pending
	b.c.Cfg.Progress.Ranges.Add(int64(b.count.ranges))
}

// noteOutcome counts what a step says of the sweep that is counted.
func (b *book) noteOutcome(it *item, out step.Outcome) {
	if out.Err != nil {
		b.fail(it, out.Err)
	}
	if out.Reached.After(it.reached) {
		it.reached = out.Reached
	}
	if !it.pending {
		return
	}
	_, isRange := it.rangeJob()
	switch {
	case !isRange:
	case out.Theirs, !out.Reached.IsZero() && !out.Reached.Before(b.count.horizon):
		b.settleCount(it, false)
	case out.State == step.Resting && !it.again: // else it goes on at once
		b.settleCount(it, out.Held != "")
	case out.State == step.Failed, out.State == step.Stopped, out.State == step.Lost:
		b.settleCount(it, true)
	}
}

// settleCount notes that the counted sweep waits for a range no longer.
func (b *book) settleCount(it *item, left bool) {
	if !it.pending {
		return
	}
	it.pending = false
	b.note(it)
	b.count.pending--
	if left {
		b.count.left++
	} else {
		b.c.Cfg.Progress.RangesDone.Add(1)
	}
}

// fail keeps an error for the result of the sweep, and tells the journal.
func (b *book) fail(it *item, err error) {
	b.count.failures.Add(err)
	b.c.Story.Failed(err)
	if _, isRange := it.rangeJob(); isRange {
		b.c.Log.Failed("sweep a range", it.name, err)
	} else {
		b.c.Log.Failed(it.name, "", err)
	}
}

// err returns why the sweep that was counted failed; nil if it did not.
func (c *sweepCount) err() error {
	err := c.failures.Err()
	if err == nil || c.ranges == 0 { // it did not come as far as its ranges
		return err
	}
	return fmt.Errorf("%d failures in %d ranges: %w", c.failures.Count(), c.ranges, err)
}
