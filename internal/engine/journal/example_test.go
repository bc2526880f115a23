package journal_test

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/store"
)

// However often a cause occurs, and in however many ranges, it is logged once when it begins and once
// at the end.
func Example() {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	j := journal.New(slog.New(slog.NewTextHandler(os.Stdout, plain)), func() time.Time { return now })
	for shard := range 100 {
		j.Failed("sweep a range", fmt.Sprintf("sessions.00000001.%04d", shard), store.ErrDenied)
		now = now.Add(time.Second)
	}
	j.End()
	// Output:
	// level=ERROR msg="failing; trying again" cause=denied task="sweep a range" range=sessions.00000001.0000 error="access denied"
	// level=WARN msg="still failing" cause=denied tasks="sweep a range" times=100 ranges=100 seconds=99 error="access denied"
}
