package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/control"
	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// The numbers of a live demo are small enough for any machine.
const (
	liveBacklog   = 12_000 // sessions that expired during the last day
	liveRemaining = 12_000 // sessions that live for a week
	liveMistake   = 9_000  // of these, which a mistake lets expire
	liveFlow      = 20     // sessions written in a beat, which live for some beats
	liveFloor     = 500    // so many that come late always go; more is an event
	livePace      = 1_000  // deletes in a beat, at most
)

// liveTargets is the targets file of a live demo.
var liveTargets = fmt.Sprintf(`targets:
  - name: sessions
    kind: Session
    shards: 4
    lease: 5s
    rewind: 20s
    overlap: 2s
    pace: {start: 500, max: 5000}
    breaker: {floor: %d, fraction: 5%%}
`, liveFloor)

// A liveDemo shows a daemon at work, and what it does when the store pushes back and when somebody makes a mistake.
type liveDemo struct {
	*session
	store  *troubledStore
	writer layoutWriter
	beat   time.Duration // the unit of its script
	began  time.Time

	mu      sync.Mutex
	samples []liveSample
	marks   []liveMark
	written int64
	failed  error
}

// A liveSample is what was seen at one beat.
type liveSample struct {
	Beat    int
	Due     int64
	Deleted int64 // so far
	Held    string
}

// A liveMark is something that happened.
type liveMark struct {
	Beat int
	What string
}

// A troubledStore is an embedded store that refuses deletes while it is told to, as Firestore does at its limits.
type troubledStore struct {
	*embedded.DB
	refuses atomic.Bool
	deleted atomic.Int64
}

// Dispose implements [store.Store].
func (s *troubledStore) Dispose(ctx context.Context, b *store.Batch) error {
	if s.refuses.Load() {
		return fmt.Errorf("dispose of %d entities: %w", len(b.Ops), store.ErrPushback)
	}
	err := s.DB.Dispose(ctx, b)
	for i := range b.Ops {
		if b.Ops[i].Outcome == store.Deleted && !b.DryRun {
			s.deleted.Add(1)
		}
	}
	return err
}

// newLiveDemo opens a store in a directory, and returns a demo that works in it.
func newLiveDemo(
	c config.Config, con *console, now func() time.Time, dir string, beat time.Duration,
) (*liveDemo, error) {
	db, err := embedded.Open(filepath.Join(dir, "store"), embedded.Options{Create: true, Now: now})
	if err != nil {
		return nil, err
	}
	d := &liveDemo{session: &session{console: con, Config: c}, store: &troubledStore{DB: db}, beat: beat}
	d.log = slog.New(slog.DiscardHandler) // the demo says itself what happens
	d.Store, d.Apply = config.Store{Driver: config.Embedded, Dir: filepath.Join(dir, "store")}, true
	if d.targets, err = config.ParseTargets("demo", strings.NewReader(liveTargets), config.Embedded); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	d.db = &database{d.store, db.Close}
	d.sweep = sweepConfig(d.session, now)
	t := &d.sweep.Targets[0]
	t.History.Actor = demoActor
	t.Policy.Every, t.Policy.Ramp, t.Policy.Keep = 30*beat, 5*beat, 2
	t.Policy.Staleness, t.Policy.Slack = beat, beat
	t.Total = throttle.Limit{PerSecond: livePace / beat.Seconds()}
	return d, nil
}

// run plays the script, while serve works on the store.
func (d *liveDemo) run(ctx context.Context, serve func(context.Context, *session) error) (err error) {
	defer d.db.closeInto(&err)
	writer, _, stop, err := stampingWriter(ctx, d.session, d.targets[0])
	if err != nil {
		return err
	}
	defer stop()
	d.writer = writer
	d.say("%s sessions, of which %s have expired during the last day.\n", grouped(liveBacklog+liveRemaining),
		grouped(liveBacklog))
	if err := d.fill(ctx); err != nil {
		return err
	}
	if d.UI != "" {
		d.say("The page shows what happens: http://%s/\n", d.UI)
	}
	d.say("\n")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.began = d.now()
	served := make(chan error, 1)
	go func() { served <- serve(ctx, d.session); cancel() }()
	var all sync.WaitGroup
	all.Go(func() { d.eachBeat(ctx, d.write) })
	all.Go(func() { d.eachBeat(ctx, d.look) })
	err = d.play(ctx)
	cancel()
	all.Wait()
	return errors.Join(err, d.failed, <-served)
}

