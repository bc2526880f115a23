package spend

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// askSoon and askLate are how soon a step asks again for what it needs.
	askSoon, askLate = 50 * time.Millisecond, time.Second
	// A process asks for twice as much if a slice was used up within shortSlice, and for
	// half as much if it lasted for longSlice. So the record is written about once a second
	// at most, and little is lost if a process is killed.
	shortSlice, longSlice = 2 * time.Second, 30 * time.Second
	largestSlice          = 1 << 16
	// idleSlice is after how long without use a slice is given back.
	idleSlice = 10 * time.Minute
	// limitedFor is how soon a step that the limits hold up asks again.
	limitedFor = time.Second
)

// An allowance is what this process may still delete under each key, what its steps want in
// addition, and what it has yet to report. It is safe for concurrent use.
type allowance struct {
	from   source
	page   int64            // entries of a page: the size of the first slice
	hourly bool             // a slice ends with its hour of the clock, by which limits count
	now    func() time.Time // this process's clock
	wake   chan struct{}    // something is wanted

	mu      sync.Mutex
	slices  map[breaker.Key]*slice
	wants   map[breaker.Key]int64
	coming  map[breaker.Key]int64 // of approvals, while a reservation is on its way: what it may get
	lives   map[int]int64         // of what was deleted, by bucket; not reported yet
	round   chan struct{}         // closed when what was wanted before is reserved, or must be counted
	limited time.Time             // until when the limits allow no more; zero if they do
}

// A slice is what this process may still delete under a key.
type slice struct {
	left int64
	done int64 // deleted, and not reported yet
	// charged is what an approval covers, was deleted under other keys, and is not reported yet; of those
	// keys, so much of done.
	charged int64
	size    int64     // of the last reservation
	at      time.Time // of the last reservation
	used    time.Time
	wanted  bool      // more was asked for ahead of need
	granted time.Time // when the last reservation was made, in the store's time
}

func newAllowance(cfg Config, l *ledger) *allowance {
	from := source{rules: cfg.Rules, form: cfg.Plan.Form, viewer: cfg.Viewer, ledger: l, clock: cfg.Clock}
	return &allowance{from: from, page: int64(cfg.Page), hourly: cfg.Hourly, now: cfg.Now, wake: make(chan struct{}, 1),
		slices: map[breaker.Key]*slice{}, wants: map[breaker.Key]int64{}, coming: map[breaker.Key]int64{},
		lives: map[int]int64{}, round: make(chan struct{})}
}

// rouse wakes the goroutine that reserves.
func (a *allowance) rouse() { background.Wake(a.wake) }

// demandLocked returns what a batch needs.
func (a *allowance) demandLocked(w *Asker, ops []store.Op) demand {
	return a.from.classifier().demandOf(w, ops, a.approvedLocked)
}

// covered returns how many of the ops, from the first on, may be deleted by what is reserved;
// all of them if the first is not covered, so that they are asked for.
func (a *allowance) covered(w *Asker, ops []store.Op) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := a.demandLocked(w, ops).keys
	need := map[breaker.Key]int64{}
	for i, k := range keys {
		if k == nil {
			continue
		}
		if need[*k]++; a.leftLocked(*k) >= need[*k] {
			continue
		}
		if i > 0 {
			return i
		}
		isOther := func(other *breaker.Key) bool { return other != nil && *other != *k }
		if n := slices.IndexFunc(keys, isOther); k.Approval != "" && n > 0 {
			return n // what is beyond the approval may trip the breaker before the approved part is deleted
		}
		break
	}
	return len(ops)
}

// request asks for what a batch needs and is not reserved, and returns a pause in that case. The
// channel is closed after the next reservation.
func (a *allowance) request(w *Asker, ops []store.Op) (demand, <-chan struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.demandLocked(w, ops)
	err := a.wantLocked(w, d)
	return d, a.round, err
}

// requestAgain does so again for the same demand.
func (a *allowance) requestAgain(w *Asker, d demand) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wantLocked(w, d)
}

func (a *allowance) wantLocked(w *Asker, d demand) error {
	short := false
	for k, n := range d.need {
		if a.leftLocked(k) < n {
			a.wants[k], short = max(a.wants[k], n), true
		}
	}
	if !short {
		w.Shortfall = Shortfall{}
		return nil
	}
	if w.Shortfall.since.IsZero() {
		w.Shortfall.since = a.now()
	}
	for _, k := range d.keys {
		if k != nil {
			w.Shortfall.first, w.Shortfall.n = k, d.need[*k]
			break
		}
	}
	a.rouse()
	if now := a.from.clock.Now(); now.Before(a.limited) {
		return &throttle.Pause{Wait: min(a.limited.Sub(now), limitedFor), Why: throttle.ReasonLimit}
	}
	return &throttle.Pause{Wait: a.waitFor(w), Why: reasonOf(a.from.rules)}
}

