package adopt

import (
	"context"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// shareFor is how long a process goes by its count of the processes that adopt a target.
const shareFor = 10 * time.Second

// A share divides the rate of a target evenly among the processes that hold parts of it. The
// records of the parts name them, so a process counts them by reading those every ten seconds.
//
// One that joins others waits for as long, before it writes: by then all of them have seen
// its part. One that has released its part is counted for twice as long, because it may claim
// the next one. So the sum of the shares never exceeds the rate, but for what is in flight.
type share struct {
	job     *job
	reading *reading
	pacer   *throttle.Pacer

	turn chan struct{} // is held by the worker that counts

	mu    sync.Mutex
	held  int       // parts that this process holds
	since time.Time // when it claimed the first of them, on its own clock, as all that follows
	left  time.Time // when it released the last one
	sent  time.Time // when the records were read
	live  int       // processes, this one included

	others map[string]time.Time // when each of the others was seen last
	seen   sightings            // of parts
}

func newShare(r *reading, pacer *throttle.Pacer) *share {
	return &share{job: r.job, reading: r, pacer: pacer, turn: make(chan struct{}, 1), live: 1,
		others: map[string]time.Time{}, seen: sightings{}}
}

// enter notes that the process holds one part more.
func (s *share) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.job.now(); s.held == 0 && (s.left.IsZero() || storeclock.Age(now, s.left) >= shareFor) {
		s.since, s.sent = now, time.Time{}
	}
	s.held++
}

func (s *share) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held--; s.held == 0 {
		s.left = s.job.now()
	}
}

// wait returns how long the process must wait before it may write at all. It counts the
// processes again if its count is old.
func (s *share) wait(ctx context.Context) (time.Duration, error) {
	_, exclusive := s.job.store.(store.Exclusive)
	if s.job.cfg.Rate.Unlimited || exclusive || !s.job.applies() {
		return 0, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	now := s.job.now()
	s.mu.Lock()
	old := s.sent.IsZero() || storeclock.Age(now, s.sent) >= shareFor
	s.mu.Unlock()
	if old {
		if err := s.count(ctx, now); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == 1 {
		return 0, nil
	}
	return max(0, s.since.Add(shareFor).Sub(s.job.now())), nil
}

// count reads the records of the parts, and sets the pace of this process.
func (s *share) count(ctx context.Context, now time.Time) error {
	parts, _, err := loadParts(ctx, s.job.store, s.reading.record)
	if err != nil {
		return err
	}
	follower, err := loadFollow(ctx, s.job.store, s.reading.record)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range append(parts, follower) {
		if p.owner == "" || p.owner == s.job.cfg.Sweep.Owner {
			continue
		}
		if s.seen.unchanged(p, now) < s.job.cfg.Target.Lease { // else it is dead
			s.others[p.owner] = now
		}
	}
	for owner, at := range s.others {
		if now.Sub(at) >= 2*shareFor {
			delete(s.others, owner)
		}
	}
	s.sent = now
	if live := len(s.others) + 1; live != s.live {
		s.live = live
		s.pacer.SetLimits(s.job.cfg.Rate.Part(1 / float64(live)))
		s.job.log.InfoContext(ctx, "rate divided among processes", "target", s.job.cfg.Target.Name, "processes", live)
	}
	return nil
}
