package adopt

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/engine/storeclock"
	"github.com/reaper-ttl/reaper/internal/switches"
	"github.com/reaper-ttl/reaper/store"
)

// A permit says when this process may write, and to how many entities.
type permit struct {
	job     *job
	view    *targetView
	reading *reading
	share   *share
}

// allowed waits until there are tokens, and returns how many entities may be written, at
// most so many.
func (m *permit) allowed(ctx context.Context, p *heldPart, most int) (int, error) {
	for {
		wait, err := m.share.wait(ctx)
		if err != nil {
			return 0, err
		}
		var n int
		if wait == 0 {
			n, wait, _ = m.share.pacer.Ready(min(most, store.MaxPage))
		}
		if pressed, ok := m.job.store.(store.Pressured); wait == 0 && ok && pressed.Pressed() {
			wait = firstWait // before it takes tokens: they would be lost
		}
		if wait == 0 {
			wait, _ = m.share.pacer.Take(n)
		}
		if wait == 0 {
			return n, nil
		}
		if err := p.pause(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// mostRenewals is how often a batch looks whether it may be written, and has to renew the lease then.
const mostRenewals = 10

// check makes sure, as late as it can, that a write is still allowed: by the phase, pause
// and gate as they were a few seconds ago at most, and by the lease. It waits while the
// target is held, for at most one lease.
func (m *permit) check(ctx context.Context, p *heldPart) error {
	old, renewals := m.job.cfg.Target.Lease/3, 0
	for since := m.job.now(); ; {
		if err := m.view.Fresh(ctx); err != nil {
			return err
		}
		rec, exists := m.view.adoption()
		if exists && m.reading.isFollowedBy(rec) {
			return errLost // to a worker that has read the part to its end
		}
		if err := m.reading.over(rec, exists); err != nil {
			return err
		}
		why := m.view.Held()
		m.view.Note(why)
		if why == "" {
			kept := m.job.now()
			if err := p.renewAfter(ctx, old); err != nil || storeclock.Age(m.job.now(), kept) < time.Second {
				return err
			}
			if renewals++; renewals == mostRenewals {
				return fmt.Errorf("%w: to read the records and to renew the lease takes more than two thirds of it, %v",
					store.ErrDeadline, m.job.cfg.Target.Lease)
			}
			old = 2 * m.job.cfg.Target.Lease / 3 // later, or a store that takes seconds for each call is asked again and again
			continue                             // it may have taken a minute
		}
		if m.job.now().Sub(since) > m.job.cfg.Target.Lease {
			return fmt.Errorf("target %s: %w for longer than one lease: %s", m.job.cfg.Target.Name, switches.ErrHeld, why)
		}
		if err := p.pause(ctx, time.Second); err != nil {
			return err
		}
	}
}
