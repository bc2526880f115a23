package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// reserveWithin is how long a step keeps its worker and its page until a slice is reserved:
	// to read the page again would cost more. A count takes longer, and is waited for outside.
	reserveWithin = 500 * time.Millisecond
	// askSoon and askLate are how soon such a step asks again whether it has been counted.
	askSoon, askLate = 50 * time.Millisecond, time.Second
	// A process asks for twice as much if a slice was used up within shortSlice, and for
	// half as much if it lasted for longSlice: so the record is written about once a second
	// at most, and little is lost if a process is killed.
	shortSlice, longSlice = 2 * time.Second, 30 * time.Second
	largestSlice          = 1 << 16
	// idleSlice is after how long without use a slice is given back.
	idleSlice = 10 * time.Minute
	// saveTries is how often a change of the budget is tried against changes of others.
	saveTries = 8
)

// A spender spends the budget of one target, for this process. It reserves slices of it ahead
// of the deletes, in a goroutine of its own: a step whose deletes are not covered ends, and
// waits without a worker. It is safe for concurrent use.
type spender struct {
	c     *collector
	rules breaker.Rules
	wake  chan struct{}
	judge *judge

	mu     sync.Mutex
	budget breaker.Budget // as this process read or wrote it last
	own    ownDeletes
	slices map[breaker.Key]*slice
	wants  map[breaker.Key]int64
	round  chan struct{} // closed when what was wanted before is reserved, or must be counted
	lives  lives
	hold   spenderHold
}

// A spenderHold is what keeps a process from spending.
type spenderHold struct {
	failure failure   // to read or write the budget
	limited time.Time // until when the limits allow no more; zero if they do
}

// Lives are how long what was deleted had been meant to live.
type lives struct {
	counts map[int]int64 // by bucket; not reported yet
	told   time.Time     // when the log last said that lives are shorter
}

// A lack is what a visit needs, and has not got.
type lack struct {
	first *breaker.Key // of the first entity that it could not delete
	n     int64
	since time.Time
	until time.Time // when a reading that lacks it asks again
}

// A slice is what this process may still delete under a key.
type slice struct {
	left int64
	done int64 // deleted, and not reported yet
	// charged is what an approval covers, was deleted under other keys, and is not reported yet.
	charged int64
	size    int64     // of the last reservation
	at      time.Time // of the last reservation
	used    time.Time
	wanted  bool // more was asked for ahead of need
	// granted is the time of the last reservation in the store's time. With limits a slice ends
	// with its hour of the clock.
	granted time.Time
}

func newSpender(c *collector) *spender {
	rules := BreakerRules(*c.target)
	if c.cfg.Yes {
		rules.Limits = breaker.Limits{} // what goes counts for the next sweep
	}
	if !c.cfg.Apply || !rules.On && !c.target.Limits.Any() {
		return nil
	}
	s := &spender{c: c, rules: rules, wake: make(chan struct{}, 1), slices: map[breaker.Key]*slice{},
		wants: map[breaker.Key]int64{}, lives: lives{counts: map[int]int64{}}, round: make(chan struct{}),
		hold: spenderHold{failure: failure{task: "spend the target's budget"}}}
	s.judge = newJudge(s)
	return s
}

// BreakerRules returns the rules by which the budget of a target goes.
func BreakerRules(t Target) breaker.Rules {
	r := t.Breaker
	r.Rewind, r.Retention, r.Limits = t.Rewind, t.Retention, t.Limits
	return r
}

// now returns the store's time.
func (s *spender) now() time.Time { return s.c.clock.Now() }

