package spend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/breaker"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep/plan"
	"github.com/reaper-ttl/reaper/sweep/view"
)

const (
	// countAgain is how long after a count that failed the same is counted again.
	countAgain = 30 * time.Second
	// countTries is how often one sweep tries a count before it gives the hour up.
	countTries = 2
)

// A Judge counts hours for the breaker of one target, and trips it. It does so in a goroutine
// of its own: a count may take a minute, in which other hours go on. The lock of its spender
// guards its fields.
type Judge struct {
	s       *Spender
	wake    chan struct{}
	keys    map[breaker.Key]int64 // to be counted, and how many entities somebody wants to delete under each
	missed  map[breaker.Key]bool  // the rest of an event, of which a count has found nothing
	atWork  *breaker.Key          // is being counted; nil if nothing is
	blocked map[breaker.Key]blocked
	swept   map[shardquery.Range]time.Time // up to where this process has found nothing due
	entered bool                           // what is due in what this process sweeps was counted, or approved
	idle    time.Time                      // since when nothing was wanted of a part that was approved; zero if it was
	late    *lateRead                      // of the judging goroutine alone; nil if a COUNT does

	namespaces []string // those that any deployment sweeps, at the last count; nil before it
	wasLate    bool     // the last turn was that of what is late
}

// A blocked is a count that failed. Without it no more than the floor goes.
type blocked struct {
	tries int
	at    time.Time // of the last try
	err   error
}

// An uncounted is the error of a count.
type uncounted struct{ error }

func (u uncounted) Unwrap() error { return u.error }

func newJudge(s *Spender) *Judge {
	return &Judge{s: s, wake: make(chan struct{}, 1), keys: map[breaker.Key]int64{}, missed: map[breaker.Key]bool{},
		blocked: map[breaker.Key]blocked{}, swept: map[shardquery.Range]time.Time{}}
}

// Observe returns a judge that only looks.
func Observe(cfg Config) *Judge { return newJudge(&Spender{Config: cfg}) }

// want asks for counts.
func (j *Judge) want(unmet []breaker.Want) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for _, w := range unmet {
		b, isBlocked := j.blocked[w.Key]
		switch {
		case w.N == 0: // it was asked ahead of need
		case j.atWork != nil && *j.atWork == w.Key:
		case isBlocked && j.s.Now().Sub(b.at) < countAgain:
		default:
			j.keys[w.Key] = max(j.keys[w.Key], w.N)
		}
	}
	if len(j.keys) > 0 {
		background.Wake(j.wake)
	}
}

// hopelessLocked returns an error if one sweep cannot delete an op because its hour cannot be counted.
// A daemon tries on.
func (j *Judge) hopelessLocked(keys spent) error {
	if !j.s.IsOnce() {
		return nil
	}
	if f := j.s.hold.failure; isUncounted(f.Err) && j.s.Now().Sub(f.Since) > view.FreshFor { // of unswept ground
		return hopeless(f.Err)
	}
	for _, k := range keys {
		if k == nil {
			continue
		}
		if b := j.blocked[*k]; b.tries >= countTries && j.s.leftLocked(*k) == 0 {
			return hopeless(b.err)
		}
	}
	return nil
}

// hopeless returns the error of a sweep that ends because something cannot be counted.
func hopeless(why error) error {
	return store.WithHint(fmt.Errorf("%w: %s", errUncounted, why.Error()),
		"the next sweep counts again; breaker: off deletes without a count")
}

// isUncounted reports whether an error is that of a count.
func isUncounted(err error) bool { return errors.As(err, new(uncounted)) }

var errUncounted = errors.New("the breaker cannot count what comes to be due, and no more than its floor goes without")

// run counts what is wanted until ctx is done.
func (j *Judge) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		}
		for ctx.Err() == nil {
			k, wanted, ok := j.next()
			if !ok {
				break
			}
			j.note(ctx, k, wanted, background.Protect(func() error { return j.judgeKey(ctx, k, wanted) }))
		}
	}
}

// next returns what is to be counted next, and how many entities somebody wants to delete of it.
func (j *Judge) next() (k breaker.Key, wanted int64, ok bool) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for _, next := range inKeyOrder(j.keys) { // what is late comes last
		switch {
		case next.IsLate() && (!j.wasLate || !ok): // either may take long, so they take turns
			k, ok = next, true
		case !next.IsLate() && (!ok || j.blocked[next].at.Before(j.blocked[k].at)): // nor does an hour wait for ever
			k, ok = next, true
		}
	}
	if ok {
		wanted = j.keys[k]
		delete(j.keys, k)
		j.atWork, j.wasLate = &k, k.IsLate()
	}
	return k, wanted, ok
}

