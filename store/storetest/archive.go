package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// NoArchive is why the cases of archives are not for a store, or for a caller that cannot use its Archiver.
const NoArchive = "the store shows no whole entities"

func archives(c Caps) string {
	if !c.Archiver {
		return NoArchive
	}
	return ""
}

func archivesBelow(c Caps) string {
	if !c.Archiver {
		return NoArchive
	}
	return descends(c)
}

var archiveCases = []testCase{
	{name: "ArchiveHasWhatIsDeleted", needs: archives, run: archiveHasAll},
	{name: "ArchiveHasThePresent", needs: archives, run: archiveHasPresent},
	{name: "ArchiveFailsSoNothingIsDeleted", needs: archives, run: archiveFails},
	{name: "ArchiveMeetsAWriter", needs: archives, run: archiveMeetsWriter},
	{name: "ArchiveLacksWhatStays", needs: archives, run: archiveLacks},
	{name: "ArchiveLacksDryRuns", needs: archives, run: archiveDryRun},
	{name: "ArchiveTakesParts", needs: archives, run: archiveParts},
	{name: "ArchiveOfASettle", needs: archives, run: archiveSettle},
	{name: "ArchiveOfASettleMeetsAWriter", needs: archives, run: archiveSettleMeetsWriter},
	{name: "ArchiveStopsWithItsContext", needs: archives, run: archiveStops},
	{name: "ArchiveOfDescendants", needs: archivesBelow, run: archiveBelow},
	{name: "FetchKeepsTheOrder", needs: archives, run: fetchOrder},
	{name: "InsertRestores", needs: archives, run: insertRestores},
	{name: "InsertNeverOverwrites", needs: archives, run: insertNever},
	{name: "InsertSetsTheExpiry", needs: archives, run: insertSets},
	{name: "InsertRefusesBadLists", needs: archives, run: insertRefuses},
	{name: "InsertTakesParts", needs: archives, run: insertParts},
}

func (w *world) archiver() store.Archiver { return w.store.(store.Archiver) }

// rounds is how often a call is repeated that does a part of what it is asked to.
const rounds = 100

// disposeInto disposes of ops with an Archive, and repeats the call with those that it left.
func (w *world) disposeInto(a store.Archive, ops ...store.Op) []store.Op {
	w.Helper()
	q := w.all()
	q.Archive = a
	left := make([]int, len(ops))
	for i := range ops {
		left[i] = i
	}
	for round := 0; len(left) > 0; round++ {
		b := &store.Batch{Query: q}
		for _, i := range left {
			b.Ops = append(b.Ops, ops[i])
		}
		w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
		var rest []int
		for j, i := range left {
			if ops[i] = b.Ops[j]; ops[i].Outcome == store.Unknown {
				rest = append(rest, i)
			}
		}
		if left = rest; round > rounds {
			w.Fatalf("%d ops are still left after %d calls", len(left), round)
		}
	}
	return ops
}

func deletesOf(entries ...store.Entry) (ops []store.Op) {
	for _, e := range entries {
		ops = append(ops, store.Op{Entry: e})
	}
	return ops
}

// settleInto settles one entry with an Archive.
func (w *world) settleInto(
	a store.Archive, e store.Entry, decide func(store.Value) store.Verdict,
) (o store.Outcome, err error) {
	q := w.all()
	q.Archive = a
	err = store.Retry(w.ctx, settleWithin, func() (err error) {
		o, err = w.store.Settle(w.ctx, q, e, decide)
		return err
	})
	return o, err
}

// verdict returns a decision that is always the same.
func verdict(v store.Verdict) func(store.Value) store.Verdict {
	return func(store.Value) store.Verdict { return v }
}