// keyOf returns the key of an op, given what of the approvals is taken by the ops before it.
func (s *spender) keyOfLocked(w *writer, op *store.Op, need map[breaker.Key]int64) breaker.Key {
	if !s.rules.On {
		return breaker.Late() // the limits make no difference between keys
	}
	value := op.Entry.Value
	if op.Outcome == store.Changed && op.Known {
		value = op.Now
	}
	at, number, ok := s.expiry(value)
	if !ok {
		at = w.lateFrom // it is not due; it counts as what nobody expects
	}
	approved := s.c.viewer.View().Record.Approvals
	spent := func(id string) bool {
		k := breaker.Key{Approval: id}
		return need[k] >= s.approvedLocked(k)
	}
	return s.rules.KeyOf(approved, spent, at, number, at.Before(w.lateFrom))
}

// expiry returns when an entity expires, and the generation of its key if it has one.
func (s *spender) expiry(value store.Value) (at time.Time, generation int, ok bool) {
	if k, err := expirykey.Parse(value.Text); err == nil && value.Type == store.Text {
		generation = k.Generation
	}
	at, err := s.c.rules.Form.Expires(value)
	return at, generation, err == nil
}

// approvedLocked returns how much of an approval is left, for this process.
func (s *spender) approvedLocked(k breaker.Key) (rest int64) {
	approved := s.c.viewer.View().Record.Approvals
	i := slices.IndexFunc(approved, func(a breaker.Approval) bool { return a.ID == k.Approval })
	if i >= 0 && !s.budget.IsSpent(s.rules, approved[i], s.now()) {
		rest = approved[i].Count - s.budget.At(k).Granted
	}
	return rest + s.leftLocked(k)
}

// Spent are the keys by which a batch was counted, for each of its ops. A carry has none.
type spent []*breaker.Key

// needLocked returns what a batch needs.
func (s *spender) needLocked(w *writer, ops []store.Op) (keys spent, need map[breaker.Key]int64) {
	need, keys = map[breaker.Key]int64{}, make(spent, len(ops))
	for i := range ops {
		if isCarry(&ops[i]) && !w.settles {
			continue
		}
		k := s.keyOfLocked(w, &ops[i], need)
		need[k]++
		keys[i] = &k
	}
	return keys, need
}

// covered returns how many of the ops, from the first on, this process may delete by what it
// has reserved; all of them if the first is not covered, so that they are asked for.
func (s *spender) covered(w *writer, ops []store.Op) int {
	if s == nil {
		return len(ops)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys, need := s.needLocked(w, ops)
	clear(need)
	for i, k := range keys {
		if k == nil {
			continue
		}
		need[*k]++
		if s.leftLocked(*k) < need[*k] {
			if i > 0 {
				return i
			}
			if k.Approval == "" {
				return len(ops)
			}
			// What is beyond the approval may trip the breaker, before the approved part is gone.
			if n := slices.IndexFunc(keys, func(other *breaker.Key) bool { return other != nil && *other != *k }); n > 0 {
				return n
			}
			return len(ops)
		}
	}
	return len(ops)
}

// ensure asks for the right to delete the ops, if this process's slices do not have it. It
// waits a moment for it, and then returns a pause.
func (s *spender) ensure(ctx context.Context, w *writer, ops []store.Op) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	keys, need := s.needLocked(w, ops)
	err, round := s.wantLocked(w, keys, need), s.round
	s.mu.Unlock()
	if err == nil {
		return nil
	}
	timer := time.NewTimer(reserveWithin)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return errStopped
	case <-timer.C:
	case <-round:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.judge.hopelessLocked(keys); err != nil {
		return err
	}
	return s.wantLocked(w, keys, need)
}

// wantLocked asks for what is needed and not there, and returns a pause then.
func (s *spender) wantLocked(w *writer, keys spent, need map[breaker.Key]int64) error {
	short := false
	for k, n := range need {
		if s.leftLocked(k) < n {
			s.wants[k], short = max(s.wants[k], n), true
		}
	}
	if !short {
		w.lack = lack{}
		return nil
	}
	if w.lack.since.IsZero() {
		w.lack.since = s.c.cfg.Now()
	}
	for _, k := range keys {
		if k != nil {
			w.lack.first, w.lack.n = k, need[*k]
			break
		}
	}
	s.rouse()
	if now := s.now(); now.Before(s.hold.limited) {
		return &pause{min(s.hold.limited.Sub(now), heldFor), throttle.ReasonLimit}
	}
	return &pause{s.waitLocked(w), s.reason()}
}

