package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// countAgain is how long after a count that failed the same is counted again.
	countAgain = 30 * time.Second
	// countTries is how often one sweep tries a count before it gives the hour up.
	countTries = 2
	// reportTries is how often, and reportEvery how soon, the breaker looks again for reports that
	// decide whether it trips.
	reportTries, reportEvery = 5, time.Second
	// histogramWithin bounds the counts for the histogram of a trip, which is for people.
	histogramWithin = 10 * time.Second
	// mostSamples is how many entities of an event are named.
	mostSamples = 5
)

// A judge counts hours for the breaker of one target, and trips it. It does so in a goroutine
// of its own: a count may take a minute, in which other hours go on. The lock of its spender
// guards its fields.
type judge struct {
	s       *spender
	wake    chan struct{}
	keys    map[breaker.Key]bool // to be counted
	atWork  *breaker.Key         // is being counted; nil if nothing is
	blocked map[breaker.Key]blocked
	swept   map[shardquery.Range]time.Time // up to where this process has found nothing due
	entered bool                           // what is due in what this process sweeps was counted, or approved
	idle    time.Time                      // since when nothing was wanted of a part that was approved; zero if it was
	late    *lateRead                      // of the judging goroutine alone; nil if a COUNT does
	wasLate bool                           // the last turn was that of what is late
}

// A blocked is a count that failed. Without it no more than the floor goes.
type blocked struct {
	tries int
	at    time.Time // of the last try
	err   error
}

// An uncounted is the error of a count.
type uncounted struct{ error }

func (u uncounted) Unwrap() error { return u.error }

func newJudge(s *spender) *judge {
	return &judge{s: s, wake: make(chan struct{}, 1), keys: map[breaker.Key]bool{},
		blocked: map[breaker.Key]blocked{}, swept: map[shardquery.Range]time.Time{}}
}

// want asks for counts.
func (j *judge) want(unmet []breaker.Want) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for _, w := range unmet {
		b, isBlocked := j.blocked[w.Key]
		switch {
		case w.N == 0: // it was asked ahead of need
		case j.atWork != nil && *j.atWork == w.Key:
		case isBlocked && j.s.c.cfg.Now().Sub(b.at) < countAgain:
		default:
			j.keys[w.Key] = true
		}
	}
	if len(j.keys) > 0 {
		select {
		case j.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// hopelessLocked returns an error if one sweep cannot delete an op because its hour cannot be counted.
// A daemon tries on.
func (j *judge) hopelessLocked(keys spent) error {
	if j.s.c.until.IsZero() {
		return nil
	}
	if f := j.s.hold.failure; isUncounted(f.err) && j.s.c.cfg.Now().Sub(f.since) > freshFor { // of unswept ground
		return hopeless(f.err)
	}
	for _, k := range keys {
		if k == nil {
			continue
		}
		if b := j.blocked[*k]; b.tries >= countTries && j.s.leftLocked(*k) == 0 {
			return hopeless(b.err)
		}
	}
	return nil
}

// hopeless returns the error of a sweep that ends because something cannot be counted.
func hopeless(why error) error {
	return store.WithHint(fmt.Errorf("%w: %s", errUncounted, why.Error()),
		"the next sweep counts again; breaker: off deletes without a count")
}

// isUncounted reports whether an error is that of a count.
func isUncounted(err error) bool { return errors.As(err, new(uncounted)) }

var errUncounted = errors.New("the breaker cannot count what comes to be due, and no more than its floor goes without")

// run counts what is wanted until ctx is done.
func (j *judge) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		}
		for ctx.Err() == nil {
			k, ok := j.next()
			if !ok {
				break
			}
			j.note(ctx, k, protect(func() error { return j.judgeKey(ctx, k) }))
		}
	}
}

