package view

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
)

const (
	// inUsePatience bounds the tries at one query that looks for generations in use.
	inUsePatience = time.Minute
	// ProbePatience bounds the tries at one query that looks for extra shards.
	ProbePatience = 20 * time.Second
	// probesAtOnce is how many namespaces are probed for them side by side.
	probesAtOnce = 8
)

// Begin returns the first record of a target that has none. The record lists the
// generations that are in use already: perhaps the table was swept under another name, or
// the target's record was lost. It reads the namespaces into next.
func (v *Viewer) Begin(ctx context.Context, next *plan.View) (generation.Record, error) {
	if !v.Rules.Generations {
		return plan.First(v.Rules, v.Clock.Now()), nil
	}
	if err := v.LoadNamespaces(ctx, next); err != nil {
		return generation.Record{}, err
	}
	used, err := v.InUse(ctx, next.Namespaces, nil)
	if err != nil {
		return generation.Record{}, err
	}
	floor, err := v.LastDropped(ctx)
	if err != nil {
		return generation.Record{}, err
	}
	// The record's instant is taken after all reads: by then the old record was gone.
	return plan.FirstAdopting(v.Rules, withCursors(used, v.Rules.Policy.Shards, next), floor, v.Clock.Now())
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

// InUse finds the generations, the nursery among them, that hold anything in one of the
// namespaces, with as many shards as they seem to have. Those that are listed already
// are left out.
func (v *Viewer) InUse(
	ctx context.Context, namespaces []string, listed []generation.Generation,
) ([]generation.Generation, error) {
	found := make([]map[int]int, len(namespaces)) // shards by number
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(probesAtOnce)
	for i, ns := range namespaces {
		background.Go(group, func() (err error) {
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
func (v *Viewer) inUseIn(ctx context.Context, namespace string, listed []generation.Generation) (map[int]int, error) {
	numbers, tooHigh, err := shardquery.InUse(ctx, v.Store.Store, v.Target, namespace, v.Clock.Local, inUsePatience)
	if err != nil {
		return nil, err
	}
	if tooHigh > 0 {
		v.Log.WarnContext(ctx, "generation number too high: its entities lie in no range, and are kept",
			"generation", fmt.Sprintf("%08d", tooHigh), "highest", shardquery.LastBelieved, "namespace", namespace)
	}
	shards := map[int]int{}
	for _, number := range append([]int{expirykey.Nursery}, numbers...) {
		if slices.ContainsFunc(listed, func(g generation.Generation) bool { return g.Number == number }) {
			continue
		}
		shards[number], err = shardquery.ShardsInUse(ctx, v.Store.Store, v.Target, namespace, number, v.Rules.Policy.Shards,
			ProbePatience)
		if err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// LastDropped returns the last generation that was ever dropped from the target's
// index; 0 if none was. The store refuses its keys for good, so the next one must come
// after it.
func (v *Viewer) LastDropped(ctx context.Context) (number int, err error) {
	d, ok := v.Store.Store.(store.Dropper)
	if !ok {
		return 0, nil
	}
	var to string
	err = Patiently(ctx, func(ctx context.Context) (err error) {
		to, err = d.Dropped(ctx, v.Target)
		return err
	})
	if err != nil || to == "" {
		return 0, err
	}
	number, _, _ = expirykey.GenerationOf(to)
	return number, nil
}

// tellBegin logs which generations the first record of a target lists.
func (v *Viewer) tellBegin(ctx context.Context, rec generation.Record) {
	if !rec.IsContinued() {
		return
	}
	n := len(rec.Generations)
	v.Log.WarnContext(ctx, "target has no record, but generations are in use: "+
		"they count as closed, and the next one opens",
		"generations", NumbersOf(rec.Generations[:n-1]), "next", rec.Generations[n-1].Number, "apply", v.Apply)
}

// NumbersOf lists the numbers of generations.
func NumbersOf(list []generation.Generation) (numbers []int) {
	for _, g := range list {
		numbers = append(numbers, g.Number)
	}
	return numbers
}
