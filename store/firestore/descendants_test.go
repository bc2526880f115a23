package firestore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// putBelow writes documents at paths, with the fields.
func (w *world) putBelow(fields map[string]*pb.Value, keys ...string) {
	w.t.Helper()
	var writes []*pb.Write
	for _, key := range keys {
		doc := &pb.Document{Name: w.name(key), Fields: fields}
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: doc}})
	}
	if _, err := w.commit(w.t.Context(), writes); err != nil {
		w.t.Fatal(err)
	}
}

// below returns the keys of what is below a document, in the service's order, page by page.
func (w *world) below(key string, limit int) (keys []string) {
	w.t.Helper()
	q := store.DescendantQuery{Target: sessions, Key: key, Limit: limit}
	for {
		var page store.Descendants
		if err := w.Descendants(w.t.Context(), q, &page); err != nil {
			w.t.Fatal(err)
		}
		for _, d := range page.List {
			keys = append(keys, d.Key)
		}
		if !page.More {
			return keys
		}
		q.After = keys[len(keys)-1]
	}
}

func listOf(keys ...string) (list []store.Descendant) {
	for _, key := range keys {
		list = append(list, store.Descendant{Key: key})
	}
	return list
}

func due(store.Value) bool { return true }

// The service orders names by segments, numeric ids first, and texts by their bytes. The emulator does
// likewise, and pages go on in this order whatever the names are.
func TestOrderOfDescendants(t *testing.T) {
	w := newWorld(t)
	want := []string{
		"sessions/p/a/__id-3__", "sessions/p/a/__id7__", "sessions/p/a/__id7__/b/x", "sessions/p/a/__id70__",
		"sessions/p/a/ ", "sessions/p/a/!", "sessions/p/a/7", "sessions/p/a/p", "sessions/p/a/p/b/x",
		"sessions/p/a/p ", "sessions/p/a/p!", "sessions/p/a/p!/b/x", "sessions/p/a/p2", "sessions/p/a/p~",
		"sessions/p/a/~", "sessions/p/a/ü", "sessions/p/a/\uFFFD", "sessions/p/a/\U0001F600", "sessions/p/a!/p",
		"sessions/p/b/a/c/a", "sessions/p/ü/a", "sessions/p/\U0001F600/a",
	}
	elsewhere := []string{"sessions/p2/a/x", "sessions/p!/a/x", "sessions/p~/a/x", "sessions/p /a/x", "sessionsp/p/a/x",
		"sessions/__id7__/a/x", "sessions/7/a/x", "sessions/\uFFFD/a/x", "sessions/\U0001F600/a/x"}
	mixed := slices.Clone(want)
	slices.Reverse(mixed)
	w.putBelow(nil, mixed...)
	w.putBelow(nil, elsewhere...)
	for _, limit := range []int{1, 2, 5, store.MaxPage} {
		if got := w.below("sessions/p", limit); !slices.Equal(got, want) {
			t.Errorf("pages of %d:\ngot  %q\nwant %q", limit, got, want)
		}
	}
	for _, key := range elsewhere {
		parent := strings.TrimSuffix(key, "/a/x")
		if got := w.below(parent, 3); !slices.Equal(got, []string{key}) {
			t.Errorf("below %s: %q", parent, got)
		}
	}
}

