package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/site"
)

// Sweep sweeps every target once, and returns how that ended for each.
func Sweep(ctx context.Context, cfg Config, targets []Target) []Summary {
	return once(ctx, cfg, targets, func() oneTime { return new(oneSweep) })
}

// Audit makes a full round of the audit in each target, and returns how that ended for each.
func Audit(ctx context.Context, cfg Config, targets []Target) []Summary {
	return once(ctx, cfg, targets, func() oneTime { return new(oneAudit) })
}

// Serve sweeps at each tick until ctx is done. Each target has a box for its state. If first is
// true, a sweep begins at once instead of at the first tick.
func Serve(ctx context.Context, cfg Config, targets []Target, boxes []*StateBox, first bool) {
	collect(ctx, cfg, targets, func(i int) agenda {
		return &onSchedule{box: boxes[i], first: first, ticks: targets[i].Next}
	})
}

// A oneTime is an agenda that ends with a summary.
type oneTime interface {
	agenda
	summary(b *book) Summary
}

// A timed agenda notes when the work on its target has ended: other targets may take
// longer.
type timed struct {
	oneTime
	ended time.Time
}

func (t *timed) isOver(b *book) bool {
	over := t.oneTime.isOver(b)
	if over && b.active == 0 && t.ended.IsZero() {
		t.ended = b.c.Cfg.Now()
	}
	return over
}

// once runs a new agenda for each target, all at the same time.
func once(ctx context.Context, cfg Config, targets []Target, newAgenda func() oneTime) (list []Summary) {
	agendas := make([]*timed, len(targets))
	books := collect(ctx, cfg, targets, func(i int) agenda {
		agendas[i] = &timed{oneTime: newAgenda()}
		return agendas[i]
	})
	for i, b := range books {
		s := agendas[i].summary(b)
		s.Ended = agendas[i].ended
		list = append(list, s)
	}
	return list
}

// collect schedules the work on all targets until their agendas are over. No goroutine
// outlives it.
func collect(ctx context.Context, cfg Config, targets []Target, newAgenda func(i int) agenda) []*book {
	work, cancel := background.Graceful(ctx, cfg.Grace, background.ErrStopped)
	defer cancel()
	l := loop{s: newScheduler(ctx, work, cfg), notices: make(chan struct{}, 1)}
	fresh, end := context.WithCancel(work)
	u := upkeep{ctx: ctx, fresh: fresh, work: work}
	for i, t := range targets {
		a, opened := newAgenda(i), make(chan error, 1)
		l.books = append(l.books, newBook(l.s, t, a, opened))
		t.Site.Viewer.Notify = func() { background.Wake(l.notices) }
		u.all.Go(func() { u.run(t.Site, a, opened) })
	}
	l.run()
	l.s.dismiss()
	end()
	u.all.Wait()
	return l.books
}

// A loop looks at the books of all targets in turn, and has the scheduler do what they decide.
type loop struct {
	s       *scheduler
	books   []*book
	notices chan struct{} // a view was replaced, or records were read for the first time
}

// run schedules until every book is closed. When the scheduler's context is done no step
// begins any more, and all claims are released.
func (l *loop) run() {
	done := l.s.ctx.Done()
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	for {
		now := l.s.cfg.Now()
		for _, b := range l.books {
			b.look(now)
		}
		l.s.wakeUp(now)
		l.s.dispatch(now)
		if l.isClosed() {
			return
		}
		timer.Reset(l.nextLook(now))
		select {
		case r := <-l.s.results:
			l.s.file(r)
		case <-l.notices:
		case <-timer.C:
		case <-done:
			done = nil
		}
		l.s.fileAll()
	}
}

func (l *loop) isClosed() bool {
	for _, b := range l.books {
		if !b.isClosed() {
			return false
		}
	}
	return true
}

// nextLook returns how long nothing happens by itself.
func (l *loop) nextLook(now time.Time) time.Duration {
	wait := heartbeat
	if wake, ok := l.s.nextWake(); ok {
		wait = min(wait, wake.Sub(now))
	}
	for _, b := range l.books {
		wait = min(wait, b.nextLook(now))
	}
	return max(0, wait)
}

// An upkeep reads the records of all targets, and keeps fresh what steps rely on.
type upkeep struct {
	ctx   context.Context // done: begin nothing
	fresh context.Context // done: nothing needs to be fresh any more
	work  context.Context // done: give up what is in flight
	all   sync.WaitGroup
}

// run reads the records of a target. Then it keeps the view, the heartbeat and the gate's
// answer fresh. At its end it removes the heartbeat, unless time has run out.
func (u *upkeep) run(c *site.Site, a agenda, opened chan<- error) {
	err := background.Protect(func() error { return a.open(u.ctx, c) })
	if err == nil {
		c.Story.Open(c.Metered(u.ctx), c.Viewer.View().Cursors)
	}
	opened <- err
	c.Viewer.Notify()
	if err != nil {
		return
	}
	fresh, work := c.Metered(u.fresh), c.Metered(u.work)
	if gate := c.Pacing.Gate; gate != nil {
		u.all.Go(func() { gate.Run(u.fresh) })
	}
	if budget := c.Budget; budget != nil {
		u.all.Go(func() { budget.Run(fresh, work) })
	}
	u.all.Go(func() { c.Watch.Run(fresh, work, c.Until.IsZero()) })
	if story := c.Story; story != nil {
		u.all.Go(func() { story.Run(fresh) })
	}
	c.Viewer.Run(fresh)
}
