package shardquery

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// LastBelieved is the highest number that counts as a generation in use. With a new
// generation every minute, it takes 95 years to reach it. A key with a higher number is
// a writer's mistake, and might leave no next number.
const LastBelieved = 50_000_000

const (
	// mostInUse bounds the generations that are found: a target record could not
	// hold many more. A target that opens one an hour has 720 with a month's data.
	mostInUse = 1_000
	// mostHops bounds the queries of one probe: each text that is not an expiry key
	// may cost one.
	mostHops = 10_000
	// hopTimeout bounds one query of a probe. After a late query, the next one asks
	// for a shorter window.
	hopTimeout = 10 * time.Second
)

// InUse lists the generations, except the nursery, that hold anything in one namespace's
// index, in order. Each query asks for one entry, and the next query begins after that
// entry's generation. Malformed entries count, too, if they lie in the range of a
// generation. Generations after [LastBelieved] do not count: tooHigh is the lowest of
// them, or 0.
func InUse(
	ctx context.Context, s store.Store, t store.Target, namespace string, now func() time.Time, patience time.Duration,
) (numbers []int, tooHigh int, err error) {
	from, _ := expirykey.GenerationRange(generation.First)
	_, to := expirykey.GenerationRange(LastBelieved)
	r := &SpanReader{Store: s, Target: t, Namespace: namespace, From: from, To: to, Floor: now().AddDate(-1, 0, 0),
		Timeout: hopTimeout, Now: now}
	var page store.Page
	for hops := 0; ; hops++ {
		var more bool
		err := Patiently(ctx, patience, func() (err error) {
			more, err = r.Next(ctx, &page, 1)
			return err
		})
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("probe for generations in use: %w", err)
		case len(page.Entries) == 0 && !more:
			return numbers, firstTooHigh(ctx, s, t, namespace, to, patience), nil
		case len(page.Entries) == 0:
			continue
		case hops == mostHops || len(numbers) == mostInUse:
			err := fmt.Errorf("probe for generations in use: %d of them and %d queries are not enough, at %.80q",
				len(numbers), hops, page.Entries[0].Position().Value.Text)
			return nil, 0, store.WithHint(err, fmt.Sprintf("check that %s of %s holds expiry keys", t.Property, t.Kind))
		}
		number, next, within := expirykey.GenerationOf(page.Entries[0].Position().Value.Text)
		if within {
			numbers = append(numbers, number)
		}
		if !more {
			return numbers, firstTooHigh(ctx, s, t, namespace, to, patience), nil
		}
		lo, _ := expirykey.GenerationRange(next)
		r.Seek(store.Position{Value: store.TextValue(lo)})
	}
}

// firstTooHigh returns the lowest generation after a key that holds anything; 0 if none
// does, or if the query fails: it is only for people.
func firstTooHigh(
	ctx context.Context, s store.Store, t store.Target, namespace, from string, patience time.Duration,
) int {
	_, end := expirykey.GenerationRange(expirykey.MaxGeneration)
	e, ok, err := First(ctx, s, store.Query{Target: t, Namespace: namespace,
		Lo: store.TextValue(from), Hi: store.TextValue(end)}, patience)
	if err != nil || !ok {
		return 0
	}
	number, _, within := expirykey.GenerationOf(e.Position().Value.Text)
	if !within {
		return 0
	}
	return number
}

// ShardsInUse returns how many shards a generation seems to have in one namespace, and
// at least the given number. The last shard is the highest one that holds anything, if
// half of those before it do, too. A single shard far after them is the mistake of one
// writer, and would make thousands of empty ranges; a look past the last shard finds it.
func ShardsInUse(
	ctx context.Context, s store.Store, t store.Target, namespace string, number, atLeast int, patience time.Duration,
) (int, error) {
	found, err := Beyond(ctx, s, t, namespace, generation.Generation{Number: number, Shards: atLeast}, nil, patience)
	shards := atLeast
	for i, shard := range found {
		if 2*(i+1) >= shard+1-atLeast {
			shards = min(shard+1, expirykey.MaxShards)
		}
	}
	return shards, err
}
