package firestore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

var (
	users = store.Target{Name: "users", Kind: "u", Property: "expiry_key", Type: store.Text}
	deep  = store.Target{Name: "deep", Kind: "a/b/u", Property: "expiry_key", Type: store.Text}
	group = store.Target{Name: "group", Kind: "u", Group: true, Property: "expiry_key", Type: store.Text}
	tags  = store.Target{Name: "tags", Kind: "tags", Group: true, Property: "expires", Type: store.Instant}
)

// orphanPaths are documents in the order of names; several that are above others do not exist.
var orphanPaths = []string{
	"a/b/u/p/n/1", "a/b/u/q", "a/b/u!/q/n/1", "t/z", "u/__id5__/n/1", "u/__id12__", "u/__id12__/n/__id7__",
	"u/__id9223372036854775807__/n/1", "u/aa/x/y/u/n/z/z", "u/p/n/1", "u/p/tags/1", "u/p!/n/1", "u/p2", "u/p2/n/1", "u/p2/n/1/m/1",
	"u/p~/n/1", "u/p～/n/1", "u/p😀/n/1", "u!/p/n/1", "u2/p",
}

func (w *world) putPaths(field string, paths ...string) {
	w.t.Helper()
	var writes []*pb.Write
	for _, p := range paths {
		doc := &pb.Document{Name: w.name(p), Fields: map[string]*pb.Value{}}
		if field != "" {
			doc.Fields[field] = toValue(store.TextValue("x"))
		}
		writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: doc}})
	}
	if _, err := w.commit(w.t.Context(), writes); err != nil {
		w.t.Fatal(err)
	}
}

// lineageOf reads all pages of a lineage.
func (w *world) lineageOf(q store.LineageQuery) (keys []string, list []store.Relative) {
	w.t.Helper()
	var page store.Lineage
	for {
		if err := w.Lineage(w.t.Context(), q, &page); err != nil || !page.Billed || len(page.List) > q.Limit {
			w.t.Fatalf("%d names of %d, billed %v, %v", len(page.List), q.Limit, page.Billed, err)
		}
		for _, r := range page.List {
			keys, list = append(keys, r.Key), append(list, r)
		}
		if !page.More {
			return keys, list
		}
		q.After, q.Behind = keys[len(keys)-1], false
	}
}

// A lineage between any two keys has exactly what is there, also if the keys are of documents that do
// not exist.
func TestLineageBounds(t *testing.T) {
	w := newWorld(t)
	w.putPaths("", orphanPaths...)
	if !slices.IsSortedFunc(orphanPaths, compareNames) {
		t.Fatal("the paths of this test are not in order")
	}
	for _, c := range []struct {
		q       store.LineageQuery
		has     func(string) bool
		between []string
	}{
		{store.LineageQuery{Target: users}, func(p string) bool { return strings.HasPrefix(p, "u/") },
			[]string{"", "u/__id12__", "u/__id9223372036854775807__", "u/p", "u/p2", "u/p2/n/1", "u/p😀"}},
		{store.LineageQuery{Target: deep}, func(p string) bool { return strings.HasPrefix(p, "a/b/u/") }, []string{"", "a/b/u/p", "a/b/u/q"}},
		{store.LineageQuery{Target: group, Whole: true}, func(p string) bool { return true }, []string{"", "u/p2", "u/p", "a/b"}},
	} {
		for _, after := range c.between {
			for _, until := range c.between {
				for behind := range 2 {
					q := c.q
					q.After, q.Until, q.Behind, q.Limit = after, until, behind == 1, 5
					if after != "" && until != "" && compareNames(after, until) >= 0 {
						continue
					}
					var want []string
					for _, p := range orphanPaths {
						if c.has(p) && (after == "" || compareNames(p, after) > 0 && (behind == 0 || !store.IsBelow(p, after))) &&
							(until == "" || compareNames(p, until) <= 0 || store.IsBelow(p, until)) {
							want = append(want, p)
						}
					}
					if got, _ := w.lineageOf(q); !slices.Equal(got, want) {
						t.Errorf("%s after %q (%d) until %q: %q\nwant %q", q.Target.Kind, after, behind, until, got, want)
					}
				}
			}
		}
	}
}

