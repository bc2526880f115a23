package nodewriter_test

import (
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nodewriter"
)

func TestMain(m *testing.M) { emulator.Main(m) }

// TestRun compares what Node says that it wrote with what Go would have
// written and with what is there.
func TestRun(t *testing.T) {
	e := emulator.Start(t, emulator.Datastore)
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	o := nodewriter.Options{
		Host: e.Host, Project: e.Project(t), Kind: "Session", Property: "expiry_key", Namespaces: []string{"", "tenant-1", "tenant-2"},
		Elsewhere: "elsewhere", Generation: 1, Shards: 16, Entities: 900, Now: now,
	}
	written := nodewriter.Run(t, o)
	conn, err := grpc.NewClient("passthrough:///"+e.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	app, err := sdk.NewClient(t.Context(), o.Project, option.WithGRPCConn(conn), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()

	roles := map[nodewriter.Role]int{}
	shards, namespaces := map[int]int{}, map[string]int{}
	numbers, ancestors := 0, 0
	for _, w := range written {
		roles[w.Role]++
		var ps sdk.PropertyList
		if err := app.Get(t.Context(), w.Key, &ps); err != nil {
			t.Fatalf("%v: %v", w.Key, err)
		}
		stored := ""
		for _, p := range ps {
			if s, ok := p.Value.(string); ok && p.Name == o.Property {
				stored = s
			}
		}
		if stored != w.Expiry {
			t.Errorf("%v: holds %q, the manifest says %q", w.Key, stored, w.Expiry)
		}
		if w.Expiry == "" {
			continue
		}
		k, err := expirykey.Parse(w.Expiry)
		if err != nil {
			t.Fatal(err)
		}
		want := expirykey.ShardOfNumber(w.Key.ID, o.Shards)
		if w.Key.Name != "" {
			want = expirykey.ShardOfName(w.Key.Name, o.Shards)
		}
		if k.Shard != want || k.Generation != o.Generation || k.Expires.After(now) != (w.Role == nodewriter.Live) {
			t.Errorf("%v, %s: %+v, want shard %d", w.Key, w.Role, k, want)
		}
		if w.Role == nodewriter.Expired || w.Role == nodewriter.Live {
			shards[k.Shard]++
			namespaces[w.Key.Namespace]++
			if w.Key.ID != 0 {
				numbers++
			}
			if w.Key.Parent != nil {
				ancestors++
			}
		}
	}
	if roles[nodewriter.Expired] != 450 || roles[nodewriter.Live] != 450 || roles[nodewriter.NoExpiry] != 300 ||
		roles[nodewriter.OtherKind] != 150 || roles[nodewriter.OtherNamespace] != 50 {
		t.Errorf("roles: %v", roles)
	}
	if len(shards) != 16 || len(namespaces) != 3 || numbers < 300 || ancestors < 500 {
		t.Errorf("shards %v, namespaces %v, %d numbers, %d with ancestors", shards, namespaces, numbers, ancestors)
	}
}