func (d *liveDemo) fill(ctx context.Context) error {
	now := d.now()
	var list []liveSession
	for i := range liveBacklog {
		list = append(list, liveSession{fmt.Sprintf("old-%06d", i), now.Add(-time.Minute - partOfDay(i))})
	}
	for i := range liveRemaining {
		list = append(list, liveSession{longName(i), now.Add(7 * 24 * time.Hour)})
	}
	return d.put(ctx, list)
}

func longName(i int) string { return fmt.Sprintf("long-%06d", i) }

// A liveSession is what the application writes.
type liveSession struct {
	name    string
	expires time.Time
}

func (d *liveDemo) put(ctx context.Context, list []liveSession) error {
	for len(list) > 0 {
		n := min(len(list), store.MaxPage)
		batch := make([]store.Entity, n)
		for i, one := range list[:n] {
			batch[i] = store.Entity{Name: one.name, Data: []byte(`{"user":"u7"}`)}
			if err := d.writer.write(&batch[i], &one.expires); err != nil {
				return err
			}
		}
		if err := d.store.Put(ctx, d.sweep.Targets[0].Target, "", batch); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// eachBeat calls do at each beat until ctx ends.
func (d *liveDemo) eachBeat(ctx context.Context, do func(ctx context.Context, beat int) error) {
	ticker := time.NewTicker(d.beat)
	defer ticker.Stop()
	for beat := 1; ; beat++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := do(ctx, beat); err != nil && ctx.Err() == nil {
			d.mu.Lock()
			d.failed = errors.Join(d.failed, err)
			d.mu.Unlock()
			return
		}
	}
}

// write is what the application does all the time.
func (d *liveDemo) write(ctx context.Context, beat int) error {
	list := make([]liveSession, liveFlow)
	for i := range list {
		lives := time.Duration(10+(beat*7+i*3)%20) * d.beat
		list[i] = liveSession{fmt.Sprintf("new-%04d-%02d", beat, i), d.now().Add(lives)}
	}
	d.mu.Lock()
	d.written += liveFlow
	d.mu.Unlock()
	return d.put(ctx, list)
}

// look takes a sample, and shows every other one.
func (d *liveDemo) look(ctx context.Context, beat int) error {
	st, err := inspect.Status(ctx, d.sweep, d.sweep.Targets[0])
	if err != nil {
		return err
	}
	one := liveSample{Beat: beat, Deleted: d.store.deleted.Load(), Held: st.Held}
	if st.Backlog != nil {
		one.Due = *st.Backlog
	}
	d.mu.Lock()
	before := int64(0)
	if n := len(d.samples); n > 0 {
		before = d.samples[n-1].Deleted
	}
	d.samples = append(d.samples, one)
	d.mu.Unlock()
	if beat%2 == 0 {
		rate := int64(float64(one.Deleted-before) / d.beat.Seconds())
		d.say("%5s  %-7s due %6s   deleted %6s %6s/s  %s\n", seconds(beat, d.beat), st.Verdict, grouped(one.Due),
			grouped(one.Deleted), grouped(rate), shortly(st.Why))
	}
	return nil
}

// seconds shows how long so many beats are.
func seconds(beats int, beat time.Duration) string {
	return fmt.Sprintf("%.3g s", (time.Duration(beats) * beat).Seconds())
}

// shortly returns the last part of why a verdict is what it is, so that a line fits a terminal.
func shortly(why string) string {
	if i := strings.LastIndex(why, "; "); i >= 0 {
		return why[i+2:]
	}
	before, _, _ := strings.Cut(why, ", written late")
	return before
}

// tell says what happens, and marks it.
func (d *liveDemo) tell(what, format string, args ...any) {
	d.mu.Lock()
	d.marks = append(d.marks, liveMark{int(d.now().Sub(d.began) / d.beat), what})
	d.mu.Unlock()
	d.say("\n* "+format+"\n\n", args...)
}

// wait waits until a beat. It returns false if ctx ended before.
func (d *liveDemo) wait(ctx context.Context, beat int) bool {
	timer := time.NewTimer(time.Duration(beat)*d.beat - d.now().Sub(d.began))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// play is the script.
func (d *liveDemo) play(ctx context.Context) error {
	for _, part := range []struct {
		at int
		do func(context.Context) error
	}{
		{4, d.approveFirst},
		{22, d.pushBack},
		{28, d.endPushBack},
		{50, d.mistake},
		{84, d.repair},
		{92, d.approveRest},
		{105, d.finish},
	} {
		if !d.wait(ctx, part.at) {
			d.say("\nstopped\n")
			return nil
		}
		if err := part.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *liveDemo) approveFirst(ctx context.Context) error {
	trip, err := approveOpen(ctx, d.sweep, d.sweep.Targets[0], "they had expired before the first sweep")
	if err != nil || trip.ID == "" {
		return err // nothing to approve: the machine is slow
	}
	d.tell("approved", "The breaker holds the first sweep: much is due, and nobody has swept here before."+
		" An operator approves it:\n    reaper breaker approve %s --reason '…'\n  %s may go.",
		trip.ID, grouped(trip.Due))
	return nil
}

func (d *liveDemo) pushBack(context.Context) error {
	d.store.refuses.Store(true)
	d.tell("the store pushes back", "The store refuses deletes for a while, as Firestore does at its limits."+
		" Each range halves its rate, and tries again later.")
	return nil
}

func (d *liveDemo) endPushBack(context.Context) error {
	d.store.refuses.Store(false)
	d.tell("it accepts deletes again", "The store accepts deletes again.")
	return nil
}

func (d *liveDemo) mistake(ctx context.Context) error {
	past := d.now().Add(-2 * time.Hour)
	var list []liveSession
	for i := range liveMistake {
		list = append(list, liveSession{longName(i), past})
	}
	d.tell("a mistake", "A mistake in the application: it takes a time of another zone, and so lets %s sessions"+
		" expire two hours ago that should live for a week.", grouped(liveMistake))
	return d.put(ctx, list)
}

// repair gives back what is left of the sessions that the mistake let expire, as one would.
func (d *liveDemo) repair(ctx context.Context) error {
	t := d.sweep.Targets[0]
	open, err := inspect.Breaker(ctx, d.sweep, t)
	if err != nil {
		return err
	}
	there, err := d.remaining(ctx)
	if err != nil {
		return err
	}
	var list []liveSession
	for i := range liveMistake {
		if there[longName(i)] {
			list = append(list, liveSession{longName(i), d.now().Add(7 * 24 * time.Hour)})
		}
	}
	if err := d.put(ctx, list); err != nil {
		return err
	}
	gone := liveMistake - len(list)
	if open.Trip == "" {
		d.tell("restamped", "The application gives the %s that are left a week again.", grouped(int64(len(list))))
		return nil
	}
	order := control.Order{Actor: demoActor, Reason: "a mistake of the application, which has stamped them again"}
	_, _, err = control.Clear(ctx, d.sweep, t, order, func(trip breaker.Trip) (int64, error) {
		return sweep.CountTrip(ctx, d.sweep, t, trip)
	})
	d.tell("restamped, and cleared", "The breaker has held them: %s went before it was sure, and %s are left. The"+
		" application gives these a week again, and the operator closes the breaker:\n    reaper breaker clear --reason '…'",
		grouped(int64(gone)), grouped(int64(len(list))))
	return err
}

// approveRest lets go what came to be due while the breaker held the target, if that is late now.
func (d *liveDemo) approveRest(ctx context.Context) error {
	trip, err := approveOpen(ctx, d.sweep, d.sweep.Targets[0], "these came to be due while the breaker was open")
	if err != nil || trip.ID == "" {
		return err
	}
	d.tell("approved", "What came to be due meanwhile is late, too, and so many were late that the breaker asks again."+
		" The operator lets these go: %s.", grouped(trip.Due))
	return nil
}

func (d *liveDemo) remaining(ctx context.Context) (map[string]bool, error) {
	there := map[string]bool{}
	for e, err := range d.store.Dump(ctx, d.sweep.Targets[0].Target, "") {
		if err != nil {
			return nil, err
		}
		there[e.Name] = true
	}
	return there, nil
}

// finish checks, one by one, that all sessions are there that were never due.
func (d *liveDemo) finish(ctx context.Context) error {
	there, err := d.remaining(ctx)
	if err != nil {
		return err
	}
	for i := liveMistake; i < liveRemaining; i++ {
		if !there[longName(i)] {
			return fmt.Errorf("verification failed: %s is gone, which was never due", longName(i))
		}
	}
	d.mu.Lock()
	written := d.written
	d.mu.Unlock()
	d.tell("verified", "%s sessions were written meanwhile, and %s deleted. Verified one by one: none is gone that was"+
		" not due.",
		grouped(written), grouped(d.store.deleted.Load()))
	return nil
}

// record writes the picture of the demo into a file.
func (d *liveDemo) record(file string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(drawDemo(f, d.samples, d.marks, d.beat), f.Close())
}
