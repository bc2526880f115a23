// Package shardquery turns the ranges of a target's layout into
// bounded queries: pages in key order that go on from a start position, in
// windows that shrink when a query takes too long.
//
// The invariant is that the pages of a [Reader], or of a [SpanReader], hold every
// entry between its start position and its end exactly once, in order, whatever
// queries failed and were repeated in between.
//
// Limits: a reader makes one query a call, with a deadline of its own. It neither
// waits nor repeats a failed query: its caller does, for example with
// [Patiently]. It keeps no page.
package shardquery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/store"
)

// A Range is a span of one namespace's index that is swept on its own.
type Range = layout.Range

// The first and the last instant that the stores have.
var FirstInstant, LastInstant = layout.FirstInstant, layout.LastInstant

// Ranges lists the ranges of the given generations in every namespace, in the
// order of generations: shard by shard, so that neighbours in the list lie on
// different tablets if possible.
func Ranges(generations []generation.Generation, namespaces []string) []Range {
	var list []Range
	for _, g := range generations {
		for _, ns := range namespaces {
			for shard := range g.Shards {
				list = append(list, Range{Namespace: ns, Generation: g.Number, Shard: shard})
			}
		}
	}
	return list
}

// Beyond looks for entries in shards of a generation past its last one, as a
// writer with another shard count leaves them, and returns those shards in
// order. It passes over the shards that are known, and what was deleted in them.
// It asks for one entry a shard, and has patience, by [First], with each of these
// queries.
func Beyond(
	ctx context.Context, s store.Store, t store.Target, namespace string, g generation.Generation, known []int,
	patience time.Duration,
) ([]int, error) {
	known = slices.Sorted(slices.Values(known))
	var found []int
	for next := g.Shards; next <= expirykey.MaxShard; {
		i, isKnown := slices.BinarySearch(known, next)
		if isKnown {
			next++
			continue
		}
		_, end := expirykey.GenerationRange(g.Number)
		if i < len(known) {
			end = expirykey.Prefix(g.Number, known[i])
		}
		e, ok, err := First(ctx, s, store.Query{Target: t, Namespace: namespace,
			Lo: store.TextValue(expirykey.Prefix(g.Number, next)), Hi: store.TextValue(end)}, patience)
		switch {
		case err != nil:
			return nil, fmt.Errorf("look past shard %04d of generation %08d: %w", next-1, g.Number, err)
		case !ok && i == len(known):
			return found, nil
		case !ok:
			next = known[i]
			continue
		}
		value := e.Position().Value.Text
		after, _ := expirykey.NextShard(g.Number, value)
		// What lies in a shard's range may be malformed: a sweep counts it.
		if strings.HasPrefix(value, expirykey.Prefix(g.Number, after-1)) {
			found = append(found, after-1)
		}
		next = after
	}
	return found, nil
}

// NextShard looks for the first entry of a generation, in one namespace, from a shard on. It
// returns the shard in whose range that entry lies, whether or not it is well-formed; found
// is false if no entry does, or if it lies between two ranges. Next is the shard to look from
// for others, and more is false if no shard follows.
func NextShard(
	ctx context.Context, s store.Store, t store.Target, namespace string, number, from int, patience time.Duration,
) (shard int, found bool, next int, more bool, err error) {
	_, end := expirykey.GenerationRange(number)
	e, ok, err := First(ctx, s, store.Query{Target: t, Namespace: namespace,
		Lo: store.TextValue(expirykey.Prefix(number, from)), Hi: store.TextValue(end)}, patience)
	if err != nil || !ok {
		return 0, false, 0, false, err
	}
	value := e.Position().Value.Text
	next, more = expirykey.NextShard(number, value)
	return next - 1, strings.HasPrefix(value, expirykey.Prefix(number, next-1)), next, more, nil
}

// First returns the first entry of a query, if there is one. It repeats a query
// that fails for a passing reason while patience lasts.
func First(
	ctx context.Context, s store.Store, q store.Query, patience time.Duration,
) (e store.Entry, ok bool, err error) {
	q.Limit = 1
	var page store.Page
	for {
		err := store.Retry(ctx, patience, func() error {
			ctx, cancel := context.WithTimeout(ctx, queryTimeout)
			defer cancel()
			return s.Scan(ctx, q, &page)
		})
		if err != nil {
			return store.Entry{}, false, err
		}
		if len(page.Entries) > 0 {
			return page.Entries[0], true, nil
		}
		if q.Next = page.Next; !page.More {
			return store.Entry{}, false, nil
		}
	}
}