// A target that is no group has the documents of one collection, wherever others of that name are.
func TestOwnersByPath(t *testing.T) {
	w := newWorld(t)
	w.putBelow(map[string]*pb.Value{"expires": toValue(at(0)), "null": {ValueType: &pb.Value_NullValue{}}, "a.b": toValue(at(0))},
		"sessions/p/devices/d", "sessions/p/devices/d/devices/e", "sessions/p/ReaperCursor/c")
	for _, c := range []struct {
		owners []store.Target
		want   []string
	}{
		{nil, []string{store.OwnerReaper, "", ""}},
		{[]store.Target{{Name: "root", Kind: "devices", Property: "expires"}}, []string{store.OwnerReaper, "", ""}},
		{[]store.Target{{Name: "all", Kind: "devices", Group: true, Property: "expires"}}, []string{store.OwnerReaper, "all", "all"}},
		{[]store.Target{{Name: "path", Kind: "sessions/p/devices", Property: "expires"}}, []string{store.OwnerReaper, "path", ""}},
		{[]store.Target{{Name: "deep", Kind: "sessions/p/devices/d/devices", Property: "expires"}}, []string{store.OwnerReaper, "", "deep"}},
		{[]store.Target{{Name: "near", Kind: "sessions/p2/devices", Property: "expires"}}, []string{store.OwnerReaper, "", ""}},
		{[]store.Target{{Name: "null", Kind: "devices", Group: true, Property: "null"}}, []string{store.OwnerReaper, "", ""}},
		{[]store.Target{{Name: "dots", Kind: "devices", Group: true, Property: "a.b"}}, []string{store.OwnerReaper, "dots", "dots"}},
		{[]store.Target{{Name: "absent", Kind: "devices", Group: true, Property: "a"},
			{Name: "path", Kind: "sessions/p/devices", Property: "expires"},
			{Name: "all", Kind: "devices", Group: true, Property: "expires"}}, []string{store.OwnerReaper, "path", "all"}},
	} {
		var page store.Descendants
		q := store.DescendantQuery{Target: sessions, Key: "sessions/p", Limit: 9, Owners: c.owners}
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
	}
	for _, c := range w.faults.Calls("RunQuery") {
		r := c.Req.(*pb.RunQueryRequest)
		from := r.GetStructuredQuery().GetFrom()
		if r.GetParent() != w.name("sessions/p") || len(from) != 1 || !from[0].GetAllDescendants() || from[0].GetCollectionId() != "" {
			t.Errorf("a query asks for %v below %s", from, r.GetParent())
		}
	}
}

// Whatever DeleteBelow decides, it ends its transaction, and reads nothing of the document but its expiry.
func TestDeleteBelowEndsItsTransaction(t *testing.T) {
	w := newWorld(t)
	w.row(1)
	w.putBelow(nil, "sessions/s-000/a/x", "sessions/s-000/a/y")
	list := listOf(w.below("sessions/s-000", 9)...)
	for _, c := range []struct {
		what, key string
		isDue     func(store.Value) bool
		fault     *faultrpc.Fault
		outcome   store.Outcome
		err       error
		calls     string
	}{
		{"not due", "s-000", func(store.Value) bool { return false }, nil, store.Kept, nil, "BatchGetDocuments Rollback"},
		{"gone", "s-001", due, nil, store.Gone, nil, "BatchGetDocuments Rollback"},
		{"refused", "s-000", due, &faultrpc.Fault{Method: "Commit", Code: codes.Aborted}, store.Unknown, store.ErrContention,
			"BatchGetDocuments Commit Rollback"},
		{"unavailable", "s-000", due, &faultrpc.Fault{Method: "Commit", Code: codes.Unavailable}, store.Unknown, store.ErrUnavailable,
			"BatchGetDocuments Commit Rollback"},
		{"pushed back", "s-000", due, &faultrpc.Fault{Method: "BatchGetDocuments", Code: codes.ResourceExhausted}, store.Unknown,
			store.ErrPushback, "BatchGetDocuments"},
		{"too large", "s-000", due, &faultrpc.Fault{Method: "Commit", Code: codes.InvalidArgument, Message: "Transaction too big."},
			store.Unknown, store.ErrTooLarge, "BatchGetDocuments Commit Rollback"},
		{"lost reply", "s-000", due, &faultrpc.Fault{Method: "Commit", Code: codes.Unavailable, After: true}, store.Unknown,
			store.ErrUnavailable, "BatchGetDocuments Commit Rollback"},
		{"again", "s-000", due, nil, store.Deleted, nil, "BatchGetDocuments Commit"},
	} {
		w.faults.Reset()
		if c.fault != nil {
			w.faults.Add(*c.fault)
		}
		below := listOf()
		for _, d := range list {
			below = append(below, store.Descendant{Key: strings.Replace(d.Key, "s-000", c.key, 1)})
		}
		o, err := w.DeleteBelow(t.Context(), everything(sessions), store.Entry{Key: "sessions/" + c.key}, below, c.isDue)
		if o != c.outcome || !errors.Is(err, c.err) {
			t.Errorf("%s: outcome %d, %v", c.what, o, err)
		}
		if got := strings.Join(w.faults.Methods(), " "); got != c.calls {
			t.Errorf("%s: the calls are %s, not %s", c.what, got, c.calls)
		}
		for _, call := range w.faults.Calls("BatchGetDocuments") {
			r := call.Req.(*pb.BatchGetDocumentsRequest)
			if r.GetNewTransaction().GetReadWrite() == nil || !slices.Equal(r.GetMask().GetFieldPaths(), []string{"expires"}) {
				t.Errorf("%s: it read by %v", c.what, r)
			}
		}
		left := len(w.below("sessions/s-000", 9))
		if gone := c.what == "lost reply" || c.what == "again"; left != 2 && !gone || left != 0 && gone {
			t.Errorf("%s: %d are left", c.what, left)
		}
	}
}

