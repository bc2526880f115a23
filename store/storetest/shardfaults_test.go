package storetest

import (
	"context"
	"errors"
	"slices"

	"github.com/reaper-ttl/reaper/store"
)

// withoutTo makes Dispose forget that ops are to be carried.
func withoutTo(b *broken) {
	b.dispose = func(ctx context.Context, batch *store.Batch) error {
		for i := range batch.Ops {
			batch.Ops[i].To = store.Value{}
		}
		return b.full.Dispose(ctx, batch)
	}
}

// rewrites carries by writing whole entities, as data makes them. If blind is set,
// it does not check them first.
func rewrites(blind bool, data func(store.Entity) store.Entity) func(*broken) {
	return func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			var all []store.Entity
			for e, err := range b.full.Dump(ctx, batch.Query.Target, batch.Query.Namespace) {
				if err != nil {
					return err
				}
				all = append(all, e)
			}
			for i := range batch.Ops {
				op := &batch.Ops[i]
				if op.To.Type == store.Missing {
					continue
				}
				at := slices.IndexFunc(all, func(e store.Entity) bool { return `"`+e.Name+`"` == op.Entry.Key })
				if at < 0 && !blind {
					op.Outcome = store.Gone
					continue
				}
				e := store.Entity{Name: op.Entry.Key[1 : len(op.Entry.Key)-1]}
				if at >= 0 {
					e = all[at]
				}
				if !blind && e.Expiry != op.Entry.Value {
					op.Outcome = store.Changed
					continue
				}
				e.Expiry, op.Outcome = op.To, store.Carried
				if err := b.full.Put(ctx, batch.Query.Target, batch.Query.Namespace, []store.Entity{data(e)}); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

func same(e store.Entity) store.Entity { return e }

var carryFaults = []fault{
	{"CarryChangesOnlyTheExpiry", "deletes what it should carry", withoutTo},
	{"CarryChangesOnlyTheExpiry", "loses the data", rewrites(false, func(e store.Entity) store.Entity { e.Data = nil; return e })},
	{"CarryChangesOnlyTheExpiry", "carries nothing", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			for i := range batch.Ops {
				batch.Ops[i].Outcome = store.Carried
			}
			return nil
		}
	}},
	{"CarryKeepsWhatChanged", "does not look", rewrites(true, same)},
	{"CarryFindsGone", "brings back what was deleted", rewrites(true, same)},
	{"CarryRepeatedIsHarmless", "deletes what it carried before", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			err := b.full.Dispose(ctx, batch)
			for _, op := range batch.Ops {
				if op.Outcome == store.Carried && op.Known {
					_, one := b.full.Settle(ctx, batch.Query, op.Entry, func(store.Value) store.Verdict { return store.Delete })
					err = errors.Join(err, one)
				}
			}
			return err
		}
	}},
	{"CarryInADryRun", "ignores a dry run", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			batch.DryRun = false
			return b.full.Dispose(ctx, batch)
		}
	}},
	{"SettleCarries", "deletes instead", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		_, err := b.full.Settle(ctx, q, e, func(v store.Value) store.Verdict {
			if _, carry := decide(v).To(); carry {
				return store.Delete
			}
			return store.Keep
		})
		return store.Carried, err
	})},
	{"SettleCarries", "keeps instead", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		_, err := b.full.Settle(ctx, q, e, func(v store.Value) store.Verdict { decide(v); return store.Keep })
		return store.Carried, err
	})},
}

// unsharded makes a store that has one index on the expiry property alone.
func unsharded(b *broken) {
	plain := func(t store.Target) store.Target { t.ShardProperty = ""; return t }
	onQuery(func(q *store.Query) { q.Target = plain(q.Target) })(b)
	b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
		es = slices.Clone(es)
		for i := range es {
			es[i].Shard = store.Value{}
		}
		return b.full.Put(ctx, plain(t), ns, es)
	}
	b.dispose = func(ctx context.Context, batch *store.Batch) error {
		batch.Query.Target = plain(batch.Query.Target)
		return b.full.Dispose(ctx, batch)
	}
}

var shardFaults = []fault{
	{"ShardsAreApart", "has no shards", unsharded},
	{"ShardsAreApart", "takes integers for texts", func(b *broken) {
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			es = slices.Clone(es)
			for i := range es {
				if es[i].Shard.Type == store.Other {
					es[i].Shard.Type = store.Text
				}
			}
			return b.full.Put(ctx, t, ns, es)
		}
	}},
	{"ShardsAreApart", "ignores the bounds", onQuery(func(q *store.Query) { q.Lo, q.Hi = at(-1_000_000), at(1_000_000) })},
	{"IntegersAreShards", "takes texts for integers", onQuery(func(q *store.Query) {
		if n, ok := (store.Value{Type: store.Other, Text: q.Shard.Text}).Integer(); ok {
			q.Shard = store.IntegerValue(n)
		}
	})},
	{"IntegersAreShards", "has small integers", onQuery(func(q *store.Query) {
		if n, ok := q.Shard.Integer(); ok {
			q.Shard = store.IntegerValue(n & 0xffff)
		}
	})},
	{"ShardPositionsResume", "goes on after the value", without(func(q store.Query, e store.Entry) bool { return q.After.Key != "" && e.Value == q.After.Value })},
	{"ShardPositionsResume", "has no shards", unsharded},
	{"DisposeInAShard", "lies", lies},
	{"DisposeInAShard", "does not look", onDispose(always)},
	{"CountBetweenShards", "ignores the start", onCount(func(_ *store.Target, s *store.Span) { s.From = store.Point{} })},
	{"CountBetweenShards", "ignores the end", onCount(func(_ *store.Target, s *store.Span) { s.To = store.Point{} })},
	{"CountBetweenShards", "knows no places after a value", onCount(func(_ *store.Target, s *store.Span) { s.From.After = false })},
	{"CountBetweenShards", "counts whole shards", onCount(func(_ *store.Target, s *store.Span) { s.From.Value, s.To.Value = store.Value{}, store.Value{} })},
	{"CountBetweenShards", "knows no bound", onBound(func(int64) int64 { return 0 })},
	{"CountBetweenShards", "has the whole bound for each part", func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			if s != (store.Span{}) {
				return b.full.Count(ctx, t, ns, s, upTo)
			}
			middle := store.Point{Shard: text("x")}
			n, err := b.full.Count(ctx, t, ns, store.Span{To: middle}, upTo)
			if err != nil {
				return 0, err
			}
			m, err := b.full.Count(ctx, t, ns, store.Span{From: middle}, upTo)
			return n + m, err
		}
	}},
	{"DumpYieldsShards", "hides the shard", onDump(func(all []store.Entity) []store.Entity {
		for i := range all {
			all[i].Shard = store.Value{}
		}
		return all
	})},
}
