// Package storetest is what every driver of [store.Store] must do, as a suite of
// tests that uses nothing but the contract: [store.Writer] to make entities, Scan
// to see them.
//
// The invariant is that each case fails on a store with the fault that the case
// is about: the tests of this package run every case against a deliberately
// broken store, and refuse a case that has no such store.
//
// Limits: what only one driver has (its files, its service's errors, what a
// crash leaves) is tested in that driver's package. [Caps] says how drivers
// differ; nothing is guessed from a driver's type. The suite does not import package
// testing, so that a program can run it on a user's own database.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// A TB is the part of testing.TB that the suite uses, so that a program can run a case,
// and a test of the suite can see one fail. Fatalf does not return: it ends the goroutine.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
	Cleanup(func())
	TempDir() string
}

// Caps say what a store can do and where it differs from others.
type Caps struct {
	Guard      store.Guard // for the targets of the suite
	Namespaces []string    // namespaces other than "" that may be written to; empty if the store has no others

	Counter bool // implements store.Counter
	Dumper  bool // implements store.Dumper
	Dropper bool // implements store.Dropper
	Keyer   bool // implements store.Keyer
	Adopter bool // implements store.Adopter

	Archiver bool // implements store.Archiver

	// Descender says that the store implements Planter.
	Descender bool

	Steps         bool // tells how many deleted points were stepped over
	ListsInIndex  bool // a scan shows that an entry is one element of a list
	ListsApart    bool // lists have no entries between those of plain values
	KeepsLists    bool // Dispose tells a list from a plain value
	BillsEntries  bool // a scan bills a read for each entry, not one for the query
	TellsGone     bool // Dispose tells what it deleted from what was not there
	NumbersFirst  bool // numeric ids come before names at the same value
	OrdersByBytes bool // names at the same value are ordered bytewise

	// Clock is what the store's time is compared with, to ten minutes.
	Clock func() time.Time

	// Small asks for fewer entities, for a store that bills them.
	Small bool
	// Scratch names the kind and the target of all cases. The caller then empties both
	// before each case, and the kind whose name has Other behind it, and the target whose
	// name has -x behind it. Without it each case has names of its own.
	Scratch *Scratch
}

// A Scratch is where cases write.
type Scratch struct{ Kind, Target string }

// A Runner is a TB that runs tests within it, as *testing.T does.
type Runner[T any] interface {
	TB
	Run(name string, test func(T)) bool
}

// Run runs the suite. open returns a store with a [store.Writer] for one case,
// and closes it in a cleanup. It may return the same store again: each case
// uses kinds and names of its own.
func Run[T Runner[T]](t T, open func(TB) store.Store, caps Caps) {
	for _, c := range Cases(caps) {
		if c.NotFor != "" {
			t.Logf("%s does not apply: %s", c.Name, c.NotFor)
			continue // declared in caps, so that it is no skip
		}
		t.Run(c.Name, func(t T) { c.Run(t, open(t)) })
	}
}

// A Case is one demand of the contract.
type Case struct {
	Name   string
	NotFor string // why the case does not apply to the store; empty if it does
	// If cases share a Scratch: Fresh ones need a kind that was not written to, and after a
	// Last one no other works in the kind.
	Fresh, Last bool

	caps Caps
	test func(*world)
}

// Cases returns all cases, in an order that does not matter.
func Cases(caps Caps) []Case {
	list := make([]Case, 0, len(cases))
	for _, c := range cases {
		one := Case{Name: c.name, Fresh: c.fresh, Last: c.last, caps: caps, test: c.run}
		if c.needs != nil {
			one.NotFor = c.needs(caps)
		}
		list = append(list, one)
	}
	return list
}

// Run runs the case. It may end the goroutine.
func (c Case) Run(tb TB, s store.Store) { c.test(newWorld(tb, s, c.caps)) }

// A testCase is one demand of the contract.
type testCase struct {
	name  string
	needs func(Caps) (why string) // why the case does not apply, or ""
	run   func(*world)

	fresh, last bool // see Case
}

