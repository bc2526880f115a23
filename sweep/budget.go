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
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
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

// brakes are what may hold deletes of a target: its limits, and its breaker.
type brakes struct {
	limits *allowance
	budget *spender // nil without a breaker
}

// A spender spends the budget of one target, for this process. It reserves slices of it ahead
// of the deletes, in a goroutine of its own: a step whose deletes are not covered ends, and
// waits without a worker. It is safe for concurrent use.
type spender struct {
	c     *collector
	rules breaker.Rules
	wake  chan struct{}

	mu      sync.Mutex
	budget  breaker.Budget // as this process read or wrote it last
	loaded  bool
	slices  map[breaker.Key]*slice
	wants   map[breaker.Key]int64
	round   chan struct{} // closed when what was wanted before is reserved, or must be counted
	failure failure       // to read or write the budget, or to count
}

// A lack is what a visit needs, and has not got.
type lack struct {
	first *breaker.Key // of the first entity that it could not delete
	n     int64
	since time.Time
}

// A slice is what this process may still delete under a key.
type slice struct {
	left   int64
	done   int64     // deleted, and not reported yet
	size   int64     // of the last reservation
	at     time.Time // of the last reservation
	used   time.Time
	wanted bool // more was asked for ahead of need
}

func newSpender(c *collector) *spender {
	if !c.target.Breaker.On || !c.cfg.Apply {
		return nil
	}
	s := &spender{c: c, rules: c.target.Breaker, wake: make(chan struct{}, 1), slices: map[breaker.Key]*slice{},
		wants: map[breaker.Key]int64{}, round: make(chan struct{}), failure: failure{task: "spend the budget of the breaker"}}
	s.rules.Rewind = c.target.Rewind
	return s
}

// now returns the time by which the budget goes: entities come to be due when it reaches their
// expiry.
func (s *spender) now() time.Time { return s.c.clock.Now().Add(-s.c.target.Retention) }

// keyOf returns the key of an op, given what of the approvals is taken by the ops before it.
func (s *spender) keyOfLocked(w *writer, op *store.Op, need map[breaker.Key]int64) breaker.Key {
	at, err := s.c.rules.Form.Expires(op.Entry.Value)
	if err != nil {
		at = w.lateFrom // it is not due; it counts as what nobody expects
	}
	number := 0
	if k, err := expirykey.Parse(op.Entry.Value.Text); err == nil && op.Entry.Value.Type == store.Text {
		number = k.Generation
	}
	approved := s.c.viewer.View().Record.Approvals
	spent := func(id string) bool {
		k := breaker.Key{Approval: id}
		i := slices.IndexFunc(approved, func(a breaker.Approval) bool { return a.ID == id })
		rest := int64(0)
		if !s.budget.IsSpent(s.rules, approved[i], s.now()) {
			rest = approved[i].Count - s.budget.At(k).Granted
		}
		if mine := s.slices[k]; mine != nil {
			rest += mine.left
		}
		return need[k] >= rest
	}
	return s.rules.KeyOf(approved, spent, at, number, at.Before(w.lateFrom))
}

// Spent are the keys by which a batch was counted, for each of its ops. A carry has none.
type spent []*breaker.Key

