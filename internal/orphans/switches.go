package orphans

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

var errHeld = errors.New("held")

const (
	// readEvery is how old the target's record may be that a delete goes by.
	readEvery = 5 * time.Second
	// patience is how long a failing call is repeated.
	patience    = 2 * time.Minute
	callTimeout = 30 * time.Second
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
)

// Switches say whether the target may be deleted from: by the pause and the breaker in its record, and
// by its gate.
type switches struct {
	job *job

	turn chan struct{} // is held by the worker that reads

	mu     sync.Mutex
	record generation.Record
	sent   time.Time // when the read was sent, on this process's clock
	store  time.Time // the store's time in the reply
	closed error     // why the gate is closed
	noted  string    // why nothing may be deleted, as the log says
}

func newSwitches(j *job) *switches { return &switches{job: j, turn: make(chan struct{}, 1)} }

// refresh reads the record and asks the gate, unless somebody did within the last seconds.
func (s *switches) refresh(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	fresh := !s.sent.IsZero() && s.job.Sweep.Now().Sub(s.sent) <= readEvery
	s.mu.Unlock()
	if fresh {
		return nil
	}
	return store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		sent := s.job.Sweep.Now()
		rec, now, err := generation.Load(ctx, s.job.Sweep.Store, s.job.Target.Name)
		if errors.Is(err, generation.ErrMissing) { // no sweep has begun yet, and nobody has paused it
			rec, err = generation.Record{}, nil
		}
		if err != nil {
			return err
		}
		var closed error
		if s.job.Target.Gate != nil {
			closed = s.job.Target.Gate(ctx)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.record, s.sent, s.store, s.closed = rec, sent, now, closed
		return nil
	})
}

// storeNow returns the store's time.
func (s *switches) storeNow() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Add(s.job.Sweep.Now().Sub(s.sent))
}

// held returns why nothing may be deleted at present.
func (s *switches) held() (why string) {
	now := s.storeNow()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.record.IsPaused(now):
		return strings.TrimSpace("paused " + s.record.PauseNote.Reason)
	case s.closed != nil:
		return s.closed.Error()
	}
	return ""
}

// tripped reports whether it is the breaker that holds the target.
func (s *switches) tripped() bool {
	now := s.storeNow()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.IsPaused(now) && !s.record.IsHeldByOperator(now)
}

// note notes why nothing may be deleted, for the log and the result.
func (s *switches) note(why string) {
	s.mu.Lock()
	was := s.noted
	s.noted = why
	s.mu.Unlock()
	switch {
	case was == why:
	case why == "":
		s.job.Sweep.Log.Info("deleting orphans continues", "target", s.job.Target.Name)
	default:
		s.job.Sweep.Log.Warn("deleting orphans suspended", "target", s.job.Target.Name, "reason", why)
	}
}

// why returns why nothing may be deleted, as it was noted last.
func (s *switches) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noted
}

// check makes sure that a delete is allowed, by what was so a few seconds ago at most. It waits while
// the target is held, for at most one lease.
func (s *switches) check(ctx context.Context) error {
	for since := s.job.Sweep.Now(); ; {
		if err := s.refresh(ctx); err != nil {
			return err
		}
		why := s.held()
		s.note(why)
		if why == "" {
			return nil
		}
		if s.job.Sweep.Now().Sub(since) > s.job.Target.Lease {
			return fmt.Errorf("target %s: %w for longer than one lease: %s", s.job.Target.Name, errHeld, why)
		}
		if err := throttle.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}
