package spend

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/history/chronicle"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/journal"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/storeclock"
	"github.com/reaper-ttl/reaper/sweep/view"
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
	// limitedFor is how soon a step asks again that the limits hold up.
	limitedFor = time.Second
	// idleSlice is after how long without use a slice is given back.
	idleSlice = 10 * time.Minute
)

// A spendConfig says whose budget is spent, and how.
type Config struct {
	Rules   breaker.Rules
	Plan    plan.Rules  // of the same target
	Page    int         // entries of a page: the first slice that is asked for
	Hourly  bool        // a slice ends with its hour of the clock, by which limits count
	IsOnce  func() bool // one sweep gives up what cannot be counted; a daemon tries on
	Index   *index.Index
	Viewer  *view.Viewer
	Clock   *storeclock.Clock
	Log     *journal.Journal
	Story   *chronicle.Chronicle // nil without a history
	Metrics *metrics.Metrics
	Now     func() time.Time // this process's clock
}

// A Spender spends the budget of one target, for this process. It reserves slices of it ahead
// of the deletes, in a goroutine of its own: a step whose deletes are not covered ends, and
// waits without a worker. It is safe for concurrent use.
type Spender struct {
	Config
	wake  chan struct{}
	judge *Judge

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
	failure journal.Failure // to read or write the budget
	limited time.Time       // until when the limits allow no more; zero if they do
}

// Lives are how long what was deleted had been meant to live.
type lives struct {
	counts map[int]int64 // by bucket; not reported yet
	told   time.Time     // when the log last said that lives are shorter
}

// An Asker is who asks to delete: one range while it is in work.
type Asker struct {
	// LateFrom is the instant before which what is found expired unseen.
	LateFrom time.Time
	Lack     Lack // what it could not delete by the budget
	Settles  bool // what is to be carried may be deleted instead, by what it holds in the transaction
}

// A Lack is what a visit needs, and has not got.
type Lack struct {
	first *breaker.Key // of the first entity that it could not delete
	n     int64
	since time.Time
	Until time.Time // when a reading that lacks it asks again
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

// New returns a spender that has read nothing yet; nil if there is neither a breaker nor a
// limit.
func New(cfg Config) *Spender {
	if !cfg.Rules.On && !cfg.Hourly {
		return nil
	}
	s := &Spender{Config: cfg, wake: make(chan struct{}, 1), slices: map[breaker.Key]*slice{},
		wants: map[breaker.Key]int64{}, lives: lives{counts: map[int]int64{}}, round: make(chan struct{}),
		hold: spenderHold{failure: journal.Failure{Task: "spend the target's budget"}}}
	s.judge = newJudge(s)
	return s
}

// LateFrom returns the instant before which what a range holds is late; the zero time without a
// budget.
func (s *Spender) LateFrom(r shardquery.Range, from store.Position) time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.judge.lateFrom(r, from)
}

// NoteSwept keeps up to where this process has found nothing due in a range.
func (s *Spender) NoteSwept(r shardquery.Range, upTo time.Time) {
	if s != nil {
		s.judge.noteSwept(r, upTo)
	}
}

// now returns the store's time.
func (s *Spender) now() time.Time { return s.Clock.Now() }

// keyOf returns the key of an op, given what of the approvals is taken by the ops before it.
func (s *Spender) keyOfLocked(w *Asker, op *store.Op, need map[breaker.Key]int64) breaker.Key {
	if !s.Rules.On {
		return breaker.Late() // the limits make no difference between keys
	}
	value := op.Entry.Value
	if op.Outcome == store.Changed && op.Known {
		value = op.Now
	}
	at, number, ok := s.expiry(value)
	if !ok {
		at = w.LateFrom // it is not due; it counts as what nobody expects
	}
	approved := s.Viewer.View().Record.Approvals
	spent := func(id string) bool {
		k := breaker.Key{Approval: id}
		return need[k] >= s.approvedLocked(k)
	}
	return s.Rules.KeyOf(approved, spent, at, number, at.Before(w.LateFrom))
}

// expiry returns when an entity expires, and the generation of its key if it has one.
func (s *Spender) expiry(value store.Value) (at time.Time, generation int, ok bool) {
	if k, err := expirykey.Parse(value.Text); err == nil && value.Type == store.Text {
		generation = k.Generation
	}
	at, err := s.Plan.Form.Expires(value)
	return at, generation, err == nil
}

// approvedLocked returns how much of an approval is left, for this process.
func (s *Spender) approvedLocked(k breaker.Key) (rest int64) {
	approved := s.Viewer.View().Record.Approvals
	i := slices.IndexFunc(approved, func(a breaker.Approval) bool { return a.ID == k.Approval })
	if i >= 0 && !s.budget.IsSpent(s.Rules, approved[i], s.now()) {
		rest = approved[i].Count - s.budget.At(k).Granted
	}
	return rest + s.leftLocked(k)
}

// Spent are the keys by which a batch was counted, for each of its ops. A carry has none.
type spent []*breaker.Key

// needLocked returns what a batch needs.
func (s *Spender) needLocked(w *Asker, ops []store.Op) (keys spent, need map[breaker.Key]int64) {
	need, keys = map[breaker.Key]int64{}, make(spent, len(ops))
	for i := range ops {
		if ops[i].IsCarry() && !w.Settles {
			continue
		}
		k := s.keyOfLocked(w, &ops[i], need)
		need[k]++
		keys[i] = &k
	}
	return keys, need
}

