package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

var disposeCases = []testCase{
	{name: "DisposeDeletesWhatIsUnchanged", run: disposeDeletes},
	{name: "DisposeKeepsWhatWasPushedOut", run: keepsChanged},
	{name: "DisposeKeepsWhatWasPulledIn", run: keepsPulledIn},
	{name: "DisposeKeepsWhatWasRecreated", run: keepsRecreated},
	{name: "DisposeIsTrueAboutSameExpiry", run: sameExpiry},
	{name: "DisposeFindsGone", run: findsGone},
	{name: "DisposeKeepsMalformed", run: keepsMalformed},
	{name: "DisposeKeepsLists", needs: func(c Caps) string {
		if !c.KeepsLists {
			return "the guard does not tell an element of a list from a plain value"
		}
		return ""
	}, run: keepsLists},
	{name: "DisposeKeepsWhatBecameAList", run: keepsNewList},
	{name: "DisposeOfAMixedBatch", run: mixedBatch},
	{name: "DisposeRepeatedIsHarmless", run: repeated},
	{name: "DisposeOfNothing", run: nothing},
	{name: "DryRunWritesNothing", run: dryRun},
	{name: "CancelledContextStartsNoWrite", run: cancelled},
	{name: "TwoWorkersDisposeOfOneBatch", run: twoWorkers},
	{name: "OtherKindsAreUntouched", run: otherKinds},
	{name: "OtherNamespacesAreUntouched", needs: func(c Caps) string {
		if len(c.Namespaces) == 0 {
			return "the store has no namespaces"
		}
		return ""
	}, run: otherNamespaces},
}

func disposeDeletes(w *world) {
	put := w.row(10)
	ops := w.dispose(w.find(10)[:7]...)
	w.same("outcomes", outcomes(ops), slices.Repeat([]string{"deleted"}, 7))
	w.shows("afterwards", texts(put[7:]...)...)
	if o, _ := w.settle(ops[0].Entry, store.Keep); o != store.Gone {
		w.Errorf("the entity of a deleted entry is %s, not gone", outcome(o))
	}
}

// changes scans n entities, changes the second one, and disposes of all.
func (w *world) changes(when string, to store.Value, change func(second store.Entry, to store.Entity)) {
	w.Helper()
	put := w.row(3)
	found := w.find(3)
	put[1].Expiry = to
	change(found[1], put[1])
	ops := w.dispose(found...)
	w.same("outcomes "+when, outcomes(ops), []string{"deleted", "changed", "deleted"})
	if ops[1].Known && ops[1].Now != to {
		w.Errorf("%s its expiry is said to be %v now, not %v", when, ops[1].Now, to)
	}
	w.shows(when, to.Text)
}

func keepsChanged(w *world) {
	w.changes("after it was pushed out", key(1_000_000), func(_ store.Entry, e store.Entity) { w.put(e) })
}

func keepsPulledIn(w *world) {
	w.changes("after it was pulled in", key(-1), func(_ store.Entry, e store.Entity) { w.put(e) })
}

func keepsRecreated(w *world) {
	w.changes("after it was created again", key(1_000_000), func(was store.Entry, e store.Entity) {
		w.dispose(was)
		w.put(e)
	})
}

// sameExpiry: an entity that was created again with the same expiry may be deleted or
// kept, but the outcome must say which.
func sameExpiry(w *world) {
	put := w.row(2)
	found := w.find(2)
	w.dispose(found[0])
	w.put(put[0])
	op := w.dispose(found[0])[0]
	switch op.Outcome {
	case store.Deleted:
		w.shows("after it was deleted", put[1].Expiry.Text)
	case store.Changed:
		w.shows("after it was kept", texts(put...)...)
	default:
		w.Errorf("what is there again is %s", outcome(op.Outcome))
	}
}

// gone is what Dispose may say about an entity that is not there.
func (w *world) gone(what string, ops ...store.Op) {
	w.Helper()
	for _, op := range ops {
		if op.Outcome != store.Gone && (w.caps.TellsGone || op.Outcome != store.Deleted) {
			w.Errorf("%s: %s is %s, not gone", what, op.Entry.Key, outcome(op.Outcome))
		}
	}
}

