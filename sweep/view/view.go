package view

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history/chronicle"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/journal"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/storeclock"
)

const (
	// RecordTimeout bounds one read of records, and recordPatience all tries
	// together: an address where nobody answers is an error within 30 s.
	RecordTimeout  = 10 * time.Second
	RecordPatience = 20 * time.Second
	// recordEvery is how often the target record is read: what an operator
	// changes takes effect within that time.
	recordEvery = 5 * time.Second
	// FreshFor is how old the target record may be when a write relies on it: older
	// ones mean that three reads have failed, or that the machine has slept.
	FreshFor = 3 * recordEvery
	// ReadAtMost is the least time between two reads of the same thing, however many
	// ask for it, and namespacesEvery the time between two lists of all namespaces.
	ReadAtMost      = 200 * time.Millisecond
	namespacesEvery = 10 * time.Second
	// ReadAgain is how soon a read of records that failed is repeated.
	ReadAgain = time.Second
	// noRead is how soon the refresher of cursors checks its work if nobody wakes it.
	noRead = recordEvery
	// OneTry is the patience of a read that is tried again later.
	OneTry = time.Nanosecond
)

// A viewConfig says whose records a viewer reads, and how.
type Config struct {
	Store   recordStore
	Target  store.Target
	Rules   plan.Rules
	Breaker bool // the target has a breaker
	Apply   bool // without it the viewer writes nothing
	Clock   *storeclock.Clock
	Log     *journal.Journal
	Story   *chronicle.Chronicle // nil without a history
}

// A Viewer reads the records of one target. It alone replaces the [plan.View] that all
// others use: by what its refresher reads, and by a target record that a chore has just
// written.
type Viewer struct {
	Config
	Notify func() // called when the refresher has replaced the view; what a chore replaces is seen as it ends

	current atomic.Pointer[plan.View]
	wake    wakes

	mu    sync.Mutex
	state refreshState
}

// Wakes end the waits of the refreshers.
type wakes struct{ record, cursors chan struct{} }

// A refreshState is what the refresher has yet to read, and what went wrong.
type refreshState struct {
	recordWanted  bool
	wantedCursors map[cursor.ID]bool // to be read by their keys
	allWanted     bool               // all cursors are to be read
	wantedRead    time.Time          // when cursors were read last because they were wanted

	recordSaved  time.Time       // when a chore's write of the target record was answered last
	namespacesAt time.Time       // when they were read last
	imagined     []cursor.Cursor // of ranges that a dry run has found

	record, cursors journal.Failure // of reading them
}

// New returns a viewer that has read nothing yet.
func New(cfg Config) *Viewer {
	return &Viewer{Config: cfg, wake: wakes{make(chan struct{}, 1), make(chan struct{}, 1)},
		state: refreshState{wantedCursors: map[cursor.ID]bool{},
			record: journal.Failure{Task: "read the target record"}, cursors: journal.Failure{Task: "read cursor records"}}}
}

// View returns what was read last.
func (v *Viewer) View() *plan.View { return v.current.Load() }

// Use makes a view that was read elsewhere the present one.
func (v *Viewer) Use(is *plan.View) { v.current.Store(is) }

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
	v.current.Store(next)
	return nil
}

// publish replaces the view by a copy that change has changed. Nothing else replaces it.
func (v *Viewer) publish(change func(next *plan.View)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := *v.View()
	change(&next)
	v.current.Store(&next)
}

// takeRecords puts what was read into a view. The target record and the cursors replace
// only older ones: the answer to an earlier read must not undo what a chore has written
// meanwhile.
func takeRecords(next, read *plan.View) {
	takeRecord(next, read)
	if read.CursorsSent.After(next.CursorsSent) {
		next.Cursors = read.Cursors.Newer(next.Cursors, read.CursorsSent)
		next.Seals = newerSeals(next.Seals, read.Seals)
		next.CursorsSent = read.CursorsSent
	}
}

// takeRecord puts the target record that was read into a view, if it is newer.
func takeRecord(next, read *plan.View) {
	older := store.RevisionCount(read.Record.Revision) < store.RevisionCount(next.Record.Revision)
	if !older && !read.RecordSent.Before(next.RecordSent) {
		next.Record, next.RecordSent = read.Record, read.RecordSent
	}
}

