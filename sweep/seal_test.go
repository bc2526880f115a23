package sweep_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// stampIn writes an entity of generation 1 into a namespace.
func (w *world) stampIn(namespace, name string, shard int, expires time.Time) {
	w.t.Helper()
	k, err := expirykey.New(1, shard, expires)
	if err == nil {
		err = w.s.Put(w.t.Context(), w.target.Target, namespace, []store.Entity{{Name: name, Expiry: store.TextValue(k.String())}})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// A generation waits for the namespaces of every deployment. One deployment sweeps the
// default namespace; another one, which also sweeps "eu", ran once. Entities in "eu" keep
// the generation from retiring, and the other deployment carries them when it runs again.
func TestNamespacesOfAnotherDeployment(t *testing.T) {
	for _, registered := range []bool{true, false} {
		t.Run(fmt.Sprint("registered ", registered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEpoch(t, hourly)
				sweepIn := func(namespaces ...string) (retired []int) {
					t.Helper()
					cfg := e.config()
					cfg.Targets[0].Namespaces = namespaces
					res := sweep.Run(t.Context(), cfg).Targets[0]
					if res.Error != "" {
						t.Fatalf("%+v", res)
					}
					return res.Retired
				}
				for until := time.Now().Add(6 * time.Hour); time.Now().Before(until); time.Sleep(every) {
					retired := sweepIn("")
					if registered && slices.Contains(retired, 1) {
						t.Fatal("generation 1 has retired, and nobody has read eu")
					}
					if registered && len(retired) == 0 && len(e.s.Entities("Session", "eu")) == 0 {
						sweepIn("", "eu")
						e.stampIn("eu", "stamped by a follower", 2, time.Now().Add(1000*time.Hour))
					}
				}
				if live := numbers(e.record()); registered != slices.Contains(live, 1) {
					t.Errorf("after six hours these are live: %v", live)
				}
				if !registered {
					return
				}
				for until := time.Now().Add(3 * time.Hour); time.Now().Before(until); time.Sleep(every) {
					sweepIn("", "eu")
				}
				is := e.s.Entities("Session", "eu")[`"stamped by a follower"`].Expiry.Text
				if slices.Contains(numbers(e.record()), 1) || is == "" || strings.HasPrefix(is, "00000001") {
					t.Errorf("it is %q, and these are live: %v", is, numbers(e.record()))
				}
			})
		})
	}
}

// A tenants lists namespaces, as a store does that has some.
type tenants struct {
	*modelstore.Store
	names func() []string
}

func (s tenants) Namespaces(context.Context) ([]string, error) { return s.names(), nil }

// Records of tenants that no longer exist are removed, but not those of a namespace that a
// deployment names. A tenant that comes back is swept like any other.
func TestRecordsOfNamespacesThatAreGone(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const kept = "named by somebody"
		sweepAll := func(namespaces ...string) {
			t.Helper()
			cfg := w.config()
			cfg.Store = tenants{w.s, func() []string {
				names := []string{""}
				for i := range 40 {
					if ns := fmt.Sprint("tenant-", i); len(w.s.Entities("Session", ns)) > 0 {
						names = append(names, ns)
					}
				}
				return names
			}}
			cfg.Targets[0].Namespaces = namespaces
			if res := sweep.Run(t.Context(), cfg).Targets[0]; res.Error != "" || !res.Complete {
				t.Fatalf("%+v", res)
			}
		}
		namespaces := func() map[string]bool {
			names := map[string]bool{}
			for id := range w.cursors() {
				names[id.Namespace] = true
			}
			return names
		}
		sweepAll("", kept)
		w.stampIn(kept, "due", 1, time.Now())
		sweepAll("", kept)
		for i := range 40 {
			w.stampIn(fmt.Sprint("tenant-", i), "due", i%4, time.Now())
		}
		sweepAll("*")
		if n := len(namespaces()); n < 41 {
			t.Fatalf("%d namespaces have records", n)
		}
		for range 6 {
			time.Sleep(11 * time.Hour)
			sweepAll("*")
		}
		if got := slices.Sorted(maps.Keys(namespaces())); slices.ContainsFunc(got, func(ns string) bool {
			return strings.HasPrefix(ns, "tenant")
		}) || !slices.Contains(got, kept) {
			t.Errorf("records are left of %q", got)
		}
		w.stampIn("tenant-7", "due again", 3, time.Now().Add(-time.Minute))
		sweepAll("*")
		if left := w.s.Entities("Session", "tenant-7"); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	})
}

// Records of schema 1 are brought up to date once no process of that version holds a range,
// by processes that die at each of their calls: nothing is lost, and no range is taken from
// a holder that renews its lease in the record.
func TestUpgradeOfLiveRecords(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.touch()
		live := []string{}
		for i := range 120 {
			name, in := fmt.Sprint("e-", i), time.Duration(i%40)*time.Second
			if i%3 == 0 {
				live, in = append(live, name), time.Hour
			}
			w.dueIn(1, i%4, name, time.Now().Add(in))
		}
		rewrite := func(sort store.RecordSort, change func(store.Fields)) {
			t.Helper()
			got, err := w.s.Load(t.Context(), store.RecordQuery{Sort: sort, Target: "sessions"})
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range got.List {
				prev := rec.Revision
				rec.Fields = maps.Clone(rec.Fields)
				rec.Revision = store.NewRevision(prev)
				change(rec.Fields)
				if err := w.s.Save(t.Context(), rec, prev); err != nil {
					t.Fatal(err)
				}
			}
		}
		rewrite(store.TargetRecord, func(f store.Fields) { f["schema"] = int64(1); delete(f, "namespaces") })
		rewrite(store.CursorRecord, func(f store.Fields) { f["schema"] = int64(1); delete(f, "epoch") })
		held := cursor.ID{Target: "sessions", Generation: 1, Shard: "0002"}
		renewals := int64(0)
		renew := func() { // as the old program holds a range
			renewals++
			rewrite(store.CursorRecord, func(f store.Fields) {
				if f["shard"] == held.Shard && f["generation"] == int64(1) {
					f["owner"], f["renewals"], f["lease_ms"], f["token"] = "old", renewals, int64(30_000), int64(77)
				}
			})
		}
		renew()
		left := int64(1)
		dies := func() (complete bool) {
			cfg := w.config()
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			m := &mortal{Store: w.s, kill: kill}
			m.left.Store(left)
			left++
			cfg.Store = m
			res := sweep.Run(ctx, cfg)
			return res.Complete
		}
		var over atomic.Bool
		go func() {
			for !over.Load() {
				time.Sleep(10 * time.Second)
				renew()
			}
		}()
		for range 20 {
			dies()
			if c := w.cursors()[held]; c.Lease.Owner != "old" || c.Lease.Token != 77 {
				t.Fatalf("the range of a live process of the old version: %+v", c.Lease)
			}
		}
		if s := w.record().Schema; s != 1 {
			t.Errorf("schema %d while a process of the old version holds a range", s)
		}
		over.Store(true)
		time.Sleep(time.Minute)
		complete := false
		for n := 0; n < 200 && !complete; n++ {
			complete = dies()
			w.checkCursors()
		}
		time.Sleep(time.Minute) // the last one may have died after all was done, and before it gave a range back
		w.sweep()
		w.wantLeft(live...)
		if s := w.record().Schema; !complete || s != 0 {
			t.Errorf("complete %v, schema %d: 0 stands for %d", complete, s, generation.Schema)
		}
		if c := w.cursors()[held]; c.Lease.Token < 78 || c.Lease.Owner == "old" {
			t.Errorf("%+v", c.Lease)
		}
		w.checkCursors()
	})
}