// reason returns what a step waits for that lacks something: without a breaker, for its limits.
func (s *spender) reason() throttle.Reason {
	if !s.rules.On {
		return throttle.ReasonLimit
	}
	return throttle.ReasonBreaker
}

// waitLocked returns how soon a visit that lacks something asks again.
func (s *spender) waitLocked(w *writer) time.Duration {
	return min(max(askSoon, s.c.cfg.Now().Sub(w.lack.since)/2), askLate)
}

// lacking returns how long a visit is to wait before it reads again what it could not delete;
// 0 if it has, or may have, the right by now.
func (s *spender) lacking(w *writer) time.Duration {
	if s == nil || w.lack.first == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := *w.lack.first
	if s.leftLocked(k) > 0 || s.judge.hopelessLocked(spent{&k}) != nil {
		return 0
	}
	if k.Approval != "" && s.approvedLocked(k) == 0 {
		return 0 // it was used up meanwhile, or before this process read the budget: another key counts
	}
	s.wants[k] = max(s.wants[k], w.lack.n)
	s.rouse()
	return s.waitLocked(w)
}

// take takes the right to delete the ops out of this process's slices. If they do not have
// it, it asks for more, and returns a pause.
func (s *spender) take(w *writer, ops []store.Op) (spent, error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys, need := s.needLocked(w, ops)
	if err := s.wantLocked(w, keys, need); err != nil {
		return nil, err
	}
	now := s.c.cfg.Now()
	for k, n := range need {
		mine := s.slices[k]
		mine.left, mine.used = mine.left-n, now
		if mine.left < mine.size/2 && !mine.wanted { // before it is used up
			mine.wanted = true
			s.wants[k] = max(s.wants[k], 0)
			s.rouse()
		}
	}
	return keys, nil
}

// settle notes what became of the ops of a batch. What may have been deleted is not given back.
func (s *spender) settle(keys spent, ops []store.Op, unsure bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		if k == nil {
			continue
		}
		switch mine := s.slices[*k]; {
		case ops[i].Outcome == store.Deleted:
			s.sliceLocked(*k).done++ // its rest may have been given back meanwhile
			s.chargeLocked(*k, &ops[i])
			s.own.add(1, 0, 0)
			s.noteLifeLocked(&ops[i])
		case ops[i].Outcome == store.Unknown && unsure:
			s.own.add(0, 0, 1)
		case mine != nil:
			mine.left++
		}
	}
}

// sliceLocked returns this process's slice of a key.
func (s *spender) sliceLocked(k breaker.Key) *slice {
	if s.slices[k] == nil {
		s.slices[k] = &slice{size: int64(s.c.target.Page), at: s.c.cfg.Now(), used: s.c.cfg.Now()}
	}
	return s.slices[k]
}

// chargeLocked charges a delete to the approval that covers it, if it went under another key.
func (s *spender) chargeLocked(k breaker.Key, op *store.Op) {
	if !s.rules.On || k.Approval != "" {
		return
	}
	at, number, ok := s.expiry(op.Entry.Value)
	if !ok {
		return
	}
	if to, ok := s.budget.ChargedTo(s.rules, s.c.viewer.View().Record.Approvals, s.now(), at, number); ok {
		s.sliceLocked(to).charged++
	}
}

// noteLifeLocked notes how long an entity that was deleted had been meant to live, if its store says when
// it was last written.
func (s *spender) noteLifeLocked(op *store.Op) {
	if at, err := s.c.rules.Form.Expires(op.Entry.Value); err == nil && !op.Entry.Written.IsZero() && s.rules.On {
		s.lives.counts[breaker.BucketOf(at.Sub(op.Entry.Written))]++
	}
}

