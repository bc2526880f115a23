package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sync/errgroup"

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
	due, err := p.countIn(ctx, counter)
	if err != nil {
		return fmt.Errorf("count what is due: %w", err)
	}
	var all int64
	if p.target.MaxFraction > 0 {
		for _, ns := range p.namespaces {
			n, err := p.countGaps(ctx, counter, ns, []store.Span{{}})
			if err != nil {
				return fmt.Errorf("count the target: %w", err)
			}
			all += n
		}
	}
	if p.first || p.Yes {
		p.Log.InfoContext(ctx, "counted before anything is deleted", "due", due, "first_sweep", p.first)
	}
	if p.Yes {
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

// countIn counts what is due and plausible in the ranges that are to be swept, from
// their cursors on.
func (p *pass) countIn(ctx context.Context, counter store.Counter) (int64, error) {
	counted := make([]int64, len(p.ranges))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(countersAtOnce)
	for i, r := range p.ranges {
		from, to := p.cursor(r).Position.Value, r.At(p.horizon.Add(r.Resolution())).Value
		if lo := r.At(p.floor(p.horizon)).Value; from.Compare(lo) < 0 {
			from = lo
		}
		if lo := r.Lo(p.floor(p.horizon)); from.Compare(lo) < 0 {
			from = lo
		}
		if from.Compare(to) >= 0 {
			continue
		}
		span := store.Span{From: store.Point{Shard: r.Value, Value: from}, To: store.Point{Shard: r.Value, Value: to}}
		group.Go(func() (err error) {
			counted[i], err = p.countGaps(ctx, counter, r.Namespace, []store.Span{span})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range counted {
		sum += n
	}
	return sum, nil
}