// next returns what is to be counted next.
func (j *judge) next() (k breaker.Key, ok bool) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for _, next := range inKeyOrder(j.keys) { // what is late comes last
		switch {
		case next.IsLate() && (!j.wasLate || !ok): // either may take long, so they take turns
			k, ok = next, true
		case !next.IsLate() && (!ok || j.blocked[next].at.Before(j.blocked[k].at)): // nor does an hour wait for ever
			k, ok = next, true
		}
	}
	if ok {
		delete(j.keys, k)
		j.atWork, j.wasLate = &k, k.IsLate()
	}
	return k, ok
}

// note keeps why a count failed, for the steps that wait for it and for the budget's record.
func (j *judge) note(ctx context.Context, k breaker.Key, err error) {
	j.s.mu.Lock()
	j.atWork = nil
	j.s.mu.Unlock()
	var failed uncounted
	if isCount := errors.As(err, &failed); !isCount || ctx.Err() != nil {
		if err != nil && ctx.Err() == nil {
			j.s.c.log.failed("judge what comes to be due", "", err)
		}
		j.s.mu.Lock()
		delete(j.blocked, k)
		j.s.mu.Unlock()
		j.s.rouse() // the steps that wait ask again
		return
	}
	isReading := errors.Is(failed, errLateRead)
	if !isReading {
		j.s.c.log.failed("count for the breaker", "", failed.error)
	}
	j.s.mu.Lock()
	if isReading {
		delete(j.blocked, k)
		j.keys[k] = true
	} else {
		j.blocked[k] = blocked{j.blocked[k].tries + 1, j.s.c.cfg.Now(), failed.error}
	}
	j.s.mu.Unlock()
	j.tellUncounted(ctx, j.nameOf(k)+": "+failed.Error())
}

// nameOf names what a key counts, for people.
func (j *judge) nameOf(k breaker.Key) string {
	if k.IsLate() {
		return "what is late"
	}
	return "what expires from " + k.Hour.Format(time.RFC3339) + " on"
}

// tellUncounted writes into the budget's record why a count failed, or with an empty text that none
// does. People can do without it.
func (j *judge) tellUncounted(ctx context.Context, text string) {
	if b, err := j.s.read(ctx); err == nil && b.Uncounted != text {
		_ = j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
			b.Uncounted = text
			return b
		})
	}
}

// judgeKey counts what is left under a key, and either opens it or trips the breaker.
func (j *judge) judgeKey(ctx context.Context, k breaker.Key) error {
	rec := j.s.c.viewer.View().Record
	if rec.Trip.IsOpen() {
		j.late = nil // a fresh count will say what is left
		return nil
	}
	now := j.s.now()
	b, err := j.s.read(ctx)
	if err != nil {
		return err
	}
	if k.IsLate() {
		if j.isOvertaken(b, now) {
			return j.dropLate(ctx)
		}
		j.followLate(b, now)
	}
	count, all, err := j.measureReported(ctx, b, k, rec.Approvals, now)
	if err != nil {
		return uncounted{err}
	}
	event := breaker.Count{Due: count.Due + count.Coming, More: count.More}
	if k.IsLate() && event.Due > j.s.rules.Floor { // what is due in all is one event with it
		whole, err := patientCount(event.Due, j.late != nil, func(upTo int64) (breaker.Count, error) {
			return j.countDue(ctx, b, j.s.rules.Horizon(now), upTo)
		})
		switch {
		case err == nil:
			event = whole
			event.Due -= count.Reserved
		case j.late == nil || ctx.Err() != nil:
			return uncounted{err}
		default: // what is late can be judged without
			event.More = true
		}
	}
	var trip *breaker.Trip
	err = j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		if all >= 0 {
			b = b.CountedAll(now, all)
		}
		b.Uncounted = ""
		if trip = nil; k.IsLate() && j.isOvertaken(b, now) {
			return b // the steps ask again
		}
		if b, trip = b.Judge(j.s.rules, now, k, count); trip != nil {
			trip.Due, trip.More = max(trip.Due, event.Due), trip.More || event.More
		}
		return b
	})
	if err == nil && k.IsLate() {
		j.late = nil
	}
	if err != nil || trip == nil {
		return err
	}
	return j.trip(ctx, *trip, rec.Approvals)
}