// WantCursor asks for the cursor of a range to be read soon.
func (v *Viewer) WantCursor(id cursor.ID) {
	v.want(v.wake.cursors, func(s *refreshState) { s.wantedCursors[id] = true })
}

// WantCursors asks for all cursors to be read soon.
func (v *Viewer) WantCursors() { v.want(v.wake.cursors, func(s *refreshState) { s.allWanted = true }) }

// WantRecord asks for the target record to be read soon.
func (v *Viewer) WantRecord() { v.want(v.wake.record, func(s *refreshState) { s.recordWanted = true }) }

func (v *Viewer) want(wake chan struct{}, what func(*refreshState)) {
	v.mu.Lock()
	what(&v.state)
	v.mu.Unlock()
	background.Wake(wake)
}

// Failing returns why the target record cannot be read; nil if no read has failed.
func (v *Viewer) Failing() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.record.Err
}

// Run refreshes the view until ctx is done: the target record and the cursors apart,
// since many pages of cursors may take longer than a target record is good for.
func (v *Viewer) Run(ctx context.Context) {
	var cursors sync.WaitGroup
	cursors.Go(func() { background.Repeat(ctx, v.wake.cursors, v.refreshCursors) })
	background.Repeat(ctx, v.wake.record, v.refresh)
	cursors.Wait()
}

// refresh reads the target record and the names of the namespaces if that is due, and
// returns how long until it is due again.
func (v *Viewer) refresh(ctx context.Context) (wait time.Duration) {
	now, old := v.Clock.Local(), v.View()
	if wait := v.recordDue(now, old); wait > 0 {
		return wait
	}
	next := *old
	err := v.loadRecord(ctx, &next)
	if errors.Is(err, generation.ErrMissing) { // somebody removed it
		err = v.recreateRecord(ctx, &next)
	}
	if err == nil {
		err = v.checkAge(&next)
	}
	if err == nil && now.Sub(v.state.namespacesAt) >= namespacesEvery && v.listsNamespaces() {
		err = v.LoadNamespaces(ctx, &next)
	}
	if ctx.Err() != nil {
		return 0
	}
	v.mu.Lock()
	v.state.record.Note(v.Log, now, err)
	v.mu.Unlock()
	if err != nil {
		return ReadAgain
	}
	v.publish(func(now *plan.View) {
		takeRecords(now, &next)
		now.Namespaces = next.Namespaces
	})
	v.Notify()
	return 0
}

// checkAge refuses a target record that is older than the one that this process goes by:
// somebody has put an old copy back. A record that was read while
// a chore wrote is not such a copy.
func (v *Viewer) checkAge(read *plan.View) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.View()
	if store.RevisionCount(read.Record.Revision) >= store.RevisionCount(now.Record.Revision) ||
		!read.RecordSent.After(v.state.recordSaved) {
		return nil
	}
	return plan.OldCopy(read.Record, v.Target.Name, "but had "+now.Record.Revision)
}

// recreateRecord writes a target record to replace one that was removed.
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
	all, some := v.cursorsDue(now, old), v.someDue(now)
	if wait := min(all, some); wait > 0 {
		return wait
	}
	var err error
	if all <= 0 {
		err = v.loadAll(ctx)
	}
	if some <= 0 { // even if reading all has failed
		err = errors.Join(err, v.loadWanted(ctx))
	}
	if ctx.Err() != nil {
		return 0
	}
	v.mu.Lock()
	v.state.cursors.Note(v.Log, now, err)
	v.mu.Unlock()
	if err != nil {
		return ReadAgain
	}
	v.Notify()
	return 0
}

// loadAll reads all cursors.
func (v *Viewer) loadAll(ctx context.Context) error {
	next := *v.View()
	err := v.LoadCursors(ctx, &next)
	if err == nil {
		err = v.checkLineage(ctx, &next, next.Cursors)
	}
	if err != nil {
		v.mu.Lock()
		v.state.allWanted = true
		v.mu.Unlock()
		return err
	}
	v.publish(func(now *plan.View) { takeRecords(now, &next) })
	return nil
}

// checkLineage makes sure that the target record is not older than the cursors.
func (v *Viewer) checkLineage(ctx context.Context, next *plan.View, cursors cursor.Table) error {
	if plan.CheckLineage(next.Record, false, v.Target.Name, cursors) == nil {
		return nil
	}
	if err := v.loadRecord(ctx, next); err != nil {
		return err
	}
	return plan.CheckLineage(next.Record, false, v.Target.Name, cursors)
}

