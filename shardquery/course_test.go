package shardquery_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
)

// A watched store remembers the queries that it got. It hands out cursors of its
// own, and holds that each comes back with the very query that it belongs to. What
// fails leaves something in the page.
type watched struct {
	*modelstore.Store
	t       *testing.T
	queries []store.Query
}

// A place is a watched store's own cursor.
type place struct {
	query store.Query // without After and Next
	after store.Position
}

func (w *watched) Scan(ctx context.Context, q store.Query, page *store.Page) error {
	w.queries = append(w.queries, q)
	bounds := q
	bounds.After, bounds.Next = store.Position{}, nil
	if !q.After.IsZero() && q.After.Value.Compare(q.Lo) < 0 {
		w.t.Errorf("%+v goes on before its beginning", q)
	}
	if at, ok := q.Next.(*place); ok && (at.query != bounds || at.after != q.After) {
		w.t.Errorf("a cursor comes back with another query: %+v, not %+v", q, at)
	}
	if err := w.Store.Scan(ctx, q, page); err != nil {
		page.Entries, page.More = append(page.Entries, store.Entry{Key: "junk"}), true
		return err
	}
	if page.More {
		page.Next = &place{bounds, page.Entries[len(page.Entries)-1].Position()}
	}
	return nil
}

// A pageReader is what the readers have in common.
type pageReader interface {
	Next(ctx context.Context, page *store.Page, most int) (more bool, err error)
	Query() store.Query
	Position() store.Position
	Seek(p store.Position)
}

// A course leads one reader after another through a store where queries fail at
// random. The readers stop, go back, and ask for more or fewer entries at a time.
type course struct {
	t     *testing.T
	rng   *rand.Rand
	store *watched
	// begin returns the reader of another process, which goes on after a position;
	// the one before may be nil.
	begin func(after store.Position, before pageReader) pageReader

	reader pageReader
	page   store.Page
	got    []string
	places []store.Position // behind each entry of got
	steps  int
	turns  int // bounded, so that the course ends
}

// step makes one call and reports whether there may be more.
func (c *course) step() (more bool) {
	c.t.Helper()
	if c.reader == nil {
		c.reader = c.begin(store.Position{}, nil)
	}
	if c.steps++; c.steps > 20_000 {
		c.t.Fatal("it does not end")
	}
	most, before := 1+c.rng.IntN(60), c.reader.Position()
	c.store.queries = nil
	more, err := c.reader.Next(c.t.Context(), &c.page, most)
	if n := len(c.store.queries); n > 1 || n == 0 && (more || err != nil || len(c.page.Entries) > 0) {
		c.t.Fatalf("%d queries in one call", n)
	}
	for _, q := range c.store.queries {
		if q.Limit > most || err == nil && c.reader.Query() != q {
			c.t.Fatalf("asked for %d entries at most by %+v, the page's query is %+v", most, q, c.reader.Query())
		}
	}
	if err != nil {
		c.failed(err, before)
		return true
	}
	for _, e := range c.page.Entries {
		c.got = append(c.got, shown(e.Value)+" "+e.Key)
		c.places = append(c.places, e.Position())
	}
	return c.turn() || more
}

// failed holds that a failure is one that passes, and changes nothing.
func (c *course) failed(err error, before store.Position) {
	c.t.Helper()
	switch {
	case !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, shardquery.ErrShrunk):
		c.t.Fatal(err)
	case len(c.page.Entries) > 0 || c.page.More:
		c.t.Fatalf("%d entries with the error %v", len(c.page.Entries), err)
	case c.reader.Position() != before:
		c.t.Fatalf("the position is %v after an error, not %v", c.reader.Position(), before)
	}
}

// turn has another process go on, or goes back, now and then, and reports whether
// there may be something again for that.
func (c *course) turn() bool {
	if c.turns > 40 {
		return false
	}
	c.turns++
	switch c.rng.IntN(20) {
	case 0: // by what is in the page
		if len(c.page.Entries) > 0 {
			c.reader = c.begin(c.places[len(c.places)-1], c.reader)
			return true
		}
	case 1:
		c.reader = c.begin(c.reader.Position(), c.reader)
		return true
	case 2, 3: // into the last pages
		c.back(max(0, len(c.got)-c.rng.IntN(70)))
		return true
	case 4: // anywhere
		if c.rng.IntN(4) == 0 {
			c.back(c.rng.IntN(len(c.got) + 1))
			return true
		}
	case 5: // to its own position
		c.reader.Seek(c.reader.Position())
		return true
	}
	c.turns--
	return false
}

// back seeks the place behind the first n of what was got.
func (c *course) back(n int) {
	var to store.Position
	if n > 0 {
		to = c.places[n-1]
	}
	c.reader.Seek(to)
	c.got, c.places = c.got[:n], c.places[:n]
}

// isOver holds that at its end a reader makes no query, and that all was got.
func (c *course) isOver(want []string) {
	c.t.Helper()
	c.store.queries = nil
	more, err := c.reader.Next(c.t.Context(), &c.page, 10)
	if more || err != nil || len(c.page.Entries) > 0 || len(c.store.queries) > 0 {
		c.t.Errorf("behind the end: %v, %v, %v", c.page.Entries, more, err)
	}
	if !slices.Equal(c.got, want) {
		c.t.Fatalf("read %d entries, want %d, each once and in order\n%q\n%q", len(c.got), len(want), c.got, want)
	}
}

func shown(v store.Value) string {
	if v.Type == store.Instant {
		return v.Time.Format(store.TimeLayout)
	}
	return v.Text
}

// A script is a source of random numbers: what the fuzzer says, and then more.
type script struct {
	bytes []byte
	rest  *rand.PCG
}

func (s *script) Uint64() (n uint64) {
	if len(s.bytes) == 0 {
		return s.rest.Uint64()
	}
	// The first byte is that which small numbers are made of.
	n = uint64(s.bytes[0])<<56 | s.rest.Uint64()>>8
	s.bytes = s.bytes[1:]
	return n
}
