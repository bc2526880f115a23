package metrics_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/metrics"
)

// A script looks at ranges minute by minute.
func TestWatchdog(t *testing.T) {
	due := metrics.Look{OldestDue: at}
	for name, c := range map[string]struct {
		look func(w *metrics.Watchdog, minute int, now time.Time)
		want int // the minute of the first alarm; -1 for none in an hour
	}{
		"no progress": {func(w *metrics.Watchdog, _ int, now time.Time) { w.Saw(now, "r", due) }, 15},
		"nothing due": {func(w *metrics.Watchdog, _ int, now time.Time) { w.Saw(now, "r", metrics.Look{}) }, -1},
		"disposes of some": {func(w *metrics.Watchdog, _ int, now time.Time) {
			w.Saw(now, "r", metrics.Look{OldestDue: at, Disposed: 1})
		}, -1},
		"oldest due moves": {func(w *metrics.Watchdog, m int, now time.Time) {
			w.Saw(now, "r", metrics.Look{OldestDue: at.Add(time.Duration(m))})
		}, -1},
		"held": {func(w *metrics.Watchdog, _ int, now time.Time) {
			w.Saw(now, "r", metrics.Look{OldestDue: at, Held: true})
		}, -1},
		"hangs after one look": {func(w *metrics.Watchdog, m int, now time.Time) { once(m == 0, func() { w.Saw(now, "r", due) }) }, 15},
		"progress at minute 10": {func(w *metrics.Watchdog, m int, now time.Time) {
			w.Saw(now, "r", metrics.Look{OldestDue: at, Disposed: int64(m / 10 * (1 - m/11))})
		}, 25},
		"forgotten": {func(w *metrics.Watchdog, m int, now time.Time) {
			w.Saw(now, "r", due)
			once(m%10 == 9, func() { w.Forget("q", "r") })
		}, -1},
		"held, then not": {func(w *metrics.Watchdog, m int, now time.Time) {
			w.Saw(now, "r", metrics.Look{OldestDue: at, Held: m < 20})
		}, 35},
		"goes backwards": {func(w *metrics.Watchdog, m int, now time.Time) {
			w.Saw(now, "r", metrics.Look{OldestDue: at.Add(-time.Duration(m))})
		}, 15},
		"was done, is due": {func(w *metrics.Watchdog, m int, now time.Time) {
			l := metrics.Look{}
			if m >= 20 {
				l = due
			}
			w.Saw(now, "r", l)
		}, 35},
	} {
		t.Run(name, func(t *testing.T) {
			w := &metrics.Watchdog{Patience: 15 * time.Minute}
			got := -1
			for m := 0; m < 60 && got < 0; m++ {
				now := at.Add(time.Duration(m) * time.Minute)
				c.look(w, m, now)
				if len(w.Stuck(now)) > 0 {
					got = m
				}
			}
			if got != c.want {
				t.Errorf("the alarm is at minute %d, want %d", got, c.want)
			}
		})
	}
}

func once(when bool, f func()) {
	if when {
		f()
	}
}

// A clock that jumps by an hour, either way, raises no alarm by itself, and
// does not silence the one that is due.
func TestWatchdogClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		w := &metrics.Watchdog{Patience: 15 * time.Minute}
		offset, alarm := time.Duration(0), -1
		for m := range 60 {
			if m == 3 {
				offset = jump
			}
			now := at.Add(time.Duration(m)*time.Minute + offset)
			w.Saw(now, "r", metrics.Look{OldestDue: at})
			if alarm < 0 && len(w.Stuck(now)) > 0 {
				alarm = m
			}
		}
		if alarm < 10 || alarm > 20 {
			t.Errorf("jump %v: alarm at minute %d", jump, alarm)
		}
	}
}

func TestWatchdogOldestDue(t *testing.T) {
	w := &metrics.Watchdog{Patience: time.Minute}
	if got := w.OldestDue(); !got.IsZero() {
		t.Errorf("of no range: %v", got)
	}
	w.Saw(at, "a", metrics.Look{OldestDue: at.Add(-time.Hour)})
	w.Saw(at, "b", metrics.Look{OldestDue: at.Add(-time.Minute)})
	w.Saw(at, "c", metrics.Look{})
	// a fails from now on: what was last known stands.
	w.Saw(at.Add(time.Minute), "b", metrics.Look{})
	if got := w.OldestDue(); !got.Equal(at.Add(-time.Hour)) {
		t.Errorf("got %v", got)
	}
	w.Saw(at.Add(time.Minute), "a", metrics.Look{})
	if got := w.OldestDue(); !got.IsZero() {
		t.Errorf("when nothing is due: %v", got)
	}
}

// Three long steps are the patience, also where a third of it is no whole number.
func TestWatchdogThirds(t *testing.T) {
	w := &metrics.Watchdog{Patience: 10 * time.Second}
	for i := range 4 {
		now := at.Add(time.Duration(i) * time.Minute)
		w.Saw(now, "r", metrics.Look{OldestDue: at})
		if got := len(w.Stuck(now)); got != i/3 {
			t.Errorf("after %d steps %d ranges are stuck", i, got)
		}
	}
}

func TestWatchdogNamesInOrder(t *testing.T) {
	w := &metrics.Watchdog{Patience: time.Minute}
	now := at
	for range 5 {
		for _, n := range []string{"c", "a", "b"} {
			w.Saw(now, n, metrics.Look{OldestDue: at})
		}
		now = now.Add(time.Minute)
	}
	if got := w.Stuck(now); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %v", got)
	}
}

func ExampleWatchdog() {
	start := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	w := &metrics.Watchdog{Patience: 15 * time.Minute}
	for m := 0; m <= 20; m += 5 {
		now := start.Add(time.Duration(m) * time.Minute)
		w.Saw(now, "00000001.0006", metrics.Look{OldestDue: start})                                // due, and nothing happens
		w.Saw(now, "00000001.0007", metrics.Look{OldestDue: now.Add(-time.Second), Disposed: 500}) // busy
		fmt.Println(m, w.Stuck(now))
	}
	// Output:
	// 0 []
	// 5 []
	// 10 []
	// 15 [00000001.0006]
	// 20 [00000001.0006]
}