func TestRelative(t *testing.T) {
	w := newWorld(t)
	w.putPaths("", "u/p/n/1", "u/q", "u/q/x/y/u/r/n/1", "u/p/tags/2", "u/p/ReaperTarget/x")
	w.putPaths("expires", "u/p/tags/1", "u/p/n/2")
	show := func(q store.LineageQuery) (got []string) {
		q.Limit = 2
		_, list := w.lineageOf(q)
		for _, r := range list {
			if r.Written.IsZero() || r.Unsure {
				t.Errorf("%+v", r)
			}
			got = append(got, fmt.Sprintf("%s %s %s of %s %v %s", r.Key, r.Kind, r.Root, r.Of, r.Own, r.Owner))
		}
		return got
	}
	if got, want := show(store.LineageQuery{Target: users, Owners: []store.Target{users, tags}}), []string{
		"u/p/ReaperTarget/x ReaperTarget u/p of u/p false @reaper",
		"u/p/n/1 n u/p of u/p false ", "u/p/n/2 n u/p of u/p false ", "u/p/tags/1 tags u/p of u/p false tags",
		"u/p/tags/2 tags u/p of u/p false ", "u/q u u/q of  true ", "u/q/x/y/u/r/n/1 n u/q of u/q false ",
	}; !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := show(store.LineageQuery{Target: group, Whole: true}); got[len(got)-1] != "u/q/x/y/u/r/n/1 n u/q of u/q/x/y/u/r false " {
		t.Errorf("%q", got)
	}
}

