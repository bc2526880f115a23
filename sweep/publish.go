package sweep

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// What has been published of a pass so far.
type published struct {
	mu                                                               sync.Mutex
	scanned, deleted, conflicts, suspect, malformed, carried, strays int64
	operations                                                       store.Operations
	throttled                                                        map[throttle.Reason]time.Duration
}

// publish adds to the metrics what has happened since the last call.
func (p *pass) publish() {
	last, m, t := &p.published, p.Metrics, p.target.Name
	last.mu.Lock()
	defer last.mu.Unlock()
	grown := func(now int64, was *int64) int64 {
		n := now - *was
		*was = now
		return max(0, n)
	}
	m.Scanned(t, grown(p.scanned.Load(), &last.scanned))
	m.Deleted(t, grown(p.deleted.Load(), &last.deleted))
	m.Carried(t, grown(p.carried.Load(), &last.carried))
	m.Strays(t, grown(p.strays.Load(), &last.strays))
	m.Kept(t, "conflict", grown(p.conflicts.Load(), &last.conflicts))
	m.Kept(t, "suspect", grown(p.suspect.Load(), &last.suspect))
	m.Kept(t, "malformed", grown(p.malformed.Load(), &last.malformed))
	ops := p.meter.Operations()
	m.Operations(t, metrics.OpRead, grown(ops.Reads, &last.operations.Reads))
	m.Operations(t, metrics.OpWrite, grown(ops.Writes, &last.operations.Writes))
	m.Operations(t, metrics.OpDelete, grown(ops.Deletes, &last.operations.Deletes))
	p.mu.Lock()
	if last.throttled == nil {
		last.throttled = map[throttle.Reason]time.Duration{}
	}
	for why, d := range p.throttled {
		m.Throttled(t, string(why), d-last.throttled[why])
		last.throttled[why] = d
	}
	p.mu.Unlock()
	m.Rate(t, p.governor.rate())
	m.OldestDue(t, p.target.Watchdog.OldestDue())
	m.Stuck(t, len(p.target.Watchdog.Stuck(p.Now())))
}

// publishEnd publishes how the sweep ended.
func (p *pass) publishEnd(res TargetResult) {
	p.publish()
	m, t := p.Metrics, p.target.Name
	ended := p.Now()
	m.Swept(t, res.Outcome(), ended.Sub(p.began), ended)
	if p.record.Target == "" { // what was last known stands
		return
	}
	p.governor.mu.Lock()
	m.Paused(t, p.governor.reason() != "")
	p.governor.mu.Unlock()
	if res.Ranges == 0 { // it did not come as far
		return
	}
	m.Outside(t, res.Outside)
	m.EmptyIndex(t, res.EmptyIndex)
	newest := 0
	for _, g := range p.record.Generations {
		newest = max(newest, g.Number)
	}
	m.Generations(t, newest, len(p.record.Generations))
}

// restsAndGone tells the watchdog of the ranges that are left alone, because nothing
// in them is due, and of those that are no more. Another process may have done what
// this one has last seen there.
func (p *pass) restsAndGone() {
	there := map[string]bool{}
	for _, r := range p.all {
		there[p.id(r).Key()] = true
	}
	p.target.Watchdog.Only(there)
	for _, r := range p.ranges {
		delete(there, p.id(r).Key())
	}
	for name := range there {
		p.target.Watchdog.Saw(p.Now(), name, metrics.Look{})
	}
}

// rate returns what the claimed ranges may have now, added up.
func (g *governor) rate() (sum float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for pacer := range g.pacers {
		sum += pacer.Status().Rate
	}
	return sum
}

// saw tells the watchdog how the range stands.
func (w *worker) saw(oldest time.Time, disposed int) {
	if w.auditing {
		return
	}
	w.governor.mu.Lock()
	held := w.governor.reason() != ""
	w.governor.mu.Unlock()
	w.target.Watchdog.Saw(w.Now(), w.key, metrics.Look{OldestDue: oldest, Disposed: int64(disposed), Held: held || !w.Apply})
}

// measureDelays measures how long what went had been due, and tells the watchdog.
func (w *worker) measureDelays(deleted int) {
	now := w.clock.Now()
	var oldest time.Time
	w.delays = w.delays[:0]
	for i := range w.ops {
		if w.ops[i].To.Type != store.Missing {
			continue
		}
		expires, err := w.r.Expires(w.ops[i].Entry.Value)
		if err != nil {
			continue
		}
		due := expires.Add(w.target.Retention)
		switch {
		case w.ops[i].Outcome == store.Deleted && w.Apply:
			w.delays = append(w.delays, now.Sub(due))
		case w.ops[i].Outcome == store.Unknown || w.ops[i].Outcome == store.Changed || !w.Apply:
			if oldest.IsZero() || due.Before(oldest) {
				oldest = due
			}
		}
	}
	w.Metrics.Delay(w.target.Name, w.delays...)
	if deleted > 0 || !oldest.IsZero() {
		if oldest.IsZero() && len(w.ops) > 0 { // what comes next is no older than the last that went
			if expires, err := w.r.Expires(w.ops[len(w.ops)-1].Entry.Value); err == nil {
				oldest = expires.Add(w.target.Retention)
			}
		}
		w.saw(oldest, deleted)
	}
}

// lookOnly finds out what is due in a target that is not swept, by one short query
// for each range.
func (p *pass) lookOnly(ctx context.Context) {
	horizon := p.clock.Now().Add(-p.target.Retention)
	for _, r := range p.all {
		c := p.cursor(r)
		at, err := p.firstDue(ctx, r, c.Position, horizon)
		if err == nil {
			p.target.Watchdog.Saw(p.Now(), c.Key(), metrics.Look{OldestDue: at, Held: true})
		}
	}
}

// code names an error of the store in metrics.
func code(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{store.ErrPushback, "pushback"}, {store.ErrUnavailable, "unavailable"}, {store.ErrDeadline, "deadline"}, {context.DeadlineExceeded, "deadline"},
		{store.ErrContention, "contention"}, {store.ErrTooLarge, "too_large"}, {store.ErrDenied, "denied"}, {store.ErrNotFound, "not_found"},
		{store.ErrMissingIndex, "missing_index"}, {store.ErrInvalid, "invalid"}, {store.ErrConflict, "conflict"}, {store.ErrCorrupt, "corrupt"},
		{store.ErrLocked, "locked"}, {store.ErrFailed, "failed"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return "other"
}
