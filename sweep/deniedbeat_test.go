package sweep_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// A store that refuses heartbeats for good, for lack of a permission say, fails a sweep soon and
// says why, however many ranges there are.
func TestRefusedHeartbeatFailsSoon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 16
		now := time.Now()
		w.begin()
		for i := range 200 {
			w.put(1, 16, fmt.Sprint("e-", i), now)
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.WorkerRecord {
				return fmt.Errorf("no permission: %w", store.ErrDenied)
			}
			return nil
		}
		res := w.sweep()
		took := time.Since(now)
		if !strings.Contains(res.Error, "no permission") || took > 10*time.Second {
			t.Errorf("after %v: %+v", took, res)
		}
	})
}
