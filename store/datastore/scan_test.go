package datastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// walk reads a span page by page; resume says after which pages it goes on
// from the position alone, as after a restart, instead of from the page's Next.
func (w *world) walk(q store.Query, resume func(page int) bool) []string {
	w.t.Helper()
	var out []string
	for n := 0; ; n++ {
		if n > 10_000 {
			w.t.Fatal("the scan does not end")
		}
		p := w.page(q)
		for _, e := range p.Entries {
			out = append(out, e.Value.Text+" "+e.Key)
			q.After = e.Position()
		}
		if !p.More {
			return out
		}
		q.Next = p.Next
		if resume(n) {
			q.Next = nil
		}
	}
}

// oddKeys are keys of every form that the service accepts.
func oddKeys(namespace string) []*sdk.Key {
	user := &sdk.Key{Kind: "User", ID: 7, Namespace: namespace}
	group := &sdk.Key{Kind: "Gr/oup", Name: "a,b/c", Namespace: namespace}
	member := &sdk.Key{Kind: "Member", Name: "7", Parent: group, Namespace: namespace}
	var out []*sdk.Key
	for _, parent := range []*sdk.Key{nil, user, group, member} {
		for _, n := range []string{"7", "s-1842", "#7", "a b", "100%", "x/y", "x,y", "é", "世界", "\"q\"", "tab\tnew\nline", "~", "."} {
			out = append(out, &sdk.Key{Kind: kind, Name: n, Parent: parent, Namespace: namespace})
		}
		for _, id := range []int64{1, 7, 1 << 53, 1<<62 + 1} {
			out = append(out, &sdk.Key{Kind: kind, ID: id, Parent: parent, Namespace: namespace})
		}
	}
	return out
}

func TestScanResumesAnywhere(t *testing.T) {
	for _, database := range []string{"(default)", "named-db"} {
		for _, namespace := range []string{"", "tenant-1"} {
			t.Run(database+"/"+namespace, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, database)
				keys := oddKeys(namespace)
				for i, v := range []string{"b", "c", "d"} { // three instants, all keys spread over them
					w.put(v, keys[i*len(keys)/3:(i+1)*len(keys)/3]...)
				}
				other := namespace + "-other"
				w.put("c", &sdk.Key{Kind: kind, Name: "elsewhere", Namespace: other}, &sdk.Key{Kind: "Other", Name: "x", Namespace: namespace})
				w.put("a", &sdk.Key{Kind: kind, Name: "before", Namespace: namespace})
				w.put("e", &sdk.Key{Kind: kind, Name: "after", Namespace: namespace})
				q := query(store.GuardLookup, "b", "d")
				q.Namespace = namespace
				want := w.walk(q, func(int) bool { return false })
				if len(want) != len(keys) {
					t.Fatalf("one page of %d holds %d entries", len(keys), len(want))
				}
				for _, limit := range []int{1, 7, 17} {
					q.Limit = limit
					for how, resume := range map[string]func(int) bool{
						"next":  func(int) bool { return false },
						"after": func(int) bool { return true },
						"mixed": func(n int) bool { return n%3 == 1 },
					} {
						if got := w.walk(q, resume); !slices.Equal(got, want) {
							t.Errorf("pages of %d by %s: %d entries, want %d as in one page:\n%q\n%q", limit, how, len(got), len(want), got, want)
						}
					}
				}
			})
		}
	}
}

