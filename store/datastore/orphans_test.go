package datastore

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	sdk "cloud.google.com/go/datastore"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/storetest"
)

var (
	users = store.Target{Name: "users", Kind: "u", Property: "expiry_key", Type: store.Text}
	tags  = store.Target{Name: "tags", Kind: "tags", Property: "expires", Type: store.Instant}
)

// orphanKeys are entities in the order of keys; several that are above others do not exist.
var orphanKeys = []string{
	"t/z/u/q/n/#1", "u/#5/n/#1", "u/#12", "u/#12/n/#7", "u/#9223372036854775807/n/#1", "u/aa/x/y/u/n/z/z", "u/p/n/#1", "u/p/tags/1",
	"u/p!/n/#1", "u/p%2F2/n/#1", "u/p2", "u/p2/n/#1", "u/p2/n/#1/m/#1", "u/p~/n/#1", "u/p～/n/#1", "u/p😀/n/#1", "u!/p/n/#1", "u2/p",
}

func (w *world) putKeys(property, namespace string, texts ...string) {
	w.t.Helper()
	for _, text := range texts {
		key, err := ParseKey(namespace, text)
		if err == nil {
			ps := sdk.PropertyList{{Name: "user", Value: "u7"}}
			if property != "" {
				ps = append(ps, sdk.Property{Name: property, Value: "x"})
			}
			_, err = w.app.Put(w.t.Context(), key, &ps)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// lineageOf reads all pages of a lineage.
func (w *world) lineageOf(q store.LineageQuery) (keys []string, list []store.Relative) {
	w.t.Helper()
	var page store.Lineage
	for {
		if err := w.Lineage(w.t.Context(), q, &page); err != nil || page.Billed || len(page.List) > q.Limit {
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

func parsed(t *testing.T, text string) *sdk.Key {
	t.Helper()
	key, err := ParseKey("", text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A lineage between any two keys has exactly what is there, also if the keys are of entities that do not
// exist.
func TestLineageBounds(t *testing.T) {
	w := newWorld(t, "")
	w.putKeys("", "", orphanKeys...)
	w.putKeys("", "eu", "u/p/n/#1")
	for i := 1; i < len(orphanKeys); i++ {
		if compareKeys(parsed(t, orphanKeys[i-1]), parsed(t, orphanKeys[i])) >= 0 {
			t.Fatalf("%s is not before %s", orphanKeys[i-1], orphanKeys[i])
		}
	}
	for _, whole := range []bool{false, true} {
		between := []string{"", "u/#12", "u/#9223372036854775807", "u/p", "u/p2", "u/p2/n/#1", "u/p😀"}
		for _, after := range between {
			for _, until := range between {
				for behind := range 2 {
					if after != "" && until != "" && compareKeys(parsed(t, after), parsed(t, until)) >= 0 {
						continue
					}
					var want []string
					for _, k := range orphanKeys {
						if (whole || strings.HasPrefix(k, "u/")) &&
							(after == "" || compareKeys(parsed(t, k), parsed(t, after)) > 0 && (behind == 0 || !store.IsBelow(k, after))) &&
							(until == "" || compareKeys(parsed(t, k), parsed(t, until)) <= 0 || store.IsBelow(k, until)) {
							want = append(want, k)
						}
					}
					q := store.LineageQuery{Target: users, Whole: whole, After: after, Behind: behind == 1, Until: until, Limit: 7}
					if got, _ := w.lineageOf(q); !slices.Equal(got, want) {
						t.Errorf("whole %v after %q (%d) until %q: %q\nwant %q", whole, after, behind, until, got, want)
					}
				}
			}
		}
	}
}

func TestBehind(t *testing.T) {
	for _, c := range []struct{ is, want *sdk.Key }{
		{sdk.IDKey("u", 7, nil), sdk.IDKey("u", 8, nil)},
		{sdk.IDKey("u", -1, nil), sdk.IDKey("u", 1, nil)},
		{sdk.IDKey("u", math.MaxInt64, nil), sdk.NameKey("u", "\x00", nil)},
		{sdk.NameKey("u", "p", name("x")), sdk.NameKey("u", "p\x00", name("x"))},
	} {
		if got := behind(c.is); compareKeys(got, c.want) != 0 {
			t.Errorf("behind %v comes %v, not %v", c.is, got, c.want)
		}
	}
}

func TestRelative(t *testing.T) {
	w := newWorld(t, "")
	w.putKeys("", "", "u/p/n/#1", "u/q", "u/q/x/y/u/r/n/#1", "u/p/tags/2", "u/p/ReaperTarget/x")
	w.putKeys("expires", "", "u/p/tags/1", "u/p/n/2")
	q := store.LineageQuery{Target: users, Owners: []store.Target{users, tags}, Limit: 2}
	_, list := w.lineageOf(q)
	for _, r := range list {
		if r.Unsure != (r.Kind == "tags") || !r.Written.IsZero() {
			t.Errorf("%+v", r)
		}
	}
	meter := new(store.Meter)
	if err := w.Claim(store.WithMeter(t.Context(), meter), q, list); err != nil || meter.Operations().Reads != 2 {
		t.Fatalf("%+v, %v", meter.Operations(), err)
	}
	var got []string
	for _, r := range list {
		if r.Unsure {
			t.Errorf("%+v", r)
		}
		got = append(got, fmt.Sprintf("%s %s %s of %s %v %s", r.Key, r.Kind, r.Root, r.Of, r.Own, r.Owner))
	}
	if want := []string{
		"u/p/ReaperTarget/x ReaperTarget u/p of u/p false @reaper",
		"u/p/n/#1 n u/p of u/p false ", "u/p/n/2 n u/p of u/p false ", "u/p/tags/1 tags u/p of u/p false tags",
		"u/p/tags/2 tags u/p of u/p false ", "u/q u u/q of  true ", "u/q/x/y/u/r/n/#1 n u/q of u/q/x/y/u/r false ",
	}; !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestRoots(t *testing.T) {
	w := newWorld(t, "")
	var keys []*sdk.Key
	for i := range 300 {
		keys = append(keys, sdk.IDKey("n", 1, sdk.NameKey("u", fmt.Sprintf("p%03d", i), nil)))
	}
	w.put(nil, keys...)
	for _, q := range []store.LineageQuery{{Target: users}, {Target: users, After: "u/p100", Behind: true, Until: "u/p200"}, {Target: users, Whole: true}} {
		roots, err := w.Roots(t.Context(), q, 7)
		for range 20 { // they are sampled: few tries may hit a narrow span
			if err != nil || len(roots) > 1 {
				break
			}
			roots, err = w.Roots(t.Context(), q, 7)
		}
		if err != nil || len(roots) < 2 || len(roots) > 7 || !slices.IsSorted(roots) {
			t.Errorf("%q, %v", roots, err)
		}
		for i, r := range roots {
			if strings.Count(r, "/") != 1 || i > 0 && r == roots[i-1] || q.After != "" && (r <= q.After || r >= q.Until) {
				t.Errorf("%q", roots)
			}
		}
	}
	for _, q := range []store.LineageQuery{{Target: users, After: "v/x"}, {Target: users, Until: "u"}} {
		if _, err := w.Roots(t.Context(), q, 7); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func TestIsScattered(t *testing.T) {
	w := newWorld(t, "")
	for i, c := range []struct {
		put  string
		want bool
	}{{"u/p", false}, {"u/p/u/q", false}, {"u!/p/n/1", false}, {"t/p/u/q", true}} {
		w.putKeys("", "", c.put)
		if got, err := w.IsScattered(t.Context(), users, ""); err != nil || got != c.want {
			t.Errorf("%d: %v, %v", i, got, err)
		}
	}
	w.putKeys("", "eu", "v/p/u/q")
	if got, err := w.IsScattered(t.Context(), users, "eu"); err != nil || !got {
		t.Errorf("eu: %v, %v", got, err)
	}
}

// Orphans are deleted while the entity above them does not exist, and none of them has an owner.
func TestDeleteOrphans(t *testing.T) {
	for _, ns := range []string{"", "eu"} {
		w := newWorld(t, "")
		q := store.LineageQuery{Target: users, Namespace: ns, Owners: []store.Target{users, tags}, Limit: store.MaxPage}
		w.putKeys("", ns, "u/p/n/#1", "u/p/n/#1/m/#1", "u/p/n/1", "u/p/tags/1", "u/p2/n/#1", "u/p2")
		all, list := w.lineageOf(q)
		list = list[:4]
		for _, step := range []struct {
			do   func()
			want store.Outcome
			left []string
		}{
			{func() { w.putKeys("expires", ns, "u/p/tags/1") }, store.Changed, all},
			{func() { list[3].Owner = ""; w.putKeys("", ns, "u/p/tags/1", "u/p") }, store.Kept, nil},
			{func() { w.removeKey(ns, "u/p") }, store.Deleted, all[4:]},
			{func() {}, store.Deleted, all[4:]}, // again: the reply was lost
		} {
			step.do()
			o, err := w.DeleteOrphans(t.Context(), q, "u/p", list)
			if err != nil || o != step.want {
				t.Fatalf("outcome %d, not %d; %v", o, step.want, err)
			}
			if o == store.Changed && list[3].Owner != "tags" {
				t.Errorf("owner %q", list[3].Owner)
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
}

func (w *world) removeKey(namespace, text string) {
	w.t.Helper()
	key, err := ParseKey(namespace, text)
	if err == nil {
		err = w.app.Delete(w.t.Context(), key)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// What lies below an entity that gets an owner stays, though that entity is not in the list.
func TestDeleteOrphansBelowAnOwner(t *testing.T) {
	for _, archived := range []bool{false, true} {
		w := newWorld(t, "")
		q := store.LineageQuery{Target: users, Owners: []store.Target{tags}, Limit: store.MaxPage}
		w.putKeys("", "", "u/p/n/#1", "u/p/tags/1", "u/p/tags/1/x/#1", "u/p/tags/2/x/#1")
		all, list := w.lineageOf(q)
		list = slices.DeleteFunc(list, func(r store.Relative) bool { return r.Key == "u/p/tags/1" })
		if archived {
			q.Archive = &storetest.Shelf{}
		}
		for _, p := range []string{"u/p/tags/1", "u/p/tags/2"} {
			w.putKeys("expires", "", p)
			if o, err := w.DeleteOrphans(t.Context(), q, "u/p", list); err != nil || o != store.Changed {
				t.Errorf("%s: outcome %d, %v", p, o, err)
			}
			for i, r := range list {
				if (r.Owner == "tags") != store.IsBelow(r.Key, p) {
					t.Errorf("%s: %s has owner %q", p, r.Key, r.Owner)
				}
				list[i].Owner = ""
			}
			w.removeKey("", p)
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
