// Package shardquery turns a target's layout into ranges, and a range into
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
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// A Range is a span of one namespace's index that is swept on its own. It holds
// the expiry keys of one (generation, shard) or, with Instants, the timestamps of
// one value of the target's shard property, or all timestamps without one.
type Range struct {
	Namespace  string
	Generation int // of expiry keys
	Shard      int // of expiry keys
	Instants   bool
	Value      store.Value // of the shard property
}

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

// InstantRanges lists the ranges of a target whose property is a timestamp, one
// for each value of its shard property, or one where there are no values, in
// every namespace.
func InstantRanges(values []store.Value, namespaces []string) []Range {
	if len(values) == 0 {
		values = []store.Value{{}}
	}
	var list []Range
	for _, ns := range namespaces {
		for _, v := range values {
			list = append(list, Range{Namespace: ns, Instants: true, Value: v})
		}
	}
	return list
}

// The first and the last instant that the stores have.
var (
	FirstInstant = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	LastInstant  = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

// ShardName returns the shard as it stands in keys and records.
func (r Range) ShardName() string {
	if r.Value.Type != store.Missing {
		return r.Value.Text
	}
	number := strconv.Itoa(r.Shard) // each plan asks for each name
	return "0000"[min(len("0000"), len(number)):] + number
}

// String names the range in errors.
func (r Range) String() string {
	s := fmt.Sprintf("range %08d.%04d", r.Generation, r.Shard)
	if r.Instants {
		s = "the range of all timestamps"
	}
	if r.Value.Type != store.Missing {
		s = fmt.Sprintf("range of shard %q", r.Value.Text)
	}
	if r.Namespace != "" {
		s += "@" + r.Namespace
	}
	return s
}

// Lo returns the lowest value of the range. That of timestamps begins with the
// floor: there, unlike among expiry keys, whatever somebody once stored for an
// instant lies below.
func (r Range) Lo(floor time.Time) store.Value {
	if r.Instants {
		if floor.Before(FirstInstant) {
			floor = FirstInstant
		}
		return store.InstantValue(floor)
	}
	lo, _ := expirykey.Range(r.Generation, r.Shard)
	return store.TextValue(lo)
}

// UpTo returns the highest value of the range that expires at or before t; ok
// is false where there can be none.
func (r Range) UpTo(t time.Time) (v store.Value, ok bool) {
	switch {
	case !r.Instants:
		s, ok := expirykey.UpTo(r.Generation, r.Shard, t)
		return store.TextValue(s), ok
	case t.Before(FirstInstant):
		return store.Value{}, false
	case t.After(LastInstant):
		t = LastInstant
	}
	return store.InstantValue(t), true
}

// Resolution is the smallest difference between two instants of expiry.
func (r Range) Resolution() time.Duration {
	if r.Instants {
		return time.Microsecond
	}
	return time.Millisecond
}

// At returns the position before everything in the range that expires at t or
// later; before year 1 it is the range's start.
func (r Range) At(t time.Time) store.Position {
	v, ok := r.UpTo(t)
	if !ok {
		return store.Position{}
	}
	return store.Position{Value: v}
}

// Expires returns when an entry with this value expires. It fails for a value
// that is malformed.
func (r Range) Expires(v store.Value) (time.Time, error) {
	if r.Instants {
		return Expires(store.Instant, v)
	}
	return Expires(store.Text, v)
}

// Expires decodes the value of an expiry property whose values are of type t:
// expiry keys, or timestamps.
func Expires(t store.Type, v store.Value) (time.Time, error) {
	if v.Type != t {
		return time.Time{}, fmt.Errorf("%w: its type is %d, not %d", expirykey.ErrMalformed, v.Type, t)
	}
	if t == store.Instant {
		return v.Time, nil
	}
	k, err := expirykey.Parse(v.Text)
	return k.Expires, err
}

// Gaps returns the spans of one namespace's index that lie outside all of the
// ranges: entries there carry the property, but no sweep reads them. Timestamps
// before the floor lie there, too.
func Gaps(ranges []Range, floor time.Time) []store.Span {
	if len(ranges) > 0 && ranges[0].Instants {
		return instantGaps(ranges, floor)
	}
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Shard, b.Shard))
	})
	var gaps []store.Span
	from := ""
	for _, r := range sorted {
		lo, hi := expirykey.Range(r.Generation, r.Shard)
		if from < lo {
			gaps = append(gaps, store.Between(from, lo))
		}
		from = hi
	}
	return append(gaps, store.Between(from, ""))
}

func instantGaps(ranges []Range, floor time.Time) []store.Span {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int {
		m, whole := a.Value.Integer()
		n, _ := b.Value.Integer()
		if whole {
			return cmp.Compare(m, n)
		}
		return a.Value.Compare(b.Value)
	})
	var gaps []store.Span
	var from store.Point
	for _, r := range sorted {
		gaps = append(gaps, store.Span{From: from, To: store.Point{Shard: r.Value, Value: r.Lo(floor)}})
		from = store.Point{Shard: r.Value, Value: store.InstantValue(LastInstant), After: true}
	}
	return append(gaps, store.Span{From: from})
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
