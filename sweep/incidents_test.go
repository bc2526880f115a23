package sweep_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/modelstore"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
	"github.com/reaper-ttl/reaper/throttle"
)

// A logLine is one line of the log, as its readers parse it.
type logLine struct {
	Time    time.Time
	Level   string
	Msg     string
	Cause   string
	Tasks   string
	Error   string
	Times   int
	Ranges  int
	Seconds float64
}

// linesOf parses a log.
func linesOf(t *testing.T, text string) (list []logLine) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		var line logLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		list = append(list, line)
	}
	return list
}

// An incident is what happens to a daemon with 16 ranges at work.
type incident struct {
	name   string
	lasts  time.Duration
	fails  func(c modelstore.Call) error // while it lasts
	cause  string                        // the one that the log must name
	level  string                        // of its first line
	most   int                           // lines at WARN and above
	expect []string                      // of other messages
}

func isWrite(c modelstore.Call) bool { return c.Method != "Scan" && c.Method != "Load" }

// isOnEntities reports whether a call deletes entities.
func isOnEntities(c modelstore.Call) bool { return c.Method == "Dispose" || c.Method == "Settle" }

// isLocked reports whether another transaction holds the entity: one in a hundred.
func isLocked(key string) bool { return strings.HasSuffix(key, `00"`) }

var incidents = []incident{
	{name: "the store pushes back", lasts: 45 * time.Second, cause: "pushback", level: "WARN", most: 1,
		fails: func(c modelstore.Call) error {
			if c.Method == "Dispose" || c.Method == "Scan" {
				return fmt.Errorf("%w: rpc error: code = ResourceExhausted", store.ErrPushback)
			}
			return nil
		}},
	{name: "entities are locked", lasts: 50 * time.Second, cause: "contention", level: "WARN", most: 1,
		fails: func(c modelstore.Call) error {
			for _, op := range c.Ops {
				if isLocked(op.Entry.Key) {
					return fmt.Errorf("%w: rpc error: code = Aborted", store.ErrContention)
				}
			}
			if c.Method == "Settle" {
				return fmt.Errorf("%w: rpc error: code = Aborted", store.ErrContention)
			}
			return nil
		}},
	{name: "the store is gone", lasts: 36 * time.Second, cause: "unavailable", level: "WARN", most: 3,
		fails: func(modelstore.Call) error {
			return fmt.Errorf("%w: rpc error: code = Unavailable", store.ErrUnavailable)
		},
		expect: []string{"deletes suspended", "deletes go on"}},
	{name: "every write is aborted", lasts: 5 * time.Minute, cause: "contention", level: "WARN", most: 5,
		fails: func(c modelstore.Call) error {
			if isWrite(c) {
				return fmt.Errorf("%w: rpc error: code = Aborted", store.ErrContention)
			}
			return nil
		}},
	{name: "permission to commit is taken away", lasts: 5 * time.Minute, cause: "denied", level: "ERROR", most: 4,
		fails: func(c modelstore.Call) error {
			if isOnEntities(c) {
				return fmt.Errorf("%w: rpc error: code = PermissionDenied", store.ErrDenied)
			}
			return nil
		}},
}

// The log of an incident names its cause once within the first minute, at most once a
// minute while it lasts, and once when it is over, with how often and how long; whatever
// the number of ranges.
func TestLogOfAnIncident(t *testing.T) {
	nightly.Races(t)
	for _, i := range incidents {
		t.Run(i.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) { i.happenTo(t, w) })
		})
	}
}

