package guard_test

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/guard"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/store"
)

// A store that has one way of its own to check is asked for nothing else.
func Example() {
	g := guard.New(modelstore.New(time.Now), store.Target{Guard: store.GuardAuto},
		journal.New(slog.New(slog.DiscardHandler), time.Now), time.Now)
	batch := []store.Op{{Entry: store.Entry{Value: store.TextValue("00000001.0003.20261121T000730.855Z")}}}
	fmt.Println(g.Next("sessions.00000001.0003", batch), g.Most())
	// Output: auto 500
}
