package sweep

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/throttle"
)

const (
	// recordTimeout bounds one read of records, and recordPatience all tries
	// together: an address where nobody answers is an error within 30 s.
	recordTimeout  = 10 * time.Second
	recordPatience = 20 * time.Second
	// recordEvery is how often the target record is read: what an operator
	// changes takes effect within that time.
	recordEvery = 5 * time.Second
	// freshFor is how old the target record may be for a write to go by it:
	// three reads may fail, or the machine may have slept.
	freshFor = 3 * recordEvery
	// cursorsEvery is how often all cursors are read while nobody asks for it.
	cursorsEvery = 5 * time.Minute
	// readAtMost is how often anything is read at most, whoever asks, and
	// namespacesEvery how often the names of all namespaces are.
	readAtMost      = 200 * time.Millisecond
	namespacesEvery = 10 * time.Second
	// readAgain is how soon a read of records that failed is repeated.
	readAgain = time.Second
)

// A viewer reads the records of one target. It alone replaces the [plan.View]
// that everybody else goes by: with what its refresher reads, and with the target
// record as a chore has just written it.
type viewer struct {
	store  store.Store
	target *Target
	rules  plan.Rules
	clock  *clock
	log    *slog.Logger
	apply  bool
	shared func() time.Duration // how old the leases may be that a share of a total rests on; 0 if there is none
	notify func()               // is told of what the refresher has read; what a chore replaces is seen as it ends

	view atomic.Pointer[plan.View]
	wake chan struct{} // ends a wait of the refresher

	mu    sync.Mutex
	state refreshState
}

// A refreshState is what the refresher has yet to do, and what went wrong.
type refreshState struct {
	cursorsWanted, recordWanted bool

	namespacesAt time.Time       // when they were read last
	imagined     []cursor.Cursor // of ranges that a dry run has found
	failing      time.Time       // since when the target record cannot be read; zero if it can
	err          error
}

// View returns what was read last.
func (v *viewer) View() *plan.View { return v.view.Load() }

// open reads everything once. It creates the target record if the target is new,
// and brings it up to date with configuration and time.
func (v *viewer) open(ctx context.Context) error {
	v.wake = make(chan struct{}, 1)
	next := &plan.View{}
	if err := v.loadCursors(ctx, next, recordPatience); err != nil {
		return err
	}
	if err := v.ensureRecord(ctx, next, false); err != nil {
		return err
	}
	if err := v.loadNamespaces(ctx, next); err != nil {
		return err
	}
	v.view.Store(next)
	return nil
}

// replace puts what was read into a new view: the target record and the cursors
// each only if they are newer than what is there. The answer to an older read must
// not undo what a chore has written meanwhile.
func (v *viewer) replace(read *plan.View) {
	v.mu.Lock()
	next := *v.View()
	older := store.RevisionCount(read.Record.Revision) < store.RevisionCount(next.Record.Revision)
	if !older && !read.RecordSent.Before(next.RecordSent) {
		next.Record, next.RecordSent = read.Record, read.RecordSent
	}
	if !read.CursorsSent.Before(next.CursorsSent) {
		next.Cursors, next.CursorsSent, next.CursorsSeen = read.Cursors, read.CursorsSent, read.CursorsSeen
	}
	next.Namespaces = read.Namespaces
	v.view.Store(&next)
	v.mu.Unlock()
}

// wantCursors asks for the cursors to be read soon.
func (v *viewer) wantCursors() { v.want(func(s *refreshState) { s.cursorsWanted = true }) }

// wantRecord asks for the target record to be read soon.
func (v *viewer) wantRecord() { v.want(func(s *refreshState) { s.recordWanted = true }) }

func (v *viewer) want(what func(*refreshState)) {
	v.mu.Lock()
	what(&v.state)
	v.mu.Unlock()
	select {
	case v.wake <- struct{}{}:
	default: // it is awake already
	}
}

// failing returns why the target record cannot be read; nil if no read has failed.
func (v *viewer) failing() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.err
}