// tellLives warns if entities live half as long as on the day before.
func (s *spender) tellLives() {
	now := s.now()
	s.mu.Lock()
	before, after, halved := s.budget.HalvedLives(now)
	tell := halved && now.Sub(s.lives.told) >= time.Hour
	if tell {
		s.lives.told = now
	}
	s.mu.Unlock()
	s.c.cfg.Metrics.Halved(s.c.target.Name, halved)
	if tell {
		s.c.log.Warn("entities are written with half as long to live as on the day before: if nobody meant that, they"+
			" expire too soon", "life_seconds", after.Seconds(), "before_seconds", before.Seconds())
	}
}

// rouse wakes the goroutine that reserves.
func (s *spender) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}

// isAtLimit reports whether the limits allow nothing more for now.
func (s *spender) isAtLimit() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.now().Before(s.hold.limited) {
		return false
	}
	for k := range s.slices {
		if s.leftLocked(k) > 0 {
			return false // it was granted before, and may go
		}
	}
	return true
}

// limitEnds returns when the limits allow more.
func (s *spender) limitEnds() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold.limited
}

// usedUp says which of the limits allows no more.
func (s *spender) usedUp() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.UsedUp(s.rules.Limits, s.now())
}

// lasting returns the error of the last try, if the budget could not be read or written for so
// long that it is to be told.
func (s *spender) lasting() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.hold.failure; s.c.cfg.Now().Sub(f.since) > freshFor && !isUncounted(f.err) {
		return f.err
	}
	return nil
}

// failing returns the error of the last try, if it failed.
func (s *spender) failing() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold.failure.err
}

