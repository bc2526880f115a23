package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// TestModelKeepsArchives runs the cases of archives on the model store, too.
func TestModelKeepsArchives(t *testing.T) {
	for _, c := range archiveCases {
		t.Run(c.name, func(t *testing.T) {
			if report := runCase(t, c, &broken{full: modelled(t)}, goodCaps()); report != "" {
				t.Fatal(report)
			}
		})
	}
}

func (s spaced) Fetch(ctx context.Context, t store.Target, ns string, keys []string, at time.Time) ([]store.Copy, error) {
	return s.full.Fetch(ctx, in(t, ns), "", keys, at)
}

func (s spaced) Insert(ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
	return s.full.Insert(ctx, in(t, ns), "", list)
}

func (m model) Settle(
	ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
) (store.Outcome, error) {
	return m.model.Settle(ctx, q, e, decide)
}

func (m model) Dump(_ context.Context, t store.Target, ns string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		rows := m.model.Entities(t.Kind, ns)
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			if !yield(rows[key], nil) {
				return
			}
		}
	}
}

func (m model) Archives(t store.Target) error { return m.model.Archives(t) }

func (m model) Fetch(ctx context.Context, t store.Target, ns string, keys []string, at time.Time) ([]store.Copy, error) {
	return m.model.Fetch(ctx, t, ns, keys, at)
}

func (m model) Insert(ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
	return m.model.Insert(ctx, t, ns, list)
}

func (b *broken) Fetch(ctx context.Context, t store.Target, ns string, keys []string, at time.Time) ([]store.Copy, error) {
	if b.fetch != nil {
		return b.fetch(ctx, t, ns, keys)
	}
	return b.full.Fetch(ctx, t, ns, keys, at)
}

func (b *broken) Insert(ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
	if b.insert != nil {
		return b.insert(ctx, t, ns, list)
	}
	return b.full.Insert(ctx, t, ns, list)
}

// A keeper is an Archive that is a function.
type keeper struct {
	keep func(ctx context.Context, list []store.Copy) error
}

func (k *keeper) Keep(ctx context.Context, list []store.Copy) error { return k.keep(ctx, list) }

// onArchive breaks the Archive of each call that deletes.
func onArchive(change func(b *broken, ctx context.Context, a store.Archive, list []store.Copy) error) func(*broken) {
	return func(b *broken) {
		wrap := func(a store.Archive) store.Archive {
			if a == nil {
				return nil
			}
			return &keeper{func(ctx context.Context, list []store.Copy) error { return change(b, ctx, a, list) }}
		}
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			a := batch.Query.Archive
			batch.Query.Archive = wrap(a)
			err := b.full.Dispose(ctx, batch)
			batch.Query.Archive = a
			return err
		}
		b.settle = func(
			ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
		) (store.Outcome, error) {
			q.Archive = wrap(q.Archive)
			return b.full.Settle(ctx, q, e, decide)
		}
		b.deleteBelow = func(
			ctx context.Context, q store.Query, e store.Entry, list []store.Descendant, isDue func(store.Value) bool,
		) (store.Outcome, error) {
			q.Archive = wrap(q.Archive)
			return b.full.DeleteBelow(ctx, q, e, list, isDue)
		}
	}
}

// onCopies breaks what an Archive is given.
func onCopies(change func(list []store.Copy) []store.Copy) func(*broken) {
	return onArchive(func(_ *broken, ctx context.Context, a store.Archive, list []store.Copy) error {
		if list = change(list); len(list) == 0 {
			return nil
		}
		return a.Keep(ctx, list)
	})
}

func onEachCopy(change func(c *store.Copy)) func(*broken) {
	return onCopies(func(list []store.Copy) []store.Copy {
		for i := range list {
			change(&list[i])
		}
		return list
	})
}

var (
	keepsNothing = onCopies(func([]store.Copy) []store.Copy { return nil })
	deletesOnce  = onArchive(func(_ *broken, ctx context.Context, a store.Archive, list []store.Copy) error {
		_ = a.Keep(ctx, list)
		return nil
	})
)

// keepAll gives an Archive copies of what exists with the keys.
func (b *broken) keepAll(ctx context.Context, q store.Query, keys ...string) error {
	for len(keys) > 0 {
		list, err := b.full.Fetch(ctx, q.Target, q.Namespace, keys, time.Time{})
		if err != nil {
			return err
		}
		keys = keys[len(list):]
		list = slices.DeleteFunc(list, func(c store.Copy) bool { return c.Data == nil })
		if err := q.Archive.Keep(ctx, list); err != nil {
			return err
		}
	}
	return nil
}