var cases = slices.Concat(scanCases, disposeCases, settleCases, carryCases, shardCases, recordCases, extraCases,
	adoptCases, descendCases, archiveCases)

// settleWithin is how long the suite repeats what a store asks to repeat.
const settleWithin = 30 * time.Second

// noon is when the entities of the suite expire, give or take.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// A world is one case's view of a store.
type world struct {
	TB
	ctx    context.Context
	store  store.Store
	writer store.Writer
	caps   Caps
	target store.Target
	ns     string
}

func newWorld(tb TB, s store.Store, caps Caps) *world {
	tb.Helper()
	writer, ok := s.(store.Writer)
	if !ok {
		tb.Fatalf("the suite needs a store.Writer; %T does not implement it", s)
	}
	_, counter := s.(store.Counter)
	_, dumper := s.(store.Dumper)
	_, dropper := s.(store.Dropper)
	_, keyer := s.(store.Keyer)
	_, adopter := s.(store.Adopter)
	_, planter := s.(Planter)
	_, archiver := s.(store.Archiver)
	if counter != caps.Counter || dumper != caps.Dumper || dropper != caps.Dropper || keyer != caps.Keyer ||
		adopter != caps.Adopter || planter != caps.Descender || archiver != caps.Archiver {
		tb.Fatalf("the store implements Counter: %v, Dumper: %v, Dropper: %v, Keyer: %v, Adopter: %v, Planter: %v, "+
			"Archiver: %v, which is not what Caps declare", counter, dumper, dropper, keyer, adopter, planter, archiver)
	}
	scratch := caps.Scratch
	if scratch == nil {
		unique := rand.Text()[:10]
		scratch = &Scratch{Kind: "Kind" + unique, Target: "target-" + unique}
	}
	return &world{
		TB: tb, ctx: tb.Context(), store: s, writer: writer, caps: caps,
		target: store.Target{
			Name: scratch.Target, Kind: scratch.Kind, Property: "expiry_key", Type: store.Text,
			Guard: caps.Guard, SingleValued: caps.Guard == store.GuardQuery,
		},
	}
}

// size returns how many entities a case writes.
func (w *world) size(usual, small int) int {
	if w.caps.Small {
		return small
	}
	return usual
}

// instants makes the target one of timestamps. They are in no text, so that the guard
// is what the driver makes of it.
func (w *world) instants() {
	w.target.Type, w.target.Property = store.Instant, "expires"
	w.target.Guard, w.target.SingleValued = store.GuardAuto, false
}

// other returns a world that differs from w in its target's kind.
func (w *world) other() *world {
	o := *w
	o.target.Kind += "Other"
	return &o
}

