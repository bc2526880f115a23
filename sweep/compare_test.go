package sweep_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// What a comparer names is kept and counted, the rest of its pages is deleted. A comparer
// that fails for a while costs time alone.
func TestCompareKeepsWhatDisagrees(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n = 300
		for i := range n {
			w.put(1, 4, fmt.Sprintf("e-%03d", i), time.Now().Add(-time.Hour-time.Duration(i)*time.Second))
		}
		var asked, failed atomic.Int64
		w.target.Compare = func(_ context.Context, _ string, due []store.Entry) (map[string]bool, bool, error) {
			if asked.Add(1)%5 == 2 {
				failed.Add(1)
				return nil, false, fmt.Errorf("look: %w", store.ErrUnavailable)
			}
			kept := map[string]bool{}
			for _, e := range due {
				if strings.HasSuffix(e.Key, `7"`) {
					kept[e.Key] = true
				}
			}
			return kept, true, nil
		}
		res := w.sweep()
		if res.Mismatch != n/10 || res.Deleted != n-n/10 || !res.Complete || res.Refused != 0 || failed.Load() == 0 {
			t.Errorf("%+v; %d failures", res, failed.Load())
		}
		var want []string
		for i := 7; i < n; i += 10 {
			want = append(want, fmt.Sprintf("e-%03d", i))
		}
		w.wantLeft(want...)
	})
}

// An entity that changes between comparison and delete is not deleted by a key that was
// never compared.
func TestChangedAfterItWasCompared(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.put(1, 4, "a", time.Now().Add(-time.Hour))
		compared := time.Now()
		w.target.Compare = func(_ context.Context, _ string, due []store.Entry) (map[string]bool, bool, error) {
			for i := range due {
				due[i].AsOf = compared
			}
			return nil, true, nil
		}
		var changed atomic.Bool
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Dispose" && !c.Ops[0].Entry.AsOf.Equal(compared) {
				t.Errorf("disposed of as of %v, not as it was compared at %v", c.Ops[0].Entry.AsOf, compared)
			}
			if c.Method == "Dispose" && changed.CompareAndSwap(false, true) {
				w.put(1, 4, "a", time.Now().Add(-time.Minute))
			}
			return nil
		}
		if res := w.sweep(); res.Deleted != 0 || res.Conflicts != 1 {
			t.Errorf("%+v", res)
		}
		w.wantLeft("a")
	})
}