func (i incident) happenTo(t *testing.T, w *world) {
	const shards = 16
	w.target.Shards = shards
	w.begin()
	began := time.Now()
	for n := range 60 * shards { // something is due all the time, in each range
		at := began.Add(time.Duration(n) * 15 * time.Minute / (60 * shards))
		w.dueIn(1, n%shards, fmt.Sprintf("e-%04d00", n), at)
	}
	var from atomic.Pointer[time.Time]
	w.s.Before = func(_ context.Context, c modelstore.Call) error {
		if at := from.Load(); at != nil && time.Since(*at) < i.lasts {
			return i.fails(c)
		}
		return nil
	}
	var log syncBuffer
	cfg := w.config()
	cfg.Log = slog.New(slog.NewJSONHandler(&log, nil))
	s := w.serve(cfg)
	time.Sleep(time.Minute)
	if said := linesOf(t, log.String()); len(said) > 3 {
		t.Errorf("before it: %+v", said)
	}
	before := len(log.String())
	start := time.Now()
	from.Store(&start)
	time.Sleep(i.lasts + 4*time.Minute)
	s.stop()
	i.check(t, start, linesOf(t, log.String()[before:]))
}

func (i incident) check(t *testing.T, start time.Time, lines []logLine) {
	var begun, over, loud int
	told := map[string]time.Time{}
	met := map[string]bool{}
	for _, l := range lines {
		if l.Level != "INFO" {
			loud++
		}
		for _, want := range i.expect {
			met[want] = met[want] || strings.HasPrefix(l.Msg, want)
		}
		if strings.Contains(l.Msg, "write the heartbeat") {
			t.Errorf("apart from its cause: %+v", l)
		}
		if l.Cause == "" {
			continue
		}
		if last := told[l.Cause]; l.Level != "INFO" && !last.IsZero() && l.Time.Sub(last) < time.Minute {
			t.Errorf("%s is told again %v after the last line", l.Cause, l.Time.Sub(last))
		}
		told[l.Cause] = l.Time
		switch {
		case l.Cause != i.cause:
		case l.Msg == "failing; trying again":
			begun++
			if l.Level != i.level || l.Time.Sub(start) > time.Minute || l.Error == "" {
				t.Errorf("told after %v: %+v", l.Time.Sub(start), l)
			}
		case l.Msg == "no longer failing":
			over++
			if d := i.lasts.Seconds() - l.Seconds; d < 0 || d > 61 || l.Times < 3 || l.Ranges < 1 || l.Tasks == "" {
				t.Errorf("over after %v: %+v", l.Time.Sub(start), l)
			}
		}
	}
	if begun != 1 || over != 1 || loud > i.most {
		t.Errorf("told %d times that it begins and %d times that it is over, in %d lines at WARN and above, want at most %d",
			begun, over, loud, i.most)
	}
	for _, want := range i.expect {
		if !met[want] {
			t.Errorf("no %q", want)
		}
	}
}

// A lost lease says why it is lost: the heartbeat could not be written, or another process
// has changed the record.
func TestLostLeaseSaysWhy(t *testing.T) {
	for cause, fails := range map[string]func(c modelstore.Call) error{
		"lease_lost": func(c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.WorkerRecord {
				return fmt.Errorf("%w: rpc error: code = Aborted", store.ErrContention)
			}
			return nil
		},
		"taken_over": func(c modelstore.Call) error {
			if c.Method == "Save" && c.Record.Sort == store.CursorRecord {
				return fmt.Errorf("%w: another revision is there", store.ErrConflict)
			}
			return nil
		},
	} {
		t.Run(cause, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.target.Pace = throttle.Limits{Start: 1, Max: 1} // every range is held for minutes
				w.begin()
				for n := range 4 * 200 {
					w.dueIn(1, n%4, fmt.Sprint("e-", n), time.Now())
				}
				var faulty atomic.Bool
				w.s.Before = func(_ context.Context, c modelstore.Call) error {
					if faulty.Load() {
						return fails(c)
					}
					return nil
				}
				var log syncBuffer
				cfg := w.config()
				cfg.Log = slog.New(slog.NewJSONHandler(&log, nil))
				s := w.serve(cfg)
				time.Sleep(30 * time.Second)
				faulty.Store(true)
				time.Sleep(50 * time.Second)
				faulty.Store(false)
				time.Sleep(3 * time.Minute)
				s.stop()
				why := map[string]string{"lease_lost": "heartbeat", "taken_over": "another revision is there"}[cause]
				begun := 0
				for _, l := range linesOf(t, log.String()) {
					switch {
					case strings.HasPrefix(l.Msg, "heartbeat lapsed"): // of all ranges at once
						begun++
						if cause != "lease_lost" || !strings.Contains(l.Error, "Aborted") {
							t.Errorf("%+v", l)
						}
					case l.Cause != "lease_lost" && l.Cause != "taken_over" || l.Level == "INFO":
					case l.Cause != cause || !strings.Contains(l.Error, why):
						t.Errorf("%+v", l)
					case cause == "taken_over":
						begun++
					}
				}
				if begun != 1 {
					t.Errorf("the log says %d times that leases are lost:\n%s", begun, log.String())
				}
			})
		})
	}
}

