package adopt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

var (
	errLost = errors.New("another worker took the part over")
	errHeld = errors.New("held")
)

// A held part is one that a worker of this process reads.
type heldPart struct {
	progress

	sent time.Time // when its record was last written, on this process's clock
}

// A partSource hands out the parts of a round.
type partSource interface {
	// next returns a part that nobody reads; ok is false if none is left for this worker.
	next(ctx context.Context) (p *heldPart, ok bool, err error)
	// save writes how far a part was read, which renews the lease, or ends it. It fails with
	// errLost if another worker has the part.
	save(ctx context.Context, p *heldPart, release bool) error
}

// source returns where the parts of this run come from: records, or for a run that writes
// nothing this process alone.
func (r *run) source() partSource {
	if r.applies() {
		return r.recordedParts()
	}
	return &countedParts{run: r}
}

// countedParts are handed out once, in order.
type countedParts struct {
	run    *run
	handed int
}

func (c *countedParts) next(context.Context) (*heldPart, bool, error) {
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
	i := c.handed
	if i == len(c.run.reading.record.Parts) {
		return nil, false, nil
	}
	c.handed++
	return &heldPart{progress: progress{part: i, after: c.run.reading.record.after(i)}, sent: c.run.now()}, true, nil
}

func (c *countedParts) save(_ context.Context, p *heldPart, _ bool) error {
	p.sent = c.run.now()
	return nil
}

// recordedParts are claimed by compare-and-set of their records.
type recordedParts struct {
	run *run
	// turn is held by the worker that claims: those of one process must not compete. It is no
	// mutex, because a claim reads and writes records.
	turn chan struct{}

	// What is known of the parts, under the lock of the run. It may be old: a claim based on it
	// fails then.
	parts []progress
	sent  time.Time // when they were read, on this process's clock
	// failed are the parts that a worker of this process gave up. Its other workers leave them alone:
	// one part that cannot be read must not end them all.
	failed map[int]bool
}

func (r *run) recordedParts() *recordedParts {
	return &recordedParts{run: r, turn: make(chan struct{}, 1), failed: map[int]bool{}}
}

// lookAgain is how long a worker waits that finds all parts in the hands of others.
const lookAgain = time.Second

func (c *recordedParts) next(ctx context.Context) (*heldPart, bool, error) {
	for {
		p, left, err := c.claim(ctx)
		if err != nil || p != nil {
			return p, p != nil, err
		}
		if !left {
			return nil, false, nil
		}
		if err := throttle.Sleep(ctx, min(lookAgain, c.run.cfg.Target.Lease/4)); err != nil {
			return nil, false, err
		}
	}
}

// claim claims a part. Without one, left says whether other processes hold parts that are
// not done, which may become free.
func (c *recordedParts) claim(ctx context.Context) (p *heldPart, left bool, err error) {
	r := c.run
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
		switch {
		case p != nil && !one.done:
			continue
		case one.done:
			done++
			continue
		case one.owner == r.cfg.Sweep.Owner || c.gaveUp(one.part):
			continue // another worker of this process reads it
		case one.owner != "" && !r.isDead(one):
			left = true
			continue
		}
		taken, err := r.take(ctx, one)
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
	r.cfg.Progress.PartsDone.Store(int64(done))
	return p, left, nil
}

func (c *recordedParts) gaveUp(part int) bool {
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
	return c.failed[part]
}

// learn notes how a part is after a write of its record. If that failed, what is known may
// be wrong, and is read again.
func (c *recordedParts) learn(p progress, err error) {
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
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
	r := c.run
	known := func() []progress {
		r.mu.Lock()
		defer r.mu.Unlock()
		if c.parts == nil || r.now().Sub(c.sent) >= min(lookAgain, r.cfg.Target.Lease/4) {
			return nil
		}
		return slices.Clone(c.parts)
	}
	if parts = known(); parts != nil {
		return parts, false, nil
	}
	sent := r.now()
	parts, now, err := loadParts(ctx, r.store, r.reading.record)
	switch {
	case err != nil:
		return nil, false, err
	case now == nil && r.cfg.Order == Undo:
		return nil, true, nil // another process has removed the last key, and then the records
	case r.cfg.Order == Undo && now.Phase == Undoing && !now.isReading(r.reading.record):
		return nil, true, nil // another process has found this reading done, and reads again
	case now == nil:
		return nil, false, r.reading.over(Record{}, false)
	case r.reading.isFollowedBy(*now):
		return nil, true, nil
	}
	if err := r.reading.over(*now, true); err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.parts, c.sent = parts, sent
	return slices.Clone(parts), false, nil
}

