package schedule

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/step"
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
	collect(ctx, cfg, targets, func(i int) agenda { return &onSchedule{box: boxes[i], first: first} })
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

// collect runs the scheduler over all targets until their agendas are over. No
// goroutine outlives it.
func collect(ctx context.Context, cfg Config, targets []Target, newAgenda func(i int) agenda) []*book {
	work, cancel := background.Graceful(ctx, cfg.Grace, background.ErrStopped)
	defer cancel()
	s := newScheduler(ctx, work, cfg)
	upkeep, end := context.WithCancel(work)
	var all sync.WaitGroup
	for i, t := range targets {
		b := newBook(t, newAgenda(i))
		s.add(b)
		all.Go(func() { b.open(ctx, upkeep, work, &all) })
	}
	s.run()
	end()
	all.Wait()
	return s.books
}

// open reads the records of a target. Then it keeps the view, the heartbeat and the gate's
// answer fresh until upkeep is done. After that it removes the heartbeat, unless work
// is done, too.
func (b *book) open(ctx, upkeep, work context.Context, all *sync.WaitGroup) {
	err := background.Protect(func() error { return b.agenda.open(ctx, b) })
	if err == nil {
		b.c.Story.Open(b.metered(ctx), b.c.Viewer.View().Cursors)
	}
	b.opening <- err
	b.c.Viewer.Notify()
	if err != nil {
		return
	}
	if gate := b.c.Pacing.Gate; gate != nil {
		all.Go(func() { gate.Run(upkeep) })
	}
	if budget := b.c.Budget; budget != nil {
		all.Go(func() { budget.Run(b.metered(upkeep), b.metered(work)) })
	}
	all.Go(func() { b.c.Watch.Run(b.metered(upkeep), b.metered(work), b.c.Until.IsZero()) })
	if story := b.c.Story; story != nil {
		all.Go(func() { story.Run(b.metered(upkeep)) })
	}
	b.c.Viewer.Run(b.metered(upkeep))
}

// openOnce reads the records, without further tries if that fails.
func openOnce(ctx context.Context, b *book) error {
	if err := b.c.Open(ctx); err != nil {
		return err
	}
	b.c.Until = b.c.Clock.Now()
	if b.c.Cfg.FromStart || !b.c.Cfg.Apply { // a dry run says what lies behind the cursors
		b.c.Rules.ReadSince = b.c.Until.Truncate(time.Microsecond) // as records tell of a read that begins now
	}
	return nil
}

// A oneAudit is the agenda of one round of the audit in every namespace.
type oneAudit struct {
	begun, over bool
	contended   time.Time // since when everything left waits for another client's transaction; zero if not so
}

func (o *oneAudit) open(ctx context.Context, b *book) error { return openOnce(ctx, b) }

func (o *oneAudit) failed(b *book, err error) {
	o.over = true
	b.failOpening(err)
}

func (o *oneAudit) chores() bool { return false }

func (o *oneAudit) isOver(*book) bool { return o.over }

func (o *oneAudit) next(*book, time.Time) time.Duration { return heartbeat }

func (o *oneAudit) look(s *scheduler, b *book, now time.Time) {
	if !o.begun {
		o.begun = true
		b.count.open = true
		for i, ns := range b.view.Namespaces {
			c := plan.Chore{Kind: plan.Audit, Namespace: ns}
			it := &item{job: b.Round(ns), chore: c.Key(), book: b,
				name: c.Name(), order: i, out: step.AtRest, lane: lane{slow: true}}
			b.chores[c] = it
			b.active++
			s.makeReady(it, now)
		}
	}
	waits := b.active > 0
	for _, it := range b.chores {
		waits = waits && it.isContended()
	}
	switch {
	case !waits:
		o.contended = time.Time{}
	case o.contended.IsZero():
		o.contended = now
	}
	stuck := waits && now.Sub(o.contended) >= contendedFor
	if o.over = o.over || stuck || s.ctx.Err() != nil || b.active == 0 || b.isHeldForLong(now); o.over {
		if b.active > 0 {
			b.count.left = 1 // not all of it was read
		}
		b.stop(s, now)
	}
}

func (o *oneAudit) task() string { return "audit" }

func (o *oneAudit) summary(b *book) Summary { return summaryOf(b) }

// failOpening notes that the records of the target could not be read.
func (b *book) failOpening(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, background.ErrStopped) || errors.Is(err, context.DeadlineExceeded) &&
		b.count.failures.Count() > 0 {
		return
	}
	b.count.failures.Add(err)
}