// The error of a sweep names each cause once, with how often it was met.
func TestErrorOfASweepNamesEachCauseOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 16
		w.begin()
		for n := range 32 {
			w.dueIn(1, n%16, fmt.Sprint("e-", n), time.Now().Add(-time.Hour))
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			if isOnEntities(c) {
				return fmt.Errorf("%w: rpc error: code = PermissionDenied", store.ErrDenied)
			}
			return nil
		}
		var log syncBuffer
		cfg := w.config()
		cfg.Log = slog.New(slog.NewJSONHandler(&log, nil))
		res := sweep.Run(t.Context(), cfg).Targets[0]
		if strings.Count(res.Error, "PermissionDenied") != 1 || !errors.Is(res.Err, store.ErrDenied) ||
			!strings.HasPrefix(res.Error, "16 failures in 32 ranges: range ") ||
			!strings.HasSuffix(res.Error, "(and 15 more times for this cause: denied)") {
			t.Errorf("%s", res.Error)
		}
		errs := 0
		for _, l := range linesOf(t, log.String()) {
			if l.Level == "ERROR" {
				errs++
			}
		}
		if errs != 2 { // the cause, and the end of the sweep
			t.Errorf("%d errors in the log:\n%s", errs, log.String())
		}
	})
}

// A store that refuses every entity for good leaves at most ten of their names in the log in
// a minute, and a line that says that there are more.
func TestManyRefusedEntitiesDoNotFloodTheLog(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.target.Shards = 16
		w.begin()
		for n := range 16 * 10 {
			w.dueIn(1, n%16, fmt.Sprint("bad-", n), time.Now())
		}
		for n := range 300 { // by which the refusals are known to be the entities' own
			w.dueIn(1, n%16, fmt.Sprint("good-", n), time.Now().Add(time.Duration(n)*time.Second))
		}
		w.s.Before = func(_ context.Context, c modelstore.Call) error {
			bad := c.Method == "Settle"
			for _, op := range c.Ops {
				bad = bad || strings.Contains(op.Entry.Key, "bad")
			}
			if bad {
				return fmt.Errorf("%w: it holds 20,001 index entries", store.ErrInvalid)
			}
			return nil
		}
		var log syncBuffer
		cfg := w.config()
		cfg.Log = slog.New(slog.NewJSONHandler(&log, nil))
		s := w.serve(cfg)
		time.Sleep(5 * time.Minute)
		refused := s.counter("reaper_kept_entities_total", "reason", "refused")
		s.stop()
		minutes, more := map[time.Time]int{}, 0
		for _, l := range linesOf(t, log.String()) {
			switch {
			case strings.HasPrefix(l.Msg, "the store refuses an entity"):
				minutes[l.Time.Truncate(time.Minute)]++
			case strings.HasPrefix(l.Msg, "and more of the same"):
				more++
			}
		}
		if refused < 100 || more == 0 || len(minutes) == 0 {
			t.Errorf("%v are refused; the log says %d times that there are more: %v", refused, more, minutes)
		}
		for at, n := range minutes {
			if n > 20 { // two windows of a minute overlap with one on the clock
				t.Errorf("%d names in the minute from %v", n, at)
			}
		}
	})
}
