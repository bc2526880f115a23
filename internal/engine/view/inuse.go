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
	"github.com/reaper-ttl/reaper/internal/engine/plan"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// inUsePatience bounds the tries at one query that looks for generations in use.
	inUsePatience = time.Minute
	// ProbePatience bounds the tries at one query that looks for extra shards.
	ProbePatience = 20 * time.Second
	// probesAtOnce is how many namespaces are probed at the same time.
	probesAtOnce = 8
)

// withCursors adds the generations that still have cursor records. The lost target record listed
// them, even if they have nothing in the index at present. The same cursors show which shards past
// the configured ones they have.
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

// InUse finds the generations, and the nursery, that hold anything in one of the namespaces,
// with as many shards as they seem to have. It leaves out those that are listed already.
func (s *source) InUse(
	ctx context.Context, namespaces []string, listed []generation.Generation,
) ([]generation.Generation, error) {
	found := make([]map[int]int, len(namespaces)) // shards by number
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(probesAtOnce)
	for i, ns := range namespaces {
		background.Go(group, func() (err error) {
			found[i], err = s.inUseIn(ctx, ns, listed)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	shards := map[int]int{}
	for _, in := range found {
		for number, n := range in {
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
func (s *source) inUseIn(ctx context.Context, namespace string, listed []generation.Generation) (map[int]int, error) {
	numbers, tooHigh, err := shardquery.InUse(ctx, s.Store.Store, s.Target, namespace, s.Clock.Local, inUsePatience)
	if err != nil {
		return nil, err
	}
	if tooHigh > 0 {
		s.Log.WarnContext(ctx, "generation number too high: its entities lie in no range, and are kept",
			"generation", fmt.Sprintf("%08d", tooHigh), "highest", shardquery.LastBelieved, "namespace", namespace)
	}
	shards := map[int]int{}
	for _, number := range append([]int{expirykey.Nursery}, numbers...) {
		if slices.ContainsFunc(listed, func(g generation.Generation) bool { return g.Number == number }) {
			continue
		}
		shards[number], err = shardquery.ShardsInUse(ctx, s.Store.Store, s.Target, namespace, number, s.Rules.Policy.Shards,
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
func (s *source) LastDropped(ctx context.Context) (number int, err error) {
	d, ok := s.Store.Store.(store.Dropper)
	if !ok {
		return 0, nil
	}
	var to string
	err = Patiently(ctx, func(ctx context.Context) (err error) {
		to, err = d.Dropped(ctx, s.Target)
		return err
	})
	if err != nil || to == "" {
		return 0, err
	}
	number, _, _ = expirykey.GenerationOf(to)
	return number, nil
}

// NumbersOf lists the numbers of generations.
func NumbersOf(list []generation.Generation) (numbers []int) {
	for _, g := range list {
		numbers = append(numbers, g.Number)
	}
	return numbers
}