// needLocked returns what a batch needs.
func (s *spender) needLocked(w *writer, ops []store.Op) (keys spent, need map[breaker.Key]int64) {
	need, keys = map[breaker.Key]int64{}, make(spent, len(ops))
	for i := range ops {
		if isCarry(&ops[i]) {
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
		if mine := s.slices[*k]; mine == nil || mine.left < need[*k] {
			if i == 0 {
				return len(ops)
			}
			return i
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
	return s.wantLocked(w, keys, need)
}

// wantLocked asks for what is needed and not there, and returns a pause then.
func (s *spender) wantLocked(w *writer, keys spent, need map[breaker.Key]int64) error {
	short := false
	for k, n := range need {
		if mine := s.slices[k]; mine == nil || mine.left < n {
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
	return &pause{s.waitLocked(w), throttle.ReasonBreaker}
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
	if mine := s.slices[k]; mine != nil && mine.left > 0 {
		return 0
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
		mine := s.slices[*k]
		switch {
		case mine == nil: // its rest was given back meanwhile
		case ops[i].Outcome == store.Deleted:
			mine.done++
		case ops[i].Outcome != store.Unknown || !unsure:
			mine.left++
		}
	}
}

// rouse wakes the goroutine that reserves.
func (s *spender) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}

// isFailing reports whether the budget could not be read or written, or nothing counted, for
// so long that it is to be told.
func (s *spender) isFailing() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure.err != nil && s.c.cfg.Now().Sub(s.failure.since) > freshFor
}

// failing returns the error of the last try, if it failed.
func (s *spender) failing() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure.err
}

// run reserves what is wanted until ctx is done, and then gives back what is left.
func (s *spender) run(ctx, work context.Context) {
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
		s.c.log.failed("give back what is left of the breaker's budget", "", err)
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
	s.failure.note(s.c.log, s.c.cfg.Now(), err)
	if err != nil {
		return readAgain
	}
	return idleSlice
}

// asked are the wants and reports of one reservation.
type asked struct {
	wants   []breaker.Want
	reports []breaker.Report
}

// ask lists what is wanted and what is to be reported. What was used last long ago is given
// back, or with all of it everything.
func (s *spender) ask(all bool) (a asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.c.cfg.Now()
	for _, k := range inKeyOrder(s.wants) {
		mine, n := s.slices[k], s.wants[k]
		if mine == nil {
			mine = &slice{size: int64(s.c.target.Page), at: now, used: now}
			s.slices[k] = mine
		}
		switch since := now.Sub(mine.at); {
		case since < shortSlice && since > 0:
			mine.size = min(2*mine.size, largestSlice)
		case since > longSlice:
			mine.size = max(mine.size/2, int64(s.c.target.Page))
		}
		a.wants = append(a.wants, breaker.Want{Key: k, N: max(0, n-mine.left), Max: max(n, mine.size)})
	}
	clear(s.wants)
	for _, k := range inKeyOrder(s.slices) {
		mine := s.slices[k]
		r := breaker.Report{Key: k, Done: mine.done}
		if all || now.Sub(mine.used) > idleSlice {
			r.Rest = mine.left
		}
		if r.Done > 0 || r.Rest > 0 {
			a.reports = append(a.reports, r)
			mine.done -= r.Done
			mine.left -= r.Rest
		}
	}
	return a
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
	}
}

// reserve reports what was deleted, and reserves what is wanted. What needs a count is
// counted and judged.
func (s *spender) reserve(ctx context.Context, all bool) error {
	a := s.ask(all)
	if len(a.wants)+len(a.reports) == 0 {
		return nil
	}
	if len(a.wants) > 0 {
		if open, err := s.enterGround(ctx); err != nil || !open {
			s.unask(a)
			return err
		}
	}
	var grants []breaker.Grant
	var unmet []breaker.Want
	err := s.change(ctx, func(b breaker.Budget) breaker.Budget {
		b, grants, unmet = b.Take(a.reports).Reserve(s.rules, s.now(), s.c.viewer.View().Record.Approvals, a.wants)
		return b
	})
	if err != nil {
		s.unask(a)
		return err
	}
	s.mu.Lock()
	for _, w := range a.wants {
		s.slices[w.Key].wanted = false
	}
	for _, g := range grants {
		mine := s.slices[g.Key]
		mine.left, mine.at = mine.left+g.N, s.c.cfg.Now()
	}
	for k, mine := range s.slices {
		if mine.left == 0 && mine.done == 0 && s.c.cfg.Now().Sub(mine.used) > idleSlice {
			delete(s.slices, k)
		}
	}
	close(s.round)
	s.round = make(chan struct{})
	s.mu.Unlock()
	for _, w := range unmet {
		if w.N == 0 { // it was asked for ahead of need
			continue
		}
		if err := s.judge(ctx, w.Key); err != nil {
			return err
		}
	}
	return nil
}

// change changes the budget record by compare-and-set.
func (s *spender) change(ctx context.Context, change func(breaker.Budget) breaker.Budget) error {
	for range saveTries {
		b, err := s.read(ctx)
		if err != nil {
			return err
		}
		b = change(b)
		rec := b.Encode()
		err = store.Retry(ctx, recordPatience, func() error {
			ctx, cancel := context.WithTimeout(ctx, recordTimeout)
			defer cancel()
			return s.c.viewer.store.Save(ctx, rec, b.Revision)
		})
		s.mu.Lock()
		if s.loaded = err == nil; err == nil {
			b.Revision = rec.Revision
			s.budget = b
		}
		s.mu.Unlock()
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("others have changed the budget of the breaker %d times meanwhile: %w", saveTries, store.ErrConflict)
}

// read returns the budget as it is known, or reads it.
func (s *spender) read(ctx context.Context) (breaker.Budget, error) {
	s.mu.Lock()
	b, loaded := s.budget, s.loaded
	s.mu.Unlock()
	if loaded {
		return b, nil
	}
	b, err := LoadBudget(ctx, s.c.viewer.store, s.c.target.Name)
	if err == nil {
		s.mu.Lock()
		s.budget, s.loaded = b, true
		s.mu.Unlock()
	}
	return b, err
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

// judge counts what is left under a key, and either opens it or trips the breaker.
func (s *spender) judge(ctx context.Context, k breaker.Key) error {
	if s.c.viewer.View().Record.Trip.IsOpen() {
		return nil
	}
	now := s.now()
	count, bars, err := s.count(ctx, k, now)
	if err != nil {
		return fmt.Errorf("count for the breaker: %w", err)
	}
	b, err := s.read(ctx)
	if err != nil {
		return err
	}
	all := int64(-1)
	if upTo := b.AllNeeded(s.rules, now, k, count); upTo > 0 {
		if all, err = s.countAll(ctx, upTo); err != nil {
			return fmt.Errorf("count all entities for the breaker: %w", err)
		}
	}
	event := count.Due + count.Coming
	if k.IsLate() && event > s.rules.Floor { // what is due in all is one event with it
		if event, bars, err = s.countDue(ctx, now); err != nil {
			return fmt.Errorf("count what is due for the breaker: %w", err)
		}
	}
	var trip *breaker.Trip
	err = s.change(ctx, func(b breaker.Budget) breaker.Budget {
		if all >= 0 {
			b = b.CountedAll(now, all)
		}
		if b, trip = b.Judge(s.rules, now, k, count); trip != nil {
			trip.ID, trip.Due = s.id(*trip), max(trip.Due, event)
			b.Trip = breaker.Detail{ID: trip.ID, Histogram: bars, Samples: s.samples(ctx, trip)}
		}
		return b
	})
	if err != nil || trip == nil {
		s.rouse() // the steps that wait ask again
		return err
	}
	return s.trip(ctx, *trip)
}

// id names a trip by its instant and its process, so that two of the same instant differ.
func (s *spender) id(t breaker.Trip) string {
	return t.At.UTC().Format("20060102t150405") + "-" + string(t.Rule) + "-" + store.NewRevision("")[2:8]
}

// trip writes a trip to the target record. If another process was first, its trip stays.
func (s *spender) trip(ctx context.Context, t breaker.Trip) error {
	t.At = s.c.clock.Now()
	err := s.c.viewer.changeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is.Tripped(t)
		return next, !next.EqualContent(is), nil
	})
	if err == nil {
		s.c.log.ErrorContext(ctx, "breaker tripped: deletes suspended until the event is approved", "trip", t.ID,
			"rule", string(t.Rule), "due", t.Due, "limit", t.Limit, "all", t.All, "deleted", t.Gone)
	}
	return err
}

// enterGround counts what is due on unswept ground, before anything is deleted there. Open is
// false if the breaker is open.
func (s *spender) enterGround(ctx context.Context) (open bool, err error) {
	rec := s.c.viewer.View().Record
	if rec.Trip.IsOpen() || !rec.NewGround {
		return !rec.Trip.IsOpen(), nil
	}
	now := s.now()
	due, bars, err := s.countDue(ctx, now)
	if err != nil {
		return false, fmt.Errorf("count what is due on unswept ground: %w", err)
	}
	if trip := breaker.JudgeGround(s.rules, now, due); trip != nil {
		trip.ID = s.id(*trip)
		err := s.change(ctx, func(b breaker.Budget) breaker.Budget {
			b.Trip = breaker.Detail{ID: trip.ID, Histogram: bars, Samples: s.samples(ctx, trip)}
			return b
		})
		if err != nil {
			return false, err
		}
		return false, s.trip(ctx, *trip)
	}
	err = s.c.viewer.changeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is.Settled()
		return next, !next.EqualContent(is), nil
	})
	return err == nil, err
}