// run reserves what is wanted until ctx is done, and then gives back what is left.
func (s *spender) run(ctx, work context.Context) {
	var judging sync.WaitGroup
	judging.Go(func() { s.judge.run(ctx) })
	defer judging.Wait()
	if s.rules.On { // also if nothing is due: then what comes to be due later is no unswept ground
		if err := protect(func() error { _, err := s.judge.enterGround(work); return err }); err != nil && ctx.Err() == nil {
			s.c.log.failed("count what is due on unswept ground", "", err) // it is tried again before the first delete
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
	if err := protect(func() error { return s.reserve(work, true) }); err != nil { // they count as not used
		s.c.log.failed("give back what is left of the target's budget", "", err)
	}
}

// serve reserves what is wanted, and returns when it is to be called again at the latest.
func (s *spender) serve(ctx context.Context) time.Duration {
	err := protect(func() error { return s.reserve(ctx, false) })
	if ctx.Err() != nil {
		return idleSlice
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold.failure.note(s.c.log, s.c.cfg.Now(), err)
	if err != nil {
		return readAgain
	}
	return idleSlice
}

// isWanting reports whether a step wants something.
func (s *spender) isWanting() bool {
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
func (s *spender) ask(all bool) (a asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.c.cfg.Now()
	for _, k := range inKeyOrder(s.wants) {
		mine, n := s.sliceLocked(k), s.wants[k]
		switch since := now.Sub(mine.at); {
		case since < shortSlice && since > 0:
			mine.size = min(2*mine.size, largestSlice)
		case since > longSlice:
			mine.size = max(mine.size/2, int64(s.c.target.Page))
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

// isOverLocked reports whether a slice ended with its hour of the clock.
func (s *spender) isOverLocked(mine *slice) bool {
	return s.c.target.Limits.Any() && mine.left > 0 &&
		s.now().Truncate(time.Hour).After(mine.granted.Truncate(time.Hour))
}

// leftLocked returns what this process may still delete under a key.
func (s *spender) leftLocked(k breaker.Key) int64 {
	mine := s.slices[k]
	if mine == nil || s.isOverLocked(mine) {
		return 0
	}
	return mine.left
}

// inKeyOrder lists the keys of a map in their order, so that a run that is repeated does the same.
func inKeyOrder[T any](m map[breaker.Key]T) []breaker.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b breaker.Key) int { return strings.Compare(a.String(), b.String()) })
}

// unask takes back what was asked for, so that the next reservation does: nothing was saved.
func (s *spender) unask(a asked) {
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
func (s *spender) reserve(ctx context.Context, all bool) error {
	ground := open
	if s.rules.On && s.isWanting() {
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
		approvals := s.c.viewer.View().Record.Approvals
		b, grants, unmet = b.Take(a.reports).TakeLives(now, a.lives).Reserve(s.rules, now, approvals, wants)
		limited = b.LimitedUntil(s.rules.Limits, now)
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
func (s *spender) put(a asked, grants []breaker.Grant, limited, granted time.Time) (rest bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.add(0, a.done(), 0)
	for _, w := range a.wants {
		s.slices[w.Key].wanted = false
	}
	for _, g := range grants {
		mine := s.slices[g.Key]
		mine.left, mine.at, mine.granted = mine.left+g.N, s.c.cfg.Now(), granted
	}
	for k, mine := range s.slices {
		rest = rest || mine.left > 0
		if mine.left == 0 && mine.done == 0 && mine.charged == 0 && s.c.cfg.Now().Sub(mine.used) > idleSlice {
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

// change changes the budget record by compare-and-set. Again says that an earlier try may have
// been stored.
func (s *spender) change(ctx context.Context, change func(b breaker.Budget, again bool) breaker.Budget) error {
	again := false
	for range saveTries {
		b, err := s.read(ctx)
		if err != nil {
			return err
		}
		b = change(b, again)
		rec := b.Encode()
		err = store.Retry(ctx, recordPatience, func() error {
			ctx, cancel := context.WithTimeout(ctx, recordTimeout)
			defer cancel()
			err := s.c.viewer.store.Save(ctx, rec, b.Revision)
			again = again || err != nil && store.MayHaveHappened(err)
			return err
		})
		s.mu.Lock()
		if s.own.loaded = err == nil; err == nil {
			b.Revision = rec.Revision
			s.own.deletedBy(b.Began)
			s.budget = b
		}
		s.mu.Unlock()
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("others have changed the target's budget %d times meanwhile: %w", saveTries, store.ErrConflict)
}

// read returns the budget as it is known, or reads it.
func (s *spender) read(ctx context.Context) (breaker.Budget, error) {
	s.mu.Lock()
	b, loaded := s.budget, s.own.loaded
	s.mu.Unlock()
	if loaded {
		return b, nil
	}
	b, err := LoadBudget(ctx, s.c.viewer.store, s.c.target.Name)
	if err == nil {
		s.mu.Lock()
		if !s.own.read {
			s.own.first, s.own.read = history.Budgeted{Began: b.Began, Deleted: b.Spent.Ever}, true
		}
		s.budget, s.own.loaded = b, true
		s.mu.Unlock()
	}
	return b, err
}

// reread reads the budget, though it may be known.
func (s *spender) reread(ctx context.Context) (breaker.Budget, error) {
	s.mu.Lock()
	s.own.loaded = false
	s.mu.Unlock()
	return s.read(ctx)
}

// LoadBudget reads the budget of a target. It is empty if the store has no such record yet.
func LoadBudget(ctx context.Context, from store.Loader, target string) (b breaker.Budget, err error) {
	err = store.Retry(ctx, recordPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, recordTimeout)
		defer cancel()
		got, err := from.Load(ctx, breaker.Query(target))
		if err != nil {
			return fmt.Errorf("load the budget record of %s: %w", target, err)
		}
		if b = (breaker.Budget{Target: target}); len(got.List) > 0 {
			b, err = breaker.Decode(got.List[0])
		}
		return err
	})
	return b, err
}