func TestScanBounds(t *testing.T) {
	w := newWorld(t, "")
	for _, v := range []string{"a", "b", "c", "d"} {
		w.put(v, name(v))
	}
	for _, c := range []struct {
		lo, hi string
		after  store.Position
		want   string
	}{
		{"a", "d", store.Position{}, "[a b c d]"},
		{"b", "c", store.Position{}, "[b c]"},
		{"c", "b", store.Position{}, "[]"},
		{"b", "c", store.Position{Value: store.TextValue("b")}, "[b c]"},
		{"b", "c", store.Position{Value: store.TextValue("b"), Key: "Session/b"}, "[c]"},
		{"b", "c", store.Position{Value: store.TextValue("b"), Key: "Session/a"}, "[b c]"},
		{"b", "c", store.Position{Value: store.TextValue("bb"), Key: "Session/b"}, "[c]"},
		{"b", "c", store.Position{Value: store.TextValue("a"), Key: "Session/a"}, "[b c]"},
		{"b", "c", store.Position{Value: store.TextValue("c"), Key: "Session/c"}, "[]"},
		{"b", "c", store.Position{Value: store.TextValue("c"), Key: "Session/b"}, "[c]"},
		{"b", "c", store.Position{Value: store.TextValue("d"), Key: "Session/d"}, "[]"},
	} {
		q := query("", c.lo, c.hi)
		q.After = c.after
		p := w.page(q)
		var got []string
		for _, e := range p.Entries {
			got = append(got, e.Value.Text)
		}
		if fmt.Sprint(got) != c.want || p.More || p.SteppedOver != store.UnknownSteps {
			t.Errorf("[%s, %s] after %v: %v, more %v, stepped over %d, want %s and no more", c.lo, c.hi, c.after, got, p.More, p.SteppedOver, c.want)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	db := openAt(t, "127.0.0.1:1")
	good := query("", "a", "z")
	for what, change := range map[string]func(*store.Query){
		"no limit":           func(q *store.Query) { q.Limit = 0 },
		"a limit of 501":     func(q *store.Query) { q.Limit = 501 },
		"no upper bound":     func(q *store.Query) { q.Hi = store.Value{} },
		"an instant":         func(q *store.Query) { q.Lo = store.Value{Type: store.Instant} },
		"a broken position":  func(q *store.Query) { q.After = store.Position{Value: store.TextValue("b"), Key: "x"} },
		"a foreign Next":     func(q *store.Query) { q.Next = 7 },
		"another query Next": func(q *store.Query) { q.Next = &place{query: spanOf(query("", "a", "y"))} },
	} {
		q := good
		change(&q)
		if err := db.Scan(t.Context(), q, &store.Page{}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
}

// TestScanTakesShortBatches: the service may return a batch early, even an
// empty one; that is a short page, and one call.
func TestScanTakesShortBatches(t *testing.T) {
	w := newWorld(t, "")
	keys := names("s", 9)
	w.put("c", keys...)
	q := query("", "a", "z")
	want := w.walk(q, func(int) bool { return true })
	for _, keep := range []int{0, 4} {
		w.faults.Reset()
		w.faults.Add(faultrpc.Fault{Method: "RunQuery", After: true, Hook: func(_ context.Context, _, reply any) {
			b := reply.(*pb.RunQueryResponse).Batch
			if keep == 0 {
				b.EndCursor, b.EntityResults = b.EntityResults[0].Cursor, nil
			} else {
				b.EntityResults = b.EntityResults[:keep]
				b.EndCursor = b.EntityResults[keep-1].Cursor
			}
			b.MoreResults = pb.QueryResultBatch_NOT_FINISHED
		}})
		p := w.page(q)
		if len(p.Entries) != keep || !p.More || len(w.faults.Calls("RunQuery")) != 1 {
			t.Errorf("a batch cut to %d: %d entries, more %v, %d calls", keep, len(p.Entries), p.More, len(w.faults.Calls("RunQuery")))
		}
		got := want[:keep:keep]
		q.Next = p.Next
		got = append(got, w.walk(q, func(int) bool { return false })...)
		if keep == 0 {
			got = append(want[:1:1], got...) // the cursor of the empty batch stood after the first
		}
		if !slices.Equal(got, want) {
			t.Errorf("a batch cut to %d: went on with %q, want %q", keep, got, want)
		}
		q.Next = nil
	}
}

// TestScanOfOneInstant reads 5,000 entities with one expiry.
func TestScanOfOneInstant(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", names("s", 5000)...)
	q := query("", "a", "z")
	for how, resume := range map[string]func(int) bool{
		"next":  func(int) bool { return false },
		"after": func(int) bool { return true },
	} {
		w.faults.Reset()
		got := w.walk(q, resume)
		if len(got) != 5000 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 5000 {
			t.Errorf("by %s: %d entries, want 5000 different ones", how, len(got))
		}
		if n := len(w.faults.Calls("RunQuery")); n > 13 {
			t.Errorf("by %s: %d queries for ten full pages", how, n)
		}
	}
}

func TestScanInstants(t *testing.T) {
	w := newWorld(t, "")
	base := time.Date(2026, 11, 21, 0, 7, 30, 123_456_000, time.UTC)
	w.put(base, name("a"), name("b"), name("c"))
	w.put(base.Add(time.Microsecond), name("d"))
	w.put(base.UnixMicro(), name("int")) // sorts among the instants
	w.put(base.Add(time.Hour), name("later"))
	tgt := target(store.GuardLookup)
	tgt.Type = store.Instant
	q := store.Query{Target: tgt, Limit: 2,
		Lo: store.Value{Type: store.Instant, Time: base.Add(-time.Hour)}, Hi: store.Value{Type: store.Instant, Time: base.Add(time.Minute)}}
	var got []string
	b := &store.Batch{Query: q}
	for range 10 {
		p := w.page(q)
		for _, e := range p.Entries {
			got = append(got, e.Key)
			q.After = e.Position()
			b.Ops = append(b.Ops, store.Op{Entry: e})
		}
		if !p.More {
			break
		}
	}
	if want := []string{"Session/a", "Session/b", "Session/c", "Session/int", "Session/d"}; !slices.Equal(got, want) {
		t.Fatalf("scanned %q, want %q", got, want)
	}
	if err := w.Dispose(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for _, op := range b.Ops {
		want := store.Deleted
		if op.Entry.Key == "Session/int" {
			want = store.Changed
		}
		if op.Outcome != want {
			t.Errorf("%s: outcome %d, now %v, want %d", op.Entry.Key, op.Outcome, op.Now, want)
		}
	}
	if left := w.left(""); len(left) != 2 || !left["Session/int"] || !left["Session/later"] {
		t.Errorf("left: %v, want the integer and the later one", left)
	}
}