// Covered returns how many of the ops, from the first on, this process may delete by what it
// has reserved; all of them if the first is not covered, so that they are asked for.
func (s *Spender) Covered(w *Asker, ops []store.Op) int {
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

// Ensure asks for the right to delete the ops, if this process's slices do not have it. It
// waits a moment for it, and then returns a pause.
func (s *Spender) Ensure(ctx context.Context, w *Asker, ops []store.Op) error {
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
		return background.ErrStopped
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
func (s *Spender) wantLocked(w *Asker, keys spent, need map[breaker.Key]int64) error {
	short := false
	for k, n := range need {
		if s.leftLocked(k) < n {
			s.wants[k], short = max(s.wants[k], n), true
		}
	}
	if !short {
		w.Lack = Lack{}
		return nil
	}
	if w.Lack.since.IsZero() {
		w.Lack.since = s.Now()
	}
	for _, k := range keys {
		if k != nil {
			w.Lack.first, w.Lack.n = k, need[*k]
			break
		}
	}
	s.rouse()
	if now := s.now(); now.Before(s.hold.limited) {
		return &throttle.Pause{Wait: min(s.hold.limited.Sub(now), limitedFor), Why: throttle.ReasonLimit}
	}
	return &throttle.Pause{Wait: s.waitLocked(w), Why: s.Reason()}
}

// Reason returns what a step waits for that lacks something: without a breaker, for its limits.
func (s *Spender) Reason() throttle.Reason {
	if !s.Rules.On {
		return throttle.ReasonLimit
	}
	return throttle.ReasonBreaker
}

// waitLocked returns how soon a visit that lacks something asks again.
func (s *Spender) waitLocked(w *Asker) time.Duration {
	return min(max(askSoon, s.Now().Sub(w.Lack.since)/2), askLate)
}

// Lacking returns how long a visit is to wait before it reads again what it could not delete;
// 0 if it has, or may have, the right by now.
func (s *Spender) Lacking(w *Asker) time.Duration {
	if s == nil || w.Lack.first == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := *w.Lack.first
	if s.leftLocked(k) > 0 || s.judge.hopelessLocked(spent{&k}) != nil {
		return 0
	}
	if k.Approval != "" && s.approvedLocked(k) == 0 {
		return 0 // it was used up meanwhile, or before this process read the budget: another key counts
	}
	s.wants[k] = max(s.wants[k], w.Lack.n)
	s.rouse()
	return s.waitLocked(w)
}

// Take takes the right to delete the ops out of this process's slices. If they do not have
// it, it asks for more, and returns a pause.
func (s *Spender) Take(w *Asker, ops []store.Op) (spent, error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys, need := s.needLocked(w, ops)
	if err := s.wantLocked(w, keys, need); err != nil {
		return nil, err
	}
	now := s.Now()
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

// Settle notes what became of the ops of a batch. What may have been deleted is not given back.
func (s *Spender) Settle(keys spent, ops []store.Op, unsure bool) {
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
func (s *Spender) sliceLocked(k breaker.Key) *slice {
	if s.slices[k] == nil {
		s.slices[k] = &slice{size: int64(s.Page), at: s.Now(), used: s.Now()}
	}
	return s.slices[k]
}

// chargeLocked charges a delete to the approval that covers it, if it went under another key.
func (s *Spender) chargeLocked(k breaker.Key, op *store.Op) {
	approved := s.Viewer.View().Record.Approvals
	if !s.Rules.On || k.Approval != "" || len(approved) == 0 {
		return
	}
	at, number, ok := s.expiry(op.Entry.Value)
	if !ok {
		return
	}
	if to, ok := s.budget.ChargedTo(s.Rules, approved, s.now(), at, number); ok {
		s.sliceLocked(to).charged++
	}
}

// noteLifeLocked notes how long an entity that was deleted had been meant to live, if its store says when
// it was last written.
func (s *Spender) noteLifeLocked(op *store.Op) {
	if at, err := s.Plan.Form.Expires(op.Entry.Value); err == nil && !op.Entry.Written.IsZero() && s.Rules.On {
		s.lives.counts[breaker.BucketOf(at.Sub(op.Entry.Written))]++
	}
}

// tellLives warns if entities live half as long as on the day before.
func (s *Spender) tellLives() {
	now := s.now()
	s.mu.Lock()
	before, after, halved := s.budget.HalvedLives(now)
	tell := halved && now.Sub(s.lives.told) >= time.Hour
	if tell {
		s.lives.told = now
	}
	s.mu.Unlock()
	s.Metrics.Halved(s.Plan.Target, halved)
	if tell {
		s.Log.Warn("entities are written with half as long to live as on the day before: if nobody meant that, they"+
			" expire too soon", "life_seconds", after.Seconds(), "before_seconds", before.Seconds())
	}
}

// IsAtLimit reports whether the limits allow nothing more for now.
func (s *Spender) IsAtLimit() bool {
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

// LimitEnds returns when the limits allow more.
func (s *Spender) LimitEnds() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold.limited
}

// UsedUp says which of the limits allows no more.
func (s *Spender) UsedUp() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.UsedUp(s.Rules.Limits, s.now())
}

// Lasting returns the error of the last try, if the budget could not be read or written for so
// long that it is to be told.
func (s *Spender) Lasting() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.hold.failure; s.Now().Sub(f.Since) > view.FreshFor && !isUncounted(f.Err) {
		return f.Err
	}
	return nil
}

// Failing returns the error of the last try, if it failed.
func (s *Spender) Failing() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold.failure.Err
}

// isOverLocked reports whether a slice ended with its hour of the clock.
func (s *Spender) isOverLocked(mine *slice) bool {
	return s.Hourly && mine.left > 0 &&
		s.now().Truncate(time.Hour).After(mine.granted.Truncate(time.Hour))
}

// leftLocked returns what this process may still delete under a key.
func (s *Spender) leftLocked(k breaker.Key) int64 {
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
