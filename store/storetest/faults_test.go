package storetest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// A fault is a store that one case must refuse.
type fault struct {
	name   string // of the case
	what   string // "a store that …"
	breaks func(*broken)
}

// onPage breaks what a scan has read.
func onPage(change func(q store.Query, p *store.Page)) func(*broken) {
	return func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			err := b.full.Scan(ctx, q, p)
			change(q, p)
			return err
		}
	}
}

// without removes entries from a page.
func without(drop func(q store.Query, e store.Entry) bool) func(*broken) {
	return onPage(func(q store.Query, p *store.Page) {
		p.Entries = slices.DeleteFunc(p.Entries, func(e store.Entry) bool { return drop(q, e) })
	})
}

// onQuery breaks what a scan is asked for.
func onQuery(change func(q *store.Query)) func(*broken) {
	return func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			change(&q)
			return b.full.Scan(ctx, q, p)
		}
	}
}

// onOps breaks what Dispose reports.
func onOps(change func(op *store.Op)) func(*broken) {
	return func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			err := b.full.Dispose(ctx, batch)
			for i := range batch.Ops {
				change(&batch.Ops[i])
			}
			return err
		}
	}
}

// onDispose makes Dispose go entity by entity, deleting those that may says.
func onDispose(may func(op store.Op, now store.Value) bool) func(*broken) {
	return func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			for i := range batch.Ops {
				op := &batch.Ops[i]
				o, err := b.full.Settle(ctx, batch.Query, op.Entry, func(now store.Value) store.Verdict {
					if may(*op, now) && !batch.DryRun {
						return store.Delete
					}
					return store.Keep
				})
				if err != nil {
					return err
				}
				if op.Outcome = o; o == store.Kept {
					op.Outcome = store.Changed
				}
			}
			return nil
		}
	}
}

func always(store.Op, store.Value) bool { return true }

// lies reports deletes and makes none.
func lies(b *broken) {
	b.dispose = func(ctx context.Context, batch *store.Batch) error {
		batch.DryRun = true
		err := b.full.Dispose(ctx, batch)
		batch.DryRun = false
		return err
	}
}

// onSave breaks Save, given the record that is there.
func onSave(change func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error) func(*broken) {
	return func(b *broken) {
		b.save = func(ctx context.Context, r store.Record, prev string) error {
			recs, err := b.full.Load(ctx, store.RecordQuery{Sort: r.Sort, Target: r.Target})
			if err != nil {
				return err
			}
			var there *store.Record
			if i := slices.IndexFunc(recs.List, func(o store.Record) bool { return o.Key == r.Key }); i >= 0 {
				there = &recs.List[i]
			}
			return change(b, ctx, r, prev, there)
		}
	}
}

// lastWins saves whatever the revision is.
var lastWins = onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
	for {
		err := b.full.Save(ctx, r, prev)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		recs, err := b.full.Load(ctx, store.RecordQuery{Sort: r.Sort, Target: r.Target})
		if err != nil {
			return err
		}
		prev = ""
		for _, o := range recs.List {
			if o.Key == r.Key {
				prev = o.Revision
			}
		}
	}
})

func onRecords(change func(recs *store.Records)) func(*broken) {
	return func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			recs, err := b.full.Load(ctx, q)
			change(&recs)
			return recs, err
		}
	}
}

func onSettle(change func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error)) func(*broken) {
	return func(b *broken) {
		b.settle = func(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
			return change(b, ctx, q, e, decide)
		}
	}
}

// parses reports whether a value is an expiry key.
func parses(v store.Value) bool {
	_, err := expirykey.Parse(v.Text)
	return v.Type == store.Text && err == nil
}

var faults = slices.Concat(scanFaults, disposeFaults, settleFaults, carryFaults, shardFaults, recordFaults, extraFaults,
	adoptFaults, descendFaults, archiveFaults)