// loadWanted reads the cursors that somebody has asked for, by their keys.
func (v *Viewer) loadWanted(ctx context.Context) error {
	v.mu.Lock()
	var ids []cursor.ID
	for id := range v.state.wantedCursors {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b cursor.ID) int { return strings.Compare(a.Key(), b.Key()) })
	ids = ids[:min(len(ids), store.MaxRecords)]
	v.mu.Unlock()
	if err := v.ReadSome(ctx, ids, OneTry); err != nil {
		return err
	}
	v.mu.Lock()
	v.state.wantedRead = v.Clock.Local()
	v.mu.Unlock()
	return nil
}

// ReadSome reads some cursors by their keys, now.
func (v *Viewer) ReadSome(ctx context.Context, ids []cursor.ID, patience time.Duration) error {
	v.mu.Lock()
	for _, id := range ids {
		delete(v.state.wantedCursors, id)
	}
	v.mu.Unlock()
	ch, err := v.reader(patience).Some(ctx, v.View().Cursors, ids)
	if err == nil {
		err = v.take(ctx, ch)
	}
	if err != nil {
		v.mu.Lock()
		for _, id := range ids { // the refresher tries again later
			v.state.wantedCursors[id] = true
		}
		v.mu.Unlock()
	}
	return err
}

// ReadGeneration reads the cursors of a generation and the target record, now, for a
// chore that must know them as they are.
func (v *Viewer) ReadGeneration(ctx context.Context, number int) error {
	ch, err := v.reader(RecordPatience).Generation(ctx, v.View().Cursors, number)
	if err != nil {
		return err
	}
	if err := v.ReloadRecord(ctx); err != nil {
		return err
	}
	return v.take(ctx, ch)
}

// ReloadRecord reads the target record, now.
func (v *Viewer) ReloadRecord(ctx context.Context) error {
	next := *v.View()
	if err := Patiently(ctx, func(ctx context.Context) error { return v.loadRecord(ctx, &next) }); err != nil {
		return err
	}
	v.publish(func(now *plan.View) { takeRecord(now, &next) })
	return nil
}

// take puts cursors that were read by their keys into the view.
func (v *Viewer) take(ctx context.Context, ch cursor.Changes) error {
	next := *v.View()
	if len(ch.Gone) > 0 { // their generation may have retired since the target record was read
		if err := v.loadRecord(ctx, &next); err != nil {
			return err
		}
	}
	if err := v.checkLineage(ctx, &next, cursor.NewTable(ch.Read...)); err != nil {
		return err
	}
	v.publish(func(now *plan.View) {
		takeRecord(now, &next)
		ch.Gone = slices.DeleteFunc(ch.Gone, func(id cursor.ID) bool {
			return slices.ContainsFunc(v.state.imagined, func(c cursor.Cursor) bool { return c.ID == id })
		})
		now.Cursors = now.Cursors.With(ch)
	})
	return nil
}

// recordDue returns when the target record is to be read.
func (v *Viewer) recordDue(now time.Time, old *plan.View) time.Duration {
	staleness, _ := old.Record.Bounds()
	v.mu.Lock()
	defer v.mu.Unlock()
	due := min(recordEvery, staleness/2)
	if v.state.recordWanted {
		due = min(due, ReadAtMost)
	}
	return due - storeclock.Age(now, old.RecordSent)
}

// cursorsDue returns when all cursors are to be read: at once if somebody asks.
func (v *Viewer) cursorsDue(now time.Time, old *plan.View) time.Duration {
	age := now.Sub(old.CursorsSent)
	v.mu.Lock()
	wanted := v.state.allWanted
	v.mu.Unlock()
	due := noRead
	if wanted {
		due = min(due, ReadAtMost-age)
	}
	return due
}

// someDue returns when the cursors are to be read that somebody has asked for.
func (v *Viewer) someDue(now time.Time) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.state.wantedCursors) == 0 {
		return noRead
	}
	return ReadAtMost - now.Sub(v.state.wantedRead)
}

