package schedule

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/step"
)

const (
	// turnLength is how long the turns of all ready jobs take together, for each
	// worker: whatever becomes ready is served within about that.
	turnLength = time.Second
	// longestTurn is how long a step may continue while nobody waits for its worker.
	longestTurn = 5 * time.Second
)

// A Config says how the work is done.
type Config struct {
	Workers int           // steps at the same time, over all targets; at least 1
	Grace   time.Duration // for the pages in flight once the context is done
	Now     func() time.Time
}

// A scheduler runs the steps of all targets, a limited number at a time. One goroutine
// uses it, and that goroutine alone touches the items.
type scheduler struct {
	cfg       Config
	ctx, work context.Context
	*lanes
	at      workers
	results chan result
	idle    []*worker // the one whose step ended last is used next
}

// Workers counts those that are at work, and of these the ones at something slow.
type workers struct{ work, slow int }

// A result is the outcome of a step, or of a release.
type result struct {
	item     *item
	out      step.Outcome
	worker   *worker // of a step; its scratch also has the longest call
	released bool
	cursor   cursor.Cursor // as the release left it
}

// newScheduler returns a scheduler that begins no step once ctx is done. What is in flight
// may continue until work is done.
func newScheduler(ctx, work context.Context, cfg Config) *scheduler {
	return &scheduler{cfg: cfg, ctx: ctx, work: work, lanes: newLanes(), results: make(chan result, cfg.Workers)}
}

// isStopping reports whether no step begins any more.
func (s *scheduler) isStopping() bool { return s.ctx.Err() != nil }

// nextWake returns when the first sleeping item wakes; ok is false if none sleeps.
func (s *scheduler) nextWake() (at time.Time, ok bool) {
	if s.sleeping.Len() == 0 {
		return time.Time{}, false
	}
	return s.sleeping.items[0].out.Wake, true
}

// makeReady puts an item into the queue of its lane. One that takes no worker starts at once.
func (s *scheduler) makeReady(it *item, now time.Time) {
	it.state, it.since = step.Ready, now
	it.owner.note(it)
	if it.apart {
		s.start(it, now)
		return
	}
	s.lanes.add(it, now)
}

// sleep lets an item wait for its wake.
func (s *scheduler) sleep(it *item, now time.Time) {
	it.state, it.since = step.Waiting, now
	it.owner.note(it)
	s.sleeping.put(it)
}

// wakeUp makes those ready whose time has come.
func (s *scheduler) wakeUp(now time.Time) {
	for {
		at, ok := s.nextWake()
		if !ok || at.After(now) {
			return
		}
		s.awake(s.sleeping.pop(), now)
	}
}

// rouse makes items ready before their wake.
func (s *scheduler) rouse(list []*item, now time.Time) {
	for _, it := range inOrder(list) {
		s.remove(it)
		s.awake(it, now)
	}
}

// rouseAll makes all sleeping items of an owner ready, as after a change of their pace.
func (s *scheduler) rouseAll(o owner, now time.Time) { s.rouse(s.sleeping.of(o), now) }

// awake makes an item ready that was waiting, and counts what it waited for.
func (s *scheduler) awake(it *item, now time.Time) {
	it.c.Tally.Waited(it.out.Why, now.Sub(it.since))
	s.makeReady(it, now)
}

// dispatch gives workers to those that have been ready for longest. Reads from the
// start, chores and whatever was slow have at most half of them.
func (s *scheduler) dispatch(now time.Time) {
	for !s.isStopping() && s.at.work < s.cfg.Workers {
		it := s.next(s.at.slow < max(1, s.cfg.Workers/2))
		if it == nil {
			return
		}
		s.start(it, now)
	}
}

// start runs one step of an item.
func (s *scheduler) start(it *item, now time.Time) {
	it.c.Cfg.Metrics.ReadyWait(it.c.Target.Name, now.Sub(it.since))
	todo := it.owner.todo(it)
	it.state = step.Running
	it.owner.note(it)
	s.occupy(it, 1)
	readyOnes := max(1, int(s.crowd.Load())+s.at.work)
	end := now.Add(min(turnLength, turnLength*time.Duration(s.cfg.Workers)/time.Duration(readyOnes)))
	w := s.takeWorker()
	w.it, w.todo, w.end, w.longest = it, todo, end, now.Add(longestTurn)
	w.scratch.Longest = step.NoCall
	ctx, cancel := context.WithCancel(it.c.Metered(s.ctx))
	w.cancel, it.cancel = cancel, cancel
	w.turn = step.Turn{Ctx: ctx, Slow: it.slow, Work: it.c.Metered(s.work), Over: w.over, Scratch: &w.scratch}
	w.begin <- struct{}{}
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

// fileAll handles the results that are there already.
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

// file handles the result of a step or of a release.
func (s *scheduler) file(r result) {
	now := s.cfg.Now()
	if r.released {
		r.item.owner.released(r.item, r.cursor, r.out.Err, now)
		return
	}
	s.occupy(r.item, -1)
	wasSlow := r.item.slow
	if longest := r.worker.scratch.Longest; longest != step.NoCall { // else it is as it was
		r.item.late = longest > step.SlowAfter
	}
	s.free(r.worker)
	r.item.slow = r.out.Slow || r.item.late
	r.item.either = r.out.Either && !r.item.late
	if !r.item.slow {
		r.item.wanted = time.Time{}
	}
	out := r.out // a pointer into r would keep all of it
	r.item.staysBlocked(&out)
	r.item.out, r.item.cancel = &out, nil
	if !wasSlow && r.item.slow && s.slow.Len() >= mostOpen {
		r.item.close()
	}
	r.item.owner.stepped(r.item, now)
}

// release gives a claim back, without a worker.
func (s *scheduler) release(it *item, do func(context.Context) (cursor.Cursor, error)) {
	work := it.c.Metered(s.work)
	go func() {
		background.Deepen()
		it.reportBegin()
		r := result{item: it, released: true}
		r.out.Err = background.Protect(func() (err error) {
			r.cursor, err = do(work)
			return err
		})
		s.results <- r
	}()
}