// The deepest is deleted first, in the order of the commit.
func TestDeleteBelowGoesUpwards(t *testing.T) {
	w := newWorld(t)
	w.row(1)
	keys := []string{"sessions/s-000/a/x", "sessions/s-000/a/x/b/y", "sessions/s-000/a/x/b/y/c/z"}
	w.putBelow(nil, keys...)
	w.faults.Reset()
	if o, err := w.DeleteBelow(t.Context(), everything(sessions), store.Entry{Key: "sessions/s-000"}, listOf(keys...), due); o != store.Deleted {
		t.Fatalf("outcome %d, %v", o, err)
	}
	r := w.faults.Calls("Commit")[0].Req.(*pb.CommitRequest)
	for i, write := range r.GetWrites() {
		if want := w.name(keys[len(keys)-1-i]); write.GetDelete() != want {
			t.Errorf("write %d deletes %q, not %s", i, write.GetDelete(), want)
		}
	}
	if len(r.GetTransaction()) == 0 {
		t.Error("the commit is of no transaction")
	}
}

// An application extends a document while its descendants are about to be deleted. If it comes before the
// read, they stay. Within the transaction's own time either it waits, as on the emulator, and comes right
// behind, or the transaction fails.
func TestDeleteBelowMeetsAnExtension(t *testing.T) {
	for _, method := range []string{"BatchGetDocuments", "Commit"} {
		w := newWorld(t)
		app := openAt(t, w.project, strings.TrimSuffix(w.Endpoint(), " (emulator)"))
		put := w.row(1)
		w.putBelow(nil, "sessions/s-000/a/x")
		put[0].Expiry = at(9000)
		done := make(chan struct{})
		write := func() {
			defer close(done)
			app.put(sessions, put[0])
		}
		w.faults.Add(faultrpc.Fault{Method: method, Hook: func(context.Context, any, any) {
			if method == "Commit" {
				go write()
			} else {
				write()
			}
		}})
		o, err := w.DeleteBelow(t.Context(), everything(sessions), store.Entry{Key: "sessions/s-000"},
			listOf("sessions/s-000/a/x"), func(v store.Value) bool { return v == at(0) })
		<-done
		left := len(w.below("sessions/s-000", 9))
		switch {
		case o == store.Deleted && left == 0 && method == "Commit":
		case o == store.Kept && left == 1 && method != "Commit":
		case errors.Is(err, store.ErrContention) && left == 1:
		default:
			t.Errorf("%s: outcome %d, %v; %d are left", method, o, err, left)
		}
		if names := w.left(sessions); len(names) != 1 {
			t.Errorf("%s: the document is gone", method)
		}
	}
}