// run refreshes the view until ctx is done.
func (v *viewer) run(ctx context.Context) {
	for {
		select { // what was wanted until now is read now: it must not wake it again
		case <-v.wake:
		default:
		}
		wait := v.refresh(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-v.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// refresh reads what is due and returns when the next read is.
func (v *viewer) refresh(ctx context.Context) (wait time.Duration) {
	now, old := v.clock.now(), v.View()
	next := *old
	recordDue, cursorsDue := v.recordDue(now, old), v.cursorsDue(now, old)
	if recordDue > 0 && cursorsDue > 0 {
		return min(recordDue, cursorsDue)
	}
	var err error
	if recordDue <= 0 {
		err = v.loadRecord(ctx, &next)
	}
	if err == nil && cursorsDue <= 0 {
		err = v.refreshCursors(ctx, &next)
	}
	if err == nil && now.Sub(v.state.namespacesAt) >= namespacesEvery && v.listsNamespaces() {
		err = v.loadNamespaces(ctx, &next)
	}
	if ctx.Err() != nil {
		return 0
	}
	v.note(ctx, now, err)
	if err != nil {
		return readAgain
	}
	v.replace(&next)
	v.notify()
	return 0
}

// refreshCursors reads the cursors beside a target record that may have been read
// before: one that is older than they are is read once more.
func (v *viewer) refreshCursors(ctx context.Context, next *plan.View) error {
	if err := v.loadCursors(ctx, next, recordTimeout); err != nil {
		return err
	}
	if plan.CheckLineage(next.Record, false, v.target.Name, next.Cursors) == nil {
		return nil
	}
	if err := v.loadRecord(ctx, next); err != nil {
		return err
	}
	return plan.CheckLineage(next.Record, false, v.target.Name, next.Cursors)
}

// recordDue returns when the target record is to be read.
func (v *viewer) recordDue(now time.Time, old *plan.View) time.Duration {
	staleness, _ := old.Record.Bounds()
	v.mu.Lock()
	defer v.mu.Unlock()
	due := min(recordEvery, staleness/2)
	if v.state.recordWanted {
		due = min(due, readAtMost)
	}
	return due - age(now, old.RecordSent)
}

// cursorsDue returns when the cursors are to be read: at once if somebody asks,
// often enough for a share of a total, else every few minutes.
func (v *viewer) cursorsDue(now time.Time, old *plan.View) time.Duration {
	age := now.Sub(old.CursorsSent)
	v.mu.Lock()
	wanted := v.state.cursorsWanted
	v.mu.Unlock()
	due := cursorsEvery - age
	if every := v.shared(); every > 0 {
		due = min(due, every-age)
	}
	if wanted {
		due = min(due, readAtMost-age)
	}
	return due
}

// note keeps what went wrong, and says so when it begins and when it is over.
func (v *viewer) note(ctx context.Context, now time.Time, err error) {
	v.mu.Lock()
	began, was := v.state.failing, v.state.err
	switch {
	case err == nil:
		v.state.failing, v.state.err = time.Time{}, nil
	case began.IsZero():
		v.state.failing, v.state.err = now, err
	default:
		v.state.err = err
	}
	v.mu.Unlock()
	switch {
	case err != nil && was == nil:
		v.log.WarnContext(ctx, "cannot read the records: deletes are suspended once the target record is older than 15s",
			"error", err)
	case err == nil && was != nil:
		v.log.InfoContext(ctx, "the records can be read again", "seconds", now.Sub(began).Seconds())
	}
}

// loadRecord reads the target record once.
func (v *viewer) loadRecord(ctx context.Context, next *plan.View) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	v.mu.Lock()
	v.state.recordWanted = false
	v.mu.Unlock()
	sent := v.clock.now()
	rec, at, err := generation.Load(ctx, v.store, v.target.Name)
	if errors.Is(err, generation.ErrMissing) && !v.apply {
		rec, err = next.Record, nil // of a target that a dry run has met first
	}
	if err != nil {
		return err
	}
	if err := v.clock.observe(at, sent); err != nil {
		return err
	}
	if !v.apply {
		rec, _ = v.desired(rec, false, false) // as it would be
	}
	next.Record, next.RecordSent = rec, sent
	return nil
}

// loadCursors reads all cursors of the target, and the store's time with them.
func (v *viewer) loadCursors(ctx context.Context, next *plan.View, patience time.Duration) error {
	v.mu.Lock()
	v.state.cursorsWanted = false
	v.mu.Unlock()
	var table cursor.Table
	var sent, at time.Time
	err := store.Retry(ctx, patience, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, recordTimeout)
		defer cancel()
		sent = v.clock.now()
		table, at, err = cursor.Load(ctx, v.store, v.target.Name, next.Cursors, v.clock.now)
		return err
	})
	if err != nil {
		return err
	}
	if err := v.clock.observe(at, sent); err != nil {
		return err
	}
	v.mu.Lock()
	for _, c := range v.state.imagined {
		if _, ok := table[c.ID]; !ok {
			table[c.ID] = c
		}
	}
	v.mu.Unlock()
	next.Cursors, next.CursorsSent, next.CursorsSeen = table, sent, v.clock.now()
	return nil
}

// imagine adds a range that a dry run has found, and that has no record.
func (v *viewer) imagine(c cursor.Cursor) {
	v.mu.Lock()
	v.state.imagined = append(v.state.imagined, c)
	next := *v.View()
	next.Cursors = maps.Clone(next.Cursors)
	next.Cursors[c.ID] = c
	v.view.Store(&next)
	v.mu.Unlock()
}

func (v *viewer) listsNamespaces() bool { return slices.Contains(v.target.Namespaces, "*") }

// loadNamespaces lists the namespaces that are swept.
func (v *viewer) loadNamespaces(ctx context.Context, next *plan.View) error {
	next.Namespaces = v.target.Namespaces
	if len(next.Namespaces) == 0 {
		next.Namespaces = []string{""}
	}
	if !v.listsNamespaces() {
		return nil
	}
	n, ok := v.store.(store.Namespacer)
	if !ok {
		next.Namespaces = []string{""}
		return nil
	}
	return patiently(ctx, func(ctx context.Context) (err error) {
		v.state.namespacesAt = v.clock.now()
		next.Namespaces, err = n.Namespaces(ctx)
		return err
	})
}

