package storetest

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// postponed keeps deletes that were decided on, for later.
type postponed struct {
	mu    sync.Mutex
	list  []func()
	added chan struct{}
}

func (p *postponed) add(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, do)
	select {
	case p.added <- struct{}{}:
	default:
	}
}

// wait gives somebody the time to decide, if there is anybody.
func (p *postponed) wait() {
	select {
	case <-p.added:
	case <-time.After(100 * time.Millisecond):
	}
}

func (p *postponed) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, do := range p.list {
		do()
	}
	p.list = nil
}

var settleFaults = []fault{
	{"SettleDeletes", "keeps and says deleted", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		_, err := b.full.Settle(ctx, q, e, func(v store.Value) store.Verdict { decide(v); return store.Keep })
		return store.Deleted, err
	})},
	{"SettleKeeps", "deletes and says kept", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		_, err := b.full.Settle(ctx, q, e, func(v store.Value) store.Verdict { decide(v); return store.Delete })
		return store.Kept, err
	})},
	{"SettleFindsGone", "asks about what is not there", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		o, err := b.full.Settle(ctx, q, e, decide)
		if o == store.Gone {
			decide(store.Value{})
		}
		return o, err
	})},
	{"SettleFindsGone", "says deleted", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		_, err := b.full.Settle(ctx, q, e, decide)
		return store.Deleted, err
	})},
	{"SettleSeesWhatIsThereNow", "shows what the scan saw", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		return b.full.Settle(ctx, q, e, func(store.Value) store.Verdict { return decide(e.Value) })
	})},
	{"SettleMeetsAWriter", "decides first and deletes later", func(b *broken) {
		later := postponed{added: make(chan struct{}, 1)}
		b.settle = func(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
			verdict := store.Keep
			o, err := b.full.Settle(ctx, q, e, func(v store.Value) store.Verdict { verdict = decide(v); return store.Keep })
			if verdict == store.Delete {
				later.add(func() {
					_, _ = b.full.Settle(ctx, q, e, func(store.Value) store.Verdict { return store.Delete })
				})
			}
			return o, err
		}
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			later.wait()
			err := b.full.Put(ctx, t, ns, es)
			later.run()
			return err
		}
	}},
}