func findsGone(w *world) {
	put := w.row(4)
	found := w.find(4)
	if o, _ := w.settle(found[2], store.Delete); o != store.Deleted {
		w.Fatalf("settle says %s, not deleted", outcome(o))
	}
	ops := w.dispose(found[1:3]...)
	w.gone("what somebody else deleted", ops[1])
	w.same("the outcome of the other op", outcomes(ops[:1]), []string{"deleted"})
	w.shows("afterwards", texts(put[0], put[3])...)
}

func keepsMalformed(w *world) {
	for name, v := range malformed() {
		put := w.row(3)
		found := w.find(3)
		put[1].Expiry = v
		w.put(put[1])
		ops := w.dispose(found[1])
		if ops[0].Outcome != store.Changed {
			w.Errorf("%s: what became malformed is %s, not changed", name, outcome(ops[0].Outcome))
		}
		o, seen := w.settle(found[1], store.Keep)
		if o != store.Kept || len(seen) == 0 {
			w.Errorf("%s: afterwards the entity is %s, not kept", name, outcome(o))
			continue
		}
		want := v
		if name == "null" {
			want = store.Value{}
		}
		if got := seen[len(seen)-1]; got.Type != want.Type || got.Text != want.Text || !got.Time.Equal(want.Time) {
			w.Errorf("%s: it now shows %v, not %v", name, got, want)
		}
		if ops[0].Known && ops[0].Now.Type != want.Type {
			w.Errorf("%s: dispose says that its type is %d now, not %d", name, ops[0].Now.Type, want.Type)
		}
	}
}

func keepsLists(w *world) {
	list := store.Value{Type: store.List, Text: fmt.Sprintf("[%q,%q]", key(1).Text, key(2).Text)}
	w.put(named("list", list), named("plain", key(0)))
	ops := w.dispose(w.find(3)...)
	w.same("outcomes of a plain value and two elements", outcomes(ops), []string{"deleted", "changed", "changed"})
	for _, op := range ops[1:] {
		if op.Known && op.Now.Type != store.List {
			w.Errorf("the value of a list is said to be of type %d", op.Now.Type)
		}
	}
	w.shows("afterwards", key(1).Text, key(2).Text)
}

// keepsNewList: the scan saw a plain value, which then became the only element
// of a list.
func keepsNewList(w *world) {
	w.put(named("late", key(5)))
	found := w.find(1)
	w.put(named("late", store.Value{Type: store.List, Text: fmt.Sprintf("[%q]", key(5).Text)}))
	op := w.dispose(found[0])[0]
	if !w.caps.KeepsLists && !w.caps.ListsApart {
		return // such a guard goes by what the index shows
	}
	w.same("outcome of what became a list", []string{outcome(op.Outcome)}, []string{"changed"})
	if op.Known && op.Now.Type != store.List {
		w.Errorf("the value of a list is said to be of type %d", op.Now.Type)
	}
	if o, seen := w.settle(found[0], store.Keep); o != store.Kept || seen[len(seen)-1].Type != store.List {
		w.Errorf("afterwards it is %s, and showed %v", outcome(o), seen)
	}
}

func mixedBatch(w *world) {
	put := w.row(9)
	found := w.find(9)
	put[2].Expiry = key(5000)
	put[5].Expiry = store.TextValue("") // it sorts before everything
	w.put(put[2], put[5])
	w.settle(found[3], store.Delete)
	w.settle(found[4], store.Delete)
	again := put[4]
	again.Expiry = key(6000)
	w.put(again)
	ops := w.dispose(found[:8]...)
	w.gone("what somebody else deleted", ops[3])
	w.same("outcomes", outcomes(slices.Delete(slices.Clone(ops), 3, 4)),
		[]string{"deleted", "deleted", "changed", "changed", "changed", "deleted", "deleted"})
	w.shows("afterwards", key(8).Text, key(5000).Text, key(6000).Text)
	if o, _ := w.settle(found[5], store.Keep); o != store.Kept {
		w.Errorf("the one whose expiry is empty now is %s, not kept", outcome(o))
	}
}

