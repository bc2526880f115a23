package spend

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/index"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

const (
	// lateTurn is how long what is late is read before hours that wait for a count have theirs.
	lateTurn = time.Minute
	// lateReadEnds is after how long, at least, a read that is under way is no longer worth going on.
	lateReadEnds = 24 * time.Hour
	// lateReadRests is for how long, at least, it may have no turn: then nobody wants it.
	lateReadRests = time.Hour
)

var errLateRead = errors.New("no COUNT of it is answered, so it is read, which takes a while")

// A lateRead counts what is late by reading it. A COUNT goes over all tombstones at once and may
// never end; a read goes in windows, and on from where its last turn ended. What goes meanwhile may
// count twice, so that it errs on the side of a trip. What is written late meanwhile, into what was
// read already, may go instead of what was counted.
type lateRead struct {
	parts  []latePart   // that are left
	reader index.Reader // of the first of them; nil before its first page
	n      int64
	began  time.Time
	turn   time.Time              // when the last one began
	before breaker.Budget         // as it was then
	scope  map[latePart]time.Time // from which instant on each part was not approved
}

// A latePart is a range or, without one, keys of generations that have retired.
type latePart struct {
	r        shardquery.Range
	leftover index.Span
}

// isOvertaken reports whether another process has judged what is late since the last turn: then
// it was allowed to go, and what was read of it is no longer there.
func (j *Judge) isOvertaken(b breaker.Budget, now time.Time) bool {
	return j.late != nil && b.JudgedSince(j.late.before, j.s.Rules, now, breaker.Late())
}

// followLate adds to a read what is new since its last turn, and ends one that is too old, or
// is of more than approvals have left. Then a COUNT is tried again.
func (j *Judge) followLate(b breaker.Budget, now time.Time) {
	l := j.late
	if l == nil {
		return
	}
	if now.Sub(l.began) > max(lateReadEnds, j.s.Rules.Rewind) || now.Sub(l.turn) > max(lateReadRests, j.s.Rules.Window) {
		j.late = nil
		return
	}
	for part, from := range j.lateScope(b) {
		was, isKnown := l.scope[part]
		if isKnown && !was.Equal(from) {
			j.late = nil
			return
		}
		if !isKnown {
			l.scope[part], l.parts = from, append(l.parts, part)
		}
	}
}

// countLate counts what is late: by COUNT or, if that takes too long even up to a bound, by reading.
func (j *Judge) countLate(
	ctx context.Context, spans []index.Span, b breaker.Budget, now time.Time, upTo int64,
) (n int64, err error) {
	if j.late == nil || upTo == 0 {
		n, err = j.s.Index.Count(ctx, spans, upTo)
		if upTo == 0 || !store.TookTooLong(err) && !errors.Is(err, store.ErrUnsupported) || ctx.Err() != nil {
			return n, err
		}
	}
	return j.readLate(ctx, b, now, upTo)
}

// readLate reads what is late for one turn. Once all is read, or as much as a bound, it returns how
// much that is; before that, [errLateRead].
func (j *Judge) readLate(ctx context.Context, b breaker.Budget, now time.Time, upTo int64) (int64, error) {
	if j.late == nil {
		j.late = &lateRead{began: now, scope: map[latePart]time.Time{}}
		for part, from := range j.lateScope(b) {
			j.late.scope[part], j.late.parts = from, append(j.late.parts, part)
		}
	}
	l, p, horizon := j.late, j.plan(), j.s.Rules.Horizon(now)
	l.turn, l.before = now, b
	var page store.Page
	for ends := j.s.Now().Add(lateTurn); len(l.parts) > 0 && l.n < upTo; {
		if !j.s.Now().Before(ends) {
			return 0, errLateRead
		}
		if l.reader == nil {
			if l.reader = j.lateReader(b, p, l.parts[0], horizon); l.reader == nil {
				l.parts = l.parts[1:]
				continue
			}
		}
		more, shrank := false, false
		err := store.Retry(ctx, index.InventoryPatience, func() (err error) {
			if more, err = l.reader.Next(ctx, &page, store.MaxPage); errors.Is(err, shardquery.ErrShrunk) {
				shrank, err = true, nil
			}
			return err
		})
		switch {
		case err != nil:
			return 0, err
		case shrank:
			continue
		}
		if l.n += int64(len(page.Entries)); !more {
			l.parts, l.reader = l.parts[1:], nil
		}
	}
	return l.n, nil
}

// lateScope lists where there may be late ones, and from which instant on they are not approved.
func (j *Judge) lateScope(b breaker.Budget) iter.Seq2[latePart, time.Time] {
	return func(yield func(latePart, time.Time) bool) {
		p := j.plan()
		for r := range p.All() {
			if !yield(latePart{r: r}, j.notCovered(b, breaker.Late(), r)) {
				return
			}
		}
		for _, s := range j.retired(p) {
			if !yield(latePart{leftover: s}, time.Time{}) {
				return
			}
		}
	}
}

// lateReader returns a reader of what is late in a part; nil if there can be nothing.
func (j *Judge) lateReader(b breaker.Budget, p *plan.Plan, part latePart, horizon time.Time) index.Reader {
	x, s, r := j.s.Index, part.leftover, part.r
	if s != (index.Span{}) {
		return &shardquery.SpanReader{Store: x.Store, Target: x.Target, Namespace: s.Namespace,
			From: s.From.Value.Text, To: s.To.Value.Text, Floor: x.Floor(horizon),
			Timeout: index.FromStartTimeout, Now: x.Now}
	}
	cur := p.Cursor(r)
	from, to := j.lateIn(b, p, r, horizon)
	if !from.Before(to) {
		return nil
	}
	return &shardquery.Reader{Store: x.Store, Target: x.Target, Range: r, From: r.At(from),
		Floor: laterOf(from, x.ReadFloor(r, cur, horizon)), Until: to.Add(-r.Resolution()),
		Timeout: index.FromStartTimeout, Window: index.Window(cur), Now: x.Now}
}

// lateIn returns from which instant on and before which one what a range holds is late, without
// what was approved before.
func (j *Judge) lateIn(b breaker.Budget, p *plan.Plan, r shardquery.Range, horizon time.Time) (from, to time.Time) {
	cur := p.Cursor(r)
	to = laterOf(j.lateFrom(r, cur.Position), cur.Stock.Next) // a read of all of it has found nothing before that
	if !to.Before(horizon) || !cur.Stock.Emptied.IsZero() {
		to = horizon.Add(r.Resolution())
	}
	return laterOf(j.s.Index.Floor(horizon), j.notCovered(b, breaker.Late(), r)), to
}
