package repair_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A process died three hours ago, and nobody has swept since.
func Example() {
	ctx := context.Background()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	s := modelstore.New(func() time.Time { return now })
	died := store.FormatTime(now.Add(-3 * time.Hour))
	beat := store.Record{Sort: store.WorkerRecord, Target: "sessions", Key: cursor.HeartbeatKey("sessions", "host/1"),
		Revision: "1-x", Fields: store.Fields{"schema": int64(2), "owner": "host/1", "process": "p", "epoch": int64(1),
			"count": int64(3), "lease_ms": int64(30_000), "read": died, "begun": died, "renewed": died, "claims": int64(2),
			"version": "v1", "why": ""}}
	if err := s.Save(ctx, beat, ""); err != nil {
		fmt.Println(err)
		return
	}
	res, err := repair.Run(ctx, repair.Config{ID: repair.WorkerDead, Spec: "memory", Apply: true, Sweep: sweep.Config{Store: s,
		Targets: []sweep.Target{{Target: store.Target{Name: "sessions"}}}, Now: s.Now,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range res.Changes {
		fmt.Println(c.Action, c.Record, c.Key, c.Evidence)
	}
	// Output:
	// remove ReaperWorker sessions@host%2F1 [last heard of at 2026-11-26T09:00:00Z (3h0m0s ago)]
}