// fetch reads copies of all that has one of the keys, in as many calls as it takes.
func (w *world) fetch(keys ...string) (all []store.Copy) {
	w.Helper()
	for len(all) < len(keys) {
		rest := keys[len(all):]
		var part []store.Copy
		w.retry("fetch", func() (err error) {
			part, err = w.archiver().Fetch(w.ctx, w.target, w.ns, rest, time.Time{})
			return err
		})
		if len(part) == 0 || len(part) > len(rest) {
			w.Fatalf("%d copies of %d keys", len(part), len(rest))
		}
		for i, c := range part {
			if c.Key != rest[i] {
				w.Fatalf("copy %d is of %s, not of %s", i, c.Key, rest[i])
			}
		}
		all = append(all, part...)
	}
	return all
}

// insert inserts a list, and repeats the call with those that it left.
func (w *world) insert(list ...store.Insertion) []store.Insertion {
	w.Helper()
	left := make([]int, len(list))
	for i := range list {
		left[i] = i
	}
	for round := 0; len(left) > 0; round++ {
		var part []store.Insertion
		for _, i := range left {
			part = append(part, list[i])
		}
		w.retry("insert", func() error { return w.archiver().Insert(w.ctx, w.target, w.ns, part) })
		var rest []int
		for j, i := range left {
			if list[i] = part[j]; list[i].Outcome == store.Unknown {
				rest = append(rest, i)
			}
		}
		if left = rest; round > rounds {
			w.Fatalf("%d insertions are still left after %d calls", len(left), round)
		}
	}
	return list
}

func insertOutcomes(list []store.Insertion) []string {
	out := []string{}
	for _, one := range list {
		out = append(out, outcome(one.Outcome))
	}
	return out
}

// whole are entities with values of many types.
func whole() []store.Entity {
	return []store.Entity{
		named("plain", key(1)),
		numbered(7, key(2)),
		{Name: "all", Expiry: key(3), Data: []byte(`{"n":12345678901,"half":0.5,"t":true,"s":"a\n\"ü\" \\ <b>","none":null,` +
			`"list":[1,"x",null,true],"deep":{"a":{"b":[1,2,{"c":"d"}]}},"empty":{},"a.b ` + "`" + `":1}`)},
		{Name: "long", Expiry: key(4), Data: fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("long ", 5000))},
		{Name: `odd "name" ü`, Expiry: key(5), Data: []byte(`{"user":"u7"}`)},
	}
}

// dumped shows all that the target holds, an entity a line.
func (w *world) dumped() []string {
	w.Helper()
	lines := []string{}
	for e, err := range w.store.(store.Dumper).Dump(w.ctx, w.target, w.ns) {
		if err != nil {
			w.Fatalf("dump: %v", err)
		}
		lines = append(lines, fmt.Sprintf("%q %d %d %s %s", e.Name, e.Number, e.Expiry.Type, e.Expiry, canonical(w, e.Data)))
	}
	return sorted(lines)
}

// sameData reports whether the data of two copies are the same JSON.
func sameData(a, b []byte) bool {
	decode := func(data []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			return err.Error()
		}
		return v
	}
	return reflect.DeepEqual(decode(a), decode(b))
}

// hasKept checks that the last copies that were kept are these.
func (w *world) hasKept(s *Shelf, want ...store.Copy) {
	w.Helper()
	for _, c := range want {
		got, ok := s.Newest()[c.Key]
		switch {
		case !ok:
			w.Errorf("%s was not kept", c.Key)
		case bytes.ContainsAny(got.Data, "\r\n") || !json.Valid(got.Data):
			w.Errorf("%s was kept as %.300q, which is not one line of JSON", c.Key, got.Data)
		case !bytes.Equal(got.Data, c.Data) && !sameData(got.Data, c.Data):
			w.Errorf("%s was kept as\n%.300s\nbut it was\n%.300s", c.Key, got.Data, c.Data)
		case got.Version != c.Version || got.Expiry.Compare(c.Expiry) != 0 || !got.Created.Equal(c.Created) ||
			!got.Updated.Equal(c.Updated):
			got.Data, c.Data = nil, nil
			w.Errorf("%s was kept as %+v, but it was %+v", c.Key, got, c)
		}
	}
}

