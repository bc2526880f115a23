package chronicle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/background"
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
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
	// toleratedFor is how long the store may fail to take a run before nothing more is deleted.
	toleratedFor = 15 * time.Second
)

// Open compares version and settings with those of the process before. It has a moment, before
// the work begins: the first process of all writes what the cursor records have counted so
// far, and no process that writes history may have deleted any of that.
func (h *Chronicle) Open(ctx context.Context, cursors cursor.Table) {
	if h == nil {
		return
	}
	h.cursors, h.opened, h.since = cursors, true, h.cfg.StoreNow()
	within, cancel := context.WithTimeout(ctx, lastWrite)
	defer cancel()
	h.note(ctx, background.Protect(func() error {
		h.observe(within)
		return nil
	}))
}

// Run writes what is to be written, until ctx is done. A write under way then has a moment
// to end: one that is cut off has to be tried again.
func (h *Chronicle) Run(ctx context.Context) {
	last, cancel := background.Graceful(ctx, lastWrite, nil)
	defer cancel()
	background.Repeat(ctx, h.wake, func(context.Context) time.Duration {
		h.flush(last)
		if h.Failing() != nil {
			return noteAgain
		}
		return noteEvery
	})
}

// flush writes what is to be written. What fails is tried again with the next one. It never
// panics: a fault of this program in the history must not end a sweep.
func (h *Chronicle) flush(ctx context.Context) {
	h.note(ctx, background.Protect(func() error {
		h.flushOnce(ctx)
		return nil
	}))
}

func (h *Chronicle) flushOnce(ctx context.Context) {
	h.observe(ctx)
	h.mu.Lock()
	s := &h.state
	pending, dead, buckets := s.pending, s.unmarked(), s.buckets
	s.pending, s.buckets = nil, nil
	now := h.cfg.Now()
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
			_, err := history.Collect(ctx, h.cfg.Store, h.cfg.Target, bucket, h.cfg.StoreNow(), h.cfg.Keep)
			return err
		})
		if failed {
			break
		}
	}
}

// try does something for so long at most that the end of a sweep can wait for it.
func (h *Chronicle) try(ctx context.Context, do func(context.Context) error) (failed bool) {
	within, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return h.note(ctx, do(within))
}

// took takes in the revision of a run that was saved, even if it has ended meanwhile.
func (h *Chronicle) took(saved history.Record) {
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
func (h *Chronicle) observe(ctx context.Context) {
	h.mu.Lock()
	due := !h.state.observed && h.opened
	h.mu.Unlock()
	if !due {
		return
	}
	within, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	list, err := history.Observe(within, h.cfg.Store, h.cfg.Target, h.cfg.By, h.cfg.Settings,
		func(st *history.State) (err error) {
			st.Base = deletedByCursors(h.cursors, -1)
			st.Budget, err = h.cfg.Budgeted(within)
			return err
		}, h.cfg.StoreNow())
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
func (h *Chronicle) save(ctx context.Context, r history.Record) (saved history.Record, err error) {
	if r.Kind == history.KindRun {
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.state.keepFault(h.cfg.Now(), err)
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	saved, err = history.Save(ctx, h.cfg.Store, r.KeptFor(h.cfg.Keep))
	if !errors.Is(err, store.ErrConflict) {
		return saved, err
	}
	is, _, err := history.Load(ctx, h.cfg.Store, r.Target, r.Key)
	if err != nil {
		return r, err
	}
	r.Revision = is.Revision
	return history.Save(ctx, h.cfg.Store, r.KeptFor(h.cfg.Keep))
}

// Failing returns the error of the last write of a run, if it failed.
func (h *Chronicle) Failing() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.failing()
}

// Lasting returns that error if the store refuses what this process has done, or did not take it
// for so long that nothing more may be deleted: nobody could say afterwards who it was.
func (h *Chronicle) Lasting() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.state.failing()
	if store.Transient(err) && h.cfg.Now().Sub(h.state.faulty) <= toleratedFor {
		return nil
	}
	return err
}

// failing returns the error of the last write of a run, unless nothing is left to be tried again.
func (s *state) failing() error {
	if s.run == nil && len(s.pending) == 0 {
		return nil
	}
	return s.fault
}

// keepFault keeps what came of a write of a run.
func (s *state) keepFault(now time.Time, err error) {
	if err != nil && s.fault == nil {
		s.faulty = now
	}
	s.fault = err
}

// note tells the journal of a write that failed, and counts it. It reports whether it did.
func (h *Chronicle) note(ctx context.Context, err error) (failed bool) {
	if err == nil {
		return false
	}
	h.mu.Lock()
	h.state.latest.missed++
	h.mu.Unlock()
	if ctx.Err() == nil {
		h.cfg.Failed("write the history", err)
	}
	return true
}

// flushAll writes all that is left to be written, with a few tries.
func (h *Chronicle) flushAll(ctx context.Context) {
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

// FinishChanges writes what a command has seen to happen that does no work of its own.
func (h *Chronicle) FinishChanges(ctx context.Context) {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	h.flushAll(ctx)
}

// Record writes one record about a change that this process has made at an instant, in the
// store's time. It does nothing in a nil Chronicle.
func (h *Chronicle) Record(ctx context.Context, at time.Time, kind history.Kind, c history.Change) error {
	if h == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout) // an operator waits
	defer cancel()
	record := history.NewChange(h.cfg.Target, kind, h.cfg.By, at, c)
	return store.Retry(ctx, writeTimeout, func() error { // a second write finds the first one
		_, err := h.save(ctx, record)
		return err
	})
}