// countDue counts all that is due.
func (s *spender) countDue(ctx context.Context, now time.Time) (due int64, bars []breaker.Bar, err error) {
	p := plan.New(s.c.rules, s.c.viewer.View(), plan.Book{}, s.c.clock.Now())
	for r := range p.All() {
		n, err := s.countBetween(ctx, r, s.c.floor(now), now.Add(r.Resolution()))
		if err != nil {
			return 0, nil, err
		}
		due, bars = due+n, addBar(bars, s.c.floor(now), r.Generation, n)
	}
	return due, bars, nil
}

// count counts what is left under a key.
func (s *spender) count(ctx context.Context, k breaker.Key, now time.Time) (n breaker.Count, bars []breaker.Bar,
	err error) {
	p := plan.New(s.c.rules, s.c.viewer.View(), plan.Book{}, s.c.clock.Now())
	for r := range p.All() {
		from, to := k.Hour, s.rules.End(k)
		if k.IsLate() {
			from, to = s.c.floor(now), lateFrom(s.c, r, p.Cursor(r).Position)
			if !to.Before(now) {
				to = now.Add(r.Resolution())
			}
		}
		split := now.Add(r.Resolution())
		if split.After(to) {
			split = to
		}
		due, err := s.countBetween(ctx, r, from, split)
		if err != nil {
			return n, nil, err
		}
		if from.After(split) {
			split = from
		}
		coming, err := s.countBetween(ctx, r, split, to)
		if err != nil {
			return n, nil, err
		}
		n.Due, n.Coming, bars = n.Due+due, n.Coming+coming, addBar(bars, from, r.Generation, due+coming)
	}
	return n, bars, nil
}

