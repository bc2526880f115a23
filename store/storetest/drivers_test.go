package storetest_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/datastore"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/firestore"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// A driver is a store with all methods that a script uses.
type driver interface {
	store.Store
	store.Writer
	store.Counter
	store.Dumper
	store.Keyer
}

// A mode is a cloud driver, and how the contract lets it differ from the embedded
// driver that it is compared with.
type mode struct {
	name  string
	guard store.Guard
	// native: any write between scan and delete is a change, even one with the same
	// expiry. The caller then settles the entity.
	native bool
	// lists: the index holds them among plain values, as in the embedded store.
	lists bool
	open  func(testing.TB) driver
}

var modes = []mode{
	{"datastore lookup", store.GuardLookup, false, true, openDatastore},
	{"datastore query", store.GuardQuery, false, false, openDatastore}, // it relies on a promise that there are no lists
	{"firestore", "", true, false, openFirestore},
}

func openDatastore(tb testing.TB) driver {
	tb.Helper()
	e := emulator.Start(tb, emulator.Datastore)
	db, err := datastore.Open(context.Background(), datastore.Options{Project: e.Project(tb), Emulator: e.Host})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func openFirestore(tb testing.TB) driver {
	tb.Helper()
	e := emulator.Start(tb, emulator.Native)
	db, err := firestore.Open(context.Background(), firestore.Options{Project: e.Project(tb), Emulator: e.Host})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func openEmbedded(tb testing.TB) driver {
	tb.Helper()
	db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// The domains are small, so that operations meet each other.
var (
	scriptIDs = []store.Entity{{Number: 1}, {Number: 9}, {Number: 10}, {Name: "1"}, {Name: "a"}, {Name: "a b"}, {Name: "#1"}, {Name: "é"}, {Name: "😀"}, {Name: "~"}}

	scriptValues = []store.Value{
		key(1, 0), key(1, 1), key(1, 1), key(1, 2), key(1, 3), key(2, 0), key(2, 1), key(0, 1),
		store.TextValue("00000001.0000.soon"), store.TextValue(""), store.TextValue("é"), store.TextValue("😀"),
		{}, {Type: store.Other, Text: "7"}, {Type: store.Other, Text: "true"}, {Type: store.Instant, Time: noon},
		{Type: store.List, Text: fmt.Sprintf("[%q,%q]", key(1, 1).Text, key(1, 2).Text)}, {Type: store.List, Text: fmt.Sprintf("[%q]", key(1, 3).Text)},
	}
	plainValues = 16 // those that are no lists

	noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
)

func key(generation, i int) store.Value {
	return store.TextValue(fmt.Sprintf("%08d.0000.20261121T12000%d.000Z", generation, i))
}

// A pair is the embedded store and another one, which do what one script says.
type pair struct {
	t    *testing.T
	mode mode
	ref  driver
	other
	text []byte

	names   map[string]int // of both stores' keys, to the entity's place in scriptIDs
	seen    []seen         // by the last scan, in both
	written map[int]bool   // since then
	lists   map[int]bool   // entities whose expiry is one now
}

type other struct {
	driver
	target store.Target
}

// A seen is an entry as each store showed it.
type seen struct {
	id         int
	ref, other store.Entry
}

func (p *pair) next() int {
	if len(p.text) == 0 {
		return 0
	}
	b := p.text[0]
	p.text = p.text[1:]
	return int(b)
}

// settled repeats a call as long as the store asks for it.
func (p *pair) settled(what string, do func() error) {
	p.t.Helper()
	if err := store.Retry(p.t.Context(), 20*time.Second, do); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// agree plays a script on both stores.
func agree(t *testing.T, m mode, ref, cloud driver, text []byte) {
	t.Helper()
	// A kind of its own, so that one emulator serves many scripts.
	name := "k" + rand.Text()[:12]
	target := store.Target{Name: name, Kind: name, Property: "expiry_key", Type: store.Text, Guard: m.guard, SingleValued: m.guard == store.GuardQuery}
	p := &pair{t: t, mode: m, ref: ref, other: other{cloud, target}, text: text, names: map[string]int{}, written: map[int]bool{}, lists: map[int]bool{}}
	for i, e := range scriptIDs {
		for _, d := range []driver{ref, cloud} {
			k, err := d.Key(target, "", e)
			if err != nil {
				t.Fatal(err)
			}
			p.names[k] = i
			if id, err := d.ID(k); err != nil || id != cmp.Or(e.Name, fmt.Sprint(e.Number)) {
				t.Errorf("%s has the id %q; %v", k, id, err)
			}
		}
	}
	saved := map[string]store.Record{}
	for step := 0; len(p.text) > 0 && step < 60 && !t.Failed(); step++ {
		switch p.next() % 9 {
		case 0, 1:
			p.put()
		case 2, 3:
			p.scan(false)
		case 4:
			p.dispose(store.Value{}, p.next()%4 == 0)
		case 5:
			p.dispose(scriptValues[p.next()%8], p.next()%4 == 0)
		case 6:
			p.settle()
		case 7:
			p.save(saved)
		case 8:
			p.count()
		}
	}
	p.scan(true)
	p.count()
	p.dump()
	p.records()
}

func (p *pair) value() store.Value {
	n := len(scriptValues)
	if !p.mode.lists {
		n = plainValues
	}
	return scriptValues[p.next()%n]
}

func (p *pair) put() {
	var batch []store.Entity
	for range 1 + p.next()%3 {
		i := p.next() % len(scriptIDs)
		e := scriptIDs[i]
		e.Expiry, e.Data = p.value(), []byte(`{"a":[1,"b"]}`)
		if slices.ContainsFunc(batch, func(b store.Entity) bool { return b.Name == e.Name && b.Number == e.Number }) {
			continue
		}
		batch = append(batch, e)
		p.written[i], p.lists[i] = true, e.Expiry.Type == store.List
	}
	for _, d := range []driver{p.ref, p.driver} {
		p.settled("put", func() error { return d.Put(p.t.Context(), p.target, "", batch) })
	}
}

// scan reads a span in pages of any size. Each goes on after the last one, by the
// store's own Next or, as after a restart, by a position.
func (p *pair) scan(all bool) {
	limit, how := 1+p.next()%4, p.next()
	lo, hi := []string{"", "00000001.0000.", key(1, 1).Text}[p.next()%3], []string{"\U0010ffff", "00000001.0000/", key(1, 2).Text}[p.next()%3]
	if all {
		limit, lo, hi = 3, "", "\U0010ffff"
	}
	read := func(d driver) (out []store.Entry) {
		q := store.Query{Target: p.target, Lo: store.TextValue(lo), Hi: store.TextValue(hi), Limit: limit}
		var page store.Page
		for turn := how; ; turn /= 2 {
			p.settled("scan", func() error { return d.Scan(p.t.Context(), q, &page) })
			if len(page.Entries) > limit {
				p.t.Fatalf("a page of %d", len(page.Entries))
			}
			out = append(out, page.Entries...)
			if !page.More {
				return out
			}
			q.Next = nil
			if len(page.Entries) > 0 {
				q.After = page.Entries[len(page.Entries)-1].Position()
			}
			if turn%2 == 0 {
				q.Next = page.Next
			}
		}
	}
	want, got := read(p.ref), read(p.driver)
	p.seen, p.written = nil, map[int]bool{}
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || p.names[want[i].Key] != p.names[got[i].Key] || want[i].Position().Value != got[i].Position().Value {
			p.t.Fatalf("a scan from %q to %q in pages of %d\nhas %v\nand  %v", lo, hi, limit, got, want)
		}
		p.seen = append(p.seen, seen{p.names[want[i].Key], want[i], got[i]})
	}
}

// dispose deletes or carries some of what was seen, which may have changed since.
func (p *pair) dispose(to store.Value, dry bool) {
	pick := p.next()
	make := func(entry func(seen) store.Entry) *store.Batch {
		b := &store.Batch{Query: store.Query{Target: p.target, Lo: store.TextValue(""), Hi: store.TextValue("\U0010ffff"), Limit: store.MaxPage}, DryRun: dry}
		once := map[int]bool{} // one commit takes an entity once, and a list may have shown it twice
		for i, s := range p.seen {
			if pick>>(i%8)&1 == 0 || once[s.id] {
				continue
			}
			once[s.id] = true
			op := store.Op{Entry: entry(s)}
			if i%3 < 2 {
				op.To = to
			}
			b.Ops = append(b.Ops, op)
		}
		return b
	}
	a, b := make(func(s seen) store.Entry { return s.ref }), make(func(s seen) store.Entry { return s.other })
	if len(a.Ops) == 0 {
		return
	}
	p.settled("dispose", func() error { return p.ref.Dispose(p.t.Context(), a) })
	p.settled("dispose", func() error { return p.driver.Dispose(p.t.Context(), b) })
	for i := range a.Ops {
		want, got := a.Ops[i], b.Ops[i]
		id := p.names[want.Entry.Key]
		same := want.Outcome == got.Outcome
		switch {
		case same:
		case p.mode.lists && p.written[id] && want.Entry.Value.Type == store.List && want.Outcome == store.Changed && (got.Outcome == store.Deleted || got.Outcome == store.Carried):
			// It was a list, of which Datastore mode shows elements as plain values, and
			// now is just that element.
			same = true
			want.Outcome = got.Outcome
			if !dry {
				p.settleOne(p.ref, id, verdictOf(got.To), got.Outcome)
			}
		case p.mode.native && p.written[id] && got.Outcome == store.Changed && (want.Outcome == store.Deleted || want.Outcome == store.Carried):
			// Native mode rejects any change. A sweep settles what changed at once.
			same = true
			if !dry {
				p.settleOne(p.driver, id, verdictOf(want.To), want.Outcome)
			}
		}
		if !same {
			p.t.Fatalf("%s, seen as %v and carried to %v (dry run: %v), written since: %v: outcome %d, and in the embedded store %d",
				got.Entry.Key, got.Entry.Value, got.To, dry, p.written[id], got.Outcome, want.Outcome)
		}
		if want.Known && got.Known && want.Now != got.Now {
			p.t.Fatalf("%s is now %v, and in the embedded store %v", got.Entry.Key, got.Now, want.Now)
		}
		if !dry && (want.Outcome == store.Deleted || want.Outcome == store.Carried) {
			p.written[id], p.lists[id] = true, false
		}
	}
}

func verdictOf(to store.Value) store.Verdict {
	if to.Type == store.Missing {
		return store.Delete
	}
	return store.CarryTo(to)
}

func (p *pair) settle() {
	id, what := p.next()%len(scriptIDs), p.next()
	verdict := []store.Verdict{store.Keep, store.Delete, store.CarryTo(scriptValues[what/3%8])}[what%3]
	want, now := p.settleOne(p.ref, id, verdict, store.Unknown)
	got, then := p.settleOne(p.driver, id, verdict, store.Unknown)
	if want != got || now != then {
		p.t.Fatalf("settling %+v, which is %v and in the embedded store %v: outcome %d and %d", scriptIDs[id], then, now, got, want)
	}
	if want != store.Kept {
		p.written[id], p.lists[id] = true, false
	}
}

// settleOne settles one entity; the outcome is to be want, unless that is Unknown.
func (p *pair) settleOne(d driver, id int, verdict store.Verdict, want store.Outcome) (o store.Outcome, now store.Value) {
	k, err := d.Key(p.target, "", scriptIDs[id])
	if err != nil {
		p.t.Fatal(err)
	}
	p.settled("settle", func() (err error) {
		o, err = d.Settle(p.t.Context(), store.Query{Target: p.target}, store.Entry{Key: k}, func(v store.Value) store.Verdict {
			now = v
			return verdict
		})
		return err
	})
	if want != store.Unknown && o != want {
		p.t.Fatalf("settling %s: outcome %d, not %d", k, o, want)
	}
	return o, now
}

// save writes or removes a record from the revision that it has or from another.
func (p *pair) save(saved map[string]store.Record) {
	name, what, number := []string{"one.1.0000", "two@é", "three"}[p.next()%3], p.next(), p.next()
	prev := saved[name].Revision
	if what%3 == 0 {
		prev = []string{"", "other", prev}[number%3]
	}
	r := store.Record{Sort: store.CursorRecord, Key: p.target.Name + name, Target: p.target.Name, Revision: store.NewRevision(prev),
		Fields: store.Fields{"number": int64(number), "text": "é\n", "rate": float64(number), "list": []store.Fields{{"yes": true}, {}}}}
	switch {
	case what%7 == 0 && saved[name].Revision != "": // the same again
		r = saved[name]
	case what%5 == 0:
		r.Fields = nil
	}
	var errs []error
	for _, d := range []driver{p.ref, p.driver} {
		errs = append(errs, store.Retry(p.t.Context(), 20*time.Second, func() error { return d.Save(p.t.Context(), r, prev) }))
	}
	if (errs[0] == nil) != (errs[1] == nil) || errors.Is(errs[0], store.ErrConflict) != errors.Is(errs[1], store.ErrConflict) {
		p.t.Fatalf("saving %+v from %q, but its revision is %q: %v, and in the embedded store %v", r, prev, saved[name].Revision, errs[1], errs[0])
	}
	switch {
	case errs[0] != nil:
	case r.Fields == nil:
		delete(saved, name)
	default:
		saved[name] = r
	}
	p.records()
}

func (p *pair) records() {
	var lists [][]store.Record
	for _, d := range []driver{p.ref, p.driver} {
		p.settled("load", func() error {
			got, err := d.Load(p.t.Context(), store.RecordQuery{Sort: store.CursorRecord, Target: p.target.Name})
			if err == nil {
				lists = append(lists, got.List)
			}
			return err
		})
	}
	if len(lists[0])+len(lists[1]) > 0 && !reflect.DeepEqual(lists[0], lists[1]) {
		p.t.Fatalf("the records are %+v\nand %+v", lists[1], lists[0])
	}
}

func (p *pair) count() {
	for _, list := range p.lists {
		if list {
			return // a service counts index rows, of which a list has several
		}
	}
	spans := []store.Span{{}, store.Between(key(1, 1).Text, ""), store.Between("", key(1, 2).Text),
		store.Between(key(1, 1).Text, key(1, 3).Text)}
	for i, s := range append(spans, spans...) {
		upTo := int64(0)
		if i >= len(spans) {
			upTo = 2
		}
		var counts []int64
		for _, d := range []driver{p.ref, p.driver} {
			p.settled("count", func() error {
				n, err := d.Count(p.t.Context(), p.target, "", s, upTo)
				if err == nil {
					counts = append(counts, n)
				}
				return err
			})
		}
		if counts[0] != counts[1] {
			p.t.Fatalf("count of %+v up to %d: %d, and in the embedded store %d", s, upTo, counts[1], counts[0])
		}
	}
}

func (p *pair) dump() {
	var dumps [][]string
	for _, d := range []driver{p.ref, p.driver} {
		var lines []string
		for e, err := range d.Dump(p.t.Context(), p.target, "") {
			if err != nil {
				p.t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%q %d %v %s", e.Name, e.Number, e.Expiry, e.Data))
		}
		dumps = append(dumps, lines)
	}
	if !slices.Equal(dumps[0], dumps[1]) {
		p.t.Fatalf("the dumps are\n%q\n%q", dumps[1], dumps[0])
	}
}

// TestDriversAgree plays random scripts on the embedded store and on each cloud driver, and
// compares the results.
func TestDriversAgree(t *testing.T) {
	scripts := nightly.Size(t, 50, 6)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			ref, cloud := openEmbedded(t), m.open(t)
			for seed := range scripts {
				rng := mrand.New(mrand.NewPCG(uint64(seed), 7))
				text := make([]byte, 150)
				for i := range text {
					text[i] = byte(rng.UintN(256))
				}
				if agree(t, m, ref, cloud, text); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// FuzzDriversAgree lets the fuzzer write the scripts.
func FuzzDriversAgree(f *testing.F) {
	f.Add(uint8(0), []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	for i := range modes {
		f.Add(uint8(i), []byte{0, 2, 4, 1, 5, 3, 6, 5, 2, 1, 0, 0, 0, 0, 0, 5, 1, 4, 255, 1, 2, 3, 0, 1, 1, 5, 5, 1, 255, 8, 7, 0, 1, 9, 6, 4, 1})
	}
	ref := openEmbedded(f)
	clouds := make([]driver, len(modes))
	for i, m := range modes {
		if i > 0 && m.name[:9] == modes[i-1].name[:9] {
			clouds[i] = clouds[i-1]
			continue
		}
		clouds[i] = m.open(f)
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		i := int(which) % len(modes)
		agree(t, modes[i], ref, clouds[i], text)
	})
}
