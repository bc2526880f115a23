package schedule

import (
	"container/heap"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/step"
)

const (
	// turnLength is how long the turns of all ready jobs take together, for each
	// worker: whatever becomes ready is served within about that.
	turnLength = time.Second
	// longestTurn is how long a step goes on though nobody waits for its worker.
	longestTurn = 5 * time.Second
	// heartbeat is how often the scheduler looks at clocks and shares.
	heartbeat = time.Second
	// mostOpen is how many visits may wait for the slow lane. Each of them has a claim and
	// readers, 12 to 50 kB; and when a generation has been sealed, all its ranges want to be read
	// from the start at once. The others wait without a claim.
	mostOpen = 256
)

// An item is what the scheduler knows of a job.
type item struct {
	job   step.Job
	chore plan.Chore // that the item stands for, as the book names it; zero for a range
	book  *book
	name  string
	state step.State
	since time.Time     // when it became ready
	order int           // of items that became ready at one instant
	out   *step.Outcome // of the last step; never nil, and [atRest] if there is nothing to tell
	lane
	counted
	places [queues]int // in each queue, from 1 on; 0 if it is not in it

	failures int // in a row
	underWay
}

// An underWay belongs to the step of an item that is running.
type underWay struct {
	cancel context.CancelFunc // ends the step that is running
	again  bool               // a tick came while it was at work: its main reading goes on to a new horizon
	gives  bool               // after its next step the range is given back
	worked time.Time          // when its first step ended; zero if the item came to rest since
}

// rangeJob returns the job of the range that the item stands for; ok is false for a chore.
func (it *item) rangeJob() (j step.Range, ok bool) {
	j, ok = it.job.(step.Range)
	return j, ok
}

// theChore returns the chore that the item stands for, as the book names it; ok is false for a
// range.
func (it *item) theChore() (c plan.Chore, ok bool) {
	_, isRange := it.rangeJob()
	return it.chore, !isRange
}

// A lane says by which lane an item comes to a worker.
type lane struct {
	slow   bool
	either bool      // by the fast one, too: a read from the start must not hold up what is due in its range
	late   bool      // a call of the last step that made any took long; also of one that was not tried yet
	apart  bool      // it takes no worker: what it finds out is for people, and may take long
	wanted time.Time // since when it has been waiting for the slow lane
}

// A Config says how the work is done.
type Config struct {
	Workers int           // steps at the same time, over all targets; at least 1
	Grace   time.Duration // for the pages in flight once the context is done
	Now     func() time.Time
}

// A scheduler runs the steps of all targets, at most so many at a time. One
// goroutine runs it, and it alone touches books and items.
type scheduler struct {
	cfg       Config
	ctx, work context.Context
	notices   chan struct{} // views were replaced, or records read first
	books     []*book
	lanes
	at      workers
	crowd   atomic.Int64 // ready items
	results chan result
	spare   []*step.Scratch // of steps that ended: the last one is used next
}

// Lanes are the items that wait.
type lanes struct {
	fast     queue
	slow     queue // open visits, and chores that make none
	unopened queue // ranges and audits that wait for the slow lane, and are not claimed
	sleeping queue
}

// Workers counts those that are at work, and of these the ones at something slow.
type workers struct{ work, slow int }

// A result is the outcome of a step, or of a release.
type result struct {
	item     *item
	out      step.Outcome
	scratch  *step.Scratch // of a step; what it took at most stands there
	released bool
	cursor   cursor.Cursor // as the release left it
}

func newScheduler(ctx, work context.Context, cfg Config) *scheduler {
	s := &scheduler{cfg: cfg, ctx: ctx, work: work, notices: make(chan struct{}, 1),
		results: make(chan result, cfg.Workers)}
	s.fast = queue{number: fastQueue, before: readyFirst}
	s.slow = queue{number: slowQueue, before: slowFirst}
	s.unopened = queue{number: unopenedQueue, before: slowFirst}
	s.sleeping = queue{number: sleepingQueue, before: wakesFirst}
	return s
}

// add adds a target, before run.
func (s *scheduler) add(b *book) {
	s.books = append(s.books, b)
	b.c.Viewer.Notify = func() {
		background.Wake(s.notices)
	}
}

// run schedules until every book is closed. When ctx is done no step begins any
// more, and what is claimed is given back.
func (s *scheduler) run() {
	done := s.ctx.Done()
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	for {
		now := s.cfg.Now()
		for _, b := range s.books {
			b.look(s, now)
		}
		s.wakeUp(now)
		s.dispatch(now)
		if s.closed() {
			return
		}
		timer.Reset(s.nextWake(now))
		select {
		case r := <-s.results:
			s.file(r)
		case <-s.notices:
		case <-timer.C:
		case <-done:
			done = nil
		}
		s.fileAll()
	}
}