// keepsFirst keeps those of a batch that which says before anything else.
func keepsFirst(which func(batch *store.Batch, op store.Op) bool) func(*broken) {
	return func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			for _, op := range batch.Ops {
				if batch.Query.Archive != nil && which(batch, op) {
					if err := b.keepAll(ctx, batch.Query, op.Entry.Key); err != nil {
						return err
					}
				}
			}
			return b.full.Dispose(ctx, batch)
		}
	}
}

// unchecked keeps copies, and then deletes whatever is there.
func unchecked(b *broken) {
	b.settle = func(
		ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
	) (store.Outcome, error) {
		if q.Archive == nil {
			return b.full.Settle(ctx, q, e, decide)
		}
		return b.deleteUnchecked(ctx, q, e)
	}
	b.dispose = func(ctx context.Context, batch *store.Batch) error {
		if batch.Query.Archive == nil {
			return b.full.Dispose(ctx, batch)
		}
		for i := range batch.Ops {
			var err error
			if batch.Ops[i].Outcome, err = b.deleteUnchecked(ctx, batch.Query, batch.Ops[i].Entry); err != nil {
				return err
			}
		}
		return nil
	}
}

func (b *broken) deleteUnchecked(ctx context.Context, q store.Query, e store.Entry) (store.Outcome, error) {
	if err := b.keepAll(ctx, q, e.Key); err != nil {
		return store.Unknown, err
	}
	q.Archive = nil
	return b.full.Settle(ctx, q, e, verdict(store.Delete))
}

// keepsAfter deletes first.
func keepsAfter(b *broken) {
	b.dispose = func(ctx context.Context, batch *store.Batch) error {
		q := batch.Query
		var keys []string
		for _, op := range batch.Ops {
			keys = append(keys, op.Entry.Key)
		}
		list, err := b.full.Fetch(ctx, q.Target, q.Namespace, keys, time.Time{})
		batch.Query.Archive = nil
		err = errors.Join(err, b.full.Dispose(ctx, batch))
		if batch.Query = q; q.Archive != nil && err == nil {
			err = q.Archive.Keep(ctx, list)
		}
		return err
	}
}

// remembers shows an Archive what was there at the scan.
func remembers(b *broken) {
	seen := map[string]store.Copy{}
	onEachCopy(func(c *store.Copy) { *c = seen[c.Key] })(b)
	b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
		err := b.full.Scan(ctx, q, p)
		list, ferr := b.full.Fetch(ctx, q.Target, q.Namespace, keys(p.Entries), time.Time{})
		for _, c := range list {
			if _, ok := seen[c.Key]; !ok {
				seen[c.Key] = c
			}
		}
		return errors.Join(err, ferr)
	}
}

// onParts breaks what becomes of the ops that a call leaves.
func onParts(change func(ctx context.Context, b *broken, batch *store.Batch, op *store.Op) error) func(*broken) {
	return func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			err := b.full.Dispose(ctx, batch)
			for i := range batch.Ops {
				if err == nil && batch.Ops[i].Outcome == store.Unknown {
					err = change(ctx, b, batch, &batch.Ops[i])
				}
			}
			return err
		}
	}
}

// onInsertions breaks what is to be inserted.
func onInsertions(change func(one *store.Insertion)) func(*broken) {
	return func(b *broken) {
		b.insert = func(ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			changed := slices.Clone(list)
			for i := range changed {
				change(&changed[i])
			}
			err := b.full.Insert(ctx, t, ns, changed)
			for i := range list {
				list[i].Outcome = changed[i].Outcome
			}
			return err
		}
	}
}

// inserts breaks what becomes of insertions.
func inserts(from, to store.Outcome) func(*broken) {
	return func(b *broken) {
		b.insert = func(ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			err := b.full.Insert(ctx, t, ns, list)
			for i := range list {
				if err == nil && list[i].Outcome == from {
					list[i].Outcome = to
				}
			}
			return err
		}
	}
}

// onInsert breaks Insert.
func onInsert(do func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error) func(*broken) {
	return func(b *broken) {
		b.insert = func(ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			return do(b, ctx, t, ns, list)
		}
	}
}

// onFetched breaks what Fetch returns.
func onFetched(change func(list []store.Copy) []store.Copy) func(*broken) {
	return func(b *broken) {
		b.fetch = func(ctx context.Context, t store.Target, ns string, keys []string) ([]store.Copy, error) {
			list, err := b.full.Fetch(ctx, t, ns, keys, time.Time{})
			return change(list), err
		}
	}
}