// patiently repeats a call that reads records, or a few entries.
func patiently(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, recordPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, recordTimeout)
		defer cancel()
		return call(ctx)
	})
}

// ensureRecord reads the target record, creates it if the target is new, and
// saves it if configuration or time want it otherwise. The cursors of next were
// read before, so a record that is older than one of them is a copy that somebody
// put back. SkipLifecycle leaves the life of the generations alone.
func (v *viewer) ensureRecord(ctx context.Context, next *plan.View, skipLifecycle bool) error {
	for began := v.clock.now(); ; {
		var rec generation.Record
		var sent, at time.Time
		err := patiently(ctx, func(ctx context.Context) (err error) {
			sent = v.clock.now()
			rec, at, err = generation.Load(ctx, v.store, v.target.Name)
			return err
		})
		missing := errors.Is(err, generation.ErrMissing)
		if err != nil && !missing {
			return err
		}
		if !at.IsZero() {
			if err := v.clock.observe(at, sent); err != nil {
				return err
			}
		}
		if err := plan.CheckLineage(rec, missing, v.target.Name, next.Cursors); err != nil {
			return err
		}
		want, steps := v.desired(rec, missing, skipLifecycle)
		next.Record, next.RecordSent = rec, sent
		if !missing && rec.EqualContent(want) {
			return nil
		}
		if !v.apply {
			next.Record = want // as it would be
			return nil
		}
		if err := v.clock.check(); err != nil { // marks by a clock that is behind would count too early
			return err
		}
		sent = v.clock.now()
		saved, err := generation.Save(ctx, v.store, want)
		if errors.Is(err, store.ErrConflict) {
			continue // another worker was first: see what it wrote
		}
		if store.Transient(err) && v.clock.now().Sub(began) < recordPatience && throttle.Sleep(ctx, time.Second) == nil {
			continue // with the time as it is then: see what came of it
		}
		if err == nil {
			next.Record, next.RecordSent = saved, sent
			v.tell(ctx, rec, saved, steps)
		}
		return err
	}
}

func (v *viewer) desired(rec generation.Record, missing, skipLifecycle bool) (generation.Record, []generation.Step) {
	now := v.clock.Now()
	switch {
	case missing:
		return plan.First(v.rules, now), nil
	case skipLifecycle:
		return plan.Configured(v.rules, rec, now), nil
	}
	return plan.Desired(v.rules, rec, nil, now)
}

// saveRecord writes the target record by compare-and-set and goes by it from then
// on. If somebody else was first it fails with store.ErrConflict, and the record
// is read again soon.
func (v *viewer) saveRecord(ctx context.Context, rec generation.Record) error {
	if err := v.clock.check(); err != nil {
		return err
	}
	sent := v.clock.now()
	saved, err := generation.Save(ctx, v.store, rec)
	if err != nil {
		return err
	}
	next := *v.View()
	next.Record, next.RecordSent = saved, sent
	v.replace(&next)
	return nil
}

// reload reads cursors and target record at once, for a chore that must know them
// as they are.
func (v *viewer) reload(ctx context.Context) error {
	next := *v.View()
	if err := v.loadCursors(ctx, &next, recordPatience); err != nil {
		return err
	}
	if err := patiently(ctx, func(ctx context.Context) error { return v.loadRecord(ctx, &next) }); err != nil {
		return err
	}
	if err := plan.CheckLineage(next.Record, false, v.target.Name, next.Cursors); err != nil {
		return err
	}
	v.replace(&next)
	return nil
}

// tell says what became of the target record.
func (v *viewer) tell(ctx context.Context, was, is generation.Record, steps []generation.Step) {
	for _, s := range steps {
		v.log.InfoContext(ctx, "generation is "+string(s.State), "generation", s.Generation)
	}
	if n := len(is.Generations); n > 0 && was.Target != "" && (was.Staleness != is.Staleness || was.Slack != is.Slack) {
		v.log.InfoContext(ctx, "the bounds for writers changed; for generations that are open already the larger ones count",
			"staleness", is.Staleness, "slack", is.Slack, "before_staleness", was.Staleness, "before_slack", was.Slack)
	}
	if n := len(is.Generations); n > 0 && v.target.Generations {
		v.compare(is.Generations[n-1])
	}
}

// compare warns if the newest generation is not as the configuration would have it.
func (v *viewer) compare(newest generation.Generation) {
	if newest.Shards != v.target.Shards {
		v.log.Warn("the configured shards are for the next generation", "shards", v.target.Shards,
			"generation", newest.Number, "generation_shards", newest.Shards)
	}
	if newest.Ramp != v.target.Policy.Ramp && newest.Number != generation.First {
		v.log.Warn("the configured ramp is for the next generation", "ramp", v.target.Policy.Ramp,
			"generation", newest.Number, "generation_ramp", newest.Ramp)
	}
}
