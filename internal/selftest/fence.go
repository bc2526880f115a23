package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/reaper-ttl/reaper/store"
)

// A Database is what a self-test needs of a store: all drivers have it.
type Database interface {
	store.Store
	store.Writer
	store.Counter
	store.Dumper
	store.Keyer
	store.Adopter
}

// Hooks change what single calls do, for one check. The zero value changes nothing.
type hooks struct {
	dispose func(context.Context, *store.Batch) // before a batch is disposed of
	fail    func(method string) error           // a call that fails so does not reach the store
}

// A fence is a Database that writes nowhere but in the scratch kinds, and bills to a ledger.
type fence struct {
	in       Database
	scratch  scratch
	ledger   *ledger
	touched  *touched
	hooks    hooks
	cleaning bool // not bound by what a run may cost
}

func (f *fence) outside(op, what string) error {
	return fmt.Errorf("%s: %w: the self-test writes nowhere but in %s, and not to %s", op, store.ErrInvalid,
		f.scratch.kind(), what)
}

// do makes a call, and writes it into the ledger.
func (f *fence) do(ctx context.Context, method string, call func(context.Context) error) error {
	if f.hooks.fail != nil {
		if err := f.hooks.fail(method); err != nil {
			return err
		}
	}
	if !f.cleaning {
		if err := f.ledger.allows(); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
	}
	meter, began := new(store.Meter), f.ledger.now()
	err := call(store.WithMeter(ctx, meter))
	o := meter.Operations()
	f.ledger.note(method, f.ledger.now().Sub(began), o, err)
	store.Bill(ctx, o)
	return err
}

func (f *fence) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	return f.do(ctx, "scan", func(ctx context.Context) error { return f.in.Scan(ctx, q, page) })
}

func (f *fence) Dispose(ctx context.Context, b *store.Batch) error {
	if kind := b.Query.Target.Kind; !f.scratch.ownsKind(kind) {
		return f.outside("dispose", kind)
	}
	if f.hooks.dispose != nil {
		f.hooks.dispose(ctx, b)
	}
	return f.do(ctx, "dispose", func(ctx context.Context) error { return f.in.Dispose(ctx, b) })
}

func (f *fence) Settle(
	ctx context.Context, q store.Query, e store.Entry, decide func(store.Value) store.Verdict,
) (o store.Outcome, err error) {
	if !f.scratch.ownsKind(q.Target.Kind) {
		return store.Unknown, f.outside("settle", q.Target.Kind)
	}
	err = f.do(ctx, "settle", func(ctx context.Context) error {
		o, err = f.in.Settle(ctx, q, e, decide)
		return err
	})
	return o, err
}

func (f *fence) Load(ctx context.Context, q store.RecordQuery) (got store.Records, err error) {
	err = f.do(ctx, "load", func(ctx context.Context) error {
		got, err = f.in.Load(ctx, q)
		return err
	})
	return got, err
}

func (f *fence) Save(ctx context.Context, r store.Record, prev string) error {
	if !f.scratch.ownsRecord(r) {
		return f.outside("save", fmt.Sprintf("%s %s of %s", r.Sort, r.Key, r.Target))
	}
	f.touched.record(r)
	return f.do(ctx, "save", func(ctx context.Context) error { return f.in.Save(ctx, r, prev) })
}

// Put writes entities with the mark of the run.
func (f *fence) Put(ctx context.Context, t store.Target, namespace string, entities []store.Entity) error {
	if !f.scratch.ownsKind(t.Kind) || namespace != "" && namespace != f.scratch.namespace() {
		return f.outside("put", t.Kind+" "+namespace)
	}
	f.touched.entity(t.Kind, namespace)
	marked := make([]store.Entity, len(entities))
	for i, e := range entities {
		marked[i] = e
		marked[i].Data = mark(e.Data, f.scratch.id)
	}
	return f.do(ctx, "put", func(ctx context.Context) error { return f.in.Put(ctx, t, namespace, marked) })
}

// mark adds the mark of a run to an entity's data.
func mark(data []byte, id string) []byte {
	own := fmt.Sprintf(`{%q:%q`, markProperty, id)
	rest := bytes.TrimSpace(data)
	if rest = bytes.TrimPrefix(rest, []byte("{")); len(bytes.Trim(rest, " }")) > 0 {
		own += ","
	}
	if len(rest) == 0 {
		rest = []byte("}")
	}
	return append([]byte(own), rest...)
}

// unmark removes the mark of a run from an entity's data, if that is an object.
func unmark(data []byte) []byte {
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil {
		return data
	}
	delete(all, markProperty)
	rest, err := json.Marshal(all)
	if err != nil {
		return data
	}
	return rest
}

// Dump yields entities without the mark of the run.
func (f *fence) Dump(ctx context.Context, t store.Target, namespace string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		asked := false
		err := f.do(ctx, "dump", func(ctx context.Context) (last error) { // what the store says is yielded here
			asked = true
			for e, err := range f.in.Dump(ctx, t, namespace) {
				if e.Data != nil {
					e.Data = unmark(e.Data)
				}
				if last = err; !yield(e, err) {
					break
				}
			}
			return last
		})
		if !asked {
			yield(store.Entity{}, err)
		}
	}
}

func (f *fence) Count(
	ctx context.Context, t store.Target, namespace string, s store.Span, upTo int64,
) (n int64, err error) {
	err = f.do(ctx, "count", func(ctx context.Context) error {
		n, err = f.in.Count(ctx, t, namespace, s, upTo)
		return err
	})
	return n, err
}

func (f *fence) Holds(ctx context.Context, t store.Target, namespace string) (holds bool, err error) {
	err = f.do(ctx, "holds", func(ctx context.Context) error {
		holds, err = f.in.Holds(ctx, t, namespace)
		return err
	})
	return holds, err
}

func (f *fence) ID(key string) (string, error) { return f.in.ID(key) }

func (f *fence) Key(t store.Target, namespace string, e store.Entity) (string, error) {
	return f.in.Key(t, namespace, e)
}

func (f *fence) Splits(ctx context.Context, t store.Target, namespace string, most int) (keys []string, err error) {
	err = f.do(ctx, "splits", func(ctx context.Context) error {
		keys, err = f.in.Splits(ctx, t, namespace, most)
		return err
	})
	return keys, err
}

func (f *fence) Walk(ctx context.Context, q store.WalkQuery, rows *store.Rows) error {
	return f.do(ctx, "walk", func(ctx context.Context) error { return f.in.Walk(ctx, q, rows) })
}

func (f *fence) Look(ctx context.Context, q store.WalkQuery, keys []string, rows *store.Rows) error {
	return f.do(ctx, "look", func(ctx context.Context) error { return f.in.Look(ctx, q, keys, rows) })
}

func (f *fence) Restamp(ctx context.Context, b *store.Restamping) error {
	if kind := b.Query.Target.Kind; !f.scratch.ownsKind(kind) {
		return f.outside("restamp", kind)
	}
	return f.do(ctx, "restamp", func(ctx context.Context) error { return f.in.Restamp(ctx, b) })
}