// CountTrip counts what is left of the event of a trip. It writes nothing.
func CountTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (int64, error) {
	cfg = cfg.withDefaults()
	cfg.Apply = false
	c := newCollector(&cfg, &t)
	if err := c.open(ctx); err != nil {
		return 0, err
	}
	s := &spender{c: c, rules: t.Breaker}
	s.rules.Rewind = t.Rewind
	if trip.Rule == breaker.Burst {
		n, _, err := s.count(ctx, breaker.Key{Hour: trip.Hour}, s.now())
		return n.Due + n.Coming, err
	}
	due, _, err := s.countDue(ctx, s.now())
	return due, err
}

// addBar adds to a histogram.
func addBar(bars []breaker.Bar, from time.Time, number int, n int64) []breaker.Bar {
	if n == 0 {
		return bars
	}
	for i := range bars {
		if bars[i].Generation == number {
			bars[i].N += n
			return bars
		}
	}
	return append(bars, breaker.Bar{From: from, Generation: number, N: n})
}

// countBetween counts what expires in a range, from one instant on and before another.
func (s *spender) countBetween(ctx context.Context, r shardquery.Range, from, to time.Time) (int64, error) {
	if !from.Before(to) {
		return 0, nil
	}
	span := store.Span{From: store.Point{Shard: r.Value, Value: r.At(from).Value},
		To: store.Point{Shard: r.Value, Value: r.At(to).Value}}
	counter, ok := s.c.cfg.Store.(store.Counter)
	if !ok {
		return 0, store.ErrUnsupported
	}
	return countSpans(ctx, s.c, counter, []placedSpan{{r.Namespace, span}}, 0)
}

// countAll counts what carries the property, up to a bound.
func (s *spender) countAll(ctx context.Context, upTo int64) (sum int64, err error) {
	counter, ok := s.c.cfg.Store.(store.Counter)
	if !ok {
		return 0, store.ErrUnsupported
	}
	for _, at := range s.c.everywhere(store.Span{}) {
		n, err := countSpans(ctx, s.c, counter, []placedSpan{at}, upTo-sum)
		if err != nil {
			return 0, err
		}
		if sum += n; sum >= upTo {
			break
		}
	}
	return sum, nil
}

// lateFrom returns the instant before which what a range holds is late: it expired before the
// range was last swept, or before its generation opened.
func lateFrom(c *collector, r shardquery.Range, from store.Position) (at time.Time) {
	if !from.IsZero() {
		if t, err := r.Expires(from.Value); err == nil {
			at = t
		}
	}
	for _, g := range c.viewer.View().Record.Generations {
		if g.Number == r.Generation && g.Opened.After(at) {
			at = g.Opened
		}
	}
	return at
}

// mostSamples is how many entities of an event are named.
const mostSamples = 5

// samples names some entities of an event. People can do without them.
func (s *spender) samples(ctx context.Context, t *breaker.Trip) (ids []string) {
	keyer, ok := s.c.cfg.Store.(store.Keyer)
	if !ok {
		return nil
	}
	p := plan.New(s.c.rules, s.c.viewer.View(), plan.Book{}, s.c.clock.Now())
	for r := range p.All() {
		from := t.Hour
		if from.IsZero() {
			from = s.c.floor(t.Through)
		}
		err := s.c.entries(ctx, r, store.Position{Value: r.At(from).Value}, t.Through, t.Through, mostSamples,
			func(e store.Entry, j judgement) bool {
				if id, err := keyer.ID(e.Key); err == nil && j == due {
					ids = append(ids, id)
				}
				return len(ids) < mostSamples
			})
		if err != nil || len(ids) >= mostSamples {
			break
		}
	}
	return ids
}
