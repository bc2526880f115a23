package sweep

import (
	"context"
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// A GenerationLife is a generation's past, and its future at the present course,
// in the form that `reaper generation list --json` prints.
type GenerationLife struct {
	GenerationStatus
	Left    *int64     `json:"left"`     // index entries; nil where the store cannot count
	NextDue *time.Time `json:"next_due"` // of a sealed generation: when its first survivor is due
	Emptied *time.Time `json:"emptied"`  // since when nothing is left that could be due
	Drains  *time.Time `json:"drains"`   // when what is left then begins to be carried; nil for the newest and the nursery
	Retires *time.Time `json:"retires"`  // at the latest, at the present course; nil where that is not known
}

// Lives lists the live generations of a target. It writes nothing and costs a
// COUNT for each.
func Lives(ctx context.Context, c Config, t Target) ([]GenerationLife, error) {
	p, missing, err := inspect(ctx, c, t)
	if err != nil || missing {
		return nil, err
	}
	if err := p.listNamespaces(ctx); err != nil {
		return nil, err
	}
	p.listRanges()
	p.takeBearings(p.clock.Now())
	lives := []GenerationLife{}
	for _, g := range p.generations() {
		life := GenerationLife{GenerationStatus: g}
		if _, ok := c.Store.(store.Counter); ok {
			left, err := p.leftIn(ctx, g.Number)
			if err != nil {
				return nil, err
			}
			life.Left = &left
		}
		if g.Number != expirykey.Nursery {
			p.foresee(&life)
		}
		lives = append(lives, life)
	}
	return lives, nil
}

// foresee fills in what is to become of a generation.
func (p *pass) foresee(life *GenerationLife) {
	policy := p.target.policy()
	staleness, slack := p.record.Bounds()
	newest := p.record.Generations[len(p.record.Generations)-1]
	var next time.Time
	for _, r := range p.all {
		if c := p.cursor(r); r.Generation == life.Number && !c.Stock.Next.IsZero() && (next.IsZero() || c.Stock.Next.Before(next)) {
			next = c.Stock.Next
		}
	}
	if !next.IsZero() {
		life.NextDue = known(next.Add(p.target.Retention))
	}
	if at := p.grounds[life.Number].sealed; !at.IsZero() {
		if ready, empty := p.emptySince(life.Number, at); empty {
			life.Emptied, life.Retires = known(ready.Add(-slack)), &ready
			return
		}
	}
	for _, g := range p.record.Generations {
		if g.Number == life.Number && !g.Draining.IsZero() {
			life.Drains = known(g.Draining)
			return // how long that takes depends on the pace
		}
	}
	if policy.Every <= 0 {
		return
	}
	// It drains once policy.Keep later ones beside the newest are live, and the
	// writers have moved to that.
	last := life.Number + policy.Keep + 1
	drains := newest.Opened.Add(newest.Ramp)
	if ahead := last - newest.Number; ahead > 0 {
		drains = newest.Opened.Add(time.Duration(ahead)*policy.Every + policy.Ramp)
	}
	retires := drains.Add(staleness + slack)
	life.Drains, life.Retires = &drains, &retires
}

// Advance opens the next generation of a target by hand, with so many shards or,
// where that is 0, as many as are configured. While writers are still moving to
// the newest one it fails with [generation.ErrRamping], unless it is forced.
func Advance(ctx context.Context, c Config, t Target, shards int, force bool) (generation.Record, error) {
	policy := t.policy()
	if shards > 0 {
		policy.Shards = shards
	}
	for {
		p, err := ensured(ctx, c, t)
		if err != nil {
			return generation.Record{}, err
		}
		next, err := p.record.Advance(policy, p.clock.Now(), force)
		if err != nil {
			return p.record, err
		}
		next, err = generation.Save(ctx, c.Store, next)
		if errors.Is(err, store.ErrConflict) {
			continue // somebody else changed it: is there still need?
		}
		return next, err
	}
}

// Change changes the target record by compare-and-set, and returns it as it is
// then. Nothing is written where it says so already.
func Change(ctx context.Context, c Config, t Target, change func(*generation.Record)) (generation.Record, error) {
	for {
		p, err := ensured(ctx, c, t)
		if err != nil {
			return generation.Record{}, err
		}
		next := p.record
		if change(&next); next.Says(p.record) {
			return next, nil
		}
		next, err = generation.Save(ctx, c.Store, next)
		if !errors.Is(err, store.ErrConflict) {
			return next, err
		}
	}
}