var archiveFaults = slices.Concat([]fault{
	{"ArchiveHasWhatIsDeleted", "keeps nothing", keepsNothing},
	{"ArchiveHasWhatIsDeleted", "keeps all but one", onCopies(func(list []store.Copy) []store.Copy { return list[1:] })},
	{"ArchiveHasWhatIsDeleted", "keeps several lines", onEachCopy(func(c *store.Copy) { c.Data = append(c.Data, '\n') })},
	{"ArchiveHasWhatIsDeleted", "keeps no expiry", onEachCopy(func(c *store.Copy) { c.Expiry = store.Value{} })},
	{"ArchiveHasWhatIsDeleted", "keeps another version", onEachCopy(func(c *store.Copy) { c.Version += "1" })},
	{"ArchiveHasWhatIsDeleted", "keeps keys alone", onEachCopy(func(c *store.Copy) { c.Data = []byte("{}") })},
	{"ArchiveHasWhatIsDeleted", "keeps data in disorder", onCopies(func(list []store.Copy) []store.Copy {
		list[0].Data, list[1].Data = list[1].Data, list[0].Data
		return list
	})},
	{"ArchiveHasThePresent", "keeps what the scan saw", remembers},
	{"ArchiveFailsSoNothingIsDeleted", "deletes anyway", deletesOnce},
	{"ArchiveFailsSoNothingIsDeleted", "keeps what it has deleted", keepsAfter},
	{"ArchiveFailsSoNothingIsDeleted", "reports success", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			if err := b.full.Dispose(ctx, batch); !errors.Is(err, errShelf) {
				return err
			}
			return nil
		}
	}},
	{"ArchiveFailsSoNothingIsDeleted", "says what failed in words alone", onArchive(
		func(_ *broken, ctx context.Context, a store.Archive, list []store.Copy) error {
			if err := a.Keep(ctx, list); err != nil {
				return fmt.Errorf("%w: %s", store.ErrFailed, err.Error())
			}
			return nil
		})},
	{"ArchiveMeetsAWriter", "deletes whatever is there", unchecked},
	{"ArchiveLacksWhatStays", "keeps what it carries", keepsFirst(func(_ *store.Batch, op store.Op) bool { return op.IsCarry() })},
	{"ArchiveLacksWhatStays", "keeps what it refuses", keepsFirst(func(_ *store.Batch, op store.Op) bool {
		return strings.Contains(op.Entry.Key, "e-0002")
	})},
	{"ArchiveLacksWhatStays", "keeps what a premise saves", keepsFirst(func(_ *store.Batch, op store.Op) bool {
		return op.Premise.Property != ""
	})},
	{"ArchiveLacksDryRuns", "keeps what it would delete", keepsFirst(func(b *store.Batch, _ store.Op) bool { return b.DryRun })},
	{"ArchiveTakesParts", "deletes the rest without a copy", onParts(
		func(ctx context.Context, b *broken, batch *store.Batch, op *store.Op) (err error) {
			q := batch.Query
			q.Archive = nil
			op.Outcome, err = b.full.Settle(ctx, q, op.Entry, verdict(store.Delete))
			return err
		})},
	{"ArchiveTakesParts", "says that it deleted the rest", onParts(
		func(_ context.Context, _ *broken, _ *store.Batch, op *store.Op) error {
			op.Outcome = store.Deleted
			return nil
		})},
	{"ArchiveTakesParts", "leaves the same each time", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			if slices.ContainsFunc(batch.Ops, func(op store.Op) bool { return strings.Contains(op.Entry.Key, "large-0") }) {
				return b.full.Dispose(ctx, batch)
			}
			return nil
		}
	}},
	{"ArchiveStopsWithItsContext", "does not look at it again", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return errors.Join(b.full.Dispose(context.WithoutCancel(ctx), batch), ctx.Err())
		}
	}},
	{"ArchiveStopsWithItsContext", "fetches whatever it says", func(b *broken) {
		b.fetch = func(ctx context.Context, t store.Target, ns string, keys []string) ([]store.Copy, error) {
			return b.full.Fetch(context.WithoutCancel(ctx), t, ns, keys, time.Time{})
		}
	}},
	{"ArchiveStopsWithItsContext", "inserts whatever it says", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			return errors.Join(b.full.Insert(context.WithoutCancel(ctx), t, ns, list), ctx.Err())
		})},
}, archiveSettleFaults, fetchFaults, insertFaults)

var archiveSettleFaults = []fault{
	{"ArchiveOfASettle", "keeps nothing", keepsNothing},
	{"ArchiveOfASettle", "keeps what stays", func(b *broken) {
		b.settle = func(
			ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
		) (store.Outcome, error) {
			if q.Archive != nil {
				if err := b.keepAll(ctx, q, e.Key); err != nil {
					return store.Unknown, err
				}
			}
			return b.full.Settle(ctx, q, e, decide)
		}
	}},
	{"ArchiveOfASettleMeetsAWriter", "deletes whatever is there", unchecked},
	{"ArchiveOfDescendants", "keeps nothing", keepsNothing},
	{"ArchiveOfDescendants", "deletes anyway", deletesOnce},
	{"ArchiveOfDescendants", "keeps what is not due", onDeleteBelow(func(d *deletion) (store.Outcome, error) {
		if d.query.Archive != nil {
			if err := d.keepAll(d.ctx, d.query, belowKeys(d.list)...); err != nil {
				return store.Unknown, err
			}
		}
		return d.do()
	})},
	{"ArchiveOfDescendants", "inserts none", onInsert(
		func(_ *broken, _ context.Context, _ store.Target, _ string, list []store.Insertion) error {
			for i := range list {
				list[i].Outcome = store.Inserted
			}
			return nil
		})},
}