// dropLate ends a read of what is late: the steps ask again.
func (j *judge) dropLate(ctx context.Context) error {
	j.late = nil
	return j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		b.Uncounted = ""
		return b
	})
}

// measureReported measures what is left under a key. If it depends on deletes that are not reported
// yet whether that passes, it waits for the reports for a moment, and counts again. A process that was
// killed never reports.
func (j *judge) measureReported(
	ctx context.Context, b breaker.Budget, k breaker.Key, approvals []breaker.Approval, now time.Time,
) (n breaker.Count, all int64, err error) {
	for tries := 0; ; tries++ {
		n, all, err = j.measure(ctx, b, k, approvals, now)
		if err != nil || tries >= reportTries || j.late != nil {
			return n, all, err
		}
		known := b
		if all >= 0 {
			known = known.CountedAll(now, all)
		}
		j.s.mu.Lock()
		kept := j.s.leftLocked(k)
		j.s.mu.Unlock()
		if !known.IsInDoubt(j.s.rules, now, k, n, kept) {
			return n, all, nil
		}
		j.s.rouse() // this process reports, too
		if err := throttle.Sleep(ctx, reportEvery); err != nil {
			return n, all, err
		}
		if b, err = j.s.reread(ctx); err != nil {
			return n, all, err
		}
	}
}

// measure counts what is left under a key and, as far as that is needed to judge it, all
// entities. All is less than 0 if they were not counted.
func (j *judge) measure(
	ctx context.Context, b breaker.Budget, k breaker.Key, approvals []breaker.Approval, now time.Time,
) (n breaker.Count, all int64, err error) {
	all = -1
	reserved := b.Reserved(j.s.rules, approvals, now, k)
	for limit := b.Enough(j.s.rules, now, k) + reserved; ; {
		tooLong := n.More || k.IsLate() && j.late != nil
		n, err = patientCount(limit, tooLong, func(upTo int64) (breaker.Count, error) {
			return j.count(ctx, b, k, now, upTo)
		})
		if err != nil {
			return n, all, err
		}
		n.Reserved = reserved
		if upTo := b.AllNeeded(j.s.rules, now, k, n); upTo > 0 {
			switch counted, err := j.countAll(ctx, upTo); {
			case err != nil && !b.KnowsAll():
				return n, all, fmt.Errorf("all entities: %w", err)
			case err != nil:
				j.s.c.log.failed("count all entities for the breaker", "", err)
			default:
				all, b = counted, b.CountedAll(now, counted)
			}
		}
		next := b.Enough(j.s.rules, now, k) + reserved
		if !n.More || next <= limit { // else what was counted is no longer enough to trip
			return n, all, nil
		}
		limit = next
	}
}

// patientCount counts all of something. If that takes too long, or is known to, it counts as much as
// tells whether it is more than a limit.
func patientCount(
	limit int64, tooLong bool, count func(upTo int64) (breaker.Count, error),
) (n breaker.Count, err error) {
	if !tooLong {
		if n, err = count(0); err == nil || errors.Is(err, context.Canceled) {
			return n, err
		}
	}
	enough := 2*limit + 1
	if n, err = count(enough); n.Due+n.Coming >= enough {
		n.More = true
	}
	return n, err
}

