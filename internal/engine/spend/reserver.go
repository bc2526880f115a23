package spend

import (
	"context"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/view"
	"github.com/reaper-ttl/reaper/metrics"
)

// A reserver reports to the budget what was deleted, and reserves what is wanted, in a goroutine
// of its own.
type reserver struct {
	rules     breaker.Rules
	viewer    *view.Viewer
	log       *journal.Journal
	ledger    *ledger
	allowance *allowance
	unswept   *unsweptCheck
	queue     *countQueue // of what needs a count
	lives     *livesWatch
	last      *lastTry
}

// run reserves what is wanted until ctx is done, and then gives back what is left.
func (r *reserver) run(ctx, work context.Context) {
	if r.rules.On { // even if nothing is due: then the target is no longer unswept
		err := background.Protect(func() error { _, err := r.unswept.admit(work); return err })
		if err != nil && ctx.Err() == nil {
			r.log.Failed("count what is due on unswept ground", "", err) // it is tried again before the first delete
		}
	}
	for wait := idleSlice; ctx.Err() == nil; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-r.allowance.wake:
			wait = r.serve(ctx)
		case <-timer.C:
			wait = r.serve(ctx)
		}
		timer.Stop()
	}
	r.allowance.dropWants()
	if err := background.Protect(func() error { return r.reserve(work, true) }); err != nil { // the rest counts as used
		r.log.Failed("give back what is left of the target's budget", "", err)
	}
}

// serve reserves what is wanted, and returns when it is to be called again at the latest.
func (r *reserver) serve(ctx context.Context) time.Duration {
	err := background.Protect(func() error { return r.reserve(ctx, false) })
	if ctx.Err() != nil {
		return idleSlice
	}
	r.last.note(r.log, err)
	if err != nil {
		return view.ReadAgain
	}
	return idleSlice
}

// reserve reports what was deleted, and reserves what is wanted. What needs a count is
// counted and judged.
func (r *reserver) reserve(ctx context.Context, all bool) error {
	admitted := admitAll
	if r.rules.On && r.allowance.isWanting() {
		var err error
		if admitted, err = r.unswept.admit(ctx); err != nil || admitted == admitNothing {
			return err
		}
	}
	s := r.allowance.draw(all)
	wants := s.wants
	if admitted == admitApproved { // the steps that want more ask again
		wants = r.unswept.parts.only(wants)
	}
	if len(wants)+len(s.reports) == 0 { // lives come with reports
		r.allowance.takeBack(s)
		return nil
	}
	var grants []breaker.Grant
	var unmet []breaker.Want
	var limited, now time.Time
	mayStand, err := r.ledger.change(ctx, func(b breaker.Budget, again bool) breaker.Budget {
		now = r.unswept.counter.now()
		if again {
			s.keepRest()
			r.ledger.own.add(0, 0, s.done())
		}
		approvals := r.viewer.View().Record.Approvals
		b, grants, unmet = b.Take(s.reports).TakeLives(now, s.lives).Reserve(r.rules, now, approvals, wants)
		limited = b.LimitedUntil(r.rules.Limits, now)
		return b
	})
	if err != nil {
		if mayStand {
			s.keepRest()
			r.ledger.own.add(0, 0, s.done())
		}
		r.allowance.takeBack(s)
		return err
	}
	r.ledger.own.add(0, s.done(), 0)
	if rest := r.allowance.put(s, grants, limited, now); rest && !all {
		return r.reserve(ctx, true) // what is unused makes room for what is wanted
	}
	r.queue.want(unmet)
	r.lives.warn(r.ledger.known(), r.unswept.counter.now())
	return nil
}

// A lastTry is what came of the last try to reserve. It is safe for concurrent use.
type lastTry struct {
	now func() time.Time // this process's clock

	mu      sync.Mutex
	failure journal.Failure
}

func (l *lastTry) note(log *journal.Journal, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure.Note(log, l.now(), err)
}

// err returns why the last try failed; nil if it did not.
func (l *lastTry) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure.Err
}

// lasting returns why tries have failed for so long that people should know; nil if they have not.
func (l *lastTry) lasting() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now().Sub(l.failure.Since) > view.FreshFor {
		return l.failure.Err
	}
	return nil
}

// A livesWatch warns if entities live half as long as on the day before.
type livesWatch struct {
	target  string
	log     *journal.Journal
	metrics *metrics.Metrics
	warned  time.Time // when it did so last
}

func (w *livesWatch) warn(b breaker.Budget, now time.Time) {
	before, after, halved := b.HalvedLives(now)
	w.metrics.Halved(w.target, halved)
	if !halved || now.Sub(w.warned) < time.Hour {
		return
	}
	w.warned = now
	w.log.Warn("entities are written with half as long to live as on the day before: if nobody meant that, they"+
		" expire too soon", "life_seconds", after.Seconds(), "before_seconds", before.Seconds())
}