// take claims a part whose record is as given.
func (r *run) take(ctx context.Context, one progress) (*heldPart, error) {
	p := &heldPart{progress: one}
	p.owner = r.cfg.Sweep.Owner
	p.token++
	return p, r.saveProgress(ctx, p)
}

// isDead reports whether the holder of a part has not renewed it for a lease.
func (r *run) isDead(p progress) bool {
	if e, ok := r.store.(store.Exclusive); ok && !strings.HasPrefix(p.owner, e.Opening()+"/") {
		return true
	}
	return r.seen.unchanged(p, r.now()) >= r.cfg.Target.Lease
}

func (c *recordedParts) save(ctx context.Context, p *heldPart, release bool) error {
	if release {
		p.owner = ""
	}
	if release && !p.done {
		c.run.mu.Lock()
		c.failed[p.part] = true
		c.run.mu.Unlock()
	}
	err := c.run.saveProgress(ctx, p)
	c.learn(p.progress, err)
	return err
}

// saveProgress writes the record of a part.
func (r *run) saveProgress(ctx context.Context, p *heldPart) error {
	prev, sent := p.revision, r.now()
	p.revision = store.NewRevision(prev)
	err := saveRecord(ctx, r.store, p.encode(), prev)
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
func (r *run) keep(ctx context.Context, source partSource, p *heldPart) error {
	if r.now().Sub(p.sent) < r.cfg.Target.Lease/3 {
		return nil
	}
	return source.save(ctx, p, false)
}

// pause waits, and keeps the part meanwhile.
func (r *run) pause(ctx context.Context, source partSource, p *heldPart, d time.Duration) error {
	for end := r.now().Add(d); ; {
		if err := r.keep(ctx, source, p); err != nil {
			return err
		}
		left := end.Sub(r.now())
		if left <= 0 {
			return nil
		}
		if err := throttle.Sleep(ctx, min(left, r.cfg.Target.Lease/3)); err != nil {
			return err
		}
	}
}

// withPart reads a part that this process has claimed, and releases it if that fails.
func (r *run) withPart(ctx context.Context, source partSource, p *heldPart, read func() error) error {
	r.share.enter()
	defer r.share.leave()
	err := read()
	if err == nil || errors.Is(err, errLost) {
		return err
	}
	// The page in work was written or was not; the record says what is certain.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(r.cfg.Sweep.Grace, time.Second))
	defer cancel()
	if saveErr := source.save(ctx, p, true); saveErr != nil {
		r.log.WarnContext(ctx, "cannot release a part or the index; others take it over after one lease",
			"target", r.cfg.Target.Name, "part", p.part, "error", saveErr)
	}
	return err
}

// part reads a part to the end of its keys. A short page, or an empty one, does not end it.
func (r *run) part(ctx context.Context, source partSource, p *heldPart) error {
	var rows store.Rows
	q := r.reading.query(p.part, p.after)
	most := q.Limit
	for {
		if err := r.walk(ctx, source, p, &q, &rows); err != nil {
			return err
		}
		q.Limit = min(most, q.Limit+max(1, q.Limit/4))
		if err := r.page(ctx, source, p, q.Namespace, rows.List); err != nil {
			return err
		}
		if n := len(rows.List); n > 0 {
			p.after = rows.List[n-1].Key
			p.scanned += int64(n)
		}
		switch {
		case !rows.More:
			p.done = true
			return source.save(ctx, p, true)
		case rows.Next != nil:
			q.Next = rows.Next
		case len(rows.List) == 0:
			return fmt.Errorf("%w: part %d of target %s has more after an empty page, and nothing to go on from",
				store.ErrFailed, p.part, r.cfg.Target.Name)
		default:
			q.After, q.Next = p.after, nil
		}
		if err := r.keep(ctx, source, p); err != nil {
			return err
		}
	}
}

// walk reads one page. A page that is too large, or takes too long, is halved.
func (r *run) walk(ctx context.Context, source partSource, p *heldPart, q *store.WalkQuery, rows *store.Rows) error {
	began := r.now()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := r.adopter.Walk(ctx, *q, rows)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		smaller := q.Limit > 1 && (errors.Is(err, store.ErrTooLarge) || store.TookTooLong(err))
		if smaller {
			q.Limit /= 2
		}
		if !smaller && !store.Transient(err) || r.now().Sub(began) > patience {
			return err
		}
		if err := r.pause(ctx, source, p, jitter(ctx, wait)); err != nil {
			return err
		}
	}
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