// trip writes a trip to the target record, and what people want to know of it to the budget.
// If another process was first, its trip stays. If an event was approved since this one was
// counted, it may be the same.
func (j *judge) trip(ctx context.Context, t breaker.Trip, approvals []breaker.Approval) error {
	t.ID, t.At = j.id(t), j.s.c.clock.Now()
	isFirst := false
	err := j.s.c.viewer.changeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is
		if !is.Trip.IsOpen() && sameApprovals(is.Approvals, approvals) { // an approval is for what the record names
			next = is.Holding(j.s.c.target.Kind, j.s.c.target.Property).Tripped(t)
		}
		isFirst = next.Trip.ID == t.ID
		return next, !next.EqualContent(is), nil
	})
	if err != nil || !isFirst {
		return err
	}
	j.s.c.log.ErrorContext(ctx, "breaker tripped: deletes suspended until the event is approved", "trip", t.ID,
		"rule", string(t.Rule), "due", t.Due, "limit", t.Limit, "all", t.All, "deleted", t.Gone)
	j.s.c.log.story.tell(history.KindTrip, history.Change{What: "trip " + t.ID,
		After: fmt.Sprintf("%s; %d were deleted before", t.Summary(), t.Gone)})
	detail := j.describe(ctx, t)
	return j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		b.Trip = detail
		return b
	})
}

func sameApprovals(a, b []breaker.Approval) bool {
	return len(a) == len(b) && (len(a) == 0 || a[len(a)-1].ID == b[len(b)-1].ID)
}

// id names a trip by its instant and its process, so that two of the same instant differ.
func (j *judge) id(t breaker.Trip) string {
	return t.At.UTC().Format("20060102t150405") + "-" + string(t.Rule) + "-" + store.NewRevision("")[2:8]
}

// plan returns the plan of now, which lists the ranges.
func (j *judge) plan() *plan.Plan {
	return plan.New(j.s.c.rules, j.s.c.viewer.View(), plan.Book{}, j.s.c.clock.Now())
}

// countDue counts all that is due at a horizon, without what was approved before.
func (j *judge) countDue(ctx context.Context, b breaker.Budget, horizon time.Time, upTo int64) (breaker.Count, error) {
	var spans []placedSpan
	for r := range j.plan().All() {
		from := laterOf(j.s.c.floor(horizon), j.notCovered(b, breaker.Late(), r))
		spans = appendSpan(spans, r, from, horizon.Add(r.Resolution()))
	}
	n, err := j.countSpans(ctx, spans, upTo)
	return breaker.Count{Due: n}, err
}

// count counts what is left under a key, without what was approved before.
func (j *judge) count(ctx context.Context, b breaker.Budget, k breaker.Key, now time.Time, upTo int64) (n breaker.Count,
	err error) {
	var due, coming []placedSpan
	p, horizon := j.plan(), j.s.rules.Horizon(now)
	for r := range p.All() {
		if k.IsLate() {
			from, to := j.lateIn(b, p, r, horizon)
			due = appendSpan(due, r, from, to)
			continue
		}
		to, split, stock := j.s.rules.End(k), horizon.Add(r.Resolution()), p.Cursor(r).Stock
		if !stock.Emptied.IsZero() || !stock.Next.IsZero() && !stock.Next.Before(to) {
			continue // and nobody writes to it any more
		}
		from := laterOf(k.Hour, j.notCovered(b, k, r))
		due = appendSpan(due, r, from, earlierOf(split, to))
		coming = appendSpan(coming, r, laterOf(from, split), to)
	}
	if k.IsLate() {
		n.Due, err = j.countLate(ctx, append(due, j.retired(p)...), b, now, upTo)
		return n, err
	}
	if n.Due, err = j.countSpans(ctx, due, upTo); err == nil {
		n.Coming, err = j.countSpans(ctx, coming, upTo)
	}
	return n, err
}

// retired lists the keys of generations that have retired: whatever the audit deletes there is
// late.
func (j *judge) retired(p *plan.Plan) (list []placedSpan) {
	v := j.s.c.viewer.View()
	if !j.s.c.rules.Form.HasGenerations() {
		return nil
	}
	for _, ns := range v.Namespaces {
		for _, s := range p.AuditSpans(ns) {
			if !isLive(v.Record, s) {
				list = append(list, placedSpan{ns, store.Span{From: store.Point{Value: store.TextValue(s.From)},
					To: store.Point{Value: store.TextValue(s.To)}}})
			}
		}
	}
	return list
}

