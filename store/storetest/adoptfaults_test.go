package storetest

import (
	"context"

	"github.com/reaper-ttl/reaper/store"
)

func (s spaced) Splits(ctx context.Context, t store.Target, ns string, most int) ([]string, error) {
	return s.full.Splits(ctx, in(t, ns), "", most)
}

func inWalk(q store.WalkQuery) store.WalkQuery {
	q.Target, q.Namespace = in(q.Target, q.Namespace), ""
	return q
}

func (s spaced) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	return s.full.Walk(ctx, inWalk(q), rows)
}

func (s spaced) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	return s.full.Look(ctx, inWalk(q), keys, rows)
}

func (b *broken) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	if b.look != nil {
		return b.look(ctx, q, keys, rows)
	}
	return b.full.Look(ctx, q, keys, rows)
}

func (s spaced) Restamp(ctx context.Context, b *store.Restamping) error {
	moved := &store.Restamping{Query: inWalk(b.Query), Ops: b.Ops}
	return s.full.Restamp(ctx, moved)
}

func (b *broken) Splits(ctx context.Context, t store.Target, ns string, most int) ([]string, error) {
	if b.splits != nil {
		return b.splits(ctx, t, ns, most)
	}
	return b.full.Splits(ctx, t, ns, most)
}

func (b *broken) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	if b.walk != nil {
		return b.walk(ctx, q, rows)
	}
	return b.full.Walk(ctx, q, rows)
}

func (b *broken) Restamp(ctx context.Context, r *store.Restamping) error {
	if b.restamp != nil {
		return b.restamp(ctx, r)
	}
	return b.full.Restamp(ctx, r)
}

// onRows breaks what a walk has read.
func onRows(change func(q store.WalkQuery, rows *store.Rows)) func(*broken) {
	return func(b *broken) {
		b.walk = func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
			err := b.full.Walk(ctx, q, rows)
			change(q, rows)
			return err
		}
	}
}

// withWalk reads each row of the batch again before the good store restamps it.
func withWalk(change func(op *store.RestampOp, now store.Row)) func(*broken) {
	return func(b *broken) {
		b.restamp = func(ctx context.Context, r *store.Restamping) error {
			var rows store.Rows
			q := r.Query
			q.Limit = store.MaxPage
			if err := b.full.Walk(ctx, q, &rows); err != nil {
				return err
			}
			for i := range r.Ops {
				for _, now := range rows.List {
					if now.Key == r.Ops[i].Row.Key {
						change(&r.Ops[i], now)
					}
				}
			}
			return b.full.Restamp(ctx, r)
		}
	}
}

func outcomeOf(from, to store.RestampOutcome) func(*broken) {
	return func(b *broken) {
		b.restamp = func(ctx context.Context, r *store.Restamping) error {
			err := b.full.Restamp(ctx, r)
			for i := range r.Ops {
				if r.Ops[i].Outcome == from {
					r.Ops[i].Outcome = to
				}
			}
			return err
		}
	}
}

// replacing restamps by writing the whole entity.
func replacing(b *broken) {
	b.restamp = func(ctx context.Context, r *store.Restamping) error {
		for i := range r.Ops {
			for e, err := range b.full.Dump(ctx, r.Query.Target, r.Query.Namespace) {
				if k, _ := b.full.Key(r.Query.Target, r.Query.Namespace, e); err != nil || k != r.Ops[i].Row.Key {
					continue
				}
				e.Expiry, e.Data = r.Ops[i].To, []byte(`{"created":"2026-11-21T12:00:01Z"}`)
				if err := b.full.Put(ctx, r.Query.Target, r.Query.Namespace, []store.Entity{e}); err != nil {
					return err
				}
			}
			r.Ops[i].Outcome = store.RowRestamped
		}
		return nil
	}
}