var fetchFaults = []fault{
	{"FetchKeepsTheOrder", "leaves out what is missing", onFetched(func(list []store.Copy) []store.Copy {
		return slices.DeleteFunc(list, func(c store.Copy) bool { return c.Data == nil })
	})},
	{"FetchKeepsTheOrder", "sorts", onFetched(func(list []store.Copy) []store.Copy {
		slices.SortFunc(list, func(a, b store.Copy) int { return strings.Compare(a.Key, b.Key) })
		return list
	})},
	{"FetchKeepsTheOrder", "returns nothing of what is too long", func(b *broken) {
		b.fetch = func(ctx context.Context, t store.Target, ns string, keys []string) ([]store.Copy, error) {
			list, err := b.full.Fetch(ctx, t, ns, keys, time.Time{})
			if len(list) < len(keys) {
				list = nil
			}
			return list, err
		}
	}},
	{"FetchKeepsTheOrder", "fails for what is missing", func(b *broken) {
		b.fetch = func(ctx context.Context, t store.Target, ns string, keys []string) ([]store.Copy, error) {
			list, err := b.full.Fetch(ctx, t, ns, keys, time.Time{})
			if slices.ContainsFunc(list, func(c store.Copy) bool { return c.Data == nil }) {
				return nil, store.ErrNotFound
			}
			return list, err
		}
	}},
	{"FetchKeepsTheOrder", "shows no data", onFetched(func(list []store.Copy) []store.Copy {
		for i := range list {
			list[i].Data = nil
		}
		return list
	})},
}

var insertFaults = []fault{
	{"InsertRestores", "forgets the data", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			err := b.full.Insert(ctx, t, ns, list)
			return errors.Join(err, b.full.Put(ctx, t, ns, []store.Entity{{Name: "all", Expiry: key(3)}}))
		})},
	{"InsertRestores", "inserts into one namespace alone", onInsert(
		func(b *broken, ctx context.Context, t store.Target, _ string, list []store.Insertion) error {
			return b.full.Insert(ctx, t, "", list)
		})},
	{"InsertRestores", "sets an expiry in spite of AsIs", onInsertions(func(one *store.Insertion) { one.AsIs = false })},
	{"InsertNeverOverwrites", "overwrites", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			for _, one := range list {
				q := store.Query{Target: t, Namespace: ns}
				if _, err := b.full.Settle(ctx, q, store.Entry{Key: one.Key}, verdict(store.Delete)); err != nil {
					return err
				}
			}
			return b.full.Insert(ctx, t, ns, list)
		})},
	{"InsertNeverOverwrites", "says that it inserted what is there", inserts(store.Kept, store.Inserted)},
	{"InsertNeverOverwrites", "inserts none if one is there", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			for i := range list {
				there, err := b.full.Fetch(ctx, t, ns, []string{list[i].Key}, time.Time{})
				if err != nil || there[0].Data != nil {
					return fmt.Errorf("%w: %w", store.ErrConflict, err)
				}
			}
			return b.full.Insert(ctx, t, ns, list)
		})},
	{"InsertSetsTheExpiry", "keeps what the copy has", onInsertions(func(one *store.Insertion) { one.AsIs = true })},
	{"InsertSetsTheExpiry", "takes no expiry for the old one", onInsertions(func(one *store.Insertion) {
		one.AsIs = one.AsIs || one.To.Type == store.Missing
	})},
	{"InsertSetsTheExpiry", "does not look at AsIs", onInsertions(func(one *store.Insertion) { one.AsIs = false })},
	{"InsertRefusesBadLists", "takes the first of two", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			if len(list) == 3 {
				list = list[:2]
			}
			return b.full.Insert(ctx, t, ns, list)
		})},
	{"InsertRefusesBadLists", "calls it too large", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			if len(list) > store.MaxPage {
				return store.ErrTooLarge
			}
			return b.full.Insert(ctx, t, ns, list)
		})},
	{"InsertTakesParts", "says that it inserted the rest", inserts(store.Unknown, store.Inserted)},
	{"InsertTakesParts", "inserts nothing of a long list", onInsert(
		func(b *broken, ctx context.Context, t store.Target, ns string, list []store.Insertion) error {
			if len(list) > 2 {
				return nil
			}
			return b.full.Insert(ctx, t, ns, list)
		})},
}
