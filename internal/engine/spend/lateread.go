package spend

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/internal/engine/index"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// lateTurn is for how long late entities are read before hours that wait for a count get a turn.
	lateTurn = time.Minute
	// lateReadEnds is the least age at which a read is discarded.
	lateReadEnds = 24 * time.Hour
	// lateReadRests is the least time without a turn after which a read is discarded: nobody wants it.
	lateReadRests = time.Hour
)

var errLateRead = errors.New("no COUNT of it is answered, so it is read, which takes a while")

// A lateReader counts what is late. A COUNT passes over all tombstones at once and may never be
// answered. Then it reads instead: in windows, and from where its last turn ended. Only one
// goroutine uses it.
type lateReader struct {
	rules  breaker.Rules
	bounds *bounds
	now    func() time.Time // this process's clock

	read *lateRead // the one that is under way; nil if a COUNT does
}

// A lateRead is how far a read has got. What is deleted meanwhile may count twice, so that the
// read errs on the side of a trip. What is written meanwhile into a part that was read already
// may be deleted instead of what was counted.
type lateRead struct {
	parts  []latePart   // that are left
	reader index.Reader // of the first of them; nil before its first page
	n      int64
	began  time.Time
	turn   time.Time              // when the last one began
	before breaker.Budget         // as it was then
	scope  map[latePart]time.Time // from which instant on each part was not approved
}

// isReading reports whether a read is under way.
func (l *lateReader) isReading() bool { return l.read != nil }

// drop ends the read.
func (l *lateReader) drop() { l.read = nil }

// isOvertaken reports whether another process has judged what is late since the last turn: then
// that may be deleted, and what was read of it is no longer there.
func (l *lateReader) isOvertaken(b breaker.Budget, now time.Time) bool {
	return l.read != nil && b.JudgedSince(l.read.before, l.rules, now, breaker.Late())
}

// follow adds to the read what is new since its last turn. It drops a read that is too old, or of
// which approvals cover another part than before; then a COUNT is tried again.
func (l *lateReader) follow(b breaker.Budget, now time.Time) {
	read := l.read
	if read == nil {
		return
	}
	if now.Sub(read.began) > max(lateReadEnds, l.rules.Rewind) || now.Sub(read.turn) > max(lateReadRests, l.rules.Window) {
		l.drop()
		return
	}
	for part, from := range l.bounds.lateParts(b) {
		was, isKnown := read.scope[part]
		if isKnown && !was.Equal(from) {
			l.drop()
			return
		}
		if !isKnown {
			read.scope[part], read.parts = from, append(read.parts, part)
		}
	}
}

// count counts what is late: by COUNT or, if that takes too long even up to a bound, by reading.
func (l *lateReader) count(
	ctx context.Context, spans []index.Span, b breaker.Budget, now time.Time, upTo int64,
) (n int64, err error) {
	if l.read == nil || upTo == 0 {
		n, err = l.bounds.index.Count(ctx, spans, upTo)
		if upTo == 0 || !isUnanswered(ctx, err) {
			return n, err
		}
	}
	return l.readOn(ctx, b, now, upTo)
}

// isUnanswered reports whether the store does not answer a COUNT, however often it is asked.
func isUnanswered(ctx context.Context, err error) bool {
	return (store.TookTooLong(err) || errors.Is(err, store.ErrUnsupported)) && ctx.Err() == nil
}

// readOn reads what is late for one turn. Once all is read, or as much as a bound, it returns how
// much that is; before that, [errLateRead].
func (l *lateReader) readOn(ctx context.Context, b breaker.Budget, now time.Time, upTo int64) (int64, error) {
	if l.read == nil {
		l.read = &lateRead{began: now, scope: map[latePart]time.Time{}}
		for part, from := range l.bounds.lateParts(b) {
			l.read.scope[part], l.read.parts = from, append(l.read.parts, part)
		}
	}
	read, p, horizon := l.read, l.bounds.extent.plan(), l.rules.Horizon(now)
	read.turn, read.before = now, b
	var page store.Page
	for ends := l.now().Add(lateTurn); len(read.parts) > 0 && read.n < upTo; {
		if !l.now().Before(ends) {
			return 0, errLateRead
		}
		if read.reader == nil {
			if read.reader = l.readerOf(b, p, read.parts[0], horizon); read.reader == nil {
				read.parts = read.parts[1:]
				continue
			}
		}
		more, shrank := false, false
		err := store.Retry(ctx, index.InventoryPatience, func() (err error) {
			if more, err = read.reader.Next(ctx, &page, store.MaxPage); errors.Is(err, shardquery.ErrShrunk) {
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
		if read.n += int64(len(page.Entries)); !more {
			read.parts, read.reader = read.parts[1:], nil
		}
	}
	return read.n, nil
}

// readerOf returns a reader of what is late in a part; nil if there can be nothing.
func (l *lateReader) readerOf(b breaker.Budget, p *plan.Plan, part latePart, horizon time.Time) index.Reader {
	x, s, r := l.bounds.index, part.leftover, part.r
	if s != (index.Span{}) {
		return &shardquery.SpanReader{Store: x.Store, Target: x.Target, Namespace: s.Namespace,
			From: s.From.Value.Text, To: s.To.Value.Text, Floor: x.Floor(horizon),
			Timeout: index.FromStartTimeout, Now: x.Now}
	}
	cur := p.Cursor(r)
	from, to := l.bounds.lateIn(b, p, r, horizon)
	if !from.Before(to) {
		return nil
	}
	return &shardquery.Reader{Store: x.Store, Target: x.Target, Range: r, From: r.At(from),
		Floor: laterOf(from, x.ReadFloor(r, cur, horizon)), Until: to.Add(-r.Resolution()),
		Timeout: index.FromStartTimeout, Window: index.Window(cur), Now: x.Now}
}