func isLive(r generation.Record, s plan.KeySpan) bool {
	for _, g := range r.Generations {
		if s.Has(g.Number) {
			return true
		}
	}
	return false
}

// notCovered returns the instant from which on no approval covers what a range holds of a key.
func (j *judge) notCovered(b breaker.Budget, k breaker.Key, r shardquery.Range) time.Time {
	at := b.CoveredThrough(j.s.rules, j.s.c.viewer.View().Record.Approvals, j.s.now(), k, r.Generation)
	if at.IsZero() {
		return at
	}
	return at.Add(r.Resolution())
}

// CountTrip counts what is left of the event of a trip. It writes nothing.
func CountTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (int64, error) {
	j, err := openJudge(ctx, cfg, t)
	if err != nil {
		return 0, err
	}
	b, err := j.s.read(ctx) // it says which approvals are spent
	if err != nil {
		return 0, err
	}
	var n breaker.Count
	switch now := j.s.now(); trip.Rule {
	case breaker.Burst:
		n, err = j.count(ctx, b, breaker.Key{Hour: trip.Hour}, now, 0)
	case breaker.LateOnes: // cursors have not moved since
		n, err = j.countTrip(ctx, b, trip, now)
	default: // what came to be due since is no part of it
		n, err = j.countDue(ctx, b, earlierOf(trip.Through, j.s.rules.Horizon(now)), 0)
	}
	return n.Due + n.Coming, err
}

// countTrip counts what is late, however long that takes; if it has to read, as much as tells whether
// that is too much.
func (j *judge) countTrip(
	ctx context.Context, b breaker.Budget, trip breaker.Trip, now time.Time,
) (n breaker.Count, err error) {
	for limit := max(trip.Limit, b.Enough(j.s.rules, now, breaker.Late())); ; {
		n, err = patientCount(limit, j.late != nil,
			func(upTo int64) (breaker.Count, error) { return j.count(ctx, b, breaker.Late(), now, upTo) })
		if !errors.Is(err, errLateRead) {
			return n, err
		}
	}
}

// DescribeTrip finds out what people want to know of a trip, if the process that tripped was
// killed before it could write that down. It describes what is left, and writes nothing.
func DescribeTrip(ctx context.Context, cfg Config, t Target, trip breaker.Trip) (breaker.Detail, error) {
	j, err := openJudge(ctx, cfg, t)
	if err != nil {
		return breaker.Detail{}, err
	}
	return j.describe(ctx, trip), nil
}

// openJudge returns a judge that only looks.
func openJudge(ctx context.Context, cfg Config, t Target) (*judge, error) {
	cfg = cfg.withDefaults()
	cfg.Apply = false
	c := newCollector(&cfg, &t)
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	return newJudge(&spender{c: c, rules: BreakerRules(t)}), nil
}

// describe returns what people want to know of a trip.
func (j *judge) describe(ctx context.Context, t breaker.Trip) breaker.Detail {
	return breaker.Detail{ID: t.ID, Histogram: j.histogram(ctx, t), Samples: j.samples(ctx, t)}
}

// appendSpan appends what expires in a range, from one instant on and before another.
func appendSpan(list []placedSpan, r shardquery.Range, from, to time.Time) []placedSpan {
	if !from.Before(to) {
		return list
	}
	return append(list, placedSpan{r.Namespace, store.Span{From: store.Point{Shard: r.Value, Value: r.At(from).Value},
		To: store.Point{Shard: r.Value, Value: r.At(to).Value}}})
}

// countSpans counts what lies in spans, each up to a bound, if there is one.
func (j *judge) countSpans(ctx context.Context, spans []placedSpan, upTo int64) (int64, error) {
	counter, ok := j.s.c.cfg.Store.(store.Counter)
	if !ok {
		return 0, fmt.Errorf("count: %w", store.ErrUnsupported)
	}
	return countSpans(ctx, j.s.c, counter, spans, upTo)
}