var adoptFaults = []fault{
	{"WalkShowsEveryEntity", "leaves out what has an expiry", onRows(func(_ store.WalkQuery, rows *store.Rows) {
		var list []store.Row
		for _, r := range rows.List {
			if r.Expiry.Type == store.Missing {
				list = append(list, r)
			}
		}
		rows.List = list
	})},
	{"WalkShowsEveryEntity", "takes a short page for the end", onRows(func(q store.WalkQuery, rows *store.Rows) {
		rows.More = rows.More && len(rows.List) > 3
	})},
	{"WalkShowsEveryEntity", "shows no source", onRows(func(_ store.WalkQuery, rows *store.Rows) {
		for i := range rows.List {
			rows.List[i].Source = store.Value{}
		}
	})},
	{"WalkStaysWithinItsBounds", "reads past the end", func(b *broken) {
		b.walk = func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
			q.Until = ""
			return b.full.Walk(ctx, q, rows)
		}
	}},
	{"WalkStaysWithinItsBounds", "begins at the start", func(b *broken) {
		first := true
		b.walk = func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
			if q.Until != "" && first {
				q.After, first = "", false
			}
			return b.full.Walk(ctx, q, rows)
		}
	}},
	{"WalkOfNothingEnds", "shows another kind", func(b *broken) {
		b.walk = func(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
			q.Target.Kind += "Other"
			return b.full.Walk(ctx, q, rows)
		}
	}},
	{"LookShowsThePresent", "shows what it was not asked for", func(b *broken) {
		b.look = func(ctx context.Context, q store.WalkQuery, _ []string, rows *store.Rows) error {
			q.Limit = store.MaxPage
			return b.full.Walk(ctx, q, rows)
		}
	}},
	{"LookShowsThePresent", "shows no source", func(b *broken) {
		b.look = func(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
			q.Source = ""
			return b.full.Look(ctx, q, keys, rows)
		}
	}},
	{"SplitsPartTheKeys", "does not split", func(b *broken) {
		b.splits = func(context.Context, store.Target, string, int) ([]string, error) { return nil, nil }
	}},
	{"SplitsPartTheKeys", "names splits out of order", func(b *broken) {
		b.splits = func(ctx context.Context, t store.Target, ns string, most int) ([]string, error) {
			keys, err := b.full.Splits(ctx, t, ns, most)
			keys[0], keys[len(keys)-1] = keys[len(keys)-1], keys[0]
			return keys, err
		}
	}},
	{"RestampSetsOneProperty", "writes the whole entity", replacing},
	{"RestampSetsOneProperty", "writes nothing", func(b *broken) {
		b.restamp = func(_ context.Context, r *store.Restamping) error {
			for i := range r.Ops {
				r.Ops[i].Outcome = store.RowRestamped
			}
			return nil
		}
	}},
	{"RestampLeavesANewerExpiry", "overwrites it", withWalk(func(op *store.RestampOp, now store.Row) { op.Row = now })},
	{"RestampLeavesANewerExpiry", "does not say what is there", func(b *broken) {
		b.restamp = func(ctx context.Context, r *store.Restamping) error {
			err := b.full.Restamp(ctx, r)
			for i := range r.Ops {
				r.Ops[i].Now = store.Row{}
			}
			return err
		}
	}},
	{"RestampChecksTheSource", "does not look at it", withWalk(func(op *store.RestampOp, now store.Row) { op.Row.Source = now.Source })},
	{"RestampNeverResurrects", "creates what is gone", func(b *broken) {
		b.restamp = func(ctx context.Context, r *store.Restamping) error {
			err := b.full.Restamp(ctx, r)
			for i := range r.Ops {
				if r.Ops[i].Outcome == store.RowGone {
					_ = b.full.Put(ctx, r.Query.Target, r.Query.Namespace, []store.Entity{{Name: "a", Expiry: r.Ops[i].To}})
				}
			}
			return err
		}
	}},
	{"RestampRepeatedIsSuccess", "takes its own write for another's", func(b *broken) {
		seen := map[string]bool{}
		b.restamp = func(ctx context.Context, r *store.Restamping) error {
			err := b.full.Restamp(ctx, r)
			for i := range r.Ops {
				if seen[r.Ops[i].Row.Key] {
					r.Ops[i].Outcome = store.RowChanged
				}
				seen[r.Ops[i].Row.Key] = true
			}
			return err
		}
	}},
	{"RestampRepeatedIsSuccess", "overwrites its own write", withWalk(func(op *store.RestampOp, now store.Row) { op.Row = now })},
	{"RestampRemoves", "keeps the expiry", func(b *broken) {
		b.restamp = func(ctx context.Context, r *store.Restamping) error {
			for i := range r.Ops {
				if r.Ops[i].To.Type == store.Missing {
					r.Ops[i].To = r.Ops[i].Row.Expiry
				}
			}
			return b.full.Restamp(ctx, r)
		}
	}},
	{"RestampRemoves", "says that all are restamped", outcomeOf(store.RowChanged, store.RowRestamped)},
	{"DisposeChecksThePremise", "checks the expiry alone", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			for i := range batch.Ops {
				batch.Ops[i].Premise = store.Premise{}
			}
			return b.full.Dispose(ctx, batch)
		}
	}},
}
