package nodewriter_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

// TestRunNative compares what Node says that it wrote with what is there.
func TestRunNative(t *testing.T) {
	e := emulator.Start(t, emulator.Native)
	project := e.Project(t)
	began := time.Now()
	written := nodewriter.RunNative(t, nodewriter.NativeOptions{
		Host: e.Host, Project: project, Generation: 1, Shards: 4, ShardValues: []string{"x", "y"}, Documents: 1000, Now: time.Now(),
		Collections: map[string]string{"generation": "gen", "sharded": "nursery", "timestamp": "times", "sharded-timestamp": "shards", "group": "items"},
	})
	t.Logf("%d documents in %v", len(written), time.Since(began))
	there := nodewriter.Snapshot(t, e.Host, project)
	roles := map[nodewriter.Role]int{}
	for _, d := range written {
		roles[d.Role]++
		if len(there[d.Path]) < 20 {
			t.Errorf("%s (%s) is not there", d.Path, d.Role)
		}
	}
	if len(there) != len(written) || roles[nodewriter.Expired] != 500 || roles[nodewriter.Live] != 500 || roles[nodewriter.Parent] != 50 ||
		roles[nodewriter.NoExpiry] != 500 || roles[nodewriter.OtherCollection] != 250 || roles[nodewriter.Elsewhere] != 400 {
		t.Errorf("%d documents there, roles: %v", len(there), roles)
	}
}