// archiveHasAll: whatever is deleted was kept before, as it was, and nothing else.
func archiveHasAll(w *world) {
	put := whole()
	w.put(put...)
	w.put(named("stays", key(9)))
	found := w.find(len(put) + 1)
	before := w.fetch(keys(found)...)
	if err := w.archiver().Archives(w.target); err != nil {
		w.Fatalf("the target cannot be archived: %v", err)
	}
	s := new(Shelf)
	ops := w.disposeInto(s, deletesOf(found[:len(put)]...)...)
	w.same("outcomes", outcomes(ops), slices.Repeat([]string{"deleted"}, len(put)))
	w.same("what was kept", s.Keys(), sorted(keys(found[:len(put)])))
	w.hasKept(s, before[:len(put)]...)
	for i, e := range found[:len(put)] {
		if got := s.Newest()[e.Key]; got.Expiry != e.Value {
			w.Errorf("copy %d has the expiry %v, not %v", i, got.Expiry, e.Value)
		}
	}
	w.shows("afterwards", key(9).Text)
	for _, c := range w.fetch(keys(found[:len(put)])...) {
		if c.Data != nil {
			w.Errorf("%s is still there", c.Key)
		}
	}
}

// archiveHasPresent: a copy is of what is deleted, whatever was there at the scan.
func archiveHasPresent(w *world) {
	put := w.row(2)
	found := w.find(2)
	put[0].Data = []byte(`{"user":"changed after the scan"}`)
	w.put(put[0])
	before := w.fetch(keys(found)...)
	s := new(Shelf)
	for _, op := range w.disposeInto(s, deletesOf(found...)...) {
		if op.Outcome != store.Changed { // native mode takes any write for a change
			continue
		}
		if o, err := w.settleInto(s, op.Entry, verdict(store.Delete)); o != store.Deleted {
			w.Errorf("settle says %s; %v", outcome(o), err)
		}
	}
	w.shows("afterwards")
	w.hasKept(s, before...)
}

var errShelf = errors.New("the shelf is full")

// archiveFails: if Keep fails, nothing is deleted, and the error is the caller's.
func archiveFails(w *world) {
	put := w.row(3)
	found := w.find(3)
	q := w.all()
	q.Archive = &Shelf{Then: func() error { return errShelf }}
	b := &store.Batch{Query: q, Ops: deletesOf(found...)}
	w.is("dispose", store.Retry(w.ctx, settleWithin, func() error { return w.store.Dispose(w.ctx, b) }), errShelf)
	for _, op := range b.Ops {
		if op.Outcome == store.Deleted {
			w.Errorf("%s is said to be deleted", op.Entry.Key)
		}
	}
	w.shows("after Keep failed", texts(put...)...)
	o, err := w.settleInto(q.Archive, found[0], verdict(store.Delete))
	if w.is("settle", err, errShelf); o != store.Unknown {
		w.Errorf("settle says %s", outcome(o))
	}
	w.shows("after Keep failed at settling", texts(put...)...)
}

// writerPatience is how long Keep waits for a writer. Some stores let a writer wait for the transaction
// in which Keep is called: then it takes so long, and the writer is second.
const writerPatience = time.Second

// writing returns what a shelf does to meet a writer, and what checks that it has.
func (w *world) writing(entities ...store.Entity) (then func() error, met func()) {
	result := make(chan error, 1)
	began := false
	then = func() error {
		if began {
			return nil
		}
		began = true
		done := make(chan struct{})
		go func() {
			defer close(done)
			result <- store.Retry(w.ctx, settleWithin, func() error { return w.writer.Put(w.ctx, w.target, w.ns, entities) })
		}()
		patience := time.NewTimer(writerPatience)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		}
		return nil
	}
	return then, func() {
		if !began {
			w.Fatalf("nothing was kept")
		}
		if err := <-result; err != nil {
			w.Fatalf("put: %v", err)
		}
	}
}

