package spend

import (
	"context"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/view"
)

// rouse wakes the goroutine that reserves.
func (s *Spender) rouse() {
	background.Wake(s.wake)
}

// Run reserves what is wanted until ctx is done, and then gives back what is left.
func (s *Spender) Run(ctx, work context.Context) {
	var judging sync.WaitGroup
	judging.Go(func() { s.judge.run(ctx) })
	defer judging.Wait()
	if s.Rules.On { // also if nothing is due: then what comes to be due later is no unswept ground
		err := background.Protect(func() error { _, err := s.judge.enterGround(work); return err })
		if err != nil && ctx.Err() == nil {
			s.Log.Failed("count what is due on unswept ground", "", err) // it is tried again before the first delete
		}
	}
	for wait := idleSlice; ctx.Err() == nil; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
			wait = s.serve(ctx)
		case <-timer.C:
			wait = s.serve(ctx)
		}
		timer.Stop()
	}
	s.mu.Lock()
	clear(s.wants)
	s.mu.Unlock()
	if err := background.Protect(func() error { return s.reserve(work, true) }); err != nil { // they count as not used
		s.Log.Failed("give back what is left of the target's budget", "", err)
	}
}

// serve reserves what is wanted, and returns when it is to be called again at the latest.
func (s *Spender) serve(ctx context.Context) time.Duration {
	err := background.Protect(func() error { return s.reserve(ctx, false) })
	if ctx.Err() != nil {
		return idleSlice
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold.failure.Note(s.Log, s.Now(), err)
	if err != nil {
		return view.ReadAgain
	}
	return idleSlice
}

// isWanting reports whether a step wants something.
func (s *Spender) isWanting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wants) > 0
}

// asked are the wants and reports of one reservation.
type asked struct {
	wants   []breaker.Want
	reports []breaker.Report
	lives   map[int]int64
}

// ask lists what is wanted and what is to be reported. What was used last long ago is given
// back, or with all of it everything.
func (s *Spender) ask(all bool) (a asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	for _, k := range inKeyOrder(s.wants) {
		mine, n := s.sliceLocked(k), s.wants[k]
		switch since := now.Sub(mine.at); {
		case since < shortSlice && since > 0:
			mine.size = min(2*mine.size, largestSlice)
		case since > longSlice:
			mine.size = max(mine.size/2, int64(s.Page))
		}
		if s.isOverLocked(mine) { // it is given back below
			n += mine.left
		}
		a.wants = append(a.wants, breaker.Want{Key: k, N: max(0, n-mine.left), Max: max(n, mine.size)})
	}
	clear(s.wants)
	a.lives, s.lives.counts = s.lives.counts, map[int]int64{}
	for _, k := range inKeyOrder(s.slices) {
		mine := s.slices[k]
		r := breaker.Report{Key: k, Done: mine.done, Charged: mine.charged, Granted: mine.granted}
		if all || now.Sub(mine.used) > idleSlice || s.isOverLocked(mine) {
			r.Rest = mine.left
		}
		if r.Done > 0 || r.Rest > 0 || r.Charged > 0 {
			a.reports = append(a.reports, r)
			mine.done -= r.Done
			mine.left -= r.Rest
			mine.charged -= r.Charged
		}
	}
	return a
}

// done returns how many deletes are reported.
func (a asked) done() (n int64) {
	for _, r := range a.reports {
		n += r.Done
	}
	return n
}

// keepRest leaves out what is given back: if that were taken in twice, more would go than was
// granted. What was deleted is rather reported twice than not at all.
func (a asked) keepRest() {
	for i := range a.reports {
		a.reports[i].Rest = 0
	}
}

// unask takes back what was asked for, so that the next reservation does: nothing was saved.
func (s *Spender) unask(a asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range a.wants {
		s.wants[w.Key] = max(s.wants[w.Key], w.N)
		s.slices[w.Key].wanted = false
	}
	for _, r := range a.reports {
		s.slices[r.Key].done += r.Done
		s.slices[r.Key].left += r.Rest
		s.slices[r.Key].charged += r.Charged
	}
	for bucket, n := range a.lives {
		s.lives.counts[bucket] += n
	}
}

// reserve reports what was deleted, and reserves what is wanted. What needs a count is
// counted and judged.
func (s *Spender) reserve(ctx context.Context, all bool) error {
	ground := open
	if s.Rules.On && s.isWanting() {
		var err error
		if ground, err = s.judge.enterGround(ctx); err != nil || ground == shut {
			return err
		}
	}
	a := s.ask(all)
	wants := a.wants
	if ground == partly { // the steps that want more ask again
		wants = s.judge.approvedOnly(wants)
	}
	if len(wants)+len(a.reports) == 0 { // lives come with reports
		s.unask(a)
		return nil
	}
	var grants []breaker.Grant
	var unmet []breaker.Want
	var limited, now time.Time
	err := s.change(ctx, func(b breaker.Budget, again bool) breaker.Budget {
		now = s.now()
		if again {
			a.keepRest()
			s.own.add(0, 0, a.done())
		}
		approvals := s.Viewer.View().Record.Approvals
		b, grants, unmet = b.Take(a.reports).TakeLives(now, a.lives).Reserve(s.Rules, now, approvals, wants)
		limited = b.LimitedUntil(s.Rules.Limits, now)
		return b
	})
	if err != nil {
		if store.MayHaveHappened(err) {
			a.keepRest()
			s.own.add(0, 0, a.done())
		}
		s.unask(a)
		return err
	}
	if rest := s.put(a, grants, limited, now); rest && !all {
		return s.reserve(ctx, true) // what is unused makes room for what is wanted
	}
	s.judge.want(unmet)
	s.tellLives()
	return nil
}

// put stores what was granted at an instant in the store's time, and lets the steps that wait for
// it go on. It reports whether the limits allow no more although this process has something left.
func (s *Spender) put(a asked, grants []breaker.Grant, limited, granted time.Time) (rest bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.add(0, a.done(), 0)
	for _, w := range a.wants {
		s.slices[w.Key].wanted = false
	}
	for _, g := range grants {
		mine := s.slices[g.Key]
		mine.left, mine.at, mine.granted = mine.left+g.N, s.Now(), granted
	}
	for k, mine := range s.slices {
		rest = rest || mine.left > 0
		if mine.left == 0 && mine.done == 0 && mine.charged == 0 && s.Now().Sub(mine.used) > idleSlice {
			delete(s.slices, k)
		}
	}
	rest = rest && !limited.IsZero() && len(grants) == 0 && len(a.wants) > 0
	if s.hold.limited = limited; rest {
		s.hold.limited = time.Time{}
	}
	close(s.round)
	s.round = make(chan struct{})
	return rest
}
