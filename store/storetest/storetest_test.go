package storetest

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// TestEveryCaseRejectsABrokenStore runs each case against a good store, which it
// must accept, and against each broken one that was made for it, which it must
// not. A case without a broken store proves nothing, and fails.
func TestEveryCaseRejectsABrokenStore(t *testing.T) {
	caps := goodCaps()
	byCase := make(map[string][]fault)
	for _, f := range faults {
		byCase[f.name] = append(byCase[f.name], f)
	}
	for _, c := range cases {
		caps, good := caps, good
		below := append(slices.Clone(descendCases), testCase{name: "ArchiveOfDescendants"})
		if slices.ContainsFunc(below, func(d testCase) bool { return d.name == c.name }) {
			caps.BillsEntries, good = true, modelled
		}
		t.Run(c.name, func(t *testing.T) {
			if report := runCase(t, c, &broken{full: good(t)}, caps); report != "" {
				t.Fatalf("the case refuses a good store:\n%s", report)
			}
			if len(byCase[c.name]) == 0 {
				t.Fatal("no broken store shows that the case can fail")
			}
			for _, f := range byCase[c.name] {
				b := &broken{full: good(t)}
				f.breaks(b)
				if runCase(t, c, b, caps) == "" {
					t.Errorf("the case accepts a store that %s", f.what)
				}
			}
		})
		delete(byCase, c.name)
	}
	for name := range byCase {
		t.Errorf("there are broken stores for %s, which is no case", name)
	}
}

// goodCaps are those of the good store.
func goodCaps() Caps {
	return Caps{
		Namespaces: []string{"one", "two"},
		Counter:    true, Dumper: true, Dropper: true, Keyer: true, Adopter: true, Descender: true, Archiver: true,
		Steps: true, ListsInIndex: true, KeepsLists: true, TellsGone: true, NumbersFirst: true, OrdersByBytes: true,
		Clock: time.Now,
	}
}

// TestCapsAreChecked: the suite checks what Caps say about a store.
func TestCapsAreChecked(t *testing.T) {
	if report := runCase(t, cases[0], good(t), Caps{Counter: true, Dumper: true, Keyer: true}); !strings.Contains(report, "not what Caps declare") {
		t.Errorf("a store that can drop, where Caps say that it cannot: %q", report)
	}
}

// runCase returns the failure of the case on the store, or "".
func runCase(t *testing.T, c testCase, s store.Store, caps Caps) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(newWorld(r, s, caps))
	}()
	<-done
	return strings.Join(r.report, "\n")
}

// A recorder is a TB that remembers failures and passes none on.
type recorder struct {
	testing.TB
	report []string
}

func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Errorf(format string, args ...any) {
	r.report = append(r.report, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// full has all interfaces that a store may implement.
type full interface {
	store.Store
	store.Counter
	store.Writer
	store.Dumper
	store.Dropper
	store.Keyer
	store.Adopter
	store.Archiver
	Planter
}

func good(t *testing.T) full {
	db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return spaced{withoutDescendants{DB: db}}
}

// withoutDescendants is the embedded store, in which nothing lies below an entity.
type withoutDescendants struct {
	*embedded.DB
	Planter // nil: no case of other things calls it
}

// modelled is a good store for the cases of descendants: the embedded store has none.
func modelled(t *testing.T) full { return model{good(t), modelstore.New(time.Now)} }

// spaced gives the embedded store namespaces, as tables of their own.
type spaced struct{ full }

func in(t store.Target, namespace string) store.Target {
	if namespace != "" {
		t.Kind = namespace + "/" + t.Kind
	}
	return t
}

func inQuery(q store.Query) store.Query {
	q.Target, q.Namespace = in(q.Target, q.Namespace), ""
	return q
}

func (s spaced) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	return s.full.Scan(ctx, inQuery(q), p)
}

func (s spaced) Dispose(ctx context.Context, b *store.Batch) error {
	q := b.Query
	b.Query = inQuery(q)
	err := s.full.Dispose(ctx, b)
	b.Query = q
	return err
}

func (s spaced) Settle(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
	return s.full.Settle(ctx, inQuery(q), e, decide)
}

func (s spaced) Put(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
	return s.full.Put(ctx, in(t, ns), "", es)
}

func (s spaced) Count(ctx context.Context, t store.Target, ns string, sp store.Span, upTo int64) (int64, error) {
	return s.full.Count(ctx, in(t, ns), "", sp, upTo)
}

func (s spaced) Holds(ctx context.Context, t store.Target, ns string) (bool, error) {
	return s.full.Holds(ctx, in(t, ns), "")
}

func (s spaced) Dump(ctx context.Context, t store.Target, ns string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		for e, err := range s.full.Dump(ctx, in(t, ns), "") {
			if e.Namespace = ns; !yield(e, err) {
				return
			}
		}
	}
}