// archiveMeetsWriter: what changes after it was kept is not deleted, or not without a new copy.
func archiveMeetsWriter(w *world) {
	put := w.row(3)
	found := w.find(3)
	before := w.fetch(keys(found)...)
	put[0].Expiry = key(5000)
	put[1].Data = []byte(`{"user":"changed meanwhile"}`)
	then, met := w.writing(put[:2]...)
	s := &Shelf{Then: then}
	ops := w.disposeInto(s, deletesOf(found...)...)
	met()
	w.hasKept(s, before[2])
	if ops[2].Outcome != store.Deleted {
		w.Errorf("what did not change is %s", outcome(ops[2].Outcome))
	}
	now := w.fetch(keys(found)...)
	if now[0].Expiry != key(5000) {
		w.Errorf("what was extended has the expiry %v, not %v", now[0].Expiry, key(5000))
	}
	if kept := s.Newest()[found[1].Key]; now[1].Data == nil && sameData(kept.Data, before[1].Data) {
		w.Errorf("what was changed is gone, and no copy has the change")
	}
}

// archiveLacks: what is carried, or not deleted since it has changed, is not kept.
func archiveLacks(w *world) {
	put := w.row(6)
	put[4].Data = []byte(`{"created":"2026-11-21T12:00:01Z"}`)
	w.put(put[4])
	ops := deletesOf(w.find(6)...)
	ops[1].To = key(6000)
	put[2].Expiry = key(7000)
	w.put(put[2])
	w.dispose(ops[3].Entry)
	want := []string{ops[0].Entry.Key, ops[5].Entry.Key}
	if w.caps.Adopter {
		ops[4].Premise = store.Premise{Property: source, Value: store.TextValue("something else")}
	}
	s := new(Shelf)
	ops = w.disposeInto(s, ops...)
	if ops[4].Outcome == store.Deleted { // a store that compares the whole entity needs no premise
		want = append(want, ops[4].Entry.Key)
	}
	w.gone("what was deleted before", ops[3])
	w.same("outcomes", outcomes(ops[:3]), []string{"deleted", "carried", "changed"})
	w.same("what was kept", s.Keys(), sorted(want))
}

func archiveDryRun(w *world) {
	put := w.row(3)
	q := w.all()
	s := new(Shelf)
	q.Archive = s
	b := &store.Batch{Query: q, Ops: deletesOf(w.find(3)...), DryRun: true}
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	w.same("outcomes", outcomes(b.Ops), []string{"deleted", "deleted", "deleted"})
	w.same("what was kept", s.Keys(), []string{})
	w.shows("afterwards", texts(put...)...)
}

// large puts entities that are more than one call reads or writes.
func (w *world) large() []store.Entity {
	w.Helper()
	var put []store.Entity
	for i := range 6 {
		e := named(fmt.Sprintf("large-%d", i), key(i))
		e.Data = fmt.Appendf(nil, `{"text":%q}`, strings.Repeat(fmt.Sprintf("%07d", i), 100_000))
		w.put(e)
		put = append(put, e)
	}
	return put
}

// archiveParts: a call may leave ops, which it then has not deleted.
func archiveParts(w *world) {
	put := w.large()
	found := w.find(len(put))
	before := w.fetch(keys(found)...)
	q := w.all()
	s := new(Shelf)
	q.Archive = s
	b := &store.Batch{Query: q, Ops: deletesOf(found...)}
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	var left []store.Entry
	for _, op := range b.Ops {
		switch op.Outcome {
		case store.Deleted:
		case store.Unknown:
			left = append(left, op.Entry)
		default:
			w.Errorf("%s is %s", op.Entry.Key, outcome(op.Outcome))
		}
	}
	w.same("what is there after the first call", keys(w.find(len(left))), keys(left))
	ops := w.disposeInto(s, deletesOf(left...)...)
	w.same("outcomes of the rest", outcomes(ops), slices.Repeat([]string{"deleted"}, len(left)))
	w.hasKept(s, before...)
	w.shows("at the end")
}

