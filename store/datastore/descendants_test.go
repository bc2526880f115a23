package datastore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// putBelow writes entities with the keys that texts name, each with the properties.
func (w *world) putBelow(namespace string, ps sdk.PropertyList, texts ...string) {
	w.t.Helper()
	for _, text := range texts { // one by one, since the client takes some keys for the same
		key, err := ParseKey(namespace, text)
		if err == nil {
			_, err = w.app.Put(context.Background(), key, &ps)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// below returns the keys of what is below an entity, in the service's order, page by page.
func (w *world) below(namespace, key string, limit int) (texts []string) {
	w.t.Helper()
	q := store.DescendantQuery{Target: target(""), Namespace: namespace, Key: key, Limit: limit}
	for {
		var page store.Descendants
		if err := w.Descendants(w.t.Context(), q, &page); err != nil {
			w.t.Fatal(err)
		}
		for _, d := range page.List {
			texts = append(texts, d.Key)
		}
		if !page.More {
			return texts
		}
		q.After = texts[len(texts)-1]
	}
}

func listOf(texts ...string) (list []store.Descendant) {
	for _, text := range texts {
		list = append(list, store.Descendant{Key: text})
	}
	return list
}

func due(store.Value) bool { return true }

// The service orders keys by their elements: kinds by their bytes, numbers before names, names by their bytes,
// whatever their texts are. The emulator does likewise.
func TestOrderOfDescendants(t *testing.T) {
	w := newWorld(t, "")
	want := []string{
		"Session/p/A/#-3", "Session/p/A/#7", "Session/p/A/#7/B/x", "Session/p/A/#70", "Session/p/A/ ", "Session/p/A/!",
		"Session/p/A/%23", "Session/p/A/%237", "Session/p/A/%25", "Session/p/A/%2F", "Session/p/A/7", "Session/p/A/p", "Session/p/A/p/B/x",
		"Session/p/A/p ", "Session/p/A/p!", "Session/p/A/p!/B/x", "Session/p/A/p%2F", "Session/p/A/p%2FB%2Fx", "Session/p/A/p2",
		"Session/p/A/p~", "Session/p/A/~", "Session/p/A/ü", "Session/p/A/\uFFFD", "Session/p/A/\U0001F600", "Session/p/A!/p",
		"Session/p/B/a/C/a", "Session/p/Session/p", "Session/p/ü/a", "Session/p/\U0001F600/a",
	}
	elsewhere := []string{"Session/p2/A/x", "Session/p!/A/x", "Session/p~/A/x", "Session/p /A/x", "Sessionp/p/A/x", "Session/#7/A/x",
		"Session/7/A/x", "Session/p%2F/A/x", "Session/p%2FA%2Fx", "Session/p%2FA/A/x", "Session/\uFFFD/A/x", "Session/\U0001F600/A/x"}
	mixed := slices.Clone(want)
	slices.Reverse(mixed)
	for _, namespace := range []string{"", "tenant"} {
		w.putBelow(namespace, nil, mixed...)
	}
	w.putBelow("", nil, elsewhere...)
	w.putBelow("tenant", nil, "Session/p/A/of the tenant's own")
	for _, limit := range []int{1, 2, 5, store.MaxPage} {
		if got := w.below("", "Session/p", limit); !slices.Equal(got, want) {
			t.Errorf("pages of %d:\ngot  %q\nwant %q", limit, got, want)
		}
	}
	for _, key := range elsewhere {
		parent, found := strings.CutSuffix(key, "/A/x")
		if got := w.below("", parent, 3); found && !slices.Equal(got, []string{key}) || !found && len(got) > 0 {
			t.Errorf("below %s: %q", parent, got)
		}
	}
	if got := w.below("tenant", "Session/p", 7); len(got) != len(want)+1 {
		t.Errorf("below the tenant's: %q", got)
	}
	// Whatever is deleted below one entity stays below the others.
	w.put("c", name("p"))
	q := query("", "a", "d")
	if o, err := w.DeleteBelow(t.Context(), q, store.Entry{Key: "Session/p"}, listOf(want...), due); o != store.Deleted {
		t.Errorf("outcome %d, %v", o, err)
	}
	if got := w.below("", "Session/p", 9); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
	if got := w.below("tenant", "Session/p", 9); len(got) != len(want)+1 {
		t.Errorf("left below the tenant's: %q", got)
	}
	for _, key := range elsewhere {
		if parent, found := strings.CutSuffix(key, "/A/x"); found && len(w.below("", parent, 3)) != 1 {
			t.Errorf("%s is gone", key)
		}
	}
}

// Owners cost one look-up a page, of their kinds and properties alone, and only where there are any.
func TestOwnersAreLookedUp(t *testing.T) {
	w := newWorld(t, "")
	w.putBelow("", sdk.PropertyList{{Name: "expires", Value: "x"}, {Name: "null", Value: nil}, {Name: "big", Value: "b", NoIndex: true},
		{Name: "list", Value: []any{}}, {Name: "a.b", Value: int64(1)}},
		"Session/p/Device/#7", "Session/p/Device/7", "Session/p/Device/7/Device/a", "Session/p/Note/n", "Session/p/ReaperCursor/c")
	own := store.OwnerReaper
	for _, c := range []struct {
		owners []store.Target
		want   []string
		calls  string
		mask   []string
	}{
		{nil, []string{"", "", "", "", own}, "RunQuery", nil},
		{[]store.Target{{Name: "t", Kind: "Token", Property: "expires"}}, []string{"", "", "", "", own}, "RunQuery", nil},
		{[]store.Target{{Name: "n", Kind: "Note", Property: "expires"}}, []string{"", "", "", "n", own}, "RunQuery Lookup", []string{"expires"}},
		{[]store.Target{{Name: "null", Kind: "Note", Property: "null"}, {Name: "none", Kind: "Note", Property: "none"},
			{Name: "expires", Kind: "Note", Property: "expires"}, {Name: "big", Kind: "Note", Property: "big"}},
			[]string{"", "", "", "expires", own}, "RunQuery Lookup", []string{"null", "none", "expires", "big"}},
		{[]store.Target{{Name: "list", Kind: "Note", Property: "list"}}, []string{"", "", "", "list", own}, "RunQuery Lookup", []string{"list"}},
		// The client takes #7 and 7 for the same key.
		{[]store.Target{{Name: "d", Kind: "Device", Property: "expires"}, {Name: "n", Kind: "Note", Property: "expires"}},
			[]string{"d", "d", "d", "n", own}, "RunQuery Lookup Lookup", []string{"expires"}},
	} {
		w.faults.Reset()
		var page store.Descendants
		q := store.DescendantQuery{Target: target(""), Key: "Session/p", Limit: 9, Owners: c.owners}
		if err := w.Descendants(t.Context(), q, &page); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range page.List {
			got = append(got, d.Owner)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("owners %+v: %q, not %q", c.owners, got, c.want)
		}
		if calls := strings.Join(w.faults.Methods(), " "); calls != c.calls {
			t.Errorf("owners %+v: the calls are %s, not %s", c.owners, calls, c.calls)
		}
		for _, call := range w.faults.Calls("Lookup") {
			if got := call.Req.(*pb.LookupRequest).GetPropertyMask().GetPaths(); !slices.Equal(got, c.mask) {
				t.Errorf("owners %+v: a look-up of %q, not %q", c.owners, got, c.mask)
			}
		}
	}
	w.faults.Add(faultrpc.Fault{Method: "Lookup", Code: codes.ResourceExhausted})
	page := store.Descendants{List: listOf("left over"), More: true}
	q := store.DescendantQuery{Target: target(""), Key: "Session/p", Limit: 2,
		Owners: []store.Target{{Name: "d", Kind: "Device", Property: "expires"}}}
	if err := w.Descendants(t.Context(), q, &page); !errors.Is(err, store.ErrPushback) || len(page.List) > 0 || page.More {
		t.Errorf("a look-up that is refused: %+v, %v", page, err)
	}
}

// Whatever DeleteBelow decides, it ends its transaction, in which it never queries.
func TestDeleteBelowEndsItsTransaction(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", name("a"))
	w.putBelow("", nil, "Session/a/A/x", "Session/a/A/x/B/y")
	kept := func(store.Value) bool { return false }
	for _, c := range []struct {
		what, key string
		isDue     func(store.Value) bool
		fault     *faultrpc.Fault
		outcome   store.Outcome
		err       error
		calls     string
	}{
		{"not due", "a", kept, nil, store.Kept, nil, "BeginTransaction Lookup Rollback"},
		{"gone", "b", due, nil, store.Gone, nil, "BeginTransaction Lookup Rollback"},
		{"refused", "a", due, &faultrpc.Fault{Method: "Commit", Code: codes.Aborted}, store.Unknown, store.ErrContention,
			"BeginTransaction Lookup Commit Rollback"},
		{"too large", "a", due, &faultrpc.Fault{Method: "Commit", Code: codes.InvalidArgument, Message: "Transaction too big."},
			store.Unknown, store.ErrTooLarge, "BeginTransaction Lookup Commit Rollback"},
		{"pushed back", "a", due, &faultrpc.Fault{Method: "Lookup", Code: codes.ResourceExhausted}, store.Unknown, store.ErrPushback,
			"BeginTransaction Lookup Rollback"},
		{"lost reply", "a", due, &faultrpc.Fault{Method: "Commit", Code: codes.Unavailable, After: true}, store.Unknown,
			store.ErrUnavailable, "BeginTransaction Lookup Commit Rollback"},
		{"again", "a", due, nil, store.Deleted, nil, "BeginTransaction Lookup Commit"},
	} {
		w.faults.Reset()
		if c.fault != nil {
			w.faults.Add(*c.fault)
		}
		list := listOf("Session/"+c.key+"/A/x", "Session/"+c.key+"/A/x/B/y")
		o, err := w.DeleteBelow(t.Context(), query("", "a", "d"), store.Entry{Key: "Session/" + c.key}, list, c.isDue)
		if o != c.outcome || !errors.Is(err, c.err) {
			t.Errorf("%s: outcome %d, %v", c.what, o, err)
		}
		if got := strings.Join(w.faults.Methods(), " "); got != c.calls {
			t.Errorf("%s: the calls are %s, not %s", c.what, got, c.calls)
		}
		for _, call := range w.faults.Calls("Lookup") {
			if got := call.Req.(*pb.LookupRequest).GetPropertyMask().GetPaths(); !slices.Equal(got, []string{property}) {
				t.Errorf("%s: it read %q", c.what, got)
			}
		}
		for _, call := range w.faults.Calls("Commit") {
			m := call.Req.(*pb.CommitRequest).GetMutations()
			if len(m) != 2 || len(m[0].GetDelete().GetPath()) != 3 || len(m[1].GetDelete().GetPath()) != 2 {
				t.Errorf("%s: the mutations are %v", c.what, m)
			}
		}
		left := len(w.below("", "Session/a", 9))
		if gone := c.what == "lost reply" || c.what == "again"; left != 2 && !gone || left != 0 && gone {
			t.Errorf("%s: %d are left", c.what, left)
		}
	}
}

// An application extends an entity while its descendants are about to be deleted. If it comes before the
// read, they stay. Within the transaction's own time either it waits, as on the emulator, and comes right
// behind, or the transaction fails.
func TestDeleteBelowMeetsAnExtension(t *testing.T) {
	for _, method := range []string{"BeginTransaction", "Lookup", "Commit"} {
		w := newWorld(t, "")
		w.put("c", name("a"))
		w.putBelow("", nil, "Session/a/A/x")
		done := make(chan error, 1)
		w.faults.Add(faultrpc.Fault{Method: method, Hook: func(context.Context, any, any) {
			write := func() {
				_, err := w.app.Put(context.Background(), name("a"), &sdk.PropertyList{{Name: property, Value: "z"}})
				done <- err
			}
			if method == "BeginTransaction" {
				write()
			} else {
				go write()
			}
		}})
		o, err := w.DeleteBelow(t.Context(), query("", "a", "d"), store.Entry{Key: "Session/a"}, listOf("Session/a/A/x"),
			func(v store.Value) bool { return v.Text == "c" })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		left := len(w.below("", "Session/a", 9))
		switch {
		case o == store.Deleted && left == 0 && method != "BeginTransaction":
		case o == store.Kept && left == 1 && method != "Commit":
		case errors.Is(err, store.ErrContention) && left == 1:
		default:
			t.Errorf("%s: outcome %d, %v; %d are left", method, o, err, left)
		}
		if got := w.entityProto(name("a"))[property].GetStringValue(); got != "z" {
			t.Errorf("%s: the application wrote z, and it is %q", method, got)
		}
	}
}

func TestDescendantsRefuses(t *testing.T) {
	w := newWorld(t, "")
	for _, q := range []store.DescendantQuery{
		{Target: target(""), Key: "Session/p"},
		{Target: target(""), Key: "Session/p", Limit: store.MaxPage + 1},
		{Target: target(""), Key: "Session", Limit: 1},
		{Target: target(""), Key: "", Limit: 1},
		{Target: target(""), Key: "Session/p", Limit: 1, After: "Session/p2/A/x"},
		{Target: target(""), Key: "Session/p", Limit: 1, After: "Session/p/A"},
	} {
		page := store.Descendants{List: listOf("left over"), More: true}
		if err := w.Descendants(t.Context(), q, &page); !errors.Is(err, store.ErrInvalid) || len(page.List) > 0 || page.More {
			t.Errorf("%+v: %+v, %v", q, page, err)
		}
	}
	if calls := w.faults.Methods(); len(calls) > 0 {
		t.Errorf("it called %v", calls)
	}
}

// An entity that was not there when what lies below it was listed, and then gets an expiry of its own, keeps that.
func TestDeleteBelowWhatComesBetween(t *testing.T) {
	w := newWorld(t, "")
	w.put("c", name("a"))
	w.putBelow("", nil, "Session/a/tags/x/items/1", "Session/a/tags/x/items/1/lines/2", "Session/a/A/y")
	q := store.DescendantQuery{Target: target(""), Key: "Session/a", Owners: []store.Target{tags}, Limit: 10}
	var page store.Descendants
	if err := w.Descendants(t.Context(), q, &page); err != nil || len(page.List) != 3 {
		t.Fatalf("%+v, %v", page, err)
	}
	deleteBelow := func() (store.Outcome, error) {
		return w.DeleteBelow(t.Context(), query("", "a", "d"), store.Entry{Key: q.Key}, page.List, due)
	}
	w.putKeys("expires", "", "Session/a/tags/x")
	if o, err := deleteBelow(); !errors.Is(err, store.ErrContention) || len(w.below("", q.Key, 9)) != 4 {
		t.Errorf("outcome %d, %v, left %q", o, err, w.below("", q.Key, 9))
	}
	w.putKeys("", "", "Session/a/tags/x") // it has none any more
	if o, err := deleteBelow(); err != nil || o != store.Deleted || len(w.below("", q.Key, 9)) != 1 {
		t.Errorf("outcome %d, %v, left %q", o, err, w.below("", q.Key, 9))
	}
}