// broken is a store with a fault: a method that is set stands for the good one,
// which it reaches through full.
type broken struct {
	full
	scan    func(context.Context, store.Query, *store.Page) error
	dispose func(context.Context, *store.Batch) error
	settle  func(context.Context, store.Query, store.Entry, func(store.Value) store.Verdict) (store.Outcome, error)
	load    func(context.Context, store.RecordQuery) (store.Records, error)
	save    func(context.Context, store.Record, string) error
	put     func(context.Context, store.Target, string, []store.Entity) error
	count   func(context.Context, store.Target, string, store.Span, int64) (int64, error)
	holds   func(context.Context, store.Target, string) (bool, error)
	dump    func(context.Context, store.Target, string) iter.Seq2[store.Entity, error]
	drop    func(context.Context, store.Target, string, string) error
	key     func(store.Entity) (string, error)
	id      func(string) (string, error)
	splits  func(context.Context, store.Target, string, int) ([]string, error)
	walk    func(context.Context, store.WalkQuery, *store.Rows) error
	look    func(context.Context, store.WalkQuery, []string, *store.Rows) error
	restamp func(context.Context, *store.Restamping) error

	descendants func(context.Context, store.DescendantQuery, *store.Descendants) error
	deleteBelow func(context.Context, store.Query, store.Entry, []store.Descendant, func(store.Value) bool) (store.Outcome, error)

	fetch  func(context.Context, store.Target, string, []string) ([]store.Copy, error)
	insert func(context.Context, store.Target, string, []store.Insertion) error
}

func (b *broken) ID(key string) (string, error) {
	if b.id != nil {
		return b.id(key)
	}
	return b.full.ID(key)
}

func (b *broken) Key(t store.Target, ns string, e store.Entity) (string, error) {
	if b.key != nil {
		return b.key(e)
	}
	return b.full.Key(t, ns, e)
}

func (b *broken) Scan(ctx context.Context, q store.Query, p *store.Page) error {
	if b.scan != nil {
		return b.scan(ctx, q, p)
	}
	return b.full.Scan(ctx, q, p)
}

func (b *broken) Dispose(ctx context.Context, batch *store.Batch) error {
	if b.dispose != nil {
		return b.dispose(ctx, batch)
	}
	return b.full.Dispose(ctx, batch)
}

func (b *broken) Settle(ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict) (store.Outcome, error) {
	if b.settle != nil {
		return b.settle(ctx, q, e, decide)
	}
	return b.full.Settle(ctx, q, e, decide)
}

func (b *broken) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	if b.load != nil {
		return b.load(ctx, q)
	}
	return b.full.Load(ctx, q)
}

func (b *broken) Save(ctx context.Context, r store.Record, prev string) error {
	if b.save != nil {
		return b.save(ctx, r, prev)
	}
	return b.full.Save(ctx, r, prev)
}

func (b *broken) Put(ctx context.Context, t store.Target, ns string, es []store.Entity) error {
	if b.put != nil {
		return b.put(ctx, t, ns, es)
	}
	return b.full.Put(ctx, t, ns, es)
}

func (b *broken) Count(ctx context.Context, t store.Target, ns string, s store.Span, upTo int64) (int64, error) {
	if b.count != nil {
		return b.count(ctx, t, ns, s, upTo)
	}
	return b.full.Count(ctx, t, ns, s, upTo)
}

func (b *broken) Holds(ctx context.Context, t store.Target, ns string) (bool, error) {
	if b.holds != nil {
		return b.holds(ctx, t, ns)
	}
	return b.full.Holds(ctx, t, ns)
}

func (b *broken) Dump(ctx context.Context, t store.Target, ns string) iter.Seq2[store.Entity, error] {
	if b.dump != nil {
		return b.dump(ctx, t, ns)
	}
	return b.full.Dump(ctx, t, ns)
}

func (b *broken) Drop(ctx context.Context, t store.Target, from, to string) error {
	if b.drop != nil {
		return b.drop(ctx, t, from, to)
	}
	return b.full.Drop(ctx, t, from, to)
}