var scanFaults = []fault{
	{"EmptyTargetHasNoEntries", "always has more", onPage(func(_ store.Query, p *store.Page) { p.More, p.Next = true, "next" })},
	{"EmptyTargetHasNoEntries", "leaves the page as it was", func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error { p.More = false; return nil }
	}},
	{"ScanOrdersByValue", "goes backwards", onPage(func(_ store.Query, p *store.Page) { slices.Reverse(p.Entries) })},
	{"ScanOrdersByValue", "orders by key", onPage(func(_ store.Query, p *store.Page) {
		slices.SortFunc(p.Entries, func(a, b store.Entry) int { return cmp.Compare(a.Key, b.Key) })
	})},
	{"ScanOrdersTiesByKey", "orders ties by the text of their keys, backwards", onPage(func(_ store.Query, p *store.Page) {
		slices.SortFunc(p.Entries, func(a, b store.Entry) int {
			return cmp.Or(cmp.Compare(a.Value.Text, b.Value.Text), cmp.Compare(b.Key, a.Key))
		})
	})},
	{"BoundsAreInclusive", "leaves the lower bound out", without(func(q store.Query, e store.Entry) bool { return e.Value == q.Lo })},
	{"BoundsAreInclusive", "leaves the upper bound out", without(func(q store.Query, e store.Entry) bool { return e.Value == q.Hi })},
	{"BoundsAreInclusive", "ignores the lower bound", onQuery(func(q *store.Query) { q.Lo = store.Value{} })},
	{"BoundsAreInclusive", "ignores the upper bound", onQuery(func(q *store.Query) { q.Hi = store.Value{} })},
	{"HorizonIsInclusive", "leaves the horizon out", without(func(q store.Query, e store.Entry) bool { return e.Value == q.Hi })},
	{"HorizonIsInclusive", "goes beyond the horizon", onQuery(func(q *store.Query) { q.Hi.Text += "~"; q.Hi.Text = strings.Replace(q.Hi.Text, ".002Z", ".003Z", 1) })},
	{"LimitIsRespected", "ignores the limit", onQuery(func(q *store.Query) { q.Limit = store.MaxPage })},
	{"LimitIsRespected", "never has more", onPage(func(_ store.Query, p *store.Page) { p.More = false })},
	{"LimitIsRespected", "appends to the page", func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			old := slices.Clone(p.Entries)
			err := b.full.Scan(ctx, q, p)
			p.Entries = append(old, p.Entries...)
			return err
		}
	}},
	{"PagesContinue", "begins again", onQuery(func(q *store.Query) { q.After = store.Position{} })},
	{"PagesContinue", "repeats the last entry", onQuery(func(q *store.Query) { q.After.Key = "" })},
	{"PagesContinue", "skips an entry between pages", onPage(func(q store.Query, p *store.Page) {
		if !q.After.IsZero() && len(p.Entries) > 0 {
			p.Entries = p.Entries[1:]
		}
	})},
	{"PagesContinue", "has a next page that begins again", func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			if q.Next != nil {
				q.After = store.Position{}
			}
			err := b.full.Scan(ctx, q, p)
			p.Next = "next"
			return err
		}
	}},
	{"PositionResumesWithinTies", "goes on after the value", without(func(q store.Query, e store.Entry) bool { return e.Value == q.After.Value })},
	{"PositionResumesWithinTies", "begins again at the value", onQuery(func(q *store.Query) { q.After.Key = "" })},
	{"PositionWithoutKeyIsBeforeItsValue", "goes on after the value", without(func(q store.Query, e store.Entry) bool {
		return q.After.Key == "" && e.Value == q.After.Value
	})},
	{"PositionWithoutKeyIsBeforeItsValue", "goes back below the lower bound", onQuery(func(q *store.Query) {
		if !q.After.IsZero() {
			q.Lo = q.After.Value
		}
	})},
	{"IDsMayHoldAnyLegalCharacter", "does not tell names from numbers", onPage(func(_ store.Query, p *store.Page) {
		for i := range p.Entries {
			p.Entries[i].Key = strings.Trim(p.Entries[i].Key, `"`)
		}
	})},
	{"IDsMayHoldAnyLegalCharacter", "unescapes what is no escape", func(b *broken) {
		onPage(func(_ store.Query, p *store.Page) {
			for i := range p.Entries {
				p.Entries[i].Key = strings.ReplaceAll(p.Entries[i].Key, "%2F", "/")
			}
		})(b)
	}},
	{"IDsMayHoldAnyLegalCharacter", "cuts long names", onPage(func(_ store.Query, p *store.Page) {
		for i, e := range p.Entries {
			if len(e.Key) > 1000 {
				p.Entries[i].Key = e.Key[:1000] + `"`
			}
		}
	})},
	{"MalformedShowsAsItIs", "hides what is malformed", without(func(_ store.Query, e store.Entry) bool { return !parses(e.Value) })},
	{"MalformedShowsAsItIs", "calls it another type", onPage(func(_ store.Query, p *store.Page) {
		for i := range p.Entries {
			if !parses(p.Entries[i].Value) {
				p.Entries[i].At, p.Entries[i].Value = p.Entries[i].Value, store.Value{Type: store.Other}
			}
		}
	})},
	{"ListShowsOnceForEachElement", "shows a list once", func(b *broken) {
		seen := make(map[string]bool)
		without(func(_ store.Query, e store.Entry) bool {
			again := seen[e.Key]
			seen[e.Key] = e.Value.Type == store.List
			return again
		})(b)
	}},
	{"ListShowsOnceForEachElement", "shows elements as plain values", onPage(func(_ store.Query, p *store.Page) {
		for i, e := range p.Entries {
			p.Entries[i].Value = e.Position().Value
		}
	})},
	{"InstantsKeepTheirMicroseconds", "keeps milliseconds", onPage(func(_ store.Query, p *store.Page) {
		for i, e := range p.Entries {
			p.Entries[i].Value.Time = e.Value.Time.Truncate(time.Millisecond)
		}
	})},
	{"InstantsKeepTheirMicroseconds", "leaves the horizon out", without(func(q store.Query, e store.Entry) bool { return e.Value == q.Hi })},
	{"OtherPropertyShowsNothing", "has one property", onQuery(func(q *store.Query) { q.Target.Property = "expiry_key" })},
	{"StepsAreCounted", "counts no steps", onPage(func(_ store.Query, p *store.Page) { p.SteppedOver = 0 })},
	{"StepsAreCounted", "counts entries, too", onPage(func(_ store.Query, p *store.Page) { p.SteppedOver += int64(len(p.Entries)) })},
}

