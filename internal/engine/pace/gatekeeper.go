package pace

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
)

const (
	// gateEvery is how often the gate is asked, and gateFresh how old an answer may be
	// that allows a write.
	gateEvery = 2 * time.Second
	gateFresh = 3 * gateEvery
)

// A Gatekeeper asks a target's gate again and again, so that no step has to.
type Gatekeeper struct {
	gate func(context.Context) error
	now  func() time.Time
	log  *slog.Logger

	mu     sync.Mutex
	asked  time.Time // when the last question that was answered was sent
	closed bool
	since  time.Time // when it was found as it is
}

// NewGatekeeper returns the gatekeeper of a gate; nil if there is no gate.
func NewGatekeeper(gate func(context.Context) error, now func() time.Time, log *slog.Logger) *Gatekeeper {
	if gate == nil {
		return nil
	}
	return &Gatekeeper{gate: gate, now: now, log: log}
}

// Run asks the gate again and again until ctx is done.
func (g *Gatekeeper) Run(ctx context.Context) {
	tick := time.NewTicker(gateEvery)
	defer tick.Stop()
	for {
		g.Ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Ask asks the gate once.
func (g *Gatekeeper) Ask(ctx context.Context) {
	asked := g.now()
	err := g.gate(ctx)
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	changed := g.closed != (err != nil)
	since := g.since
	if changed {
		g.since = asked
	}
	g.asked, g.closed = asked, err != nil
	g.mu.Unlock()
	switch {
	case changed && err != nil:
		g.log.WarnContext(ctx, "gate closed: deletes suspended", "why", err)
	case changed:
		g.log.InfoContext(ctx, "gate open: deletes resumed", "seconds", journal.Seconds(asked.Sub(since)))
	}
}

// IsOpen reports whether the gate's last answer allows writes and is recent enough.
func (g *Gatekeeper) IsOpen() bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.closed && !g.asked.IsZero() && storeclock.Age(g.now(), g.asked) <= gateFresh
}
