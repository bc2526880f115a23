package switches_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/throttle"
)

// A gate that is closed holds what goes by the switches, for at most one lease.
func Example() {
	closed := error(nil)
	s := switches.New(switches.Config{Store: modelstore.New(time.Now), Target: "sessions", Shards: 16,
		Lease: time.Millisecond, Gate: func(context.Context) error { return closed }, Now: time.Now,
		Log: slog.New(slog.DiscardHandler), Work: "restore"})
	ctx := context.Background()
	fmt.Println(s.Check(ctx, throttle.Sleep))
	closed = fmt.Errorf("a deployment goes on")
	if err := s.Read(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(s.Check(ctx, throttle.Sleep))
	// Output:
	// <nil>
	// target sessions: held for longer than one lease: a deployment goes on
}
