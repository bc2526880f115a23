package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// look lists the target's ranges, with those of shards past the last one, for
// which it looks once a rewind period. It then returns a function that looks at
// the ground around the ranges; nothing waits for that, so it may run beside
// the sweep. The function is nil where it is not due.
func (p *pass) look(ctx context.Context) (around func(context.Context) error, err error) {
	p.listRanges()
	now := p.clock.Now()
	due := !now.Before(p.record.Checked.Add(jitter(p.target.Rewind, p.target.Name)))
	// An index that was empty is looked at each time: its warning must neither
	// get lost in old logs nor outlive its cause.
	if !due && !p.record.EmptyIndex {
		return nil, nil
	}
	next := p.record
	if next.NurseryShards, err = p.lookBeyond(ctx); err == nil {
		next.EmptyIndex, err = p.emptyIndex(ctx)
	}
	if err != nil {
		return nil, p.withoutLook(ctx, err)
	}
	return func(ctx context.Context) error {
		if next.Outside, err = p.countOutside(ctx); err != nil {
			return err
		}
		p.warn(ctx, next)
		if p.Apply && (due || next.EmptyIndex != p.record.EmptyIndex || next.Outside != p.record.Outside) {
			next.Checked = now.Truncate(time.Microsecond)
			saved, err := generation.Save(ctx, p.Store, next)
			if err != nil && !errors.Is(err, store.ErrConflict) { // another worker's look is as good
				return err
			}
			next.Revision = saved.Revision
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.looked = next
		return nil
	}, nil
}

// withoutLook returns an error that the known ranges cannot be swept with, either. One
// that only says that the look took too long, over ground where much was deleted
// of late, is filed: the next sweep looks again.
func (p *pass) withoutLook(ctx context.Context, err error) error {
	if ctx.Err() != nil || !store.Transient(err) {
		return err
	}
	p.Log.WarnContext(ctx, "cannot look around: the ranges that are known are swept all the same", "error", err)
	p.fail(fmt.Errorf("look around: %w", err))
	return nil
}

func (p *pass) warn(ctx context.Context, r generation.Record) {
	if r.EmptyIndex && p.target.Type == store.Instant {
		p.Log.WarnContext(ctx, "the target holds entities, but not one of them has a timestamp in the property: nothing will ever be deleted. "+
			"Check that the property is spelt as the writers spell it, that it is indexed, and that they store timestamps, "+
			"not texts or numbers; of a target with shards, also the shard property and its values",
			"kind", p.target.Kind, "property", p.target.Property, "of_another_type", r.Outside)
	} else if r.EmptyIndex {
		p.Log.WarnContext(ctx, "the target holds entities, but not one of them has an entry in any range: nothing will be deleted. "+
			"Check that the property is spelt as the writers spell it, that it is indexed, and that they stamp expiry keys; "+
			"ignore this where no entity is meant to expire",
			"kind", p.target.Kind, "property", p.target.Property, "outside", r.Outside)
	} else if r.Outside > 0 {
		p.Log.WarnContext(ctx, "entities carry the property but lie in no range: they will not be deleted",
			"kind", p.target.Kind, "property", p.target.Property, "outside", r.Outside)
	}
}

// addKnown adds the ranges of shards past the last one that were swept before.
func (p *pass) addKnown() {
	shards := map[int]int{}
	for _, g := range p.record.Live() {
		shards[g.Number] = g.Shards
	}
	for _, id := range slices.SortedFunc(maps.Keys(p.table), func(a, b cursor.ID) int { return strings.Compare(a.Key(), b.Key()) }) {
		n, live := shards[id.Generation]
		shard, err := strconv.Atoi(id.Shard)
		if err == nil && live && shard >= n && shard <= expirykey.MaxShard && slices.Contains(p.namespaces, id.Namespace) {
			p.all = append(p.all, shardquery.Range{Namespace: id.Namespace, Generation: id.Generation, Shard: shard})
		}
	}
}

// lookBeyond adds the ranges of shards past the last one of each generation. It
// returns the nursery's shard count with the highest shard found there: anyone
// may use a larger, older number in the nursery, so that it is remembered.
func (p *pass) lookBeyond(ctx context.Context) (nurseryShards int, err error) {
	if p.target.Type == store.Instant {
		return p.record.NurseryShards, nil
	}
	for _, g := range p.record.Live() {
		if _, err := p.lookPast(ctx, g); err != nil {
			return 0, err
		}
	}
	nurseryShards = p.record.NurseryShards
	for _, r := range p.all {
		if r.Generation == expirykey.Nursery {
			nurseryShards = max(nurseryShards, r.Shard+1)
		}
	}
	return nurseryShards, nil
}

// lookPast adds the ranges of shards past a generation's last one, and reports
// whether any of them was not known. Each gets a cursor record at once, by which
// it is known from then on: whoever dies now, and whoever reads the other ranges
// of the generation to their end, forgets none of them.
func (p *pass) lookPast(ctx context.Context, g generation.Generation) (added bool, err error) {
	for _, ns := range p.namespaces {
		var known []int
		for _, r := range p.all {
			if r.Namespace == ns && r.Generation == g.Number && r.Shard >= g.Shards {
				known = append(known, r.Shard)
			}
		}
		found, err := shardquery.Beyond(ctx, p.Store, p.target.Target, ns, g, known)
		if err != nil {
			return added, err
		}
		if all := slices.Sorted(slices.Values(append(known, found...))); len(all) > 0 {
			p.Log.WarnContext(ctx, "entities are stamped with shards past the last one: a writer uses another shard count",
				"generation", g.Number, "shards", g.Shards, "found", all, "namespace", ns)
		}
		for _, shard := range found {
			r := shardquery.Range{Namespace: ns, Generation: g.Number, Shard: shard}
			p.all = append(p.all, r)
			added = true
			if !p.Apply {
				continue
			}
			if _, err := p.keeper.Move(ctx, p.cursor(r), func(*cursor.Cursor) {}); err != nil {
				return added, err
			}
		}
	}
	if added && p.Apply {
		return added, p.loadTable(ctx)
	}
	return added, nil
}

// emptyIndex reports whether the target holds entities, but not one entry in
// any range, due or not.
func (p *pass) emptyIndex(ctx context.Context) (bool, error) {
	counter, ok := p.Store.(store.Counter)
	if !ok {
		return false, nil
	}
	for _, ns := range p.namespaces {
		if any, err := p.anyEntry(ctx, ns); any || err != nil {
			return false, err
		}
	}
	held := false
	for _, ns := range p.namespaces {
		err := patiently(ctx, func(ctx context.Context) (err error) {
			held, err = counter.Holds(ctx, p.target.Target, ns)
			return err
		})
		if held || err != nil {
			return held, err
		}
	}
	return false, nil
}

// countOutside counts what carries the property but lies in no range.
func (p *pass) countOutside(ctx context.Context) (sum int64, err error) {
	counter, ok := p.Store.(store.Counter)
	if !ok {
		return 0, nil
	}
	var gaps []place
	for _, ns := range p.namespaces {
		var mine []shardquery.Range
		for _, r := range p.all {
			if r.Namespace == ns {
				mine = append(mine, r)
			}
		}
		for _, gap := range shardquery.Gaps(mine, p.floor(p.horizon)) {
			gaps = append(gaps, place{ns, gap})
		}
	}
	if sum, err = p.countSpans(ctx, counter, gaps); err != nil {
		return 0, fmt.Errorf("count what lies outside all ranges: %w", err)
	}
	return sum, nil
}

const (
	// countersAtOnce is few, because other workers may still be sweeping.
	countersAtOnce = 4
	// countTimeout bounds one COUNT, which the services end after 60 s, and
	// countPatience all tries at it.
	countTimeout  = time.Minute
	countPatience = 2 * time.Minute
)

// A place is a span of a namespace.
type place struct {
	namespace string
	span      store.Span
}

// everywhere lists a span in all namespaces.
func (p *pass) everywhere(span store.Span) (list []place) {
	for _, ns := range p.namespaces {
		list = append(list, place{ns, span})
	}
	return list
}

// countSpans counts the entries in all the places together.
func (p *pass) countSpans(ctx context.Context, counter store.Counter, places []place) (int64, error) {
	counted := make([]int64, len(places))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(countersAtOnce)
	for i, at := range places {
		group.Go(func() error {
			return store.Retry(ctx, countPatience, func() (err error) {
				ctx, cancel := context.WithTimeout(ctx, countTimeout)
				defer cancel()
				counted[i], err = counter.Count(ctx, p.target.Target, at.namespace, at.span)
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

// anyEntry reports whether the namespace has any entry of the right type, due or
// not. It tries a few ranges from their cursors on, where no sweep has deleted yet,
// before it looks from the start of everything.
func (p *pass) anyEntry(ctx context.Context, ns string) (bool, error) {
	var queries []store.Query
	for _, r := range p.all {
		if hi, ok := r.UpTo(shardquery.LastInstant); ok && r.Namespace == ns && len(queries) < triedFirst {
			q := store.Query{Shard: r.Value, Lo: r.Lo(p.floor(p.horizon)), Hi: hi}
			if at := p.cursor(r).Position; at.Value.Compare(q.Lo) >= 0 {
				q.After = at
			}
			queries = append(queries, q)
		}
	}
	if p.target.Type == store.Instant {
		for _, r := range shardquery.InstantRanges(p.target.ShardValues, []string{ns}) {
			queries = append(queries, store.Query{Shard: r.Value, Lo: store.InstantValue(shardquery.FirstInstant), Hi: store.InstantValue(shardquery.LastInstant)})
		}
	} else {
		for _, g := range p.record.Live() {
			lo, hi := expirykey.GenerationRange(g.Number)
			queries = append(queries, store.Query{Lo: store.TextValue(lo), Hi: store.TextValue(hi)})
		}
	}
	for _, q := range queries {
		q.Target, q.Namespace = p.target.Target, ns
		if _, any, err := shardquery.First(ctx, p.Store, q); any || err != nil {
			return any, err
		}
	}
	return false, nil
}

// triedFirst is how many ranges are asked for an entry before all ground is: nearly
// always the first one has some.
const triedFirst = 4
