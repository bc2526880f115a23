package sweep

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// look lists the target's ranges. Once a rewind period it also looks at the
// ground around them: for shards past the last one, for what lies in no range,
// and for a target whose entities do not show up in the index at all.
func (p *pass) look(ctx context.Context) error {
	p.ranges = shardquery.Ranges(p.record.Live(), p.namespaces)
	p.addKnown()
	now := p.clock.Now()
	due := !now.Before(p.record.Checked.Add(jitter(p.target.Rewind, p.target.Name)))
	// An index that was empty is looked at each time: its warning must neither
	// get lost in old logs nor outlive its cause.
	if !due && !p.record.EmptyIndex {
		return nil
	}
	before := p.record
	if err := p.lookBeyond(ctx); err != nil {
		return err
	}
	if err := p.lookOutside(ctx); err != nil {
		return err
	}
	if !p.Apply || !due && p.record.EmptyIndex == before.EmptyIndex && p.record.Outside == before.Outside {
		return nil
	}
	p.record.Checked = now.Truncate(time.Microsecond)
	saved, err := generation.Save(ctx, p.Store, p.record)
	if errors.Is(err, store.ErrConflict) {
		return nil // another worker changed it; the next sweep looks again
	}
	if err == nil {
		p.record = saved
	}
	return err
}

// addKnown adds the ranges of shards past the last one that were swept before.
func (p *pass) addKnown() {
	shards := map[int]int{}
	for _, g := range p.record.Live() {
		shards[g.Number] = g.Shards
	}
	for id := range p.table {
		n, live := shards[id.Generation]
		shard, err := strconv.Atoi(id.Shard)
		if err == nil && live && shard >= n && shard <= expirykey.MaxShard && slices.Contains(p.namespaces, id.Namespace) {
			p.ranges = append(p.ranges, shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard})
		}
	}
}

// lookBeyond finds shards past the last one of each generation. In the nursery,
// where anyone may use a larger, older number, the highest is remembered in the
// target record.
func (p *pass) lookBeyond(ctx context.Context) error {
	for _, g := range p.record.Live() {
		for _, ns := range p.namespaces {
			shards, err := shardquery.Beyond(ctx, p.Store, p.target.Target, ns, g)
			if err != nil {
				return err
			}
			if len(shards) == 0 {
				continue
			}
			p.Log.WarnContext(ctx, "entities are stamped with shards past the last one: a writer uses another shard count",
				"generation", g.Number, "shards", g.Shards, "found", shards, "namespace", ns)
			if g.Number == expirykey.Nursery {
				p.record.NurseryShards = max(p.record.NurseryShards, slices.Max(shards)+1)
			}
			for _, shard := range shards {
				if r := (shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}); !slices.Contains(p.ranges, r) {
					p.ranges = append(p.ranges, r)
				}
			}
		}
	}
	return nil
}

// lookOutside counts what carries the property but lies in no range, and finds
// out whether the index shows anything of a target that holds entities.
func (p *pass) lookOutside(ctx context.Context) error {
	counter, ok := p.Store.(store.Counter)
	if !ok {
		return nil
	}
	outside := make([]int64, len(p.namespaces))
	empty, held := true, false
	for i, ns := range p.namespaces {
		var mine []shardquery.Range
		for _, r := range p.ranges {
			if r.Namespace == ns {
				mine = append(mine, r)
			}
		}
		n, err := p.countGaps(ctx, counter, ns, shardquery.Gaps(mine))
		if err != nil {
			return err
		}
		outside[i] = n
		any, err := p.anyEntry(ctx, ns)
		if err != nil {
			return err
		}
		if any {
			empty = false
		} else if !held {
			err := store.Retry(ctx, recordPatience, func() (err error) {
				held, err = counter.Holds(ctx, p.target.Target, ns)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	p.record.Outside = 0
	for _, n := range outside {
		p.record.Outside += n
	}
	p.record.EmptyIndex = empty && held
	if p.record.EmptyIndex {
		p.Log.WarnContext(ctx, "the target holds entities, but not one of them has an entry in any range: nothing will be deleted. "+
			"Check that the property is spelt as the writers spell it, that it is indexed, and that they stamp expiry keys; "+
			"ignore this where no entity is meant to expire",
			"kind", p.target.Kind, "property", p.target.Property, "outside", p.record.Outside)
	} else if p.record.Outside > 0 {
		p.Log.WarnContext(ctx, "entities carry the property but lie in no range: they will not be deleted",
			"kind", p.target.Kind, "property", p.target.Property, "outside", p.record.Outside)
	}
	return nil
}

func (p *pass) countGaps(ctx context.Context, counter store.Counter, ns string, gaps []store.Span) (int64, error) {
	counted := make([]int64, len(gaps))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, p.Workers))
	for i, gap := range gaps {
		group.Go(func() error {
			return store.Retry(ctx, recordPatience, func() (err error) {
				counted[i], err = counter.Count(ctx, p.target.Target, ns, gap)
				return err
			})
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

// anyEntry reports whether any range of the namespace has an entry, due or not.
func (p *pass) anyEntry(ctx context.Context, ns string) (bool, error) {
	var page store.Page
	for _, g := range p.record.Live() {
		lo, hi := expirykey.GenerationRange(g.Number)
		err := store.Retry(ctx, recordPatience, func() error {
			return p.Store.Scan(ctx, store.Query{Target: p.target.Target, Namespace: ns, Limit: 1,
				Lo: store.TextValue(lo), Hi: store.TextValue(hi)}, &page)
		})
		if err != nil || len(page.Entries) > 0 {
			return err == nil, err
		}
	}
	return false, nil
}