// archiveSettle: Settle keeps what it deletes, and nothing that stays.
func archiveSettle(w *world) {
	put := w.row(4)
	put[3].Expiry = store.Value{Type: store.Other, Text: "7"}
	found := w.find(4)
	w.put(put[3])
	before := w.fetch(keys(found)...)
	s := new(Shelf)
	for i, c := range []struct {
		given store.Verdict
		want  store.Outcome
	}{
		{store.Delete, store.Deleted}, {store.Keep, store.Kept}, {store.CarryTo(key(4000)), store.Carried},
		{store.Delete, store.Deleted}, // of any expiry
	} {
		if o, err := w.settleInto(s, found[i], verdict(c.given)); o != c.want {
			w.Errorf("settle says %s, not %s; %v", outcome(o), outcome(c.want), err)
		}
	}
	if o, err := w.settleInto(s, found[0], verdict(store.Delete)); o != store.Gone {
		w.Errorf("settle says %s of what is not there; %v", outcome(o), err)
	}
	w.same("what was kept", s.Keys(), sorted([]string{found[0].Key, found[3].Key}))
	w.hasKept(s, before[0], before[3])
	w.shows("afterwards", key(1).Text, key(4000).Text)
}

func archiveSettleMeetsWriter(w *world) {
	put := w.row(1)
	e, due := w.find(1)[0], put[0].Expiry
	put[0].Expiry = key(5000)
	then, met := w.writing(put[0])
	o, err := w.settleInto(&Shelf{Then: then}, e, func(v store.Value) store.Verdict {
		if v.Text <= due.Text {
			return store.Delete
		}
		return store.Keep
	})
	if o != store.Kept && o != store.Deleted {
		w.Errorf("settle says %s; %v", outcome(o), err)
	}
	met()
	w.shows("afterwards", key(5000).Text)
}

// archiveStops: no write is started once the context is done, and the error is the context's.
func archiveStops(w *world) {
	put := w.row(2)
	found := w.find(2)
	copies := w.fetch(keys(found)...)
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	q := w.all()
	q.Archive = &Shelf{Then: func() error { cancel(); return nil }}
	b := &store.Batch{Query: q, Ops: deletesOf(found...)}
	w.is("a context that ends while Keep runs", w.store.Dispose(ctx, b), context.Canceled)
	w.same("outcomes", outcomes(b.Ops), []string{"unknown", "unknown"})
	_, err := w.store.Settle(ctx, q, found[0], verdict(store.Delete))
	w.is("settle", err, context.Canceled)
	w.shows("afterwards", texts(put...)...)
	_, err = w.archiver().Fetch(ctx, w.target, w.ns, keys(found), time.Time{})
	w.is("fetch", err, context.Canceled)
	w.dispose(found...)
	list := []store.Insertion{{Copy: copies[0], AsIs: true}, {Copy: copies[1], AsIs: true}}
	w.is("insert", w.archiver().Insert(ctx, w.target, w.ns, list), context.Canceled)
	w.same("outcomes of insertions", insertOutcomes(list), []string{"unknown", "unknown"})
	w.shows("at the end")
}

