package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

// reportTries is how often, and reportEvery how soon, the breaker looks again for reports that decide
// whether it trips.
const reportTries, reportEvery = 5, time.Second

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
		goes := n.Held && n.Reserved > 0 // the approved part of it, in another process
		if !goes && !known.IsInDoubt(j.s.rules, now, k, n, kept) {
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
	said := b.Approvals(j.s.rules, approvals, now, k)
	if !said.ReservedTo.IsZero() {
		if said.Reserved, err = j.countReserved(ctx, b, k, said); err != nil {
			return n, all, err
		}
	}
	for limit := b.Enough(j.s.rules, now, k) + said.Reserved; ; {
		tooLong := n.More || k.IsLate() && j.late != nil
		n, err = patientCount(limit, tooLong, func(upTo int64) (breaker.Count, error) {
			return j.count(ctx, b, k, now, upTo)
		})
		if err != nil {
			return n, all, err
		}
		n.Reserved, n.Held, n.Gone = said.Reserved, said.Held, said.Gone
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
		next := b.Enough(j.s.rules, now, k) + said.Reserved
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

// countReserved counts how much of what is left under a key can be what was reserved by an approval.
func (j *judge) countReserved(ctx context.Context, b breaker.Budget, k breaker.Key, said breaker.Count) (int64, error) {
	var spans []placedSpan
	for r := range j.plan().All() {
		spans = appendSpan(spans, r, laterOf(k.Hour, j.notCovered(b, k, r)), said.ReservedTo.Add(r.Resolution()))
	}
	n, err := j.countSpans(ctx, spans, said.Reserved)
	return min(n, said.Reserved), err
}

// retired lists the keys of generations that have retired: whatever the audit deletes there is
// late.
func (j *judge) retired(p *plan.Plan) (list []placedSpan) {
	v := j.view()
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
	for _, ns := range j.view().Namespaces {
		n, err := j.countSpans(ctx, []placedSpan{{namespace: ns}}, upTo-sum)
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
