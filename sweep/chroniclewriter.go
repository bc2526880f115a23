package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// noteAgain is how soon a write that failed is tried again.
	noteAgain = 10 * time.Second
	// lastWrite bounds the writes at the end of a process that was asked to stop.
	lastWrite = 2 * time.Second
	// lastTries is how often they are tried.
	lastTries = 4
)

// open compares version and settings with those of the process before. It has a moment, before
// the work begins: the first process of all writes what the cursor records have counted so
// far, and no process that writes history may have deleted any of that.
func (h *chronicle) open(ctx context.Context) {
	if h == nil {
		return
	}
	h.opened, h.since = h.c.viewer.View(), h.c.clock.Now()
	within, cancel := context.WithTimeout(ctx, lastWrite)
	defer cancel()
	h.note(ctx, protect(func() error {
		h.observe(within)
		return nil
	}))
}

// run writes what is to be written, until ctx is done. A write under way then has a moment
// to end: one that is cut off has to be tried again.
func (h *chronicle) run(ctx context.Context) {
	last, cancel := graceful(ctx, lastWrite)
	defer cancel()
	refreshWith(ctx, h.wake, func(context.Context) time.Duration {
		h.flush(last)
		if h.failing() != nil {
			return noteAgain
		}
		return noteEvery
	})
}

// flush writes what is to be written. What fails is tried again with the next one. It never
// panics: a fault of this program in the history must not end a sweep.
func (h *chronicle) flush(ctx context.Context) {
	h.note(ctx, protect(func() error {
		h.flushOnce(ctx)
		return nil
	}))
}

func (h *chronicle) flushOnce(ctx context.Context) {
	h.observe(ctx)
	h.mu.Lock()
	s := &h.state
	pending, dead, buckets := s.pending, s.unmarked(), s.buckets
	s.pending, s.buckets = nil, nil
	now := h.c.cfg.Now()
	var run *history.Record
	if s.run != nil && (s.written.IsZero() || now.Sub(s.written) >= noteEvery && s.latest.differs(s.wrote)) {
		next := *s.run
		run, s.written, s.wrote = &next, now, s.latest
	}
	h.mu.Unlock()

	for i, r := range pending {
		if _, err := h.save(ctx, r); h.note(ctx, err) {
			h.mu.Lock()
			// It goes last: a record that the store refuses for good must not hold up the others.
			h.state.pending = append(append(slices.Clone(pending[i+1:]), h.state.pending...), r)
			h.mu.Unlock()
			break
		}
	}
	if run != nil {
		saved, err := h.save(ctx, *run)
		failed := h.note(ctx, err)
		h.mu.Lock()
		h.took(saved)
		if failed {
			s.wrote, s.written = totals{}, now.Add(noteAgain-noteEvery)
		}
		h.mu.Unlock()
	}
	for _, d := range dead {
		h.mark(ctx, d)
	}
	for _, bucket := range buckets { // what is not collected now is found the next time
		failed := h.try(ctx, func(ctx context.Context) error {
			_, err := history.Collect(ctx, h.c.keeper.Store, h.c.target.Name, bucket, h.c.clock.Now(), h.keep)
			return err
		})
		if failed {
			break
		}
	}
}

// try does something for so long at most that the end of a sweep can wait for it.
func (h *chronicle) try(ctx context.Context, do func(context.Context) error) (failed bool) {
	within, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	return h.note(ctx, do(within))
}

// took takes in the revision of a run that was saved, even if it has ended meanwhile.
func (h *chronicle) took(saved history.Record) {
	s := &h.state
	if s.run != nil && s.run.Key == saved.Key {
		s.run.Revision = saved.Revision
		return
	}
	for i := range s.pending {
		if s.pending[i].Key == saved.Key {
			s.pending[i].Revision = saved.Revision
		}
	}
}

// observe compares version and settings with those of the process before, once.
func (h *chronicle) observe(ctx context.Context) {
	h.mu.Lock()
	due := !h.state.observed && h.opened != nil
	h.mu.Unlock()
	if !due {
		return
	}
	within, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	list, err := history.Observe(within, h.c.keeper.Store, h.c.target.Name, h.by, h.settings,
		func(st *history.State) (err error) {
			st.Base = deletedByCursors(h.opened.Cursors, -1)
			st.Budget, err = h.c.budgetedSoFar(within)
			return err
		}, h.c.clock.Now())
	failed := h.note(ctx, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.observed = !failed || !store.Transient(err) && ctx.Err() == nil
	for _, r := range list {
		h.add(r)
	}
}

// save writes one record. If somebody has changed it, as a process that took this one for
// dead, or if the outcome of the last write is not known, it goes on from the present one.
func (h *chronicle) save(ctx context.Context, r history.Record) (saved history.Record, err error) {
	if r.Kind == history.KindRun {
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.state.failure.keep(h.c.cfg.Now(), err)
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	saved, err = history.Save(ctx, h.c.keeper.Store, r.KeptFor(h.keep))
	if !errors.Is(err, store.ErrConflict) {
		return saved, err
	}
	is, _, err := history.Load(ctx, h.c.keeper.Store, r.Target, r.Key)
	if err != nil {
		return r, err
	}
	r.Revision = is.Revision
	return history.Save(ctx, h.c.keeper.Store, r.KeptFor(h.keep))
}

// failing returns the error of the last write of a run, if it failed.
func (h *chronicle) failing() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.failing()
}

// lasting returns that error if the store refuses what this process has done, or did not take it
// for so long that nothing more may be deleted: nobody could say afterwards who it was.
func (h *chronicle) lasting() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.state.failing()
	if store.Transient(err) && h.c.cfg.Now().Sub(h.state.failure.since) <= freshFor {
		return nil
	}
	return err
}

// failing returns the error of the last write of a run, unless nothing is left to be tried again.
func (s *chronicleState) failing() error {
	if s.run == nil && len(s.pending) == 0 {
		return nil
	}
	return s.failure.err
}

// note tells the journal of a write that failed, and counts it. It reports whether it did.
func (h *chronicle) note(ctx context.Context, err error) (failed bool) {
	if err == nil {
		return false
	}
	h.mu.Lock()
	h.state.latest.missed++
	h.mu.Unlock()
	if ctx.Err() == nil {
		h.c.log.failed("write the history", "", err)
	}
	return true
}

// flushAll writes all that is left to be written, with a few tries.
func (h *chronicle) flushAll(ctx context.Context) {
	for range lastTries {
		h.flush(ctx)
		h.mu.Lock()
		left := len(h.state.pending) + len(h.state.unmarked())
		h.mu.Unlock()
		if left == 0 || throttle.Sleep(ctx, lastWrite/lastTries) != nil {
			return
		}
	}
}

// finishChanges writes what a command has seen to happen that does no work of its own.
func (h *chronicle) finishChanges(ctx context.Context) {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	h.flushAll(ctx)
}

// RecordHistory writes one record about a change that this process has made to a target. It
// does nothing for a target without history.
func RecordHistory(ctx context.Context, cfg Config, t Target, at time.Time, kind history.Kind, c history.Change,
) error {
	cfg.Apply = true
	cfg = cfg.withDefaults()
	h := newChronicle(newCollector(&cfg, &t))
	if h == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout) // an operator waits
	defer cancel()
	record := history.NewChange(t.Name, kind, h.by, at, c)
	err := store.Retry(ctx, recordTimeout, func() error { // a second write finds the first one
		_, err := h.save(ctx, record)
		return err
	})
	if err != nil {
		return fmt.Errorf("the change was made, but is not in the history: %w", err)
	}
	return nil
}