// fileAll files the results that are there already.
func (s *scheduler) fileAll() {
	for {
		select {
		case r := <-s.results:
			s.file(r)
		default:
			return
		}
	}
}

func (s *scheduler) closed() bool {
	for _, b := range s.books {
		if !b.isClosed() {
			return false
		}
	}
	return true
}

// nextWake returns how long nothing happens by itself.
func (s *scheduler) nextWake(now time.Time) time.Duration {
	wait := heartbeat
	if s.sleeping.Len() > 0 {
		wait = min(wait, s.sleeping.items[0].out.Wake.Sub(now))
	}
	for _, b := range s.books {
		wait = min(wait, b.nextLook(now))
	}
	return max(0, wait)
}

// makeReady puts an item into the queue of its lane.
func (s *scheduler) makeReady(it *item, now time.Time) {
	it.state, it.since = step.Ready, now
	it.book.note(it)
	if it.apart {
		s.start(it, now)
		return
	}
	if it.slow {
		if it.wanted.IsZero() {
			it.wanted = now
		}
		if it.isUnopened() {
			heap.Push(&s.unopened, it)
		} else {
			heap.Push(&s.slow, it)
		}
	}
	if !it.slow || it.either {
		heap.Push(&s.fast, it)
	}
	s.crowd.Add(1)
}

// wakeUp makes those ready whose time has come.
func (s *scheduler) wakeUp(now time.Time) {
	for s.sleeping.Len() > 0 && !s.sleeping.items[0].out.Wake.After(now) {
		it, _ := heap.Pop(&s.sleeping).(*item)
		s.makeAwake(it, now)
	}
}

// makeAwake makes an item ready that was waiting, and counts what it waited for.
func (s *scheduler) makeAwake(it *item, now time.Time) {
	it.book.c.Tally.Waited(it.out.Why, now.Sub(it.since))
	s.makeReady(it, now)
}

// rouseAll makes those of a book ready that wait, as after a change of their pace.
func (s *scheduler) rouseAll(b *book, now time.Time) {
	for _, it := range inOrder(s.sleeping.of(b)) {
		s.sleeping.remove(it)
		s.makeAwake(it, now)
	}
}

// queued lists the items of a book that no worker is at and that do not rest.
func (s *scheduler) queued(b *book) []*item {
	list := slices.Concat(s.slow.of(b), s.unopened.of(b), s.sleeping.of(b))
	for _, it := range s.fast.of(b) {
		if !s.slow.has(it) && !s.unopened.has(it) {
			list = append(list, it)
		}
	}
	return inOrder(list)
}

// dispatch gives workers to those that have been ready for longest. Reads from the
// start, chores and whatever was slow have at most half of them.
func (s *scheduler) dispatch(now time.Time) {
	for s.ctx.Err() == nil && s.at.work < s.cfg.Workers {
		it := s.next()
		if it == nil {
			return
		}
		s.crowd.Add(-1)
		s.start(it, now)
	}
}

// next takes the item that is served next out of its queue; nil if no item may run.
func (s *scheduler) next() *item {
	slow := s.nextSlow()
	slowMay := slow != nil && s.at.slow < max(1, s.cfg.Workers/2)
	switch {
	case s.fast.Len() == 0 && !slowMay:
		return nil
	case s.fast.Len() == 0, slowMay && !s.fast.items[0].since.Before(slow.items[0].wanted):
		it, _ := heap.Pop(slow).(*item)
		s.fast.remove(it)
		it.wanted = time.Time{}
		return it
	}
	it, _ := heap.Pop(&s.fast).(*item)
	s.slow.remove(it)
	s.unopened.remove(it)
	it.slow = false
	return it
}

// nextSlow returns the queue whose first item is the next of the slow lane; nil if both are
// empty. While enough visits are open, these go on first.
func (s *scheduler) nextSlow() *queue {
	switch {
	case s.slow.Len() == 0 && s.unopened.Len() == 0:
		return nil
	case s.unopened.Len() == 0, s.slow.Len() >= mostOpen,
		s.slow.Len() > 0 && slowFirst(s.slow.items[0], s.unopened.items[0]):
		return &s.slow
	}
	return &s.unopened
}

// isUnopened reports whether an item is a range or an audit that has no visit yet.
func (it *item) isUnopened() bool {
	if c, isChore := it.theChore(); isChore && c.Kind != plan.Audit {
		return false
	}
	return !it.isClaimed()
}