// note keeps why a count failed, for the steps that wait for it and for the budget's record.
func (j *Judge) note(ctx context.Context, k breaker.Key, wanted int64, err error) {
	j.s.mu.Lock()
	j.atWork = nil
	j.s.mu.Unlock()
	var failed uncounted
	if isCount := errors.As(err, &failed); !isCount || ctx.Err() != nil {
		if err != nil && ctx.Err() == nil && !errors.Is(err, errNothingLeft) {
			j.s.Log.Failed("judge what comes to be due", "", err)
		}
		j.s.mu.Lock()
		delete(j.blocked, k)
		j.s.mu.Unlock()
		j.s.rouse() // the steps that wait ask again
		return
	}
	isReading := errors.Is(failed, errLateRead)
	if !isReading {
		j.s.Log.Failed("count for the breaker", "", failed.error)
	}
	j.s.mu.Lock()
	if isReading {
		delete(j.blocked, k)
		j.keys[k] = max(j.keys[k], wanted)
	} else {
		j.blocked[k] = blocked{j.blocked[k].tries + 1, j.s.Now(), failed.error}
	}
	j.s.mu.Unlock()
	j.tellUncounted(ctx, j.nameOf(k)+": "+failed.Error())
}

// nameOf names what a key counts, for people.
func (j *Judge) nameOf(k breaker.Key) string {
	if k.IsLate() {
		return "what is late"
	}
	return "what expires from " + k.Hour.Format(time.RFC3339) + " on"
}

// tellUncounted writes into the budget's record why a count failed, or with an empty text that none
// does. People can do without it.
func (j *Judge) tellUncounted(ctx context.Context, text string) {
	if b, err := j.s.read(ctx); err == nil && b.Uncounted != text {
		_ = j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
			b.Uncounted = text
			return b
		})
	}
}

// judgeKey counts what is left under a key, of which somebody wants to delete so many, and either
// opens it or trips the breaker.
func (j *Judge) judgeKey(ctx context.Context, k breaker.Key, wanted int64) error {
	rec := j.s.Viewer.View().Record
	if j.isHeld() {
		return nil
	}
	now := j.s.now()
	b, err := j.readAll(ctx)
	if err != nil {
		return err
	}
	if k.IsLate() {
		if j.isOvertaken(b, now) {
			return j.dropLate(ctx)
		}
		j.followLate(b, now)
	}
	count, all, err := j.measureReported(ctx, b, k, rec.Approvals, now)
	if err != nil {
		return uncounted{err}
	}
	if count, err = j.rest(k, count, wanted); err != nil {
		return err
	}
	event, err := j.eventWith(ctx, b, k, count, now)
	if err != nil {
		return uncounted{err}
	}
	// The counts may take minutes: they know nothing of what was tripped, and approved, meanwhile.
	err = j.s.Viewer.ReloadRecord(ctx)
	if err != nil || j.isHeld() || !sameApprovals(j.s.Viewer.View().Record.Approvals, rec.Approvals) {
		return err // the steps ask again
	}
	trip, err := j.open(ctx, b.At(k), now, count, all)
	if err != nil || trip == nil {
		return err
	}
	trip.Due, trip.More = max(trip.Due, event.Due), trip.More || event.More
	return j.trip(ctx, *trip, rec.Approvals)
}

// eventWith counts the event that what was counted under a key belongs to: what is late is one event
// with all that is due.
func (j *Judge) eventWith(
	ctx context.Context, b breaker.Budget, k breaker.Key, c breaker.Count, now time.Time,
) (event breaker.Count, err error) {
	event = breaker.Count{Due: c.Due + c.Coming, More: c.More}
	if !k.IsLate() || event.Due <= j.s.Rules.Floor {
		return event, nil
	}
	whole, err := patientCount(event.Due, j.late != nil, func(upTo int64) (breaker.Count, error) {
		return j.countDue(ctx, b, j.s.Rules.Horizon(now), upTo)
	})
	switch {
	case err == nil:
		event = whole
		event.Due -= c.Reserved
	case j.late == nil || ctx.Err() != nil:
		return event, err
	default: // what is late can be judged without
		event.More = true
	}
	return event, nil
}

// open judges by a count what is left under a key, of which the tally was known before, and returns a trip
// if that is unusual. If another process has judged it since then, nothing changes, and the steps ask
// again.
func (j *Judge) open(
	ctx context.Context, before breaker.Tally, now time.Time, count breaker.Count, all int64,
) (trip *breaker.Trip, err error) {
	k := before.Key
	err = j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		if all >= 0 {
			b = b.CountedAll(now, all)
		}
		b.Uncounted, trip = "", nil
		isTripped := b.At(k).Tripped && !before.Tripped
		if isTripped || k.IsLate() && j.isOvertaken(b, now) {
			return b
		}
		b, trip = b.Judge(j.s.Rules, now, k, count)
		return b
	})
	if err == nil && k.IsLate() {
		j.late = nil
	}
	return trip, err
}

