package view

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/internal/engine/journal"
	"github.com/reaper-ttl/reaper/internal/engine/plan"
)

// ReadAgain is how soon a read of records that failed is repeated.
const ReadAgain = time.Second

// A Viewer keeps the [plan.View] of one target up to date: it refreshes the records while Run
// runs, and chores read and write single ones through it.
type Viewer struct {
	*source
	*namespaces
	*current
	*wanted
	*targetRecord
	*cursorRecords
	changeLog
	Notify func() // called when the refresher has replaced the view; what a chore replaces is seen as it ends

	failMu                       sync.Mutex
	recordFailure, cursorFailure journal.Failure
}

// New returns a viewer that has read nothing yet.
func New(cfg Config) *Viewer {
	v := &Viewer{source: &source{cfg}, current: &current{}, wanted: newWanted(),
		recordFailure: journal.Failure{Task: "read the target record"},
		cursorFailure: journal.Failure{Task: "read cursor records"}}
	v.namespaces = &namespaces{source: v.source}
	v.changeLog = changeLog{log: cfg.Log, rules: &v.source.Rules, apply: cfg.Apply}
	v.targetRecord = &targetRecord{v.source, v.namespaces, v.current, v.wanted, v.changeLog}
	v.cursorRecords = &cursorRecords{v.source, v.current, v.wanted, v.targetRecord}
	return v
}

// Open reads everything once. It creates the target record if the target is new,
// and brings it up to date with configuration and time.
func (v *Viewer) Open(ctx context.Context) error {
	next := &plan.View{}
	if err := v.LoadCursors(ctx, next); err != nil {
		return err
	}
	if err := v.EnsureRecord(ctx, next, false); err != nil {
		return err
	}
	if err := v.LoadNamespaces(ctx, next); err != nil {
		return err
	}
	v.Use(next)
	return nil
}

// Failing returns why the target record cannot be read; nil if the last read did not fail.
func (v *Viewer) Failing() error {
	v.failMu.Lock()
	defer v.failMu.Unlock()
	return v.recordFailure.Err
}

// note keeps the outcome of a read that began at an instant.
func (v *Viewer) note(f *journal.Failure, now time.Time, err error) {
	v.failMu.Lock()
	defer v.failMu.Unlock()
	f.Note(v.Log, now, err)
}

// Run refreshes the view until ctx is done: the target record and the cursors apart,
// since many pages of cursors may take longer than a target record is good for.
func (v *Viewer) Run(ctx context.Context) {
	var cursors sync.WaitGroup
	cursors.Go(func() { background.Repeat(ctx, v.wakeCursors, v.refreshCursors) })
	background.Repeat(ctx, v.wakeRecord, v.refreshRecord)
	cursors.Wait()
}

// refreshRecord reads the target record and the names of the namespaces if that is due, and
// returns how long until it is due again.
func (v *Viewer) refreshRecord(ctx context.Context) (wait time.Duration) {
	now, old := v.Clock.Local(), v.View()
	if wait := v.recordDue(now, old); wait > 0 {
		return wait
	}
	next := *old
	err := v.targetRecord.load(ctx, &next)
	if errors.Is(err, generation.ErrMissing) || err == nil && plan.ListsNone(v.Rules, next.Record) { // somebody removed it
		err = v.recreateRecord(ctx, &next)
	}
	if err == nil {
		err = v.checkAge(&next, v.Target.Name)
	}
	if err == nil && v.areDue(now) {
		err = v.LoadNamespaces(ctx, &next)
	}
	if ctx.Err() != nil {
		return 0
	}
	v.note(&v.recordFailure, now, err)
	if err != nil {
		return ReadAgain
	}
	v.takeRefreshed(&next)
	v.Notify()
	return 0
}

// recreateRecord writes a target record to replace one that was removed, perhaps by way of one that lists none
// of the generations in use.
func (v *Viewer) recreateRecord(ctx context.Context, next *plan.View) error {
	if err := v.LoadCursors(ctx, next); err != nil { // others may have opened generations
		return err
	}
	return v.EnsureRecord(ctx, next, false)
}

// refreshCursors reads the cursors that are wanted, and returns how long until the next
// check.
func (v *Viewer) refreshCursors(ctx context.Context) (wait time.Duration) {
	now, old := v.Clock.Local(), v.View()
	all, some := v.allDue(now, old), v.someDue(now)
	if wait := min(all, some); wait > 0 {
		return wait
	}
	var err error
	if all <= 0 {
		err = v.refreshAll(ctx)
	}
	if some <= 0 { // even if reading all has failed
		err = errors.Join(err, v.refreshWanted(ctx))
	}
	if ctx.Err() != nil {
		return 0
	}
	v.note(&v.cursorFailure, now, err)
	if err != nil {
		return ReadAgain
	}
	v.Notify()
	return 0
}

// AllNamespaces lists the namespaces that any deployment sweeps.
func (v *Viewer) AllNamespaces(ctx context.Context, p *plan.Plan) ([]string, error) {
	switch names := p.Swept(); {
	case !slices.Equal(names, []string{cursor.AllNamespaces}):
		return names, nil
	case slices.Equal(v.Rules.Namespaces, names): // this one, too: it has listed them
		return v.View().Namespaces, nil
	}
	return v.ListNamespaces(ctx)
}