// start runs one step of an item.
func (s *scheduler) start(it *item, now time.Time) {
	it.book.c.Cfg.Metrics.ReadyWait(it.book.c.Target.Name, now.Sub(it.since))
	todo := it.book.todo(it)
	it.state = step.Running
	it.book.note(it)
	s.occupy(it, 1)
	readyOnes := max(1, int(s.crowd.Load())+s.at.work)
	end := now.Add(min(turnLength, turnLength*time.Duration(s.cfg.Workers)/time.Duration(readyOnes)))
	longest := now.Add(longestTurn)
	scratch := s.takeScratch()
	ctx, cancel := context.WithCancel(it.book.metered(s.ctx))
	it.cancel = cancel
	t := step.Turn{Ctx: ctx, Slow: it.slow, Work: it.book.metered(s.work), Scratch: scratch,
		Over: func() bool {
			now := s.cfg.Now()
			return s.crowd.Load() > 0 && !now.Before(end) || !now.Before(longest)
		}}
	go func() {
		defer cancel()
		background.Deepen()
		it.begins()
		var out step.Outcome
		err := background.Protect(func() error { out = it.job.Step(t, todo); return nil })
		if err != nil {
			scratch.Ahead.Drop()
			out = it.job.End(step.Outcome{State: step.Failed, Err: err})
		}
		s.results <- result{item: it, out: out, scratch: scratch}
	}()
}

// takeScratch returns what a step works with: that of the step that ended last. So
// memory goes by how many steps there were at one time, and not by how many there
// may be.
func (s *scheduler) takeScratch() *step.Scratch {
	n := len(s.spare) - 1
	if n < 0 {
		return &step.Scratch{Longest: step.NoCall}
	}
	last := s.spare[n]
	s.spare = s.spare[:n]
	last.Longest = step.NoCall
	return last
}

// occupy adds to the workers that are at work, or with -1 takes from them.
func (s *scheduler) occupy(it *item, n int) {
	if it.apart {
		return
	}
	s.at.work += n
	if it.slow {
		s.at.slow += n
	}
}

// file takes in what became of a step or of a release.
func (s *scheduler) file(r result) {
	now := s.cfg.Now()
	if r.released {
		r.item.book.released(s, r, now)
		return
	}
	s.occupy(r.item, -1)
	s.spare = append(s.spare, r.scratch)
	wasSlow := r.item.slow
	if r.scratch.Longest != step.NoCall { // else it is as it was
		r.item.late = r.scratch.Longest > step.SlowAfter
	}
	r.item.slow = r.out.Slow || r.item.late
	r.item.either = r.out.Either && !r.item.late
	if !r.item.slow {
		r.item.wanted = time.Time{}
	}
	out := r.out // a pointer into r would keep all of it
	r.item.out, r.item.cancel = &out, nil
	if !wasSlow && r.item.slow && s.slow.Len() >= mostOpen {
		r.item.close()
	}
	r.item.book.stepped(s, r.item, now)
}

// close ends a visit that has come to the slow lane while enough others wait there. The
// range comes back from the release, and waits without a claim.
func (it *item) close() {
	if j, isRange := it.rangeJob(); isRange && j.MayEnd() &&
		it.out.State == step.Ready && !it.either {
		it.end(step.Outcome{State: step.Resting})
		it.again = true
	}
}

// end gives up what the item holds between two steps.
func (it *item) end(out step.Outcome) {
	out = it.job.End(out)
	it.out = &out
}

// begins tells who asked for it that a step or a release of the item begins.
func (it *item) begins() {
	if told := it.book.c.Cfg.Progress.Begin; told != nil {
		told(it.book.c.Target.Name, it.name)
	}
}

// sleep lets an item wait.
func (s *scheduler) sleep(it *item, now time.Time) {
	it.state, it.since = step.Waiting, now
	it.book.note(it)
	heap.Push(&s.sleeping, it)
}

// release gives a claim back, off the workers.
func (s *scheduler) release(it *item, do func(context.Context) (cursor.Cursor, error)) {
	work := it.book.metered(s.work)
	go func() {
		background.Deepen()
		it.begins()
		r := result{item: it, released: true}
		r.out.Err = background.Protect(func() (err error) {
			r.cursor, err = do(work)
			return err
		})
		s.results <- r
	}()
}

// remove takes an item out of whatever queue it is in.
func (s *scheduler) remove(it *item) {
	fast, slow, unopened := s.fast.remove(it), s.slow.remove(it), s.unopened.remove(it)
	if fast || slow || unopened {
		s.crowd.Add(-1)
	}
	s.sleeping.remove(it)
}