// isHeld reports whether a trip is open. Then a fresh count will say what is left.
func (j *Judge) isHeld() bool {
	if !j.s.Viewer.View().Record.Trip.IsOpen() {
		return false
	}
	j.late = nil
	return true
}

// errNothingLeft is why the rest of an event is looked for once more.
var errNothingLeft = errors.New("nothing is left of it")

// rest returns the count of the rest of an event. If it has found nothing, though somebody wants to
// delete some of it, the steps ask again; the second time they are believed.
func (j *Judge) rest(k breaker.Key, c breaker.Count, wanted int64) (breaker.Count, error) {
	if !c.Held || c.Due+c.Coming > 0 {
		delete(j.missed, k)
		return c, nil
	}
	if !j.missed[k] {
		j.missed[k] = true
		return c, errNothingLeft
	}
	delete(j.missed, k)
	c.Due = max(1, wanted)
	return c, nil
}

// dropLate ends a read of what is late: the steps ask again.
func (j *Judge) dropLate(ctx context.Context) error {
	j.late = nil
	return j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		b.Uncounted = ""
		return b
	})
}

// trip writes a trip to the target record, and what people want to know of it to the budget.
// If another process was first, its trip stays. If an event was approved since this one was
// counted, it may be the same.
func (j *Judge) trip(ctx context.Context, t breaker.Trip, approvals []breaker.Approval) error {
	t.ID, t.At = j.id(t), j.s.Clock.Now()
	isFirst := false
	err := j.s.Viewer.ChangeRecord(ctx, func(is generation.Record, _ time.Time) (generation.Record, bool, error) {
		next := is
		if !is.Trip.IsOpen() && sameApprovals(is.Approvals, approvals) { // an approval is for what the record names
			next = is.Holding(j.s.Plan.Scope.Kind, j.s.Plan.Scope.Property).Tripped(t)
		}
		isFirst = next.Trip.ID == t.ID
		return next, !next.EqualContent(is), nil
	})
	if err != nil { // it may be written although the answer was lost: no other process tells of it
		if j.s.Viewer.ReloadRecord(ctx) != nil || j.s.Viewer.View().Record.Trip.ID != t.ID {
			return err
		}
		isFirst = true
	}
	if !isFirst {
		return nil
	}
	j.s.Log.ErrorContext(ctx, "breaker tripped: deletes suspended until the event is approved", "trip", t.ID,
		"rule", string(t.Rule), "due", t.Due, "limit", t.Limit, "all", t.All, "deleted", t.Gone)
	j.s.Story.Tell(history.KindTrip, history.Change{What: "trip " + t.ID,
		After: fmt.Sprintf("%s; %d were deleted before", t.Summary(), t.Gone)})
	detail := j.Describe(ctx, t)
	return j.s.change(ctx, func(b breaker.Budget, _ bool) breaker.Budget {
		b.Trip = detail
		return b
	})
}

func sameApprovals(a, b []breaker.Approval) bool {
	return len(a) == len(b) && (len(a) == 0 || a[len(a)-1].ID == b[len(b)-1].ID)
}

// id names a trip by its instant and its process, so that two of the same instant differ.
func (j *Judge) id(t breaker.Trip) string {
	return t.At.UTC().Format("20060102t150405") + "-" + string(t.Rule) + "-" + store.NewRevision("")[2:8]
}

// plan returns the plan of now, which lists the ranges to be counted.
func (j *Judge) plan() *plan.Plan {
	view := j.view()
	return plan.New(j.s.Plan, &view, plan.Book{}, j.s.Clock.Now())
}

// view returns the present view with all namespaces that any deployment sweeps: they share the
// hours of the target, so each counts what the others delete, too.
func (j *Judge) view() plan.View {
	view := *j.s.Viewer.View()
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	if j.namespaces != nil {
		view.Namespaces = j.namespaces
	}
	return view
}

// readAll reads the budget, and finds the namespaces that any deployment sweeps.
func (j *Judge) readAll(ctx context.Context) (b breaker.Budget, err error) {
	if b, err = j.s.read(ctx); err == nil {
		err = j.findNamespaces(ctx)
	}
	return b, err
}

// findNamespaces finds the namespaces that any deployment sweeps.
func (j *Judge) findNamespaces(ctx context.Context) error {
	list, err := j.s.Viewer.AllNamespaces(ctx, j.plan())
	if err != nil {
		return uncounted{fmt.Errorf("list the namespaces: %w", err)}
	}
	j.s.mu.Lock()
	j.namespaces = list
	j.s.mu.Unlock()
	return nil
}
