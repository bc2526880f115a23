package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// A Watchdog notices the ranges of one target that have due entities and get
// nowhere. It reads no clock, and is safe for concurrent use.
//
// Time between two calls counts as at most a third of the patience, so that a
// clock that jumps, or a process that slept, does not make every range look
// stuck at once. So it has to be asked more often than that, as scrapes do.
type Watchdog struct {
	Patience time.Duration // how long a range may stand still

	mu     sync.Mutex
	last   time.Time
	ranges map[string]*watched
}

type watched struct {
	due     time.Time     // of its oldest entity; zero where nothing is due
	stalled time.Duration // without progress
	held    bool
}

// A Look is how a range was found.
type Look struct {
	OldestDue time.Time // when its oldest entity became due; zero where nothing is
	Disposed  int64     // entities disposed of since the last look
	Held      bool      // paused, gated, another worker's, or a dry run: standing still is right
}

// Saw records how a range was found. A range that fails is not to be reported:
// what was last known of it stands.
func (w *Watchdog) Saw(now time.Time, name string, l Look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passLocked(now)
	if w.ranges == nil {
		w.ranges = map[string]*watched{}
	}
	r := w.ranges[name]
	if r == nil {
		r = new(watched)
		w.ranges[name] = r
	}
	if l.OldestDue.IsZero() || l.Disposed > 0 || l.OldestDue.After(r.due) {
		r.stalled = 0
	}
	r.due, r.held = l.OldestDue, l.Held
}

// Only forgets all ranges but those named: the others are no more.
func (w *Watchdog) Only(names map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.ranges, func(name string, _ *watched) bool { return !names[name] })
}

// Stuck returns the ranges that have had due entities and no progress for the
// patience, in order.
func (w *Watchdog) Stuck(now time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passLocked(now)
	var stuck []string
	for name, r := range w.ranges {
		if r.stalled >= w.Patience {
			stuck = append(stuck, name)
		}
	}
	slices.Sort(stuck)
	return stuck
}

// OldestDue returns when the oldest entity of all ranges became due, those
// included that were not seen for a while; zero where nothing is due.
func (w *Watchdog) OldestDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var oldest time.Time
	for _, r := range w.ranges {
		if !r.due.IsZero() && (oldest.IsZero() || r.due.Before(oldest)) {
			oldest = r.due
		}
	}
	return oldest
}

func (w *Watchdog) passLocked(now time.Time) {
	passed := min(max(0, now.Sub(w.last)), w.Patience/3+1) // three thirds are the whole
	if w.last.IsZero() {
		passed = 0
	}
	w.last = now
	for _, r := range w.ranges {
		if r.due.IsZero() || r.held {
			r.stalled = 0
			continue
		}
		r.stalled += passed
	}
}