// archiveBelow: DeleteBelow keeps what it deletes, and Insert brings it back.
func archiveBelow(w *world) {
	w.row(1)
	e := w.find(1)[0]
	planted := w.plant(e.Key, plant("notes", "a"), plant("notes", "a", "tags", "b").with("text", "x"), plant("notes", "c"),
		Plant{Path: []Step{{Kind: "notes", Number: 7}}})
	before := w.fetch(planted...)
	del := func(a store.Archive, isDue bool) (o store.Outcome, err error) {
		q := w.all()
		q.Archive = a
		err = store.Retry(w.ctx, settleWithin, func() (err error) {
			o, err = w.planter().DeleteBelow(w.ctx, q, e, listOf(planted...), func(store.Value) bool { return isDue })
			return err
		})
		return o, err
	}
	o, err := del(&Shelf{Then: func() error { return errShelf }}, true)
	if w.is("if Keep fails", err, errShelf); o != store.Unknown {
		w.Errorf("if Keep fails, it says %s", outcome(o))
	}
	s := new(Shelf)
	if o, err := del(s, false); o != store.Kept {
		w.Errorf("of what is not due it says %s; %v", outcome(o), err)
	}
	w.same("what was kept of what is not due", s.Keys(), []string{})
	w.same("what is there", sorted(w.below(e.Key)), sorted(planted))
	if o, err := del(s, true); o != store.Deleted {
		w.Errorf("it says %s; %v", outcome(o), err)
	}
	w.hasKept(s, before...)
	w.same("what is left", w.below(e.Key), []string{})
	w.same("outcomes of insertions", insertOutcomes(w.insert(s.Insertions()...)), slices.Repeat([]string{"inserted"}, 4))
	w.same("what is there again", sorted(w.below(e.Key)), sorted(planted))
	again := insertOutcomes(w.insert(s.Insertions()...))
	w.same("outcomes of repeated insertions", again, slices.Repeat([]string{"kept"}, 4))
}

// fetchOrder: each key has its copy, also if that has no data.
func fetchOrder(w *world) {
	put := append(w.large(), whole()...)
	w.put(whole()...)
	var asked []string
	there := map[string]store.Entity{}
	for i, e := range put {
		k := w.keyOf(e)
		there[k] = e
		asked = append(asked, w.keyOf(named(fmt.Sprintf("missing-%d", i), store.Value{})), k)
	}
	slices.Reverse(asked)
	for _, c := range w.fetch(asked...) {
		e, ok := there[c.Key]
		if ok != (c.Data != nil) || c.Expiry != e.Expiry {
			w.Errorf("%s has %d bytes of data and the expiry %v, not %v", c.Key, len(c.Data), c.Expiry, e.Expiry)
		}
	}
	for _, none := range [][]string{nil, {}} {
		if got, err := w.archiver().Fetch(w.ctx, w.target, w.ns, none, time.Time{}); len(got) > 0 || err != nil {
			w.Errorf("no keys have %d copies; %v", len(got), err)
		}
	}
}

// insertRestores: what was deleted and inserted again is what it was, in each namespace.
func insertRestores(w *world) {
	for _, ns := range append([]string{""}, w.caps.Namespaces...) {
		in := *w
		in.ns = ns
		in.restores()
	}
}

func (w *world) restores() {
	w.Helper()
	put := whole()
	w.put(put...)
	w.put(named("never", store.Value{}), named("number", store.Value{Type: store.Other, Text: "7"}),
		named("list", store.Value{Type: store.List, Text: `["a","b"]`}))
	found := w.find(len(put))
	before := w.dumped()
	s := new(Shelf)
	w.disposeInto(s, deletesOf(found...)...)
	for _, name := range []string{"never", "number", "list"} {
		o, err := w.settleInto(s, store.Entry{Key: w.keyOf(named(name, store.Value{}))}, verdict(store.Delete))
		if o != store.Deleted {
			w.Errorf("settle says %s of %s; %v", outcome(o), name, err)
		}
	}
	w.same("what is there in between", w.dumped(), []string{})
	w.same("outcomes", insertOutcomes(w.insert(s.Insertions()...)), slices.Repeat([]string{"inserted"}, len(put)+3))
	w.same("what is there again", w.dumped(), before)
	w.same("what a scan finds again", keys(w.find(len(put))), keys(found))
	ops := w.dispose(w.find(len(put))...)
	w.same("outcomes of deleting it again", outcomes(ops), slices.Repeat([]string{"deleted"}, len(put)))
}

