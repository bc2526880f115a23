package sweep_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/modelstore"
)

// A writer with another shard count commits after the last pass over a generation. The look
// before the generation retires finds that shard, and the generation waits until it is read.
func TestShardFoundWhileRetiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEpoch(t, hourly)
		e.sweep()
		e.target.Rewind = 1000 * time.Hour // nothing else may find it
		late := false
		e.s.Before = func(_ context.Context, c modelstore.Call) error {
			if c.Method == "Scan" && c.Query.Lo.Text == expirykey.Prefix(1, 4) && !late {
				late = true
				k, err := expirykey.New(1, 7, time.Now().Add(-time.Minute))
				if err != nil {
					t.Error(err)
				}
				e.raw("late", k.String())
			}
			return nil
		}
		for range 80 {
			if slices.Contains(e.sweep().Retired, 1) {
				if len(e.left()) > 0 || !late {
					t.Errorf("generation 1 has retired; late %v, left %v", late, e.left())
				}
				return
			}
			time.Sleep(every)
		}
		t.Errorf("not retired: %s", e.states())
	})
}