// retry makes a call until the store does not ask to repeat it.
func (w *world) retry(what string, call func() error) {
	w.Helper()
	if err := store.Retry(w.ctx, settleWithin, call); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

// key is the expiry key of something that expires i milliseconds after noon, in
// shard 0 of generation 1.
func key(i int) store.Value {
	k, err := expirykey.New(1, 0, noon.Add(time.Duration(i)*time.Millisecond))
	if err != nil {
		panic(err) // the suite's own constants
	}
	return store.TextValue(k.String())
}

// all asks for every expiry key of shard 0 of generation 1.
func (w *world) all() store.Query {
	lo, hi := expirykey.Range(1, 0)
	return store.Query{Target: w.target, Namespace: w.ns, Lo: store.TextValue(lo), Hi: store.TextValue(hi),
		Limit: store.MaxPage}
}

func named(name string, expiry store.Value) store.Entity {
	return store.Entity{Name: name, Expiry: expiry, Data: []byte(`{"user":"u7"}`)}
}

func numbered(id int64, expiry store.Value) store.Entity {
	return store.Entity{Number: id, Expiry: expiry}
}

// row puts n entities that expire one millisecond apart.
func (w *world) row(n int) []store.Entity {
	w.Helper()
	var out []store.Entity
	for i := range n {
		out = append(out, named(fmt.Sprintf("e-%04d", i), key(i)))
	}
	w.put(out...)
	return out
}

func (w *world) put(entities ...store.Entity) {
	w.Helper()
	for part := range slices.Chunk(entities, store.MaxPage) {
		w.retry("put", func() error { return w.writer.Put(w.ctx, w.target, w.ns, part) })
	}
}

// scan reads all pages of q. With positions it goes on by Position alone, as
// another process would; otherwise with the store's own Next if it has one.
func (w *world) scan(q store.Query, positions bool) []store.Entry {
	w.Helper()
	var out []store.Entry
	page := store.Page{Entries: []store.Entry{{Key: "left over"}}, More: true, Next: "left over", SteppedOver: -7}
	for empty := 0; ; {
		w.retry("scan", func() error { return w.store.Scan(w.ctx, q, &page) })
		if len(page.Entries) > q.Limit {
			w.Fatalf("a page of %d entries, where the limit is %d", len(page.Entries), q.Limit)
		}
		out = append(out, page.Entries...)
		if !page.More {
			return out
		}
		if empty++; len(page.Entries) > 0 {
			empty = 0
		}
		if empty > 1000 || len(out) > 20_000 {
			w.Fatalf("the scan does not end: %d entries so far", len(out))
		}
		switch {
		case page.Next != nil && !positions:
			q.Next = page.Next
		case len(page.Entries) > 0:
			q.After, q.Next = page.Entries[len(page.Entries)-1].Position(), nil
		case page.Next == nil:
			w.Fatalf("an empty page that has more after it, and nothing to go on from")
		default:
			q.Next = page.Next
		}
	}
}

// find scans everything, of which there must be n entries.
func (w *world) find(n int) []store.Entry {
	w.Helper()
	found := w.scan(w.all(), false)
	if len(found) != n {
		w.Fatalf("a scan of everything finds %d entries, not %d: %q", len(found), n, short(values(found)))
	}
	return found
}

func values(entries []store.Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Position().Value.Text)
	}
	return out
}

func keys(entries []store.Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Key)
	}
	return out
}

func texts(entities ...store.Entity) []string {
	out := []string{}
	for _, e := range entities {
		out = append(out, e.Expiry.Text)
	}
	return out
}

// shows checks which expiry keys a scan of everything shows.
func (w *world) shows(when string, want ...string) {
	w.Helper()
	w.same("what is there "+when, values(w.scan(w.all(), false)), want)
}

func (w *world) same(what string, got, want []string) {
	w.Helper()
	if !slices.Equal(got, want) {
		w.Errorf("%s:\ngot  %q\nwant %q", what, short(got), short(want))
	}
}

// short keeps the report of a failure readable.
func short(list []string) []string {
	const most = 20
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most]), fmt.Sprintf("… %d in all", len(list)))
}

func (w *world) dispose(entries ...store.Entry) []store.Op {
	w.Helper()
	b := w.batch(w.all(), entries...)
	w.retry("dispose", func() error { return w.store.Dispose(w.ctx, b) })
	return b.Ops
}

func (w *world) batch(q store.Query, entries ...store.Entry) *store.Batch {
	b := &store.Batch{Query: q}
	for _, e := range entries {
		b.Ops = append(b.Ops, store.Op{Entry: e})
	}
	return b
}

func outcomes(ops []store.Op) []string {
	out := []string{}
	for _, op := range ops {
		out = append(out, outcome(op.Outcome))
	}
	return out
}

func outcome(o store.Outcome) string {
	names := []string{"unknown", "deleted", "gone", "changed", "kept", "carried", "inserted"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprint(int(o))
}

// settle settles one entry with the verdict and returns what decide was shown.
func (w *world) settle(e store.Entry, verdict store.Verdict) (o store.Outcome, seen []store.Value) {
	w.Helper()
	w.retry("settle", func() error {
		seen = nil
		var err error
		o, err = w.store.Settle(w.ctx, w.all(), e, func(v store.Value) store.Verdict {
			seen = append(seen, v)
			return verdict
		})
		return err
	})
	return o, seen
}

// is checks that an error is one of the contract's.
func (w *world) is(what string, err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("%s: the error is %v, want one that wraps %q", what, err, want)
	}
}
