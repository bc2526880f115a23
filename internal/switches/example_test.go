package switches_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/switches"
)

// A target without a record is held by nothing but its gate.
func Example() {
	var closed error
	s := switches.New(switches.Config{Store: modelstore.New(time.Now), Target: "sessions", Now: time.Now,
		Gate: func(context.Context) error { return closed }, Log: slog.New(slog.DiscardHandler)})
	fmt.Printf("%q %v\n", s.Held(), s.Read(context.Background()))
	closed = errors.New("a migration is under way")
	fmt.Printf("%q %v\n", s.Held(), s.Read(context.Background()))
	fmt.Printf("%q\n", s.Held())
	// Output:
	// "" <nil>
	// "" <nil>
	// "a migration is under way"
}