// countAll counts what carries the property, up to a bound: in one query for each namespace
// or, if that takes too long, range by range.
func (j *judge) countAll(ctx context.Context, upTo int64) (sum int64, err error) {
	for _, at := range j.s.c.everywhere(store.Span{}) {
		n, err := j.countSpans(ctx, []placedSpan{at}, upTo-sum)
		if err != nil {
			return j.countRanges(ctx, upTo)
		}
		if sum += n; sum >= upTo {
			break
		}
	}
	return sum, nil
}

func (j *judge) countRanges(ctx context.Context, upTo int64) (sum int64, err error) {
	for r := range j.plan().All() {
		n, err := j.countSpans(ctx, appendSpan(nil, r, j.s.c.floor(j.s.now()), shardquery.LastInstant), upTo-sum)
		if err != nil {
			return 0, err
		}
		if sum += n; sum >= upTo {
			break
		}
	}
	return sum, nil
}

// noteSwept keeps up to where this process has found nothing due in a range. The range's record
// may be older: it is not written for that alone.
func (j *judge) noteSwept(r shardquery.Range, upTo time.Time) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	j.swept[r] = upTo
}

// lateFrom returns the instant before which what a range holds is late: it was due before the range
// was last swept, or before its generation opened.
func (j *judge) lateFrom(r shardquery.Range, from store.Position) (at time.Time) {
	if !from.IsZero() {
		if t, err := r.Expires(from.Value); err == nil {
			at = t
		}
	}
	j.s.mu.Lock()
	at = laterOf(at, j.swept[r])
	j.s.mu.Unlock()
	for _, g := range j.s.c.viewer.View().Record.Generations {
		if g.Number == r.Generation {
			at = laterOf(at, j.s.rules.Horizon(g.Opened)) // what was not due then may have been carried here since
		}
	}
	return at
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// samples names some entities of an event. People can do without them.
func (j *judge) samples(ctx context.Context, t breaker.Trip) (ids []string) {
	keyer, ok := j.s.c.cfg.Store.(store.Keyer)
	if !ok {
		return nil
	}
	for r := range j.plan().All() {
		from := t.Hour
		if from.IsZero() {
			from = j.s.c.floor(t.Through)
		}
		err := j.s.c.entries(ctx, r, store.Position{Value: r.At(from).Value}, t.Through, t.Through, mostSamples,
			func(e store.Entry, is judgement) bool {
				if id, err := keyer.ID(e.Key); err == nil && is == due {
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

// histogram counts how much of an event expires when, in each generation. People can do without it.
func (j *judge) histogram(ctx context.Context, t breaker.Trip) (bars []breaker.Bar) {
	ctx, cancel := context.WithTimeout(ctx, histogramWithin)
	defer cancel()
	edges := j.edges(t)
	for i, from := range edges[:len(edges)-1] {
		spans := map[int][]placedSpan{}
		for r := range j.plan().All() {
			spans[r.Generation] = appendSpan(spans[r.Generation], r, from, edges[i+1])
		}
		for _, number := range slices.Sorted(maps.Keys(spans)) {
			n, err := j.countSpans(ctx, spans[number], 0)
			if err != nil {
				return bars
			}
			if n > 0 {
				bars = append(bars, breaker.Bar{From: from, To: edges[i+1], Generation: number, N: n})
			}
		}
	}
	return bars
}

// edges returns where the bars of a histogram begin and end: sixths of an hour, or lengths of
// time before the trip.
func (j *judge) edges(t breaker.Trip) (list []time.Time) {
	if t.Rule == breaker.Burst {
		for i := range 7 {
			list = append(list, t.Hour.Add(time.Duration(i)*j.s.rules.Window/6))
		}
		return list
	}
	const day = 24 * time.Hour
	list = append(list, j.s.c.floor(t.Through))
	for _, before := range []time.Duration{365 * day, 30 * day, 7 * day, day, time.Hour} {
		if at := t.Through.Add(-before); at.After(list[0]) {
			list = append(list, at)
		}
	}
	return append(list, t.Through.Add(time.Millisecond))
}
