package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

// lateTurn is how long what is late is read before hours that wait for a count have theirs.
const lateTurn = time.Minute

var errLateRead = errors.New("no COUNT of it is answered, so it is read, which takes a while")

// A lateRead counts what is late by reading it. A COUNT goes over all tombstones at once and may
// never end; a read goes in windows, and on from where its last turn ended. What the floor lets
// go meanwhile may count twice, so that it errs on the side of a trip.
type lateRead struct {
	readers   []pageReader // of what is left to read
	n         int64
	began     time.Time
	approvals []breaker.Approval // what they cover is left out
}

// countLate counts what is late: by COUNT or, if that fails even up to a bound, by reading.
func (j *judge) countLate(
	ctx context.Context, spans []placedSpan, b breaker.Budget, now time.Time, upTo int64,
) (n int64, err error) {
	if j.late == nil || upTo == 0 {
		if n, err = j.countSpans(ctx, spans, upTo); err == nil || upTo == 0 || ctx.Err() != nil {
			return n, err
		}
	}
	return j.readLate(ctx, b, now, upTo)
}

// readLate reads what is late for one turn. Once all is read, or as much as a bound, it returns how
// much that is; before that, [errLateRead].
func (j *judge) readLate(ctx context.Context, b breaker.Budget, now time.Time, upTo int64) (int64, error) {
	approvals := j.s.c.viewer.View().Record.Approvals
	if l := j.late; l == nil || now.Sub(l.began) > j.s.rules.Rewind || !sameApprovals(l.approvals, approvals) {
		j.late = &lateRead{readers: j.lateReaders(b, now), began: now, approvals: approvals}
	}
	l := j.late
	var page store.Page
	for ends := j.s.c.cfg.Now().Add(lateTurn); len(l.readers) > 0 && l.n < upTo; {
		if !j.s.c.cfg.Now().Before(ends) {
			return 0, errLateRead
		}
		var more bool
		err := shardquery.Patiently(ctx, inventoryPatience, func() (err error) {
			more, err = l.readers[0].Next(ctx, &page, store.MaxPage)
			return err
		})
		if err != nil {
			return 0, err
		}
		if l.n += int64(len(page.Entries)); !more {
			l.readers = l.readers[1:]
		}
	}
	return l.n, nil
}

// lateReaders returns readers of all that is late.
func (j *judge) lateReaders(b breaker.Budget, now time.Time) (list []pageReader) {
	c, p, horizon := j.s.c, j.plan(), j.s.rules.Horizon(now)
	for r := range p.All() {
		from, to := j.lateIn(b, p, r, horizon)
		if from.Before(to) {
			list = append(list, &shardquery.Reader{Store: c.cfg.Store, Target: c.target.Target, Range: r,
				From: r.At(from), Floor: from, Until: to.Add(-r.Resolution()),
				Timeout: fromStartTimeout, Window: window(p.Cursor(r)), Now: c.cfg.Now})
		}
	}
	for _, s := range j.retired(p) {
		list = append(list, &shardquery.SpanReader{Store: c.cfg.Store, Target: c.target.Target, Namespace: s.namespace,
			From: s.span.From.Value.Text, To: s.span.To.Value.Text, Floor: c.floor(horizon),
			Timeout: fromStartTimeout, Now: c.cfg.Now})
	}
	return list
}

// lateIn returns from which instant on and before which one what a range holds is late, without
// what was approved before.
func (j *judge) lateIn(b breaker.Budget, p *plan.Plan, r shardquery.Range, horizon time.Time) (from, to time.Time) {
	cur := p.Cursor(r)
	to = laterOf(j.lateFrom(r, cur.Position), cur.Stock.Next) // a read of all of it has found nothing before that
	if !to.Before(horizon) || !cur.Stock.Emptied.IsZero() {
		to = horizon.Add(r.Resolution())
	}
	return laterOf(j.s.c.floor(horizon), j.notCovered(b, breaker.Late(), r)), to
}