// loadRecord reads the target record once.
func (v *Viewer) loadRecord(ctx context.Context, next *plan.View) error {
	ctx, cancel := context.WithTimeout(ctx, RecordTimeout)
	defer cancel()
	v.mu.Lock()
	v.state.recordWanted = false
	v.mu.Unlock()
	sent := v.Clock.Local()
	rec, at, err := generation.Load(ctx, v.Store, v.Target.Name)
	if errors.Is(err, generation.ErrMissing) && !v.Apply {
		rec, err = next.Record, nil // in a dry run the first record exists only in memory
	}
	if err != nil {
		return err
	}
	if err := v.Clock.Observe(at, sent); err != nil {
		return err
	}
	if !v.Apply {
		rec, _ = plan.Desired(v.Rules, rec, nil, v.Clock.Now()) // as a sweep with --apply would write it
	}
	next.Record, next.RecordSent = rec, sent
	return nil
}

// A recordReader reads records for a viewer. Each page has its own timeout and its own
// tries, so that a read of many pages has no limit on its total time. A page that took too
// long gets three times as long in its next try: an emulator with 70,000 records needs
// seconds for each. It also sets the clock to the store's time.
type recordReader struct {
	v        *Viewer
	patience time.Duration
}

// Load implements [store.Loader].
func (r recordReader) Load(ctx context.Context, q store.RecordQuery) (page store.Records, err error) {
	var sent time.Time
	timeout := RecordTimeout
	err = store.Retry(ctx, r.patience, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		sent = r.v.Clock.Local()
		if page, err = r.v.Store.Load(ctx, q); ctx.Err() != nil {
			timeout = 3 * RecordTimeout
		}
		return err
	})
	if err != nil {
		return page, err
	}
	return page, r.v.Clock.Observe(page.Now, sent)
}

func (v *Viewer) reader(patience time.Duration) cursor.Reader {
	return cursor.Reader{Store: recordReader{v, patience}, Target: v.Target.Name, Now: v.Clock.Local}
}

// LoadCursors reads all cursors of the target, and the store's time with them.
func (v *Viewer) LoadCursors(ctx context.Context, next *plan.View) error {
	v.mu.Lock()
	v.state.allWanted = false
	v.mu.Unlock()
	// The seals first: the ranges that a pass has met have cursors by then.
	var seals map[int]cursor.Seal
	if v.Rules.Form.HasGenerations() {
		var err error
		seals, err = cursor.LoadSeals(ctx, recordReader{v, RecordPatience}, v.Target.Name)
		if err != nil {
			return err
		}
	}
	sent := v.Clock.Local()
	table, err := v.reader(RecordPatience).All(ctx, next.Cursors)
	if err != nil {
		return err
	}
	v.mu.Lock()
	table = table.With(cursor.Changes{Read: slices.DeleteFunc(slices.Clone(v.state.imagined), func(c cursor.Cursor) bool {
		_, isThere := table.At(c.ID)
		return isThere
	})})
	v.mu.Unlock()
	next.Cursors, next.CursorsSent, next.Seals = table, sent, seals
	return nil
}

// AddDryRunRange adds a range that a dry run has found, and that has no record.
func (v *Viewer) AddDryRunRange(c cursor.Cursor) {
	v.publish(func(next *plan.View) {
		v.state.imagined = append(v.state.imagined, c)
		next.Cursors = next.Cursors.With(cursor.Changes{Read: []cursor.Cursor{c}})
	})
}

func (v *Viewer) listsNamespaces() bool { return slices.Contains(v.Rules.Namespaces, "*") }

// LoadNamespaces lists the namespaces that are swept.
func (v *Viewer) LoadNamespaces(ctx context.Context, next *plan.View) error {
	next.Namespaces = v.Rules.Namespaces
	if !v.listsNamespaces() {
		return nil
	}
	v.state.namespacesAt = v.Clock.Local()
	names, err := v.ListNamespaces(ctx)
	if err == nil {
		next.Namespaces = names
	}
	return err
}

// ListNamespaces lists all namespaces of the store.
func (v *Viewer) ListNamespaces(ctx context.Context) (names []string, err error) {
	n, ok := v.Store.Store.(store.Namespacer)
	if !ok {
		return []string{""}, nil
	}
	err = Patiently(ctx, func(ctx context.Context) (err error) {
		names, err = n.Namespaces(ctx)
		return err
	})
	return names, err
}

// Patiently repeats a call that reads records, or a few entries.
func Patiently(ctx context.Context, call func(context.Context) error) error {
	return store.Retry(ctx, RecordPatience, func() error {
		ctx, cancel := context.WithTimeout(ctx, RecordTimeout)
		defer cancel()
		return call(ctx)
	})
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
