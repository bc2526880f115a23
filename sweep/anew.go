package sweep

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

const (
	// inUsePatience bounds the tries at one query that looks for generations in use.
	inUsePatience = time.Minute
	// probesAtOnce is how many namespaces are probed for them side by side.
	probesAtOnce = 8
)

// begin returns the first record of a target that has none. The record lists the
// generations that are in use already: perhaps the table was swept under another name, or
// the target's record was lost. It reads the namespaces into next.
func (v *viewer) begin(ctx context.Context, next *plan.View) (generation.Record, error) {
	if !v.rules.Generations {
		return plan.First(v.rules, v.clock.Now()), nil
	}
	if err := v.loadNamespaces(ctx, next); err != nil {
		return generation.Record{}, err
	}
	used, err := v.inUse(ctx, next.Namespaces, nil)
	if err != nil {
		return generation.Record{}, err
	}
	floor, err := v.lastDropped(ctx)
	if err != nil {
		return generation.Record{}, err
	}
	// The record's instant is taken after all reads: by then the old record was gone.
	return plan.Anew(v.rules, withCursors(used, v.target.Shards, next), floor, v.clock.Now())
}

// withCursors adds the generations that have cursor records left. The lost record listed
// them, even if they have nothing in the index at present. These cursors also tell which
// shards past the configured ones they have.
func withCursors(used []generation.Generation, shards int, v *plan.View) []generation.Generation {
	known := map[int]bool{expirykey.Nursery: true}
	for _, g := range used {
		known[g.Number] = true
	}
	for id := range v.Cursors.IDs() {
		if n := id.Generation; !known[n] && n <= shardquery.LastBelieved {
			known[n] = true
			used = append(used, generation.Generation{Number: n, Shards: shards})
		}
	}
	return used
}

// inUse finds the generations, the nursery among them, that hold anything in one of the
// namespaces, with as many shards as they seem to have. Those that are listed already
// are left out.
func (v *viewer) inUse(
	ctx context.Context, namespaces []string, listed []generation.Generation,
) ([]generation.Generation, error) {
	found := make([]map[int]int, len(namespaces)) // shards by number
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(probesAtOnce)
	for i, ns := range namespaces {
		Go(group, func() (err error) {
			found[i], err = v.inUseIn(ctx, ns, listed)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	shards := map[int]int{}
	for _, one := range found {
		for number, n := range one {
			shards[number] = max(shards[number], n)
		}
	}
	var used []generation.Generation
	for _, number := range slices.Sorted(maps.Keys(shards)) {
		used = append(used, generation.Generation{Number: number, Shards: shards[number]})
	}
	return used, nil
}

// inUseIn returns the numbers of shards of the generations in use in one namespace.
func (v *viewer) inUseIn(ctx context.Context, namespace string, listed []generation.Generation) (map[int]int, error) {
	numbers, tooHigh, err := shardquery.InUse(ctx, v.store.Store, v.target.Target, namespace, v.clock.now, inUsePatience)
	if err != nil {
		return nil, err
	}
	if tooHigh > 0 {
		v.log.WarnContext(ctx, "generation number too high: its entities lie in no range, and are kept",
			"generation", fmt.Sprintf("%08d", tooHigh), "highest", shardquery.LastBelieved, "namespace", namespace)
	}
	shards := map[int]int{}
	for _, number := range append([]int{expirykey.Nursery}, numbers...) {
		if slices.ContainsFunc(listed, func(g generation.Generation) bool { return g.Number == number }) {
			continue
		}
		shards[number], err = shardquery.ShardsInUse(ctx, v.store.Store, v.target.Target, namespace, number, v.target.Shards,
			probePatience)
		if err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// lastDropped returns the last generation that was ever dropped from the target's
// index; 0 if none was. The store refuses its keys for good, so the next one must come
// after it.
func (v *viewer) lastDropped(ctx context.Context) (number int, err error) {
	d, ok := v.store.Store.(store.Dropper)
	if !ok {
		return 0, nil
	}
	var to string
	err = patiently(ctx, func(ctx context.Context) (err error) {
		to, err = d.Dropped(ctx, v.target.Target)
		return err
	})
	if err != nil || to == "" {
		return 0, err
	}
	number, _, _ = expirykey.GenerationOf(to)
	return number, nil
}

// probe looks for generations in use once more: when all writers that stamped by a lost
// record must have committed, since a generation that was empty when the new record was made,
// or that an index did not show yet, may hold entities now; and as soon as a deployment joins
// before that, with other namespaces, since the first probe did not go there.
func (c *collector) probe(ctx context.Context, p *plan.Plan) error {
	v := c.viewer
	was := v.View().Record
	if due := was.Probe; !c.cfg.Apply || due.IsZero() || c.clock.Now().Before(due) {
		return nil // another process was faster, and generations may have retired since
	}
	namespaces, err := c.allNamespaces(ctx, p)
	if err != nil {
		return err
	}
	used, err := v.inUse(ctx, namespaces, was.Live())
	if err != nil {
		return err
	}
	floor, err := v.lastDropped(ctx)
	if err != nil {
		return err
	}
	var next generation.Record
	err = v.changeRecord(ctx, func(is generation.Record, now time.Time) (_ generation.Record, changed bool, err error) {
		next = generation.Record{}
		if !is.Probe.Equal(was.Probe) || !is.Created.Equal(was.Created) {
			return is, false, nil // another process was faster, or wrote a new record, which wants a probe of its own
		}
		if next, err = is.Adopt(used, floor, c.rules.Policy, now); err != nil {
			return next, false, err
		}
		if last := next.ProbeLater(c.rules.Policy); last.Probe.After(now) { // this one was early, for new namespaces
			next = last
		}
		return next, true, nil
	})
	if err != nil {
		return err
	}
	if len(used) > 0 && len(next.Generations) > 0 {
		c.log.WarnContext(ctx, "found generations in use that the target record did not list; listed them",
			"generations", numbersOf(used), "newest", next.Generations[len(next.Generations)-1].Number)
	}
	return nil
}

// allNamespaces lists the namespaces that any deployment sweeps.
func (c *collector) allNamespaces(ctx context.Context, p *plan.Plan) ([]string, error) {
	switch names := p.Swept(); {
	case !slices.Equal(names, []string{cursor.AllNamespaces}):
		return names, nil
	case slices.Equal(c.rules.Namespaces, names): // this one, too: it has listed them
		return c.viewer.View().Namespaces, nil
	}
	return c.viewer.listNamespaces(ctx)
}

// tellBegin logs which generations the first record of a target lists.
func (v *viewer) tellBegin(ctx context.Context, rec generation.Record) {
	if !rec.IsContinued() {
		return
	}
	n := len(rec.Generations)
	v.log.WarnContext(ctx, "target has no record, but generations are in use: "+
		"they count as closed, and the next one opens",
		"generations", numbersOf(rec.Generations[:n-1]), "next", rec.Generations[n-1].Number, "apply", v.apply)
}

// numbersOf lists the numbers of generations.
func numbersOf(list []generation.Generation) (numbers []int) {
	for _, g := range list {
		numbers = append(numbers, g.Number)
	}
	return numbers
}