var disposeFaults = []fault{
	{"DisposeDeletesWhatIsUnchanged", "lies", lies},
	{"DisposeDeletesWhatIsUnchanged", "deletes nothing", onDispose(func(store.Op, store.Value) bool { return false })},
	{"DisposeDeletesWhatIsUnchanged", "deletes what comes next", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			var page store.Page
			if err := b.full.Scan(ctx, batch.Query, &page); err != nil {
				return err
			}
			for _, e := range page.Entries {
				if _, err := b.full.Settle(ctx, batch.Query, e, func(store.Value) store.Verdict { return store.Delete }); err != nil {
					return err
				}
			}
			for i := range batch.Ops {
				batch.Ops[i].Outcome = store.Deleted
			}
			return nil
		}
	}},
	{"DisposeKeepsWhatWasPushedOut", "does not look", onDispose(always)},
	{"DisposeKeepsWhatWasPushedOut", "says that it is something else now", onOps(func(op *store.Op) { op.Now.Text += "x" })},
	{"DisposeKeepsWhatWasPushedOut", "says that it is gone", onOps(func(op *store.Op) {
		if op.Outcome == store.Changed {
			op.Outcome = store.Gone
		}
	})},
	{"DisposeKeepsWhatWasPulledIn", "keeps only what expires later", onDispose(func(op store.Op, now store.Value) bool { return now.Text <= op.Entry.Value.Text })},
	{"DisposeKeepsWhatWasRecreated", "does not look", onDispose(always)},
	{"DisposeIsTrueAboutSameExpiry", "lies", lies},
	{"DisposeIsTrueAboutSameExpiry", "reports what it deleted as changed", onOps(func(op *store.Op) { op.Outcome = store.Changed })},
	{"DisposeFindsGone", "calls it changed", onOps(func(op *store.Op) {
		if op.Outcome == store.Gone {
			op.Outcome = store.Changed
		}
	})},
	{"DisposeFindsGone", "calls it deleted", onOps(func(op *store.Op) {
		if op.Outcome == store.Gone {
			op.Outcome = store.Deleted
		}
	})},
	{"DisposeKeepsMalformed", "does not look", onDispose(always)},
	{"DisposeKeepsMalformed", "deletes what does not parse", onDispose(func(op store.Op, now store.Value) bool {
		return now == op.Entry.Value || now.Type == store.Text && !parses(now)
	})},
	{"DisposeKeepsMalformed", "deletes what has no expiry", onDispose(func(op store.Op, now store.Value) bool {
		return now == op.Entry.Value || now.Type == store.Missing
	})},
	{"DisposeKeepsLists", "deletes lists", onDispose(func(op store.Op, now store.Value) bool {
		return now == op.Entry.Value || now.Type == store.List
	})},
	{"DisposeKeepsWhatBecameAList", "deletes lists", onDispose(always)},
	{"DisposeOfAMixedBatch", "does not look", onDispose(always)},
	{"DisposeOfAMixedBatch", "keeps all for one", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			dry := *batch
			dry.DryRun = true
			if err := b.full.Dispose(ctx, &dry); err != nil {
				return err
			}
			if !slices.ContainsFunc(dry.Ops, func(op store.Op) bool { return op.Outcome == store.Changed }) {
				return b.full.Dispose(ctx, batch)
			}
			for i := range batch.Ops {
				batch.Ops[i].Outcome = store.Changed
			}
			return nil
		}
	}},
	{"DisposeRepeatedIsHarmless", "calls what is gone changed", onOps(func(op *store.Op) {
		if op.Outcome == store.Gone {
			op.Outcome = store.Changed
		}
	})},
	{"DisposeOfNothing", "fails on nothing", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			if len(batch.Ops) == 0 {
				return store.ErrInvalid
			}
			return b.full.Dispose(ctx, batch)
		}
	}},
	{"DryRunWritesNothing", "ignores a dry run", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			batch.DryRun = false
			return b.full.Dispose(ctx, batch)
		}
	}},
	{"DryRunWritesNothing", "bills a dry run", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			store.Bill(ctx, store.Operations{Deletes: 1})
			return b.full.Dispose(ctx, batch)
		}
	}},
	{"DryRunWritesNothing", "reports nothing of a dry run", onOps(func(op *store.Op) { op.Outcome = store.Unknown })},
	{"CancelledContextStartsNoWrite", "disposes after all", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			err := ctx.Err()
			return errors.Join(err, b.full.Dispose(context.WithoutCancel(ctx), batch))
		}
	}},
	{"CancelledContextStartsNoWrite", "settles after all", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		return b.full.Settle(context.WithoutCancel(ctx), q, e, decide)
	})},
	{"CancelledContextStartsNoWrite", "puts after all", func(b *broken) {
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			return errors.Join(ctx.Err(), b.full.Put(context.WithoutCancel(ctx), t, ns, es))
		}
	}},
	{"CancelledContextStartsNoWrite", "saves after all", func(b *broken) {
		b.save = func(ctx context.Context, r store.Record, prev string) error {
			return errors.Join(ctx.Err(), b.full.Save(context.WithoutCancel(ctx), r, prev))
		}
	}},
	{"CancelledContextStartsNoWrite", "scans on", func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			return b.full.Scan(context.WithoutCancel(ctx), q, p)
		}
	}},
	{"TwoWorkersDisposeOfOneBatch", "says deleted twice", onOps(func(op *store.Op) { op.Outcome = store.Deleted })},
	{"TwoWorkersDisposeOfOneBatch", "never says deleted", onOps(func(op *store.Op) { op.Outcome = store.Gone })},
	{"OtherKindsAreUntouched", "does not tell kinds apart", func(b *broken) {
		trim := func(t store.Target) store.Target {
			t.Kind = strings.TrimSuffix(t.Kind, "Other")
			return t
		}
		onQuery(func(q *store.Query) { q.Target = trim(q.Target) })(b)
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			return b.full.Put(ctx, trim(t), ns, es)
		}
	}},
	{"OtherNamespacesAreUntouched", "does not tell namespaces apart", func(b *broken) {
		onQuery(func(q *store.Query) { q.Namespace = "" })(b)
		b.put = func(ctx context.Context, t store.Target, _ string, es []store.Entity) error {
			return b.full.Put(ctx, t, "", es)
		}
	}},
	{"OtherNamespacesAreUntouched", "disposes in the default namespace", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			batch.Query.Namespace = ""
			return b.full.Dispose(ctx, batch)
		}
	}},
}