// reasonOf returns what a step waits for if the budget does not cover it: without a breaker, for its limits.
func reasonOf(r breaker.Rules) throttle.Reason {
	if !r.On {
		return throttle.ReasonLimit
	}
	return throttle.ReasonBreaker
}

// waitFor returns how soon a visit asks again for what it needs.
func (a *allowance) waitFor(w *Asker) time.Duration {
	return min(max(askSoon, a.now().Sub(w.Shortfall.since)/2), askLate)
}

// retryAfter asks again for what a visit needs, and returns how long it is to wait; 0 if it has,
// or may have, the right by now.
func (a *allowance) retryAfter(w *Asker) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := *w.Shortfall.first
	if a.leftLocked(k) > 0 {
		return 0
	}
	if k.Approval != "" && a.from.classifier().approvedRest(k.Entities(), a.approvedLocked) == 0 {
		return 0 // it was used up meanwhile, or before this process read the budget: another key counts
	}
	a.wants[k] = max(a.wants[k], w.Shortfall.n)
	a.rouse()
	return a.waitFor(w)
}

// take takes the right to delete the ops out of the slices. If they do not have it, it asks for
// more, and returns a pause.
func (a *allowance) take(w *Asker, ops []store.Op) (Keys, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.demandLocked(w, ops)
	if err := a.wantLocked(w, d); err != nil {
		return nil, err
	}
	now := a.now()
	for k, n := range d.need {
		mine := a.slices[k]
		mine.left, mine.used = mine.left-n, now
		if mine.left < mine.size/2 && !mine.wanted { // before it is used up
			mine.wanted = true
			a.wants[k] = max(a.wants[k], 0)
			a.rouse()
		}
	}
	return d.keys, nil
}

// settle notes what became of the ops of a batch. What may have been deleted is not given back.
func (a *allowance) settle(keys Keys, ops []store.Op, unsure bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.from.classifier()
	for i, k := range keys {
		if k == nil {
			continue
		}
		switch mine := a.slices[*k]; {
		case ops[i].Outcome == store.Deleted:
			a.sliceLocked(*k).done++ // its rest may have been given back meanwhile
			if to, ok := c.chargedTo(*k, &ops[i]); ok {
				a.sliceLocked(to).charged++
				a.sliceLocked(*k).charged++
			}
			if bucket, ok := c.lifeOf(&ops[i]); ok {
				a.lives[bucket]++
			}
		case ops[i].Outcome == store.Unknown && unsure:
		case mine != nil:
			mine.left++
		}
	}
}

// sliceLocked returns this process's slice of a key.
func (a *allowance) sliceLocked(k breaker.Key) *slice {
	if a.slices[k] == nil {
		a.slices[k] = &slice{size: a.page, at: a.now(), used: a.now()}
	}
	return a.slices[k]
}

// isOverLocked reports whether a slice ended with its hour of the clock.
func (a *allowance) isOverLocked(mine *slice) bool {
	return a.hourly && mine.left > 0 &&
		a.from.clock.Now().Truncate(time.Hour).After(mine.granted.Truncate(time.Hour))
}

// left returns what this process may still delete under a key.
func (a *allowance) left(k breaker.Key) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leftLocked(k)
}

func (a *allowance) leftLocked(k breaker.Key) int64 {
	mine := a.slices[k]
	if mine == nil || a.isOverLocked(mine) {
		return 0
	}
	return mine.left
}

// unreported returns how much this process has deleted under a key and not reported.
func (a *allowance) unreported(k breaker.Key) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if mine := a.slices[k]; mine != nil {
		return mine.done
	}
	return 0
}

// approvedLocked returns how much this process has of an approval, or may have after the reservation
// that is on its way. The budget may say already that this is granted: without it the approval would look
// used up, and a step would ask for what trips the breaker.
func (a *allowance) approvedLocked(k breaker.Key) int64 { return a.leftLocked(k) + a.coming[k] }

// isAtLimit reports whether the limits allow nothing more for now.
func (a *allowance) isAtLimit() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.from.clock.Now().Before(a.limited) {
		return false
	}
	for k := range a.slices {
		if a.leftLocked(k) > 0 {
			return false // it was granted before, and may be used
		}
	}
	return true
}