// A descendant that is gone holds up nothing. But if it comes back with an expiry of its own before the commit,
// nothing of the list goes: what lies below it is its own.
func TestDeleteBelowMeetsAReturn(t *testing.T) {
	for _, archive := range []store.Archive{nil, &storetest.Shelf{}} {
		w := newWorld(t)
		w.row(1)
		w.putBelow(nil, "sessions/s-000/tags/x", "sessions/s-000/tags/x/n/y")
		var page store.Descendants
		q := store.DescendantQuery{Target: sessions, Key: "sessions/s-000", Limit: 9, Owners: []store.Target{tags}}
		if err := w.Descendants(t.Context(), q, &page); err != nil || len(page.List) != 2 {
			t.Fatal(page, err)
		}
		w.removePath("sessions/s-000/tags/x")
		w.faults.Add(faultrpc.Fault{Method: "Commit", Hook: func(context.Context, any, any) {
			w.putBelow(map[string]*pb.Value{"expires": toValue(at(0))}, "sessions/s-000/tags/x")
		}})
		all := everything(sessions)
		all.Archive = archive
		o, err := w.DeleteBelow(t.Context(), all, store.Entry{Key: "sessions/s-000"}, page.List, due)
		if left := w.below("sessions/s-000", 9); !errors.Is(err, store.ErrContention) || len(left) != 2 {
			t.Errorf("outcome %d, %v; %q are left", o, err, left)
		}
		w.removePath("sessions/s-000/tags/x")
		o, err = w.DeleteBelow(t.Context(), all, store.Entry{Key: "sessions/s-000"}, page.List, due)
		if left := w.below("sessions/s-000", 9); o != store.Deleted || err != nil || len(left) > 0 {
			t.Errorf("gone again: outcome %d, %v; %q are left", o, err, left)
		}
	}
}

func TestDescendantsRefuses(t *testing.T) {
	w := newWorld(t)
	for _, q := range []store.DescendantQuery{
		{Target: sessions, Key: "sessions/p"},
		{Target: sessions, Key: "sessions/p", Limit: store.MaxPage + 1},
		{Target: sessions, Key: "sessions/p", Limit: 1, Namespace: "n"},
		{Target: sessions, Key: "sessions", Limit: 1},
		{Target: sessions, Key: "sessions/p", Limit: 1, After: "sessions/p2/a/x"},
		{Target: sessions, Key: "sessions/p", Limit: 1, After: "sessions/p/a"},
	} {
		page := store.Descendants{List: listOf("left over"), More: true}
		if err := w.Descendants(t.Context(), q, &page); !errors.Is(err, store.ErrInvalid) || len(page.List) > 0 || page.More {
			t.Errorf("%+v: %+v, %v", q, page, err)
		}
	}
}

// A document that was not there when what lies below it was listed, and then gets an expiry of its own, keeps that.
func TestDeleteBelowWhatComesBetween(t *testing.T) {
	w := newWorld(t)
	w.row(1)
	w.putBelow(nil, "sessions/s-000/tags/x/items/1", "sessions/s-000/tags/x/items/1/lines/2", "sessions/s-000/a/y")
	q := store.DescendantQuery{Target: sessions, Key: "sessions/s-000", Owners: []store.Target{tags}, Limit: 10}
	var page store.Descendants
	if err := w.Descendants(t.Context(), q, &page); err != nil || len(page.List) != 3 {
		t.Fatalf("%+v, %v", page, err)
	}
	deleteBelow := func() (store.Outcome, error) {
		return w.DeleteBelow(t.Context(), everything(sessions), store.Entry{Key: q.Key}, page.List, due)
	}
	w.putPaths("expires", "sessions/s-000/tags/x")
	if o, err := deleteBelow(); !errors.Is(err, store.ErrContention) || len(w.below(q.Key, 9)) != 4 {
		t.Errorf("outcome %d, %v, left %q", o, err, w.below(q.Key, 9))
	}
	w.putPaths("", "sessions/s-000/tags/x") // it has none any more
	if o, err := deleteBelow(); err != nil || o != store.Deleted || len(w.below(q.Key, 9)) != 1 {
		t.Errorf("outcome %d, %v, left %q", o, err, w.below(q.Key, 9))
	}
}
