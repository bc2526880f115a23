package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// tellAfter is how long a cause that may pass by itself must last before the log names
	// it, and tellTimes how often it must occur: a healthy store fails a call now and then.
	tellAfter = 5 * time.Second
	tellTimes = 3
	// tellAgain is the shortest time between two lines about one cause. They become rarer
	// the longer it lasts, down to one in tellSeldom.
	tellAgain  = time.Minute
	tellSeldom = 10 * time.Minute
	// overAfter is how long a cause has not occurred when it counts as over. No two tries of
	// anything may be as far apart.
	overAfter = 75 * time.Second
	// stillFor is how recently a cause must have occurred for the log to say that it goes on.
	stillFor = 5 * time.Second
	// mostCauses, mostTroubled and mostTasks bound what is remembered: causes, and of each
	// the ranges and the tasks, which lines name. Each namespace has a task of its own.
	mostCauses   = 32
	mostTroubled = 1000
	mostTasks    = 16
)

// Causes that are not codes of the store.
const (
	causeLeaseLost = "lease_lost" // this process's own lease ran out
	causeTakenOver = "taken_over" // another process has claimed a range meanwhile
	causeOther     = store.LabelOther
)

// A Journal is the log of one target. It tells of each cause of failures once when it
// begins and once when it is over, and seldom in between, however many ranges and calls
// fail for it.
type Journal struct {
	*slog.Logger
	now func() time.Time

	mu       sync.Mutex
	troubles map[string]*trouble // that are not over, by cause
	alike    map[string]alike    // by message: warnings that there may be thousands of
}

// An alike is how often a message was logged lately.
type alike struct {
	since time.Time
	times int
}

// mostAlike is how many warnings of one kind the log has in a minute, each about another
// entity or range.
const mostAlike = 10

// WarnFew warns of one of many entities or ranges. If it has done so often lately, only a log
// with details names it.
func (j *Journal) WarnFew(message string, attrs ...any) {
	now := j.now()
	j.mu.Lock()
	a := j.alike[message]
	if now.Sub(a.since) >= tellAgain {
		a = alike{since: now}
	}
	a.times++
	j.alike[message] = a
	j.mu.Unlock()
	switch {
	case a.times <= mostAlike:
		j.Warn(message, attrs...)
	case a.times == mostAlike+1:
		j.Warn("and more of the same, which only the debug log names for a minute", "of", message)
		fallthrough
	default:
		j.Debug(message, attrs...)
	}
}

// A trouble is one cause of failures, from its first one until it is over.
type trouble struct {
	since, last time.Time       // of the first and of the last failure
	told        time.Time       // when the log named it last; zero if it did not yet
	toldOf      int             // failures at that time
	times       int             // failures
	tasks       map[string]bool // what failed
	ranges      map[string]bool // in which it failed
	err         error           // the last one
}

func New(log *slog.Logger, now func() time.Time) *Journal {
	return &Journal{Logger: log, now: now, troubles: map[string]*trouble{}, alike: map[string]alike{}}
}

// Failed takes in that a task failed, in a range if the name is not empty. What does not
// pass by itself is told at once, other causes once they last.
func (j *Journal) Failed(task, name string, err error) {
	now := j.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	cause := j.causeOf(err)
	t := j.troubles[cause]
	if t == nil {
		t = &trouble{since: now, tasks: map[string]bool{}, ranges: map[string]bool{}}
		j.troubles[cause] = t
	}
	t.times++
	t.last, t.err = now, err
	if len(t.tasks) < mostTasks || t.tasks[task] {
		t.tasks[task] = true
	} else {
		t.tasks["others"] = true
	}
	if name != "" && len(t.ranges) < mostTroubled {
		t.ranges[name] = true
	}
	if passes := mayPass(err); t.told.IsZero() && (!passes || t.lasts()) {
		level := slog.LevelWarn
		if !passes && !errors.Is(err, cursor.ErrLost) {
			level = slog.LevelError
		}
		attrs := []any{"cause", cause, "task", task}
		if name != "" {
			attrs = append(attrs, "range", name)
		}
		j.Log(context.Background(), level, "failing; trying again", append(attrs, "error", err)...)
		t.told, t.toldOf = now, t.times
	}
}

// mayPass reports whether a cause may pass by itself. A conflict does with the next try, which
// reads the record first: such as that of a heartbeat that others have removed because it
// could not be renewed. One that cost a claim is told at once.
func mayPass(err error) bool {
	return store.Transient(err) || store.MayBeOfOneEntity(err) ||
		errors.Is(err, store.ErrConflict) && !errors.Is(err, cursor.ErrLost)
}

// lasts reports whether a cause that may pass by itself is worth a line.
func (t *trouble) lasts() bool { return t.times >= tellTimes && t.last.Sub(t.since) >= tellAfter }

