package chronicle

import (
	"context"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
)

const (
	// lostFor is how long before the last heartbeat of a dead process its run may have been written last.
	lostFor = 24 * time.Hour
	// mostDead bounds the dead processes that are remembered.
	mostDead = 1000
)

// A death is what became of the runs of a dead process.
type death struct {
	beat   cursor.Heartbeat // its last one; without times if it is not known
	known  time.Time        // since when, on this process's clock
	marked bool             // they are marked, or this process has given up
}

// Bury takes in that a process is dead, and reports whether its heartbeat may go. It must
// stay until the runs are marked: if this process is killed before that, another one finds it.
func (h *Chronicle) Bury(beat cursor.Heartbeat) (ready bool) {
	if h == nil || beat.Owner == "" {
		return true
	}
	now := h.cfg.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.state
	if d := s.dead[beat.Owner]; d != nil {
		return d.marked || now.Sub(d.known) >= noteEvery // a store that takes no history keeps no heartbeat
	}
	if s.dead == nil || len(s.dead) >= mostDead {
		s.dead = map[string]*death{}
	}
	s.dead[beat.Owner] = &death{beat: beat, known: now}
	h.wakeUp()
	return false
}

// unmarked returns the dead processes whose runs are to be marked.
func (s *state) unmarked() (list []*death) {
	for _, d := range s.dead {
		if !d.marked {
			list = append(list, d)
		}
	}
	return list
}

// mark marks the runs of a dead process as lost.
func (h *Chronicle) mark(ctx context.Context, d *death) {
	var since time.Time
	if at := d.beat.Renewed; !at.IsZero() {
		since = at.Add(-lostFor)
	}
	failed := h.try(ctx, func(ctx context.Context) error {
		_, err := history.MarkLost(ctx, h.cfg.Store, d.beat.Target, d.beat.Owner, since)
		return err
	})
	h.mu.Lock()
	d.marked = !failed || h.cfg.Now().Sub(d.known) > runLength
	h.mu.Unlock()
	h.cfg.Marked()
}
