package sweep

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// gateEvery is how often the gate is asked, and gateFresh how old an answer may be
	// that allows a write.
	gateEvery = 2 * time.Second
	gateFresh = 3 * gateEvery
)

// A gatekeeper asks a target's gate again and again, so that no step has to.
type gatekeeper struct {
	gate func(context.Context) error
	now  func() time.Time
	log  *slog.Logger

	mu     sync.Mutex
	asked  time.Time // when the question was sent that was answered last
	closed bool
	since  time.Time // when it was found closed
}

// run asks until ctx is done.
func (g *gatekeeper) run(ctx context.Context) {
	tick := time.NewTicker(gateEvery)
	defer tick.Stop()
	for {
		g.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ask asks the gate once.
func (g *gatekeeper) ask(ctx context.Context) {
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
		g.log.InfoContext(ctx, "gate open: deletes resumed", "seconds", seconds(asked.Sub(since)))
	}
}

// isOpen reports whether the gate's last answer allows writes and is recent enough.
func (g *gatekeeper) isOpen() bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.closed && !g.asked.IsZero() && age(g.now(), g.asked) <= gateFresh
}

// age returns how long ago an instant was, by the wall or the monotonic clock, whichever
// shows more: one of them may have stopped while the machine slept.
func age(now, at time.Time) time.Duration {
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}