// insertNever: what exists stays as it is, and the others are inserted.
func insertNever(w *world) {
	put := w.row(4)
	found := w.find(4)
	s := new(Shelf)
	w.disposeInto(s, deletesOf(found...)...)
	put[1].Data, put[2].Expiry = []byte(`{"user":"somebody new"}`), key(5000)
	w.put(put[1:3]...)
	w.same("outcomes", insertOutcomes(w.insert(s.Insertions()...)), insertedExcept(s, found[1].Key, found[2].Key))
	want := w.dumped()
	w.shows("afterwards", key(0).Text, key(1).Text, key(3).Text, key(5000).Text)
	if !slices.ContainsFunc(want, func(line string) bool { return strings.Contains(line, "somebody new") }) {
		w.Errorf("what was there is overwritten: %q", want)
	}
	w.same("outcomes of a repeated call", insertOutcomes(w.insert(s.Insertions()...)), slices.Repeat([]string{"kept"}, 4))
	w.same("what is there after it", w.dumped(), want)
}

func insertedExcept(s *Shelf, keys ...string) []string {
	out := []string{}
	for _, in := range s.Insertions() {
		o := outcome(store.Inserted)
		if slices.Contains(keys, in.Key) {
			o = outcome(store.Kept)
		}
		out = append(out, o)
	}
	return out
}

// insertSets: an inserted entity gets another expiry, or none, or keeps its own.
func insertSets(w *world) {
	w.row(3)
	found := w.find(3)
	copies := w.fetch(keys(found)...)
	w.dispose(found...)
	list := w.insert(store.Insertion{Copy: copies[0], To: key(5000)}, store.Insertion{Copy: copies[1]},
		store.Insertion{Copy: copies[2], To: key(6000), AsIs: true})
	w.same("outcomes", insertOutcomes(list), []string{"inserted", "inserted", "inserted"})
	w.shows("afterwards", key(2).Text, key(5000).Text)
	for i, c := range w.fetch(keys(found)...) {
		want := []store.Value{key(5000), {}, key(2)}[i]
		if c.Data == nil || c.Expiry != want {
			w.Errorf("entity %d has %d bytes of data and the expiry %v, not %v", i, len(c.Data), c.Expiry, want)
		}
	}
	for _, line := range w.dumped() {
		if !strings.Contains(line, `{"user":"u7"}`) {
			w.Errorf("the other properties are %s", line)
		}
	}
}

// insertRefuses: a list that is refused inserts nothing.
func insertRefuses(w *world) {
	w.row(2)
	found := w.find(2)
	copies := w.fetch(keys(found)...)
	w.dispose(found...)
	one := func(i int) store.Insertion { return store.Insertion{Copy: copies[i], AsIs: true} }
	many := []store.Insertion{}
	for i := range store.MaxPage + 1 {
		next := one(0)
		next.Key = w.keyOf(named(fmt.Sprintf("e-%04d", i), store.Value{}))
		many = append(many, next)
	}
	for what, list := range map[string][]store.Insertion{"a key twice": {one(0), one(1), one(0)}, "too many": many} {
		err := store.Retry(w.ctx, settleWithin, func() error { return w.archiver().Insert(w.ctx, w.target, w.ns, list) })
		w.is("insert of "+what, err, store.ErrInvalid)
		for _, one := range list {
			if one.Outcome != store.Unknown {
				w.Errorf("insert of %s: %s is %s", what, one.Key, outcome(one.Outcome))
			}
		}
	}
	w.shows("afterwards")
	w.insert()
	w.same("outcomes of a list that is good", insertOutcomes(w.insert(one(1), one(0))), []string{"inserted", "inserted"})
}

// insertParts: what a call leaves, it has not inserted.
func insertParts(w *world) {
	put := w.large()
	found := w.find(len(put))
	before := w.dumped()
	s := new(Shelf)
	w.disposeInto(s, deletesOf(found...)...)
	list := s.Insertions()
	w.retry("insert", func() error { return w.archiver().Insert(w.ctx, w.target, w.ns, list) })
	var there []string
	for _, one := range list {
		if one.Outcome == store.Inserted {
			there = append(there, one.Key)
		}
	}
	w.same("what is there after the first call", sorted(keys(w.find(len(there)))), sorted(there))
	w.insert(s.Insertions()...)
	w.same("what is there at the end", w.dumped(), before)
}
