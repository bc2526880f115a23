package adopt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

var errLost = errors.New("another worker took the part over")

// A heldPart is one that a worker of this process reads.
type heldPart struct {
	progress

	job   *job
	parts *recordedParts // nil in a run that writes nothing
	sent  time.Time      // when its record was last written, on this process's clock
}

// save writes how far a part was read, which renews the lease, or ends it. It fails with
// errLost if another worker has the part.
func (p *heldPart) save(ctx context.Context, release bool) error {
	if p.parts == nil {
		return nil
	}
	if release {
		p.owner = ""
	}
	if release && !p.done {
		p.parts.failed.Store(p.part, true)
	}
	err := p.write(ctx)
	p.parts.learn(p.progress, err)
	return err
}

// write writes the record of a part.
func (p *heldPart) write(ctx context.Context) error {
	prev, sent := p.revision, p.job.now()
	p.revision = store.NewRevision(prev)
	err := saveRecord(ctx, p.job.store, p.encode(), prev)
	if errors.Is(err, store.ErrConflict) {
		return errLost
	}
	if err != nil {
		p.revision = prev
		return fmt.Errorf("save part %d of target %s: %w", p.part, p.target, err)
	}
	p.sent = sent
	return nil
}

// keep renews the lease on a part if a third of it has passed.
func (p *heldPart) keep(ctx context.Context) error {
	return p.renewAfter(ctx, p.job.cfg.Target.Lease/3)
}

func (p *heldPart) renewAfter(ctx context.Context, age time.Duration) error {
	if storeclock.Age(p.job.now(), p.sent) < age {
		return nil
	}
	return p.save(ctx, false)
}

// pause waits, and keeps the part meanwhile.
func (p *heldPart) pause(ctx context.Context, d time.Duration) error {
	for end := p.job.now().Add(d); ; {
		if err := p.keep(ctx); err != nil {
			return err
		}
		left := end.Sub(p.job.now())
		if left <= 0 {
			return nil
		}
		if err := throttle.Sleep(ctx, min(left, p.job.cfg.Target.Lease/3)); err != nil {
			return err
		}
	}
}

// use has a part read, which counts for the share meanwhile, and releases it if that fails.
func (p *heldPart) use(ctx context.Context, s *share, read func(context.Context, *heldPart) error) error {
	s.enter()
	defer s.leave()
	err := read(ctx, p)
	if err == nil || errors.Is(err, errLost) {
		return err
	}
	// The page in work was written or was not; the record says what is certain.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(p.job.cfg.Sweep.Grace, time.Second))
	defer cancel()
	if saveErr := p.save(ctx, true); saveErr != nil {
		p.job.log.WarnContext(ctx, "cannot release a part or the index; others take it over after one lease",
			"target", p.job.cfg.Target.Name, "part", p.part, "error", saveErr)
	}
	return err
}

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
	// patience is how long a failing call is repeated before the part counts as failed.
	patience = 2 * time.Minute
)

// jitter keeps workers that failed together from trying again together.
func jitter(ctx context.Context, d time.Duration) time.Duration {
	return d/2 + time.Duration(store.Chance(ctx)*float64(d))
}

// countedParts are handed out once, in order, in a run that writes nothing.
type countedParts struct {
	reading *reading
	handed  atomic.Int64
}

func (c *countedParts) next(context.Context) (*heldPart, bool, error) {
	i := int(c.handed.Add(1)) - 1
	if i >= len(c.reading.record.Parts) {
		return nil, false, nil
	}
	return &heldPart{progress: progress{part: i, after: c.reading.record.after(i)}, job: c.reading.job}, true, nil
}

// recordedParts are claimed by compare-and-set of their records.
type recordedParts struct {
	job     *job
	reading *reading
	// turn is held by the worker that claims: those of one process must not compete. It is no
	// mutex, because a claim reads and writes records.
	turn chan struct{}
	seen sightings // of parts that others hold, under the turn

	mu sync.Mutex
	// What is known of the parts. It may be old: a claim based on it fails then.
	parts []progress
	sent  time.Time // when they were read, on this process's clock
	// failed are the parts that a worker of this process gave up. Its other workers leave them alone:
	// one part that cannot be read must not end them all.
	failed sync.Map
}

