package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/reaper-ttl/reaper/store"
)

// ErrLimit is wrapped by the error of a sweep that would delete, or was about to
// delete, more than the limits of its target allow.
var ErrLimit = errors.New("this is more than its limits allow")

// brake counts what is due before anything is deleted, where the target has limits.
// It refuses where that is more than they allow; what is found beyond the count is
// stopped as it comes.
func (p *pass) brake(ctx context.Context) error {
	asked := p.target.MaxDeletes > 0 || p.target.MaxFraction > 0
	counter, ok := p.Store.(store.Counter)
	if !ok || !asked {
		return nil
	}
	due, err := p.countSpans(ctx, counter, p.dueSpans())
	if err != nil {
		return fmt.Errorf("count what is due: %w", err)
	}
	var all int64
	if p.target.MaxFraction > 0 {
		if all, err = p.countSpans(ctx, counter, p.everywhere(store.Span{})); err != nil {
			return fmt.Errorf("count the target: %w", err)
		}
	}
	if p.Yes {
		p.Log.InfoContext(ctx, "the limits are set aside once", "due", due)
		return nil
	}
	err = p.allow(due, all)
	if !p.Apply && err != nil {
		p.Log.WarnContext(ctx, "with --apply this sweep would refuse", "error", err)
		return nil
	}
	return err
}

// allow sets how many entities this sweep may delete.
func (p *pass) allow(due, all int64) error {
	most, why := int64(math.MaxInt64), ""
	if n := p.target.MaxDeletes; n > 0 {
		most, why = n, fmt.Sprintf("limits.max_deletes is %d", n)
	}
	if f := p.target.MaxFraction; f > 0 {
		if n := int64(f * float64(all)); n < most {
			most, why = n, fmt.Sprintf("limits.max_fraction is %g, and %d entities carry the property", f, all)
		}
	}
	if due > most {
		return fmt.Errorf("%d entities are due, and %s: %w. Nothing was deleted. Where that is right, sweep once with --yes, or set another limit", due, why, ErrLimit)
	}
	if p.Apply {
		p.limited = true
		p.allowance.Store(most)
	}
	return nil
}

// spend takes n deletes from what the sweep may delete.
func (p *pass) spend(n int) error {
	if !p.limited || p.allowance.Add(-int64(n)) >= 0 {
		return nil
	}
	p.allowance.Add(int64(n))
	return fmt.Errorf("more entities are due than were counted when the sweep began: %w. It stopped before deleting more. Where that is right, sweep once with --yes, or set another limit", ErrLimit)
}

// dueSpans lists what is due and plausible in the ranges that are to be swept, from
// their cursors on.
func (p *pass) dueSpans() (list []place) {
	for _, r := range p.ranges {
		from, to := p.cursor(r).Position.Value, r.At(p.horizon.Add(r.Resolution())).Value
		if lo := r.At(p.floor(p.horizon)).Value; from.Compare(lo) < 0 {
			from = lo
		}
		if from.Compare(to) < 0 {
			list = append(list, place{r.Namespace, store.Span{From: store.Point{Shard: r.Value, Value: from}, To: store.Point{Shard: r.Value, Value: to}}})
		}
	}
	return list
}