// limitEnds returns when the limits allow more.
func (a *allowance) limitEnds() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limited
}

// isWanting reports whether a step wants something.
func (a *allowance) isWanting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.wants) > 0
}

// dropWants forgets what was wanted.
func (a *allowance) dropWants() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.wants)
}

// A statement is what one reservation asks for and reports.
type statement struct {
	wants   []breaker.Want
	reports []breaker.Report
	lives   map[int]int64
}

// draw makes a statement of what is wanted and what is to be reported, and takes that out of the
// allowance. Slices that were last used long ago are given back, or all of them.
func (a *allowance) draw(all bool) (s statement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, approvals := a.now(), a.from.classifier()
	for _, k := range inKeyOrder(a.wants) {
		mine, n := a.sliceLocked(k), a.wants[k]
		switch since := now.Sub(mine.at); {
		case since < shortSlice && since > 0:
			mine.size = min(2*mine.size, largestSlice)
		case since > longSlice:
			mine.size = max(mine.size/2, a.page)
		}
		if a.isOverLocked(mine) { // it is given back below
			n += mine.left
		}
		want := breaker.Want{Key: k, N: max(0, n-mine.left), Max: max(n, mine.size)}
		s.wants = append(s.wants, want)
		if k.Approval != "" && !k.Below {
			a.coming[k] = min(want.Max, approvals.approvedRest(k, nothing))
		}
	}
	clear(a.wants)
	s.lives, a.lives = a.lives, map[int]int64{}
	for _, k := range inKeyOrder(a.slices) {
		mine := a.slices[k]
		r := breaker.Report{Key: k, Done: mine.done, Charged: mine.charged, Granted: mine.granted}
		if all || now.Sub(mine.used) > idleSlice || a.isOverLocked(mine) {
			r.Rest = mine.left
		}
		if r.Done > 0 || r.Rest > 0 || r.Charged > 0 {
			s.reports = append(s.reports, r)
			mine.done -= r.Done
			mine.left -= r.Rest
			mine.charged -= r.Charged
		}
	}
	return s
}

// done returns how many deletes are reported, descendants left out.
func (s statement) done() (n int64) {
	for _, r := range s.reports {
		if !r.Key.Below {
			n += r.Done
		}
	}
	return n
}

// keepRest leaves out what is given back: if that were counted twice, more would be deleted than
// was granted. Deletes may be reported twice, which only errs on the side of a trip.
func (s statement) keepRest() {
	for i := range s.reports {
		s.reports[i].Rest = 0
	}
}

// takeBack puts a statement that was not saved back into the allowance, for the next reservation.
func (a *allowance) takeBack(s statement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.coming)
	for _, w := range s.wants {
		a.wants[w.Key] = max(a.wants[w.Key], w.N)
		a.slices[w.Key].wanted = false
	}
	for _, r := range s.reports {
		a.slices[r.Key].done += r.Done
		a.slices[r.Key].left += r.Rest
		a.slices[r.Key].charged += r.Charged
	}
	for bucket, n := range s.lives {
		a.lives[bucket] += n
	}
}

// put stores what was granted at an instant in the store's time, and lets the steps that wait for
// it continue. It reports whether the limits allow no more although this process has something left.
func (a *allowance) put(s statement, grants []breaker.Grant, limited, granted time.Time) (rest bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.coming)
	for _, w := range s.wants {
		a.slices[w.Key].wanted = false
	}
	for _, g := range grants {
		mine := a.slices[g.Key]
		mine.left, mine.at, mine.granted = mine.left+g.N, a.now(), granted
	}
	for k, mine := range a.slices {
		rest = rest || mine.left > 0
		if mine.left == 0 && mine.done == 0 && mine.charged == 0 && a.now().Sub(mine.used) > idleSlice {
			delete(a.slices, k)
		}
	}
	rest = rest && !limited.IsZero() && len(grants) == 0 && len(s.wants) > 0
	if a.limited = limited; rest {
		a.limited = time.Time{}
	}
	close(a.round)
	a.round = make(chan struct{})
	return rest
}

func nothing(breaker.Key) int64 { return 0 }

// inKeyOrder lists the keys of a map in their order, so that a repeated run does the same.
func inKeyOrder[T any](m map[breaker.Key]T) []breaker.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b breaker.Key) int { return strings.Compare(a.String(), b.String()) })
}