var recordFaults = []fault{
	{"RecordIsCreatedOnce", "lets the last one win", lastWins},
	{"RecordIsCreatedOnce", "saves nothing", func(b *broken) {
		b.save = func(context.Context, store.Record, string) error { return nil }
	}},
	{"RecordIsUpdatedFromItsRevision", "lets the last one win", lastWins},
	{"RecordIsUpdatedFromItsRevision", "creates what it should update", onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
		if there == nil {
			prev = ""
		}
		return b.full.Save(ctx, r, prev)
	})},
	{"RecordIsUpdatedFromItsRevision", "merges fields", onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
		fields := store.Fields{}
		for _, from := range []*store.Record{there, &r} {
			if from != nil {
				for name, v := range from.Fields {
					fields[name] = v
				}
			}
		}
		r.Fields = fields
		return b.full.Save(ctx, r, prev)
	})},
	{"SaveRepeatedIsSuccess", "knows no repetition", onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
		if there != nil && there.Revision == r.Revision {
			return store.ErrConflict
		}
		return b.full.Save(ctx, r, prev)
	})},
	{"SaveRepeatedIsSuccess", "lets the last one win", lastWins},
	{"RecordIsRemoved", "cannot remove what is not there", onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
		if there == nil && r.Fields == nil {
			return store.ErrConflict
		}
		return b.full.Save(ctx, r, prev)
	})},
	{"RecordIsRemoved", "removes whatever the revision is", onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
		if there != nil && r.Fields == nil {
			prev = there.Revision
		}
		return b.full.Save(ctx, r, prev)
	})},
	{"RecordIsRemoved", "leaves an empty record", onSave(func(b *broken, ctx context.Context, r store.Record, prev string, there *store.Record) error {
		if there != nil && r.Fields == nil {
			r.Fields, r.Revision = store.Fields{}, store.NewRevision(prev)
		}
		return b.full.Save(ctx, r, prev)
	})},
	{"RecordsOfATargetInOrder", "loads backwards", onRecords(func(recs *store.Records) { slices.Reverse(recs.List) })},
	{"RecordsOfATargetInOrder", "loads what begins like the target", func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			recs, err := b.full.Load(ctx, q)
			if err != nil {
				return recs, err
			}
			q.Target += "-x"
			more, err := b.full.Load(ctx, q)
			recs.List = append(recs.List, more.List...)
			return recs, err
		}
	}},
	{"RecordsComeInPages", "never has more", onRecords(func(recs *store.Records) { recs.More = false })},
	{"RecordsComeInPages", "begins at the key that it is to go on after", func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			if q.After != "" {
				q.After = q.After[:len(q.After)-1]
			}
			return b.full.Load(ctx, q)
		}
	}},
	{"RecordsByTheirKeys", "knows only the first key", func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			q.Keys = q.Keys[:min(1, len(q.Keys))]
			return b.full.Load(ctx, q)
		}
	}},
	{"RecordQueriesHaveBounds", "has no upper bound", func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			q.Before = ""
			return b.full.Load(ctx, q)
		}
	}},
	{"RecordSortsAreApart", "has one sort", func(b *broken) {
		b.load = func(ctx context.Context, q store.RecordQuery) (store.Records, error) {
			q.Sort = store.CursorRecord
			return b.full.Load(ctx, q)
		}
		b.save = func(ctx context.Context, r store.Record, prev string) error {
			r.Sort = store.CursorRecord
			return b.full.Save(ctx, r, prev)
		}
	}},
	{"FieldsKeepTheirTypes", "has one type of number", onRecords(func(recs *store.Records) {
		for _, r := range recs.List {
			for name, v := range r.Fields {
				if n, ok := v.(int64); ok {
					r.Fields[name] = float64(n)
				}
			}
		}
	})},
	{"FieldsKeepTheirTypes", "loses whole floats", onRecords(func(recs *store.Records) {
		for _, r := range recs.List {
			for name, v := range r.Fields {
				if f, ok := v.(float64); ok && f == 3 {
					r.Fields[name] = int64(f)
				}
			}
		}
	})},
	{"FieldsKeepTheirTypes", "loses what is nested", onRecords(func(recs *store.Records) {
		for _, r := range recs.List {
			delete(r.Fields, "nested")
		}
	})},
	{"OneOfManySavesWins", "lets the last one win", lastWins},
	{"StoreTellsItsTime", "does not tell", onRecords(func(recs *store.Records) { recs.Now = time.Time{} })},
	{"StoreTellsItsTime", "tells another zone's", onRecords(func(recs *store.Records) {
		recs.Now = recs.Now.In(time.FixedZone("elsewhere", 3600))
	})},
	{"StoreTellsItsTime", "is an hour ahead", onRecords(func(recs *store.Records) { recs.Now = recs.Now.Add(time.Hour) })},
	{"StoreTellsItsTime", "goes backwards", func(b *broken) {
		calls := 0
		onRecords(func(recs *store.Records) { calls++; recs.Now = recs.Now.Add(time.Duration(-calls) * time.Minute) })(b)
	}},
}

// onCount breaks what is counted.
func onCount(change func(t *store.Target, s *store.Span)) func(*broken) {
	return func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			change(&t, &s)
			return b.full.Count(ctx, t, ns, s, upTo)
		}
	}
}

// onBound breaks where a count stops.
func onBound(change func(upTo int64) int64) func(*broken) {
	return func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			return b.full.Count(ctx, t, ns, s, change(upTo))
		}
	}
}

// onCounted breaks what a count returns.
func onCounted(change func(n, upTo int64) int64) func(*broken) {
	return func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			n, err := b.full.Count(ctx, t, ns, s, upTo)
			return change(n, upTo), err
		}
	}
}