func TestRoots(t *testing.T) {
	w := newWorld(t)
	var paths []string
	for i := range 300 {
		paths = append(paths, fmt.Sprintf("u/p%03d/n/1", i))
	}
	w.putPaths("", paths...)
	for _, q := range []store.LineageQuery{{Target: users}, {Target: users, After: "u/p100", Behind: true, Until: "u/p200"}} {
		roots, err := w.Roots(t.Context(), q, 7)
		for range 20 { // they are sampled: few tries may hit a narrow span
			if err != nil || len(roots) > 1 {
				break
			}
			roots, err = w.Roots(t.Context(), q, 7)
		}
		if err != nil || len(roots) < 2 || len(roots) > 7 || !slices.IsSortedFunc(roots, compareNames) {
			t.Errorf("%q, %v", roots, err)
		}
		for i, r := range roots {
			if strings.Count(r, "/") != 1 || i > 0 && r == roots[i-1] || q.After != "" && (r <= q.After || r >= q.Until) {
				t.Errorf("%q", roots)
			}
		}
	}
	for _, q := range []store.LineageQuery{{Target: group}, {Target: users, After: "v/x"}, {Target: users, Until: "u"}} {
		if _, err := w.Roots(t.Context(), q, 7); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for target, want := range map[string]bool{"u": false, "g": true} {
		if got, err := w.IsScattered(t.Context(), store.Target{Kind: target, Property: "p", Group: want}, ""); err != nil || got != want {
			t.Errorf("%s: %v, %v", target, got, err)
		}
	}
}

// Orphans are deleted while the document above them does not exist, and none of them has an owner.
func TestDeleteOrphans(t *testing.T) {
	w := newWorld(t)
	q := store.LineageQuery{Target: users, Owners: []store.Target{users, tags}, Limit: store.MaxPage}
	w.putPaths("", "u/p/n/1", "u/p/n/1/m/1", "u/p/tags/1", "u/p2/n/1")
	w.putPaths("", "u/p2")
	all, list := w.lineageOf(q)
	list = list[:3]
	for _, step := range []struct {
		do   func()
		want store.Outcome
		left []string
	}{
		{func() { w.putPaths("expires", "u/p/tags/1") }, store.Changed, all},
		{func() { list[2].Owner = ""; w.putPaths("", "u/p/tags/1", "u/p") }, store.Kept, nil},
		{func() { w.removePath("u/p") }, store.Deleted, all[3:]},
		{func() {}, store.Deleted, all[3:]}, // again: the reply was lost
	} {
		step.do()
		o, err := w.DeleteOrphans(t.Context(), q, "u/p", list)
		if errors.Is(err, store.ErrContention) { // what may have an owner is gone: the list knows it now
			o, err = w.DeleteOrphans(t.Context(), q, "u/p", list)
		}
		if err != nil || o != step.want {
			t.Fatalf("outcome %d, not %d; %v", o, step.want, err)
		}
		if o == store.Changed && list[2].Owner != "tags" {
			t.Errorf("owner %q", list[2].Owner)
		}
		if left, _ := w.lineageOf(q); step.left != nil && !slices.Equal(left, step.left) {
			t.Errorf("left %q", left)
		}
	}
	for key, want := range map[string]store.Outcome{"u/p": store.Deleted, "u/p2": store.Kept} {
		if o, err := w.DeleteOrphans(t.Context(), q, key, nil); err != nil || o != want {
			t.Errorf("%s: %d, %v", key, o, err)
		}
	}
	if _, err := w.DeleteOrphans(t.Context(), q, "u/p", make([]store.Relative, store.MaxPage)); !errors.Is(err, store.ErrTooLarge) {
		t.Error(err)
	}
}

func (w *world) removePath(path string) {
	w.t.Helper()
	_, err := w.commit(w.t.Context(), []*pb.Write{{Operation: &pb.Write_Delete{Delete: w.name(path)}}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// What may have an owner and changes, or goes, before it is deleted is looked at again.
func TestDeleteOrphansThatChange(t *testing.T) {
	w := newWorld(t)
	q := store.LineageQuery{Target: users, Owners: []store.Target{tags}, Limit: store.MaxPage}
	w.putPaths("", "u/p/tags/1", "u/p/tags/2", "u/p/tags/3")
	_, list := w.lineageOf(q)
	w.putPaths("other", "u/p/tags/1")
	w.removePath("u/p/tags/2")
	if _, err := w.DeleteOrphans(t.Context(), q, "u/p", list); !errors.Is(err, store.ErrContention) {
		t.Fatal(err)
	}
	if o, err := w.DeleteOrphans(t.Context(), q, "u/p", list); err != nil || o != store.Deleted {
		t.Fatal(o, err)
	}
	if left, _ := w.lineageOf(q); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// What lies below a document that gets an owner stays, though that document is not in the list.
func TestDeleteOrphansBelowAnOwner(t *testing.T) {
	for _, archived := range []bool{false, true} {
		w := newWorld(t)
		q := store.LineageQuery{Target: users, Owners: []store.Target{tags}, Limit: store.MaxPage}
		w.putPaths("", "u/p/n/1", "u/p/tags/1", "u/p/tags/1/x/1", "u/p/tags/2/x/1")
		all, list := w.lineageOf(q)
		list = slices.DeleteFunc(list, func(r store.Relative) bool { return r.Key == "u/p/tags/1" })
		if archived {
			q.Archive = &storetest.Shelf{}
		}
		for _, p := range []string{"u/p/tags/1", "u/p/tags/2"} {
			w.putPaths("expires", p)
			if o, err := w.DeleteOrphans(t.Context(), q, "u/p", list); err != nil || o != store.Changed {
				t.Errorf("%s: outcome %d, %v", p, o, err)
			}
			for i, r := range list {
				if (r.Owner == "tags") != store.IsBelow(r.Key, p) {
					t.Errorf("%s: %s has owner %q", p, r.Key, r.Owner)
				}
				list[i].Owner = ""
			}
			w.removePath(p)
		}
		if left, _ := w.lineageOf(q); len(left) != len(all)-1 {
			t.Errorf("left %q", left)
		}
		if o, err := w.DeleteOrphans(t.Context(), q, "u/p", list); err != nil || o != store.Deleted {
			t.Errorf("outcome %d, %v", o, err)
		}
		if left, _ := w.lineageOf(q); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	}
}
