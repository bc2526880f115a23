// Package switches says whether entities of a target may be changed at present: by the pause and the breaker in the
// target's record, and by the target's gate.
//
// The invariant is that nobody goes by a record that was read more than [ReadEvery] ago, or by one that is older
// than half of the staleness that its writers may have. A slow read is the exception: what it has just brought may be
// up to 11 s old.
//
// Limits: it reads, and holds nobody back that does not ask.
package switches

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
)

// ErrHeld is wrapped by the error for work that was held for longer than a lease.
var ErrHeld = errors.New("held")

const (
	// ReadEvery is how old the record may be that a write goes by.
	ReadEvery = 5 * time.Second
	// askEvery is how long work that is held waits before it asks again.
	askEvery = time.Second
	// patience is how long a failing read is repeated, and callTimeout bounds one try.
	patience    = time.Minute
	callTimeout = 10 * time.Second
)

// A Config says whose switches are read.
type Config struct {
	Store  store.Loader
	Target string
	Shards int // of the nursery, as long as the target has no record
	Lease  time.Duration
	Gate   func(context.Context) error // may be nil
	Now    func() time.Time
	Log    *slog.Logger
	Work   string // what goes on or is suspended, as the log says it
	// PastBreaker lets the work go on while the breaker holds the target.
	PastBreaker bool
	// Clock, if it is not nil, is told the store's time in each reply to a read that was sent at an instant, and refuses
	// a local clock that differs too much.
	Clock interface {
		Observe(store, sent time.Time) error
	}
	// Also is called with each reading, and reads what else the work goes by; may be nil.
	Also func(context.Context) error
}

// Switches are those of one target, read again every few seconds. They are safe for concurrent use.
type Switches struct {
	cfg  Config
	turn chan struct{} // is held by the worker that reads

	mu     sync.Mutex
	record generation.Record
	sent   time.Time // when the read was sent, on this process's clock
	came   time.Time // when its reply came
	store  time.Time // the store's time in the reply
	closed error     // why the gate is closed
	noted  string    // why nothing may be changed, as the log says
}

// New returns switches that were not read yet.
func New(cfg Config) *Switches { return &Switches{cfg: cfg, turn: make(chan struct{}, 1)} }

// Read reads the record, and asks the gate.
func (s *Switches) Read(ctx context.Context) error {
	return store.Retry(ctx, patience, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		sent := s.cfg.Now()
		rec, now, err := generation.Load(ctx, s.cfg.Store, s.cfg.Target)
		came := s.cfg.Now()
		if errors.Is(err, generation.ErrMissing) { // nobody has paused it, and keys are stamped in the nursery
			rec, err = generation.Record{NurseryShards: s.cfg.Shards}, nil
		}
		if err == nil && s.cfg.Clock != nil {
			err = s.cfg.Clock.Observe(now, sent)
		}
		if err == nil && s.cfg.Also != nil {
			err = s.cfg.Also(ctx)
		}
		if err != nil {
			return err
		}
		var closed error
		if s.cfg.Gate != nil {
			closed = s.cfg.Gate(ctx)
		}
		// The context ends all of this within callTimeout, unless this process or the machine stood still meanwhile.
		if age := storeclock.Age(s.cfg.Now(), sent); age > callTimeout+askEvery {
			return fmt.Errorf("target %s: what was read is from %v ago: %w", s.cfg.Target, age, store.ErrDeadline)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.record, s.sent, s.came, s.store, s.closed = rec, sent, came, now, closed
		return nil
	})
}

// isOld reports whether the record must be read again.
func (s *Switches) isOld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	staleness, _ := s.record.Bounds()
	return s.sent.IsZero() || storeclock.Age(s.cfg.Now(), s.sent) > min(ReadEvery, staleness/2)
}

// Fresh reads the switches if they are old. Of several workers one reads, and the others wait.
func (s *Switches) Fresh(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !s.isOld() {
		return nil
	}
	return s.Read(ctx)
}

// Age returns how long ago the read was sent that the switches are of.
func (s *Switches) Age() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storeclock.Age(s.cfg.Now(), s.sent)
}

// StoreNow returns the store's time, or one before it by as long as the reply took: a pause does not end too early, and
// nothing is due too early.
func (s *Switches) StoreNow() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Add(s.cfg.Now().Sub(s.came))
}

// StoreAtMost returns the store's time, or one after it by as long as the read took to get there. Time for which the
// machine slept counts, too.
func (s *Switches) StoreAtMost() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Add(storeclock.Age(s.cfg.Now(), s.sent))
}

// Held returns why nothing may be changed at present; empty if it may.
func (s *Switches) Held() (why string) {
	now := s.StoreNow()
	s.mu.Lock()
	defer s.mu.Unlock()
	paused := s.record.IsPaused(now)
	if s.cfg.PastBreaker {
		paused = s.record.IsHeldByOperator(now)
	}
	switch {
	case paused:
		return strings.TrimSpace("paused " + s.record.PauseNote.Reason)
	case s.closed != nil:
		return s.closed.Error()
	}
	return ""
}

// Tripped reports whether it is the breaker that holds the target.
func (s *Switches) Tripped() bool {
	now := s.StoreNow()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.IsPaused(now) && !s.record.IsHeldByOperator(now)
}

// Note notes why nothing may be changed, for the log and for Noted.
func (s *Switches) Note(why string) {
	s.mu.Lock()
	was := s.noted
	s.noted = why
	s.mu.Unlock()
	switch {
	case was == why:
	case why == "":
		s.cfg.Log.Info(s.cfg.Work+" continues", "target", s.cfg.Target)
	default:
		s.cfg.Log.Warn(s.cfg.Work+" suspended", "target", s.cfg.Target, "reason", why)
	}
}

// Noted returns why nothing may be changed, as it was noted last.
func (s *Switches) Noted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noted
}

// Check makes sure that a change is allowed, by what was so a few seconds ago at most. While the target is held it
// waits, for at most one lease.
func (s *Switches) Check(ctx context.Context, pause func(context.Context, time.Duration) error) error {
	for since := s.cfg.Now(); ; {
		if err := s.Fresh(ctx); err != nil {
			return err
		}
		why := s.Held()
		s.Note(why)
		if why == "" {
			return nil
		}
		if s.cfg.Now().Sub(since) > s.cfg.Lease {
			return fmt.Errorf("target %s: %w for longer than one lease: %s", s.cfg.Target, ErrHeld, why)
		}
		if err := pause(ctx, askEvery); err != nil {
			return err
		}
	}
}

// StamperFor returns the stamper for an entity, as a writer's follower would.
func (s *Switches) StamperFor(id string) generation.Stamper {
	now := s.StoreNow()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.StamperFor(id, now)
}
