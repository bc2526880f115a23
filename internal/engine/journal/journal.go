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
	// logAfter is how long a cause that may pass by itself must last before it is logged, and
	// logTimes how often it must occur: even a healthy store fails a call now and then.
	logAfter = 5 * time.Second
	logTimes = 3
	// logAgain is the shortest time between two lines about one cause. The longer it lasts,
	// the rarer they become, down to one every logSeldom.
	logAgain  = time.Minute
	logSeldom = 10 * time.Minute
	// overAfter is how long a cause must not have occurred to count as over. All tries of
	// anything are closer together than that.
	overAfter = 75 * time.Second
	// stillFor is how recently a cause must have occurred for the log to say that it persists.
	stillFor = 5 * time.Second
	// mostCauses bounds the causes that are remembered, and mostTroubled and mostTasks the
	// ranges and tasks of each. Each namespace has a task of its own.
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

// A Journal is the log of one target. It logs each cause of failures once when it begins
// and once when it is over, and seldom in between, however many ranges and calls fail
// because of it.
type Journal struct {
	*slog.Logger
	now func() time.Time

	mu       sync.Mutex
	troubles map[string]*trouble // that are not over, by cause
	alike    map[string]alike    // by message: warnings of which there may be thousands
}

// An alike counts the recent warnings with one message.
type alike struct {
	since time.Time
	times int
}

// mostAlike is how many warnings of one kind the log has in a minute, each about another
// entity or range.
const mostAlike = 10

// WarnFew warns of one of many entities or ranges. After mostAlike of them in a minute, the rest
// are logged at the debug level only.
func (j *Journal) WarnFew(message string, attrs ...any) {
	now := j.now()
	j.mu.Lock()
	a := j.alike[message]
	if now.Sub(a.since) >= logAgain {
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
	logged      time.Time       // when it was logged last; zero if it was not yet
	loggedTimes int             // failures by then
	times       int             // how many failures
	tasks       map[string]bool // what failed
	ranges      map[string]bool // in which it failed
	err         error           // the last one
}

// New returns a journal that writes to a log.
func New(log *slog.Logger, now func() time.Time) *Journal {
	return &Journal{Logger: log, now: now, troubles: map[string]*trouble{}, alike: map[string]alike{}}
}

// Failed notes that a task failed, in a range if the name is not empty. A cause that does not
// pass by itself is logged at once, any other if it lasts.
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
	if passes := mayPass(err); t.logged.IsZero() && (!passes || t.lasts()) {
		level := slog.LevelWarn
		if !passes && !errors.Is(err, cursor.ErrLost) {
			level = slog.LevelError
		}
		attrs := []any{"cause", cause, "task", task}
		if name != "" {
			attrs = append(attrs, "range", name)
		}
		j.Log(context.Background(), level, "failing; trying again", append(attrs, "error", err)...)
		t.logged, t.loggedTimes = now, t.times
	}
}

// mayPass reports whether a cause may pass by itself. A conflict does, because the next try reads
// the record first: for example, others remove a heartbeat that could not be renewed. A conflict
// that cost a claim is logged at once.
func mayPass(err error) bool {
	return store.Transient(err) || store.MayBeOfOneEntity(err) ||
		errors.Is(err, store.ErrConflict) && !errors.Is(err, cursor.ErrLost)
}

// lasts reports whether a cause that may pass by itself is worth a line.
func (t *trouble) lasts() bool { return t.times >= logTimes && t.last.Sub(t.since) >= logAfter }

// Look logs which causes persist, and which are over.
func (j *Journal) Look() {
	j.each(func(cause string, t *trouble, now time.Time) {
		switch {
		case now.Sub(t.last) >= overAfter:
			j.logOver(cause, t)
		case t.hasNews() && now.Sub(t.logged) >= t.logAgain() && now.Sub(t.last) < stillFor:
			j.logStill(cause, t, now)
		}
	})
}

// each visits the causes that are not over, in order.
func (j *Journal) each(do func(cause string, t *trouble, now time.Time)) {
	now := j.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, cause := range slices.Sorted(maps.Keys(j.troubles)) {
		do(cause, j.troubles[cause], now)
	}
}

// hasNews reports whether a cause that was logged has occurred since.
func (t *trouble) hasNews() bool { return !t.logged.IsZero() && t.times > t.loggedTimes }

// logStill logs that a cause persists.
func (j *Journal) logStill(cause string, t *trouble, now time.Time) {
	j.Warn("still failing", append(t.attrs(cause), "error", t.err)...)
	t.logged, t.loggedTimes = now, t.times
}

// logAgain returns how long after its last line a cause that persists gets another one.
func (t *trouble) logAgain() time.Duration {
	return min(logSeldom, max(logAgain, t.logged.Sub(t.since)))
}

// logOver logs that a cause is over, if it was logged at all.
func (j *Journal) logOver(cause string, t *trouble) {
	if !t.logged.IsZero() {
		j.Info("no longer failing", t.attrs(cause)...)
	}
	delete(j.troubles, cause)
}

// End logs, at the end of the work, how often each cause has occurred: nothing will log later
// that it is over.
func (j *Journal) End() {
	j.each(func(cause string, t *trouble, now time.Time) {
		switch {
		case now.Sub(t.last) >= logAfter:
			j.logOver(cause, t)
		case t.hasNews():
			j.logStill(cause, t, now)
		}
		delete(j.troubles, cause)
	})
}

// attrs are how often a cause has occurred, for how long, and where.
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

// causeOf names the cause of an error: errors with the same cause are logged together.
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

// Seconds returns a duration as it is logged.
func Seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// A Failure is why the last try of something failed, and since when tries have failed.
type Failure struct {
	Task  string
	Since time.Time
	Err   error // nil if nothing is wrong
}

// Note keeps the result of a try, and logs a failure.
func (f *Failure) Note(log *Journal, now time.Time, err error) {
	if err != nil {
		log.Failed(f.Task, "", err)
	}
	f.keep(now, err)
}

// keep keeps the result of a try.
func (f *Failure) keep(now time.Time, err error) {
	if err != nil && f.Err == nil {
		f.Since = now
	}
	f.Err = err
}

// Failures are what failed in one sweep, by cause.
type Failures struct {
	times  int
	causes []failureCause // in the order of their first failures
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
