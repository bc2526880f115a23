package adopt

import (
	"context"
	"errors"
	"fmt"

	"github.com/reaper-ttl/reaper/store"
)

// A reader reads parts.
type reader struct {
	job     *job
	reading *reading
	pager   *pager
}

// part reads a part to the end of its keys. A short page, or an empty one, does not end it.
func (r *reader) part(ctx context.Context, p *heldPart) error {
	var rows store.Rows
	q := r.reading.query(p.part, p.after)
	most := q.Limit
	for {
		if err := r.walk(ctx, p, &q, &rows); err != nil {
			return err
		}
		q.Limit = min(most, q.Limit+max(1, q.Limit/4))
		if err := r.pager.page(ctx, p, q.Namespace, rows.List); err != nil {
			return err
		}
		if n := len(rows.List); n > 0 {
			p.after = rows.List[n-1].Key
			p.scanned += int64(n)
		}
		switch {
		case !rows.More:
			p.done = true
			return p.save(ctx, true)
		case rows.Next != nil:
			q.Next = rows.Next
		case len(rows.List) == 0:
			return fmt.Errorf("%w: part %d of target %s has more after an empty page, and nothing to go on from",
				store.ErrFailed, p.part, r.job.cfg.Target.Name)
		default:
			q.After, q.Next = p.after, nil
		}
		if err := p.keep(ctx); err != nil {
			return err
		}
	}
}

// walk reads one page. A page that is too large, or takes too long, is halved.
func (r *reader) walk(ctx context.Context, p *heldPart, q *store.WalkQuery, rows *store.Rows) error {
	began := r.job.now()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := r.job.adopter.Walk(ctx, *q, rows)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		smaller := q.Limit > 1 && (errors.Is(err, store.ErrTooLarge) || store.TookTooLong(err))
		if smaller {
			q.Limit /= 2
		}
		if !smaller && !store.Transient(err) || r.job.now().Sub(began) > patience {
			return err
		}
		if err := p.pause(ctx, jitter(ctx, wait)); err != nil {
			return err
		}
	}
}
