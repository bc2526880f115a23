package adopt

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// A targetView is what is known of the target's record and of the adoption's, read again
// every few seconds.
type targetView struct {
	job *job

	mu     sync.Mutex
	target generation.Record
	record Record
	exists bool
	sent   time.Time // when the read was sent, on this process's clock
	store  time.Time // the store's time in the reply
	closed error     // why the gate is closed
	noted  string    // why nothing may be written, as the log says
}

// readEvery is how old the records may be that a write goes by.
const readEvery = 5 * time.Second

// refresh reads both records.
func (v *targetView) refresh(ctx context.Context) error {
	return store.Retry(ctx, savePatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		sent := v.job.now()
		target, now, err := generation.Load(ctx, v.job.store, v.job.cfg.Target.Name)
		if errors.Is(err, generation.ErrMissing) { // keys are then stamped in the nursery
			target, err = generation.Record{NurseryShards: v.job.cfg.Target.Shards}, nil
		}
		if err != nil {
			return err
		}
		rec, _, exists, err := Load(ctx, v.job.store, v.job.cfg.Target.Name)
		if err != nil {
			return err
		}
		var closed error
		if v.job.cfg.Target.Gate != nil {
			closed = v.job.cfg.Target.Gate(ctx)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.target, v.record, v.exists, v.sent, v.store, v.closed = target, rec, exists, sent, now, closed
		return nil
	})
}

// fresh reads the records again if they are old.
func (v *targetView) fresh(ctx context.Context) error {
	v.mu.Lock()
	staleness, _ := v.target.Bounds()
	old := v.job.now().Sub(v.sent) > min(readEvery, staleness/2)
	v.mu.Unlock()
	if !old {
		return nil
	}
	return v.refresh(ctx)
}

func (v *targetView) adoption() (rec Record, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.record, v.exists
}

// storeNow returns the store's time.
func (v *targetView) storeNow() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.store.Add(v.job.now().Sub(v.sent))
}

// held returns why nothing may be written at present.
func (v *targetView) held() (why string) {
	now := v.storeNow()
	v.mu.Lock()
	defer v.mu.Unlock()
	paused := v.target.IsPaused(now)
	if v.job.cfg.Order == Undo { // what the breaker holds may be what was adopted
		paused = v.target.IsHeldByOperator(now)
	}
	switch {
	case paused:
		return strings.TrimSpace("paused " + v.target.PauseNote.Reason)
	case v.closed != nil:
		return v.closed.Error()
	}
	return ""
}

// note notes why nothing may be written, for the log and the result.
func (v *targetView) note(why string) {
	v.mu.Lock()
	was := v.noted
	v.noted = why
	v.mu.Unlock()
	switch {
	case was == why:
	case why == "":
		v.job.log.Info("adoption continues", "target", v.job.cfg.Target.Name)
	default:
		v.job.log.Warn("adoption suspended", "target", v.job.cfg.Target.Name, "reason", why)
	}
}

// tripped reports whether it is the breaker that holds the target.
func (v *targetView) tripped() bool {
	now := v.storeNow()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.target.IsPaused(now) && !v.target.IsHeldByOperator(now)
}

// stamper returns the stamper for an entity, as a writer's follower would.
func (v *targetView) stamper(id string) generation.Stamper {
	now := v.storeNow()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.target.StamperFor(id, now)
}