// countsAllFirst counts everything and only then looks at the bound.
func countsAllFirst(b *broken) {
	b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
		n, err := b.full.Count(ctx, t, ns, s, 0)
		if upTo > 0 {
			n = min(n, upTo)
		}
		return n, err
	}
}

// onDump breaks the list of what Dump yields.
func onDump(change func([]store.Entity) []store.Entity) func(*broken) {
	return func(b *broken) {
		b.dump = func(ctx context.Context, t store.Target, ns string) iter.Seq2[store.Entity, error] {
			var all []store.Entity
			for e, err := range b.full.Dump(ctx, t, ns) {
				if err != nil {
					return func(yield func(store.Entity, error) bool) { yield(e, err) }
				}
				all = append(all, e)
			}
			return func(yield func(store.Entity, error) bool) {
				for _, e := range change(all) {
					if !yield(e, nil) {
						return
					}
				}
			}
		}
	}
}

var extraFaults = []fault{
	{"PutReplaces", "only inserts", func(b *broken) {
		seen := make(map[string]bool)
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			fresh := slices.DeleteFunc(slices.Clone(es), func(e store.Entity) bool { return seen[e.Name] })
			for _, e := range es {
				seen[e.Name] = true
			}
			return b.full.Put(ctx, t, ns, fresh)
		}
	}},
	{"PutReplaces", "leaves old index entries", func(b *broken) {
		copies := 0
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			for _, e := range es {
				copies++ // under another key the old entry stays
				e.Name += strings.Repeat("'", copies)
				if err := b.full.Put(ctx, t, ns, []store.Entity{e}); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"PutIsAllOrNothing", "puts one by one", func(b *broken) {
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			for i := range es {
				if err := b.full.Put(ctx, t, ns, es[i:i+1]); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"PutIsAllOrNothing", "puts nothing and says nothing", func(b *broken) {
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			if err := b.full.Put(ctx, t, ns, es); !errors.Is(err, store.ErrInvalid) {
				return err
			}
			return nil
		}
	}},
	{"CountSpans", "ignores the start", onCount(func(_ *store.Target, s *store.Span) { s.From = store.Point{} })},
	{"CountSpans", "ignores the end", onCount(func(_ *store.Target, s *store.Span) { s.To = store.Point{} })},
	{"CountSpans", "counts the end", onCount(func(_ *store.Target, s *store.Span) {
		s.To.After = true
	})},
	{"CountSpans", "counts strings only", onCount(func(_ *store.Target, s *store.Span) {
		if s.From == (store.Point{}) {
			s.From.Value = store.TextValue("\x00")
		}
	})},
	{"CountIgnoresOthers", "counts two kinds", func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			n, err := b.full.Count(ctx, t, ns, s, upTo)
			if err != nil {
				return 0, err
			}
			t.Kind += "Other"
			m, err := b.full.Count(ctx, t, ns, s, upTo)
			return n + m, err
		}
	}},
	{"CountIgnoresOthers", "has one property", onCount(func(t *store.Target, _ *store.Span) { t.Property = "expiry_key" })},
	{"CountStopsAtItsBound", "knows no bound", onBound(func(int64) int64 { return 0 })},
	{"CountStopsAtItsBound", "stops one too early", onBound(func(upTo int64) int64 { return upTo - 1 })},
	{"CountStopsAtItsBound", "stops one too late", onBound(func(upTo int64) int64 {
		if upTo > 0 {
			upTo++
		}
		return upTo
	})},
	{"CountStopsAtItsBound", "takes zero for a bound", onCounted(func(n, upTo int64) int64 {
		if upTo == 0 {
			return 0
		}
		return n
	})},
	{"CountStopsAtItsBound", "takes what is less than zero for a bound", onCounted(func(n, upTo int64) int64 {
		if upTo < 0 {
			return 0
		}
		return n
	})},
	{"CountStopsAtItsBound", "says the bound, however few there are", onCounted(func(n, upTo int64) int64 {
		return max(n, upTo)
	})},
	{"CountBillsWhatItCounts", "counts all and then looks at the bound", countsAllFirst},
	{"CountBillsWhatItCounts", "bills nothing for an empty span", func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			n, err := b.full.Count(store.WithMeter(ctx, new(store.Meter)), t, ns, s, upTo)
			store.Bill(ctx, store.Operations{Reads: (n + 999) / 1000})
			return n, err
		}
	}},
	{"CountBillsWhatItCounts", "bills a read for each entry", func(b *broken) {
		b.count = func(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
			n, err := b.full.Count(ctx, t, ns, s, upTo)
			store.Bill(ctx, store.Operations{Reads: n})
			return n, err
		}
	}},
	{"HoldsAnything", "looks at the index", func(b *broken) {
		b.holds = func(ctx context.Context, t store.Target, ns string) (bool, error) {
			n, err := b.full.Count(ctx, t, ns, store.Span{}, 0)
			return n > 0, err
		}
	}},
	{"HoldsAnything", "always holds something", func(b *broken) {
		b.holds = func(context.Context, store.Target, string) (bool, error) { return true, nil }
	}},
	{"DumpYieldsWhatWasPut", "goes backwards", onDump(func(all []store.Entity) []store.Entity {
		slices.Reverse(all)
		return all
	})},
	{"DumpYieldsWhatWasPut", "orders numbers as text", onDump(func(all []store.Entity) []store.Entity {
		slices.SortStableFunc(all, func(a, b store.Entity) int {
			return cmp.Compare(a.Name+strconv.FormatInt(a.Number, 10), b.Name+strconv.FormatInt(b.Number, 10))
		})
		return all
	})},
	{"DumpYieldsWhatWasPut", "loses the data", onDump(func(all []store.Entity) []store.Entity {
		for i := range all {
			all[i].Data = nil
		}
		return all
	})},
	{"DumpYieldsWhatWasPut", "leaves out what never expires", onDump(func(all []store.Entity) []store.Entity {
		return slices.DeleteFunc(all, func(e store.Entity) bool { return e.Expiry.Type == store.Missing })
	})},
	{"DumpCanBeLeft", "yields the first thousand", onDump(func(all []store.Entity) []store.Entity { return all[:min(len(all), 1000)] })},
	{"DumpCanBeLeft", "begins again after five hundred", onDump(func(all []store.Entity) []store.Entity {
		return append(slices.Clone(all[:500]), all...)
	})},
	{"KeyNamesTheEntity", "does not tell names from numbers", func(b *broken) {
		b.key = func(e store.Entity) (string, error) {
			return cmp.Or(strconv.Quote(e.Name), strconv.FormatInt(e.Number, 10)), nil
		}
	}},
	{"KeyNamesTheEntity", "takes the key for the id", func(b *broken) {
		b.id = func(key string) (string, error) { return key, nil }
	}},
	{"DropRefusesWhatIsAlive", "does not look", func(b *broken) {
		b.drop = func(context.Context, store.Target, string, string) error { return nil }
	}},
	{"DropRefusesWhatIsAlive", "deletes what is alive, and refuses", func(b *broken) {
		b.drop = func(ctx context.Context, t store.Target, from, to string) error {
			q := store.Query{Target: t, Lo: store.TextValue(from), Hi: store.TextValue(to), Limit: store.MaxPage}
			var page store.Page
			err := b.full.Scan(ctx, q, &page)
			for _, e := range page.Entries {
				_, one := b.full.Settle(ctx, q, e, func(store.Value) store.Verdict { return store.Delete })
				err = errors.Join(err, one)
			}
			return errors.Join(store.ErrConflict, err)
		}
	}},
	{"DropRefusesWhatIsAlive", "closes the span anyway", closing(func(_ store.Target, _, _ string, dropped error, e store.Entity) bool {
		return dropped != nil && e.Expiry.Text != ""
	})},
	{"DropClosesASpan", "does nothing", func(b *broken) {
		b.drop = func(context.Context, store.Target, string, string) error { return nil }
	}},
	{"DropClosesASpan", "closes too much", closing(func(_ store.Target, _, to string, dropped error, e store.Entity) bool {
		return dropped == nil && e.Expiry.Text >= to
	})},
	{"DropClosesASpan", "closes the span of other kinds", closing(func(t store.Target, from, to string, dropped error, e store.Entity) bool {
		return dropped == nil && e.Expiry.Text >= from && e.Expiry.Text < to
	})},
	{"DropClosesASpan", "cannot drop twice", func(b *broken) {
		drops := 0
		b.drop = func(ctx context.Context, t store.Target, from, to string) error {
			if drops++; drops > 1 {
				return store.ErrConflict
			}
			return b.full.Drop(ctx, t, from, to)
		}
	}},
	{"DropClosesASpan", "takes malformed entries along", func(b *broken) {
		b.drop = func(ctx context.Context, t store.Target, from, to string) error {
			if err := b.full.Drop(ctx, t, from, to); err != nil {
				return err
			}
			q := store.Query{Target: t, Lo: store.TextValue(from), Hi: store.TextValue(to), Limit: store.MaxPage}
			var page store.Page
			err := b.full.Scan(ctx, q, &page)
			for _, e := range page.Entries {
				_, one := b.full.Settle(ctx, q, e, func(store.Value) store.Verdict { return store.Delete })
				err = errors.Join(err, one)
			}
			return err
		}
	}},
	{"DropClosesASpan", "is held by malformed entries", func(b *broken) {
		b.drop = func(ctx context.Context, t store.Target, from, to string) error {
			n, err := b.full.Count(ctx, t, "", store.Between(from, to), 0)
			if err == nil && n > 0 {
				return store.ErrConflict
			}
			return errors.Join(err, b.full.Drop(ctx, t, from, to))
		}
	}},
	{"BillsWhatItDoes", "bills nothing for deletes", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			return b.full.Dispose(store.WithMeter(ctx, new(store.Meter)), batch)
		}
	}},
	{"BillsWhatItDoes", "bills deletes twice", func(b *broken) {
		b.dispose = func(ctx context.Context, batch *store.Batch) error {
			store.Bill(ctx, store.Operations{Deletes: int64(len(batch.Ops))})
			return b.full.Dispose(ctx, batch)
		}
	}},
	{"BillsWhatItDoes", "bills a read for each entry", func(b *broken) {
		b.scan = func(ctx context.Context, q store.Query, p *store.Page) error {
			err := b.full.Scan(ctx, q, p)
			store.Bill(ctx, store.Operations{Reads: int64(len(p.Entries))})
			return err
		}
	}},
	{"BillsWhatItDoes", "bills nothing for puts and saves", func(b *broken) {
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			return b.full.Put(store.WithMeter(ctx, new(store.Meter)), t, ns, es)
		}
		b.save = func(ctx context.Context, r store.Record, prev string) error {
			return b.full.Save(store.WithMeter(ctx, new(store.Meter)), r, prev)
		}
	}},
	{"BillsWhatItDoes", "bills nothing for settling", onSettle(func(b *broken, ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
		return b.full.Settle(store.WithMeter(ctx, new(store.Meter)), q, e, decide)
	})},
}

// closing refuses puts after a Drop, as refuse says.
func closing(refuse func(t store.Target, from, to string, dropped error, e store.Entity) bool) func(*broken) {
	return func(b *broken) {
		type call struct {
			t        store.Target
			from, to string
			err      error
		}
		var calls []call
		b.drop = func(ctx context.Context, t store.Target, from, to string) error {
			err := b.full.Drop(ctx, t, from, to)
			calls = append(calls, call{t, from, to, err})
			return err
		}
		b.put = func(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
			for _, e := range es {
				for _, c := range calls {
					if refuse(c.t, c.from, c.to, c.err, e) {
						return store.ErrInvalid
					}
				}
			}
			return b.full.Put(ctx, t, ns, es)
		}
	}
}
