package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

var errLost = fmt.Errorf("%w: it took this one over", ErrBusy)

// askEvery is how often a restore looks whether another one is alive.
const askEvery = time.Second

// A hold is the lease on the record of a target's restore. A nil hold is that of a dry run, and holds nothing.
type hold struct {
	job    *job
	record record    // as it stands in the store
	before record    // that it found
	order  record    // the restore that is carried out; from when it begins on, that is the record
	sent   time.Time // when the record was last written, on this process's clock
}

// claim takes the record, and begins a restore or goes on with the one of the same order. If another process has
// it, it waits to see whether that is alive: a record that stays the same for one lease is free.
func claim(ctx context.Context, j *job) (*hold, error) {
	var seen string
	var since time.Time
	for {
		r, now, err := loadRecord(ctx, j.store, j.Target.Name)
		if err != nil {
			return nil, err
		}
		switch {
		case r.owner == "" || isVoid(j.store, r.owner) || r.revision == seen && j.now().Sub(since) >= j.Target.Lease:
			h, err := take(ctx, j, r, now)
			if !errors.Is(err, store.ErrConflict) {
				return h, err
			}
			return nil, busy(j, r)
		case seen == "":
			seen, since = r.revision, j.now()
			j.log.InfoContext(ctx, "looking whether another restore is alive", "target", j.Target.Name, "owner", r.owner)
		case r.revision != seen:
			return nil, busy(j, r)
		}
		if err := throttle.Sleep(ctx, min(askEvery, j.Target.Lease/4)); err != nil {
			return nil, err
		}
	}
}

func busy(j *job, r record) error {
	err := fmt.Errorf("target %s: %w", j.Target.Name, ErrBusy)
	if r.owner != "" {
		err = fmt.Errorf("%w: that of %s since %s, process %s", err, r.actor, r.began.Format(time.RFC3339), r.owner)
	}
	return err
}

// isVoid reports whether the lease of an owner ended with its opening of an exclusive store.
func isVoid(s store.Store, owner string) bool {
	e, ok := s.(store.Exclusive)
	return ok && !strings.HasPrefix(owner, e.Opening()+"/")
}

func take(ctx context.Context, j *job, r record, now time.Time) (*hold, error) {
	if err := r.blocks(j); err != nil {
		return nil, err
	}
	h := &hold{job: j, before: r, order: r.next(j, now)}
	h.order.actor, h.order.reason = j.Target.History.Actor, j.Reason
	if h.record = h.order; r.isGivenUp(j) {
		h.record = r // if this process dies while it plans, nothing is lost of that one
	}
	h.record.owner = j.Sweep.Owner
	h.record.token++
	return h, h.save(ctx)
}

// begin notes that the restore has a plan, made of so many lines, and may insert something from now on.
func (h *hold) begin(ctx context.Context, fingerprint string, lines int64) error {
	if h.before.isGivenUp(h.job) {
		h.job.log.WarnContext(ctx, "an earlier restore that was not finished is given up", "target", h.job.Target.Name,
			"order", h.before.order, "began", h.before.began)
	}
	next := h.order
	next.owner, next.token, next.revision = h.record.owner, h.record.token, h.record.revision
	next.plan, next.lines = fingerprint, max(next.lines, lines)
	h.record = next
	return h.renew(ctx)
}

// save writes the record, which renews the lease.
func (h *hold) save(ctx context.Context) error {
	sent := h.job.now()
	if err := h.record.save(ctx, h.job.store); err != nil {
		return err
	}
	h.sent = sent
	return nil
}

// keep renews the lease if a third of it has passed.
func (h *hold) keep(ctx context.Context) error {
	if h == nil {
		return nil
	}
	return h.renewAfter(ctx, h.job.Target.Lease/3)
}

func (h *hold) renewAfter(ctx context.Context, age time.Duration) error {
	if storeclock.Age(h.job.now(), h.sent) < age {
		return nil
	}
	return h.renew(ctx)
}

func (h *hold) renew(ctx context.Context) error {
	err := h.save(ctx)
	if errors.Is(err, store.ErrConflict) {
		return errLost
	}
	return err
}

// reach notes how far the restore has come.
func (h *hold) reach(ctx context.Context, to place) error {
	h.record.place = to
	return h.renew(ctx)
}

// pause waits, and keeps the lease meanwhile.
func (h *hold) pause(ctx context.Context, d time.Duration) error {
	if h == nil {
		return throttle.Sleep(ctx, d)
	}
	for end := h.job.now().Add(d); ; {
		if err := h.keep(ctx); err != nil {
			return err
		}
		left := end.Sub(h.job.now())
		if left <= 0 {
			return nil
		}
		if err := throttle.Sleep(ctx, min(left, h.job.Target.Lease/3)); err != nil {
			return err
		}
	}
}

// errNotNoted is a failure even if the restore was stopped: the same command would insert again what goes meanwhile.
var errNotNoted = errors.New("the restore is done, and its record does not say so: run the same command again")

// release ends the lease. A restore that has changed nothing leaves the record as it was. It is an error if the record
// does not say that a restore is done.
func (h *hold) release(ctx context.Context, began, done bool) error {
	bound := h.job.grace()
	if done {
		bound = patience
	}
	ctx, cancel := h.job.finishing(ctx, bound)
	defer cancel()
	if !began && !done {
		was := h.before
		was.revision, was.token, was.owner = h.record.revision, h.record.token, ""
		if h.before.revision == "" {
			was.order, was.done, was.began = h.record.order, true, h.record.began
		}
		h.record = was
	}
	h.record.owner, h.record.done = "", h.record.done || done
	switch err := h.save(ctx); {
	case err == nil, errors.Is(err, store.ErrConflict):
	case done:
		return fmt.Errorf("%w: %w", errNotNoted, err)
	default:
		h.job.log.WarnContext(ctx, "cannot release the restore; the next one waits for one lease", "target",
			h.job.Target.Name, "error", err)
	}
	return nil
}