func newRecordedParts(r *reading) *recordedParts {
	return &recordedParts{job: r.job, reading: r, turn: make(chan struct{}, 1), seen: sightings{}}
}

// lookAgain is how long a worker waits that finds all parts in the hands of others.
const lookAgain = time.Second

// next returns a part that nobody reads; ok is false if none is left for this worker.
func (c *recordedParts) next(ctx context.Context) (p *heldPart, ok bool, err error) {
	for {
		p, left, err := c.claim(ctx)
		if err != nil || p != nil {
			return p, p != nil, err
		}
		if !left {
			return nil, false, nil
		}
		if err := throttle.Sleep(ctx, min(lookAgain, c.job.cfg.Target.Lease/4)); err != nil {
			return nil, false, err
		}
	}
}

// claim claims a part. Without one, left says whether other processes hold parts that are
// not done, which may become free.
func (c *recordedParts) claim(ctx context.Context) (p *heldPart, left bool, err error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	parts, ended, err := c.read(ctx)
	if err != nil || ended {
		return nil, false, err
	}
	done := 0
	begin := rand.IntN(len(parts)) // processes that begin together try different parts
	for i := range parts {
		one := parts[(begin+i)%len(parts)]
		_, failed := c.failed.Load(one.part)
		switch {
		case one.done:
			done++
			continue
		case p != nil || one.owner == c.job.cfg.Sweep.Owner || failed:
			continue // this worker has another one, or another worker of this process reads it
		case one.owner != "" && !c.isDead(one):
			left = true
			continue
		}
		taken, err := c.take(ctx, one)
		switch {
		case err == nil:
			p = taken
			c.learn(p.progress, nil)
		case errors.Is(err, errLost):
			left = true
			c.learn(one, err)
		default:
			return nil, false, err
		}
	}
	c.job.cfg.Progress.PartsDone.Store(int64(done))
	return p, left, nil
}

// learn notes how a part is after a write of its record. If that failed, what is known may
// be wrong, and is read again.
func (c *recordedParts) learn(p progress, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.sent = time.Time{}
	case p.part < len(c.parts):
		c.parts[p.part] = p
	}
}

// read returns what is known of the parts, and reads their records if that is old. ended is
// true if another process has found that nothing is left of what this run wants, too.
func (c *recordedParts) read(ctx context.Context) (parts []progress, ended bool, err error) {
	known := func() []progress {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.parts == nil || c.job.now().Sub(c.sent) >= min(lookAgain, c.job.cfg.Target.Lease/4) {
			return nil
		}
		return slices.Clone(c.parts)
	}
	if parts = known(); parts != nil {
		return parts, false, nil
	}
	sent := c.job.now()
	parts, now, err := loadParts(ctx, c.job.store, c.reading.record)
	switch {
	case err != nil:
		return nil, false, err
	case c.job.cfg.Order == Undo && now == nil:
		return nil, true, nil // another process has removed the last key, and then the records
	case c.job.cfg.Order == Undo && now.Phase == Undoing && !now.isReading(c.reading.record):
		return nil, true, nil // another process has found this reading done, and reads again
	case now == nil:
		return nil, false, c.reading.over(Record{}, false)
	case c.reading.isFollowedBy(*now):
		return nil, true, nil
	}
	if err := c.reading.over(*now, true); err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts, c.sent = parts, sent
	return slices.Clone(parts), false, nil
}

// take claims a part whose record is as given.
func (c *recordedParts) take(ctx context.Context, one progress) (*heldPart, error) {
	p := &heldPart{progress: one, job: c.job, parts: c}
	p.owner = c.job.cfg.Sweep.Owner
	p.token++
	return p, p.write(ctx)
}

// isDead reports whether the holder of a part has not renewed it for a lease.
func (c *recordedParts) isDead(p progress) bool {
	if e, ok := c.job.store.(store.Exclusive); ok && !strings.HasPrefix(p.owner, e.Opening()+"/") {
		return true
	}
	return c.seen.unchanged(p, c.job.now()) >= c.job.cfg.Target.Lease
}
