package sweep

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
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
	approved := s.c.viewer.View().Record.Approvals
	if !s.rules.On || k.Approval != "" || len(approved) == 0 {
		return
	}
	at, number, ok := s.expiry(op.Entry.Value)
	if !ok {
		return
	}
	if to, ok := s.budget.ChargedTo(s.rules, approved, s.now(), at, number); ok {
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