func repeated(w *world) {
	put := w.row(6)
	found := w.find(6)
	w.dispose(found[:4]...)
	w.gone("the same batch again", w.dispose(found[:4]...)...)
	w.shows("afterwards", texts(put[4:]...)...)
}

func nothing(w *world) {
	put := w.row(2)
	w.dispose()
	w.shows("afterwards", texts(put...)...)
}

func dryRun(w *world) {
	put := w.row(5)
	found := w.find(5)
	put[3].Expiry = key(9000)
	w.put(put[3])
	b := w.batch(w.all(), found...)
	b.DryRun = true
	meter := new(store.Meter)
	w.retry("dispose", func() error { return w.store.Dispose(store.WithMeter(w.ctx, meter), b) })
	w.same("outcomes", outcomes(b.Ops), []string{"deleted", "deleted", "deleted", "changed", "deleted"})
	if o := meter.Operations(); o.Deletes != 0 || o.Writes != 0 {
		w.Errorf("a dry run billed %+v", o)
	}
	want := texts(put...)
	slices.Sort(want)
	w.shows("after a dry run", want...)
}

func cancelled(w *world) {
	put := w.row(3)
	found := w.find(3)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	b := w.batch(w.all(), found...)
	w.is("dispose", w.store.Dispose(ctx, b), context.Canceled)
	w.same("outcomes", outcomes(b.Ops), []string{"unknown", "unknown", "unknown"})
	o, err := w.store.Settle(ctx, w.all(), found[0], func(store.Value) store.Verdict { return store.Delete })
	w.is("settle", err, context.Canceled)
	if o != store.Unknown {
		w.Errorf("settle says %s", outcome(o))
	}
	w.is("put", w.writer.Put(ctx, w.target, w.ns, []store.Entity{named("late", key(77))}), context.Canceled)
	r := w.record(store.CursorRecord, "late", "")
	w.is("save", w.store.Save(ctx, r, ""), context.Canceled)
	w.is("scan", w.store.Scan(ctx, w.all(), new(store.Page)), context.Canceled)
	w.shows("afterwards", texts(put...)...)
	if got := w.load(store.CursorRecord); len(got.List) != 0 {
		w.Errorf("a record was saved: %+v", got.List)
	}
}

func twoWorkers(w *world) {
	n := w.size(200, 60)
	w.row(n + 1)
	found := w.find(n + 1)[:n]
	var batches [2]*store.Batch
	var errs [2]error
	var wait sync.WaitGroup
	for i := range batches {
		batches[i] = w.batch(w.all(), slices.Clone(found)...)
		wait.Go(func() {
			errs[i] = store.Retry(w.ctx, settleWithin, func() error { return w.store.Dispose(w.ctx, batches[i]) })
		})
	}
	wait.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		w.Fatalf("dispose: %v", err)
	}
	for k := range found {
		deleted := 0
		for _, b := range batches {
			switch b.Ops[k].Outcome {
			case store.Deleted:
				deleted++
			case store.Gone:
			default:
				w.Errorf("%s is %s", found[k].Key, outcome(b.Ops[k].Outcome))
			}
		}
		if deleted == 0 || deleted > 1 && w.caps.TellsGone {
			w.Errorf("%s was deleted by %d of two workers", found[k].Key, deleted)
		}
	}
	w.shows("afterwards", key(n).Text)
}

func otherKinds(w *world) {
	put := w.row(3)
	other := w.other()
	other.row(3)
	w.dispose(w.find(3)...)
	w.shows("in the kind that was swept")
	other.shows("in the other kind", texts(put...)...)
}

func otherNamespaces(w *world) {
	put := w.row(3)
	for _, ns := range w.caps.Namespaces {
		in := *w
		in.ns = ns
		in.shows("in " + ns + ", before anything was put")
		in.row(3)
	}
	w.dispose(w.find(3)[:2]...)
	w.shows("in the namespace that was swept", put[2].Expiry.Text)
	for _, ns := range w.caps.Namespaces {
		in := *w
		in.ns = ns
		in.shows("in "+ns, texts(put...)...)
		in.dispose(in.scan(in.all(), false)...)
		in.shows("in " + ns + ", swept itself")
	}
	w.shows("in the first namespace, at the end", put[2].Expiry.Text)
}