// Look tells which causes go on, and which are over.
func (j *Journal) Look() {
	j.each(func(cause string, t *trouble, now time.Time) {
		switch {
		case now.Sub(t.last) >= overAfter:
			j.tellOver(cause, t)
		case t.hasNews() && now.Sub(t.told) >= t.tellAgain() && now.Sub(t.last) < stillFor:
			j.tellStill(cause, t, now)
		}
	})
}

// each goes over the causes that are not over, in order.
func (j *Journal) each(do func(cause string, t *trouble, now time.Time)) {
	now := j.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, cause := range slices.Sorted(maps.Keys(j.troubles)) {
		do(cause, j.troubles[cause], now)
	}
}

// hasNews reports whether a cause that was told of has occurred since.
func (t *trouble) hasNews() bool { return !t.told.IsZero() && t.times > t.toldOf }

// tellStill says that a cause goes on.
func (j *Journal) tellStill(cause string, t *trouble, now time.Time) {
	j.Warn("still failing", append(t.attrs(cause), "error", t.err)...)
	t.told, t.toldOf = now, t.times
}

// tellAgain returns how long after its last line a cause that goes on has another one.
func (t *trouble) tellAgain() time.Duration {
	return min(tellSeldom, max(tellAgain, t.told.Sub(t.since)))
}

// tellOver says that a cause is over, if it was told of at all.
func (j *Journal) tellOver(cause string, t *trouble) {
	if !t.told.IsZero() {
		j.Info("no longer failing", t.attrs(cause)...)
	}
	delete(j.troubles, cause)
}

// End tells how often what had begun has failed by the end of the work: nobody will say
// that it is over.
func (j *Journal) End() {
	j.each(func(cause string, t *trouble, now time.Time) {
		switch {
		case now.Sub(t.last) >= tellAfter:
			j.tellOver(cause, t)
		case t.hasNews():
			j.tellStill(cause, t, now)
		}
		delete(j.troubles, cause)
	})
}

// attrs says how often a cause has occurred, for how long, and where.
func (t *trouble) attrs(cause string) []any {
	tasks := strings.Join(slices.Sorted(maps.Keys(t.tasks)), ", ")
	return []any{"cause", cause, "tasks", tasks, "times", t.times, "ranges", len(t.ranges),
		"seconds", Seconds(t.last.Sub(t.since))}
}

// causeOf names the cause of an error. The mutex is held.
func (j *Journal) causeOf(err error) string {
	cause := causeOf(err)
	if j.troubles[cause] == nil && len(j.troubles) >= mostCauses {
		return causeOther
	}
	return cause
}

// causeOf names the cause of an error: two errors with one cause are told of together.
func causeOf(err error) string {
	switch label := store.Label(err); {
	case errors.Is(err, cursor.ErrLost) && errors.Is(err, store.ErrConflict):
		return causeTakenOver
	case errors.Is(err, cursor.ErrLost):
		return causeLeaseLost
	case label != causeOther:
		return label
	}
	const most = 60 // bytes
	text, _, _ := strings.Cut(innermost(err).Error(), "\n")
	text = strings.Map(func(r rune) rune { // numbers differ from range to range
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// innermost returns the error that an error wraps, at the end of the chain.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if all, ok := err.(interface{ Unwrap() []error }); ok && len(all.Unwrap()) > 0 {
			next = all.Unwrap()[0]
		}
		if next == nil {
			return err
		}
		err = next
	}
}

// Seconds returns a duration as logs have it.
func Seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// A Failure is why something could not be read when it was tried last, and since when.
type Failure struct {
	Task  string
	Since time.Time
	Err   error // nil if nothing is wrong
}

// Note keeps what came of a try, and tells the journal.
func (f *Failure) Note(log *Journal, now time.Time, err error) {
	if err != nil {
		log.Failed(f.Task, "", err)
	}
	f.keep(now, err)
}

// keep keeps what came of a try.
func (f *Failure) keep(now time.Time, err error) {
	if err != nil && f.Err == nil {
		f.Since = now
	}
	f.Err = err
}

// Failures are what failed in one sweep, by cause.
type Failures struct {
	times  int
	causes []failureCause // in the order in which they were met
}

type failureCause struct {
	cause string
	first error
	times int
}

// Add counts a failure.
func (f *Failures) Add(err error) {
	f.times++
	cause := causeOf(err)
	i := slices.IndexFunc(f.causes, func(c failureCause) bool { return c.cause == cause })
	switch {
	case i >= 0:
		f.causes[i].times++
	case len(f.causes) < mostCauses:
		f.causes = append(f.causes, failureCause{cause, err, 1})
	}
}

// Count returns how many there were.
func (f *Failures) Count() int { return f.times }

// Err names each cause once, with its first error; nil if nothing failed.
func (f *Failures) Err() error {
	var all []error
	for _, c := range f.causes {
		err := c.first
		if c.times > 1 {
			err = fmt.Errorf("%w (and %d more times for this cause: %s)", err, c.times-1, c.cause)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
